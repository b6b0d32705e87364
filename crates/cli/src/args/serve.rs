//! `tload serve`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tload::{Error, ErrorKind, Result};

use super::store::{self, StoreArgs};

/// Longest time for `--client-timeout`. A deadline far beyond it cannot be represented.
const CLIENT_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Serve a directory, a file or objects over HTTP, read-only.
///
/// Browsers, curl and the other commands of tload can read from it: it answers ranges and
/// conditional requests. Runs until it is interrupted.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Files and directories below DIR are served, but not those whose names begin with a dot. Symbolic
links are followed if they stay in DIR. GET / and other directories have a list, in HTML or, with
?format=json or the header Accept: application/json, in JSON. GET /metrics has counters in the
format of Prometheus. Everything else is a file.

A file that changes while it is sent ends the connection: replace files by renaming new ones.

Objects below a URL are passed on, through the cache if there is one (--cache-dir), so that many
machines ask the store once. --cache serves what the cache has and asks no store; paths begin with
scheme and bucket: /s3/models/llama/model.safetensors. Its lists have complete objects only.")]
#[command(mut_arg("hf_cache", store::without_hub_cache))]
pub(crate) struct ServeArgs {
    /// Directory, file or URL to serve
    #[arg(value_name = "LOCATION", required_unless_present = "cache")]
    pub(crate) location: Option<OsString>,
    /// Serve the objects in the cache
    #[arg(long, conflicts_with = "location")]
    pub(crate) cache: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Address and port to listen on; port 0 chooses a free one. 0.0.0.0:8080 listens on all
    /// addresses of the machine
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,
    /// Require the token in this file: Authorization: Bearer TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Serve HTTPS with this PEM certificate chain, server certificate first
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Maximum open connections; clients beyond it wait until others end
    #[arg(
        long,
        value_name = "N",
        default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    pub(crate) max_connections: u32,
    /// Close connections of clients that send no request, or accept no bytes, for this long
    #[arg(
        long,
        value_name = "TIME",
        value_parser = client_timeout,
        default_value = "30s"
    )]
    pub(crate) client_timeout: Duration,
}

fn client_timeout(text: &str) -> Result<Duration> {
    let timeout = tload::internal::parse_duration(text)?;
    if timeout > CLIENT_TIMEOUT_MAX {
        let message = format!("{text:?} is longer than 24h");
        return Err(Error::new(ErrorKind::InvalidRequest, message));
    }
    Ok(timeout)
}
