//! Lines of /proc/PID/mountinfo (proc(5)):
//!
//! ```text
//! 35 31 0:32 ROOT POINT rw,relatime shared:7 - cgroup cgroup rw,memory
//! ```
//! ROOT and POINT have blanks, newlines and backslashes as three octal digits (`\040`, `\134`).

/// A mount, with ROOT and POINT as paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine<'t> {
    pub id: u64,
    pub root: String,
    pub point: String,
    pub file_system: &'t str,
    pub options: &'t str,
}

/// The mounts in the kernel's order; a line of another form is left out.
pub fn mount_lines(mountinfo: &str) -> impl Iterator<Item = MountLine<'_>> {
    mountinfo.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let id = fields.next()?.parse().ok()?;
        let (root, point) = (fields.nth(2)?, fields.next()?);
        let mut of_it = file_system.split(' ');
        let file_system = of_it.next()?;
        let options = of_it.nth(1).unwrap_or_default();
        Some(MountLine { id, root: unescaped(root), point: unescaped(point), file_system, options })
    })
}

/// A backslash without three octal digits of an ASCII character is kept: the kernel writes none.
fn unescaped(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).filter(|digits| digits.bytes().all(|digit| matches!(digit, b'0'..=b'7')));
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii) {
            Some(code) => {
                text.push(char::from(code));
                text.push_str(&part[3..]);
            }
            None => {
                text.push('\\');
                text.push_str(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_digits_are_the_characters_that_they_stand_for() {
        for (field, path) in [
            ("/", "/"),
            (r"/system.slice/a\134x2db.service", r"/system.slice/a\x2db.service"),
            (r"/a\040b\011c\012d\134", "/a b\tc\nd\\"),
            // Names in UTF-8 are as they are; the rest isn't the kernel's.
            (r"/ü\134ö", r"/ü\ö"),
            (r"\13", r"\13"),
            (r"\189\1ü4\400\377", r"\189\1ü4\400\377"),
        ] {
            assert_eq!(unescaped(field), path);
        }
    }

    #[test]
    fn lines_of_another_form_are_left_out() {
        let text =
            "35 31 0:32 /a /b\\040c rw shared:7 - cgroup cgroup rw,memory\n36 31 0:33 /\nx 31 0:32 / / rw - a b c\n";
        let found: Vec<MountLine<'_>> = mount_lines(text).collect();
        let expected = MountLine {
            id: 35,
            root: "/a".to_owned(),
            point: "/b c".to_owned(),
            file_system: "cgroup",
            options: "rw,memory",
        };
        assert_eq!(found, [expected]);
    }
}
