//! Encodes and decodes HotSpot's attach protocol (src/hotspot/share/services/attachListener.cpp,
//! posixAttachOperation.hpp).
//!
//! ```text
//! version 1   "1" 0  command 0  argument 0  argument 0  argument 0          always three arguments
//! version 2   "2" 0  length of what follows, in decimal 0  command[ " " option "=" value] 0  argument 0 …     (JDK 24 on)
//! reply       result code in decimal \n  text …  end of stream
//! ```
//!
//! One connection carries one command. Every VM with version 2 still answers version 1, unless it returns
//! `ATTACH_ERROR_BADVERSION`. JDK 24 and later answer `getversion options` with `2 streaming`; older ones don't know
//! the command.
//!
//! A VM that streams makes one system call per printed piece, inside the safepoint if the command needs one (18,000 for
//! VM.metaspace vslist). So streaming is switched off (docs/decisions/asking-a-vm.md).

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
    /// Version 2, and the VM can answer in one piece on request.
    TwoWhole,
}

/// The command that queries the VM's version and options, sent in version 1.
pub(crate) const GET_VERSION: [&str; 2] = ["getversion", "options"];

/// The version from the answer to `GET_VERSION`, such as `2 streaming`.
pub fn version(answer: &str) -> Version {
    let (version, options) = answer.trim().split_once(' ').unwrap_or((answer.trim(), ""));
    match (version, options.split(',').any(|option| option == "streaming")) {
        ("2", true) => Version::TwoWhole,
        ("2", false) => Version::Two,
        _ => Version::One,
    }
}

/// ATTACH_ERROR_BADVERSION
pub(crate) const BAD_VERSION: i32 = 101;

/// The request for a command with up to three arguments.
pub fn request(version: Version, command: &[&str]) -> Vec<u8> {
    let missing = if version == Version::One { 4usize.saturating_sub(command.len()) } else { 0 };
    let options = if version == Version::TwoWhole { " streaming=0" } else { "" };
    let name = command.first().map(|name| format!("{name}{options}"));
    let arguments = command.iter().skip(1).copied().chain(std::iter::repeat_n("", missing));
    let words = name.as_deref().into_iter().chain(arguments);
    // A zero byte would end the argument early, so it is left out.
    let body: Vec<u8> = words.flat_map(|word| word.bytes().filter(|b| *b != 0).chain([0])).collect();
    match version {
        Version::One => [b"1\0".as_slice(), &body].concat(),
        Version::Two | Version::TwoWhole => [format!("2\0{}\0", body.len()).as_bytes(), &body].concat(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Text(String),
    Failed {
        code: i32,
        text: String,
    },
    /// The VM closed the connection without a code: it doesn't accept commands of this user.
    Refused,
}

/// The return value of a loaded agent, from the text of a successful `load`: `return code: 0`; in JDK 8, the number
/// alone. If the library could not be loaded, the text has the VM's reason instead, although the result is 0.
pub fn return_code(text: &str) -> Option<i32> {
    let named = text.lines().find_map(|line| line.trim().strip_prefix("return code:"));
    named.unwrap_or(text).trim().parse().ok()
}

pub fn reply(bytes: &[u8]) -> Reply {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let code = std::str::from_utf8(&bytes[..end]).ok().and_then(|code| code.trim().parse().ok());
    let text = String::from_utf8_lossy(bytes.get(end + 1..).unwrap_or(&[])).into_owned();
    match code {
        Some(0) => Reply::Text(text),
        Some(code) => Reply::Failed { code, text },
        None => Reply::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_both_versions() {
        assert_eq!(request(Version::One, &["jcmd", "VM.version"]), b"1\0jcmd\0VM.version\0\0\0");
        assert_eq!(request(Version::Two, &["jcmd", "VM.version"]), b"2\x0016\0jcmd\0VM.version\0");
        assert_eq!(request(Version::TwoWhole, &["jcmd", "VM.version"]), b"2\x0028\0jcmd streaming=0\0VM.version\0");
        let load = ["load", "/l.so", "true", "detach"];
        assert_eq!(request(Version::One, &load), b"1\0load\0/l.so\0true\0detach\0");
    }

    #[test]
    fn the_protocol_version_is_read_from_the_answer() {
        let spoken = ["2 streaming", "2 later,streaming\n", "2", "2 later", "1", "", "3 streaming"].map(version);
        let (whole, two, one) = (Version::TwoWhole, Version::Two, Version::One);
        assert_eq!(spoken, [whole, whole, two, two, one, one, one]);
    }

    #[test]
    fn the_agents_return_value_is_in_the_text() {
        assert_eq!(return_code("return code: 0\n"), Some(0));
        assert_eq!(return_code("return code: -1"), Some(-1));
        assert_eq!(return_code("0\n"), Some(0), "JDK 8");
        assert_eq!(return_code("/l.so was not loaded.\n/l.so: file too short"), None);
    }

    #[test]
    fn replies_are_decoded() {
        assert_eq!(reply(b"0\nJDK 25\n"), Reply::Text("JDK 25\n".into()));
        assert_eq!(reply(b"101\nbad"), Reply::Failed { code: 101, text: "bad".into() });
        assert_eq!(reply(b""), Reply::Refused);
        assert_eq!(reply(b"\xff\xff"), Reply::Refused);
    }
}
