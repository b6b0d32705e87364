//! The slow file system shows its backing folder, and is unmounted when its owner is gone.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tload_testbed::require_named;
use tload_testbed::slowfs::{Fault, Mount, Options, Request, Rule, serve_if_asked};

/// Environment variable set for the process that is killed: the folder to show.
const VICTIM: &str = "TLOAD_TESTBED_VICTIM";

/// Not a test: the process that [`Mount::start`] starts runs this one, and serves the file system.
#[test]
fn serves() {
    serve_if_asked();
}

fn mount(backing: &Path, options: &Options) -> Option<Mount> {
    require_named("fuse", Mount::start("slowfs::serves", backing, options))
}

/// Creates a folder with a file, a folder with a file, and links.
fn backing() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    std::fs::create_dir(path.join("inner")).expect("a folder");
    std::fs::write(path.join("inner/one"), b"one").expect("a file");
    std::fs::write(path.join("two"), vec![2; 3_000_001]).expect("a file");
    symlink("inner/one", path.join("link")).expect("a link");
    symlink("nowhere", path.join("broken")).expect("a link");
    folder
}

#[expect(clippy::disallowed_methods, reason = "these files are not loaded")]
fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("a file")
}

/// Returns whether the kernel lists a mount at `path`.
fn is_mounted(path: &Path) -> bool {
    let mounts = String::from_utf8(read(Path::new("/proc/self/mountinfo"))).expect("UTF-8");
    let path = path.to_str().expect("UTF-8");
    mounts
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(path))
}

