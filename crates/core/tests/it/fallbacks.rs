//! Fallbacks for features that the system refuses: rings (seccomp), locked memory, direct I/O,
//! unaligned reads, permission.
//!
//! Each refusal is set up on a thread of its own where possible: the thread that calls `stream`
//! starts the lanes, and they inherit its filters and its user.

#![expect(unsafe_code, reason = "per-thread user ids have no safe wrapper")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tload::CacheMode;
use tload::internal::Ceiling;
use tload::{EngineChoice, ErrorKind, Loader, Location};

use crate::files::{assert_all, even, evict, folder, location, mixed, options, write};
use crate::requirement;
use crate::seccomp::refuse;

/// Runs `work` on a thread on which `io_uring_setup` (425 on every architecture) fails with
/// `errno`.
fn without_rings<T: Send>(errno: i32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let filtered = scope.spawn(|| {
            refuse(425, errno);
            work()
        });
        filtered.join().expect("the thread without rings")
    })
}

/// Runs `work` on a thread of the unprivileged user 65534, if this process may change users.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    let is_root = rustix::process::geteuid().is_root();
    let found = is_root
        .then_some(())
        .ok_or_else(|| "only root can become user 65534".to_owned());
    requirement::requirement("root", found)?;
    std::thread::scope(|scope| {
        let unprivileged = scope.spawn(|| {
            // SAFETY: takes only numbers; the raw system call changes this thread and the threads
            // that it starts.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(changed, 0, "root may change users");
            work()
        });
        Some(unprivileged.join().expect("the unprivileged thread"))
    })
}

fn open_to_all(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("ours");
}

#[test]
fn forbidden_ring_falls_back_to_threads_and_report_says_why() {
    let folder = folder();
    let file = mixed("t", 1, 30, 300_000);
    let path = write(&folder.path().join("m.safetensors"), &file);
    for (errno, hint) in [
        (libc::EPERM, "seccomp"),
        (libc::ENOSYS, "gVisor"),
        (libc::EOPNOTSUPP, "gVisor"),
        (libc::ENOMEM, "ulimit -l"),
        (libc::EXDEV, "tload doctor"),
    ] {
        // Files in the page cache are copied by threads anyway.
        if !evict(folder.path()) {
            requirement::say("SKIPPED: this file system keeps its pages");
            return;
        }
        without_rings(errno, || {
            let loader = Loader::open(location(&path)).expect("opens");
            let lanes = options(|it| it.lanes = Some(2));
            let mut stream = loader
                .clone()
                .options(lanes)
                .stream()
                .expect("falls back to threads");
            let tensors: Vec<_> = stream
                .by_ref()
                .map(|tensor| tensor.expect("loads"))
                .collect();
            assert_all(&tensors, &[&file]);
            let report = stream.report();
            assert_eq!(
                (report.engine.name.as_str(), report.copied_bytes),
                ("pread", 0)
            );
            let system = std::io::Error::from_raw_os_error(errno).to_string();
            assert!(
                report.engine.reason.contains(&system),
                "{}",
                report.engine.reason
            );
            assert!(
                report.notes.iter().any(|note| note.contains(hint)),
                "{:?}",
                report.notes
            );

            for engine in [EngineChoice::Uring, EngineChoice::TokioUring] {
                let error = loader
                    .clone()
                    .options(options(|it| it.engine = engine))
                    .stream()
                    .expect_err("a ring is required");
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                if engine == EngineChoice::TokioUring && !cfg!(feature = "tokio-uring") {
                    continue;
                }
                assert!(error.message().contains(&system), "{error}");
                assert!(
                    error.hint().is_some_and(|it| it.contains(hint)),
                    "{}",
                    error.chain()
                );
            }

            let ring = tload::internal::probe::ring();
            assert!(!ring.available && ring.hint.is_some_and(|it| it.contains(hint)));
        });
    }
}

/// Kernels from 5.1 to 5.5 open a ring and know neither its reads nor the probe for them.
#[test]
fn ring_of_a_kernel_before_5_6_is_refused_with_that_hint() {
    if requirement::uring().is_none() {
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // `io_uring_register` on every architecture.
            refuse(427, libc::EINVAL);
            let ring = tload::internal::probe::ring();
            let hint = ring.hint.expect("refused");
            assert!(!ring.available && hint.contains("older than 5.6"), "{hint}");
        });
    });
}

/// The unprivileged user may lock little memory (8 MiB by default): the ring works without
/// registered memory.
#[test]
fn ring_reads_without_locked_memory() {
    if requirement::uring().is_none() {
        return;
    }
    let folder = folder();
    open_to_all(folder.path(), 0o755);
    let path = write(
        &folder.path().join("m.safetensors"),
        &even("t", 1, 8, 8 << 20),
    );
    evict(folder.path());
    let loader = Loader::open(location(&path)).expect("opens");
    let loader = loader.options(options(|it| it.engine = EngineChoice::Uring));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let is_low = limit.is_some_and(|limit| limit < 16 << 20);
    let found = is_low
        .then_some(())
        .ok_or_else(|| format!("the limit is {limit:?}"));
    if requirement::requirement("memlock", found).is_none() {
        return;
    }
    let Some(report) = as_nobody(|| loader.ceiling(Ceiling::Recycled).expect("reads")) else {
        return;
    };
    assert_eq!(
        (report.engine.name.as_str(), report.outcome.as_str()),
        ("uring", "complete")
    );
    let registered = report
        .engine
        .features
        .iter()
        .any(|it| it == "registered_buffers");
    assert!(!registered, "{:?}", report.engine.features);
}

