//! Remedies that need the address at which the process listens: the client of Redis, and Go's profiles. If the address
//! isn't known, the text says so and names no port: a wrong port may be another server's.

use core::net::{IpAddr, SocketAddr};

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Remedy};
use plimsoll_facts::shell::command_line;
use plimsoll_facts::snapshot::Listeners;

/// More addresses than this aren't listed.
const MOST: usize = 3;

/// Distance of the port at which the nodes of a Redis cluster talk (cluster.h, CLUSTER_PORT_INCR).
const BUS: u16 = 10_000;

impl Case<'_> {
    /// Options of redis-cli that lead to this process, and the words to put before it. `title`: the address in its
    /// title.
    pub(crate) fn redis_client(self, client: &str, title: Option<&str>) -> Option<String> {
        let of_title = title.and_then(parse_title);
        let Some(listeners) = &self.snapshot.listeners else {
            return command_line(std::iter::once(client).chain(of_title?.iter().map(String::as_str)));
        };
        let titled = title.and_then(|title| title.rsplit_once(':')?.1.parse::<u16>().ok());
        let options = match redis_port(&listeners.tcp, titled) {
            Some(port) => tcp_options(&listeners.tcp, port),
            None => match (listeners.tcp.as_slice(), listeners.unix.as_slice()) {
                ([], [path]) => vec!["-s".to_owned(), path.clone()],
                _ => return None,
            },
        };
        let is_tcp = options.first().is_none_or(|option| option != "-s");
        let words = std::iter::once(client).chain(options.iter().map(String::as_str));
        Some(format!("{}{}", self.enter(listeners, is_tcp), command_line(words)?))
    }

    /// In another network namespace, the same address is another socket. A path leads there through /proc/PID/root.
    fn enter(self, listeners: &Listeners, is_tcp: bool) -> String {
        match listeners.elsewhere && is_tcp {
            true => format!("sudo nsenter -t {} -n ", self.pid()),
            false => String::new(),
        }
    }
}

/// The port for clients: the port in the title, the only port, or the port whose cluster bus is the only other one.
fn redis_port(tcp: &[SocketAddr], titled: Option<u16>) -> Option<u16> {
    let ports = ports(tcp);
    if let Some(port) = titled.filter(|port| ports.contains(port)) {
        return Some(port);
    }
    match ports[..] {
        [port] => Some(port),
        [port, bus] if port.checked_add(BUS) == Some(bus) => Some(port),
        _ => None,
    }
}

