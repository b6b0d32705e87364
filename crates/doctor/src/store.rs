//! The object store of a checkpoint and the network to it. Judges what the core measured.

use tload::Error;
use tload::internal::probe::{ConnectionRate, StoreProbe};
use tload::internal::{format_bytes, format_rate};

use super::mount::{one_line, told};
use super::{Finding, Level, Urgency};
use tload_config::flag;
use tload_quantity::{format_count, format_seconds, rate};

/// Clock skew to warn of, seconds: above what unsynchronised clocks gain in a day.
const SKEW_SECONDS: u64 = 60;
/// Clock skew at which requests are about to fail, seconds: S3 and Azure refuse signatures at 15
/// minutes, Google at 10.
const SKEW_SECONDS_MAX: u64 = 540;
/// Schemes of stores whose requests are signed with the time.
const SIGNING: [&str; 9] = [
    "s3", "s3a", "gs", "gcs", "az", "azure", "adl", "abfs", "abfss",
];
/// Round trip of a store outside of the region, seconds.
const ROUND_TRIP_FAR: f64 = 0.05;
/// Ratio of the throughput of many connections to that of one, below which more do not help.
const GAIN_LEAST: f64 = 1.5;
/// Advice after a throughput measurement that failed.
const FAILED: &str =
    "loads retry such requests: run the command again, and look at the store if it fails again";
/// Bytes below which requests take mostly round trips.
const BYTES_FEW: u64 = 32 << 20;

/// Returns the findings about a store. `shards` of the checkpoint are in object stores.
pub(crate) fn findings(probe: &StoreProbe, shards: usize) -> Vec<Finding> {
    let mut findings = vec![store(probe, shards)];
    findings.extend(
        probe
            .region
            .as_ref()
            .map(|region| Finding::ok("region", "region", region)),
    );
    findings.push(Finding::ok(
        "credentials",
        "credentials",
        &probe.credentials,
    ));
    findings.push(connection(probe));
    let signs = SIGNING.contains(&scheme(probe));
    let skew = probe.clock_skew_seconds;
    findings.extend(skew.map(|skew| clock(skew, signs)));
    findings.push(validator(probe));
    findings.push(round_trip(probe));
    findings.push(throughput(&probe.rates, probe.rates_error.as_deref()));
    findings
}

/// Returns the finding for a store that could not be measured, though the checkpoint was opened.
pub(crate) fn unknown(error: &Error) -> Finding {
    let advice = error.hint_with(flag).unwrap_or_else(|| {
        "the store answered before: run the command again, or raise --timeout".to_owned()
    });
    Finding::ok("store", "object store", format!("unknown: {}", told(error)))
        .advise(Level::Warn, advice)
}

fn scheme(probe: &StoreProbe) -> &str {
    let scheme = probe.location.split_once("://");
    scheme.map_or("", |(scheme, _)| scheme)
}

fn store(probe: &StoreProbe, shards: usize) -> Finding {
    let scheme = scheme(probe);
    let shards = format_count(shards as u64, "shard");
    let place = match probe.addressing {
        Some("host") => " (bucket in the host name)",
        Some(_) => " (bucket in the path)",
        None => "",
    };
    let value = format!("{scheme}: {shards} at {}{place}", probe.endpoint);
    let finding = |value| Finding::ok("store", "object store", value);
    match &probe.redirected_to {
        None => finding(value),
        // Hubs and download servers send every request on to a content delivery network.
        Some(host) if ["hf", "http", "https"].contains(&scheme) => {
            finding(format!("{value}, redirected to {host}"))
        }
        Some(host) => finding(format!("{value}, redirected to {host}")).advise(
            Level::Warn,
            "each request takes a detour: set the region or the endpoint to the bucket's own",
        ),
    }
}

