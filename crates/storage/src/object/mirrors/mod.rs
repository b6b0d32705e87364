//! Mirrors: other places that have the same files as the location of a load.
//!
//! The origin decides what is right. It is opened first, and a file of a mirror is used only if it
//! has the origin's length, and its first and last bytes. Ranges are spread
//! over origin and mirrors by their speed (`lanes.rs`); a mirror that fails, or has other bytes, is
//! not used any more, and the range continues elsewhere (`reading.rs`). Peers are mirrors that each
//! own some parts of each file: all processes ask the owner, which asks the origin once.

mod lanes;
mod names;
mod reading;
mod replica;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

pub(super) use self::lanes::ORIGIN;
use self::lanes::{Lanes, Severity, owner};
use self::names::Names;
pub(super) use self::replica::{Ends, Replicas};
use super::remote::Remote;
use crate::MirrorReport;
use crate::error::{Error, ErrorKind, Result};
use crate::options::location::Protocol;
use crate::options::{Location, StoreOptions, split_locations};
use crate::sync::lock::Mutex;
use crate::sync::per_process::PerProcess;

/// Options that requests to mirrors obey too. Credentials and headers are for the origin only.
const SHARED: [&str; 6] = [
    "ca_file",
    "tls_verify",
    "proxy",
    "connect_timeout",
    "read_timeout",
    "environment",
];

/// Retries of a request to a mirror: another place has the bytes too.
const RETRIES: &str = "1";

/// Length of the parts of a file that peers own, bytes.
const OWNED_BYTES: u64 = 16 << 20;

/// Mirrors of this process that may have sent wrong bytes, by location, and the mismatch.
static DISTRUSTED: PerProcess<BTreeMap<String, String>> = PerProcess::new();

/// Mirrors of one opened checkpoint.
#[derive(Debug)]
pub(crate) struct Mirrors {
    /// Stores of the mirrors.
    remote: Arc<Remote>,
    /// Places of the mirrors. Peers may be added: a place never changes its index.
    places: Mutex<Vec<Location>>,
    /// Names of peers. With them, each part of a file has an owner among the mirrors.
    names: Option<Names>,
    /// Locations that the caller opened.
    roots: Vec<Location>,
    lanes: Mutex<Lanes>,
}

impl Mirrors {
    /// Returns the mirrors that the options name, for a checkpoint at `roots`; `None` if there are
    /// none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for options that contradict each other. Peers whose name
    /// cannot be resolved are left out, until it can be.
    pub(super) fn new(
        origin: &Remote,
        options: &StoreOptions,
        roots: &[Location],
    ) -> Result<Option<Arc<Self>>> {
        let (list, are_peers) = match (options.get("mirrors"), options.get("peers")) {
            (None, None) => return Ok(None),
            (Some(mirrors), None) => (mirrors, false),
            (None, Some(peers)) => (peers, true),
            (Some(_), Some(_)) => {
                return Err(Error::invalid_request(
                    "the store options mirrors and peers exclude each other",
                ));
            }
        };
        let mut places = split_locations(list)?;
        let names = are_peers.then(|| Names::new(&places)).transpose()?;
        if let Some(names) = &names {
            let look = names.look();
            let until = Some(Instant::now() + names::WAIT);
            let found = origin.run_until(until, "looking for peers", async move { Ok(look.await) });
            // Peers are looked up again when something is read.
            places = found.unwrap_or_default();
        }
        let mut shared = StoreOptions::new().with("retries", RETRIES)?;
        for name in SHARED {
            if let Some(value) = options.get(name) {
                shared.set(name, value)?;
            }
        }
        if let Some(token) = options.get("mirror_token") {
            let is_web = |place: &Location| place.protocol() == Some(Protocol::Http);
            if let Some(other) = places.iter().find(|place| !is_web(place)) {
                return Err(Error::invalid_request(
                    "the store option mirror_token is for mirrors at http:// and https:// only",
                )
                .with_location(other));
            }
            shared.set("header.authorization", format!("Bearer {token}"))?;
        }
        Ok(Some(Arc::new(Self {
            remote: origin.beside(&shared),
            lanes: Mutex::new(Lanes::new(places.len(), are_peers)),
            places: Mutex::new(places),
            names,
            roots: roots.to_vec(),
        })))
    }

    /// Returns the location of the origin's `file` in mirror `index`.
    fn place(&self, index: usize, file: &Location) -> Location {
        self.places.lock()[index].join(&self.name_of(file))
    }

