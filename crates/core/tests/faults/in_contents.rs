//! Faults in a file's contents: a few of each kind. `tests/it/hostile.rs` has all of them, with
//! their exact messages.

use tload::ErrorKind::InvalidFormat;
use tload::sealed::Algorithm;
use tload::{Dtype, Loader, Location, OpenOptions};
use tload_testing::fixtures::FileBuilder;

use crate::bench::{Oracle, load, watched};
use crate::files::{folder, write};
use crate::row::{Ended, Names, Outcome, Place, Retried, Row, Via, fails};
use crate::sealing::{new_key, seal_with};

/// Row about a file, with the file.
#[derive(Clone, Debug)]
pub(crate) struct ContentFault {
    pub(crate) row: Row,
    file: Vec<u8>,
}

fn row(fault: &'static str, made: &str, file: Vec<u8>, outcome: Outcome) -> ContentFault {
    ContentFault {
        row: Row {
            place: Place::Contents,
            fault,
            made: made.to_owned(),
            engines: &[Via::Pread],
            outcome,
        },
        file,
    }
}

/// Returns a file of this header, with its length in front and `bytes` zeros behind.
fn file(header: &str, bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + bytes, 0);
    file
}

/// Returns a file of two four-byte tensors at these offsets.
fn two(a: [u64; 2], b: [u64; 2]) -> Vec<u8> {
    let entry = |name, [begin, end]: [u64; 2]| {
        format!(r#""{name}":{{"dtype":"U8","shape":[4],"data_offsets":[{begin},{end}]}}"#)
    };
    file(&format!("{{{},{}}}", entry("0.a", a), entry("0.b", b)), 8)
}

fn whole() -> Vec<u8> {
    FileBuilder::new()
        .tensor("0.a", Dtype::U8, &[4096], &[7; 4096])
        .build()
}

pub(crate) fn rows() -> Vec<ContentFault> {
    let refused =
        |says: &'static [&'static str], names| fails(InvalidFormat, says, names, Retried::No);
    let cut = |len| whole()[..len].to_vec();
    let mut huge = whole();
    huge[..8].copy_from_slice(&(1_u64 << 62).to_le_bytes());
    vec![
        row(
            "an empty file",
            "0 bytes",
            Vec::new(),
            refused(&["0 bytes", "wanted at least 8"], Names::Location),
        ),
        row(
            "a file that ends inside its header",
            "the first 20 bytes of a valid file",
            cut(20),
            refused(&["header"], Names::Range),
        ),
        row(
            "a file that ends inside a tensor",
            "a valid file without its last byte",
            cut(whole().len() - 1),
            refused(&["0.a"], Names::TensorAndRange),
        ),
        row(
            "a header that claims to be longer than the file",
            "a length of 2^62",
            huge,
            refused(&["header length of 4611686018427387904"], Names::Range),
        ),
        row(
            "a header that is not JSON",
            "`{\"a\":`",
            file("{\"a\":", 8),
            refused(&["JSON"], Names::Range),
        ),
        row(
            "tensors that overlap",
            "offsets 0..4 and 2..6",
            two([0, 4], [2, 6]),
            refused(&["0.b"], Names::TensorAndRange),
        ),
        row(
            "bytes that belong to no tensor",
            "offsets 0..4 and 5..9",
            two([0, 4], [5, 9]),
            refused(&["0.b"], Names::TensorAndRange),
        ),
        row(
            "a tensor whose shape does not fit its bytes",
            "`U8`, shape 4, offsets 0..3",
            two([0, 3], [3, 7]),
            refused(&["0.a"], Names::TensorAndRange),
        ),
        row(
            "a tensor that ends before it begins",
            "offsets 4..0",
            two([4, 0], [4, 8]),
            refused(&["0.a"], Names::Tensor),
        ),
        row(
            "an incomplete download",
            "a Git LFS pointer in place of the file",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n".to_vec(),
            refused(&["git-lfs pointer", "git lfs pull"], Names::Location),
        ),
    ]
}

impl ContentFault {
    /// Runs the row with a plain file, or with one that is sealed with a new key; returns `None` if
    /// it hangs.
    pub(crate) fn run(&self, is_sealed: bool) -> Option<Ended> {
        let folder = folder();
        let path = |name: &str| folder.path().join(name);
        write(&path("plain/m-0.safetensors"), &self.file);
        let key = is_sealed.then(|| {
            let key = new_key(Algorithm::Aes128, &path("key.json"));
            seal_with(&key, &path("plain"), &path("sealed")).expect("seals");
            key
        });
        let directory = if is_sealed { "sealed" } else { "plain" };
        let location = Location::from_path(path(directory).join("m-0.safetensors"));
        let mut options = OpenOptions::default();
        options.key = key;
        let oracle = Oracle(vec![self.file.clone()]);
        let loader = || Loader::open_with(&location, &options);
        let ended = watched(
            || load(&oracle, loader(), |tensor| tensor.bytes().to_vec()),
            || (),
            || (),
        );
        // Errors here also name bytes past the end of the file.
        ended.map(|ended| Ended {
            file_len: None,
            ..ended
        })
    }
}
