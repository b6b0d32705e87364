//! The configuration file of tload, `~/.config/tload/config.toml`: options of loads, and options of
//! stores for all locations or for those below a prefix.
//!
//! Programs depend on the crate `tload`, and on this one if they want what the user configured: the
//! command and the Python package do. A Rust program asks for it, since a library that reads files
//! by itself surprises its callers:
//!
//! ```no_run
//! use tload::{Checkpoint, Location};
//! use tload_config::Config;
//!
//! let config = Config::current()?;
//! let location = Location::parse("s3://models/llama")?;
//! let store = config.store_options(std::slice::from_ref(&location))?;
//! let checkpoint = Checkpoint::open_with(&location, store)?;
//! let stream = checkpoint.load().options(config.load_options()?).stream()?;
//! # Ok::<(), tload::Error>(())
//! ```
//!
//! `file` finds the file and checks its owner and mode; `parse` reads it, by the tables of options
//! of the crates below (`table`, `values`); `prefix` says which locations a table is for. No option
//! is defined here, and a value from the file passes the same checks as an argument. `redact` hides
//! the secrets of a command line; `flags` names options in errors.

#![forbid(unsafe_code)]

mod file;
mod flags;
mod parse;
mod prefix;
pub mod redact;
mod secrets;
mod table;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tload::{Error, LoadOptions, Location, Result, StoreOptions};

pub use file::VARIABLE;
pub use flags::{flag, with_origin};

use prefix::{Prefix, url};

/// Contents of the configuration file. Empty without a file.
#[derive(Clone, Debug, Default)]
pub struct Config {
    file: Option<PathBuf>,
    load: Vec<Setting>,
    store: Vec<Setting>,
    prefixes: Vec<(Prefix, Vec<Setting>)>,
}

/// One key of the file, with its value as text, which holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Table that it is in, as the file writes it: `[load]`, `[store."s3://models/"]`.
    pub table: String,
    /// Name of the option: a field of [`LoadOptions`], or a key of [`StoreOptions`].
    pub option: &'static str,
    /// Value, as [`LoadOptions::set`] and [`StoreOptions::set`] take it.
    pub value: String,
    /// Line of the file, from 1.
    pub line: usize,
}

impl Setting {
    /// Returns the key, as the file writes it.
    pub fn key(&self) -> &'static str {
        if self.table == "[cache]" {
            return self
                .option
                .strip_prefix(table::CACHE)
                .unwrap_or(self.option);
        }
        self.option
    }

    /// Returns whether it is an option of loads; else it is one of stores.
    pub fn is_of_loads(&self) -> bool {
        self.table == "[load]"
    }
}

impl Config {
    /// Returns what the file of this process's environment says: the one that `TLOAD_CONFIG` names
    /// (none, if it is empty), else `tload/config.toml` in `XDG_CONFIG_HOME` or `~/.config`, if it
    /// exists.
    ///
    /// The file is read again when it has changed.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`](tload::ErrorKind::InvalidRequest) that names the file, the line and the
    /// key; [`PermissionDenied`](tload::ErrorKind::PermissionDenied) if another user owns the file
    /// or may write to it; [`NotFound`](tload::ErrorKind::NotFound) if `TLOAD_CONFIG` names a file
    /// that does not exist.
    pub fn current() -> Result<Arc<Self>> {
        file::current(|name| std::env::var_os(name))
    }

    /// Returns the file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns the value of an option of loads, by the name of its field.
    pub fn option(&self, name: &str) -> Option<&str> {
        let setting = self.load.iter().find(|setting| setting.option == name);
        setting.map(|setting| &*setting.value)
    }

    /// Returns the options of loads.
    ///
    /// # Errors
    ///
    /// None, in practice: reading the file has checked them.
    pub fn load_options(&self) -> Result<LoadOptions> {
        let mut options = LoadOptions::default();
        for setting in &self.load {
            options.set(setting.option, &setting.value)?;
        }
        Ok(options)
    }

    /// Returns the options of stores for a checkpoint that consists of these files, or for one
    /// location; without any, those for every location. Of several prefixes, the longest decides,
    /// key by key.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`](tload::ErrorKind::InvalidRequest) if prefixes give the files of one
    /// checkpoint different options.
    pub fn store_options(&self, locations: &[Location]) -> Result<StoreOptions> {
        let general = self.store.iter();
        let general: BTreeMap<_, _> = general
            .map(|setting| (setting.option, setting.value.clone()))
            .collect();
        let mut common = None;
        for url in locations.iter().filter_map(url) {
            let mut options = general.clone();
            for (setting, value) in self.of_prefixes(&url)? {
                options.insert(setting.option, value);
            }
            match &common {
                None => common = Some(options),
                Some(others) if *others == options => {}
                Some(_) => return Err(self.differing()),
            }
        }
        let options = common.unwrap_or(general).into_iter();
        // An empty list in the table of a longer prefix takes the mirrors of a shorter one away.
        StoreOptions::from_pairs(options.filter(|(_, value)| !value.is_empty()))
    }

    /// Returns all keys of the file: those of loads, of every location, and of prefixes, shorter
    /// ones first.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        let of_prefixes = self.prefixes.iter().flat_map(|(_, settings)| settings);
        self.load.iter().chain(&self.store).chain(of_prefixes)
    }

    /// Returns the keys of prefixes of `url`, shorter ones first, with their values for it.
    fn of_prefixes(&self, url: &str) -> Result<Vec<(&Setting, String)>> {
        let mut found = Vec::new();
        for (prefix, settings) in &self.prefixes {
            let Some(rest) = prefix.rest(url) else {
                continue;
            };
            for setting in settings {
                let value = if table::LISTS.contains(&setting.option) {
                    prefix::below(&setting.value, url, rest)?
                } else {
                    setting.value.clone()
                };
                found.push((setting, value));
            }
        }
        Ok(found)
    }

    fn differing(&self) -> Error {
        let file = self.file.as_deref().unwrap_or(Path::new(""));
        let message = "gives the files of one checkpoint different store options";
        Error::invalid_request(message)
            .with_location(file.display())
            .with_hint("pass the store options of this checkpoint, or set TLOAD_CONFIG to nothing")
    }
}

#[cfg(test)]
mod tests;
