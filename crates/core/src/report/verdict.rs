//! Verdict of a load: what limited it, in one sentence, as far as the counters tell.

use super::Report;
use crate::schedule::LimitReason;

/// Reasons for an engine that tell that files are in memory: loads of them do not wait for a disk.
pub(crate) const IN_MEMORY: [&str; 2] = ["the page cache holds the files", "are in memory"];

/// Shortest load whose times mean something, seconds.
const SECONDS_MIN: f64 = 0.1;

/// Share of the bytes that must come from one kind of source.
const NEARLY_ALL: f64 = 0.9;

/// Share of the lanes' time that a limit must take.
const MOST: f64 = 0.6;

/// Share of the load's time that the caller must wait if storage is the limit, and must not wait if
/// the caller is.
const HALF: f64 = 0.5;

/// Names of file systems whose files are elsewhere.
const REMOTE: [&str; 14] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "smb",
    "virtiofs",
    "wekafs",
];

impl Report {
    /// Returns a sentence that names what limited a complete load; `None` if the counters do not
    /// tell.
    pub(crate) fn limit(&self) -> Option<String> {
        if self.outcome != "complete" || self.read_bytes == 0 {
            return None;
        }
        let is_most = |bytes: u64| float(bytes) >= NEARLY_ALL * float(self.read_bytes);
        let reason = &self.engine.reason;
        let is_held = self.direct_bytes > 0 || IN_MEMORY.iter().any(|text| reason.contains(text));
        if is_most(self.buffered_bytes) && is_held {
            return Some("the page cache served it".to_owned());
        }
        let stages = &self.stages;
        let lanes = stages.submit
            + stages.storage_wait
            + stages.memory_wait
            + stages.copy_wait
            + stages.deliver
            + stages.verify;
        if self.seconds < SECONDS_MIN || lanes < SECONDS_MIN {
            return None;
        }
        let share = |seconds: f64| seconds / lanes;
        let waiting = stages.consumer_wait / self.seconds;
        if share(stages.memory_wait) >= MOST && waiting < HALF {
            return Some(format!(
                "the consumer was the limit: reads waited {} of the time for tensors to be taken",
                percent(share(stages.memory_wait))
            ));
        }
        if share(stages.copy_wait) >= MOST {
            return Some("the copies to the GPU were the limit".to_owned());
        }
        if share(stages.verify) >= MOST {
            return Some("the comparison with digests was the limit".to_owned());
        }
        // With a depth that the caller has chosen, storage may be able to do more.
        let is_fixed = self
            .depths
            .iter()
            .any(|depth| depth.reason == LimitReason::Fixed.text());
        if is_fixed || share(stages.storage_wait) < MOST || waiting < HALF {
            return None;
        }
        let storage = if is_most(self.remote_bytes) {
            "the store, or the link to it, was the limit"
        } else if is_most(self.cached_bytes) {
            "the disk of the cache was the limit"
        } else if !is_most(self.direct_bytes) {
            return None;
        } else if self.is_remote_file_system() {
            "the file system, or the network to it, was the limit"
        } else {
            "the disk was the limit"
        };
        let wait = percent(share(stages.storage_wait));
        Some(format!("{storage}: reads waited {wait} of the time for it"))
    }

