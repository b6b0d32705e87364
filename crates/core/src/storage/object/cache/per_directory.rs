//! Resources that all caches in one directory share: threads and memory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Most sets of resources of a process. More directories at a time share them.
const DIRECTORIES_MAX: usize = 4;

/// Resources of each directory, while a cache in it is open. A file system that does not respond
/// holds up its own only.
#[derive(Debug)]
pub(super) struct PerDirectory<T>(Vec<(PathBuf, Weak<T>)>);

impl<T> Default for PerDirectory<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> PerDirectory<T> {
    /// Returns the resources for a directory: those of another one if there are too many.
    pub(super) fn share(&mut self, directory: &Path) -> Arc<T> {
        self.0.retain(|(_, shared)| shared.strong_count() > 0);
        let mut known = self.0.iter();
        let own = known.find(|(path, _)| path == directory);
        let is_full = self.0.len() >= DIRECTORIES_MAX;
        let least_used = || {
            let all = is_full.then_some(&self.0)?;
            all.iter().min_by_key(|(_, shared)| shared.strong_count())
        };
        let found = own.or_else(least_used);
        // The last cache may have been closed since.
        if let Some(shared) = found.and_then(|(_, shared)| shared.upgrade()) {
            return shared;
        }
        let made = Arc::<T>::default();
        self.0.push((directory.to_owned(), Arc::downgrade(&made)));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_share_resources_only_if_there_are_too_many() {
        let mut all = PerDirectory::<String>::default();
        let mut share = |name: &str| all.share(Path::new(name));
        let first = share("1");
        let others = ["2", "3", "4"].map(&mut share);
        assert!(Arc::ptr_eq(&first, &share("1")));
        assert!(others.iter().all(|other| !Arc::ptr_eq(&first, other)));
        let again = others.clone();
        let fifth = share("5");
        assert!(Arc::ptr_eq(&first, &fifth), "has the fewest users");
        drop((first, fifth));
        let sixth = share("6");
        let mut others = others.iter().chain(&again);
        assert!(others.all(|other| !Arc::ptr_eq(&sixth, other)));
    }
}
