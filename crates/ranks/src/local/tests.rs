//! Threads as ranks of local groups. `tests/it/ranks.rs` has processes.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::{ScopedJoinHandle, scope};

use tempfile::TempDir;

use super::*;

/// Longer than any step here takes; only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(120);

struct Meeting {
    folder: TempDir,
}

impl Meeting {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("g.sock")
    }

    fn join(&self, rank: usize, size: usize) -> Result<LocalGroup> {
        LocalGroup::join(&self.path(), rank, size, PATIENCE)
    }

    /// Joins as several ranks at once, one thread for each pair of rank and size.
    fn join_as(&self, ranks: &[(usize, usize)]) -> Vec<Result<LocalGroup>> {
        scope(|scope| {
            let join = |&(rank, size)| scope.spawn(move || self.join(rank, size));
            let threads: Vec<_> = ranks.iter().map(join).collect();
            let joined = threads.into_iter().map(ScopedJoinHandle::join);
            joined.map(|joined| joined.expect("no panic")).collect()
        })
    }

    fn group(&self, size: usize) -> Vec<LocalGroup> {
        let ranks: Vec<_> = (0..size).map(|rank| (rank, size)).collect();
        let joined = self.join_as(&ranks).into_iter();
        joined.map(|group| group.expect("joins")).collect()
    }

    /// Waits until rank 0 listens.
    fn until_listening(&self) {
        while UnixStream::connect(self.path()).is_err() {
            std::thread::yield_now();
        }
    }
}

fn later() -> Instant {
    Instant::now() + PATIENCE
}

/// Exchanges a message of each rank at once.
fn exchange(
    groups: &[LocalGroup],
    message: impl Fn(usize) -> Vec<u8> + Sync,
) -> Vec<Result<Vec<Vec<u8>>>> {
    let message = &message;
    scope(|scope| {
        let exchange = |group: &'_ LocalGroup| group.exchange(&message(group.rank()), later());
        let threads: Vec<_> = groups
            .iter()
            .map(|group| scope.spawn(move || exchange(group)))
            .collect();
        let ended = threads.into_iter().map(ScopedJoinHandle::join);
        ended.map(|ended| ended.expect("no panic")).collect()
    })
}

fn assert_exchanges(groups: &[LocalGroup], message: impl Fn(usize) -> Vec<u8> + Sync) {
    let all: Vec<_> = (0..groups.len()).map(&message).collect();
    for received in exchange(groups, message) {
        assert!(received.expect("complete") == all);
    }
}

#[track_caller]
fn assert_peer<T: std::fmt::Debug>(result: Result<T>, ranks: &[usize], text: &str) -> Error {
    let error = result.expect_err("fails");
    assert_eq!(error.kind(), ErrorKind::Peer, "{error:?}");
    assert_eq!(error.ranks(), ranks, "{error:?}");
    assert!(error.message().contains(text), "{error:?}");
    assert!(
        error.hint().is_some() && error.location().is_some(),
        "{error:?}"
    );
    error
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, text: &str) {
    let error = result.expect_err("is refused");
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.message().contains(text), "{error:?}");
    assert!(error.location().is_some(), "{error:?}");
}

#[test]
fn exchanges_return_messages_of_all_ranks() {
    for size in [2, 4, 8] {
        let meeting = Meeting::new();
        let groups = meeting.group(size);
        let mode = std::fs::metadata(meeting.path())
            .expect("exists")
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        for (rank, group) in groups.iter().enumerate() {
            assert_eq!((group.rank(), group.size()), (rank, size));
        }
        assert_exchanges(&groups, |rank| format!("first {rank}").into_bytes());
        assert_exchanges(&groups, |_| Vec::new());
        let byte = |rank| u8::try_from(rank).expect("few ranks");
        assert_exchanges(&groups, |rank| vec![byte(rank); MESSAGE_BYTES_MAX]);
        drop(groups);
        assert!(!meeting.path().exists(), "removed with rank 0");
    }
}

#[test]
fn group_of_one_needs_no_socket() {
    let path = Path::new("/nowhere/at/all");
    let group = LocalGroup::join(path, 0, 1, Duration::ZERO).expect("joins");
    assert_eq!(
        group.exchange(b"a", Instant::now()).expect("complete"),
        [b"a"]
    );
    let message = vec![0; MESSAGE_BYTES_MAX + 1];
    let result = group.exchange(&message, later());
    assert_refused(result, ErrorKind::InvalidRequest, "65537 bytes");
}

