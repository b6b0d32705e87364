//! Loads of a group: the ranks agree, and one rank of each node reads what several of them want.
//!
//! ```text
//!  leader      source ─▶ engine ─▶ (check) ─▶ publish sink ─▶ shared memory ─┐
//!  every rank  shared engine ─▶ sink   ◀─────────────────────────────────────┘
//!              source ─▶ engine ─▶ sink                  of what only it wants
//! ```

mod reader;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reader::Reader;

use super::Loader;
use super::shares::Shares;
use crate::error::{Error, Result};
use crate::options::{CacheMode, OptionValue, Options, Order, Share, Verify, format_bytes};
use crate::plan::{RankWant, ShareRules, Slice};
use crate::ranks::agreement::Hello;
use crate::ranks::hub::{Hub, Start};
use crate::ranks::messages::{RankStatistics, Request};
use crate::ranks::node::{self, Node, Role};
use crate::report::{GroupReport, amplification};
use crate::storage::Source;

/// Default time that ranks have to begin a load together.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Alignment of reads that the cost of interleaved reads is counted with, bytes.
const READ_ALIGNMENT: u64 = 4096;

/// Options that must be equal on all ranks.
const AGREED: [&str; 5] = ["share", "verify", "order", "cache", "memory_limit"];

/// Agreement of a rank with the others.
pub(crate) struct Joined {
    /// `None` if the rank shares nothing.
    pub(crate) shares: Option<Shares>,
    pub(crate) report: GroupReport,
    /// Reads of the leader for all ranks of its node.
    pub(crate) reader: Option<Arc<Reader>>,
}

impl Loader {
    /// Agrees with the other ranks of the group on the load, if there is a group.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Peer`] for missing ranks and differences; the error of the leader.
    pub(super) fn join(&self, started: Instant) -> Result<Option<Joined>> {
        let Some(group) = self.group.as_ref().filter(|group| group.size() > 1) else {
            return Ok(None);
        };
        let options = &self.options;
        let timeout = options.join_timeout.unwrap_or(JOIN_TIMEOUT);
        let timeout = options.timeout.map_or(timeout, |all| all.min(timeout));
        let deadline = started + timeout;
        let shares = options.share != Share::None && options.cache != CacheMode::Map;
        let request = self.request()?;
        let node = node::join(&**group, self.hello(), &request, shares, deadline)?;
        let mut report = GroupReport {
            rank: group.rank(),
            size: group.size(),
            leader: node.leader,
            node_ranks: node.ranks.clone(),
            share: "node".to_owned(),
            ..GroupReport::default()
        };
        let Node { ranks, role, .. } = node;
        let (joining, reader) = match role {
            Role::Alone => {
                "none".clone_into(&mut report.share);
                report.reason = self.reason(node.reason);
                report.join_seconds = started.elapsed().as_secs_f64();
                return Ok(Some(Joined {
                    shares: None,
                    report,
                    reader: None,
                }));
            }
            Role::Follower(joining) => (joining, None),
            Role::Leader(hub, joining) => {
                let led = self.lead(&hub, group.rank(), &ranks, deadline);
                let reader = led.inspect_err(|error| {
                    hub.failed(group.rank(), error);
                    hub.close();
                })?;
                (joining, Some(reader))
            }
        };
        if options.share == Share::Cluster && ranks.len() < group.size() {
            let reason = "this version shares within nodes only";
            report.reason = Some(reason.to_owned());
        }
        let plan = joining.plan(deadline)?;
        report.unique_bytes = plan.unique_bytes;
        report.join_seconds = started.elapsed().as_secs_f64();
        Ok(Some(Joined {
            shares: Some(Shares { plan, joining }),
            report,
            reader,
        }))
    }

    /// Returns the reason why nothing is shared.
    fn reason(&self, found: Option<String>) -> Option<String> {
        if self.options.share == Share::None {
            return None;
        }
        if self.options.cache == CacheMode::Map {
            return Some("‹cache=map› shares the page cache already".to_owned());
        }
        let none = || "no other rank runs as this user in this network namespace".to_owned();
        Some(found.unwrap_or_else(none))
    }

    /// Describes the load for the other ranks.
    fn hello(&self) -> Hello {
        let value = |name: &str| {
            let value = Options::key(name).and_then(|key| key.value(&self.options));
            match value {
                Some(OptionValue::Bytes(bytes)) => format_bytes(bytes),
                Some(value) => value.to_string(),
                None => "its default".to_owned(),
            }
        };
        let options = AGREED.map(|name| (name, value(name)));
        let locations = self.checkpoint.shards().iter().map(|shard| {
            let location = shard.source().location().to_string();
            let name = Path::new(&location).file_name();
            name.map_or(location.clone(), |name| name.to_string_lossy().into_owned())
        });
        // The index, if there is one, comes first.
        let states = self.checkpoint.state();
        let indexes = states.len() - self.checkpoint.shards().len();
        let names = std::iter::repeat_n("the index".to_owned(), indexes).chain(locations);
        Hello::new(options.into(), names.zip(states).collect())
    }

