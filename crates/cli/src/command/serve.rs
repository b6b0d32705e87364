//! `tload serve`: serves files over HTTP until a signal arrives.

use std::io::Write;

use tload::{Result, printable};

use crate::args::ServeArgs;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{standard_output, warn};
use crate::serve::Listening;

pub(crate) fn run(args: &ServeArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let settings = options::serve(args)?;
    let listening = Listening::start(&settings)?;
    let location = match &settings.location {
        Some(location) => printable(&location.to_string()),
        None => "the cache".to_owned(),
    };
    if !listening.address().ip().is_loopback() {
        let address = listening.address();
        if settings.token_file.is_none() {
            warn(&format!(
                "warning: everyone who reaches {address} can read {location}: --token-file requires a token"
            ));
        } else if settings.tls.is_none() {
            warn(&format!(
                "warning: tokens are sent to {address} without encryption: use --tls-cert and --tls-key"
            ));
        }
    }
    writeln!(out, "serving {location} at {}", listening.url())
        .and_then(|()| out.flush())
        .map_err(standard_output)?;
    listening.run(interrupt);
    Ok(())
}
