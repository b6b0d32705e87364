//! Loads of a group: the ranks agree, and one rank of each node reads what several of them want.
//!
//! ```text
//!  leader      source ─▶ engine ─▶ (check) ─▶ publish sink ─▶ shared memory ─┐
//!  every rank  shared engine ─▶ sink   ◀─────────────────────────────────────┘
//!              source ─▶ engine ─▶ sink                  of what only it wants
//! ```

mod across;
mod reader;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use across::Across;
use reader::Reader;

use super::Loader;
use crate::engine::copiers_of_rank;
use crate::error::{Error, ErrorKind, Result};
use crate::groups::Shares;
use crate::options::{CacheMode, LoadOptions, OnPeerLoss, OptionValue, Order, Share, format_bytes};
use crate::plan::{self, RankWant, SharePlan, ShareRules, Slice};
use crate::ranks::{Group, JoinLimits};
use crate::report::GroupReport;
use crate::verify::Verify;
use tload_engine::numa::Cpus;
use tload_ranks::Hello;
use tload_ranks::Request;
use tload_ranks::{Dispatcher, Start};
use tload_ranks::{Node, Role, Scope};

/// Time for which a slow rank may delay the others, if it can then read the missing bytes itself.
const LAG: Duration = Duration::from_secs(1);

/// Alignment of reads that the cost of interleaved reads is counted with, bytes.
const READ_ALIGNMENT: u64 = 4096;

/// Options that must be equal on all ranks.
const AGREED: [&str; 5] = ["share", "verify", "order", "cache", "memory_limit"];

/// Agreement of a rank with the others.
pub(crate) struct Joined {
    /// `None` if the rank shares nothing.
    pub(crate) shares: Option<Shares>,
    pub(crate) report: GroupReport,
    /// Number of threads that copy for this rank.
    pub(crate) copiers: usize,
    /// Bytes that the ranks of the node are to read.
    planned_bytes: u64,
    /// Reads of the leader for all ranks of its node.
    pub(crate) reader: Option<Arc<Reader>>,
    /// Bytes that this rank reads in place of the leader.
    reread_bytes: Arc<AtomicU64>,
}

impl Loader {
    /// Agrees with the other ranks of the group on the load, if there is a group.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`] for missing ranks and differences; the error of the leader.
    pub(super) fn join(&self, started: Instant) -> Result<Option<Joined>> {
        let Some(group) = self.group.as_ref().filter(|group| group.size() > 1) else {
            return Ok(None);
        };
        let options = &self.options;
        let deadline = JoinLimits::from(options).deadline(started);
        let scope = match options.share {
            _ if options.cache == CacheMode::Map => Scope::Nothing,
            Share::None => Scope::Nothing,
            Share::Node => Scope::Node,
            Share::Cluster => Scope::Cluster,
        };
        let request = self.request()?;
        let node = tload_ranks::join(&**group, self.hello(), &request, scope, deadline)?;
        let mut report = GroupReport {
            rank: group.rank(),
            size: group.size(),
            leader: node.leader,
            node_ranks: node.ranks.clone(),
            share: "node".to_owned(),
            ..GroupReport::default()
        };
        let copiers = copiers(&node, group.rank());
        let (mut joining, reader) = match node.role {
            Role::Alone => {
                let reason = self.reason(node.reason);
                return Ok(Some(Joined::alone(report, copiers, reason, started)));
            }
            Role::Follower(joining) => (joining, None),
            Role::Leader(dispatcher, joining) => {
                let mut closing = Closing(Some(&dispatcher));
                let led = self.lead(&dispatcher, &**group, &node.ranks, &node.leaders, deadline);
                let reader = led.map_err(|error| {
                    dispatcher.failed(group.rank(), &error);
                    match error.ranks() {
                        [] => error.with_ranks([group.rank()]),
                        _ => error,
                    }
                })?;
                closing.0 = None;
                (joining, Some(reader))
            }
        };
        let plan = match joining.plan(deadline) {
            // A rank that reads alone verifies what it reads.
            Err(error) if reader.is_none() && self.reads_without(&error) => {
                let reason = Some(error.message().to_owned());
                return Ok(Some(Joined::alone(report, copiers, reason, started)));
            }
            plan => plan?,
        };
        if plan.is_cluster {
            "cluster".clone_into(&mut report.share);
        }
        report.reason.clone_from(&plan.reason);
        report.unique_bytes = plan.unique_bytes;
        report.join_seconds = started.elapsed().as_secs_f64();
        let planned_bytes = plan.planned_bytes;
        let reread_bytes = Arc::<AtomicU64>::default();
        Ok(Some(Joined {
            planned_bytes,
            shares: Some(Shares {
                plan,
                joining,
                copiers,
                reread_bytes: Arc::clone(&reread_bytes),
            }),
            report,
            copiers,
            reader,
            reread_bytes,
        }))
    }