    /// Returns the name of the origin's `file` below the location that the caller opened.
    fn name_of(&self, file: &Location) -> String {
        let mut below = self.roots.iter().filter_map(|root| file.below(root));
        let name = below.find(|name| !name.is_empty());
        name.unwrap_or_else(|| file.file_name().to_owned())
    }

    /// Returns of each mirror whether it is used at present.
    fn usable(&self) -> Vec<bool> {
        let (lanes, now) = (self.lanes.lock(), Instant::now());
        lanes
            .mirrors()
            .map(|lane| lanes.is_usable(lane, now))
            .collect()
    }

    /// Returns the lane for the next request for bytes at `at` of `file`, and the end of the part
    /// that it is for. Only lanes that `may` names are considered.
    fn choose(&self, file: &Location, at: u64, may: impl Fn(usize) -> bool) -> (usize, u64) {
        let now = Instant::now();
        if self.names.is_none() {
            return (self.lanes.lock().fastest(may, now), u64::MAX);
        }
        let part = at / OWNED_BYTES;
        let names: Vec<String> = self.places.lock().iter().map(Location::to_string).collect();
        let lanes = self.lanes.lock();
        let peers = names.iter().enumerate().map(|(at, name)| (at + 1, &**name));
        let usable = peers.filter(|&(lane, _)| may(lane) && lanes.is_usable(lane, now));
        let lane = owner(usable, &self.name_of(file), part).unwrap_or(ORIGIN);
        (lane, (part + 1) * OWNED_BYTES)
    }

    /// Records a failure of a mirror.
    fn fail(&self, lane: usize, error: &Error) {
        let severity = match error.kind() {
            ErrorKind::Changed
            | ErrorKind::Corrupt
            | ErrorKind::PermissionDenied
            | ErrorKind::Unsupported => Severity::Final,
            ErrorKind::NotFound
            | ErrorKind::InvalidFormat
            | ErrorKind::NoSuchTensor
            | ErrorKind::InvalidRequest
            | ErrorKind::OutOfMemory
            | ErrorKind::Io
            | ErrorKind::Remote
            | ErrorKind::Device
            | ErrorKind::TimedOut
            | ErrorKind::Cancelled
            | ErrorKind::Peer
            | _ => Severity::Passing,
        };
        let (mirror, why) = (self.places.lock()[lane - 1].clone(), error.chain());
        tracing::warn!(%mirror, error = why, "a mirror failed; its ranges are read elsewhere");
        self.lanes.lock().fail(lane, &why, severity, Instant::now());
    }

    /// Drops the mirrors among `lanes`, some bytes of which are wrong, and returns their names. No
    /// load of this process uses them any more.
    pub(super) fn distrust(&self, lanes: &BTreeSet<usize>, mismatch: &Error) -> Vec<String> {
        let wrong: Vec<_> = {
            let places = self.places.lock();
            let numbered = (1..).zip(places.iter());
            let wrong = numbered.filter(|(lane, _)| lanes.contains(lane));
            wrong.map(|(_, place)| place.to_string()).collect()
        };
        let why = mismatch.chain();
        for mirror in &wrong {
            tracing::warn!(
                mirror,
                error = why,
                "a mirror may have sent wrong bytes; this process does not read from it any more"
            );
            DISTRUSTED.lock().insert(mirror.clone(), why.clone());
        }
        self.drop_distrusted();
        wrong
    }

    /// Drops the mirrors that have been distrusted by any load of this process.
    fn drop_distrusted(&self) {
        let distrusted = DISTRUSTED.lock();
        if distrusted.is_empty() {
            return;
        }
        let places = self.places.lock();
        let mut lanes = self.lanes.lock();
        for (place, lane) in places.iter().zip(1..) {
            if let Some(why) = distrusted.get(&place.to_string()) {
                lanes.fail(lane, why, Severity::Final, Instant::now());
            }
        }
    }

    /// Returns the reports of all mirrors.
    pub(crate) fn reports(&self) -> Vec<MirrorReport> {
        let places = self.places.lock();
        let lanes = self.lanes.lock();
        let numbered = places.iter().zip(1..);
        numbered
            .map(|(place, lane)| {
                let lane = lanes.lane(lane);
                MirrorReport {
                    location: place.to_string(),
                    read_bytes: lane.bytes,
                    failure: lane.failure(),
                    is_dropped: lane.is_dropped,
                }
            })
            .collect()
    }
}
