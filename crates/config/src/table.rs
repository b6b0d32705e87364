//! Names of the file's keys, all of them from the tables of the crates below.

use tload::internal::{OptionKey, OptionKind};
use tload::{LoadOptions, StoreOptions};
use tload_base::options::{Form, StoreKey};

use crate::values::Kind;

/// Beginning of the names of store options that are keys of `[cache]` without it.
pub(crate) const CACHE: &str = "cache_";

/// Store options with places that have the same files as a location. They are of prefixes only, and
/// name what is below the prefix.
pub(crate) const LISTS: [&str; 2] = ["mirrors", "peers"];

/// Options that are paths of this machine. The file is read in any directory, so that a relative
/// path would lead anywhere.
pub(crate) const PATHS: [&str; 3] = ["cache_dir", "ca_file", "service_account"];

/// Returns the options of loads that have a variable, which are those of `[load]`.
pub(crate) fn load() -> impl Iterator<Item = (&'static OptionKey, String)> {
    let keys = LoadOptions::KEYS.iter();
    keys.filter_map(|key| Some((key, key.variable()?)))
}

/// Returns the options of stores.
pub(crate) fn store() -> impl Iterator<Item = &'static StoreKey> {
    StoreOptions::KEYS.iter()
}

/// Returns the options of `[cache]`, each with its name there.
pub(crate) fn cache() -> impl Iterator<Item = (&'static str, &'static StoreKey)> {
    store().filter_map(|key| Some((key.name.strip_prefix(CACHE)?, key)))
}

pub(crate) fn kind_of_load(kind: OptionKind) -> Kind {
    match kind {
        OptionKind::Choice(_) => Kind::Text,
        OptionKind::Flag => Kind::Flag,
        OptionKind::Count(..) => Kind::Count,
        OptionKind::Bytes(..) => Kind::Bytes,
        OptionKind::Duration => Kind::Duration,
        OptionKind::Verify => Kind::FlagOrText,
    }
}

pub(crate) fn kind_of_store(form: Form) -> Kind {
    match form {
        Form::Text | Form::Url | Form::Addressing | Form::CacheCheck => Kind::Text,
        Form::Flag => Kind::Flag,
        Form::Duration => Kind::Duration,
        Form::Count => Kind::Count,
        Form::Bytes => Kind::Bytes,
        Form::Locations => Kind::List,
    }
}
