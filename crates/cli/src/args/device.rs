//! `--device`: where tensors are to live, for `tload load` and `tload bench`.

#[derive(Debug, clap::Args)]
pub(crate) struct DeviceArg {
    /// Where the tensors are to live: cpu, or a CUDA GPU by its number in this process, cuda:N (cuda is cuda:0)
    // Text: which devices this build and this machine have is not clap's to say.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
}
