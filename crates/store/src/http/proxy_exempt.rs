//! Hosts that are reached without a proxy: the forms of `NO_PROXY`. Used by `proxy.rs`.
//!
//! Every tool has a form that others lack, and a list is written for all of them. So each form of
//! curl, of Python's requests and of Go counts: names with and without a leading dot or `*.`, which
//! stand for the name and all names below it; addresses; networks; ports after any of them; and `*`
//! for all hosts, alone or in a list. Separators are commas and spaces. What other tools take for
//! the mere end of a name (`ample.com` for `example.com`) does not count.

use std::net::IpAddr;

/// Parsed list.
#[derive(Clone, Debug, Default)]
pub(super) struct Exempt(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    hosts: Hosts,
    /// Port that alone is exempt; `None` for all ports.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    All,
    /// Addresses that begin with these bits.
    Network(IpAddr, u32),
    /// Name and all names below it, in lower case.
    Name(String),
}

impl Exempt {
    pub(super) fn parse(list: &str) -> Self {
        let words = list.split(|letter: char| letter == ',' || letter.is_ascii_whitespace());
        Self(words.filter_map(Entry::parse).collect())
    }

    /// Returns whether a host is reached without a proxy. IPv6 addresses may be in brackets.
    pub(super) fn contains(&self, host: &str, port: u16) -> bool {
        let host = host.trim_matches(['[', ']']);
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let address = host.parse::<IpAddr>().ok();
        let is_of_port = |entry: &&Entry| entry.port.is_none_or(|only| only == port);
        let mut entries = self.0.iter().filter(is_of_port);
        entries.any(|entry| match (&entry.hosts, address) {
            (Hosts::All, _) => true,
            (Hosts::Network(network, bits), Some(address)) => begins(address, *network, *bits),
            (Hosts::Name(name), None) => host
                .strip_suffix(&**name)
                .is_some_and(|front| front.is_empty() || front.ends_with('.')),
            (Hosts::Network(..), None) | (Hosts::Name(_), Some(_)) => false,
        })
    }
}

impl Entry {
    /// Returns `None` for an entry that stands for no host.
    fn parse(text: &str) -> Option<Self> {
        let at_any_port = |hosts| Some(Self { hosts, port: None });
        if let Some(hosts) = Hosts::of_addresses(text) {
            return at_any_port(hosts);
        }
        // The colon cannot belong to an IPv6 address: a bare one was handled above, and others have
        // brackets.
        let numbered = text
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host, port.parse().ok()?)))
            .filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
        let (host, port) = match numbered {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let hosts = Hosts::of_addresses(host).or_else(|| Hosts::of_name(host))?;
        Some(Self { hosts, port })
    }
}

impl Hosts {
    /// Parses an address or a network, such as `10.0.0.0/8`, `fd00::1` or `[fd00::]/8`.
    fn of_addresses(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let begun = address.strip_prefix('[');
        let bare = begun.and_then(|address| address.strip_suffix(']'));
        let address = bare.unwrap_or(address).parse::<IpAddr>().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Self::Network(address, bits))
    }

    fn of_name(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::All);
        }
        let name = text.strip_prefix("*.").unwrap_or(text);
        let name = name.trim_start_matches('.');
        let name = name.strip_suffix('.').unwrap_or(name);
        (!name.is_empty()).then(|| Self::Name(name.to_ascii_lowercase()))
    }
}

/// Returns whether the first `bits` of two addresses of one family are equal.
fn begins(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    // Leading zeros are counted because a shift by all bits is not defined.
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let differ = u32::from(address) ^ u32::from(network);
            differ.leading_zeros() >= bits
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let differ = u128::from(address) ^ u128::from(network);
            differ.leading_zeros() >= bits
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_curl_requests_and_go() {
        let table = "
            example.com            example.com:80 a.example.com:443 EXAMPLE.com.:80 | notexample.com:80 example.com.net:80
            .example.com           example.com:80 a.b.example.com:80               | notexample.com:80
            ..example.com.         example.com:80 a.example.com:80                 | com:80
            *.example.com          example.com:80 a.example.com:80                 | notexample.com:80
            Example.COM            a.example.com:80                                | ample.com:80
            *                      a:80 10.0.0.1:9000 [::1]:80                     |
            a,*                    b:80 10.0.0.1:80                                |
            a*                     a*:80                                           | ab:80 a:80
            10.0.0.1               10.0.0.1:80 10.0.0.1:9000                       | 10.0.0.11:80 110.0.0.1:80
            10.0.0.0/8             10.255.0.1:80                                   | 11.0.0.1:80 ten:80
            10.1.2.3/8             10.0.0.1:80                                     | 11.0.0.1:80
            10.0.0.0/33            |                                                 10.0.0.0:80
            0.0.0.0/0              9.9.9.9:1                                       | [::1]:1 a:1
            192.168.1.128/25       192.168.1.200:80                                | 192.168.1.1:80
            ::1                    [::1]:80 [0:0::1]:80                            | [::2]:80
            [::1]                  [::1]:80                                        | [::2]:80
            [::1]:8080             [::1]:8080                                      | [::1]:80
            fd00::/8               [fd12::1]:80                                    | [fe80::1]:80
            [fd00::]/8             [fd12::1]:80                                    | [fe80::1]:80
            10.0.0.1:9000          10.0.0.1:9000                                   | 10.0.0.1:80
            10.0.0.0/8:9000        10.1.1.1:9000                                   | 10.1.1.1:80
            minio.lab:9000         minio.lab:9000 a.minio.lab:9000                 | minio.lab:443
            .lab:9000              minio.lab:9000                                  | minio.lab:443
            localhost              localhost:80 a.localhost:80                     | 127.0.0.1:80
            a,b.c,,10.0.0.1        a:1 b.c:1 x.b.c:1 10.0.0.1:1                    | c:1
            .                      |                                                 a:1
            0.0.1                  |                                                 127.0.0.1:80";
        for row in table.trim().lines() {
            let (list, rest) = row.trim().split_once(' ').expect(row);
            let (exempt, others) = rest.split_once('|').expect(row);
            for (places, wanted) in [(exempt, true), (others, false)] {
                for place in places.split_whitespace() {
                    let (host, port) = place.rsplit_once(':').expect(row);
                    let port = port.parse().expect(row);
                    let found = Exempt::parse(list).contains(host, port);
                    assert_eq!(found, wanted, "{list}: {place}");
                }
            }
        }
    }

    #[test]
    fn separators_are_commas_and_spaces() {
        let list = Exempt::parse(" a.example, b.example c.example\t,d.example\n");
        for host in ["a.example", "b.example", "c.example", "d.example"] {
            assert!(list.contains(host, 80), "{host}");
        }
        assert_eq!(list.0.len(), 4);
    }
}
