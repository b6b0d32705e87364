//! Shared loads of real processes: killed, stopped, cancelled, slow, short of resources.
//!
//! A failure here is a rank that hangs, that gets other bytes than its files have, or that fails
//! where it should not.

#![expect(unsafe_code, reason = "forks")]

mod columns;
mod failures;
mod process;

use std::path::{Path, PathBuf};
use std::time::Duration;

use process::{group, group_of, wait_for_a_moment};
use rustix::process::Signal;
use tempfile::TempDir;
use tload_testbed::slowfs::{Fault, Mount, Options as Slowness, Rule};
use tload_testing::fixtures::Rng;

use crate::child::Child;
use crate::files::{even, folder, mixed, write, write_manifest};
use crate::requirement;
use crate::sharing::matrices;

const MIB: usize = 1 << 20;

/// Room for a third of the checkpoint on the leader, and for two tensors on each of four ranks.
const LITTLE: &str = "memory_limit=32MiB";

/// Ends the process: the child of a fork, which uses nothing that it has inherited.
fn fork_and_end() {
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without the destructors and exit handlers of its parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and `status` a local variable.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0));
}

/// Leaves a child behind that keeps all descriptors but those to the test open, for a while.
fn fork_and_stay() {
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for descriptor in 0..2 {
            // SAFETY: the child uses neither.
            unsafe { libc::close(descriptor) };
        }
        // SAFETY: ends the child later.
        unsafe { libc::alarm(20) };
        // SAFETY: waits for that.
        unsafe { libc::pause() };
    }
    assert!(child > 0);
}

/// Folder with a checkpoint of 48 MiB, and room for sockets.
struct Setting {
    folder: TempDir,
}

impl Setting {
    fn new() -> Self {
        let folder = folder();
        let path = folder.path().join("model");
        write(&path.join("a.safetensors"), &even("a", 1, 20, 2 * MIB));
        write(&path.join("b.safetensors"), &mixed("b", 2, 60, 300_000));
        Self { folder }
    }

