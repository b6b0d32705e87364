//! Limits of threads: that of the user, and that of the control group.

use super::{Finding, Level, Urgency};
use crate::host::System;
use crate::host::limits::Limit;

/// Threads that a load may start: eight lanes, four readers if there is no ring, eight for
/// requests, and those that open files. With fewer, a load is slower; with none, it fails.
const THREADS_ENOUGH: u64 = 40;
/// Threads for one lane with its readers and for requests. With fewer, a load may not start.
const THREADS_LEAST: u64 = 4;

/// Bits of `CAP_SYS_ADMIN` and `CAP_SYS_RESOURCE`, which lift the user's limit (setrlimit(2)).
const LIFTING: u64 = 1 << 21 | 1 << 24;

pub(crate) fn finding(system: &System, limit: Limit) -> Finding {
    let lifted = system
        .field("proc/self/status", "CapEff")
        .ok()
        .and_then(|set| u64::from_str_radix(&set, 16).ok())
        .is_some_and(|set| set & LIFTING != 0);
    let of_user = limit.now.filter(|_| !lifted);
    let user = match (limit.now, lifted) {
        (None, _) => "unlimited".to_owned(),
        (Some(now), true) => format!("{now} (lifted for root)"),
        (Some(now), false) => format!("{now} for this user"),
    };
    let group = group(system);
    let value = match &group {
        Some(group) => format!(
            "{user}; the cgroup has {} left ({})",
            group.left, group.file
        ),
        None => user,
    };
    let finding = Finding::ok("threads", "threads", value);
    let left_by_group = group.as_ref().map(|group| group.left);
    let least = of_user.into_iter().chain(left_by_group).min();
    let Some(least) = least.filter(|least| *least < THREADS_ENOUGH) else {
        return finding;
    };
    let is_group = left_by_group.is_some_and(|left| left == least);
    let command = match group.filter(|_| is_group) {
        Some(group) => format!(
            "give the container more threads: docker run --pids-limit, or {}",
            group.file
        ),
        None => format!("ulimit -u {}", THREADS_ENOUGH.max(4096)),
    };
    let (urgency, effect) = if least < THREADS_LEAST {
        (Urgency::Failure, "loads may fail to start")
    } else {
        (Urgency::Little, "with fewer, it is slower")
    };
    let advice = format!("a load can use {THREADS_ENOUGH}; {effect}: {command}");
    finding.advise(Level::Warn, advice).change(urgency, command)
}

/// Threads left in a control group.
struct Group {
    left: u64,
    file: String,
}

/// Returns the group with the fewest threads left, of version 2 or 1.
fn group(system: &System) -> Option<Group> {
    let groups = system.read("proc/self/cgroup").ok()?;
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        let root = match controllers {
            "" => "sys/fs/cgroup",
            "pids" => "sys/fs/cgroup/pids",
            _ => return None,
        };
        Some((root, group.trim_matches('/').to_owned()))
    };
    let mut found = Vec::new();
    for (root, mut group) in groups.lines().filter_map(of_line) {
        loop {
            let folder = format!("{root}/{group}").trim_end_matches('/').to_owned();
            let number = |name: &str| {
                let text = system.read(format!("{folder}/{name}")).ok()?;
                text.parse::<u64>().ok()
            };
            if let (Some(most), Some(now)) = (number("pids.max"), number("pids.current")) {
                found.push(Group {
                    left: most.saturating_sub(now),
                    file: format!("/{folder}/pids.max"),
                });
            }
            if group.is_empty() {
                break;
            }
            group = group
                .rsplit_once('/')
                .map_or_else(String::new, |(above, _)| above.to_owned());
        }
    }
    found.into_iter().min_by_key(|group| group.left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    fn limit(now: u64) -> Limit {
        Limit {
            now: Some(now),
            most: Some(now),
        }
    }

    #[test]
    fn thread_limit_is_lifted_for_root() {
        let (_folder, user) = system(&[("proc/self/status", "CapEff:\t0000000000000000\n")]);
        let few = finding(&user, limit(5));
        assert_eq!(
            (few.level, few.value.as_str()),
            (Level::Warn, "5 for this user")
        );
        assert_eq!(few.change.as_ref().unwrap().command, "ulimit -u 4096");
        assert_eq!(few.change.unwrap().urgency, Urgency::Little);
        assert_eq!(
            finding(&user, limit(3)).change.unwrap().urgency,
            Urgency::Failure
        );
        assert_eq!(finding(&user, limit(40)).level, Level::Ok);
        assert_eq!(finding(&user, Limit::default()).level, Level::Ok);
        let (_folder, root) = system(&[("proc/self/status", "CapEff:\t000001ffffffffff\n")]);
        assert_eq!(finding(&root, limit(5)).level, Level::Ok);
    }

    #[test]
    fn threads_left_in_cgroup_are_reported() {
        let (_folder, system) = system(&[
            ("proc/self/cgroup", "9:pids:/job\n0::/\n"),
            ("sys/fs/cgroup/pids/job/pids.max", "100\n"),
            ("sys/fs/cgroup/pids/job/pids.current", "98\n"),
            ("sys/fs/cgroup/pids.max", "max\n"),
        ]);
        let found = finding(&system, Limit::default());
        assert_eq!(
            found.value,
            "unlimited; the cgroup has 2 left (/sys/fs/cgroup/pids/job/pids.max)"
        );
        let change = found.change.unwrap();
        assert_eq!(change.urgency, Urgency::Failure);
        assert!(change.command.contains("pids.max"), "{}", change.command);
    }
}
