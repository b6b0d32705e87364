//! Mounts, serves the kernel, unmounts when told to. The process that calls [`run`] should do
//! nothing else.

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

/// Line printed once the mount exists.
pub(super) const MOUNTED: &str = "mounted";

/// Reason for stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// A signal, or the end of the parent.
    Asked,
    /// Another process has unmounted it.
    Unmounted,
}

/// Shows a folder as `setup` says until it is told to stop; prints `mounted`, and at the end the
/// counters.
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
    // The reader of the output may be gone.
    let _ = say(&format!("unmounted {}", queue.served()));
    Ok(())
}

pub(super) fn say(line: &str) -> Result<(), String> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|error| format!("cannot print: {error}"))
}

/// Runs `work` on a thread of its own; its end stops everything, for `reason`.
fn spawn(
    stop: &Sender<Stop>,
    reason: Stop,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), String> {
    let stop = stop.clone();
    std::thread::Builder::new()
        .spawn(move || {
            work();
            // The receiver is gone if the process is stopping anyway.
            let _ = stop.send(reason);
        })
        .map(drop)
        .map_err(|error| format!("cannot start a thread: {error}"))
}

/// Executes the parent's commands, and makes this process end with its parent, however that ends.
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
                // The parent may be gone; then there are no more lines either.
                let _ = say(&commands::obey(&line, &queue));
            }
        })
    } else {
        // A terminal does not signal its owner's end, and /dev/null, which shells give to what they
        // start with `&`, is at its end from the start.
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

/// Removes a mount, also while files are open: further reads there fail when the process that
/// serves it ends.
///
/// Does not check for a mount: the process that would have to respond may be this one.
pub(super) fn unmount(mount_point: &Path) -> Result<(), String> {
    match rustix::mount::unmount(mount_point, UnmountFlags::DETACH) {
        // Nothing is mounted there.
        Ok(()) | Err(Errno::INVAL) => return Ok(()),
        Err(_) => {}
    }
    // Without privileges.
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

/// State of the mount: the folder shown, and the open files.
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

    /// Returns an open file with this number.
    fn open_one(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.files(|files| {
            let mut open = files.open.values();
            open.find(|file| file.number == number).cloned()
        })
    }

    /// Opens a file by its path, or, if it was replaced, from an open file with this number.
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
        // Allows several lookups at a time. Old kernels do without.
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
        // Each entry holds the offset of the next one.
        for (next, (number, kind, name)) in (1..).zip(entries) {
            if next > offset && reply.add(INodeNo(number), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