    /// Creates a checkpoint of matrices, 48 MiB.
    fn of_matrices() -> Self {
        let folder = folder();
        let path = folder.path().join("model");
        write(&path.join("m.safetensors"), &matrices(16, 3072, 512));
        Self { folder }
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    fn group(&self, size: usize) -> Vec<Child> {
        self.group_of(size, &self.model())
    }

    fn group_of(&self, size: usize, checkpoint: &Path) -> Vec<Child> {
        let socket = self.folder.path().join("g.sock");
        group(&socket, size, checkpoint, &self.model())
    }

    /// Starts a group with a checkpoint for each rank, all with equal contents or none.
    fn group_with(&self, checkpoints: &[&Path]) -> Vec<Child> {
        let socket = self.folder.path().join("g.sock");
        group_of(&socket, checkpoints, &self.model())
    }
}

fn tell(ranks: &mut [Child], line: &str) {
    for rank in ranks {
        rank.tell(line);
    }
}

fn answers(ranks: &[Child]) -> Vec<String> {
    ranks.iter().map(Child::answer).collect()
}

fn assert_answers(ranks: &[Child], wanted: &str) {
    for (index, answer) in answers(ranks).iter().enumerate() {
        assert!(
            answer.starts_with(wanted),
            "{index}: {answer}, not {wanted}"
        );
    }
}

fn assert_complete(ranks: &[Child]) {
    assert_answers(ranks, "complete ");
}

/// Returns the bytes that a complete rank has read in place of the leader.
fn reread(answer: &str) -> u64 {
    let words: Vec<_> = answer.split(' ').collect();
    assert_eq!(words[0], "complete", "{answer}");
    words[1].parse().expect("a number")
}

#[test]
fn differing_options_are_the_same_error_on_every_rank() {
    let setting = Setting::new();
    for (one, other) in [
        ("share=node", "share=none"),
        ("verify=off", "verify=auto"),
        ("order=ready", "order=file"),
        ("cache=auto", "cache=buffered"),
        ("memory_limit=1GiB", "memory_limit=2GiB"),
    ] {
        let mut ranks = setting.group(4);
        tell(&mut ranks[..3], &format!("load {one}"));
        ranks[3].tell(&format!("load {other}"));
        let found = answers(&ranks);
        let name = one.split('=').next().expect("a name");
        let wanted = format!("peer [3] the ranks disagree on {name}: ");
        assert!(found[0].starts_with(&wanted), "{found:?}");
        assert!(found.iter().all(|it| *it == found[0]), "{found:?}");
        // The group itself is whole.
        tell(&mut ranks, "load");
        assert_complete(&ranks);
    }
}

#[test]
fn differing_files_are_the_same_error_on_every_rank() {
    let setting = Setting::new();
    let copy = |name: &str| {
        let copy = setting.folder.path().join(name);
        std::fs::create_dir(&copy).expect("a temporary folder");
        for file in ["a.safetensors", "b.safetensors"] {
            let (from, to) = (setting.model().join(file), copy.join(file));
            std::fs::copy(from, to).expect("room");
        }
        copy
    };
    let other = copy("other");
    // The other file is as long as the first.
    write(&other.join("a.safetensors"), &even("a", 9, 20, 2 * MIB));
    let fewer = copy("fewer");
    std::fs::remove_file(fewer.join("b.safetensors")).expect("copied");
    for (path, wanted) in [
        (other, "peer [1] the ranks disagree on a.safetensors: "),
        (
            fewer,
            "peer [1] the ranks disagree on the number of files: ",
        ),
    ] {
        let model = setting.model();
        let mut ranks = setting.group_with(&[&model, &path, &model]);
        tell(&mut ranks, "load");
        let found = answers(&ranks);
        assert!(found[0].starts_with(wanted), "{found:?}");
        assert!(found.iter().all(|it| *it == found[0]), "{found:?}");
    }
}

#[test]
fn read_error_of_the_leader_reaches_every_rank() {
    let setting = Setting::new();
    let slowness = Slowness::default();
    let mount = Mount::start("slow::serves", &setting.model(), &slowness);
    let Some(mount) = requirement::requirement("fuse", mount) else {
        return;
    };
    let mut ranks = setting.group_of(4, mount.path());
    mount.fault(&Rule::always(Fault::Errno(libc::EIO)).from_byte(MIB as u64));
    tell(&mut ranks, "load");
    assert_answers(&ranks, "io [0] rank 0: ");
    mount.clear_faults();
    tell(&mut ranks, "load");
    assert_complete(&ranks);
}

#[test]
fn follower_that_dies_leaves_the_others() {
    let setting = Setting::new();
    for (end, wanted) in [
        ("hold=2", "gone"),
        ("drop=2", "dropped"),
        ("panic=2", "gone"),
    ] {
        let mut ranks = setting.group(4);
        tell(&mut ranks[..3], &format!("load {LITTLE}"));
        ranks[3].tell(&format!("load {LITTLE} {end}"));
        if end == "hold=2" {
            assert_eq!(ranks[3].answer(), "holds");
            ranks[3].signal(Signal::KILL);
        }
        assert_complete(&ranks[..3]);
        assert_eq!(ranks[3].answer(), wanted);
        if end == "drop=2" {
            // It has left the load, and not the group.
            tell(&mut ranks, "load");
            assert_complete(&ranks);
        }
    }
}

#[test]
fn loss_of_the_leader_is_an_error_or_made_up_for() {
    let setting = Setting::new();
    for (policy, wanted) in [("error", "peer [0] rank 0, "), ("read", "complete ")] {
        for private in [false, true] {
            let mut ranks = setting.group(4);
            let load = format!("load {LITTLE} hold=2 on_peer_loss={policy} private={private}");
            tell(&mut ranks, &load);
            assert_answers(&ranks, "holds");
            ranks[0].signal(Signal::KILL);
            assert_eq!(ranks[0].answer(), "gone");
            tell(&mut ranks[1..], "go");
            for (index, answer) in answers(&ranks[1..]).iter().enumerate() {
                assert!(answer.starts_with(wanted), "{index}: {answer}");
                if policy == "read" {
                    assert!(reread(answer) > 20 * MIB as u64, "{answer}");
                }
            }
        }
    }
}

/// The end of its process counts, not that of its connection.
#[test]
fn loss_of_a_rank_whose_child_lives_is_noticed() {
    let setting = Setting::new();
    let mut ranks = setting.group(4);
    ranks[0].tell(&format!("load {LITTLE} child=1 hold=2"));
    tell(&mut ranks[1..], &format!("load {LITTLE} hold=2"));
    assert_answers(&ranks, "holds");
    ranks[0].signal(Signal::KILL);
    assert_eq!(ranks[0].answer(), "gone");
    tell(&mut ranks[1..], "go");
    assert_answers(&ranks[1..], "peer [0] rank 0, ");
}

#[test]
fn stopped_or_slow_rank_holds_up_no_other() {
    let setting = Setting::new();
    for laggard in [3, 0] {
        for is_stopped in [true, false] {
            // A stopped leader answers no rank, and is lost.
            if is_stopped && laggard == 0 {
                continue;
            }
            let mut ranks = setting.group(4);
            for (rank, it) in ranks.iter_mut().enumerate() {
                let hold = if rank == laggard { " hold=2" } else { "" };
                it.tell(&format!("load {LITTLE}{hold}"));
            }
            assert_eq!(ranks[laggard].answer(), "holds");
            if is_stopped {
                ranks[laggard].signal(Signal::STOP);
            }
            for rank in (0..4).filter(|rank| *rank != laggard) {
                assert_eq!(reread(&ranks[rank].answer()), 0, "{rank}");
            }
            if is_stopped {
                ranks[laggard].signal(Signal::CONT);
            }
            ranks[laggard].tell("go");
            let bytes = reread(&ranks[laggard].answer());
            assert!(bytes > 20 * MIB as u64, "{bytes}");
        }
    }
}

#[test]
fn stopped_leader_goes_on() {
    let setting = Setting::new();
    let mut ranks = setting.group(4);
    tell(&mut ranks, &format!("load {LITTLE} hold=2"));
    assert_answers(&ranks, "holds");
    ranks[0].signal(Signal::STOP);
    tell(&mut ranks, "go");
    ranks[0].signal(Signal::CONT);
    assert_complete(&ranks);
}

#[test]
fn leader_that_stays_stopped_is_made_up_for() {
    let setting = Setting::new();
    let mut ranks = setting.group(4);
    tell(
        &mut ranks,
        &format!("load {LITTLE} hold=2 on_peer_loss=read"),
    );
    assert_answers(&ranks, "holds");
    ranks[0].signal(Signal::STOP);
    tell(&mut ranks[1..], "go");
    assert_complete(&ranks[1..]);
}

#[test]
fn leader_that_drops_its_stream_serves_the_others() {
    let setting = Setting::new();
    for end in ["drop=1", "drop=0"] {
        let mut ranks = setting.group(4);
        ranks[0].tell(&format!("load {LITTLE} {end}"));
        tell(&mut ranks[1..], &format!("load {LITTLE} hold=1"));
        assert_eq!(ranks[0].answer(), "dropped");
        assert_answers(&ranks[1..], "holds");
        ranks[0].tell("finish");
        tell(&mut ranks[1..], "go");
        assert_complete(&ranks[1..]);
        assert_eq!(ranks[0].answer(), "true");
    }
}

#[test]
fn rank_whose_time_is_over_leaves_the_others() {
    let setting = Setting::new();
    for late in [3, 0] {
        let mut ranks = setting.group(4);
        for (rank, it) in ranks.iter_mut().enumerate() {
            let late = if rank == late {
                " timeout=1s hold=2"
            } else {
                ""
            };
            it.tell(&format!("load {LITTLE} join_timeout=60s{late}"));
        }
        let first = ranks[late].answer();
        for rank in (0..4).filter(|rank| *rank != late) {
            assert!(ranks[rank].answer().starts_with("complete "));
        }
        if first == "holds" {
            // On a busy machine the time may be over before.
            ranks[late].tell("go");
            let last = ranks[late].answer();
            let may = ["timed_out ", "complete "];
            assert!(may.iter().any(|may| last.starts_with(may)), "{last}");
        }
    }
}

#[test]
fn refused_memory_is_a_reason_or_an_error() {
    let setting = Setting::new();
    let refusals = ["refuse-memfd", "refuse-seals"];
    for (refusal, refused) in refusals.into_iter().flat_map(|it| [(it, 3), (it, 0)]) {
        let mut ranks = setting.group(4);
        assert_eq!(ranks[refused].ask(refusal), "refused");
        tell(&mut ranks, "load join_timeout=100s");
        for (rank, answer) in answers(&ranks).iter().enumerate() {
            assert!(answer.starts_with("complete 0 "), "{rank}: {answer}");
            if rank == refused {
                assert!(answer.contains(" none ") && answer.len() > 20, "{answer}");
            }
        }
    }
}

#[test]
fn few_descriptors_of_the_leader_are_enough() {
    let setting = Setting::new();
    let mut ranks = setting.group(2);
    ranks[0].tell("descriptors 96");
    assert_eq!(ranks[0].answer(), "limited");
    ranks[0].tell("load");
    ranks[1].tell("load hold=1");
    assert_eq!(ranks[1].answer(), "holds");
    ranks[1].tell("go");
    assert_complete(&ranks);
}

/// Like [`LITTLE`], and the leader waits for ranks that are slow.
const LITTLE_AND_PATIENT: &str = "memory_limit=32MiB verify=require join_timeout=100s";

#[test]
fn failure_of_leader_without_descriptors_reaches_other_ranks() {
    let setting = Setting::new();
    write_manifest(&setting.model());
    let mut ranks = setting.group(2);
    ranks[0].tell(&format!("load {LITTLE_AND_PATIENT} full=2"));
    ranks[1].tell(&format!("load {LITTLE_AND_PATIENT}"));
    let found = answers(&ranks);
    assert!(found[0].starts_with("out_of_memory "), "{found:?}");
    let told = "out_of_memory [0] rank 0: cannot create ";
    assert!(found[1].starts_with(told), "{found:?}");
}

#[test]
fn rank_without_descriptors_fails_alone() {
    let setting = Setting::new();
    write_manifest(&setting.model());
    let mut ranks = setting.group(2);
    ranks[0].tell(&format!("load {LITTLE_AND_PATIENT}"));
    ranks[1].tell(&format!("load {LITTLE_AND_PATIENT} full=0"));
    let found = answers(&ranks);
    assert!(found[0].starts_with("complete 0 "), "{found:?}");
    assert!(found[1].starts_with("out_of_memory [] "), "{found:?}");
}

#[test]
fn groups_load_again_and_beside_each_other() {
    let setting = Setting::new();
    let mut ranks = setting.group(2);
    let beside = setting.folder.path().join("beside.sock");
    let mut others = group(&beside, 8, &setting.model(), &setting.model());
    for _ in 0..3 {
        tell(&mut ranks, "load");
        tell(&mut others, "load");
        assert_complete(&ranks);
        assert_complete(&others);
    }
    // A dead run leaves its socket behind.
    ranks[0].signal(Signal::KILL);
    assert_eq!(ranks[0].answer(), "gone");
    let mut again = setting.group(2);
    tell(&mut again, "load fork=3");
    assert_complete(&again);
}

#[test]
fn loads_leave_nothing() {
    let folder = folder();
    let path = folder.path().join("model");
    write(&path.join("a.safetensors"), &mixed("a", 3, 12, 20_000));
    let mut ranks = group(&folder.path().join("g.sock"), 2, &path, &path);
    let loads = number("TLOAD_LOADS").unwrap_or(200);
    tell(&mut ranks, &format!("repeat {loads}"));
    assert_complete(&ranks);
}

/// Returns the number that a variable sets.
fn number(variable: &str) -> Option<u64> {
    requirement::variable(variable)?.parse().ok()
}

/// Kills or stops a random rank at a random moment while it joins, while bytes are read, or while
/// it keeps tensors and takes no more: every other rank completes, or fails for the loss of its
/// leader. `TLOAD_DEATHS` sets how many.
#[test]
fn deaths_at_random_moments_hang_no_rank() {
    let rounds = number("TLOAD_DEATHS").unwrap_or(50);
    let seed = number("TLOAD_SEED").unwrap_or(18);
    let setting = Setting::new();
    for round in 0..rounds {
        let mut rng = Rng::new(seed * 1_000_003 + round);
        let size = rng.pick(&[2, 2, 4, 4, 8]);
        let victim = rng.index(size);
        let signal = rng.pick(&[Signal::KILL, Signal::STOP]);
        let phase = rng.pick(&["join", "read", "delivery"]);
        let policy = rng.pick(&["error", "read"]);
        let limit = rng.pick(&["memory_limit=64MiB", "memory_limit=1GiB"]);
        let about =
            format!("round {round}: {signal:?} of {victim} in {size}, {phase}, {policy}, {limit}");
        let mut ranks = setting.group(size);
        let load = format!("load {limit} on_peer_loss={policy} join_timeout=60s");
        for (rank, it) in ranks.iter_mut().enumerate() {
            let held = rng.index(40);
            if phase == "delivery" && rank == victim {
                it.tell(&format!("{load} hold={held}"));
            } else {
                it.tell(&load);
            }
        }
        match phase {
            "join" => wait_for_a_moment(&mut rng, Duration::from_millis(40)),
            "read" => wait_for_a_moment(&mut rng, Duration::from_millis(400)),
            _ => assert_eq!(ranks[victim].answer(), "holds", "{about}"),
        }
        ranks[victim].signal(signal);
        if signal == Signal::STOP {
            if victim > 0 {
                // No sooner than the others are done, unless it is needed to join.
                wait_for_a_moment(&mut rng, Duration::from_millis(1500));
            }
            ranks[victim].signal(Signal::CONT);
        }
        if phase == "delivery" {
            ranks[victim].tell("go");
        }
        let is_killed = signal == Signal::KILL;
        for (rank, answer) in answers(&ranks).iter().enumerate() {
            let is_right = match answer.split(' ').next() {
                Some("complete") => true,
                Some("gone") => is_killed && rank == victim,
                // Before the ranks have agreed, or the leader.
                Some("peer") => {
                    let may_read = policy == "read" && answer.contains("reads for this one");
                    is_killed && !may_read && answer.contains(&format!("[{victim}]"))
                }
                _ => false,
            };
            assert!(is_right, "{about}: {rank}: {answer}");
        }
    }
}
