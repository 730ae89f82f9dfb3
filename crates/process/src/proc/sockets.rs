//! Where a process accepts connections: /proc/PID/net/tcp and net/unix list the sockets of its network namespace, and
//! /proc/PID/fd names those that it has open (proc(5)).
//!
//! ```text
//!   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//!    0: 0100007F:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21563 1 …
//! ```
//! An address is in words of four bytes, each in the machine's order (net/ipv4/tcp_ipv4.c, get_tcp4_sock).
//!
//! ```text
//! Num               RefCount Protocol Flags    Type St Inode Path
//! 0000000000000000: 00000002 00000000 00010000 0001 01 21564 /run/redis.sock
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::{HashMap, HashSet};

use super::Target;
use plimsoll_facts::snapshot::Listeners;

/// TCP_LISTEN (include/net/tcp_states.h).
const LISTENS: &str = "0A";
/// Limit of descriptors that are searched. No program of interest opens more of them before its listening sockets.
const MOST_DESCRIPTORS: usize = 4096;

/// Sockets that listen, as (inode, address).
pub fn parse_listening(text: &[u8]) -> Vec<(u64, SocketAddr)> {
    let text = String::from_utf8_lossy(text);
    let sockets = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let (address, port) = local.split_once(':')?;
        let address = SocketAddr::new(address_of(address)?, u16::from_str_radix(port, 16).ok()?);
        (*state == LISTENS).then_some((inode.parse().ok()?, address))
    });
    sockets.collect()
}

fn address_of(hexadecimal: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hexadecimal.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match hexadecimal.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
        _ => None,
    }
}

/// Unix sockets with a path that listen, as (inode, path). A path may contain a newline, and so imitate a line. So an
/// inode that is listed twice is left out.
pub fn parse_listening_unix(text: &[u8]) -> Vec<(u64, String)> {
    /// __SO_ACCEPTCON (include/uapi/linux/net.h).
    const ACCEPTS: u64 = 1 << 16;
    let text = String::from_utf8_lossy(text);
    let sockets = text.lines().skip(1).filter_map(|line| {
        let mut rest = line;
        let mut field = || {
            let (field, after) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
            rest = after;
            field
        };
        let fields: [&str; 7] = core::array::from_fn(|_| field());
        let accepts = u64::from_str_radix(fields[3], 16).ok()? & ACCEPTS != 0;
        let inode = fields[6].parse::<u64>().ok()?;
        Some((inode, Some(rest).filter(|path| accepts && path.starts_with('/'))))
    });
    let sockets: Vec<(u64, Option<&str>)> = sockets.collect();
    let mut times: HashMap<u64, u32> = HashMap::new();
    for (inode, _) in &sockets {
        *times.entry(*inode).or_default() += 1;
    }
    let listening = sockets.iter().filter_map(|(inode, path)| Some((*inode, (*path)?.to_owned())));
    listening.filter(|(inode, _)| times[inode] == 1).collect()
}

/// Where this process accepts connections. None if its descriptors can't be read.
pub fn listeners(target: &Target) -> Option<Listeners> {
    let elsewhere = !target.shares_our_namespace("net")?;
    let inode = |number: &u32| {
        let link = String::from_utf8(target.link(&format!("fd/{number}")).ok()?).ok()?;
        link.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
    };
    let own: HashSet<u64> = target.numbers("fd").ok()?.iter().take(MOST_DESCRIPTORS).filter_map(inode).collect();
    let of = |table: &str| target.read(table).map(|text| parse_listening(&text)).unwrap_or_default();
    let all = of("net/tcp").into_iter().chain(of("net/tcp6"));
    let mut tcp: Vec<SocketAddr> = all.filter(|(inode, _)| own.contains(inode)).map(|(_, address)| address).collect();
    tcp.sort_by_key(|address| (address.port(), address.is_ipv6()));
    let unix = target.read("net/unix").map(|text| parse_listening_unix(&text)).unwrap_or_default();
    let unix = unix.into_iter().filter(|(inode, _)| own.contains(inode)).map(|(_, path)| path);
    let for_us = |path: String| match target.shares_our_root() {
        true => path,
        false => target.path(&path).display().to_string(),
    };
    Some(Listeners { tcp, unix: unix.map(for_us).collect(), elsewhere })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{Deadline, LOOK};

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    /// Made of the kernel's format for 127.0.0.1:6379, a connection, and [::1]:6379, as a little-endian machine prints
    /// them.
    #[test]
    #[cfg(target_endian = "little")]
    fn listening_sockets_differ_from_connections() {
        let rows = "   0: 0100007F:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0\n\
            \x20  1: 0100007F:18EB 0100007F:8001 01 00000000:00000000 00:00000000 00000000     0        0 78 1 0\n";
        let found = parse_listening(format!("{HEAD}{rows}").as_bytes());
        assert_eq!(found, [(77, "127.0.0.1:6379".parse().expect("an address"))]);
        let row = "   0: 00000000000000000000000001000000:18EB 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 79 1 0\n";
        let found = parse_listening(format!("{HEAD}{row}").as_bytes());
        assert_eq!(found, [(79, "[::1]:6379".parse().expect("an address"))]);
    }

    #[test]
    fn listening_unix_sockets_have_a_path() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21564 /run/my redis.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 21565 /run/my redis.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21566 @abstract\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 21567\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21568 /run/a\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21568 /run/feigned\n";
        assert_eq!(parse_listening_unix(text.as_bytes()), [(21564, "/run/my redis.sock".to_owned())]);
    }

    /// Any user may open that many. Comparing each with every other would take a minute.
    #[test]
    fn a_hundred_thousand_sockets_are_read_at_once() {
        // Processor time: a busy machine lends it slowly.
        let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
        let before = spent();
        let mut text = String::from("Num       RefCount Protocol Flags    Type St Inode Path\n");
        for inode in 0..100_000 {
            text.push_str(&format!("0000000000000000: 00000002 00000000 00010000 0001 01 {inode} /tmp/{inode}\n"));
        }
        assert_eq!(parse_listening_unix(text.as_bytes()).len(), 100_000);
        assert!(spent() - before < 15, "{} s", spent() - before);
    }

    /// The sockets are this process's own.
    #[test]
    fn open_sockets_are_found_by_their_inodes() {
        let folder = std::env::temp_dir().join(format!("plimsoll-sockets-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("a socket");
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let _unix = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let target = Target::open(std::process::id(), Deadline::after(LOOK)).expect("this process");
        let found = listeners(&target).expect("its descriptors");
        std::fs::remove_dir_all(&folder).expect("the folder");
        assert!(found.tcp.contains(&tcp.local_addr().expect("an address")), "{found:?}");
        assert!(found.unix.contains(&path.display().to_string()) && !found.elsewhere, "{found:?}");
    }

    #[test]
    fn broken_tables_have_no_sockets() {
        for text in ["", "x", "h\n0: 01:18EB 0 0A 0 0 0 0 0 77\n", "h\n0: 0100007F 0 0A 0 0 0 0 0 77\n"] {
            assert_eq!(parse_listening(text.as_bytes()), [], "{text}");
            assert_eq!(parse_listening_unix(text.as_bytes()), [], "{text}");
        }
    }
}
