//! `--device` of `tload load` and `tload bench`.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct DeviceArg {
    /// Device for the tensors: cpu, or cuda:N for a CUDA GPU by its number in this process (cuda is
    /// cuda:0)
    // Text: clap does not know which devices this build and this machine have.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
}
