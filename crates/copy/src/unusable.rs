//! Names at the source that cannot be the names of files in a directory: keys of stores with empty
//! components, dots or control characters, names that are not UTF-8, names that are too long for
//! the file system of the target, and files with the name of a folder. A copy leaves them out, and
//! then fails unless `skip_unusable` is set.

use std::collections::HashSet;

use super::list::Entry;
use super::paths;
use super::target::TargetDir;
use crate::error::{Error, Result, shortened};
use crate::options::Location;

/// Longest list in an error.
const SHOWN_MAX: usize = 5;

/// Splits entries into those that can be copied into one directory, and the names of the others.
/// An empty file with the name of a folder stands for that folder, and is in neither.
pub(super) fn split(entries: Vec<Entry>) -> (Vec<Entry>, Vec<String>) {
    let mut folders = HashSet::new();
    for entry in &entries {
        let mut folder = entry.name.as_str();
        // If a folder is known, the folders above it are too.
        while let Some((above, _)) = folder.rsplit_once('/') {
            if !folders.insert(above.to_owned()) {
                break;
            }
            folder = above;
        }
    }
    let (mut usable, mut unusable) = (Vec::new(), Vec::new());
    for entry in entries {
        let is_folder = folders.contains(&entry.name);
        let is_empty = entry.listed.as_ref().is_some_and(|listed| listed.len == 0);
        if paths::components(&entry.name).is_err() || (is_folder && !is_empty) {
            unusable.push(entry.name);
        } else if !is_folder {
            usable.push(entry);
        }
    }
    (usable, unusable)
}

/// Splits entries into those whose names the file system of `root` takes, and the names of the
/// others, which are too long for it.
pub(super) fn split_at(root: &TargetDir, entries: Vec<Entry>) -> Result<(Vec<Entry>, Vec<String>)> {
    let (mut usable, mut unusable) = (Vec::new(), Vec::new());
    for entry in entries {
        if root.takes(&entry.name)? {
            usable.push(entry);
        } else {
            unusable.push(entry.name);
        }
    }
    Ok((usable, unusable))
}

/// Returns the error for names that were left out of a copy.
pub fn error(unusable: &[String], source: &Location) -> Error {
    // `{:?}` escapes control characters.
    let shown = unusable.iter().take(SHOWN_MAX);
    let shown: Vec<_> = shown.map(|name| format!("{:?}", shortened(name))).collect();
    let more = match unusable.len().saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = if unusable.len() == 1 {
        "a name that cannot be that of a file in a directory was left out"
    } else {
        "names that cannot be those of files in a directory were left out"
    };
    Error::invalid_request(format!("{names}: {}{more}", shown.join(", ")))
    .with_location(source)
    .with_hint(
        "everything else was copied; rename them at the source, exclude them with a pattern, or pass ‹skip_unusable›",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Origin;

    fn entry(name: &str, len: u64) -> Entry {
        let location = Location::parse("s3://bucket/model").expect("a location");
        let listed = Origin {
            source: String::new(),
            len,
            e_tag: None,
            version: None,
            modified: (0, 0),
            is_settled: true,
            file: None,
        };
        Entry {
            name: name.to_owned(),
            location,
            listed: Some(listed),
            opened: None,
        }
    }

    #[test]
    fn names_are_split_into_files_and_others() {
        let entries = [
            ("a", 0),
            ("a-b", 1),
            ("a/b/c", 1),
            ("a/b/d", 0),
            ("a/b", 1),
            ("../x", 1),
            ("a//x", 1),
            ("e", 0),
        ];
        let entries = entries.map(|(name, len)| entry(name, len));
        let (usable, unusable) = split(entries.into());
        let usable: Vec<_> = usable.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(usable, ["a-b", "a/b/c", "a/b/d", "e"]);
        assert_eq!(unusable, ["a/b", "../x", "a//x"]);
        let source = Location::parse("s3://bucket/model").expect("a location");
        let error = error(&unusable, &source);
        assert!(error.message().contains("\"a//x\""), "{error}");
    }
}