fn ports(tcp: &[SocketAddr]) -> Vec<u16> {
    let mut ports: Vec<u16> = tcp.iter().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// An address that reaches the port from here; None for 127.0.0.1, the default of clients.
fn host(tcp: &[SocketAddr], port: u16) -> Option<IpAddr> {
    let addresses = || tcp.iter().filter(move |address| address.port() == port).map(SocketAddr::ip);
    let is_local = |ip: IpAddr| ip == IpAddr::V4(core::net::Ipv4Addr::LOCALHOST) || ip.is_unspecified();
    if addresses().any(is_local) { None } else { addresses().next() }
}

fn tcp_options(tcp: &[SocketAddr], port: u16) -> Vec<String> {
    let host = host(tcp, port).map(|ip| vec!["-h".to_owned(), ip.to_string()]);
    let port = (port != DEFAULT).then(|| vec!["-p".to_owned(), port.to_string()]);
    [host, port].into_iter().flatten().flatten().collect()
}

/// The default port of Redis's clients.
const DEFAULT: u16 = 6379;

/// The client's options for the address in the server's title: `*:6379`, `127.0.0.1:7000`,
/// `unixsocket:/run/redis.sock`.
fn parse_title(address: &str) -> Option<Vec<String>> {
    if let Some(path) = address.strip_prefix("unixsocket:") {
        return Some(vec!["-s".to_owned(), path.to_owned()]);
    }
    let (host, port) = address.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let host = match host {
        "*" => IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
        host => host.trim_matches(['[', ']']).parse().ok()?,
    };
    Some(tcp_options(&[SocketAddr::new(host, port)], port))
}

/// The heap profile of a Go program, from net/http/pprof at each of its ports; without one, from code.
pub(crate) fn heap_profile(case: Case<'_>, what: &str, query: &str, trade_off: &str) -> Remedy {
    let listeners = case.snapshot.listeners.as_ref();
    let tcp = listeners.map(|listeners| listeners.tcp.as_slice()).unwrap_or_default();
    let ports = ports(tcp);
    let and = |more: &str| if trade_off.is_empty() { more.to_owned() } else { format!("{more}; {trade_off}") };
    let Some(listeners) = listeners.filter(|_| (1..=MOST).contains(&ports.len())) else {
        let how = "f, _ := os.Create(\"heap.pprof\"); pprof.WriteHeapProfile(f); f.Close()   \
                   // import \"runtime/pprof\"; then: go tool pprof heap.pprof";
        let why = match ports.len() {
            0 => "it listens at no TCP port that can be seen, so net/http/pprof isn't served there",
            _ => {
                "if it serves net/http/pprof at one of its ports, go tool pprof reads the profile from /debug/pprof/heap there"
            }
        };
        return remedy(Effort::Code, what, how, and(why));
    };
    let line = |port: &u16| {
        let host = match host(tcp, *port) {
            None => "localhost".to_owned(),
            Some(IpAddr::V6(ip)) => format!("[{ip}]"),
            Some(ip) => ip.to_string(),
        };
        let url = format!("http://{host}:{port}/debug/pprof/heap{query}");
        let command = command_line(["go", "tool", "pprof", &url]).unwrap_or_default();
        format!("{}{command}", case.enter(listeners, true))
    };
    let how = ports.iter().map(line).collect::<Vec<_>>().join("\n");
    let only = match ports.len() {
        1 => "only if the program serves net/http/pprof there",
        _ => "only at the port where the program serves net/http/pprof, if at any",
    };
    remedy(Effort::Now, what, how, and(only))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use plimsoll_facts::snapshot::Snapshot;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    fn with<T>(listeners: Option<Listeners>, what: impl Fn(Case<'_>) -> T) -> T {
        let mut snapshot = Snapshot { listeners, ..Snapshot::default() };
        snapshot.process.pid = 7;
        let ledger = Ledger::of(&snapshot);
        what(Case { snapshot: &snapshot, ledger: &ledger })
    }

    fn client(listeners: Option<Listeners>, title: &str) -> Option<String> {
        with(listeners, |case| case.redis_client("redis-cli", Some(title).filter(|title| !title.is_empty())))
    }

    #[test]
    fn the_client_of_redis_gets_the_address_that_is_open() {
        let at = |texts: &[&str], title: &str| {
            client(Some(Listeners { tcp: addresses(texts), ..Listeners::default() }), title)
        };
        assert_eq!(at(&["0.0.0.0:6379", "[::]:6379"], "*:6379").as_deref(), Some("redis-cli"));
        assert_eq!(at(&["127.0.0.1:7391"], "127.0.0.1:7391").as_deref(), Some("redis-cli -p 7391"));
        assert_eq!(at(&["10.0.0.5:6379"], "").as_deref(), Some("redis-cli -h 10.0.0.5"));
        assert_eq!(at(&["[::1]:7391"], "").as_deref(), Some("redis-cli -h ::1 -p 7391"));
        // A cluster's bus, and a title that someone has chosen.
        assert_eq!(at(&["127.0.0.1:7000", "127.0.0.1:17000"], "mine").as_deref(), Some("redis-cli -p 7000"));
        assert_eq!(at(&["127.0.0.1:7000", "127.0.0.1:7001"], "*:7001").as_deref(), Some("redis-cli -p 7001"));
        // With several ports, it is unknown which one is for clients. A port in the title that isn't open is outdated.
        assert_eq!(at(&["127.0.0.1:7000", "127.0.0.1:7001"], "*:9"), None);
        assert_eq!(at(&[], "*:6379"), None);
        let unix = Listeners { unix: vec!["/run/it's.sock".into()], ..Listeners::default() };
        assert_eq!(client(Some(unix), "*:0").as_deref(), Some(r"redis-cli -s '/run/it'\''s.sock'"));
        let elsewhere = Listeners { tcp: addresses(&["0.0.0.0:6379"]), elsewhere: true, ..Listeners::default() };
        assert_eq!(client(Some(elsewhere), "").as_deref(), Some("sudo nsenter -t 7 -n redis-cli"));
    }

    #[test]
    fn without_sockets_the_title_has_the_address() {
        let of = |title| client(None, title);
        assert_eq!(of("*:6379").as_deref(), Some("redis-cli"));
        assert_eq!(of("127.0.0.1:7391").as_deref(), Some("redis-cli -p 7391"));
        assert_eq!(of("[::1]:7391").as_deref(), Some("redis-cli -h ::1 -p 7391"));
        assert_eq!(of("unixsocket:/run/redis.sock").as_deref(), Some("redis-cli -s /run/redis.sock"));
        assert_eq!(of("unixsocket:/run/$(reboot)").as_deref(), Some("redis-cli -s '/run/$(reboot)'"));
        for other in ["", "/etc/redis.conf", "*:; reboot", "*:99999", "mine"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_heap_profile_comes_from_the_ports_that_are_open() {
        let of = |texts: &[&str]| {
            let listeners = Listeners { tcp: addresses(texts), ..Listeners::default() };
            with(Some(listeners), |case| heap_profile(case, "", "?gc=1", "one collection"))
        };
        let one = of(&["[::]:6060"]);
        assert_eq!(one.how, "go tool pprof 'http://localhost:6060/debug/pprof/heap?gc=1'");
        assert_eq!(one.trade_off, "only if the program serves net/http/pprof there; one collection");
        let two = of(&["10.0.0.5:80", "[fd00::1]:6060"]);
        let lines = "go tool pprof 'http://10.0.0.5:80/debug/pprof/heap?gc=1'\n\
                     go tool pprof 'http://[fd00::1]:6060/debug/pprof/heap?gc=1'";
        assert_eq!((two.how.as_str(), two.effort), (lines, Effort::Now));
        let none = of(&[]);
        assert_eq!((none.effort, none.verb().0), (Effort::Code, "code"));
        assert!(none.how.contains("pprof.WriteHeapProfile(f)"), "{none:?}");
        let many = of(&["[::]:1", "[::]:2", "[::]:3", "[::]:4"]);
        assert_eq!(many.effort, Effort::Code);
        assert!(with(None, |case| heap_profile(case, "", "", "")).trade_off.contains("that can be seen"));
    }
}
