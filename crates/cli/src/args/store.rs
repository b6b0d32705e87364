//! `--store`, the options of object stores. Values may be secrets, so nothing here checks them:
//! clap prints the values that it rejects.

use std::ffi::OsString;
use std::fmt::Write;

use clap::Arg;
use clap::builder::{Resettable, TypedValueParser};
use serde::{Deserialize, Serialize};
use tload::StoreOptions;

/// Separator of options in the variable. Unlike a comma, it cannot be part of a value.
const SEPARATOR: char = '\n';

#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct StoreArgs {
    /// Option of the object store, for example endpoint=http://127.0.0.1:9000; repeatable.
    /// `TLOAD_STORE` holds one per line; the flag takes precedence, key by key. See tload load
    /// --help for the keys
    #[arg(long = "store", value_name = "KEY=VALUE")]
    pub(crate) store: Vec<OsString>,
    /// Options from the variable.
    #[arg(
        long = "store-environment",
        value_delimiter = SEPARATOR,
        env = "TLOAD_STORE",
        hide = true
    )]
    pub(crate) environment: Vec<OsString>,
    /// Keep what is read from object stores in this directory, and read it from there next time
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "TLOAD_CACHE_DIR",
        hide_env_values = true
    )]
    pub(crate) cache_dir: Option<OsString>,
    /// Maximum size of the cache, for example 500GiB; evicts the least recently used objects
    #[arg(
        long,
        value_name = "SIZE",
        env = "TLOAD_CACHE_LIMIT",
        hide_env_values = true
    )]
    pub(crate) cache_limit: Option<OsString>,
    /// When to revalidate cached objects: always, never, or offline (no requests)
    #[arg(
        long,
        value_name = "WHEN",
        env = "TLOAD_CACHE_CHECK",
        hide_env_values = true
    )]
    pub(crate) cache_check: Option<OsString>,
    /// Download models of hf:// into the cache of `huggingface_hub` first, and read them there
    #[arg(
        long,
        value_name = "BOOL",
        env = "TLOAD_HF_CACHE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_env_values = true
    )]
    pub(crate) hf_cache: Option<OsString>,
}

impl StoreArgs {
    /// Returns the options that have a flag and a variable of their own, by their keys. Blank ones
    /// count as unset.
    pub(crate) fn of_cache(&self) -> impl Iterator<Item = (&'static str, &OsString)> {
        let options = [
            ("cache_dir", &self.cache_dir),
            ("cache_limit", &self.cache_limit),
            ("cache_check", &self.cache_check),
            ("hf_cache", &self.hf_cache),
        ];
        let set = options
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.as_ref()?)));
        set.filter(|(_, value)| !value.to_string_lossy().trim().is_empty())
    }
}

/// Makes a command that has no use for `--hf-cache` refuse it. The variable stays without an effect
/// there, since it is for all commands.
pub(super) fn without_hub_cache(flag: Arg) -> Arg {
    let refuse = clap::builder::StringValueParser::new()
        .try_map(|_| Err::<OsString, _>("this command neither fills nor reads that cache"));
    flag.hide(true).env(Resettable::Reset).value_parser(refuse)
}

/// Makes a command that reads no objects refuse the options of the cache. The variables stay
/// without an effect there.
pub(super) fn without_cache(flag: Arg) -> Arg {
    if !["cache_dir", "cache_limit", "cache_check", "hf_cache"].contains(&flag.get_id().as_str()) {
        return flag;
    }
    let refuse = clap::builder::StringValueParser::new().try_map(|_| {
        Err::<OsString, _>("this command reads no objects, and has no use for a cache")
    });
    flag.hide(true).env(Resettable::Reset).value_parser(refuse)
}

/// Returns the keys, one per line, for the end of a help text.
pub(super) fn keys() -> String {
    let known = StoreOptions::KEYS.iter().map(|key| (key.name, key.summary));
    let keys: Vec<_> = known
        .chain([("header.NAME", "header of every request")])
        .collect();
    let width = keys.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::from("Keys of --store; unset keys are read from the environment:\n");
    for (name, summary) in keys {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<width$}  {summary}");
    }
    text + "Names of the object_store crate (aws_…, google_…, azure_…) are accepted too."
}
