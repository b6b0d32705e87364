//! Counters of the server, and their text in the format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;

/// Counters since the server's start.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Responses by status.
    responses: Mutex<BTreeMap<u16, u64>>,
    /// Time from each request to the end of its response, microseconds.
    busy: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) accepted: AtomicU64,
    /// Responses that ended early because their file had changed.
    pub(crate) changed_files: AtomicU64,
    /// Responses that ended early because their file or object could not be read.
    pub(crate) failed_reads: AtomicU64,
    /// Responses that ended early because the client closed the connection or took too long.
    pub(crate) unfinished: AtomicU64,
    /// Connections that were closed because the client sent no complete request in time.
    pub(crate) silent: AtomicU64,
}

/// Type of a metric, name, help and value.
type Metric<'a> = (&'a str, &'a str, &'a str, u64);

impl Metrics {
    pub(crate) fn count(&self, status: StatusCode) {
        let mut responses = self
            .responses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *responses.entry(status.as_u16()).or_default() += 1;
    }

    /// Adds the time from a request to the end of its response.
    pub(crate) fn count_time(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.busy.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the metrics of responses.
    fn of_responses(&self) -> String {
        let mut text = String::new();
        let name = "tload_serve_responses_total";
        head(&mut text, "counter", name, "Responses, by status.");
        let responses = self
            .responses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (status, count) in responses.iter() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name}{{status=\"{status}\"}} {count}");
        }
        let name = "tload_serve_response_seconds_total";
        let help = "Time from requests to the ends of their responses, added up.";
        head(&mut text, "counter", name, help);
        let busy = Duration::from_micros(self.busy.load(Ordering::Relaxed));
        let _ = writeln!(text, "{name} {}", busy.as_secs_f64());
        text
    }

    /// Returns all metrics; `open` and `limit` are numbers of connections.
    pub(crate) fn text(&self, open: usize, limit: usize) -> String {
        let mut text = self.of_responses();
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let metrics: [Metric; 8] = [
            (
                "counter",
                "tload_serve_sent_bytes_total",
                "Bytes of response bodies that were sent.",
                value(&self.sent_bytes),
            ),
            (
                "gauge",
                "tload_serve_connections",
                "Open connections.",
                open as u64,
            ),
            (
                "gauge",
                "tload_serve_connections_limit",
                "Connections that may be open.",
                limit as u64,
            ),
            (
                "counter",
                "tload_serve_connections_total",
                "Connections that were accepted.",
                value(&self.accepted),
            ),
            (
                "counter",
                "tload_serve_changed_files_total",
                "Responses that were ended because their file changed.",
                value(&self.changed_files),
            ),
            (
                "counter",
                "tload_serve_failed_reads_total",
                "Responses that were ended because their file or object could not be read.",
                value(&self.failed_reads),
            ),
            (
                "counter",
                "tload_serve_unfinished_responses_total",
                "Responses that the client did not receive completely.",
                value(&self.unfinished),
            ),
            (
                "counter",
                "tload_serve_request_timeouts_total",
                "Connections closed because no complete request arrived in time.",
                value(&self.silent),
            ),
        ];
        for (kind, name, help, value) in metrics {
            head(&mut text, kind, name, help);
            let _ = writeln!(text, "{name} {value}");
        }
        // The core counts what the cache writes. No load runs here.
        let all = tload::internal::metrics_text();
        for line in all.lines().filter(|line| line.contains("tload_cache_")) {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

fn head(text: &mut String, kind: &str, name: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_that_of_prometheus() {
        let metrics = Metrics::default();
        for status in [StatusCode::OK, StatusCode::OK, StatusCode::NOT_FOUND] {
            metrics.count(status);
        }
        metrics.sent_bytes.store(7, Ordering::Relaxed);
        metrics.count_time(Duration::from_millis(500));
        metrics.count_time(Duration::from_secs(1));
        let text = metrics.text(1, 256);
        let begin = "# HELP tload_serve_responses_total Responses, by status.\n\
            # TYPE tload_serve_responses_total counter\n\
            tload_serve_responses_total{status=\"200\"} 2\n\
            tload_serve_responses_total{status=\"404\"} 1\n";
        assert!(text.starts_with(begin), "{text}");
        assert!(
            text.contains("\ntload_serve_sent_bytes_total 7\n"),
            "{text}"
        );
        assert!(text.contains("\ntload_serve_connections 1\n"), "{text}");
        let time = "\ntload_serve_response_seconds_total 1.5\n";
        assert!(text.contains(time), "{text}");
        assert!(text.ends_with('\n'));
    }
}
