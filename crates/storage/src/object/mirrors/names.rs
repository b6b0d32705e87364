//! Names of peers, such as a headless service of Kubernetes: resolved when a checkpoint is opened,
//! and again while it is read, since machines come and go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Mirrors;
use crate::error::{Error, Result};
use crate::options::Location;
use crate::sync::lock::Mutex;

/// Time for which addresses are taken for the present ones: that of the DNS server of Kubernetes.
const FRESH: Duration = Duration::from_secs(5);

/// Longest wait for addresses at an opening: until then the origin is read alone.
pub(super) const WAIT: Duration = Duration::from_secs(5);

/// Names of peers.
#[derive(Debug)]
pub(super) struct Names {
    peers: Vec<PeerName>,
    /// Time of the last look.
    looked: Mutex<Instant>,
}

/// One name: a host with a port, and the path of the files.
#[derive(Clone, Debug)]
struct PeerName {
    host: String,
    port: u16,
    path: String,
}

impl PeerName {
    fn new(location: &Location) -> Result<Self> {
        let invalid = || {
            Error::invalid_request("a peer is not a URL of a plain web server")
                .with_location(location)
                .with_hint("write http://NAME:PORT/PATH; certificates name no addresses")
        };
        let url = location
            .remote()
            .filter(|url| url.scheme == "http" && url.query.is_none())
            .ok_or_else(invalid)?;
        let (host, port) = match url.host().rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| invalid())?)
            }
            _ => (url.host(), 80),
        };
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            path: url.path.clone(),
        })
    }
}

impl Names {
    pub(super) fn new(locations: &[Location]) -> Result<Self> {
        let peers = locations.iter().map(PeerName::new);
        Ok(Self {
            peers: peers.collect::<Result<_>>()?,
            looked: Mutex::new(Instant::now()),
        })
    }

    /// Returns a look at the addresses: the URL of each peer, sorted. A name that has none is left
    /// out, with a warning.
    pub(super) fn look(&self) -> impl Future<Output = Vec<Location>> + Send + use<> {
        *self.looked.lock() = Instant::now();
        let peers = self.peers.clone();
        async move {
            let mut urls = Vec::new();
            for PeerName { host, port, path } in peers {
                match tokio::net::lookup_host((&*host, port)).await {
                    Ok(found) => {
                        let found = found.map(|address| format!("http://{address}/{path}"));
                        urls.extend(found.filter_map(|url| Location::parse(&url).ok()));
                    }
                    Err(error) => {
                        tracing::warn!(name = host, %error, "peers are not used: their name has no address");
                    }
                }
            }
            urls.sort_by_key(Location::to_string);
            urls.dedup();
            urls
        }
    }

    fn is_due(&self) -> bool {
        self.looked.lock().elapsed() >= FRESH
    }
}

impl Mirrors {
    /// Looks for peers that came or went since the last look, while reads go on.
    pub(super) fn refresh(self: &Arc<Self>) {
        if let Some(names) = self.names.as_ref().filter(|names| names.is_due()) {
            let (look, mirrors) = (names.look(), Arc::clone(self));
            tokio::spawn(async move { mirrors.update(look.await) });
        }
    }

    /// Uses the peers at these places from now on. If there are none, the name server may have
    /// failed: nothing changes.
    fn update(&self, found: Vec<Location>) {
        if found.is_empty() {
            return;
        }
        let mut places = self.places.lock();
        let mut lanes = self.lanes.lock();
        for (place, lane) in places.iter().zip(1..) {
            lanes.set_absent(lane, !found.contains(place));
        }
        for place in found {
            if !places.contains(&place) {
                tracing::info!(peer = %place, "there is another peer");
                places.push(place);
                lanes.add();
            }
        }
    }
}
