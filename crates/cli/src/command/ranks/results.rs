//! Results of a load of several ranks: one row for each, and the sums of the node.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use tload::internal::{format_bytes, format_rate};

use super::start::RankLoad;
use crate::output::style;
use crate::output::table::{Align, render};
use tload_quantity::{float, format_count, format_seconds, rate};

const HEADER: [(&str, Align); 7] = [
    ("rank", Align::Left),
    ("read", Align::Right),
    ("received", Align::Right),
    ("tensors", Align::Right),
    ("time", Align::Right),
    ("CPU", Align::Right),
    ("PSS", Align::Right),
];

/// Load of all ranks.
#[derive(Clone, Debug, Serialize)]
pub(in crate::command) struct NodeLoad {
    pub(super) node: Node,
    pub(super) ranks: Vec<Rank>,
    #[serde(skip)]
    notes: Vec<String>,
}

/// Sums over the ranks.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Node {
    /// `"node"`, `"cluster"` or `"none"`.
    pub(super) share: String,
    /// Reason why less is shared than was requested, if so.
    pub(super) reason: Option<String>,
    /// Distinct bytes of the tensors of all ranks.
    pub(super) unique_bytes: u64,
    pub(super) amplification: Option<f64>,
    /// Distinct bytes per second of the time from the first start to the last end.
    pub(super) gigabytes_per_second: f64,
    #[serde(flatten)]
    pub(super) usage: Usage,
}

/// Load of one rank.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rank {
    #[serde(rename = "rank")]
    number: usize,
    #[serde(flatten)]
    usage: Usage,
    report: Value,
}

/// Bytes, time and memory.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Usage {
    /// Bytes read from storage, for this rank and for others.
    pub(super) read_bytes: u64,
    /// Bytes received in shared memory.
    pub(super) received_bytes: u64,
    pub(super) tensor_bytes: u64,
    /// Seconds from before the checkpoint was opened to the last tensor.
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Proportional set size, when all ranks had loaded.
    pub(super) pss_bytes: Option<u64>,
}

impl NodeLoad {
    /// Sums up the loads of all ranks, in the order of the ranks.
    pub(super) fn new(loads: Vec<RankLoad>) -> Self {
        let mut node = Node::default();
        let sum = &mut node.usage;
        sum.pss_bytes = Some(0);
        let (mut started, mut ended) = (f64::INFINITY, 0.0_f64);
        let mut ranks = Vec::with_capacity(loads.len());
        let mut notes = Vec::new();
        for (rank, load) in loads.into_iter().enumerate() {
            let (loaded, finished) = (load.loaded, load.finished);
            started = started.min(loaded.started);
            ended = ended.max(loaded.ended);
            let usage = Usage {
                read_bytes: finished.read_bytes,
                received_bytes: finished.received_bytes,
                tensor_bytes: finished.tensor_bytes,
                seconds: loaded.ended - loaded.started,
                cpu_seconds: finished.cpu_seconds,
                pss_bytes: load.pss_bytes,
            };
            sum.read_bytes += usage.read_bytes;
            sum.received_bytes += usage.received_bytes;
            sum.tensor_bytes += usage.tensor_bytes;
            sum.cpu_seconds += usage.cpu_seconds;
            sum.pss_bytes = sum
                .pss_bytes
                .zip(usage.pss_bytes)
                .map(|(all, one)| all + one);
            // Together, the ranks have every selected tensor, however it is divided.
            node.unique_bytes = loaded.selected_bytes;
            if rank == 0 || finished.reason.is_some() {
                node.share = finished.share;
                node.reason = finished.reason;
            }
            for note in finished.notes {
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
            let report = finished.report;
            ranks.push(Rank {
                number: rank,
                usage,
                report,
            });
        }
        node.usage.seconds = ended - started;
        node.amplification = (node.unique_bytes > 0)
            .then(|| float(node.usage.read_bytes) / float(node.unique_bytes));
        node.gigabytes_per_second = rate(node.unique_bytes, node.usage.seconds) / 1e9;
        Self { node, ranks, notes }
    }

    /// Returns the notes of the ranks, each once.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes the table, and a line about the node.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let rows = self
            .ranks
            .iter()
            .map(|rank| row(rank.number.to_string(), &rank.usage));
        let node = row("node".to_owned(), &self.node.usage);
        let text = render(&HEADER, rows.chain([node]));
        write!(out, "{}", style::header(&text))?;
        writeln!(out, "{}", self.node.line(self.ranks.len()))
    }
}

impl Node {
    /// Returns a line such as `4 ranks: 1.0 GiB of tensors, 1.0 GiB read (amplification 1.00), …`.
    fn line(&self, ranks: usize) -> String {
        let amplification = self
            .amplification
            .map_or_else(String::new, |it| format!(" (amplification {it:.2})"));
        let shared = match (&self.reason, self.share.as_str()) {
            (Some(reason), _) => format!("; not shared: {reason}"),
            (None, "none") if ranks > 1 => "; not shared".to_owned(),
            (None, _) => String::new(),
        };
        format!(
            "{}: {} of distinct tensors, {} read{amplification}, {} from first start to last end, {}{shared}",
            format_count(ranks as u64, "rank"),
            format_bytes(self.unique_bytes),
            format_bytes(self.usage.read_bytes),
            format_seconds(self.usage.seconds),
            format_rate(self.gigabytes_per_second * 1e9),
        )
    }
}

fn row(rank: String, usage: &Usage) -> Vec<String> {
    let pss = usage.pss_bytes.map_or_else(|| "–".to_owned(), format_bytes);
    vec![
        rank,
        format_bytes(usage.read_bytes),
        format_bytes(usage.received_bytes),
        format_bytes(usage.tensor_bytes),
        format_seconds(usage.seconds),
        format_seconds(usage.cpu_seconds),
        pss,
    ]
}
