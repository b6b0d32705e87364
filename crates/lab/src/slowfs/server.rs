//! Mounts, answers the kernel, unmounts when told to. The process that calls [`run`] should do nothing else.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{
    Config, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, Request, Session,
};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::commands;
use super::fault;
use super::options::{Options, Setup};
use super::queue::{OpenFile, Queue, Read};
use super::tree::Tree;

/// What is printed once the mount is there.
pub(super) const MOUNTED: &str = "mounted";

/// Why it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// By a signal, or by the end of whoever started this.
    Asked,
    /// Somebody else has unmounted it.
    Unmounted,
}

/// Shows a folder as `setup` says until it is told to stop; prints `mounted`, and at the end what was served.
pub fn run(setup: &Setup) -> Result<(), String> {
    let (stop, stopped) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| format!("cannot watch signals: {error}"))?;
    spawn(&stop, Stop::Asked, move || {
        let _ = signals.forever().next();
    })?;
    let queue =
        Queue::start(&setup.options).map_err(|error| format!("cannot start threads: {error}"))?;
    follow_parent(setup, &stop, &queue)?;
    let session = mount(setup, &queue).map_err(|error| {
        format!(
            "cannot mount at {}: {error} (needs /dev/fuse, and root or fusermount3 of Debian's fuse3)",
            setup.mount_point.display()
        )
    })?;
    spawn(&stop, Stop::Unmounted, move || drop(session.run()))?;
    say(MOUNTED)?;
    if stopped.recv().expect("a sender is held above") == Stop::Asked {
        unmount(&setup.mount_point)?;
    }
    // Whoever wanted to know may be gone.
    let _ = say(&format!("unmounted {}", queue.served()));
    Ok(())
}

pub(super) fn say(line: &str) -> Result<(), String> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|error| format!("cannot print: {error}"))
}

/// Does `work` on a thread of its own; its end stops everything, for `reason`.
fn spawn(
    stop: &Sender<Stop>,
    reason: Stop,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), String> {
    let stop = stop.clone();
    std::thread::Builder::new()
        .spawn(move || {
            work();
            // Nobody listens when it is stopping anyway.
            let _ = stop.send(reason);
        })
        .map(drop)
        .map_err(|error| format!("cannot start a thread: {error}"))
}

/// Does what whoever started this says, and sees to it that this ends when they do, however that ends.
fn follow_parent(setup: &Setup, stop: &Sender<Stop>, queue: &Arc<Queue>) -> Result<(), String> {
    let input = rustix::fs::fstat(io::stdin()).map_or(FileType::Unknown, |stat| {
        FileType::from_raw_mode(stat.st_mode)
    });
    if setup.is_detached {
        Ok(())
    } else if matches!(input, FileType::Fifo | FileType::Socket) {
        let queue = Arc::clone(queue);
        spawn(stop, Stop::Asked, move || {
            let lines = io::stdin().lines().map_while(Result::ok);
            for line in lines.filter(|line| !line.trim().is_empty()) {
                // Whoever wanted to know may be gone; then there are no more lines either.
                let _ = say(&commands::obey(&line, &queue));
            }
        })
    } else {
        // A terminal says nothing of its owner's end, and /dev/null, which shells give to what they start with `&`, has ended.
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
            .map_err(|error| format!("cannot watch the parent: {error}"))
    }
}

fn mount(setup: &Setup, queue: &Arc<Queue>) -> io::Result<Session<Slow>> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::DefaultPermissions,
        MountOption::FSName("slowfs".to_owned()),
    ];
    let tree = Tree::new(&setup.backing.canonicalize()?)?;
    let slow = Slow(Arc::new(Shown {
        tree,
        options: setup.options.clone(),
        queue: Arc::clone(queue),
        files: Mutex::default(),
    }));
    Session::new(slow, &setup.mount_point, &config)
}

