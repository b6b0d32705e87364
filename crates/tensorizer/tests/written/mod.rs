//! Files that the package tensorizer wrote (`written_by_tensorizer.py`), and the tensors that it
//! reads from them. For the tests of several crates.

use std::collections::BTreeMap;
use std::path::Path;

/// Dtype, shape and SHA-256 of the bytes, by name.
pub(crate) type Tensors = BTreeMap<String, (String, String, String)>;

fn text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tensorizer/tests/files");
    std::fs::read_to_string(folder.join(name)).expect("a file of the repository")
}

/// Returns a file. It is recorded as text: its length, and those bytes that are not zero.
pub(crate) fn written(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text(&format!("{name}.txt")).lines() {
        let (place, value) = line.split_once(' ').expect("two columns");
        if place == "length" {
            bytes.resize(value.parse().expect("a number"), 0);
            continue;
        }
        let place: usize = place.parse().expect("a number");
        for at in 0..value.len() / 2 {
            let byte = u8::from_str_radix(&value[2 * at..][..2], 16);
            bytes[place + at] = byte.expect("two digits");
        }
    }
    bytes
}

/// Returns the tensors of a file, according to the package.
pub(crate) fn expected(file: &str) -> Tensors {
    let text = text("tensors.txt");
    let rows = text
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    rows.filter(|row| row[0] == file)
        .map(|row| {
            let [name, dtype, shape, sha256] = [1, 2, 3, 4].map(|at| row[at].to_owned());
            (name, (dtype, shape, sha256))
        })
        .collect()
}
