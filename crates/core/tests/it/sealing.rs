//! Sealed copies of plain checkpoints, for tests of either.

use std::path::Path;

use tload::extend::CancelFlag;
use tload::sealed::{Algorithm, Recipients, SealOptions, seal, write_new_key};
use tload::{Key, Location, StoreOptions};

/// Creates a key in a new file.
pub(crate) fn new_key(algorithm: Algorithm, path: &Path) -> Key {
    write_new_key(algorithm, path).expect("writes");
    Key::from_file(path)
}

/// Seals the directory `plain` into a new one.
pub(crate) fn seal_with(key: &Key, plain: &Path, to: &Path) -> tload::Result<()> {
    let options = SealOptions {
        // That of the key counts.
        algorithm: Algorithm::Aes256,
        recipients: Recipients::new(),
        key: Some(key.clone()),
        plain: Vec::new(),
    };
    let (from, store) = (Location::from_path(plain), StoreOptions::new());
    seal(&from, &store, to, &options, &CancelFlag::default()).map(drop)
}