/// Takes a mount away, also while files are open: what still wants to read there fails when the process that serves it ends.
///
/// Does not look whether there is one: the process that would have to answer may be this.
pub(super) fn unmount(mount_point: &Path) -> Result<(), String> {
    match rustix::mount::unmount(mount_point, UnmountFlags::DETACH) {
        // Nothing is mounted there.
        Ok(()) | Err(Errno::INVAL) => return Ok(()),
        Err(_) => {}
    }
    // Without rights of our own.
    let output = Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(mount_point)
        .output()
        .map_err(|error| format!("cannot start fusermount3: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// The file system.
#[derive(Debug)]
struct Slow(Arc<Shown>);

/// What is shown, and what of it is open.
#[derive(Debug)]
struct Shown {
    tree: Tree,
    options: Options,
    queue: Arc<Queue>,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    open: HashMap<u64, Arc<OpenFile>>,
    opened: u64,
}

impl Shown {
    fn files<T>(&self, with: impl FnOnce(&mut Files) -> T) -> T {
        with(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A file of this number that somebody has open.
    fn open_one(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.files(|files| {
            let mut open = files.open.values();
            open.find(|file| file.number == number).cloned()
        })
    }

    /// Opens a file by its path, or, where its place was taken, as somebody else has it.
    fn open_file(&self, number: u64) -> io::Result<u64> {
        let path = self.tree.path(number);
        let file = match (path, self.open_one(number)) {
            (Ok(path), _) => OpenOptions::new().read(true).open(path)?,
            (Err(_), Some(open)) => open.file.try_clone()?,
            (Err(error), None) => return Err(error),
        };
        let name = self.tree.name(number, OsStr::new(""));
        Ok(self.files(|files| {
            files.opened += 1;
            let file = OpenFile { file, name, number };
            files.open.insert(files.opened, Arc::new(file));
            files.opened
        }))
    }

    fn attributes(&self, number: u64) -> io::Result<FileAttr> {
        let open = self.open_one(number);
        self.tree
            .attributes(number, open.as_ref().map(|open| &open.file))
    }
}

impl Filesystem for Slow {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |what: &str| io::Error::other(format!("the kernel refuses {what}"));
        if self.0.options.async_dio {
            config
                .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
                .map_err(|_| refused("FUSE_ASYNC_DIO"))?;
        }
        // Several lookups at a time. Old kernels do without.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        config
            .set_max_background(self.0.options.background)
            .map_err(|_| refused("max_background"))?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (shown, name) = (Arc::clone(&self.0), name.to_owned());
        let file = self.0.tree.name(parent.0, &name);
        self.0
            .queue
            .admit(fault::Request::Stat, &file, move |verdict| {
                let found = verdict
                    .and_then(|()| shown.tree.find(parent.0, &name).map_err(fuser::Errno::from));
                match found {
                    Ok(attributes) => reply.entry(&shown.options.ttl, &attributes, Generation(0)),
                    Err(errno) => reply.error(errno),
                }
            });
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let shown = Arc::clone(&self.0);
        let file = self.0.tree.name(ino.0, OsStr::new(""));
        self.0
            .queue
            .admit(fault::Request::Stat, &file, move |verdict| {
                let found =
                    verdict.and_then(|()| shown.attributes(ino.0).map_err(fuser::Errno::from));
                match found {
                    Ok(attributes) => reply.attr(&shown.options.ttl, &attributes),
                    Err(errno) => reply.error(errno),
                }
            });
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = if self.0.options.direct {
            FopenFlags::FOPEN_DIRECT_IO
        } else {
            FopenFlags::empty()
        };
        let shown = Arc::clone(&self.0);
        let file = self.0.tree.name(ino.0, OsStr::new(""));
        self.0
            .queue
            .admit(fault::Request::Open, &file, move |verdict| {
                let opened =
                    verdict.and_then(|()| shown.open_file(ino.0).map_err(fuser::Errno::from));
                match opened {
                    Ok(number) => reply.opened(FileHandle(number), flags),
                    Err(errno) => reply.error(errno),
                }
            });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.0.files(|files| files.open.get(&fh.0).cloned()) else {
            return reply.error(fuser::Errno::EBADF);
        };
        self.0.queue.push(Read {
            file,
            offset,
            len: usize::try_from(size).expect("at least 32 bits"),
            reply,
        });
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.0.files(|files| files.open.remove(&fh.0));
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.0.tree.list(ino.0) {
            Ok(entries) => entries,
            Err(error) => return reply.error(error.into()),
        };
        // Each entry says where the next one is.
        for (next, (number, kind, name)) in (1..).zip(entries) {
            if next > offset && reply.add(INodeNo(number), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
