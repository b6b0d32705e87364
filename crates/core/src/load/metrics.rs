//! Totals of the loads of this process, in the text format of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use crate::report::{Report, Transfer};
use crate::storage::CACHE_TOTALS;
use crate::sync::per_process::PerProcess;

/// Loads of this process that have ended, and its caches.
static TOTALS: PerProcess<Totals> = PerProcess::new();

#[derive(Debug, Default)]
struct Totals {
    /// Loads by outcome.
    loads: BTreeMap<String, u64>,
    tensors: u64,
    tensor_bytes: u64,
    transfer: Transfer,
    open_seconds: f64,
    /// Seconds in which callers waited for the next tensor.
    wait_seconds: f64,
    /// Seconds from a call until its first tensor was ready, or its load failed before.
    start_seconds: f64,
    /// Seconds from then until its end. Not a difference of the sums, which rounding may decrease:
    /// a counter that decreases counts as restarted.
    stream_seconds: f64,
}

/// Adds a load that has ended.
pub(crate) fn count_load(report: &Report) {
    TOTALS.lock().add(report);
}

impl Totals {
    fn add(&mut self, report: &Report) {
        *self.loads.entry(report.outcome.clone()).or_default() += 1;
        let start = report.first_tensor_seconds.unwrap_or(report.seconds);
        self.start_seconds += start;
        self.stream_seconds += (report.seconds - start).max(0.0);
        self.tensors += report.tensors;
        self.tensor_bytes += report.tensor_bytes;
        self.transfer += report.transfer();
        self.open_seconds += report.open_seconds;
        self.wait_seconds += report.stages.consumer_wait;
    }
}

/// Returns counters of the loads of this process that have ended, and of its caches, in the text
/// format of Prometheus. Times are in seconds, sizes in bytes.
///
/// `tload_phase_seconds_total` divides the time of each load: `open` (its checkpoint), `start`
/// (from the call until the first tensor), `stream` (from there until the end).
pub fn metrics_text() -> String {
    let totals = TOTALS.lock();
    let sum = &totals.transfer;
    let mut text = Families::default();
    let complete = [("complete".to_owned(), 0)];
    let mut loads = BTreeMap::from(complete);
    loads.extend(totals.loads.clone());
    let loads: Vec<_> = loads.iter().map(|(name, count)| (&**name, count)).collect();
    text.add("loads_total", "Loads that have ended.", "outcome", &loads);
    let phases = [
        ("open", totals.open_seconds),
        ("start", totals.start_seconds),
        ("stream", totals.stream_seconds),
    ];
    let help = "Time of loads, by phase: their sum is the time from opening to the end.";
    text.add("phase_seconds_total", help, "phase", &phases);
    let help = "Time in which callers waited for the next tensor.";
    text.add_one("wait_seconds_total", help, totals.wait_seconds);
    text.add_one("tensors_total", "Tensors handed out.", totals.tensors);
    let help = "Bytes of the tensors handed out.";
    text.add_one("tensor_bytes_total", help, totals.tensor_bytes);
    let sources = [
        ("direct", sum.direct_bytes),
        ("page_cache", sum.buffered_bytes),
        ("mapped", sum.mapped_bytes),
        ("store", sum.remote_bytes),
        ("cache", sum.cached_bytes),
        ("rank", sum.received_bytes),
    ];
    let help = "Bytes read, by source: files past the page cache, copied from it or mapped; \
                object stores, their cache, another rank.";
    text.add("read_bytes_total", help, "source", &sources);
    let help = "Requests to object stores for tensors.";
    text.add_one("requests_total", help, sum.requests);
    let retries = [("request", sum.request_retries), ("read", sum.read_retries)];
    text.add(
        "retries_total",
        "Requests and reads that were retried.",
        "of",
        &retries,
    );
    let help = "Requests and reads that took much longer than others.";
    text.add_one("stalls_total", help, sum.stalls);
    let help = "Requests that were sent again because they stalled.";
    text.add_one("hedges_total", help, sum.hedges);
    text.add_cache();
    text.0
}

