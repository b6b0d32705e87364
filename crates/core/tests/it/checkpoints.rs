//! Selection of the files and tensors of a checkpoint, and errors for incomplete ones.

use std::path::Path;

use tload::{Checkpoint, ErrorKind, LoadOptions, Loader, Location, OpenOptions, Precedence};

use crate::files::{assert_all, even, folder, load, location, open, write};

fn index(folder: &Path, name: &str, entries: &[(&str, &str)]) -> std::path::PathBuf {
    let entries: Vec<_> = entries
        .iter()
        .map(|(tensor, shard)| format!("{tensor:?}: {shard:?}"))
        .collect();
    let text = format!(r#"{{"weight_map": {{{}}}}}"#, entries.join(", "));
    write(&folder.join(name), text.as_bytes())
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint
        .tensors()
        .iter()
        .map(tload::TensorInfo::name)
        .collect()
}

#[test]
fn single_file_opens_by_path_and_by_url() {
    let folder = folder();
    let file = even("a", 1, 3, 1000);
    let path = write(&folder.path().join("with space.safetensors"), &file);
    assert_all(&load(&path, LoadOptions::default()), &[&file]);

    let url = format!("file://{}", path.display()).replace(' ', "%20");
    let loader = Loader::open(Location::parse(&url).expect("a URL")).expect("opens");
    assert_eq!(loader.checkpoint().location().to_string(), url);
    assert_eq!(loader.checkpoint().total_bytes(), 3000);
    assert_eq!(loader.stream().expect("starts").count(), 3);
}

#[test]
fn folder_without_index_is_read_in_natural_order() {
    let folder = folder();
    for number in [10, 2, 1] {
        let file = even(&format!("{number}."), number, 2, 100);
        write(
            &folder.path().join(format!("model-{number}.safetensors")),
            &file,
        );
    }
    write(&folder.path().join(".hidden.safetensors"), b"ignored");
    write(&folder.path().join("config.json"), b"{}");
    let checkpoint = open(folder.path()).expect("opens");
    assert_eq!(
        names(&checkpoint),
        ["1.0", "1.1", "2.0", "2.1", "10.0", "10.1"]
    );
    assert_eq!(checkpoint.shards().len(), 3);
    assert_eq!(checkpoint.get("10.1").expect("there").shard(), 2);
}

#[test]
fn file_list_is_read_in_given_order() {
    let folder = folder();
    let files = [even("a", 1, 2, 100), even("b", 2, 2, 100)];
    let paths = [
        write(&folder.path().join("1.safetensors"), &files[0]),
        write(&folder.path().join("2.bin"), &files[1]),
    ];
    let list = [location(&paths[1]), location(&paths[0])];
    let checkpoint = Checkpoint::open_all(&list).expect("opens");
    assert_eq!(names(&checkpoint), ["b0", "b1", "a0", "a1"]);
    let stream = Loader::new(checkpoint).stream().expect("starts");
    let tensors: Vec<_> = stream.map(|tensor| tensor.expect("loads")).collect();
    assert_all(&tensors, &[&files[0], &files[1]]);

    let error = Checkpoint::open_all::<Location>([]).expect_err("an empty list");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    let error = Checkpoint::open_all(&[location(&paths[0]), location(&paths[0])]);
    let error = error.expect_err("the same file twice");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(error.message(), "the file is listed twice");

    let copy = write(&folder.path().join("3.safetensors"), &files[0]);
    let error = Checkpoint::open_all(&[location(&paths[0]), location(&copy)]);
    let error = error.expect_err("the same names in two files");
    assert_eq!(
        (error.kind(), error.tensor()),
        (ErrorKind::InvalidFormat, Some("a0"))
    );
}

#[test]
fn control_characters_in_shard_name_are_escaped() {
    let folder = folder();
    write(&folder.path().join("a\x1b[31m.safetensors"), b"short");
    let index = index(
        folder.path(),
        "model.safetensors.index.json",
        &[("a", "a\u{1b}[31m.safetensors")],
    );
    let error = Loader::open(location(&index)).expect_err("a truncated shard");
    assert_eq!(error.kind(), ErrorKind::InvalidFormat);
    assert!(!error.chain().contains('\x1b'), "{}", error.chain());
}

#[test]
fn index_selects_shards_and_tensors() {
    let folder = folder();
    let shards = [even("a", 1, 3, 100), even("b", 2, 2, 100)];
    write(&folder.path().join("x-10.safetensors"), &shards[0]);
    write(&folder.path().join("x-9.safetensors"), &shards[1]);
    // Invalid, and never opened.
    write(&folder.path().join("other.safetensors"), b"rubbish");
    let path = index(
        folder.path(),
        "model.safetensors.index.json",
        &[
            ("a0", "x-10.safetensors"),
            ("a2", "x-10.safetensors"),
            ("b1", "x-9.safetensors"),
        ],
    );
    for location in [folder.path(), &path] {
        let checkpoint = open(location).expect("opens");
        assert_eq!(names(&checkpoint), ["b1", "a0", "a2"]);
        let counts: Vec<_> = checkpoint
            .shards()
            .iter()
            .map(tload::Shard::tensor_count)
            .collect();
        assert_eq!(counts, [1, 2]);
        assert_eq!(checkpoint.total_bytes(), 300);
        let loaded = load(location, LoadOptions::default());
        assert_eq!(loaded.len(), 3);
        for tensor in &loaded {
            crate::files::assert_same(tensor, &shards[usize::from(tensor.name() == "b1")]);
        }
    }
}

#[test]
fn index_resolves_tensor_found_in_two_shards() {
    let folder = folder();
    let shards = [even("a", 1, 1, 100), even("a", 2, 1, 100)];
    write(&folder.path().join("1.safetensors"), &shards[0]);
    write(&folder.path().join("2.safetensors"), &shards[1]);
    let error = open(folder.path()).expect_err("the tensor is in two shards");
    assert_eq!(error.kind(), ErrorKind::InvalidFormat);
    assert_eq!(error.tensor(), Some("a0"));
    assert!(error.message().contains("1.safetensors"), "{error}");
    assert!(
        error
            .location()
            .is_some_and(|it| it.ends_with("2.safetensors")),
        "{error}"
    );

    index(
        folder.path(),
        "model.safetensors.index.json",
        &[("a0", "2.safetensors")],
    );
    assert_all(&load(folder.path(), LoadOptions::default()), &[&shards[1]]);
}

#[test]
fn index_distinguishes_equal_shard_names_in_two_folders() {
    let folder = folder();
    let shards = [even("a", 1, 2, 100), even("a", 2, 2, 100)];
    write(&folder.path().join("one/m.safetensors"), &shards[0]);
    write(&folder.path().join("two/m.safetensors"), &shards[1]);
    index(
        folder.path(),
        "model.safetensors.index.json",
        &[("a0", "one/m.safetensors"), ("a1", "two/m.safetensors")],
    );
    let loaded = load(folder.path(), LoadOptions::default());
    assert_eq!(loaded.len(), 2);
    for tensor in &loaded {
        crate::files::assert_same(tensor, &shards[usize::from(tensor.name() == "a1")]);
    }
}

/// As `os.path.join` reads them: on Windows, which writes backslashes, and elsewhere.
#[test]
fn index_names_shards_with_dots_and_backslashes() {
    let folder = folder();
    let shards = [
        even("a", 1, 1, 100),
        even("b", 2, 1, 100),
        even("c", 3, 1, 100),
    ];
    write(&folder.path().join("deep/er/1.safetensors"), &shards[0]);
    write(&folder.path().join("2.safetensors"), &shards[1]);
    write(&folder.path().join("deep/3.safetensors"), &shards[2]);
    index(
        folder.path(),
        "model.safetensors.index.json",
        &[
            ("a0", "deep\\er\\1.safetensors"),
            ("b0", "./2.safetensors"),
            ("c0", ".\\deep//3.safetensors"),
        ],
    );
    let wanted: Vec<_> = shards.iter().map(Vec::as_slice).collect();
    assert_all(&load(folder.path(), LoadOptions::default()), &wanted);
    // Elsewhere than on Windows, such a file may exist.
    let other = even("a", 4, 1, 100);
    write(&folder.path().join("deep\\er\\1.safetensors"), &other);
    let wanted = [&other[..], &shards[1], &shards[2]];
    assert_all(&load(folder.path(), LoadOptions::default()), &wanted);
}

#[test]
fn shard_or_tensor_missing_from_index_target_is_error() {
    let folder = folder();
    write(&folder.path().join("1.safetensors"), &even("a", 1, 2, 100));
    let name = "model.safetensors.index.json";
    index(
        folder.path(),
        name,
        &[("a0", "1.safetensors"), ("b0", "2.safetensors")],
    );
    let error = open(folder.path()).expect_err("a shard is missing");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("\"2.safetensors\""), "{error}");

    index(
        folder.path(),
        name,
        &[
            ("a0", "1.safetensors"),
            ("c", "1.safetensors"),
            ("b", "1.safetensors"),
        ],
    );
    let error = open(folder.path()).expect_err("tensors are missing");
    assert_eq!(
        (error.kind(), error.tensor()),
        (ErrorKind::InvalidFormat, Some("b"))
    );
    assert!(error.message().contains("1 more"), "{error}");
    assert!(
        error.location().is_some_and(|it| it.ends_with(name)),
        "{error}"
    );
}

