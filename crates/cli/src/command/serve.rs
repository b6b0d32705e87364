//! `tload serve`: serves files over HTTP until a signal arrives.

use std::io::Write;

use tload::Result;
use tload::internal::printable;
use tload_serve::Server;

use crate::args::ServeArgs;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{chain, standard_output, warn};

pub(crate) fn run(args: &ServeArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let options = options::serve(args)?;
    let server = Server::bind(&options)?;
    let location = match &options.location {
        Some(location) => printable(&location.to_string()),
        None => "the cache".to_owned(),
    };
    let address = server.address();
    if !address.ip().is_loopback() {
        if options.token_file.is_none() {
            warn(&format!(
                "warning: everyone who reaches {address} can read {location}: --token-file requires a token"
            ));
        } else if options.tls.is_none() {
            warn(&format!(
                "warning: tokens are sent to {address} without encryption: use --tls-cert and --tls-key"
            ));
        }
    }
    if let Some(doubt) = server.doubt() {
        let doubt = chain(doubt).replace("\n  ", "; ");
        warn(&format!(
            "warning: requests fail until this is mended: {doubt}"
        ));
    }
    writeln!(out, "serving {location} at {}", server.url())
        .and_then(|()| out.flush())
        .map_err(standard_output)?;
    server.run(|timeout| interrupt.wait(timeout).is_err());
    Ok(())
}
