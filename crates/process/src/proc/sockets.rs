//! The TCP addresses at which a process listens: /proc/PID/net/tcp lists the sockets of its network namespace, and
//! /proc/PID/fd names those that it has open (proc(5)).
//!
//! ```text
//!   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//!    0: 0100007F:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21563 1 …
//! ```
//! An address is in words of four bytes, each in the machine's order (net/ipv4/tcp_ipv4.c, get_tcp4_sock).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Target;

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

/// The TCP addresses at which this process listens, by port. Also empty if the process is in another network namespace:
/// there, the same address reaches another socket.
pub fn listens_at(target: &Target, own_network: &[u8]) -> Vec<SocketAddr> {
    if target.link("ns/net").ok().as_deref() != Some(own_network) {
        return Vec::new();
    }
    let numbers = target.numbers("fd").unwrap_or_default();
    let inode = |number: &u32| {
        let link = String::from_utf8(target.link(&format!("fd/{number}")).ok()?).ok()?;
        link.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
    };
    let own: Vec<u64> = numbers.iter().take(MOST_DESCRIPTORS).filter_map(inode).collect();
    let of = |table: &str| target.read(table).map(|text| parse_listening(&text)).unwrap_or_default();
    let all = of("net/tcp").into_iter().chain(of("net/tcp6"));
    let mut found: Vec<SocketAddr> = all.filter(|(inode, _)| own.contains(inode)).map(|(_, address)| address).collect();
    found.sort_by_key(|address| (address.port(), address.is_ipv6()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn broken_tables_have_no_sockets() {
        for text in ["", "x", "h\n0: 01:18EB 0 0A 0 0 0 0 0 77\n", "h\n0: 0100007F 0 0A 0 0 0 0 0 77\n"] {
            assert_eq!(parse_listening(text.as_bytes()), [], "{text}");
        }
    }
}
