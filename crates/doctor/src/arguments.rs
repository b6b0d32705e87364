//! Arguments and variables of the command that set options of opening a checkpoint.

use std::ffi::OsString;

use tload::StoreOptions;

/// Options of opening, as the user wrote them.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// Pairs `KEY=VALUE` of `--store`.
    pub store: Vec<OsString>,
    /// Pairs `KEY=VALUE` of `TLOAD_STORE`.
    pub environment: Vec<OsString>,
    /// Options of stores that have a flag and a variable of their own, by their keys.
    pub own: Vec<(&'static str, OsString)>,
    /// Value of `--follow-symlinks`.
    pub follow_symlinks: bool,
}

impl Arguments {
    /// Returns the lists of pairs, each with its origin.
    pub(crate) fn lists(&self) -> [(&'static str, &[OsString]); 2] {
        [("--store", &self.store), ("TLOAD_STORE", &self.environment)]
    }

    /// Returns the list whose pairs set `key`.
    pub(crate) fn origin(&self, key: &str) -> Option<&'static str> {
        let sets = |option: &OsString| {
            let pair = option.to_str().map(StoreOptions::parse);
            matches!(pair, Some(Ok((name, _))) if name.eq_ignore_ascii_case(key))
        };
        let found = self
            .lists()
            .into_iter()
            .find(|(_, list)| list.iter().any(sets));
        found.map(|(origin, _)| origin)
    }
}
