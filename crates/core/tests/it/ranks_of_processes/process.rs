//! A rank that is a process: started by a test, it obeys the lines of its input.

#![expect(clippy::panic, reason = "a rank panics on request")]

use std::ops::Range;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use tload::ranks::give_up;
use tload::{Error, Group, Indices, LoadOptions, Loader, LocalGroup, Slice, Tensor};
use tload_testing::fixtures::Rng;

use crate::child::{self, Child, PATIENCE, answer};
use crate::files::{location, read};
use crate::seccomp::{install, instruction};

/// Not a test: the processes that [`group`] starts run this function.
#[test]
fn serves() {
    let Some(words) = child::words() else {
        return;
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let group = LocalGroup::join(
        Path::new(&words[0]),
        number(&words[1]),
        number(&words[2]),
        PATIENCE,
    );
    let served = Served {
        group: Arc::new(group.expect("joins")),
        checkpoint: words[3].clone(),
        files: files(Path::new(&words[4])),
    };
    answer("joined");
    let mut lines = child::lines();
    while let Some(line) = lines.next() {
        let (command, words) = line.split_once(' ').unwrap_or((&line, ""));
        let mut wait = || lines.next().expect("go");
        match command {
            "load" => answer(&served.load(words, &mut wait)),
            "repeat" => answer(&served.repeat(number(words))),
            "finish" => answer(&tload::ranks::finish_serving(PATIENCE).to_string()),
            "descriptors" => {
                limit_descriptors(words.parse().expect("a number"));
                answer("limited");
            }
            "refuse-memfd" => {
                crate::seccomp::refuse(libc::SYS_memfd_create, libc::EPERM);
                answer("refused");
            }
            "refuse-seals" => {
                refuse_seals();
                answer("refused");
            }
            _ => unreachable!("{line}"),
        }
    }
}

/// Refuses seals, as kernels before 5.1 do, which do not know all of them.
fn refuse_seals() {
    let add_seals = u32::try_from(libc::F_ADD_SEALS).expect("positive");
    // Load the lower half of the second argument; allow the call if it is another one.
    let lower = if cfg!(target_endian = "little") {
        24
    } else {
        28
    };
    let only = [
        instruction(0x20, 0, 0, lower),
        instruction(0x15, 0, 3, add_seals),
    ];
    install(&only, libc::SYS_fcntl, libc::EINVAL);
}

fn limit_descriptors(limit: u64) {
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    setrlimit(Resource::Nofile, limit).expect("lower");
}

/// Leaves no descriptor free until the process ends.
fn use_up_descriptors() {
    // The kernel lets no process poll more of them than its limit: a rank needs a few. Those below
    // are open as long as the load, and others are not reused.
    limit_descriptors(8);
    while let Ok(copy) = rustix::io::dup(std::io::stdin()) {
        let _ = copy.into_raw_fd();
    }
}

fn files(folder: &Path) -> Vec<Vec<u8>> {
    let listed = std::fs::read_dir(folder).expect("a folder of this test");
    let paths = listed.map(|file| file.expect("listed").path());
    let is_weights = |path: &std::path::PathBuf| path.extension() == Some("safetensors".as_ref());
    paths.filter(is_weights).map(|path| read(&path)).collect()
}

struct Served {
    group: Arc<dyn Group>,
    checkpoint: String,
    files: Vec<Vec<u8>>,
}

impl Served {
    /// Loads with options, `name=value`, and steps: `hold=3` waits for a line after three tensors,
    /// `drop=3` drops the stream then, `panic=3` panics, `fork=3` forks a child that ends at once,
    /// `child=3` one that stays, and from `full=3` on the process can open no descriptor. With
    /// `columns=yes`, it loads the rank's columns of each matrix.
    fn load(&self, words: &str, wait: &mut impl FnMut() -> String) -> String {
        let mut options = LoadOptions::default();
        let mut steps = Vec::new();
        let mut has_columns = false;
        for word in words.split_whitespace() {
            let (name, value) = word.split_once('=').expect("name=value");
            if name == "columns" {
                has_columns = true;
                continue;
            }
            if let "hold" | "drop" | "panic" | "fork" | "child" | "full" = name {
                steps.push((name, value.parse::<usize>().expect("a number")));
            } else {
                options.set(name, value).expect("valid");
            }
        }
        let described = |error: Error| {
            let ranks = error.ranks();
            format!("{} {ranks:?} {}", error.kind().name(), error.message())
        };
        let opened = Loader::open(location(Path::new(&self.checkpoint)))
            .inspect_err(|error| give_up(&*self.group, error, &options));
        let stream = opened.map(|it| {
            let slices = if has_columns {
                self.columns(&it)
            } else {
                Vec::new()
            };
            let loader = it.slices(slices).options(options);
            loader.group(Arc::clone(&self.group)).stream()
        });
        let mut stream = match stream.and_then(|stream| stream) {
            Ok(stream) => stream,
            Err(error) => return described(error),
        };
        let mut tensors = Vec::new();
        loop {
            for (step, _) in steps.iter().filter(|(_, at)| *at == tensors.len()) {
                match *step {
                    "hold" => {
                        answer("holds");
                        assert_eq!(wait(), "go");
                    }
                    "drop" => {
                        drop(stream);
                        self.check(&tensors);
                        return "dropped".to_owned();
                    }
                    "fork" => super::fork_and_end(),
                    "child" => super::fork_and_stay(),
                    "full" => use_up_descriptors(),
                    _ => panic!("as requested"),
                }
            }
            match stream.next() {
                Some(Ok(tensor)) => tensors.push(tensor),
                Some(Err(error)) => {
                    self.check(&tensors);
                    return described(error);
                }
                None => break,
            }
        }
        self.check(&tensors);
        assert_eq!(tensors.len(), self.tensors(), "complete");
        let report = stream.report().group.expect("a load of a group");
        let share = &report.share;
        let reason = report.reason.unwrap_or_default();
        format!("complete {} {share} {reason}", report.reread_bytes)
    }

    /// Returns the rank's share of the columns of each matrix.
    fn columns(&self, loader: &Loader) -> Vec<(String, Slice)> {
        let tensors = loader.checkpoint().tensors().iter();
        let matrices = tensors.filter(|it| it.shape().len() == 2);
        let slice = |it: &tload::TensorInfo| {
            let columns = self.share(it.shape()[1]);
            let slice = Slice::new([Indices::from(0..it.shape()[0]), columns.into()]);
            (it.name().to_owned(), slice)
        };
        matrices.map(slice).collect()
    }

    fn share(&self, columns: usize) -> Range<usize> {
        let (rank, share) = (self.group.rank(), columns / self.group.size());
        rank * share..(rank + 1) * share
    }

    fn tensors(&self) -> usize {
        let tensors = |file| {
            safetensors::SafeTensors::deserialize(file)
                .expect("valid")
                .len()
        };
        self.files.iter().map(|file| tensors(file)).sum()
    }

    /// Asserts that the bytes of the tensors are those of the files.
    fn check(&self, tensors: &[Tensor]) {
        let parse = |file| safetensors::SafeTensors::deserialize(file).expect("valid");
        let files: Vec<_> = self.files.iter().map(|file| parse(file)).collect();
        for tensor in tensors {
            let mut found = files
                .iter()
                .filter_map(|file| file.tensor(tensor.name()).ok());
            let wanted = found.next().expect("in a file");
            if tensor.shape() == wanted.shape() {
                assert!(tensor.bytes() == wanted.data(), "{}: bytes", tensor.name());
                continue;
            }
            let element = wanted.dtype().bitsize() / 8;
            let columns = self.share(wanted.shape()[1]);
            let rows = wanted.data().chunks(wanted.shape()[1] * element);
            let columns = columns.start * element..columns.end * element;
            let columns: Vec<_> = rows.map(|row| &row[columns.clone()]).collect();
            let name = tensor.name();
            assert!(tensor.bytes() == columns.concat(), "{name}: bytes");
        }
    }

    /// Loads so many times and returns whether that leaves anything behind.
    fn repeat(&self, times: usize) -> String {
        let load = || self.load("", &mut || unreachable!("no step"));
        // The first load opens what the process keeps.
        let mut last = load();
        assert!(tload::ranks::finish_serving(PATIENCE));
        let before = Leftovers::of_this_process();
        for _ in 0..times {
            last = load();
        }
        assert!(tload::ranks::finish_serving(PATIENCE));
        let deadline = Instant::now() + PATIENCE / 2;
        // The kernel removes a thread shortly after it was joined.
        // The first load may not have been gone entirely.
        while !Leftovers::of_this_process().are_within(&before) && Instant::now() < deadline {
            tload_testbed::pause_between_looks();
        }
        let after = Leftovers::of_this_process();
        assert!(after.are_within(&before), "{after:?}, {before:?}");
        last
    }
}

/// Open resources of a process.
#[derive(Debug)]
struct Leftovers {
    descriptors: usize,
    sockets: usize,
    memfds: usize,
    threads: usize,
    mapped_memfds: usize,
}

impl Leftovers {
    fn of_this_process() -> Self {
        let entries = |folder| std::fs::read_dir(folder).expect("procfs");
        let descriptors: Vec<_> = entries("/proc/self/fd")
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .collect();
        let named = |part: &str| {
            let names = descriptors.iter();
            names
                .filter(|it| it.to_string_lossy().contains(part))
                .count()
        };
        let maps = String::from_utf8(read(Path::new("/proc/self/maps"))).expect("text");
        Self {
            descriptors: descriptors.len(),
            sockets: named("socket:"),
            memfds: named("memfd:"),
            threads: entries("/proc/self/task").count(),
            mapped_memfds: maps.matches("memfd:tload").count(),
        }
    }

    fn are_within(&self, others: &Self) -> bool {
        self.descriptors <= others.descriptors
            && self.sockets <= others.sockets
            && self.memfds <= others.memfds
            && self.threads <= others.threads
            && self.mapped_memfds <= others.mapped_memfds
    }
}

/// Starts a group whose ranks load `checkpoint`, the `files` of which are in another folder.
pub(super) fn group(socket: &Path, size: usize, checkpoint: &Path, files: &Path) -> Vec<Child> {
    group_of(socket, &vec![checkpoint; size], files)
}

/// Starts a group with a checkpoint for each rank.
pub(super) fn group_of(socket: &Path, checkpoints: &[&Path], files: &Path) -> Vec<Child> {
    let size = checkpoints.len().to_string();
    let [socket, files] = [socket, files].map(|path| path.display().to_string());
    let start = |(rank, checkpoint): (usize, &&Path)| {
        let (rank, checkpoint) = (rank.to_string(), checkpoint.display().to_string());
        let words = [&*socket, &rank, &size, &checkpoint, &files];
        Child::start("ranks_of_processes::process::serves", &words)
    };
    let ranks: Vec<_> = checkpoints.iter().enumerate().map(start).collect();
    for rank in &ranks {
        assert_eq!(rank.answer(), "joined");
    }
    ranks
}

/// Waits until a random moment, `most` later at most: this thread has nothing to wait for.
pub(super) fn wait_for_a_moment(rng: &mut Rng, most: Duration) {
    let micros = u64::try_from(most.as_micros()).expect("short");
    let (_sender, never) = channel::<()>();
    // Any stage may be the one that follows.
    let waited = never.recv_timeout(Duration::from_micros(rng.below(micros)));
    assert_eq!(waited, Err(RecvTimeoutError::Timeout));
}
