//! Bytes of files, and what a writer refuses.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use safetensors::tensor::TensorView;
use tempfile::tempdir;
use tload_base::error::{ErrorKind, Result};
use tload_base::options::Location;
use tload_format::Dtype;
use tload_verify::{ManifestTarget, VerifyOptions};
use tload_write::{Sealing, SmallFile, TensorSpec, Transform, WriteOptions, Writer};

use crate::expected::{Tensors, fill, specs, tensors};
use crate::files::{names, read, read_file, stream, write};

/// Returns the file that the crate `safetensors` writes.
fn theirs(tensors: &Tensors, metadata: &[(&str, &str)]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let shape = shape.iter().map(|&dim| dim.try_into().expect("small"));
        let view = TensorView::new((*dtype).into(), shape.collect(), bytes);
        (name, view.expect("as long as its shape"))
    });
    let metadata = metadata
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let metadata = Some(metadata.collect()).filter(|it: &HashMap<_, _>| !it.is_empty());
    safetensors::serialize(views, metadata).expect("is written")
}

#[test]
fn one_file_has_bytes_of_safetensors() {
    let folder = tempdir().expect("a folder");
    // Lengths around those of buffers (8 MiB) and of a disk's sectors.
    for (at, (count, len)) in [
        (0, 0),
        (1, 1),
        (7, 100),
        (9, 4096),
        (5, 9 << 20),
        (3, 25 << 20),
    ]
    .into_iter()
    .enumerate()
    {
        let tensors = tensors(count, len, 0);
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let options = WriteOptions::new().metadata(metadata);
        let directory = folder.path().join(format!("new/directory.{at}"));
        let report = write(&directory, &tensors, options.clone()).expect("is written");
        assert_eq!(names(&directory), ["model.safetensors"]);
        let file = folder.path().join(format!("{at}.safetensors"));
        write(&file, &tensors, options).expect("is written");
        let wanted = theirs(&tensors, &[("format", "pt")]);
        assert!(
            fs::read(&file).expect("is read") == wanted,
            "{count} of {len}"
        );
        let single = directory.join("model.safetensors");
        assert!(
            fs::read(single).expect("is read") == wanted,
            "{count} of {len}"
        );
        assert_eq!(report.file_bytes, wanted.len() as u64);
        assert_eq!(report.tensors, count as u64);
    }
    assert!(
        names(folder.path())
            .iter()
            .all(|name| !name.starts_with('.'))
    );
}