/// Asserts that the mount at `path` is removed, now or soon.
#[expect(
    clippy::disallowed_methods,
    reason = "the end of a process that is not our child cannot be waited for; the wait has an end"
)]
fn assert_unmounted(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_mounted(path) {
        assert!(
            Instant::now() < deadline,
            "{} is still mounted",
            path.display()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn mount_shows_backing_folder() {
    let backing = backing();
    for direct in [false, true] {
        let options = Options {
            direct,
            ..Options::default()
        };
        let Some(mount) = mount(backing.path(), &options) else {
            return;
        };
        let mut names: Vec<_> = std::fs::read_dir(mount.path())
            .expect("a folder")
            .map(|entry| entry.expect("listed").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["inner", "link", "two"]);
        assert_eq!(read(&mount.path().join("inner/one")), b"one");
        assert_eq!(read(&mount.path().join("link")), b"one");
        assert_eq!(read(&mount.path().join("two")), vec![2; 3_000_001]);
        let missing = mount.path().join("three").metadata().expect_err("missing");
        assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        std::fs::write(mount.path().join("new"), b"").expect_err("it is read-only");
        let served = mount.stop().expect("it says so");
        assert!(served.bytes >= 3_000_000 && served.faults == 0, "{served}");
    }
}

#[test]
fn reads_take_configured_time() {
    let backing = backing();
    let options = Options {
        latency: Duration::from_millis(30),
        file_mb_s: 30,
        direct: true,
        ..Options::default()
    };
    let Some(mount) = mount(backing.path(), &options) else {
        return;
    };
    let started = Instant::now();
    read(&mount.path().join("two"));
    // 100 ms for the bytes, and at least 30 ms for one read: never less, however busy the machine.
    assert!(started.elapsed() >= Duration::from_millis(130));
}

#[test]
fn configured_faults_reach_readers() {
    let backing = backing();
    let options = Options {
        direct: true,
        short_every: 2,
        eio_every: 3,
        fault_max: 2,
        ..Options::default()
    };
    let Some(mount) = mount(backing.path(), &options) else {
        return;
    };
    let file = std::fs::OpenOptions::new()
        .read(true)
        .open(mount.path().join("two"))
        .expect("a file");
    let mut bytes = [0; 1000];
    let counts: Vec<_> = (0..6)
        .map(|_| {
            file.read_at(&mut bytes, 0)
                .map_err(|error| error.raw_os_error())
        })
        .collect();
    let eio = Err(Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(
        counts,
        [Ok(1000), Ok(501), eio, Ok(1000), Ok(1000), Ok(1000)]
    );
}

/// Mounts with direct reads and without caching of names and attributes, so that every request
/// reaches the file system.
fn obedient(backing: &Path) -> Option<Mount> {
    let options = Options {
        direct: true,
        ttl: Duration::ZERO,
        ..Options::default()
    };
    mount(backing, &options)
}

fn open(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().read(true).open(path)
}

#[test]
fn rules_change_while_mounted() {
    let backing = backing();
    let Some(mount) = obedient(backing.path()) else {
        return;
    };
    let path = mount.path().join("two");
    let file = open(&path).expect("a file");
    let mut bytes = [0; 1000];
    let mut read = |offset| {
        let found = file.read_at(&mut bytes, offset);
        found.map_err(|error| error.raw_os_error().expect("a system error"))
    };
    mount.fault(&Rule::once(Fault::Errno(116)).from_byte(5000));
    mount.fault(&Rule::always(Fault::Short(0)).from_byte(5000).times(1));
    mount.fault(&Rule::always(Fault::Short(333)).every(2).file("two"));
    assert_eq!(
        [0, 5000, 5000, 0, 0].map(&mut read),
        [Ok(333), Err(116), Ok(0), Ok(1000), Ok(333)]
    );
    assert_eq!(mount.served().faults, 4);
    mount.clear_faults();
    mount.fault(&Rule::always(Fault::Flip(7)));
    assert_eq!([0, 8].map(&mut read), [Ok(1000), Ok(1000)]);
    mount.clear_faults();
    mount.fault(&Rule::always(Fault::Flip(7)));
    file.read_at(&mut bytes, 0).expect("reads");
    assert_eq!(bytes[6..9], [2, !2, 2]);
    mount.fault(&Rule::once(Fault::Errno(13)).on(Request::Open).file("two"));
    mount.fault(&Rule::once(Fault::Errno(5)).on(Request::Stat).file("inner"));
    assert_eq!(open(&path).expect_err("denied").raw_os_error(), Some(13));
    open(&path).expect("only once");
    let error = mount.path().join("inner").metadata().expect_err("fails");
    assert_eq!(error.raw_os_error(), Some(5));
    mount.path().join("inner").metadata().expect("only once");
}

#[test]
fn held_requests_complete_when_released() {
    let backing = backing();
    let Some(mount) = obedient(backing.path()) else {
        return;
    };
    let path = mount.path().join("two");
    for (request, let_go) in [
        (Request::Read, Mount::release as fn(&Mount)),
        (Request::Open, Mount::release),
        (Request::Stat, Mount::release),
        (Request::Read, Mount::clear_faults),
    ] {
        mount.fault(&Rule::once(Fault::Hold).on(request));
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&path));
            let is_held = mount.wait_for_held(1, Duration::from_secs(60));
            assert_eq!(mount.served().held, u64::from(is_held));
            let was_waiting = !reading.is_finished();
            let_go(&mount);
            assert_eq!(reading.join().expect("reads").len(), 3_000_001);
            assert!(is_held && was_waiting, "{request:?}");
        });
        mount.clear_faults();
    }
    assert!(!mount.wait_for_held(1, Duration::ZERO));
}

