//! Encrypted checkpoints: Tink's streaming AEAD, and keys wrapped by age.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! [`stream`] is the format of a single file, without I/O. `keyset` has the data key, `key` the
//! keys that users give, `recipients` those that a data key is wrapped to; `key_file` and
//! `manifest` are the two files that a sealed checkpoint has beside its own. `opened` ties them
//! together for readers, `seals` says when, and `source` shows a sealed file as what it was before.
//! `new_checkpoint` seals files one by one, `writing` a
//! whole checkpoint; it unseals and wraps anew too. `docs/reference/sealed.md` defines the layout.

mod fuzz;
mod key;
mod key_file;
mod keyset;
mod manifest;
mod new_checkpoint;
mod opened;
mod recipients;
mod seals;
mod source;
pub mod stream;
mod writing;

pub use fuzz::assert_formats_are_bounded;
pub use key::Key;
pub use key_file::{KEY_FILE_NAME, KeyFile};
pub use keyset::MainKey;
pub use manifest::{MANIFEST_NAME, Manifest, ManifestEntry, associated};
pub use new_checkpoint::NewCheckpoint;
pub use opened::{FIRST_BYTES, OpenStored, OpenedSource, SealedCheckpoint};
pub use recipients::Recipients;
pub use seals::Seals;
pub use writing::{SealOptions, WrittenCheckpoint, rekey, seal, unseal, write_new_key};
