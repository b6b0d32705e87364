//! Classifies addresses by the networks that reach them, and resolves names such that redirects
//! stay out of private networks.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::select_ok;
use http::Uri;
use hyper_util::client::legacy::connect::HttpInfo;
use object_store::client::HttpResponse;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::time::timeout;
use url::{Host, Url};

use super::current_request::record;
use super::response_capture::Connection;
use crate::sync::lock::Mutex;

/// Time after which a name is looked up a second time. The system's resolver takes five seconds to
/// send a lost packet again (`resolv.conf(5)`, `RES_TIMEOUT`): by then, opening a hub has failed.
const LOOKUP_AGAIN: Duration = Duration::from_millis(500);

/// Networks that an address can be reached from, widest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    Public,
    /// Reachable from the same private network.
    Private,
    /// Reachable from this machine only.
    Loopback,
    /// Reachable from the same link only; the address of the cloud's metadata services.
    LinkLocal,
}

impl Reach {
    pub(crate) fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::from_v4(address),
            IpAddr::V6(address) => Self::from_v6(address),
        }
    }

    fn from_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            _ if address.is_link_local() => Self::LinkLocal,
            // These are the metadata services of Azure and Alibaba.
            [168, 63, 129, 16] | [100, 100, 100, 200] => Self::LinkLocal,
            // All of 0.0.0.0/8 is "this host".
            [0 | 127, ..] => Self::Loopback,
            _ if address.is_private() || address.is_broadcast() || address.is_multicast() => {
                Self::Private
            }
            // Addresses that customers of a carrier share (RFC 6598), and addresses for benchmarks
            // (RFC 2544).
            [100, 64..=127, ..] | [198, 18 | 19, ..] => Self::Private,
            _ => Self::Public,
        }
    }

    fn from_v6(address: Ipv6Addr) -> Self {
        let embedded = |high: u16, low: u16| {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            Self::from_v4(Ipv4Addr::new(a, b, c, d))
        };
        match address.segments() {
            _ if address.is_unicast_link_local() => Self::LinkLocal,
            // The metadata service of AWS.
            [0xfd00, 0x0ec2, ..] => Self::LinkLocal,
            [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Self::Loopback,
            // IPv4 addresses: mapped, compatible, translated by a stateless translator (RFC 2765)
            // or by the public NAT64 (RFC 6052), and 6to4.
            [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
            | [0, 0, 0, 0, 0xffff, 0, high, low]
            | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
            | [0x2002, high, low, ..] => embedded(high, low),
            [0x64, 0xff9b, 1, ..] => Self::from_local_nat64(address),
            // Teredo: the client's address, inverted.
            [0x2001, 0, .., high, low] => embedded(!high, !low),
            // ISATAP: whatever the network is, the host is the one with this IPv4 address.
            [a, b, c, d, 0 | 0x200, 0x5efe, high, low] => {
                let network = Self::from_v6(Ipv6Addr::new(a, b, c, d, 1, 0, 0, 0));
                network.max(embedded(high, low))
            }
            // `fec0::/10` is the former site-local unicast.
            [0xfec0..=0xfeff, ..] => Self::Private,
            _ if address.is_unique_local() || address.is_multicast() => Self::Private,
            _ => Self::Public,
        }
    }

    /// Returns the reach of an address of a NAT64 in this network (RFC 8215). Its operator chooses
    /// one of the prefix lengths of RFC 6052, so each place counts at which that length would put
    /// an IPv4 address. Of several, the one with the narrowest reach counts.
    fn from_local_nat64(address: Ipv6Addr) -> Self {
        let octets = address.octets();
        let at = |places: [usize; 4], zeros_from: usize| {
            let is_possible = octets[8] == 0 && octets[zeros_from..].iter().all(|it| *it == 0);
            let [a, b, c, d] = places.map(|place| octets[place]);
            let embedded = Ipv4Addr::new(a, b, c, d);
            (is_possible && !embedded.is_unspecified()).then(|| Self::from_v4(embedded))
        };
        let candidates = [
            at([6, 7, 9, 10], 11),
            at([7, 9, 10, 11], 12),
            at([9, 10, 11, 12], 13),
            at([12, 13, 14, 15], 16),
        ];
        candidates
            .into_iter()
            .flatten()
            .max()
            .unwrap_or(Self::Private)
    }

    /// Returns the reach of a host that is an address, or a name that always stands for this
    /// machine.
    pub(crate) fn from_host(url: &Url) -> Option<Self> {
        match url.host()? {
            Host::Ipv4(address) => Some(Self::from_v4(address)),
            Host::Ipv6(address) => Some(Self::from_v6(address)),
            Host::Domain(name) => {
                let name = name.trim_end_matches('.');
                (name == "localhost" || name.ends_with(".localhost")).then_some(Self::Loopback)
            }
        }
    }

    /// Returns the reach of the server that responded, if its host name was resolved here to the
    /// address that responded. A proxy resolves names elsewhere, and its own address tells nothing
    /// about the server.
    pub(crate) fn from_peer(
        response: &HttpResponse,
        host: &Url,
        resolver: &Resolver,
    ) -> Option<Self> {
        let info = response.extensions().get::<HttpInfo>()?;
        let address = info.remote_addr().ip();
        let name = host.host_str()?;
        resolver
            .resolved(name, address)
            .then(|| Self::from_ip(address))
    }
}

/// Resolves names as the system does. Names that redirects led to resolve only to addresses that
/// these redirects may lead to. The check is made here so that connections go to the checked
/// address.
#[derive(Clone)]
pub(crate) struct Resolver {
    /// True if addresses are returned in random order, false for the system's order.
    shuffles: bool,
    limits: Arc<Mutex<BTreeMap<String, Reach>>>,
    /// Addresses of each name when it was last resolved.
    addresses: Arc<Mutex<BTreeMap<String, Vec<IpAddr>>>>,
}

impl Resolver {
    pub(crate) fn new(shuffles: bool) -> Self {
        Self {
            shuffles,
            limits: Arc::default(),
            addresses: Arc::default(),
        }
    }

    /// Restricts the host name of a URL to addresses of this reach or a wider one, from now on.
    pub(crate) fn limit(&self, url: &Url, reach: Reach) {
        if let Some(Host::Domain(name)) = url.host() {
            let mut limits = self.limits.lock();
            let limit = limits.entry(name.to_owned()).or_insert(reach);
            *limit = reach.min(*limit);
        }
    }

    /// Puts addresses into the order in which they are tried.
    fn order(shuffles: bool, addresses: &mut [SocketAddr]) {
        if shuffles {
            fastrand::shuffle(addresses);
        }
    }

    fn resolved(&self, name: &str, address: IpAddr) -> bool {
        let addresses = self.addresses.lock();
        addresses
            .get(name)
            .is_some_and(|known| known.contains(&address))
    }

    /// Returns the connection that a response to a request for `uri` came over.
    pub(crate) fn connection(&self, response: &HttpResponse, uri: &Uri) -> Option<Connection> {
        let peer = response.extensions().get::<HttpInfo>()?.remote_addr();
        let host = uri.host()?.trim_matches(['[', ']']);
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => Some(vec![address]),
            Err(_) => self.addresses.lock().get(host).cloned(),
        };
        Some(Connection {
            peer,
            is_direct: addresses
                .as_ref()
                .is_some_and(|addresses| addresses.contains(&peer.ip())),
            addresses: addresses.map(|addresses| addresses.len()),
        })
    }

    fn limit_of(&self, name: &str) -> Option<Reach> {
        let limits = self.limits.lock();
        limits.get(name).copied()
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let limit = self.limit_of(name.as_str());
        let (shuffles, addresses) = (self.shuffles, Arc::clone(&self.addresses));
        let started = Instant::now();
        Box::pin(async move {
            let look_up = || async {
                let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
                Ok(found.collect::<Vec<_>>())
            };
            let mut found = repeated(look_up, LOOKUP_AGAIN).await?;
            record("dns", started);
            if let Some(limit) = limit {
                found.retain(|address| Reach::from_ip(address.ip()) <= limit);
                if found.is_empty() {
                    return Err(Narrower.into());
                }
            }
            let known = found.iter().map(SocketAddr::ip).collect();
            let mut addresses = addresses.lock();
            addresses.insert(name.as_str().to_owned(), known);
            drop(addresses);
            Self::order(shuffles, &mut found);
            let found: Addrs = Box::new(found.into_iter());
            Ok(found)
        })
    }
}