/// The file is sparse: reading it would take a terabyte of memory.
#[test]
fn index_over_limit_is_rejected_by_its_length() {
    let folder = folder();
    let path = index(folder.path(), "model.safetensors.index.json", &[("a", "1")]);
    for (len, is_refused) in [(100_000_000, false), (100_000_001, true), (1 << 40, true)] {
        let file = std::fs::OpenOptions::new().write(true).open(&path);
        file.and_then(|file| file.set_len(len))
            .expect("holes cost nothing");
        let error = open(&path).expect_err("not a valid index");
        assert_eq!(error.kind(), ErrorKind::InvalidFormat, "{error}");
        let wanted = format!("an index has at most 100000000 bytes, this one has {len}");
        assert_eq!(error.message() == wanted, is_refused, "{error}");
    }
}

#[test]
fn standard_index_name_wins_among_several() {
    let folder = folder();
    for shard in ["1", "2"] {
        let name = format!("{shard}.safetensors");
        write(&folder.path().join(&name), &even(shard, 1, 1, 10));
        let tensor = format!("{shard}0");
        let index_name = format!("{shard}.safetensors.index.json");
        index(folder.path(), &index_name, &[(&tensor, &name)]);
    }
    let error = open(folder.path()).expect_err("two indexes");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert!(
        error.message().contains("\"1.safetensors.index.json\""),
        "{error}"
    );
    let second = folder.path().join("2.safetensors.index.json");
    assert_eq!(names(&open(&second).expect("named")), ["20"]);

    index(
        folder.path(),
        "model.safetensors.index.json",
        &[("10", "1.safetensors")],
    );
    assert_eq!(
        names(&open(folder.path()).expect("the standard name")),
        ["10"]
    );
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).expect("there");
    std::fs::remove_file(second).expect("there");
    assert_eq!(names(&open(folder.path()).expect("the only one")), ["10"]);
}

