//! Checkpoints in every layout, on every store: byte for byte as from a local disk.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use tempfile::TempDir;
use tload::{Dtype, ErrorKind};
use tload_testing::fixtures::{FileBuilder, Rng};

use crate::fixtures::{
    assert_same, even, folder, in_file_order, index, load, load_local, mixed, options,
};
use crate::sites::{Site, on_all_sites};

/// Site and local folder with the same contents.
struct Both {
    site: Rc<Site>,
    folder: TempDir,
}

impl Both {
    fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.path(key);
        let parent = path.parent().expect("below the folder");
        std::fs::create_dir_all(parent).expect("a temporary folder");
        std::fs::write(&path, bytes).expect("a temporary folder");
        self.site.put(key, bytes);
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.path().join(Path::new(key))
    }

    /// Asserts that the checkpoint at `path` is the same in both places; returns the names of its
    /// tensors.
    fn compare(&self, path: &str) -> Vec<String> {
        let wanted = load_local(&self.path(path));
        let checkpoint = self.site.checkpoint(path).expect(path);
        let bytes = checkpoint.total_bytes();
        for few in [None, Some(2)] {
            let options = options(|it| (it.order, it.depth) = (in_file_order().order, few));
            let (tensors, report) = load(&checkpoint, options).expect("loads");
            assert_same(&tensors, &wanted);
            assert_eq!(report.outcome, "complete");
            assert_eq!((report.tensor_bytes, report.retries), (bytes, 0), "{path}");
            assert_eq!(
                report.engine.name,
                if bytes > 0 { "object" } else { "none" }
            );
            assert!(report.remote_bytes >= bytes && report.requests > 0 || bytes == 0);
            assert_eq!(report.read_bytes, report.remote_bytes);
            assert!(report.memory_peak <= report.memory_limit);
        }
        let names = wanted.iter().map(|tensor| tensor.name().to_owned());
        names.collect()
    }
}

fn layouts(site: &Rc<Site>) {
    let (site, folder) = (Rc::clone(site), folder());
    let both = Both { site, folder };
    one_file(&both);
    odd_names(&both);
    big_header(&both);
    nothing(&both);
    with_index(&both);
    if both.site.lists() {
        without_index(&both);
    } else {
        unlisted(&both);
    }
}

on_all_sites!(layouts);

fn one_file(both: &Both) {
    both.put("one/model.safetensors", &mixed("one.", 1, 30, 200_000));
    assert_eq!(both.compare("one/model.safetensors").len(), 30);
    // The name does not tell the format.
    both.put("one/weights", &even("w", 2, 3, 1000));
    if both.site.lists() {
        assert_eq!(both.compare("one/weights").len(), 3);
    }
}

/// Names that URLs, signatures and indexes must encode.
const ODD_NAMES: [&str; 11] = [
    "with space",
    "grüße-模型",
    "a+b",
    "100%",
    "a%20b",
    "a&b=c",
    "a'b(c)",
    "a@b:c",
    "a~b;c,d",
    "a!b$c",
    "a#b?c",
];

fn odd_names(both: &Both) {
    for (seed, name) in ODD_NAMES.iter().enumerate() {
        if name.contains('#') && both.site.redirects() {
            // nginx does not encode `#` in the address that it redirects to.
            continue;
        }
        let folder = format!("odd/{name}");
        let file = format!("{folder}/{name}.safetensors");
        both.put(&file, &even("t", seed as u64, 3, 5000));
        assert_eq!(both.compare(&file).len(), 3);
        if both.site.lists() {
            assert_eq!(both.compare(&folder).len(), 3, "{folder}");
        }
        let index = index(&[("t1".to_owned(), &format!("{name}.safetensors"))]);
        both.put(&format!("{folder}/model.safetensors.index.json"), &index);
        assert_eq!(both.compare(&folder), ["t1"]);
    }
}

/// A header that does not fit into the first read, and more small tensors than one request should
/// cost.
fn big_header(both: &Both) {
    let mut rng = Rng::new(3);
    let name = "n".repeat(200);
    let file = (0..3000).fold(FileBuilder::new(), |file, index| {
        file.tensor(
            &format!("{name}{index:05}"),
            Dtype::U8,
            &[10],
            &rng.bytes(10),
        )
    });
    let file = file.build();
    assert!(file.len() > 700_000, "{}", file.len());
    both.put("big/model.safetensors", &file);
    assert_eq!(both.compare("big/model.safetensors").len(), 3000);
}