/// Text of metrics.
#[derive(Default)]
struct Families(String);

impl Families {
    /// Adds a counter with one label.
    fn add(&mut self, name: &str, help: &str, label: &str, samples: &[(&str, impl Display)]) {
        self.head(name, help);
        for (value, sample) in samples {
            self.sample(name, &format!("{{{label}=\"{value}\"}}"), sample);
        }
    }

    fn add_cache(&mut self) {
        let totals = CACHE_TOTALS.lock().clone();
        let events = [
            ("written", totals.written_bytes),
            ("dropped", totals.dropped_bytes),
            ("damaged", totals.damaged_bytes),
            ("evicted", totals.evicted_bytes),
        ];
        let help = "Bytes of the cache of objects: written, left out because its disk was too \
                    slow, found damaged, evicted.";
        self.add("cache_bytes_total", help, "event", &events);
        let waits = [
            ("disk", totals.disk_wait.as_secs_f64()),
            ("request", totals.claim_wait.as_secs_f64()),
        ];
        let help = "Time in which reads waited, added up: for the cache's disk, for what another \
                    process requests.";
        self.add("cache_wait_seconds_total", help, "for", &waits);
    }

    fn add_one(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help);
        self.sample(name, "", value);
    }

    fn head(&mut self, name: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(
            self.0,
            "# HELP tload_{name} {help}\n# TYPE tload_{name} counter\n"
        );
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "tload_{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value of a metric, with its labels.
    fn value(text: &str, name: &str) -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.expect(name).trim().parse().expect("a number")
    }

    /// Other tests of this process load too, so only differences say anything.
    #[test]
    fn loads_are_added_up_and_phases_are_the_whole_time() {
        let before = metrics_text();
        let report = Report {
            outcome: "of this test".to_owned(),
            open_seconds: 1.0,
            seconds: 5.0,
            first_tensor_seconds: Some(2.0),
            remote_bytes: 1 << 40,
            ..Report::default()
        };
        count_load(&report);
        count_load(&Report {
            first_tensor_seconds: None,
            ..report.clone()
        });
        let after = metrics_text();
        assert!(after.contains("\ntload_loads_total{outcome=\"of this test\"} 2\n"));
        let remote = "tload_read_bytes_total{source=\"store\"}";
        assert!(value(&after, remote) >= 2.0 * f64::from(1 << 30) * 1024.0);
        let phases = ["open", "start", "stream"].map(|phase| {
            let name = format!("tload_phase_seconds_total{{phase=\"{phase}\"}}");
            value(&after, &name) - value(&before, &name)
        });
        assert!(phases.iter().sum::<f64>() >= 11.999, "{phases:?}");
        assert!(phases[1] >= 6.999, "{phases:?}");
    }

    #[test]
    fn phases_never_decrease() {
        let mut totals = Totals::default();
        for number in 1..100 {
            let before = totals.stream_seconds;
            let start = f64::from(number) * 0.1;
            totals.add(&Report {
                first_tensor_seconds: Some(start),
                seconds: start + if number == 1 { 0.001 } else { 0.0 },
                ..Report::default()
            });
            assert!(totals.stream_seconds >= before, "{number}");
        }
        assert!((totals.stream_seconds - 0.001).abs() < 1e-9);
    }

    #[test]
    fn every_line_is_a_head_or_a_sample() {
        let text = metrics_text();
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            let is_head = line.starts_with("# HELP tload_") || line.starts_with("# TYPE tload_");
            let sample = line
                .rsplit_once(' ')
                .and_then(|(_, value)| value.parse::<f64>().ok());
            assert!(
                is_head || sample.is_some_and(|value| value >= 0.0),
                "{line}"
            );
        }
        assert!(
            text.contains("\ntload_loads_total{outcome=\"complete\"} "),
            "{text}"
        );
    }
}