#[test]
fn aliases_do_not_replace_metadata() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("model");
    for name in ["format", "total_size"] {
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let aliases = BTreeMap::from([(name.to_owned(), "layer.2".to_owned())]);
        let options = WriteOptions::new().metadata(metadata).aliases(aliases);
        let error = write(&path, &tensors(3, 100, 1), options).expect_err("is taken");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn shards_carry_identifier_and_index_names_them() {
    let folder = tempdir().expect("a folder");
    let tensors = tensors(12, 300_000, 1);
    let aliases = BTreeMap::from([("tied".to_owned(), "layer.2".to_owned())]);
    for (name, is_plain) in [("plain", true), ("own", false)] {
        let path = folder.path().join(name);
        let options = WriteOptions::new()
            .max_shard_bytes(500_000)
            .plain_names(is_plain);
        let report = write(&path, &tensors, options.aliases(aliases.clone())).expect("is written");
        assert_eq!(read(&path), tensors);
        let mut wanted = report.files.clone();
        wanted.push("model.safetensors.index.json".to_owned());
        wanted.sort();
        assert_eq!(names(&path), wanted);
        let count = report.files.len();
        assert!(count > 3);
        let id = if is_plain {
            String::new()
        } else {
            format!("{}-", report.id)
        };
        let first = format!("model-{id}00001-of-{count:05}.safetensors");
        assert_eq!(report.files[0], first);
        // Each file is one that safetensors would have written.
        for file in &report.files {
            let path = path.join(file);
            let bytes = fs::read(&path).expect("is read");
            assert!(theirs(&read_file(&path), &[]) == bytes, "{file}");
        }
    }
}

#[test]
fn tensors_that_come_one_after_another_are_stored_in_that_order() {
    let folder = tempdir().expect("a folder");
    for (at, (count, len, shard)) in [
        (0, 0, 1 << 30),
        (1, 1, 1 << 30),
        (9, 4 << 20, 1 << 30),
        (9, 4 << 20, 5 << 20),
    ]
    .into_iter()
    .enumerate()
    {
        let tensors = tensors(count, len, 2);
        let path = folder.path().join(at.to_string());
        let options = WriteOptions::new().max_shard_bytes(shard);
        let report = stream(&path, &tensors, options.clone()).expect("is written");
        assert_eq!(read(&path), tensors);
        assert_eq!(report.files.len() > 1, shard < 6 << 20, "{report:?}");
        let file = folder.path().join(format!("{at}.safetensors"));
        stream(&file, &tensors, options).expect("is written");
        assert_eq!(read_file(&file), tensors);
    }
}

/// The room for a header is 1 MiB: names of 300 bytes may need six times as many.
#[test]
fn full_header_begins_next_file() {
    let folder = tempdir().expect("a folder");
    let name = |index: usize| format!("{index:05}{}", "x".repeat(300));
    let tensors: Tensors = (0..2000)
        .map(|index| {
            (
                name(index),
                (Dtype::U8, vec![1], vec![index.to_le_bytes()[0]]),
            )
        })
        .collect();
    let path = folder.path().join("model");
    let report = stream(&path, &tensors, WriteOptions::new()).expect("is written");
    assert!(report.files.len() > 1);
    assert_eq!(read(&path), tensors);
    let file = folder.path().join("one.safetensors");
    let error = stream(&file, &tensors, WriteOptions::new()).expect_err("has no room");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert!(!file.exists());
}

#[test]
fn manifest_is_that_of_verify() {
    let folder = tempdir().expect("a folder");
    for (name, shard) in [("one", u64::MAX), ("several", 500_000)] {
        let path = folder.path().join(name);
        let options = WriteOptions::new().manifest(true).max_shard_bytes(shard);
        write(&path, &tensors(9, 300_000, 3), options).expect("is written");
        let own = path.join("tload-manifest.json");
        let ours = fs::read_to_string(&own).expect("is read");
        fs::remove_file(&own).expect("is removed");
        let options = VerifyOptions::default().write(ManifestTarget::Beside);
        let location = Location::from_path(&path);
        let verify = tload_verify::Verification::new(location).options(options);
        verify.run().expect("is verified");
        assert_eq!(ours, fs::read_to_string(&own).expect("is read"));
    }
}

/// Mistake in a checkpoint of the tensors `a`, which is given, and `b`.
type Wrong = fn(&mut Writer, TensorSpec) -> Result<()>;

#[test]
fn wrong_tensors_are_errors_and_leave_nothing() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("model");
    let location = Location::from_path(&path);
    let spec = |name: &str| TensorSpec::new(name, Dtype::U8, [4]).expect("good");
    let planned: [(&str, Wrong); 6] = [
        ("bytes came", |writer, a| {
            writer.begin(a)?;
            writer.write(&[0; 5])
        }),
        ("4 bytes of the tensor are missing", |writer, a| {
            writer.begin(a)?;
            writer.begin(TensorSpec::new("b", Dtype::U8, [4])?)
        }),
        ("wanted \"a\"", |writer, _| {
            writer.tensor("b", Dtype::U8, &[4], &[0; 4])
        }),
        ("wanted \"a\" (U8 [4])", |writer, _| {
            writer.tensor("a", Dtype::I8, &[4], &[0; 4])
        }),
        ("none of the planned", |writer, _| {
            for name in ["a", "b", "c"] {
                writer.tensor(name, Dtype::U8, &[4], &[0; 4])?;
            }
            Ok(())
        }),
        ("\"b\" has not come", |writer, a| {
            writer.begin(a)?;
            writer.write(&[0; 4])
        }),
    ];
    for (wanted, wrong) in planned {
        let specs = vec![spec("b"), spec("a")];
        let mut writer = Writer::planned(&location, specs, WriteOptions::new()).expect("begins");
        let first = wrong(&mut writer, spec("a"));
        let error = writer.finish().expect_err(wanted);
        assert!(error.to_string().contains(wanted), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        // An error is also that of all later calls.
        if let Err(first) = first {
            assert_eq!(first.message(), error.message());
        }
    }
    let twice = Writer::planned(&location, vec![spec("a"), spec("a")], WriteOptions::new());
    assert!(
        twice
            .expect_err("twice")
            .to_string()
            .contains("comes twice")
    );
    let mut writer = Writer::create(&location, WriteOptions::new()).expect("begins");
    writer
        .tensor("a", Dtype::U8, &[1], &[0])
        .expect("is written");
    let error = writer
        .tensor("a", Dtype::U8, &[1], &[0])
        .expect_err("twice");
    assert!(error.to_string().contains("comes twice"), "{error}");
    drop(writer);
    let manifest = Writer::create(&location, WriteOptions::new().manifest(true));
    assert_eq!(
        manifest.expect_err("unknown").kind(),
        ErrorKind::InvalidRequest
    );
    assert!(names(folder.path()).is_empty());
}

/// Inverts bits, and adds a byte at the end.
struct Inverted;

impl Transform for Inverted {
    fn push(&mut self, bytes: &[u8], stored: &mut Vec<u8>) -> Result<()> {
        stored.extend(bytes.iter().map(|byte| !byte));
        Ok(())
    }

    fn finish(&mut self, stored: &mut Vec<u8>) -> Result<()> {
        stored.push(7);
        Ok(())
    }

    fn stored_len(&self, bytes: u64) -> u64 {
        bytes + 1
    }
}

/// Names of the files that were inverted.
#[derive(Debug, Default)]
struct Inverts(Mutex<Vec<String>>);

impl Sealing for Inverts {
    fn file(&self, name: &str) -> Box<dyn Transform> {
        self.0.lock().expect("one thread").push(name.to_owned());
        Box::new(Inverted)
    }

    fn small_file(&self, name: &str, content: &[u8]) -> Result<Vec<u8>> {
        let (mut file, mut stored) = (self.file(name), Vec::new());
        file.push(content, &mut stored)?;
        file.finish(&mut stored)?;
        Ok(stored)
    }

    fn complete(&self) -> Result<Vec<SmallFile>> {
        let names = self.0.lock().expect("one thread").join(" ");
        Ok(vec![("names".to_owned(), names.into_bytes())])
    }
}

#[test]
fn sealing_changes_the_bytes_of_each_file_and_adds_files() {
    let folder = tempdir().expect("a folder");
    let tensors = tensors(6, 7 << 20, 4);
    let plain = folder.path().join("plain");
    let options = WriteOptions::new()
        .max_shard_bytes(12 << 20)
        .plain_names(true);
    let report = write(&plain, &tensors, options.clone()).expect("is written");
    let path = folder.path().join("inverted");
    let seal = |options: WriteOptions| options.sealing(Arc::new(Inverts::default()));
    write(&path, &tensors, seal(options)).expect("is written");
    let mut files = report.files;
    files.push("model.safetensors.index.json".to_owned());
    let added = fs::read_to_string(path.join("names")).expect("is read");
    assert_eq!(added, files.join(" "));
    for file in &files {
        let mut bytes = fs::read(path.join(file)).expect("is read");
        assert_eq!(bytes.pop(), Some(7));
        for byte in &mut bytes {
            *byte = !*byte;
        }
        assert!(
            bytes == fs::read(plain.join(file)).expect("is read"),
            "{file}"
        );
    }
    for (name, options) in [
        ("other", WriteOptions::new().manifest(true)),
        ("other.safetensors", WriteOptions::new()),
    ] {
        let to = Location::from_path(folder.path().join(name));
        let error = Writer::planned(&to, specs(&tensors), seal(options)).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
    assert_eq!(names(folder.path()), ["inverted", "plain"]);
}

#[test]
fn unwritable_destinations_are_refused() {
    let folder = tempdir().expect("a folder");
    let text = folder.path().join("config.json");
    fs::write(&text, "{}").expect("is written");
    let full = folder.path().join("full");
    fs::create_dir(&full).expect("is created");
    fs::write(full.join("model.safetensors"), "old").expect("is written");
    let sealed = folder.path().join("sealed");
    fs::create_dir(&sealed).expect("is created");
    fs::write(sealed.join("sealed.json"), "{}").expect("is written");
    let replacing = WriteOptions::new().replace(true);
    let error = Writer::create(&Location::from_path(&sealed), replacing).expect_err("is sealed");
    assert!(
        error.to_string().contains("is a sealed checkpoint"),
        "{error}"
    );
    fs::remove_dir_all(&sealed).expect("is removed");
    let cases: [(&Path, &str); 4] = [
        (&text, "neither a directory nor a safetensors file"),
        (&full, "not empty"),
        (&full.join("model.safetensors"), "the file exists"),
        (Path::new("/"), "root of a file system"),
    ];
    for (path, wanted) in cases {
        let begun = Writer::create(&Location::from_path(path), WriteOptions::new());
        let error = begun.expect_err(wanted);
        assert!(error.to_string().contains(wanted), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
    let web = Location::parse("https://host/model").expect("a URL");
    let error = Writer::create(&web, WriteOptions::new()).expect_err("a web server");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(names(folder.path()), ["config.json", "full"]);
    assert_eq!(names(&full), ["model.safetensors"]);
    // The order is known before the first tensor, file by file.
    let path = folder.path().join("model");
    let tensors = tensors(5, 10, 0);
    let mut writer = Writer::planned(
        &Location::from_path(&path),
        specs(&tensors),
        WriteOptions::new(),
    )
    .expect("begins");
    assert_eq!(writer.order().count(), 5);
    fill(&mut writer, &tensors).expect("is written");
    assert_eq!(writer.order().count(), 0);
    assert!(!path.exists());
}
