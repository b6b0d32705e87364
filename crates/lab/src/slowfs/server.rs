//! Mounts, answers the kernel, unmounts when told to. The process that calls [`run`] should do nothing else.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fuser::{
    Config, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, Request, Session,
};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::options::{Options, Setup};
use super::queue::{Queue, Read};
use super::tree::Tree;

/// What is printed once the mount is there.
pub(super) const MOUNTED: &str = "mounted";

/// For how long the kernel believes what it was told of a file.
const TTL: Duration = Duration::from_secs(1);

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
    follow_parent(setup, &stop)?;

    let queue =
        Queue::start(&setup.options).map_err(|error| format!("cannot start threads: {error}"))?;
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

fn say(line: &str) -> Result<(), String> {
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

/// Sees to it that this ends when whoever started it does, however that ends.
fn follow_parent(setup: &Setup, stop: &Sender<Stop>) -> Result<(), String> {
    let input = rustix::fs::fstat(io::stdin()).map_or(FileType::Unknown, |stat| {
        FileType::from_raw_mode(stat.st_mode)
    });
    if setup.is_detached {
        Ok(())
    } else if matches!(input, FileType::Fifo | FileType::Socket) {
        spawn(stop, Stop::Asked, || {
            let mut ignored = [0; 64];
            while io::stdin().read(&mut ignored).is_ok_and(|count| count > 0) {}
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
    let slow = Slow {
        tree: Tree::new(&setup.backing.canonicalize()?),
        options: setup.options.clone(),
        queue: Arc::clone(queue),
        files: Mutex::default(),
    };
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
struct Slow {
    tree: Tree,
    options: Options,
    queue: Arc<Queue>,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    open: HashMap<u64, Arc<File>>,
    opened: u64,
}

impl Slow {
    fn files<T>(&self, with: impl FnOnce(&mut Files) -> T) -> T {
        with(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn open_file(&self, number: u64) -> io::Result<u64> {
        let file = OpenOptions::new()
            .read(true)
            .open(self.tree.path(number)?)?;
        Ok(self.files(|files| {
            files.opened += 1;
            files.open.insert(files.opened, Arc::new(file));
            files.opened
        }))
    }
}

impl Filesystem for Slow {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |what: &str| io::Error::other(format!("the kernel refuses {what}"));
        if self.options.async_dio {
            config
                .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
                .map_err(|_| refused("FUSE_ASYNC_DIO"))?;
        }
        // Several lookups at a time. Old kernels do without.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        config
            .set_max_background(self.options.background)
            .map_err(|_| refused("max_background"))?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.tree.find(parent.0, name) {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree.attributes(ino.0) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = if self.options.direct {
            FopenFlags::FOPEN_DIRECT_IO
        } else {
            FopenFlags::empty()
        };
        match self.open_file(ino.0) {
            Ok(number) => reply.opened(FileHandle(number), flags),
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.files(|files| files.open.get(&fh.0).cloned()) else {
            return reply.error(fuser::Errno::EBADF);
        };
        self.queue.push(Read {
            file,
            number: ino.0,
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
        self.files(|files| files.open.remove(&fh.0));
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
        let entries = match self.tree.list(ino.0) {
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