fn connection(probe: &StoreProbe) -> Finding {
    let tls = if probe.tls { "TLS" } else { "no TLS" };
    let addresses = probe.addresses.map_or_else(String::new, |count| {
        format!(", {}", plural(count, "address", "addresses"))
    });
    let proxy = match &probe.proxy {
        Some(proxy) => format!("through the proxy {proxy}"),
        None => "no proxy".to_owned(),
    };
    let value = format!("{tls}{addresses}, {proxy}");
    let finding = Finding::ok("connection", "connection", value);
    if probe.tls || probe.is_loopback {
        return finding;
    }
    finding.advise(
        Level::Note,
        "requests and weights are sent unencrypted: use an https endpoint, unless the network is trusted",
    )
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Returns the finding about the clock. `skew` is the store's clock minus this machine's; `signs`
/// tells whether requests to the store are signed.
fn clock(skew: i64, signs: bool) -> Finding {
    let seconds = skew.unsigned_abs();
    let side = if skew > 0 { "behind" } else { "ahead of" };
    let value = match seconds {
        0..=2 => "same time as the store".to_owned(),
        _ => format!("{seconds} s {side} the store's"),
    };
    let finding = Finding::ok("clock", "clock", value);
    if seconds < SKEW_SECONDS {
        return finding;
    }
    let command = "synchronise this machine's clock: timedatectl set-ntp true (as root)";
    let urgency = if signs && seconds >= SKEW_SECONDS_MAX {
        Urgency::Failure
    } else {
        Urgency::Little
    };
    let advice = format!("stores refuse signed requests at 10 to 15 minutes: {command}");
    finding.advise(Level::Warn, advice).change(urgency, command)
}

fn validator(probe: &StoreProbe) -> Finding {
    let (id, title) = ("validator", "versions");
    match probe.validator {
        Some(name) => Finding::ok(id, title, format!("told apart by {name}")),
        None => Finding::ok(id, title, "not told apart").advise(
            Level::Warn,
            "an object that is replaced while it is read may go unnoticed: make the server send ETag or Last-Modified",
        ),
    }
}

fn round_trip(probe: &StoreProbe) -> Finding {
    let mut sorted = probe.round_trip_seconds.clone();
    sorted.sort_by(f64::total_cmp);
    let (id, title) = ("round_trip", "round trip");
    let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else {
        return Finding::ok(id, title, "unknown: not measured");
    };
    let median = sorted[sorted.len() / 2];
    let with = if probe.tls {
        "connection and TLS"
    } else {
        "connection"
    };
    let value = format!(
        "median {} ({} to {}, {}); first response {}, with {with}",
        format_seconds(median),
        format_seconds(*least),
        format_seconds(*most),
        format_count(sorted.len() as u64, "request"),
        format_seconds(probe.first_response_seconds),
    );
    let finding = Finding::ok(id, title, value);
    if median < ROUND_TRIP_FAR {
        return finding;
    }
    finding.advise(
        Level::Note,
        "the store is far away, or slow to answer: load in its region, or copy the model once (tload cp)",
    )
}

/// Returns the finding about the throughput. `error` is that of a measurement that failed.
fn throughput(rates: &[ConnectionRate], error: Option<&str>) -> Finding {
    let (id, title) = ("throughput", "throughput");
    let error = error.map(one_line);
    let Some(last) = rates.last() else {
        return match error {
            Some(error) => {
                Finding::ok(id, title, format!("unknown: {error}")).advise(Level::Warn, FAILED)
            }
            None => Finding::ok(id, title, "unknown: no time was left")
                .advise(Level::Note, "raise --timeout to measure it"),
        };
    };
    let shown: Vec<_> = rates.iter().map(shown).collect();
    let bytes: Vec<_> = rates.iter().map(|it| format_bytes(it.bytes)).collect();
    let per_second = |of: &ConnectionRate| rate(of.bytes, of.seconds);
    let remark = if last.bytes < BYTES_FEW {
        "; few bytes, so round trips dominate"
    } else if rates.len() > 1 && per_second(last) < GAIN_LEAST * per_second(&rates[0]) {
        "; one connection is nearly enough"
    } else {
        ""
    };
    let value = format!(
        "{} ({} read{remark})",
        shown.join(", "),
        bytes.join(" and ")
    );
    match error {
        Some(error) => Finding::ok(id, title, format!("{value}; a measurement failed: {error}"))
            .advise(Level::Warn, FAILED),
        None => Finding::ok(id, title, value),
    }
}

fn shown(of: &ConnectionRate) -> String {
    let speed = format_rate(rate(of.bytes, of.seconds));
    let connections = format_count(of.connections as u64, "connection");
    format!("{speed} with {connections}")
}

#[cfg(test)]
mod tests {
    use tload::ErrorKind;

    use super::*;

    #[test]
    fn clock_skew_warns_before_requests_fail() {
        assert_eq!(clock(0, true).value, "same time as the store");
        assert_eq!(clock(-59, true).level, Level::Ok);
        assert_eq!(clock(59, true).change, None);
        let behind = clock(60, true);
        assert_eq!(behind.level, Level::Warn);
        assert_eq!(behind.value, "60 s behind the store's");
        assert_eq!(behind.change.unwrap().urgency, Urgency::Little);
        let ahead = clock(-840, true);
        assert_eq!(ahead.value, "840 s ahead of the store's");
        assert_eq!(ahead.change.unwrap().urgency, Urgency::Failure);
        let unsigned = clock(-840, false);
        assert_eq!(unsigned.change.unwrap().urgency, Urgency::Little);
        assert_eq!(clock(i64::MIN, true).level, Level::Warn);
    }

    #[test]
    fn unmeasured_throughput_and_round_trip_are_unknown() {
        assert_eq!(throughput(&[], None).level, Level::Note);
        let found = throughput(&[], Some("s3://b/k: status 503\n  hint: wait"));
        assert_eq!(found.level, Level::Warn);
        assert_eq!(found.value, "unknown: s3://b/k: status 503");
        let mut measured = ConnectionRate::default();
        (measured.connections, measured.bytes, measured.seconds) = (1, 64 << 20, 1.0);
        let found = throughput(&[measured], Some("reset\n  caused by: line"));
        assert_eq!(found.level, Level::Warn);
        let end = "; a measurement failed: reset; caused by: line";
        assert!(found.value.ends_with(end), "{}", found.value);
        assert!(found.value.starts_with("67.1 MB/s"), "{}", found.value);
        let found = round_trip(&StoreProbe::default());
        assert_eq!(found.value, "unknown: not measured");
    }

    #[test]
    fn store_without_tls_or_validator_is_noted() {
        let probe = StoreProbe::default();
        assert_eq!(connection(&probe).level, Level::Note);
        assert_eq!(connection(&probe).value, "no TLS, no proxy");
        assert_eq!(validator(&probe).level, Level::Warn);
    }

    #[test]
    fn failed_measurement_is_warning_with_request_and_hint() {
        let error = Error::new(ErrorKind::TimedOut, "no answer in time")
            .with_source("broken line")
            .with_hint("raise ‹timeout›");
        let found = unknown(&error);
        assert_eq!(found.level, Level::Warn);
        assert_eq!(
            found.value,
            "unknown: no answer in time; caused by: broken line"
        );
        assert_eq!(found.advice.as_deref(), Some("raise --timeout"));
    }
}
