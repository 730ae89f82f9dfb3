//! Redis and Valkey: their own commands that give memory back.

use super::case::Case;
use super::remedy::{FLOOR, GIVE_BACK, remedy};
use super::{Effort, Form, Remedy};
use plimsoll_facts::snapshot::Start;
use plimsoll_facts::units::Bytes;

/// redis.conf: `active-defrag-threshold-lower`, in percent, below which defragmentation stops.
const LOWER: u64 = 10;

const PURGE: &str = "MEMORY PURGE";

impl Case<'_> {
    /// What a person types so that Redis or Valkey gives its free pages back. With `askpass`, its client asks for the
    /// password. None: the process is neither.
    pub fn redis_purge(self, askpass: bool) -> Option<String> {
        let redis = Redis::of(self)?;
        match redis.client.is_some() && askpass {
            true => Some(redis.send(&[&format!("--askpass {PURGE}")], "")),
            false => Some(redis.send(&[PURGE], "")),
        }
    }
}

pub(crate) struct Redis {
    /// The client's command, up to the first word that is sent. None: where the server listens isn't known.
    client: Option<String>,
    /// A sentence, if the process doesn't show its command line.
    unknown_start: &'static str,
}

impl Redis {
    pub(crate) fn of(case: Case<'_>) -> Option<Redis> {
        let process = &case.snapshot.process;
        let client = process.redis_client()?;
        let title = process.command.join(" ");
        let unknown_start = match process.start {
            Start::Title => ". The command that starts it isn't known: the process shows a title instead",
            _ => "",
        };
        Some(Redis { client: case.redis_client(client, title.split_whitespace().nth(1)), unknown_start })
    }

    /// The command that sends each of these, and a comment.
    fn send(&self, texts: &[&str], comment: &str) -> String {
        let (client, at) = match &self.client {
            Some(client) => (format!("{client} "), ""),
            None => (String::new(), "sent to this server: the address at which it listens isn't known"),
        };
        let sent: Vec<String> = texts.iter().map(|text| format!("{client}{text}")).collect();
        let how = sent.join(if self.client.is_some() { " && " } else { "; " });
        match [at, comment].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ").as_str() {
            "" => how,
            comment => format!("{how}   # {comment}"),
        }
    }

    pub(crate) fn purge(&self) -> Remedy {
        let how = self.send(&[PURGE], "");
        remedy(Effort::Now, GIVE_BACK, how, "pages that are needed again cost a fault each")
    }

    pub(crate) fn background_thread(&self, what: &str) -> Remedy {
        let how = self.send(&["CONFIG SET jemalloc-bg-thread yes"], "");
        remedy(Effort::Now, what, how, "a thread that wakes up while pages decay")
    }

    /// Below active-defrag-ignore-bytes, 100 MiB by default, defragmentation does nothing. It leaves the lower
    /// threshold or the ignored bytes fragmented.
    pub(crate) fn defragment(&self, live: Bytes, beside: Bytes, kept: Bytes) -> Remedy {
        let ignored = format!("CONFIG SET active-defrag-ignore-bytes {}mb", FLOOR.0 >> 20);
        let how = self.send(&[&ignored, "CONFIG SET activedefrag yes"], "");
        let cost =
            "takes CPU time in the main thread (active-defrag-cycle-max, 25 % of a CPU by default) until it is done";
        let left = FLOOR.max(live.scaled(LOWER, 100));
        remedy(Effort::Now, "defragment: make Redis move its values onto fewer pages", how, cost)
            .saves(beside - left, kept)
    }

    /// A server that loads its snapshot lays its values out again. If it starts in another folder, it finds no
    /// snapshot, and is empty.
    pub(crate) fn reload(&self, live: Bytes, kept: Bytes) -> Remedy {
        let left = Bytes(live.0 / 4);
        let how = self.send(&["SHUTDOWN SAVE"], "and start the server again: it loads what it saved");
        let first = self.send(&["CONFIG GET dir", "CONFIG GET dbfilename"], "");
        let cost = format!(
            "check first that it will load the file that it saves, or it comes up empty: {first}; the server doesn't answer while it \
             saves and loads: a replica that takes over avoids that. activedefrag would need the jemalloc of Redis's own \
             sources, which doesn't serve this one{}",
            self.unknown_start
        );
        let what = "stop the server and start it again, so that it loads its values compactly from its own snapshot";
        Remedy { form: Form::Stop, ..remedy(Effort::Restart, what, how, cost) }.saves(kept - left, kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::verdict::VerdictId;
    use core::net::{Ipv4Addr, SocketAddr};
    use plimsoll_facts::snapshot::{Listeners, Snapshot};

    #[test]
    fn a_purge_by_hand_reaches_the_server_that_is_read() {
        let purge = |name: &str, port: Option<u16>, askpass| {
            let tcp = port.iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).collect();
            let mut snapshot =
                Snapshot { listeners: Some(Listeners { tcp, ..Listeners::default() }), ..Snapshot::default() };
            snapshot.process.name = name.into();
            let ledger = Ledger::of(&snapshot);
            Case { snapshot: &snapshot, ledger: &ledger }.redis_purge(askpass)
        };
        assert_eq!(purge("redis-server", Some(16379), false).as_deref(), Some("redis-cli -p 16379 MEMORY PURGE"));
        let valkey = purge("valkey-server", Some(16379), true);
        assert_eq!(valkey.as_deref(), Some("valkey-cli -p 16379 --askpass MEMORY PURGE"));
        // The default port may be another server's.
        let unknown = "MEMORY PURGE   # sent to this server: the address at which it listens isn't known";
        assert_eq!(purge("redis-server", None, true).as_deref(), Some(unknown));
        assert_eq!(purge("nginx", Some(16379), false), None);
    }

    #[test]
    fn without_an_address_the_commands_are_sent_by_hand() {
        let known = Redis { client: Some("redis-cli -p 7391".into()), unknown_start: "" };
        let unknown = Redis { client: None, unknown_start: "" };
        assert_eq!(known.purge().how, "redis-cli -p 7391 MEMORY PURGE");
        assert_eq!(
            unknown.purge().how,
            "MEMORY PURGE   # sent to this server: the address at which it listens isn't known"
        );
        let (live, kept) = (Bytes::mib(100), Bytes::mib(80));
        assert_eq!(
            known.defragment(live, kept, kept).how,
            "redis-cli -p 7391 CONFIG SET active-defrag-ignore-bytes 16mb && redis-cli -p 7391 CONFIG SET activedefrag yes"
        );
        let reload = known.reload(live, kept);
        assert!(
            reload.headline(VerdictId::AllocatorRetention).is_some_and(|row| !row.contains("SHUTDOWN")),
            "{reload:?}"
        );
        let check = "redis-cli -p 7391 CONFIG GET dir && redis-cli -p 7391 CONFIG GET dbfilename";
        let first = format!("check first that it will load the file that it saves, or it comes up empty: {check}; ");
        assert!(reload.trade_off.starts_with(&first), "{reload:?}");
        assert!(unknown.reload(live, kept).how.starts_with("SHUTDOWN SAVE   # sent to this server"));
    }
}