#[test]
fn long_message_is_refused_and_group_goes_on() {
    let meeting = Meeting::new();
    let groups = meeting.group(2);
    let message = vec![0; MESSAGE_BYTES_MAX + 1];
    let result = groups[1].exchange(&message, later());
    assert_refused(result, ErrorKind::InvalidRequest, "65537 bytes");
    assert_exchanges(&groups, |_| b"a".to_vec());
}

#[test]
fn impossible_ranks_are_refused() {
    let join = |rank, size| LocalGroup::join(Path::new("a"), rank, size, PATIENCE);
    let kind = ErrorKind::InvalidRequest;
    assert_refused(join(0, 0), kind, "a group of 0 ranks");
    assert_refused(join(8, 8), kind, "no rank 8 in a group of 8");
    assert_refused(join(0, usize::MAX), kind, "1024 at most");
}

#[test]
fn all_ranks_that_wait_learn_which_have_not_joined() {
    // A deadline that passes before rank 0's message arrives names rank 0 too.
    let deadlines = std::iter::successors(Some(Duration::from_millis(1)), |last| Some(*last * 8));
    for deadline in deadlines.take_while(|deadline| *deadline < PATIENCE) {
        let meeting = Meeting::new();
        let errors = scope(|scope| {
            let rank_0 = scope.spawn(|| meeting.join(0, 4));
            meeting.until_listening();
            let rank_3 = LocalGroup::join(&meeting.path(), 3, 4, deadline);
            [rank_3, rank_0.join().expect("no panic")].map(|joined| joined.expect_err("fails"))
        });
        assert!(!meeting.path().exists(), "removed with the failed group");
        if errors[0].ranks() != [1, 2] {
            continue;
        }
        assert_eq!(errors[0].location(), meeting.path().to_str());
        for error in errors {
            let text = "ranks 1 and 2 of 4 did not join";
            assert_peer(Err::<(), _>(error), &[1, 2], text);
        }
        return;
    }
    panic!("rank 0 never arrived in time");
}

#[test]
fn missing_rank_0_is_named_with_its_path() {
    let meeting = Meeting::new();
    let result = LocalGroup::join(&meeting.path(), 1, 2, Duration::from_millis(1));
    let error = assert_peer(result, &[0], "rank 0 did not listen");
    assert_eq!(error.location(), meeting.path().to_str());
}

#[test]
fn rank_that_misses_exchange_is_named_and_fails_too() {
    let meeting = Meeting::new();
    let groups = meeting.group(3);
    for (rank, deadline) in [
        (1, Instant::now()),
        (0, later()),
        (2, later()),
        (1, later()),
    ] {
        let text = "ranks 0 and 2 of 3 did not take part";
        assert_peer(groups[rank].exchange(b"", deadline), &[0, 2], text);
    }
}

#[test]
fn rank_that_leaves_is_named_at_once() {
    let meeting = Meeting::new();
    let mut groups = meeting.group(4);
    assert_exchanges(&groups, |_| Vec::new());
    drop(groups.remove(2));
    for result in exchange(&groups, |_| Vec::new()) {
        assert_peer(result, &[2], "rank 2 has left");
    }
    // While others wait.
    let meeting = Meeting::new();
    let mut groups = meeting.group(3);
    let rank_1 = groups.remove(1);
    scope(|scope| {
        let wait = |group: &'_ LocalGroup| group.exchange(b"", later()).expect_err("fails");
        let threads: Vec<_> = groups
            .iter()
            .map(|group| scope.spawn(move || wait(group)))
            .collect();
        drop(rank_1);
        for thread in threads {
            assert_peer::<()>(Err(thread.join().expect("no panic")), &[1], "rank 1");
        }
    });
    // Rank 0.
    let meeting = Meeting::new();
    let mut groups = meeting.group(3);
    drop(groups.remove(0));
    for result in exchange(&groups, |_| Vec::new()) {
        assert_peer(result, &[0], "rank 0 has left");
    }
}

#[test]
fn two_processes_with_one_rank_fail_the_group() {
    let meeting = Meeting::new();
    for joined in meeting.join_as(&[(0, 3), (1, 3), (1, 3)]) {
        assert_peer(joined, &[1], "two processes joined the group as rank 1");
    }
}

#[test]
fn different_sizes_fail_the_group() {
    let meeting = Meeting::new();
    for joined in meeting.join_as(&[(0, 3), (1, 2)]) {
        let text = "rank 1 has group size 2, rank 0 has 3";
        let error = assert_peer(joined, &[1], text);
        let comparison = error.comparison().expect("has both values");
        assert_eq!((&*comparison.expected, &*comparison.found), ("3", "2"));
    }
}

