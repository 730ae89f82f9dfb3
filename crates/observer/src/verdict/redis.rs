//! Redis and Valkey: their own commands that give memory back.

use super::case::Case;
use super::remedy::{FLOOR, GIVE_BACK, remedy};
use super::{Effort, Remedy};
use plimsoll_facts::units::Bytes;

/// The default port of their clients.
const PORT: &str = "6379";
/// redis.conf: `active-defrag-threshold-lower`, in percent, below which defragmentation stops.
const LOWER: u64 = 10;

pub(crate) struct Redis {
    /// The client's command, up to the first word that is sent.
    client: String,
}

impl Redis {
    pub(crate) fn of(case: Case<'_>) -> Option<Redis> {
        let process = &case.snapshot.process;
        let kinds = [("redis-server", "redis-cli"), ("valkey-server", "valkey-cli")];
        let (_, client) = kinds.into_iter().find(|(server, _)| process.name.starts_with(server))?;
        let title = process.command.join(" ");
        let place = title.split_whitespace().nth(1).and_then(listens).unwrap_or_default();
        Some(Redis { client: format!("{client}{place}") })
    }

    pub(crate) fn purge(&self) -> Remedy {
        let how = format!("{} MEMORY PURGE", self.client);
        remedy(Effort::Now, GIVE_BACK, how, "pages that are needed again cost a fault each")
    }

    pub(crate) fn background_thread(&self, what: &str) -> Remedy {
        let how = format!("{} CONFIG SET jemalloc-bg-thread yes", self.client);
        remedy(Effort::Now, what, how, "a thread that wakes up while pages decay")
    }

    /// Below active-defrag-ignore-bytes, 100 MiB by default, defragmentation does nothing. The lower threshold and the
    /// ignored bytes remain in the end.
    pub(crate) fn defragment(&self, live: Bytes, beside: Bytes, kept: Bytes) -> Remedy {
        let client = &self.client;
        let how = format!(
            "{client} CONFIG SET active-defrag-ignore-bytes {}mb && {client} CONFIG SET activedefrag yes",
            FLOOR.0 >> 20
        );
        let cost =
            "takes CPU time in the main thread (active-defrag-cycle-max, 25 % of a CPU by default) until it is done";
        let left = FLOOR.max(live.scaled(LOWER, 100));
        remedy(Effort::Now, "have Redis move its values together", how, cost).saves(beside - left, kept)
    }

    /// A server that loads its snapshot lays its values out anew.
    pub(crate) fn reload(&self, live: Bytes, kept: Bytes) -> Remedy {
        let left = Bytes(live.0 / 4);
        let how = format!("{} SHUTDOWN SAVE   # and start the server again: it loads what it saved", self.client);
        let cost = "no answers while it saves and loads; a replica that takes over avoids that";
        remedy(
            Effort::Restart,
            "restart the server, so that it loads its values compactly, from its own snapshot",
            how,
            cost,
        )
        .saves(kept - left, kept)
    }
}

/// The client's option for the address in the server's title: `*:6379`, `127.0.0.1:7000`, `unixsocket:/run/redis.sock`.
fn listens(address: &str) -> Option<String> {
    let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    if let Some(path) = address.strip_prefix("unixsocket:") {
        return is_plain(path).then(|| format!(" -s {path}"));
    }
    let (_, port) = address.rsplit_once(':')?;
    let is_port = !port.is_empty() && port.chars().all(|c| c.is_ascii_digit());
    (is_port && port != PORT).then(|| format!(" -p {port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_options_follow_from_the_title() {
        let option = |address| listens(address).unwrap_or_default();
        assert_eq!(option("*:6379"), "");
        assert_eq!(option("127.0.0.1:7391"), " -p 7391");
        assert_eq!(option("[::1]:7391"), " -p 7391");
        assert_eq!(option("unixsocket:/run/redis/redis.sock"), " -s /run/redis/redis.sock");
        assert_eq!(option("unixsocket:/run/$(reboot)"), "");
        assert_eq!(option("/etc/redis.conf"), "");
        assert_eq!(option("*:; reboot"), "");
    }
}
