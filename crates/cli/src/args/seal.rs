//! `tload seal`, `tload unseal`, `tload rekey`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;

use super::key::KeyArgs;
use super::location;
use super::store::StoreArgs;

/// Encrypt a checkpoint into a new directory.
///
/// All files of the source are sealed, in the format of Google Tink's streaming AEAD, and read as
/// before by everything in tload that is given the key. File names and lengths stay visible.
#[derive(Debug, clap::Args)]
pub(crate) struct SealArgs {
    #[arg(value_name = "LOCATION", help = location::help("of the directory to seal"))]
    pub(crate) from: OsString,
    /// Directory to write, which must not exist
    #[arg(value_name = "DIR")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) recipients: RecipientArgs,
    /// Write a new key, a keyset of Tink, to this file, and seal with it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_file", "key_command"])]
    pub(crate) new_key_file: Option<PathBuf>,
    /// Cipher of a new key
    #[arg(long, value_enum, default_value_t = CipherArg::Aes256)]
    pub(crate) cipher: CipherArg,
    /// Leave files that match this glob readable, such as config.json; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) plain: Vec<String>,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Decrypt a sealed checkpoint into a new directory.
///
/// Every file is compared with the sealed manifest.
#[derive(Debug, clap::Args)]
pub(crate) struct UnsealArgs {
    #[arg(value_name = "LOCATION", help = location::help("of the sealed directory"))]
    pub(crate) from: OsString,
    /// Directory to write, which must not exist
    #[arg(value_name = "DIR")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Wrap the key of a sealed checkpoint to other recipients.
///
/// Only the file sealed.json is replaced. Readers of before may have kept the data key: to lock
/// one out, seal again.
#[derive(Debug, clap::Args)]
pub(crate) struct RekeyArgs {
    /// Sealed directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) recipients: RecipientArgs,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

/// Public keys that a data key is wrapped to.
#[derive(Debug, clap::Args)]
pub(crate) struct RecipientArgs {
    /// Recipient of age (age1…), of one of its plugins, or public key of SSH; may be repeated
    #[arg(short, long, value_name = "RECIPIENT")]
    pub(crate) recipient: Vec<String>,
    /// File of recipients, one a line; may be repeated
    #[arg(short = 'R', long, value_name = "FILE")]
    pub(crate) recipients_file: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CipherArg {
    /// AES-256-GCM
    Aes256,
    /// AES-128-GCM
    Aes128,
}