#[test]
fn complete_group_turns_others_away_and_goes_on() {
    let meeting = Meeting::new();
    let groups = meeting.group(2);
    let text = "another process is already rank 0";
    assert_peer(meeting.join(0, 2), &[0], text);
    assert_peer(meeting.join(1, 2), &[1], "two processes joined");
    assert_peer(meeting.join(1, 5), &[1], "rank 1 has group size 5");
    assert_exchanges(&groups, |_| b"a".to_vec());
    assert!(meeting.path().exists());
}

#[test]
fn strangers_do_not_disturb() {
    let meeting = Meeting::new();
    scope(|scope| {
        let rank_0 = scope.spawn(|| meeting.join(0, 2));
        meeting.until_listening();
        let stranger = || UnixStream::connect(meeting.path()).expect("listens");
        let silent = stranger();
        for text in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[2, 0, 0, 0, 99, 1, 1],
            &[1],
        ] {
            // The rest of it may be refused.
            let _ = stranger().write_all(text);
        }
        let rank_1 = meeting.join(1, 2).expect("joins");
        let rank_0 = rank_0.join().expect("no panic").expect("joins");
        assert_exchanges(&[rank_0, rank_1], |_| b"a".to_vec());
        drop(silent);
    });
}

#[test]
fn socket_of_dead_run_is_replaced() {
    let meeting = Meeting::new();
    drop(UnixListener::bind(meeting.path()).expect("a socket"));
    assert!(meeting.path().exists(), "left behind");
    assert_exchanges(&meeting.group(2), |_| b"a".to_vec());
    assert!(!meeting.path().exists());
}

#[test]
fn foreign_files_are_refused_and_kept() {
    let meeting = Meeting::new();
    std::fs::write(meeting.path(), "precious").expect("a file");
    let link = meeting.folder.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).expect("a link");
    let join = |path: &Path, rank| LocalGroup::join(path, rank, 2, PATIENCE);
    let (kind, text) = (ErrorKind::InvalidRequest, "not a socket");
    assert_refused(join(&meeting.path(), 0), kind, text);
    assert_refused(join(&meeting.path(), 1), kind, text);
    assert_refused(join(&link, 0), kind, text);
    assert!(link.is_symlink());
    assert_eq!(std::fs::metadata(meeting.path()).expect("kept").len(), 8);
}

#[test]
fn impossible_paths_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing/g.sock");
    let long = folder.path().join("x".repeat(120));
    for rank in [0, 1] {
        let join = |path: &Path| LocalGroup::join(path, rank, 2, PATIENCE);
        let kind = ErrorKind::InvalidRequest;
        assert_refused(join(&long), kind, "bytes; sockets allow");
        assert_refused(join(Path::new("")), kind, "is empty");
        assert_refused(join(Path::new("a\0b")), kind, "zero byte");
        assert_refused(join(&missing), ErrorKind::NotFound, "does not exist");
    }
}

#[test]
fn replaced_socket_file_is_not_removed() {
    let meeting = Meeting::new();
    let groups = meeting.group(2);
    std::fs::remove_file(meeting.path()).expect("exists");
    std::fs::write(meeting.path(), "another").expect("a file");
    drop(groups);
    assert!(meeting.path().exists());
}

#[test]
fn two_groups_live_side_by_side() {
    let (one, two) = (Meeting::new(), Meeting::new());
    let (first, second) = (one.group(2), two.group(3));
    assert_exchanges(&second, |rank| vec![2; rank]);
    assert_exchanges(&first, |rank| vec![1; rank]);
    drop(first);
    assert_exchanges(&second, |_| b"a".to_vec());
    // The path can be used again.
    assert_exchanges(&one.group(2), |_| b"b".to_vec());
}

#[test]
fn second_thread_waits_for_group_until_its_deadline() {
    let meeting = Meeting::new();
    let groups = meeting.group(2);
    let connection = groups[1].link.as_ref().expect("has one");
    let taken = connection.state.lock().connection.take();
    let result = groups[1].exchange(b"", Instant::now());
    assert_refused(result, ErrorKind::TimedOut, "another thread");
    connection.state.lock().connection = taken;
    assert_exchanges(&groups, |_| b"a".to_vec());
}

/// Processes are told apart only by their number here; `tests/it/ranks.rs` forks.
#[test]
fn group_of_other_process_is_refused() {
    let meeting = Meeting::new();
    let mut groups = meeting.group(2);
    groups[1].process += 1;
    let result = groups[1].exchange(b"", later());
    assert_refused(result, ErrorKind::InvalidRequest, "was forked");
    groups[1].process -= 1;
    assert_exchanges(&groups, |_| b"a".to_vec());
}
