//! Places of the files of a checkpoint: symbolic links that lead out of its folder are refused
//! unless they are allowed, and anything but a regular file is refused by its type.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use tload::{Checkpoint, Dtype, Error, ErrorKind, Location, OpenOptions};
use tload_testing::fixtures::FileBuilder;

use crate::files::{folder, write};

const INDEX: &str = "model.safetensors.index.json";

/// Writes a file with one tensor of this name.
fn shard(path: &Path, tensor: &str) {
    let file = FileBuilder::new().tensor(tensor, Dtype::U8, &[4], b"1234");
    write(path, &file.build());
}

fn index(folder: &Path, shard: &str) {
    let text = format!(r#"{{"weight_map": {{"t": "{shard}"}}}}"#);
    write(&folder.join(INDEX), text.as_bytes());
}

fn open(path: impl AsRef<Path>) -> Result<Checkpoint, Error> {
    Checkpoint::open(Location::from_path(path.as_ref()))
}

fn open_following(path: impl AsRef<Path>) -> Result<Checkpoint, Error> {
    let mut options = OpenOptions::default();
    options.follow_symlinks = true;
    Checkpoint::open_with(Location::from_path(path.as_ref()), options)
}

/// Asserts that a link is refused with an error that names link, destination and option, and that
/// the option allows it.
#[track_caller]
fn is_refused(opened: &Path, link: &str, leads_to: &Path) {
    let error = open(opened).expect_err("the link leads out of the folder");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let leads_to = leads_to.canonicalize().expect("there");
    let text = error.chain();
    assert!(error.location().expect("a file").ends_with(link), "{text}");
    assert!(text.contains(leads_to.to_str().expect("UTF-8")), "{text}");
    assert!(
        error.hint().expect("a hint").contains("follow_symlinks"),
        "{text}"
    );
    open_following(opened).expect("allowed");
}

#[track_caller]
fn opens(path: &Path) {
    let checkpoint = open(path).expect("allowed without the option");
    assert!(checkpoint.get("t").is_some());
}

#[test]
fn links_out_of_directory_are_rejected() {
    let folder = folder();
    let outside = folder.path().join("outside/x.safetensors");
    shard(&outside, "t");
    let model = folder.path().join("model");
    std::fs::create_dir(&model).expect("a folder");

    // Absolute, relative, through another link, and by way of a folder.
    let link = model.join("model.safetensors");
    symlink(&outside, &link).expect("takes links");
    is_refused(&model, "model.safetensors", &outside);
    std::fs::remove_file(&link).expect("ours");
    symlink("../outside/x.safetensors", &link).expect("takes links");
    is_refused(&model, "model.safetensors", &outside);
    std::fs::rename(&link, model.join("b.safetensors")).expect("ours");
    symlink("b.safetensors", &link).expect("takes links");
    // Both links are found; neither may be followed.
    assert_eq!(
        open(&model).expect_err("out").kind(),
        ErrorKind::PermissionDenied
    );

    // A folder whose name begins with the other's is another folder.
    let beside = folder.path().join("model-2");
    shard(&beside.join("x.safetensors"), "t");
    let third = folder.path().join("third/model");
    std::fs::create_dir_all(&third).expect("a folder");
    symlink("../../model-2/x.safetensors", third.join("x.safetensors")).expect("takes links");
    is_refused(&third, "x.safetensors", &beside.join("x.safetensors"));
}

#[test]
fn links_out_of_index_directory_are_rejected() {
    let folder = folder();
    let outside = folder.path().join("outside/x.safetensors");
    shard(&outside, "t");
    let model = folder.path().join("model");
    index(&model, "deep/x.safetensors");
    symlink("../outside", model.join("deep")).expect("takes links");
    is_refused(&model, "deep/x.safetensors", &outside);
    is_refused(&model.join(INDEX), "deep/x.safetensors", &outside);

    // The index itself, unless the caller named it.
    let second = folder.path().join("second");
    shard(&second.join("deep/x.safetensors"), "t");
    symlink("../model/model.safetensors.index.json", second.join(INDEX)).expect("takes links");
    is_refused(&second, INDEX, &model.join(INDEX));
    opens(&second.join(INDEX));
}

#[test]
fn link_named_by_caller_may_lead_anywhere() {
    let folder = folder();
    let outside = folder.path().join("outside/x.safetensors");
    shard(&outside, "t");
    let link = folder.path().join("model/link.safetensors");
    std::fs::create_dir(folder.path().join("model")).expect("a folder");
    symlink(&outside, &link).expect("takes links");
    opens(&link);
    Checkpoint::open_all(&[Location::from_path(&link)]).expect("named");
}

#[test]
fn links_to_and_within_folder_are_allowed() {
    let folder = folder();
    let real = folder.path().join("real");
    // The layout of a Kubernetes volume: the files are links through a link.
    shard(&real.join("..2026_01_01/model.safetensors"), "t");
    symlink("..2026_01_01", real.join("..data")).expect("takes links");
    symlink("..data/model.safetensors", real.join("model.safetensors")).expect("takes links");
    opens(&real);
    // The folder is a link, and so is a folder above it.
    symlink("real", folder.path().join("link")).expect("takes links");
    opens(&folder.path().join("link"));
    symlink(folder.path(), folder.path().join("above")).expect("takes links");
    opens(&folder.path().join("above/link"));
    opens(&folder.path().join("above/link/../real/."));
}

#[test]
fn hub_cache_snapshot_links_only_to_blobs_of_its_repository() {
    let folder = folder();
    let repository = folder.path().join("hub/models--org--name");
    let snapshot = repository.join("snapshots/c0ffee");
    shard(&repository.join("blobs/0123"), "t");
    let deep = snapshot.join("unet");
    std::fs::create_dir_all(&deep).expect("a folder");
    let link = snapshot.join("model.safetensors");
    symlink("../../blobs/0123", &link).expect("takes links");
    symlink("../../../blobs/0123", deep.join("model.safetensors")).expect("takes links");
    opens(&snapshot);
    opens(&deep);
    symlink(folder.path().join("hub"), folder.path().join("cache")).expect("takes links");
    opens(
        &folder
            .path()
            .join("cache/models--org--name/snapshots/c0ffee"),
    );

    // Blobs of another repository, and a folder that only resembles a cache.
    let other = folder.path().join("hub/models--org--other/blobs/0123");
    shard(&other, "t");
    std::fs::remove_file(&link).expect("ours");
    symlink(&other, &link).expect("takes links");
    is_refused(&snapshot, "model.safetensors", &other);
    let plain = folder.path().join("backups/snapshots/daily");
    std::fs::create_dir_all(&plain).expect("a folder");
    let outside = folder.path().join("backups/blobs/x");
    shard(&outside, "t");
    symlink("../../blobs/x", plain.join("model.safetensors")).expect("takes links");
    is_refused(&plain, "model.safetensors", &outside);
}

#[test]
fn irregular_file_is_rejected_by_its_type() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let _listener = UnixListener::bind(path("socket.safetensors")).expect("a socket");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = path("fifo.safetensors");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a FIFO");
    std::fs::create_dir(path("directory.safetensors")).expect("a folder");
    symlink("/dev/null", path("device.safetensors")).expect("takes links");
    for what in ["socket", "FIFO", "directory", "device"] {
        let name = format!("{}.safetensors", what.to_ascii_lowercase());
        let found = |error: &Error| {
            let wanted = format!("is not a regular file but a {what}");
            assert_eq!(error.message(), wanted, "{}", error.chain());
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(error.hint().is_some());
        };
        // In a list, and named by an index. The device is refused because it is outside.
        let listed = Checkpoint::open_all(&[Location::from_path(path(&name))]);
        found(&listed.expect_err(what));
        index(folder.path(), &name);
        found(&open_following(path(INDEX)).expect_err(what));
        let error = open(path(INDEX)).expect_err(what);
        if what == "device" {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        } else {
            found(&error);
        }
    }
}

#[test]
fn cyclic_and_dangling_links_are_errors() {
    let folder = folder();
    symlink("a.safetensors", folder.path().join("a.safetensors")).expect("takes links");
    let error = open(folder.path()).expect_err("a cycle");
    assert!(
        error.location().expect("a file").ends_with("a.safetensors"),
        "{error}"
    );
    std::fs::remove_file(folder.path().join("a.safetensors")).expect("ours");
    symlink("/no/such/file", folder.path().join("a.safetensors")).expect("takes links");
    let error = open(folder.path()).expect_err("a dangling link");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
