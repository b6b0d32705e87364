//! `--store`: how object stores are reached. Values may be secrets, so nothing here checks them: what clap refuses it prints.

use std::ffi::OsString;
use std::fmt::Write;

use tload::StoreOptions;

/// What separates options in the variable: unlike a comma, no value can hold it.
const SEPARATOR: char = '\n';

#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Option of the object store, for example endpoint=http://127.0.0.1:9000; once for each option. `TLOAD_STORE`
    /// has one on each line; the flag wins, key by key. See tload load --help for the keys
    #[arg(long = "store", value_name = "KEY=VALUE")]
    pub(crate) store: Vec<OsString>,
    /// The variable.
    #[arg(
        long = "store-environment",
        value_delimiter = SEPARATOR,
        env = "TLOAD_STORE",
        hide = true
    )]
    pub(crate) environment: Vec<OsString>,
}

/// The keys, one a line, for the end of a help.
pub(super) fn keys() -> String {
    let known = StoreOptions::KEYS.iter().map(|key| (key.name, key.summary));
    let keys: Vec<_> = known
        .chain([("header.NAME", "header of every request")])
        .collect();
    let width = keys.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::from("Keys of --store; what is not set comes from the environment:\n");
    for (name, summary) in keys {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<width$}  {summary}");
    }
    text + "Names of the object_store crate (aws_…, google_…, azure_…) are taken too."
}
