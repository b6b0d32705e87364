//! Checkpoints that are sealed while they are written: opened, they have the files of a plain
//! write.

#![expect(clippy::disallowed_methods, reason = "a test reads what was written")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use tload_base::error::{ErrorKind, Result};
use tload_base::options::{Location, StoreOptions};
use tload_base::sync::cancel::CancelFlag;
use tload_format::Dtype;
use tload_sealed::stream::Algorithm;
use tload_sealed::{Key, Recipients, unseal, write_new_key};
use tload_sealing::Sealing;
use tload_write::{TensorSpec, WriteOptions, WriteReport, Writer};

/// Bytes of a file in a segment.
const SEGMENT: u64 = (1 << 20) - 16;

/// Bytes of the first segment that the header of AES-128 takes.
const SEALED_HEADER_BYTES: u64 = 24;

fn write(to: &Path, lens: &[u64], options: WriteOptions) -> Result<WriteReport> {
    let spec = |(index, len): (usize, &u64)| {
        TensorSpec::new(format!("t{index}"), Dtype::U8, [*len]).expect("valid")
    };
    let specs: Vec<_> = lens.iter().enumerate().map(spec).collect();
    let mut writer = Writer::planned(&Location::from_path(to), specs.clone(), options)?;
    let order: Vec<_> = writer.order().map(str::to_owned).collect();
    for name in order {
        let spec = specs
            .iter()
            .find(|spec| spec.name() == name)
            .expect("planned");
        writer.begin(spec.clone())?;
        let mut left = spec.byte_len();
        while left > 0 {
            let len = left.min(300_007);
            let piece: Vec<_> = (0..len).map(|at| ((left - at) % 251) as u8).collect();
            writer.write(&piece)?;
            left -= len;
        }
    }
    writer.finish()
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().expect("UTF-8");
        (name, fs::read(entry.path()).expect("a file"))
    };
    entries.map(read).collect()
}

#[test]
fn opened_files_are_those_of_a_plain_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("key.json");
    write_new_key(Algorithm::Aes128, &text).expect("is written");
    let key = Key::from_file(text);
    // Files that end just before, with, and just after a segment. All have headers of one length.
    let probe = folder.path().join("probe.safetensors");
    let probed = write(&probe, &[SEGMENT], WriteOptions::new()).expect("is written");
    let header_bytes = probed.file_bytes - SEGMENT;
    let ends = [1, 2].map(|count| count * SEGMENT - SEALED_HEADER_BYTES - header_bytes);
    let around = ends.into_iter().flat_map(|end| [end - 1, end, end + 1]);
    let cases = around.chain([0, 1]).map(|len| vec![len]);
    let several = [vec![], vec![5; 7], vec![SEGMENT, 3, 2 * SEGMENT, 700]];
    for (index, lens) in cases.chain(several).enumerate() {
        let path = |kind: &str| folder.path().join(format!("{kind}{index}"));
        let options = WriteOptions::new()
            .max_shard_bytes(SEGMENT)
            .plain_names(true);
        write(&path("plain"), &lens, options.clone()).expect("is written");
        let sealing = Sealing::new(&Recipients::new(), Some(&key)).expect("a keyset");
        let sealed = options.sealing(Arc::new(sealing));
        let report = write(&path("sealed"), &lens, sealed).expect("is written");
        let from = Location::from_path(path("sealed"));
        let opened = unseal(
            &from,
            &StoreOptions::new(),
            &key,
            &path("opened"),
            &CancelFlag::default(),
        )
        .expect("opens");
        let (wanted, stored) = (files(&path("plain")), files(&path("sealed")));
        assert!(files(&path("opened")) == wanted, "{lens:?}");
        assert_eq!(opened.files, wanted.len());
        let added = ["sealed.json", "sealed.manifest"].map(str::to_owned);
        let names: Vec<_> = wanted.keys().cloned().chain(added).collect();
        assert_eq!(stored.keys().cloned().collect::<Vec<_>>(), names);
        let bytes = report.files.iter().map(|file| stored[file].len() as u64);
        assert_eq!(report.file_bytes, bytes.sum::<u64>());
    }
}

#[test]
fn abandoned_writes_leave_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("model");
    let key = folder.path().join("key.json");
    write_new_key(Algorithm::Aes256, &key).expect("is written");
    let sealing = Sealing::new(&Recipients::new(), Some(&Key::from_file(&key))).expect("a keyset");
    let options = WriteOptions::new().sealing(Arc::new(sealing));
    let spec = TensorSpec::new("a", Dtype::U8, [9]).expect("valid");
    let mut writer =
        Writer::planned(&Location::from_path(&to), vec![spec.clone()], options).expect("begins");
    writer.begin(spec).expect("is planned");
    writer.write(&[1; 8]).expect("is taken");
    let error = writer.finish().expect_err("a byte is missing");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(
        files(folder.path()).into_keys().collect::<Vec<_>>(),
        ["key.json"]
    );
}