#[test]
fn model_wins_over_other_models_of_folder() {
    let folder = folder();
    let put = |name: &str, prefix: &str| {
        write(&folder.path().join(name), &even(prefix, 1, 1, 100));
    };
    put("adapter_model.safetensors", "adapter");
    let alone = open(folder.path()).expect("opens");
    assert_eq!((names(&alone), alone.notes().len()), (vec!["adapter0"], 0));
    put("consolidated.00.safetensors", "consolidated");
    put("model-00001-of-00002.safetensors", "a");
    put("model-00002-of-00002.safetensors", "b");
    let sharded = open(folder.path()).expect("opens");
    assert_eq!(names(&sharded), ["a0", "b0"]);
    put("model.safetensors", "model");
    let single = open(folder.path()).expect("opens");
    assert_eq!(names(&single), ["model0"]);
    let [note] = single.notes() else {
        panic!("one note: {:?}", single.notes());
    };
    for name in ["adapter_model", "consolidated.00", "model-00002-of-00002"] {
        assert!(note.contains(&format!("{name}.safetensors")), "{note}");
    }
    let mut stream = Loader::new(single.clone()).stream().expect("starts");
    assert_eq!(stream.by_ref().count(), 1);
    assert_eq!(stream.report().notes, [note.as_str()]);

    // An index decides, and a list is what the caller chose.
    let consolidated = folder.path().join("consolidated.00.safetensors");
    let list = [
        location(&consolidated),
        location(&folder.path().join("model.safetensors")),
    ];
    let list = Checkpoint::open_all(&list).expect("opens");
    assert_eq!(
        (names(&list), list.notes().len()),
        (vec!["consolidated0", "model0"], 0)
    );
    index(
        folder.path(),
        "model.safetensors.index.json",
        &[("adapter0", "adapter_model.safetensors")],
    );
    let indexed = open(folder.path()).expect("opens");
    assert_eq!(names(&indexed), ["adapter0"]);
    let note = indexed.notes().concat();
    assert!(note.contains("left out: consolidated.00"), "{note}");
    assert!(note.contains("model.safetensors"), "{note}");
}

