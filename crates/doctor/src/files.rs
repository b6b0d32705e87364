//! Limit of open files, compared with the number of files of a checkpoint.

use tload::internal::probe;

use super::{Finding, Level, Urgency};
use crate::host::limits::Limit;
use tload_quantity::format_count;

/// Shards of the largest published checkpoints (2026-11: 163 of DeepSeek-V3, 191 of Llama 3.1
/// 405B), rounded up.
const SHARDS: usize = 200;

/// Returns the finding about open files. `shards` is that of the checkpoint, if there is one.
pub(crate) fn finding(limit: Limit, shards: Option<usize>) -> Finding {
    let wanted = probe::descriptors(shards.unwrap_or(SHARDS));
    let value = match (limit.now, limit.most) {
        (None, _) => "unlimited".to_owned(),
        (Some(now), Some(most)) if now != most => format!("{now}, may be raised to {most}"),
        (Some(now), None) => format!("{now}, may be raised"),
        (Some(now), Some(_)) => now.to_string(),
    };
    let finding = Finding::ok("open_files", "open files", value);
    if limit.has(wanted) {
        return finding;
    }
    let known = shards.is_some();
    let shards = format_count(shards.unwrap_or(SHARDS) as u64, "shard");
    let command = if limit.may_have(wanted) {
        format!("ulimit -n {wanted}")
    } else {
        format!(
            "as root: ulimit -n {wanted}, LimitNOFILE={wanted} of the service, or docker run --ulimit nofile={wanted}"
        )
    };
    // The command raises its own limit; programs that use the library do not.
    let who = if limit.may_have(wanted) {
        "this command raises the limit by itself, other programs fail"
    } else {
        "loads fail"
    };
    let advice = format!("a checkpoint of {shards} needs {wanted}; {who}: {command}");
    if known {
        finding
            .advise(Level::Warn, advice)
            .change(Urgency::Failure, command)
    } else {
        finding
            .advise(Level::Note, advice)
            .change(Urgency::Little, command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(now: u64, most: u64) -> Limit {
        Limit {
            now: Some(now),
            most: Some(most),
        }
    }

    #[test]
    fn open_file_limit_is_compared_with_shard_count() {
        let fine = finding(limit(1024, 4096), Some(100));
        assert_eq!((fine.level, fine.change), (Level::Ok, None));
        assert_eq!(fine.value, "1024, may be raised to 4096");
        let few = finding(limit(64, 4096), Some(100));
        assert_eq!(few.level, Level::Warn);
        assert_eq!(
            few.advice.as_deref(),
            Some(
                "a checkpoint of 100 shards needs 264; this command raises the limit by itself, other programs fail: ulimit -n 264"
            )
        );
        assert_eq!(few.change.unwrap().command, "ulimit -n 264");
        let fixed = finding(limit(64, 64), Some(100)).change.unwrap();
        assert_eq!(fixed.urgency, Urgency::Failure);
        assert!(
            fixed.command.starts_with("as root: ulimit -n 264"),
            "{}",
            fixed.command
        );
    }

    #[test]
    fn open_files_without_checkpoint_uses_largest_known() {
        assert_eq!(finding(limit(1024, 1024), None).level, Level::Ok);
        let small = finding(limit(256, 1024), None);
        assert_eq!(small.level, Level::Note);
        assert_eq!(small.change.unwrap().urgency, Urgency::Little);
        let none = finding(Limit::default(), Some(1 << 20));
        assert_eq!((none.value.as_str(), none.level), ("unlimited", Level::Ok));
    }
}
