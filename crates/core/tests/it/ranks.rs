//! Local groups of real processes: joined, killed, stopped, forked.

#![expect(unsafe_code, reason = "forks")]

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tload::{Group, LocalGroup};

use crate::child::{self, Child, PATIENCE};
use crate::files::folder;

/// Not a test: the processes of [`joined`] run this function. It joins, then obeys the lines of its
/// input.
#[test]
fn serves() {
    let Some(words) = child::words() else {
        return;
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (path, rank, size) = (Path::new(&words[0]), number(&words[1]), number(&words[2]));
    let before = resources();
    let group = LocalGroup::join(path, rank, size, PATIENCE).expect("joins");
    child::answer("joined");
    for line in child::lines() {
        let answer = match line.split_once(' ').expect("a command and its argument") {
            ("exchange", timeout) => exchange(&group, number(timeout)),
            ("fork", "end") => fork(&group, false),
            ("fork", "stay") => fork(&group, true),
            _ => panic!("{line}"),
        };
        child::answer(&answer);
    }
    drop(group);
    let deadline = Instant::now() + PATIENCE;
    // The kernel removes a thread shortly after it was joined.
    while resources() != before && Instant::now() < deadline {
        tload_testbed::pause_between_looks();
    }
    assert_eq!(resources(), before, "descriptors and threads");
}

fn exchange(group: &LocalGroup, timeout_ms: usize) -> String {
    // A short one is for ranks that are stopped: a busy machine only takes longer.
    let timeout = Duration::from_millis(u64::try_from(timeout_ms).expect("short"));
    let message = format!("from {}", group.rank());
    match group.exchange(message.as_bytes(), Instant::now() + timeout) {
        Ok(messages) => {
            let texts = messages.iter().map(|it| String::from_utf8_lossy(it));
            texts.collect::<Vec<_>>().join(", ")
        }
        Err(error) => format!(
            "{} {:?} {}",
            error.kind().name(),
            error.ranks(),
            error.message()
        ),
    }
}

/// Forks a child that uses the group and drops it. With `stays`, the child remains and the answer
/// is its number.
fn fork(group: &LocalGroup, stays: bool) -> String {
    // SAFETY: the child allocates and uses its own copies only, and ends without destructors. The
    // allocator handles forks.
    let child = unsafe { libc::fork() };
    if child == 0 {
        if stays {
            // SAFETY: ends the child if the test does not.
            unsafe { libc::alarm(300) };
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
        let text = exchange(group, 60_000);
        let is_refused = text.starts_with("invalid_request [] the group belongs to process");
        // SAFETY: reads a copy of the group, which the child never uses or drops again.
        drop(unsafe { std::ptr::read(group) });
        // SAFETY: ends the child without the destructors and exit handlers of its parent.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    if stays {
        return child.to_string();
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and `status` a local variable.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child);
    format!("status {status}")
}

/// Returns the number of open descriptors and of threads of this process.
fn resources() -> (usize, usize) {
    let entries = |folder| std::fs::read_dir(folder).expect("procfs").count();
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

/// Starts all ranks of a group, and waits until they have joined.
fn joined(path: &Path, size: usize) -> Vec<Child> {
    let text = path.display().to_string();
    let start = |rank: usize| {
        let (rank, size) = (rank.to_string(), size.to_string());
        Child::start("ranks::serves", &[&text, &rank, &size])
    };
    let ranks: Vec<_> = (0..size).map(start).collect();
    for rank in &ranks {
        assert_eq!(rank.answer(), "joined");
    }
    ranks
}

/// Lets several ranks exchange at once, and asserts the answer of each.
fn assert_all(ranks: &mut [Child], timeout_ms: u32, wanted: &str) {
    for rank in &mut *ranks {
        rank.tell(&format!("exchange {timeout_ms}"));
    }
    for rank in ranks {
        assert_eq!(rank.answer(), wanted);
    }
}

/// Longer than any step takes, in milliseconds.
const LONG: u32 = 120_000;

#[test]
fn processes_exchange_and_leave_nothing() {
    for size in [2, 4, 8] {
        let folder = folder();
        let path = folder.path().join("g.sock");
        let mut ranks = joined(&path, size);
        let messages: Vec<_> = (0..size).map(|rank| format!("from {rank}")).collect();
        for _ in 0..3 {
            assert_all(&mut ranks, LONG, &messages.join(", "));
        }
        assert!(path.exists());
        ranks.into_iter().for_each(Child::end);
        assert!(!path.exists(), "removed");
    }
}

#[test]
fn killed_rank_is_named_at_once() {
    let folder = folder();
    let path = folder.path().join("g.sock");
    let mut ranks = joined(&path, 4);
    // While another waits, and afterwards.
    ranks[0].tell(&format!("exchange {LONG}"));
    ranks[2].kill();
    ranks.remove(2);
    assert_eq!(ranks[0].answer(), "peer [2] rank 2 has left the group");
    assert_all(&mut ranks, LONG, "peer [2] rank 2 has left the group");
    ranks.into_iter().for_each(Child::end);
}

#[test]
fn killed_rank_0_is_named_and_its_socket_replaced() {
    let folder = folder();
    let path = folder.path().join("g.sock");
    let mut ranks = joined(&path, 4);
    // A child keeps its descriptors open.
    let child = ranks[0].ask("fork stay").parse().expect("a number");
    ranks[0].kill();
    ranks.remove(0);
    assert_all(&mut ranks, LONG, "peer [0] rank 0 has left the group");
    assert!(path.exists(), "left behind");
    let mut again = joined(&path, 2);
    assert_all(&mut again, LONG, "from 0, from 1");
    let child = Pid::from_raw(child).expect("not 0");
    kill_process(child, Signal::KILL).expect("a descendant");
    ranks.into_iter().chain(again).for_each(Child::end);
}

/// The end of its process counts, not that of its connection.
#[test]
fn killed_rank_with_living_child_is_named_at_once() {
    let folder = folder();
    let mut ranks = joined(&folder.path().join("g.sock"), 3);
    let child = ranks[1].ask("fork stay").parse().expect("a number");
    ranks[1].kill();
    ranks.remove(1);
    assert_all(&mut ranks, LONG, "peer [1] rank 1 has left the group");
    let child = Pid::from_raw(child).expect("not 0");
    kill_process(child, Signal::KILL).expect("a descendant");
    ranks.into_iter().for_each(Child::end);
}

#[test]
fn stopped_rank_is_named_at_the_deadline() {
    let folder = folder();
    let mut ranks = joined(&folder.path().join("g.sock"), 2);
    ranks[1].signal(Signal::STOP);
    let text = "peer [1] rank 1 of 2 did not take part in an exchange by the deadline";
    assert_eq!(ranks[0].ask("exchange 100"), text);
    ranks[1].signal(Signal::CONT);
    assert_eq!(ranks[1].ask(&format!("exchange {LONG}")), text);
    ranks.into_iter().for_each(Child::end);
}

#[test]
fn stopped_rank_0_delays_no_deadline() {
    let folder = folder();
    let mut ranks = joined(&folder.path().join("g.sock"), 3);
    ranks[0].signal(Signal::STOP);
    let text = "peer [0] rank 0 did not answer by the deadline";
    assert_all(&mut ranks[1..], 100, text);
    ranks[0].signal(Signal::CONT);
    ranks.into_iter().for_each(Child::end);
}

#[test]
fn forked_child_is_refused_and_harmless() {
    let folder = folder();
    let path = folder.path().join("g.sock");
    let mut ranks = joined(&path, 2);
    for rank in &mut ranks {
        assert_eq!(rank.ask("fork end"), "status 0");
    }
    assert!(path.exists());
    assert_all(&mut ranks, LONG, "from 0, from 1");
    ranks.into_iter().for_each(Child::end);
}