/// One directory with two models: the rule is the same, and both precedences name what they leave
/// out. A second index counts too.
#[test]
fn index_or_single_file_is_loaded_and_other_is_noted() {
    let folder = folder();
    for (name, tensor, seed) in [
        ("model.safetensors", "single", 1),
        ("model-00001-of-00001.safetensors", "shard", 2),
        ("consolidated.safetensors", "other", 3),
    ] {
        write(&folder.path().join(name), &even(tensor, seed, 1, 100));
    }
    let of_model = ("shard0", "model-00001-of-00001.safetensors");
    index(folder.path(), "model.safetensors.index.json", &[of_model]);
    let of_other = ("other0", "consolidated.safetensors");
    let second = "consolidated.safetensors.index.json";
    index(folder.path(), second, &[of_other]);

    for (precedence, tensor, left_out) in [
        (
            Precedence::Index,
            "shard0",
            &["consolidated.safetensors", second, "model.safetensors"],
        ),
        (
            Precedence::SingleFile,
            "single0",
            &[
                "model-00001-of-00001.safetensors",
                "model.safetensors.index.json",
                second,
            ],
        ),
    ] {
        let mut options = OpenOptions::default();
        options.precedence = precedence;
        let checkpoint = Checkpoint::open_with(location(folder.path()), options).expect("opens");
        assert_eq!(names(&checkpoint), [tensor]);
        let note = checkpoint.notes().concat();
        let (_, listed) = note.split_once("left out: ").expect("some are left out");
        for name in left_out {
            assert!(listed.contains(name), "{name}: {note}");
        }
    }
}

/// Programs that choose files themselves pass a list: the index beside the files decides there too.
#[test]
fn index_beside_listed_files_resolves_tensor_found_in_two() {
    let folder = folder();
    let shards = [even("a", 1, 2, 100), even("a", 2, 1, 100)];
    let paths = ["1.safetensors", "2.safetensors"].map(|name| folder.path().join(name));
    for (path, shard) in paths.iter().zip(&shards) {
        write(path, shard);
    }
    let list: Vec<_> = paths.iter().map(|path| location(path)).collect();
    let open = || Checkpoint::open_all(&list);
    let error = open().expect_err("the tensor is in two files");
    assert_eq!(error.kind(), ErrorKind::InvalidFormat);

    // An index of other tensors, and one that assigns the tensor to another file, decide nothing.
    let standard = "model.safetensors.index.json";
    for entries in [&[("a1", "1.safetensors")][..], &[("a0", "3.safetensors")]] {
        index(folder.path(), standard, entries);
        let error = open().expect_err("nothing decides");
        assert_eq!(error.tensor(), Some("a0"));
    }

    for (entry, shard) in [(("a0", "2.safetensors"), 1), (("a0", "1.safetensors"), 0)] {
        index(folder.path(), standard, &[entry]);
        let checkpoint = open().expect("the index decides");
        // A tensor that the index does not name is still one that the caller listed.
        assert_eq!(names(&checkpoint).len(), 2);
        let info = checkpoint.get("a0").expect("listed");
        assert_eq!(info.shard(), shard);
        // The index belongs to the state that another process requires.
        assert_eq!(checkpoint.state().len(), 3);
    }
    // Any other index that is alone.
    std::fs::remove_file(folder.path().join(standard)).expect("ours");
    let other = "x.safetensors.index.json";
    index(folder.path(), other, &[("a0", "2.safetensors")]);
    assert_eq!(
        open()
            .expect("opens")
            .get("a0")
            .map(tload::TensorInfo::shard),
        Some(1)
    );
    write(&folder.path().join(other), b"not JSON");
    let error = open().expect_err("a broken index");
    assert!(
        error.location().is_some_and(|it| it.ends_with(other)),
        "{error}"
    );
}

#[test]
fn unrelated_files_are_read_with_note() {
    let folder = folder();
    for (seed, name) in ["vae", "llama"].into_iter().enumerate() {
        let file = even(name, seed as u64, 1, 100);
        write(&folder.path().join(format!("{name}.safetensors")), &file);
    }
    let checkpoint = open(folder.path()).expect("opens");
    assert_eq!(names(&checkpoint), ["llama0", "vae0"]);
    let note = checkpoint.notes().concat();
    assert!(
        note.contains("llama.safetensors, vae.safetensors"),
        "{note}"
    );
}