/// Runs a lookup, and a second one concurrently if there is no answer `after` some time. Returns
/// the addresses that are found first, or the last error.
async fn repeated<F: Future<Output = io::Result<Vec<SocketAddr>>>>(
    look_up: impl Fn() -> F,
    after: Duration,
) -> io::Result<Vec<SocketAddr>> {
    let mut first = Box::pin(look_up());
    if let Ok(found) = timeout(after, &mut first).await {
        return found;
    }
    let (found, _) = select_ok([first, Box::pin(look_up())]).await?;
    Ok(found)
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

/// Error for a redirect to a name that has only private addresses.
#[derive(Debug)]
pub(crate) struct Narrower;

impl fmt::Display for Narrower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a redirect leads to a host name that has only private addresses")
    }
}

impl std::error::Error for Narrower {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_reach_of_their_network() {
        for (address, reach) in [
            ("8.8.8.8", Reach::Public),
            ("172.32.0.1", Reach::Public),
            ("100.128.0.1", Reach::Public),
            ("2606:4700::1111", Reach::Public),
            ("::ffff:8.8.8.8", Reach::Public),
            ("64:ff9b::808:808", Reach::Public),
            ("10.1.2.3", Reach::Private),
            ("172.16.0.1", Reach::Private),
            ("192.168.0.1", Reach::Private),
            ("100.64.0.1", Reach::Private),
            ("198.19.0.1", Reach::Private),
            ("224.0.0.1", Reach::Private),
            ("255.255.255.255", Reach::Private),
            ("fd12::1", Reach::Private),
            ("fec0::1", Reach::Private),
            ("ff02::1", Reach::Private),
            ("::ffff:10.0.0.1", Reach::Private),
            ("64:ff9b::a00:1", Reach::Private),
            ("2002:a00:1::", Reach::Private),
            ("127.0.0.1", Reach::Loopback),
            ("127.9.9.9", Reach::Loopback),
            ("0.0.0.0", Reach::Loopback),
            ("0.1.2.3", Reach::Loopback),
            ("::1", Reach::Loopback),
            ("::", Reach::Loopback),
            ("::ffff:127.0.0.1", Reach::Loopback),
            ("::127.0.0.1", Reach::Loopback),
            ("169.254.169.254", Reach::LinkLocal),
            ("169.254.170.2", Reach::LinkLocal),
            ("168.63.129.16", Reach::LinkLocal),
            ("100.100.100.200", Reach::LinkLocal),
            ("fe80::1", Reach::LinkLocal),
            ("fd00:ec2::254", Reach::LinkLocal),
            ("::ffff:169.254.169.254", Reach::LinkLocal),
            ("64:ff9b::a9fe:a9fe", Reach::LinkLocal),
            // Stateless translation.
            ("::ffff:0:8.8.8.8", Reach::Public),
            ("::ffff:0:10.0.0.1", Reach::Private),
            ("::ffff:0:169.254.169.254", Reach::LinkLocal),
            // A local NAT64 with prefixes of 96, 64, 56 and 48 bits.
            ("64:ff9b:1::8.8.8.8", Reach::Public),
            ("64:ff9b:1:2:3:4:8.8.8.8", Reach::Public),
            ("64:ff9b:1::10.0.0.1", Reach::Private),
            ("64:ff9b:1:2:3:4:169.254.169.254", Reach::LinkLocal),
            ("64:ff9b:1:2:3:4:7f00:1", Reach::Loopback),
            ("64:ff9b:1:2:300:4:8.8.8.8", Reach::Private),
            ("64:ff9b:1::127.0.0.1", Reach::Loopback),
            ("64:ff9b:1::169.254.169.254", Reach::LinkLocal),
            ("64:ff9b:1:2:8:808:800:0", Reach::Public),
            ("64:ff9b:1:2:a:0:100:0", Reach::Private),
            ("64:ff9b:1:2a9:fe:a9fe::", Reach::LinkLocal),
            ("64:ff9b:1:a9fe:a9:fe00::", Reach::LinkLocal),
            ("64:ff9b:1:808:8:800::", Reach::Public),
            ("64:ff9b:1::", Reach::Private),
            // Teredo and ISATAP.
            ("2001:0:4136:e378:8000:63bf:f7f7:f7f7", Reach::Public),
            ("2001:0:4136:e378:8000:63bf:f5ff:fffe", Reach::Private),
            ("2001:470::5efe:8.8.8.8", Reach::Public),
            ("2001:470::5efe:10.0.0.1", Reach::Private),
            ("2001:470::200:5efe:127.0.0.1", Reach::Loopback),
            ("fd12::5efe:8.8.8.8", Reach::Private),
        ] {
            let parsed = address.parse().expect(address);
            assert_eq!(Reach::from_ip(parsed), reach, "{address}");
        }
    }

