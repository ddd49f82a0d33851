//! `host:port`, as clusters and flags write it: a name, an IPv4 address, or an IPv6 address in
//! brackets.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Splits `host:port` (or `[v6]:port`); the host comes without brackets.
pub fn split_address(address: &str) -> Result<(&str, u16), &'static str> {
    if address.contains("://") {
        return Err("write it as host:port, without a scheme");
    }
    if address.contains(char::is_whitespace) {
        return Err("there is a space in it");
    }
    let inside_brackets = address.ends_with(']');
    let (host, port) = match address.rsplit_once(':') {
        Some(parts) if !inside_brackets => parts,
        _ => return Err("there is no ':port'"),
    };
    let port = match port.is_empty() {
        true => return Err("the port is empty"),
        // `parse` would take a sign.
        false if !port.bytes().all(|b| b.is_ascii_digit()) => None,
        false => port.parse().ok(),
    };
    let port = port.ok_or("the port is not a number from 0 to 65535")?;
    Ok((check_host(host)?, port))
}

/// A host without a port; returns it without brackets.
pub(crate) fn check_host(host: &str) -> Result<&str, &'static str> {
    if host.is_empty() {
        return Err("the host is empty");
    }
    if let Some(inside) = host.strip_prefix('[') {
        let inside = inside
            .strip_suffix(']')
            .ok_or("the bracket is not closed")?;
        if inside.contains('%') {
            return Err("an IPv6 zone (%) cannot be part of an address");
        }
        let is_v6 = inside.parse::<Ipv6Addr>().is_ok();
        return is_v6
            .then_some(inside)
            .ok_or("what is in the brackets is no IPv6 address");
    }
    if host.contains(':') {
        return Err("an IPv6 address needs brackets, as in [::1]:2222");
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if !host.bytes().all(allowed) {
        return Err("the host may hold only letters, digits, '-', '_' and '.'");
    }
    let is_number = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if is_number && host.parse::<Ipv4Addr>().is_err() {
        return Err("the host is no IPv4 address");
    }
    Ok(host)
}

/// The same for every way to write an address, so that two of them can be compared.
pub fn canonical(address: &str) -> String {
    match split_address(address) {
        Ok((host, port)) => match host.parse::<Ipv6Addr>() {
            Ok(v6) => format!("[{v6}]:{port}"),
            Err(_) => format!("{}:{port}", host.to_ascii_lowercase()),
        },
        Err(_) => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split() {
        for (text, want) in [
            ("h:1", Ok(("h", 1))),
            ("ps-0.my_job.svc:2222", Ok(("ps-0.my_job.svc", 2222))),
            ("[::1]:65535", Ok(("::1", 65535))),
            ("127.0.0.1:0", Ok(("127.0.0.1", 0))),
            ("h", Err("there is no ':port'")),
            ("[::1]", Err("there is no ':port'")),
            ("h:", Err("the port is empty")),
            ("h:x", Err("the port is not a number from 0 to 65535")),
            ("h:+1", Err("the port is not a number from 0 to 65535")),
            ("h:65536", Err("the port is not a number from 0 to 65535")),
            (":1", Err("the host is empty")),
            (
                "::1:5",
                Err("an IPv6 address needs brackets, as in [::1]:2222"),
            ),
            ("[::1:5", Err("the bracket is not closed")),
            ("[h]:5", Err("what is in the brackets is no IPv6 address")),
            (
                "[fe80::1%eth0]:5",
                Err("an IPv6 zone (%) cannot be part of an address"),
            ),
            ("grpc://h:1", Err("write it as host:port, without a scheme")),
            ("h: 1", Err("there is a space in it")),
            (
                "h/x:1",
                Err("the host may hold only letters, digits, '-', '_' and '.'"),
            ),
            ("10.0.0:1", Err("the host is no IPv4 address")),
        ] {
            assert_eq!(split_address(text), want, "{text}");
        }
    }

    #[test]
    fn one_address_written_twice_is_the_same() {
        assert_eq!(canonical("[0:0::1]:5"), canonical("[::1]:0005"));
        assert_eq!(canonical("Ps0:5"), canonical("ps0:5"));
        assert_ne!(canonical("a:5"), canonical("a:6"));
    }
}