    fn is_remote_file_system(&self) -> bool {
        let mut depths = self.depths.iter();
        depths.any(|depth| REMOTE.iter().any(|name| depth.sources.starts_with(name)))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{DepthReport, EngineReport, StageTimes};

    const GIB: u64 = 1 << 30;

    /// Returns a load of one second in which a disk was the limit.
    fn disk() -> Report {
        Report {
            outcome: "complete".to_owned(),
            seconds: 1.0,
            read_bytes: GIB,
            direct_bytes: GIB,
            depths: vec![depth("ext4 (8:1)", LimitReason::OnlyQueued)],
            stages: StageTimes {
                storage_wait: 0.9,
                submit: 0.06,
                deliver: 0.04,
                consumer_wait: 0.95,
                ..StageTimes::default()
            },
            ..Report::default()
        }
    }

    fn depth(sources: &str, reason: LimitReason) -> DepthReport {
        DepthReport {
            sources: sources.to_owned(),
            reason: reason.text().to_owned(),
            ..DepthReport::default()
        }
    }

    fn from(source: fn(&mut Report) -> &mut u64) -> Report {
        let mut report = disk();
        report.direct_bytes = 0;
        *source(&mut report) = GIB;
        report
    }

    fn with(change: impl FnOnce(&mut Report)) -> Report {
        let mut report = disk();
        change(&mut report);
        report
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn verdict_follows_from_the_counters() {
        let store = from(|it| &mut it.remote_bytes);
        let held = EngineReport {
            reason: "a ring can be set up; the page cache holds the files".to_owned(),
            ..EngineReport::default()
        };
        let buffered = from(|it| &mut it.buffered_bytes);
        let slow_caller = |it: &mut Report| {
            it.stages.storage_wait = 0.1;
            it.stages.memory_wait = 0.8;
            it.stages.consumer_wait = 0.1;
        };
        for (name, report, wanted) in vec![
            (
                "disk",
                disk(),
                Some("the disk was the limit: reads waited 90 % of the time for it"),
            ),
            (
                "store",
                store.clone(),
                Some(
                    "the store, or the link to it, was the limit: reads waited 90 % of the time for it",
                ),
            ),
            (
                "cache",
                from(|it| &mut it.cached_bytes),
                Some("the disk of the cache was the limit: reads waited 90 % of the time for it"),
            ),
            (
                "network file system",
                with(|it| it.depths = vec![depth("nfs4 (0:52)", LimitReason::Ceiling)]),
                Some(
                    "the file system, or the network to it, was the limit: reads waited 90 % of the time for it",
                ),
            ),
            (
                "page cache",
                Report {
                    engine: held.clone(),
                    ..buffered.clone()
                },
                Some("the page cache served it"),
            ),
            (
                "short, page cache",
                Report {
                    engine: held,
                    seconds: 0.01,
                    ..buffered.clone()
                },
                Some("the page cache served it"),
            ),
            (
                "page cache but for a few ranges",
                with(|it| {
                    it.direct_bytes = GIB / 20;
                    it.buffered_bytes = GIB / 20 * 19;
                }),
                Some("the page cache served it"),
            ),
            (
                "consumer",
                with(slow_caller),
                Some(
                    "the consumer was the limit: reads waited 80 % of the time for tensors to be taken",
                ),
            ),
            (
                "copies",
                with(|it| {
                    it.stages.storage_wait = 0.1;
                    it.stages.copy_wait = 0.8;
                }),
                Some("the copies to the GPU were the limit"),
            ),
            (
                "digests",
                with(|it| {
                    it.stages.storage_wait = 0.1;
                    it.stages.verify = 0.8;
                }),
                Some("the comparison with digests was the limit"),
            ),
            // The counters do not tell.
            ("buffered, perhaps from a disk", buffered, None),
            (
                "both",
                with(|it| {
                    it.direct_bytes = GIB / 2;
                    it.remote_bytes = GIB / 2;
                }),
                None,
            ),
            ("short", with(|it| it.seconds = 0.05), None),
            (
                "chosen depth",
                with(|it| it.depths = vec![depth("ext4 (8:1)", LimitReason::Fixed)]),
                None,
            ),
            (
                "caller that is rarely there",
                with(|it| it.stages.consumer_wait = 0.2),
                None,
            ),
            ("much else", with(|it| it.stages.submit = 0.9), None),
            (
                "cancelled",
                with(|it| it.outcome = "cancelled".to_owned()),
                None,
            ),
            (
                "other ranks read",
                with(|it| {
                    it.read_bytes = 0;
                    it.direct_bytes = 0;
                    it.received_bytes = GIB;
                }),
                None,
            ),
            (
                "nothing",
                Report {
                    outcome: "complete".to_owned(),
                    ..Report::default()
                },
                None,
            ),
        ] {
            assert_eq!(report.limit().as_deref(), wanted, "{name}");
        }
    }
}