    #[test]
    fn hosts_written_as_numbers_are_addresses() {
        for (url, reach) in [
            ("http://2130706433/", Some(Reach::Loopback)),
            ("http://0x7f.1/", Some(Reach::Loopback)),
            ("http://0251.0376.0251.0376/", Some(Reach::LinkLocal)),
            ("http://[fe80::1]:80/", Some(Reach::LinkLocal)),
            ("http://LocalHost./", Some(Reach::Loopback)),
            ("http://a.localhost/", Some(Reach::Loopback)),
            ("http://host.example/", None),
        ] {
            let parsed = Url::parse(url).expect(url);
            assert_eq!(Reach::from_host(&parsed), reach, "{url}");
        }
    }

    #[test]
    fn addresses_are_shuffled_only_if_wanted() {
        let system: Vec<_> = (0..64)
            .map(|last| SocketAddr::from(([10, 0, 0, last], 0)))
            .collect();
        for shuffles in [true, false] {
            let mut addresses = system.clone();
            Resolver::order(shuffles, &mut addresses);
            assert_eq!(addresses != system, shuffles);
            addresses.sort_unstable();
            assert_eq!(addresses, system);
        }
    }

    #[test]
    fn lost_lookup_is_repeated() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let runtime = runtime.expect("a runtime");
        let address = SocketAddr::from(([10, 0, 0, 1], 0));
        let run = |answers: [Option<io::Result<()>>; 2]| {
            let answers = Mutex::new(answers.into_iter());
            let look_up = || {
                let answer = answers.lock().next().expect("at most two lookups");
                async move {
                    match answer {
                        Some(answer) => answer.map(|()| vec![address]),
                        None => std::future::pending().await,
                    }
                }
            };
            runtime.block_on(repeated(look_up, Duration::from_millis(1)))
        };
        let failed = || Some(Err(io::Error::other("no such host")));
        assert_eq!(run([Some(Ok(())), None]).expect("the first"), [address]);
        assert_eq!(run([None, Some(Ok(()))]).expect("the second"), [address]);
        run([failed(), None]).expect_err("an answer");
    }

    #[test]
    fn limited_names_resolve_to_no_address_of_a_narrower_reach() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let resolver = Resolver::new(true);
        let resolve = || {
            let name = "localhost".parse().expect("a name");
            runtime.block_on(resolver.resolve(name))
        };
        let found: Vec<_> = resolve().expect("this machine").collect();
        assert!(!found.is_empty());
        let url = Url::parse("http://localhost:80/").expect("a URL");
        resolver.limit(&url, Reach::Loopback);
        assert!(resolve().is_ok(), "no narrower than this machine");
        resolver.limit(&url, Reach::Public);
        resolver.limit(&url, Reach::Loopback);
        let error = resolve().err().expect("no public address");
        assert!(error.is::<Narrower>(), "{error}");
    }
}