    /// Returns the request of this rank.
    fn request(&self) -> Result<Request> {
        let tensors = self.checkpoint.tensors();
        let slice = |index: &usize| self.slices.get(tensors[*index].name()).cloned();
        let selected = self.selected_indices()?;
        Ok(Request {
            tensors: selected
                .iter()
                .map(|index| (*index, slice(index)))
                .collect(),
        })
    }

    /// Plans the reads of a node and begins those for several ranks.
    fn lead(
        &self,
        hub: &Hub,
        rank: usize,
        ranks: &[usize],
        deadline: Instant,
    ) -> Result<Arc<Reader>> {
        let requests = hub.requests(ranks, deadline)?;
        let wants: Vec<Vec<RankWant>> = requests
            .iter()
            .zip(ranks)
            .map(|(request, rank)| self.wants(request, *rank))
            .collect::<Result<_>>()?;
        let options = &self.options;
        let rules = ShareRules {
            // A digest needs all bytes in one process; in file order, a rank's own reads would
            // have to wait for those of the leader.
            all: options.verify != Verify::Off || options.order == Order::File,
            alignment: READ_ALIGNMENT,
            gap_bytes: 0,
        };
        let shared = crate::plan::share(&wants, &rules);
        let reader = Reader::new(self, &shared, hub.clone(), rank)?;
        let plans = reader.plans(&wants, &shared)?;
        let (starved, finished) = (Arc::downgrade(&reader), Arc::downgrade(&reader));
        hub.serve(Start {
            ranks: ranks.to_vec(),
            plans,
            regions: reader.regions(&shared),
            is_starved: Box::new(move || starved.upgrade().is_some_and(|it| it.is_starved())),
            finished: Box::new(move || {
                if let Some(reader) = finished.upgrade() {
                    reader.stop();
                }
            }),
        });
        reader.start()?;
        Ok(reader)
    }

    /// Returns the bytes that a rank requests.
    fn wants(&self, request: &Request, rank: usize) -> Result<Vec<RankWant>> {
        let tensors = self.checkpoint.tensors();
        let want = |(index, slice): &(usize, Option<Slice>)| {
            let unknown = || {
                let message = format!("rank {rank} requests a tensor that is not there");
                Error::new(crate::ErrorKind::Peer, message).with_ranks([rank])
            };
            let info = tensors.get(*index).ok_or_else(unknown)?;
            let part = slice.as_ref().map(|slice| info.sliced(slice)).transpose()?;
            let part = part.as_ref().unwrap_or(info);
            Ok(RankWant {
                tensor: *index,
                source: info.shard(),
                range: part.file_range(),
                strides: part.strides().cloned(),
                whole: part.file_range() == info.file_range() && part.strides().is_none(),
            })
        };
        request.tensors.iter().map(want).collect()
    }
}

impl Joined {
    /// Returns the options of this rank's own load: `memory_limit` is for the node. Half of it is
    /// for shared memory, and the ranks divide the rest.
    pub(crate) fn options(&self, options: &Options, is_shared: bool) -> Options {
        let ranks = self.report.node_ranks.len() as u64;
        let mut options = options.clone();
        if is_shared {
            let limit = options.memory_limit;
            options.memory_limit = limit.map(|limit| limit / 2 / ranks);
        }
        options
    }
}

impl Joined {
    /// Completes the part of a report on the group.
    pub(super) fn complete(&self, report: &mut crate::Report) {
        let (mut group, reader) = (self.report.clone(), self.reader.as_ref());
        group.read_bytes = report.read_bytes;
        group.received_bytes = report.received_bytes;
        let mut all = report.read_bytes;
        if let Some(reader) = reader {
            reader.complete(report);
            group.read_bytes += reader.read_bytes();
            let others = reader.statistics();
            let slowest = |one: &&(usize, RankStatistics), other: &&(usize, RankStatistics)| {
                one.1.seconds.total_cmp(&other.1.seconds)
            };
            group.slowest_rank = others.iter().max_by(slowest).map(|(rank, _)| *rank);
            let others = others.iter().filter(|(rank, _)| *rank != group.rank);
            all += others.map(|(_, found)| found.read_bytes).sum::<u64>() + reader.read_bytes();
        }
        group.amplification = amplification(all, group.unique_bytes);
        report.group = Some(group);
    }
}
