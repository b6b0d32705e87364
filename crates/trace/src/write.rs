//! Events as JSON: each load is a process of the trace, and each kind of events of a lane has as
//! many tracks as overlap.
//!
//! The format is "Trace Event Format" (Google, 2016), which Perfetto reads: `X` are events with a
//! duration, `M` names of tracks, `C` values over time. Times are microseconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tload::internal::printable;
use tload::internal::watch::WatchedLoad;

use crate::record::{EVENTS_MAX, Event, Kind, LoadEvents, lock};

/// Most characters of a name.
const NAME_MAX: usize = 120;

/// Least number of points of a curve, over the time of its load.
const POINTS: u64 = 2000;

/// One line of the file.
#[derive(Serialize)]
struct Line<'a> {
    ph: &'a str,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cat: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
}

/// Writes lines, with commas between them.
struct Lines<'a> {
    out: &'a mut dyn Write,
    pid: usize,
    /// Number of tracks of the process so far.
    tracks: usize,
    is_first: bool,
}

/// Writes all loads.
pub(crate) fn write(
    out: &mut dyn Write,
    loads: &[Arc<LoadEvents>],
    dropped: u64,
) -> io::Result<()> {
    let head = json!({
        "tload": env!("CARGO_PKG_VERSION"),
        "dropped_events": dropped,
    });
    write!(
        out,
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{head},\"traceEvents\":["
    )?;
    let mut lines = Lines {
        out,
        pid: 0,
        tracks: 0,
        is_first: true,
    };
    for (index, load) in loads.iter().enumerate() {
        lines.pid = index + 1;
        lines.tracks = 0;
        lines.load(load)?;
    }
    if dropped > 0 {
        let name = format!("{dropped} events were not kept: a trace has {EVENTS_MAX} of each kind");
        let args = json!({"name": name});
        lines.pid += 1;
        lines.name("process_name", 0, args)?;
    }
    writeln!(lines.out, "\n]}}")
}

impl Lines<'_> {
    fn load(&mut self, load: &LoadEvents) -> io::Result<()> {
        self.name("process_name", 0, json!({"name": shorten(&load.name)}))?;
        self.name("process_sort_index", 0, json!({"sort_index": self.pid}))?;
        let phases = lock(&load.phases);
        let phases: Vec<_> = phases.iter().map(|it| (it.begin, it.end, it)).collect();
        for row in rows(phases) {
            let track = self.track("start")?;
            for (begin, end, phase) in row {
                self.span(track, begin, end, &phase.name, "phase", Map::new())?;
            }
        }
        let mut reads = Vec::new();
        for lane in lock(&load.lanes).iter() {
            let lane = lock(lane);
            let of = |kinds: &[Kind]| -> Vec<(u64, u64, &Event)> {
                let events = lane.events.iter().filter(|it| kinds.contains(&it.kind));
                events.map(|it| (it.begin, it.end, it)).collect()
            };
            self.rows(
                &load.load,
                &lane.name,
                of(&[Kind::StorageWait, Kind::CopyWait]),
            )?;
            let kinds = [
                (Kind::Read, "reads"),
                (Kind::Copy, "copies"),
                (Kind::Tensors, "tensors"),
            ];
            for (kind, name) in kinds {
                self.rows(&load.load, &format!("{} {name}", lane.name), of(&[kind]))?;
            }
            reads.extend(
                of(&[Kind::Read])
                    .iter()
                    .map(|(begin, end, it)| (*begin, *end, it.bytes)),
            );
        }
        self.in_flight(&reads)
    }

    /// Writes events of a lane on as many tracks as overlap.
    fn rows(
        &mut self,
        load: &WatchedLoad,
        name: &str,
        events: Vec<(u64, u64, &Event)>,
    ) -> io::Result<()> {
        for row in rows(events) {
            let track = self.track(name)?;
            for (begin, end, event) in row {
                let (name, category, args) = describe(load, event);
                self.span(track, begin, end, &name, category, args)?;
            }
        }
        Ok(())
    }

    /// Writes the bytes of the reads in flight over time.
    fn in_flight(&mut self, reads: &[(u64, u64, u64)]) -> io::Result<()> {
        let mut changes: Vec<(u64, bool, u64)> = reads
            .iter()
            .flat_map(|(begin, end, bytes)| [(*begin, true, *bytes), (*end, false, *bytes)])
            .collect();
        changes.sort_unstable();
        let (Some(first), Some(last)) = (changes.first(), changes.last()) else {
            return Ok(());
        };
        let step = (last.0 - first.0) / POINTS;
        let (mut bytes, mut shown) = (0_u64, None);
        let mut rest = changes.iter().peekable();
        while let Some((at, begins, change)) = rest.next() {
            bytes = if *begins {
                bytes + change
            } else {
                bytes.saturating_sub(*change)
            };
            let is_due = shown.is_none_or(|shown| at - shown >= step);
            if rest.peek().is_none() || (is_due && rest.peek().is_some_and(|next| next.0 > *at)) {
                shown = Some(*at);
                let args = object(json!({"bytes": bytes}));
                self.line(&Line {
                    ph: "C",
                    pid: self.pid,
                    tid: 0,
                    ts: Some(micros(*at)),
                    dur: None,
                    name: "bytes in flight",
                    cat: "",
                    args,
                })?;
            }
        }
        Ok(())
    }

    fn track(&mut self, name: &str) -> io::Result<usize> {
        self.tracks += 1;
        let track = self.tracks;
        self.name("thread_name", track, json!({"name": name}))?;
        self.name("thread_sort_index", track, json!({"sort_index": track}))?;
        Ok(track)
    }

    fn name(&mut self, kind: &str, tid: usize, args: Value) -> io::Result<()> {
        self.line(&Line {
            ph: "M",
            pid: self.pid,
            tid,
            ts: None,
            dur: None,
            name: kind,
            cat: "",
            args: object(args),
        })
    }

    fn span(
        &mut self,
        tid: usize,
        begin: u64,
        end: u64,
        name: &str,
        cat: &str,
        args: Map<String, Value>,
    ) -> io::Result<()> {
        self.line(&Line {
            ph: "X",
            pid: self.pid,
            tid,
            ts: Some(micros(begin)),
            dur: Some(micros(end - begin)),
            name,
            cat,
            args,
        })
    }

    fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_first) {
            "\n"
        } else {
            ",\n"
        };
        self.out.write_all(comma.as_bytes())?;
        serde_json::to_writer(&mut *self.out, line).map_err(Into::into)
    }
}

