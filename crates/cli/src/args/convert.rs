//! `tload convert`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::location;
use super::store::StoreArgs;
use super::time::TimeArgs;

/// Write a file of Tensorizer, plain or encrypted, as safetensors.
///
/// Every tensor is compared with the digests and authenticators that the file has of it. Memory
/// does not depend on the sizes of tensors. DIR/model.safetensors appears once everything has
/// matched. Plain files need no conversion: all commands and libraries load them as they are.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Tensors have the names of state_dict(): without the dot that Tensorizer puts before those of the
outermost module; keys and positions of nested state dictionaries are joined by dots. Meta tensors,
which have no bytes, become zeros, as in Tensorizer.

A wrong or missing key exits with 5, damage with 4 or 11. Keys are in no output.

JSON: {location, path, tensors, bytes, decrypted, zeros, seconds}; `zeros` are the names of meta
tensors.")]
pub(crate) struct ConvertArgs {
    #[arg(value_name = "FILE", help = location::help("of a .tensors file"))]
    pub(crate) source: OsString,
    /// Directory for model.safetensors, created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) target: PathBuf,
    /// File with the key of an encrypted file: 32 bytes, or 64 hexadecimal digits
    #[arg(long, value_name = "PATH", conflicts_with = "passphrase_file")]
    pub(crate) key_file: Option<PathBuf>,
    /// File with the string that the key was derived from (`EncryptionParams.from_string`)
    #[arg(long, value_name = "PATH")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// Replace an existing model.safetensors
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}