/// Tensors without bytes, files without tensors, and an object without bytes.
fn nothing(both: &Both) {
    let file = FileBuilder::new()
        .tensor("a", Dtype::F32, &[0], &[])
        .tensor("b", Dtype::F32, &[2], &[7; 8])
        .tensor("c", Dtype::U8, &[3, 0], &[]);
    both.put("nothing/some.safetensors", &file.build());
    assert_eq!(both.compare("nothing/some.safetensors"), ["a", "b", "c"]);
    let none = FileBuilder::new().tensor("a", Dtype::F32, &[0], &[]);
    both.put("nothing/none.safetensors", &none.build());
    assert_eq!(both.compare("nothing/none.safetensors"), ["a"]);
    both.put("nothing/no.safetensors", &FileBuilder::new().build());
    assert_eq!(both.compare("nothing/no.safetensors").len(), 0);

    for (name, bytes) in [("empty", &[][..]), ("short", &[1, 2, 3][..])] {
        let key = format!("nothing/{name}.safetensors");
        both.put(&key, bytes);
        let error = both.site.checkpoint(&key).expect_err("no header");
        assert_eq!(error.kind(), ErrorKind::InvalidFormat, "{}", error.chain());
        let location = error.location().expect("an error of an object");
        assert!(
            location.ends_with(&format!("{name}.safetensors")),
            "{location}"
        );
    }
}

fn with_index(both: &Both) {
    both.put("index/a.safetensors", &mixed("a", 5, 9, 50_000));
    both.put("index/b.safetensors", &mixed("b", 6, 9, 50_000));
    // Neither in the index nor a valid file.
    both.put("index/stray.safetensors", b"stray");
    let mut placed: Vec<_> = (0..9)
        .map(|at| (format!("b{at}"), "b.safetensors"))
        .collect();
    placed.extend((2..5).map(|at| (format!("a{at}"), "a.safetensors")));
    let index = index(&placed);
    both.put("index/model.safetensors.index.json", &index);
    assert_eq!(both.compare("index").len(), 12);
    assert_eq!(both.compare("index/").len(), 12);
    assert_eq!(both.compare("index/model.safetensors.index.json").len(), 12);
    both.put("other/x.safetensors.index.json", &index);
    both.put("other/a.safetensors", &mixed("a", 5, 9, 50_000));
    let error = both
        .site
        .checkpoint("other/x.safetensors.index.json")
        .expect_err("a shard is missing");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    assert!(error.message().contains("b.safetensors"), "{error}");
    assert!(error.hint().is_some());
    both.put("other/b.safetensors", &mixed("b", 6, 9, 50_000));
    assert_eq!(both.compare("other/x.safetensors.index.json").len(), 12);
    if both.site.lists() {
        assert_eq!(both.compare("other").len(), 12);
    }
}

fn without_index(both: &Both) {
    for (seed, number) in [10, 2, 1].into_iter().enumerate() {
        let file = even(&format!("{number}."), seed as u64, 2, 700);
        both.put(&format!("plain/m-{number}.safetensors"), &file);
    }
    // Hidden files and nested folders are ignored.
    both.put("plain/.hidden.safetensors", b"hidden");
    both.put("plain/below/x.safetensors", b"below");
    both.put("plain/readme.txt", b"text");
    let names = ["1.0", "1.1", "2.0", "2.1", "10.0", "10.1"];
    assert_eq!(both.compare("plain"), names);
    assert_eq!(both.compare("plain/"), names);

    both.put("two/model.safetensors", &even("m", 5, 2, 70));
    both.put("two/adapter_model.safetensors", &even("a", 6, 2, 70));
    assert_eq!(both.compare("two"), ["m0", "m1"]);
    let two = both.site.checkpoint("two").expect("opens");
    let note = two.notes().concat();
    assert!(note.contains("adapter_model.safetensors"), "{note}");

    both.put("set/m-00001-of-00002.safetensors", &even("a", 8, 1, 10));
    let error = both.site.checkpoint("set").expect_err("half a set");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("shard 2 of 2"), "{error}");

    both.put("deep/below/x.safetensors", b"x");
    let error = both
        .site
        .checkpoint("deep")
        .expect_err("no checkpoint at this level");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.chain());
    assert!(
        error.hint().expect("a hint").contains("below"),
        "{}",
        error.chain()
    );
    for path in ["none", "none/"] {
        let error = both.site.checkpoint(path).expect_err("no such path");
        assert_eq!(
            error.kind(),
            ErrorKind::NotFound,
            "{path}: {}",
            error.chain()
        );
    }
}

/// Web servers do not list.
fn unlisted(both: &Both) {
    both.put("single/model.safetensors", &even("s", 9, 2, 700));
    assert_eq!(both.compare("single").len(), 2);
    assert_eq!(both.compare("single/").len(), 2);
    both.put("neither/x.safetensors", &even("s", 9, 2, 700));
    let error = both.site.checkpoint("neither").expect_err("no known name");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.hint().expect("a hint").contains("index"),
        "{}",
        error.chain()
    );
}