/// Distributes spans over rows, so that those of a row follow each other. A row is used again once
/// its last span has ended, the one that ended first before the others.
fn rows<T>(mut spans: Vec<(u64, u64, T)>) -> Vec<Vec<(u64, u64, T)>> {
    spans.sort_by_key(|(begin, end, _)| (*begin, *end));
    let mut rows: Vec<Vec<(u64, u64, T)>> = Vec::new();
    let mut ends = BinaryHeap::new();
    for span in spans {
        let is_free = ends.peek().is_some_and(|Reverse((end, _))| *end <= span.0);
        let row = match is_free.then(|| ends.pop()).flatten() {
            Some(Reverse((_, row))) => row,
            None => rows.len(),
        };
        ends.push(Reverse((span.1, row)));
        if row == rows.len() {
            rows.push(Vec::new());
        }
        rows[row].push(span);
    }
    rows
}

/// Returns the name, the category and the details of an event.
fn describe(load: &WatchedLoad, event: &Event) -> (String, &'static str, Map<String, Value>) {
    let index = event.index as usize;
    let (name, category, args) = match event.kind {
        Kind::StorageWait => ("waits for storage".to_owned(), "wait", json!({})),
        Kind::CopyWait => ("waits for copies".to_owned(), "wait", json!({})),
        Kind::Read => {
            let extent = load.plan.extents.get(index);
            let source = extent.and_then(|it| load.sources.get(it.source));
            let file = source.map_or("a source", |it| it.rsplit('/').next().unwrap_or(it));
            let offset = extent.map_or(0, |it| it.offset);
            let args = json!({"bytes": event.bytes, "offset": offset, "source": source.map(|it| shorten(it))});
            (shorten(file), "read", args)
        }
        Kind::Copy => {
            let device = load
                .destinations
                .get(index)
                .map_or("device", String::as_str);
            (
                format!("to {device}"),
                "copy",
                json!({"bytes": event.bytes}),
            )
        }
        Kind::Tensors => {
            let first = load.tensors.get(index).map_or("", |tensor| tensor.name());
            let name = match event.count {
                1 => shorten(first),
                count => format!("{} and {} more", shorten(first), count - 1),
            };
            (
                name,
                "tensor",
                json!({"bytes": event.bytes, "tensors": event.count}),
            )
        }
    };
    (name, category, object(args))
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(map) = value {
        map
    } else {
        Map::new()
    }
}

/// Makes control characters visible, and shortens a name at its beginning.
fn shorten(name: &str) -> String {
    let begin = name.char_indices().rev().nth(NAME_MAX);
    match begin {
        Some((begin, _)) => format!("…{}", printable(&name[begin..])),
        None => printable(name),
    }
}

/// Converts nanoseconds to microseconds.
#[expect(clippy::cast_precision_loss, reason = "exact for a hundred days")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_no_overlaps_and_as_few_as_needed() {
        let spans = vec![
            (0, 10, 'a'),
            (2, 5, 'b'),
            (5, 8, 'c'),
            (10, 12, 'd'),
            (11, 13, 'e'),
        ];
        let rows = rows(spans);
        assert_eq!(rows.len(), 2);
        for row in &rows {
            assert!(row.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{row:?}");
        }
        assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), 5);
    }

    #[test]
    fn names_are_short_and_printable() {
        assert_eq!(shorten("a\u{1b}b"), "a\\u{1b}b");
        assert_eq!(shorten(&"x".repeat(500)).chars().count(), NAME_MAX + 2);
    }
}
