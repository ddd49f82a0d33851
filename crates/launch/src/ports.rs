//! Ports of this host for a job's tasks: free ones, or a check that given ones are.
//!
//! Free ports are taken from below the range that the system gives to outgoing connections. Inside
//! it a task that comes back could find its port taken by somebody's connection, and a connection
//! to a task that is away could be answered by itself.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};

/// Lowest port that is tried.
const LOWEST: u16 = 10_240;
/// Where outgoing ports begin if the system does not say.
const USUAL_FIRST_OUTGOING: u16 = 32_768;

/// So many ports of this machine that nobody listens on. `seed` says where to look first, so
/// that jobs started at the same time do not look in the same place.
pub(crate) fn free(on: Ipv4Addr, count: usize, seed: u64) -> io::Result<Vec<u16>> {
    let first_outgoing = first_outgoing();
    let span = u64::from(first_outgoing.saturating_sub(LOWEST)).max(1);
    let mut found = BTreeSet::new();
    for step in 0..span {
        if found.len() == count {
            break;
        }
        let offset = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16).wrapping_add(step) % span;
        let port = LOWEST + u16::try_from(offset).unwrap_or(0);
        // Addresses are given up again at once; the task takes its own in a moment.
        if TcpListener::bind((on, port)).is_ok() {
            found.insert(port);
        }
    }
    match found.len() == count {
        true => Ok(found.into_iter().collect()),
        false => Err(io::Error::other("this machine has not enough free ports")),
    }
}

/// Says why an address cannot be listened on, if it cannot.
pub(crate) fn check(address: &str) -> io::Result<()> {
    let found: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    TcpListener::bind(found.as_slice()).map(drop)
}

fn first_outgoing() -> u16 {
    let said = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let said = said.unwrap_or_default();
    let first = said.split_whitespace().next().and_then(|n| n.parse().ok());
    let first = first.unwrap_or(USUAL_FIRST_OUTGOING);
    // A system that gives out nearly all ports leaves no better choice than the usual range.
    match first > LOWEST + 1000 {
        true => first,
        false => USUAL_FIRST_OUTGOING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_many_and_bindable() {
        let found = free(Ipv4Addr::LOCALHOST, 20, 7).unwrap();
        assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 20);
        for port in &found {
            check(&format!("127.0.0.1:{port}")).unwrap();
        }
    }

    #[test]
    fn a_taken_port_is_neither_found_nor_passed() {
        let first = free(Ipv4Addr::LOCALHOST, 1, 99).unwrap().remove(0);
        let held = TcpListener::bind(("127.0.0.1", first)).unwrap();
        assert_ne!(free(Ipv4Addr::LOCALHOST, 1, 99).unwrap()[0], first);
        let error = check(&format!("127.0.0.1:{first}")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(held);
    }
}
