//! Keys of encrypted checkpoints, for every command that opens checkpoints.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct KeyArgs {
    /// File with the key of a sealed checkpoint: identities of age, a private key of SSH, or a
    /// keyset of Tink; or with that of a .tensors file: 32 bytes, 64 hexadecimal digits, or its
    /// passphrase. The variable `TLOAD_KEY` holds the key itself
    #[arg(
        long,
        value_name = "FILE",
        env = "TLOAD_KEY_FILE",
        hide_env_values = true
    )]
    pub(crate) key_file: Option<PathBuf>,
    /// Command that prints the key of a sealed checkpoint, which `sh` runs
    #[arg(
        long,
        value_name = "COMMAND",
        env = "TLOAD_KEY_COMMAND",
        hide_env_values = true
    )]
    pub(crate) key_command: Option<String>,
}