    /// Returns whether a rank whose leader failed with `error` reads by itself.
    fn reads_without(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Peer && self.options.on_peer_loss == OnPeerLoss::Read
    }

    /// Tells the other ranks of the group, if there is one, that this one does not begin the load.
    pub(super) fn give_up(&self, error: &Error) {
        if let Some(group) = self.group.as_ref().filter(|group| group.size() > 1) {
            tload_ranks::give_up(&**group, error, &self.options);
        }
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
            let value = LoadOptions::key(name).and_then(|key| key.value(&self.options));
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
        let mut hello = Hello::new(options.into(), names.zip(states).collect());
        hello.cpus = tload_engine::numa::allowed()
            .ok()
            .map(|cpus| cpus.to_string());
        hello
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

    /// Plans the reads of a node and begins those for several ranks; with several nodes, also of
    /// what they share.
    fn lead(
        &self,
        dispatcher: &Dispatcher,
        group: &dyn Group,
        ranks: &[usize],
        leaders: &[usize],
        deadline: Instant,
    ) -> Result<Arc<Reader>> {
        let mut across = match leaders {
            [] => None,
            leaders => Across::connect(group, leaders, deadline)?,
        };
        let led = self.lead_node(dispatcher, group, ranks, across.as_mut(), deadline);
        if let (Err(error), Some(across)) = (&led, &across) {
            across.cluster.failed(error);
        }
        led
    }

    /// Plans the reads of `shared`; publishes whole regions where there is no memory for bands.
    fn open_reader(
        &self,
        shared: &mut SharePlan,
        dispatcher: &Dispatcher,
        rank: usize,
        across: Option<&Across>,
    ) -> Result<Arc<Reader>> {
        let open = |shared: &SharePlan| Reader::new(self, shared, dispatcher.clone(), rank, across);
        let reader = open(shared);
        let is_full = (reader.as_ref()).is_err_and(|it| it.kind() == ErrorKind::OutOfMemory);
        // Bands need slots beside their regions; whole regions need none.
        if is_full && publish_whole(shared) {
            return open(shared);
        }
        reader
    }

    fn lead_node(
        &self,
        dispatcher: &Dispatcher,
        group: &dyn Group,
        ranks: &[usize],
        mut across: Option<&mut Across>,
        deadline: Instant,
    ) -> Result<Arc<Reader>> {
        let requests = dispatcher.requests(ranks, deadline)?;
        let wants: Vec<Vec<RankWant>> = requests
            .iter()
            .zip(ranks)
            .map(|(request, rank)| self.wants(request, *rank))
            .collect::<Result<_>>()?;
        let options = &self.options;
        let rules = ShareRules {
            // A digest needs all bytes in one process. In file order, the reads of a rank would
            // have to wait for those of the leader.
            all: options.verify != Verify::Off || options.order == Order::File,
            alignment: READ_ALIGNMENT,
            gap_bytes: 0,
        };
        let mut shared = plan::share(&wants, &rules);
        if let Some(across) = &mut across {
            across.agree(&self.checkpoint, &shared, &options.verify, deadline)?;
            shared = plan::share_with(&wants, &rules, across.joint());
        }
        let across = across.as_deref();
        if across.is_some() {
            // Bytes from other nodes go to whole regions. If bands made them wait in slots, reads
            // that those nodes wait for could find no free slot.
            publish_whole(&mut shared);
        }
        let is_apart = across.is_none() && ranks.len() < group.size();
        let reason = (options.share == Share::Cluster && is_apart)
            .then_some("this group cannot send bytes between nodes");
        let reader = self.open_reader(&mut shared, dispatcher, group.rank(), across)?;
        let plans = reader.plans(&wants, &shared, reason)?;
        let joined = across.map(|across| across.cluster.join(dispatcher, group.size()));
        let (others, joined): (Vec<usize>, Vec<_>) =
            joined.transpose()?.unwrap_or_default().into_iter().unzip();
        let all = [ranks, &others].concat();
        dispatcher.requests(&all, deadline)?;
        let (starved, finished) = (Arc::downgrade(&reader), Arc::downgrade(&reader));
        let (left, widened) = (Arc::downgrade(&reader), Arc::downgrade(&reader));
        dispatcher.serve(Start {
            ranks: all,
            own: ranks.len(),
            plans,
            regions: reader.regions(&shared, across, ranks.len()),
            left: Box::new(move || {
                if let Some(reader) = left.upgrade() {
                    reader.leave();
                }
            }),
            is_starved: Box::new(move || starved.upgrade().is_some_and(|it| it.is_starved())),
            widen: Box::new(move || widened.upgrade().is_some_and(|it| it.widen())),
            // With `verify`, ranks that fall behind get more time: nothing would verify what they
            // read themselves.
            patience: if options.verify == Verify::Off {
                LAG
            } else {
                JoinLimits::from(options).timeout()
            },
            finished: Box::new(move || {
                if let Some(reader) = finished.upgrade() {
                    reader.stop();
                }
            }),
        });
        if let Some(across) = across {
            reader.serve(joined, &shared, across, deadline)?;
        }
        reader.start()?;
        Ok(reader)
    }

    /// Returns the bytes that a rank requests.
    fn wants(&self, request: &Request, rank: usize) -> Result<Vec<RankWant>> {
        let tensors = self.checkpoint.tensors();
        let want = |(index, slice): &(usize, Option<Slice>)| {
            let unknown = || {
                let message = format!("rank {rank} requests a tensor that is not there");
                Error::new(ErrorKind::Peer, message).with_ranks([rank])
            };
            let info = tensors.get(*index).ok_or_else(unknown)?;
            let sliced = slice.as_ref().map(|slice| info.sliced(slice)).transpose()?;
            let part = sliced.as_ref().unwrap_or(info);
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

/// Returns the number of threads that copy for `rank` of a node.
fn copiers(node: &Node, rank: usize) -> usize {
    let parsed = |list: Option<&str>| list?.parse::<Cpus>().ok();
    let (mut own, mut others) = (None, Vec::new());
    for (other, cpus) in node.ranks.iter().zip(&node.cpus) {
        if *other == rank {
            own = parsed(cpus.as_deref());
        } else {
            others.push(parsed(cpus.as_deref()));
        }
    }
    copiers_of_rank(own.as_ref(), &others)
}

/// Publishes every range whole. Returns whether any was to be published in bands.
fn publish_whole(shared: &mut SharePlan) -> bool {
    let bands = (shared.shared.iter_mut()).map(|it| std::mem::take(&mut it.bands));
    bands.filter(|bands| !bands.is_empty()).count() > 0
}

/// Closes the dispatcher of a load that does not begin, so that the other ranks do not wait for it.
struct Closing<'a>(Option<&'a Dispatcher>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        if let Some(dispatcher) = self.0 {
            dispatcher.close();
        }
    }
}

impl Joined {
    /// Describes a load of which this rank reads everything itself.
    fn alone(
        mut report: GroupReport,
        copiers: usize,
        reason: Option<String>,
        started: Instant,
    ) -> Self {
        "none".clone_into(&mut report.share);
        report.reason = reason;
        report.join_seconds = started.elapsed().as_secs_f64();
        Self {
            shares: None,
            report,
            copiers,
            planned_bytes: 0,
            reader: None,
            reread_bytes: Arc::default(),
        }
    }

    /// Returns the number of equal parts of `memory_limit`, of which this rank's own load has one:
    /// the limit is for the node, and the ranks divide it; half of it is for shared memory, if they
    /// share any.
    pub(crate) fn limit_divisor(&self, is_shared: bool) -> u64 {
        let ranks = self.report.node_ranks.len() as u64;
        if is_shared { 2 * ranks } else { ranks }
    }
}

impl Joined {
    /// Completes the part of a report on the group.
    pub(super) fn complete(&self, report: &mut crate::Report) {
        let (mut group, reader) = (self.report.clone(), self.reader.as_ref());
        group.reread_bytes = self.reread_bytes.load(Ordering::Relaxed);
        let mut others = Vec::new();
        if let Some(reader) = reader {
            reader.complete(report);
            let (received, reread) = reader.across_bytes();
            group.node_received_bytes = received;
            group.reread_bytes += reread;
            let statistics = reader.statistics().into_iter();
            others.extend(statistics.map(|(rank, of)| (rank, of.read_bytes, of.seconds)));
        }
        group.read_bytes = report.read_bytes;
        group.set_node(group.read_bytes, self.planned_bytes, &others);
        report.group = Some(group);
    }
}