#[test]
fn unreadable_file_is_permission_denied() {
    let folder = folder();
    open_to_all(folder.path(), 0o755);
    let path = write(&folder.path().join("a.safetensors"), &even("a", 1, 1, 10));
    open_to_all(&path, 0);
    let open = || crate::files::open(&path).expect_err("may not be read");
    let Some(error) = as_nobody(open) else {
        return;
    };
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::PermissionDenied, Some(libc::EACCES))
    );
    assert_eq!(error.location(), path.to_str());
    assert!(error.hint().is_some());
}

/// A file system in a file, mounted; unmounted on drop.
struct Mount {
    folder: tempfile::TempDir,
    device: String,
}

impl Mount {
    fn point(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    fn attach(folder: tempfile::TempDir, sector: &str) -> Result<Self, String> {
        let image = folder.path().join("image");
        let device = run("losetup", &["-b", sector, "--show", "-f", &show(&image)])?;
        let mount = Self {
            folder,
            device: device.trim().to_owned(),
        };
        std::fs::create_dir(mount.point()).expect("a new folder");
        Ok(mount)
    }

    fn mount(&self, options: &str) -> Result<(), String> {
        run(
            "mount",
            &["-o", options, &self.device, &show(&self.point())],
        )
        .map(drop)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Errors are ignored: the mount or the device may never have been set up.
        // Lazy: the kernel releases a ring's files some time after the ring was closed, and the
        // device after them.
        let _ = run("umount", &["-l", &show(&self.point())]);
        let _ = run("losetup", &["-d", &self.device]);
    }
}

fn show(path: &Path) -> String {
    path.to_str()
        .expect("temporary folders are UTF-8")
        .to_owned()
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

/// Creates a squashfs, which refuses `O_DIRECT` when a file is opened.
fn squashfs(file: &[u8]) -> Result<Mount, String> {
    let folder = folder();
    let content = folder.path().join("content");
    write(&content.join("m.safetensors"), file);
    let image = folder.path().join("image");
    run(
        "mksquashfs",
        &[&show(&content), &show(&image), "-noD", "-quiet"],
    )?;
    let mount = Mount::attach(folder, "512")?;
    mount.mount("ro")?;
    Ok(mount)
}

/// Creates an ext4 on a device with sectors of 4 KiB, which refuses reads with a smaller alignment.
fn wide_sectors(file: &[u8]) -> Result<Mount, String> {
    let folder = folder();
    let image = folder.path().join("image");
    let size = std::fs::File::create(&image).and_then(|image| image.set_len(64 << 20));
    size.map_err(|error| error.to_string())?;
    let mount = Mount::attach(folder, "4096")?;
    run("mkfs.ext4", &["-q", "-b", "4096", &mount.device])?;
    mount.mount("defaults")?;
    write(&mount.point().join("m.safetensors"), file);
    Ok(mount)
}

#[test]
fn refused_direct_io_falls_back_to_page_cache() {
    let file = mixed("t", 2, 40, 500_000);
    let Some(mount) = requirement::requirement("loopfs", squashfs(&file)) else {
        return;
    };
    let path = mount.point().join("m.safetensors");
    for engine in [EngineChoice::Auto, EngineChoice::Pread] {
        let loader = Loader::open(Location::from_path(&path)).expect("opens");
        let auto = options(|it| it.engine = engine);
        let mut stream = loader.clone().options(auto).stream().expect("starts");
        let tensors: Vec<_> = stream
            .by_ref()
            .map(|tensor| tensor.expect("loads"))
            .collect();
        assert_all(&tensors, &[&file]);
        let report = stream.report();
        assert_eq!((report.direct_bytes, report.copied_bytes), (0, 0));
        assert!(
            report
                .notes
                .iter()
                .any(|note| note.contains("(squashfs) refused direct I/O")),
            "{:?}",
            report.notes
        );
        let direct = options(|it| (it.engine, it.cache) = (engine, CacheMode::Direct));
        let error = loader
            .options(direct)
            .stream()
            .expect_err("direct I/O is required");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.location(), path.to_str());
    }
}

#[test]
fn sectors_of_4_kib_are_respected() {
    let file = mixed("t", 3, 60, 300_000);
    let Some(mount) = requirement::requirement("loopfs", wide_sectors(&file)) else {
        return;
    };
    let path = mount.point().join("m.safetensors");
    for engine in [EngineChoice::Auto, EngineChoice::Pread] {
        for extent_bytes in [None, Some(4096), Some(5000)] {
            let direct = options(|it| {
                (it.engine, it.cache, it.extent_bytes) = (engine, CacheMode::Direct, extent_bytes);
            });
            let loader = Loader::open(Location::from_path(&path))
                .expect("opens")
                .options(direct);
            let mut stream = loader.stream().expect("starts");
            let tensors: Vec<_> = stream
                .by_ref()
                .map(|tensor| tensor.expect("loads"))
                .collect();
            assert_all(&tensors, &[&file]);
            let report = stream.report();
            assert_eq!(
                (report.buffered_bytes, report.retries, report.copied_bytes),
                (0, 0, 0)
            );
        }
    }
}