/// Changes of the backing files are visible in the mount; a replaced file is another file there.
#[test]
fn mount_follows_changes_of_backing_files() {
    let backing = backing();
    let Some(mount) = obedient(backing.path()) else {
        return;
    };
    let (path, real) = (mount.path().join("two"), backing.path().join("two"));
    let file = open(&path).expect("a file");
    let before = file.metadata().expect("a status");
    let backing_file = || {
        let file = std::fs::OpenOptions::new().write(true).open(&real);
        file.expect("a file")
    };
    backing_file().set_len(1000).expect("ours");
    assert_eq!(file.metadata().expect("a status").len(), 1000);
    assert_eq!(file.read_at(&mut [0; 10], 2000).expect("reads"), 0);
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(5);
    backing_file().set_modified(time).expect("ours");
    let after = file.metadata().expect("a status");
    assert_eq!(after.modified().expect("a time"), time);
    assert_eq!(after.ino(), before.ino());

    let beside = backing.path().join("three");
    std::fs::write(&beside, [3; 30]).expect("a file");
    std::fs::rename(&beside, &real).expect("the same folder");
    assert_eq!(read(&path), [3; 30]);
    assert_ne!(path.metadata().expect("a status").ino(), before.ino());
    // An open file keeps the old contents, and can be opened again.
    assert_eq!(file.metadata().expect("a status").len(), 1000);
    let again = open(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
    let mut bytes = [0; 4];
    again.expect("opens").read_at(&mut bytes, 0).expect("reads");
    assert_eq!(bytes, [2; 4]);
}

#[test]
fn mount_in_use_is_unmounted_on_drop() {
    let backing = backing();
    let Some(mount) = mount(backing.path(), &Options::default()) else {
        return;
    };
    let path = mount.path().to_owned();
    assert!(is_mounted(&path));
    let file = std::fs::OpenOptions::new()
        .read(true)
        .open(path.join("two"))
        .expect("a file");
    drop(mount);
    assert!(!is_mounted(&path) && !path.exists());
    file.read_at(&mut [0; 10], 0)
        .expect_err("no server is left");
}

#[test]
fn mount_is_removed_with_starting_process() {
    if let Some(folder) = std::env::var_os(VICTIM) {
        return victim(Path::new(&folder));
    }
    let backing = backing();
    if mount(backing.path(), &Options::default()).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut victim = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "slowfs::mount_is_removed_with_starting_process"])
        .arg("--nocapture")
        .env(VICTIM, backing.path())
        .env("TMPDIR", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let path = line(&mut victim, "mount: ");
    let path = Path::new(&path);
    assert!(is_mounted(path));
    victim.kill().expect("it runs");
    victim.wait().expect("it ends");
    assert_unmounted(path);
}

/// Mounts, prints the path, and waits to be killed.
fn victim(backing: &Path) {
    let mount = mount(backing, &Options::default()).expect("it worked a moment ago");
    let mut output = std::io::stdout();
    writeln!(output, "\nmount: {}", mount.path().display()).expect("it is read");
    output.flush().expect("it is read");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Returns the rest of the first line of `child` that begins with `start`.
fn line(child: &mut Child, start: &str) -> String {
    let output = child.stdout.take().expect("it is piped");
    BufReader::new(output)
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix(start).map(str::to_owned))
        .expect("it says so")
}

/// Returns a command for the program, without an input that ends it.
fn program(backing: &Path, mount_point: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slowfs"));
    command
        .args([backing, mount_point])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

#[test]
fn program_exits_on_signal_or_end_of_input() {
    let (backing, folder) = (backing(), tempfile::tempdir().expect("a folder"));
    if mount(backing.path(), &Options::default()).is_none() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let mut program = program(backing.path(), folder.path())
            .spawn()
            .expect("it starts");
        assert_eq!(line(&mut program, "mounted"), "");
        assert_eq!(read(&folder.path().join("link")), b"one");
        let id = i32::try_from(program.id()).expect("small");
        kill_process(Pid::from_raw(id).expect("not 0"), signal).expect("it runs");
        assert!(program.wait().expect("it ends").success());
        assert!(!is_mounted(folder.path()));
    }
    // The end of its input stops it too; commands before that are executed and answered.
    let mut command = program(backing.path(), folder.path());
    let mut program = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let output = program.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("mounted"));
    let mut input = program.stdin.take().expect("it is piped");
    writeln!(input, "fault errno=EIO,on=open\nwhat").expect("it listens");
    assert_eq!(lines.next().as_deref(), Some("slowfs: done"));
    let answer = lines.next().expect("an answer");
    assert!(answer.contains("is not a command"), "{answer}");
    open(&folder.path().join("two")).expect_err("it fails now");
    drop(input);
    assert!(program.wait().expect("it ends").success());
    assert!(!is_mounted(folder.path()));
}

#[test]
fn program_with_unknown_option_prints_usage() {
    let output = Command::new(env!("CARGO_BIN_EXE_slowfs"))
        .args(["a", "b", "--latency", "5"])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        text.contains("--latency is unknown") && text.contains("--latency-ms"),
        "{text}"
    );
}
