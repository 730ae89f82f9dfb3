//! A VM's replies to the attach protocol: any process may have a socket of that name.

use plimsoll_observer::parsers::attach::{Reply, reply, request, return_code, version};

pub fn run(bytes: &[u8]) {
    if let Reply::Text(text) | Reply::Failed { text, .. } = reply(bytes) {
        return_code(&text);
        let spoken = version(&text);
        let request = request(spoken, &["jcmd", &text, "a"]);
        assert!(request.ends_with(&[0]), "a request ends with a zero byte");
    }
}
