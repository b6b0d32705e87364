//! A rank that is a process: started by a test, it obeys the lines of its input.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    reason = "a rank answers its test, and panics on request"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use tload::testing::fixtures::Rng;
use tload::{Error, Group, Loader, LocalGroup, Options, Tensor};

use crate::files::{location, read};

/// Socket, rank, size, checkpoint and its files of a process that is a rank.
const MARK: &str = "TLOAD_TEST_LOADING_RANK";

/// Longer than any step here takes; only a failure waits so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// Beginning of the lines that a rank answers with.
const ANSWER: &str = "rank: ";

/// Not a test: the processes that [`Rank::start`] starts run this function.
#[test]
fn serves() {
    let Some(words) = std::env::var_os(MARK) else {
        return;
    };
    let words = words.into_string().expect("UTF-8");
    let words: Vec<_> = words.split('\n').collect();
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let group = LocalGroup::join(
        Path::new(words[0]),
        number(words[1]),
        number(words[2]),
        PATIENCE,
    );
    let served = Served {
        group: Arc::new(group.expect("joins")),
        checkpoint: words[3].to_owned(),
        files: files(Path::new(words[4])),
    };
    answer("joined");
    let mut lines = std::io::stdin().lines();
    while let Some(line) = lines.next() {
        let line = line.expect("UTF-8");
        let (command, words) = line.split_once(' ').unwrap_or((&line, ""));
        let mut wait = || lines.next().expect("go").expect("UTF-8");
        match command {
            "load" => answer(&served.load(words, &mut wait)),
            "repeat" => answer(&served.repeat(number(words))),
            "finish" => answer(&tload::finish_serving(PATIENCE).to_string()),
            "descriptors" => {
                let limit = Some(words.parse().expect("a number"));
                let limit = Rlimit {
                    current: limit,
                    maximum: limit,
                };
                setrlimit(Resource::Nofile, limit).expect("lower");
                answer("limited");
            }
            "refuse-memfd" => {
                super::refuse_memfd();
                answer("refused");
            }
            _ => panic!("{line}"),
        }
    }
}

fn answer(text: &str) {
    println!("\n{ANSWER}{text}");
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
    /// `drop=3` drops the stream then, `panic=3` panics, `fork=3` forks a child that ends at once, `child=3` one that stays.
    fn load(&self, words: &str, wait: &mut impl FnMut() -> String) -> String {
        let mut options = Options::default();
        let mut steps = Vec::new();
        for word in words.split_whitespace() {
            let (name, value) = word.split_once('=').expect("name=value");
            if let "hold" | "drop" | "panic" | "fork" | "child" = name {
                steps.push((name, value.parse::<usize>().expect("a number")));
            } else {
                options.set(name, value).expect("valid");
            }
        }
        let described = |error: Error| {
            let ranks = error.ranks();
            format!("{} {ranks:?} {}", error.kind().name(), error.message())
        };
        let opened = Loader::open(&location(Path::new(&self.checkpoint)));
        let stream = opened.map(|it| it.options(options).group(Arc::clone(&self.group)).stream());
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
            assert!(tensor.bytes() == wanted.data(), "{}: bytes", tensor.name());
        }
    }

    /// Loads so many times and returns whether that leaves anything behind.
    fn repeat(&self, times: usize) -> String {
        let load = || self.load("", &mut || unreachable!("no step"));
        // The first load opens what the process keeps.
        let mut last = load();
        assert!(tload::finish_serving(PATIENCE));
        let before = Leftovers::of_this_process();
        for _ in 0..times {
            last = load();
        }
        assert!(tload::finish_serving(PATIENCE));
        let deadline = Instant::now() + PATIENCE / 2;
        // The kernel removes a thread shortly after it was joined.
        // The first load may not have been gone entirely.
        while !Leftovers::of_this_process().are_within(&before) && Instant::now() < deadline {
            std::thread::yield_now();
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
    threads: usize,
    memfds: usize,
}

impl Leftovers {
    fn of_this_process() -> Self {
        let entries = |folder| std::fs::read_dir(folder).expect("procfs").count();
        let maps = String::from_utf8(read(Path::new("/proc/self/maps"))).expect("text");
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            memfds: maps.matches("memfd:tload").count(),
        }
    }

    fn are_within(&self, others: &Self) -> bool {
        self.descriptors <= others.descriptors
            && self.threads <= others.threads
            && self.memfds <= others.memfds
    }
}

/// A process that is a rank, killed at the end of the test.
pub(super) struct Rank {
    process: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Rank {
    fn start(socket: &Path, rank: usize, size: usize, (checkpoint, files): (&Path, &Path)) -> Self {
        let this = std::env::current_exe().expect("a process knows its executable");
        let name = "ranks_of_processes::process::serves";
        let [socket, checkpoint, files] = [socket, checkpoint, files].map(Path::display);
        let mut process = Command::new(this)
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(
                MARK,
                format!("{socket}\n{rank}\n{size}\n{checkpoint}\n{files}"),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let (sender, answers) = channel();
        let output = process.stdout.take().expect("piped");
        std::thread::spawn(move || pass_on(output, &sender));
        Self {
            input: process.stdin.take(),
            answers,
            process,
        }
    }

    /// Starts a group whose ranks load `checkpoint`, the `files` of which are in another folder.
    pub(super) fn group(socket: &Path, size: usize, checkpoint: &Path, files: &Path) -> Vec<Self> {
        Self::group_of(socket, &vec![checkpoint; size], files)
    }

    /// Starts a group with a checkpoint for each rank.
    pub(super) fn group_of(socket: &Path, checkpoints: &[&Path], files: &Path) -> Vec<Self> {
        let size = checkpoints.len();
        let start = |(rank, path): (usize, &&Path)| Self::start(socket, rank, size, (path, files));
        let ranks: Vec<_> = checkpoints.iter().enumerate().map(start).collect();
        for rank in &ranks {
            assert_eq!(rank.answer(), "joined");
        }
        ranks
    }

    pub(super) fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("until the end");
        // A process that was killed reads nothing.
        let _ = writeln!(input, "{line}");
    }

    /// Returns the next answer, `"gone"` if the process has ended.
    pub(super) fn answer(&self) -> String {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Disconnected) => "gone".to_owned(),
            Err(RecvTimeoutError::Timeout) => panic!("rank {:?} hangs", self.process.id()),
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("not waited for yet");
    }
}

fn pass_on(output: ChildStdout, sender: &std::sync::mpsc::Sender<String>) {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let answers = lines.by_ref();
    for line in answers {
        if let Some(answer) = line.strip_prefix(ANSWER) {
            // The test may have ended.
            let _ = sender.send(answer.to_owned());
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until a random moment, `most` later at most: this thread has nothing to wait for.
pub(super) fn wait_for_a_moment(rng: &mut Rng, most: Duration) {
    let micros = u64::try_from(most.as_micros()).expect("short");
    let (_sender, never) = channel::<()>();
    let waited = never.recv_timeout(Duration::from_micros(rng.below(micros)));
    assert_eq!(waited, Err(RecvTimeoutError::Timeout));
}
