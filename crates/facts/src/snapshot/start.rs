//! What starts the process again, and where it listens: what a person types about it.

use core::net::SocketAddr;

/// What a person types to start the same program again. /proc/PID/cmdline alone doesn't say: a program may overwrite
/// it, and the same words in another user's shell or outside of the container start something else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The words, the first of them the path of the program; and the folder in which they are typed.
    Command {
        words: Vec<String>,
        folder: Option<String>,
    },
    /// systemd starts it: the unit's name.
    Unit {
        name: String,
        of_user: bool,
    },
    /// It has replaced its arguments by a title, or was started under a name that isn't its file's.
    Title,
    /// It is in a container, or sees other files.
    Contained,
    OtherUser,
    /// An argument isn't UTF-8.
    NotText,
    #[default]
    Unread,
}

/// Sockets at which the process accepts connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    /// By port.
    pub tcp: Vec<SocketAddr>,
    /// Paths of Unix sockets, for the observer.
    pub unix: Vec<String>,
    /// Whether the process is in another network namespace: there, the same address is another socket.
    pub elsewhere: bool,
}