#[test]
fn incomplete_numbered_set_is_error() {
    let folder = folder();
    let name = |number| format!("model-0000{number}-of-00003.safetensors");
    for number in [1, 3] {
        let file = even(&number.to_string(), number, 1, 10);
        write(&folder.path().join(name(number)), &file);
    }
    let error = open(folder.path()).expect_err("the second is missing");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.message().starts_with("shard 2 of 3 is missing"),
        "{error}"
    );
    write(&folder.path().join(name(2)), &even("2", 2, 1, 10));
    assert_eq!(
        names(&open(folder.path()).expect("whole")),
        ["10", "20", "30"]
    );
}

#[test]
fn shards_opened_in_parallel_stay_in_order() {
    let folder = folder();
    let files: Vec<_> = (0..64)
        .map(|number| even(&format!("{number}."), number, 3, 5000))
        .collect();
    for (number, file) in files.iter().enumerate() {
        write(&folder.path().join(format!("{number}.safetensors")), file);
    }
    let checkpoint = open(folder.path()).expect("opens");
    let wanted = (0..64).flat_map(|shard| (0..3).map(move |index| format!("{shard}.{index}")));
    assert!(names(&checkpoint).into_iter().eq(wanted));
    let files: Vec<_> = files.iter().map(Vec::as_slice).collect();
    assert_all(&load(folder.path(), LoadOptions::default()), &files);

    // The error names the first broken shard in shard order, whatever the order of the threads.
    for number in [63, 40, 17] {
        write(
            &folder.path().join(format!("{number}.safetensors")),
            b"short",
        );
        let error = open(folder.path()).expect_err("one is broken");
        let wanted = format!("/{number}.safetensors");
        assert!(
            error.location().is_some_and(|it| it.ends_with(&wanted)),
            "{error}"
        );
    }
}

#[test]
fn metadata_of_all_shards_is_merged() {
    let folder = folder();
    for (number, (key, value)) in [("format", "pt"), ("format", "np"), ("other", "x")]
        .iter()
        .enumerate()
    {
        let header = format!(r#"{{"__metadata__":{{"{key}":"{value}"}}}}"#);
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        write(&folder.path().join(format!("{number}.safetensors")), &file);
    }
    let checkpoint = open(folder.path()).expect("opens");
    let found: Vec<_> = checkpoint
        .metadata()
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(found, [("format", "pt"), ("other", "x")]);
    assert_eq!(checkpoint.shards()[1].metadata()["format"], "np");
}

#[test]
fn missing_or_irregular_file_is_named_in_error() {
    let folder = folder();
    let missing = folder.path().join("missing");
    let error = open(&missing).expect_err("missing");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::NotFound, Some(2))
    );
    assert_eq!(error.location(), missing.to_str());

    let error = open(folder.path()).expect_err("an empty folder");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("no *.safetensors"), "{error}");

    // A folder and a FIFO where a shard should be: neither hangs.
    let inner = folder.path().join("folder.safetensors");
    std::fs::create_dir(&inner).expect("a new folder");
    let error = open(folder.path()).expect_err("a folder is no shard");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    std::fs::remove_dir(&inner).expect("empty");
    let fifo = folder.path().join("fifo.safetensors");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("a new FIFO");
    for path in [&fifo, folder.path()] {
        let error = open(path).expect_err("a FIFO is no shard");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        assert_eq!(error.location(), fifo.to_str());
    }
}

#[test]
fn invalid_locations_have_their_error_kind() {
    for (text, kind) in [
        ("", ErrorKind::InvalidRequest),
        ("s3:///model", ErrorKind::InvalidRequest),
        ("ftp://host/model", ErrorKind::Unsupported),
        ("file://host/model", ErrorKind::InvalidRequest),
        ("file:///%ff", ErrorKind::InvalidRequest),
    ] {
        assert_eq!(
            Location::parse(text).expect_err(text).kind(),
            kind,
            "{text}"
        );
    }
}

/// Linux makes a thread wait some 10 ms if the file that it opens has no room in the table.
#[cfg(target_os = "linux")]
#[test]
fn opening_makes_room_for_descriptors() {
    let room = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
        let room = line.expect("a size").trim().parse::<usize>();
        room.expect("a number")
    };
    assert!(open(Path::new("/none")).is_err());
    let started = std::time::Instant::now();
    while room() < 1024 {
        assert!(started.elapsed().as_secs() < 60, "room for {}", room());
        tload_testbed::pause_between_looks();
    }
}
