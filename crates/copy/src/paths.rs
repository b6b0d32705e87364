//! Names of files below a source: selects them, validates them for writing, and derives the names
//! of files in progress. Pure.

use std::collections::HashSet;

use globset::{GlobBuilder, GlobMatcher};

use super::CopyOptions;
use crate::error::{Error, Result};

/// Suffix of a file in progress.
const PARTIAL: &str = ".tload-partial";

/// Suffix of a record beside a file.
const RECORD: &str = ".tload-copied";

/// Selection of names.
#[derive(Debug)]
pub(super) struct Filter {
    names: Option<HashSet<String>>,
    include: Vec<GlobMatcher>,
    exclude: Vec<GlobMatcher>,
    hidden: bool,
}

impl Filter {
    pub(super) fn new(options: &CopyOptions) -> Result<Self> {
        let globs = |patterns: &[String]| -> Result<Vec<GlobMatcher>> {
            patterns.iter().map(|pattern| glob(pattern)).collect()
        };
        Ok(Self {
            names: options
                .names
                .as_ref()
                .map(|names| names.iter().cloned().collect()),
            include: globs(&options.include)?,
            exclude: globs(&options.exclude)?,
            // A caller that names files means them, hidden or not.
            hidden: options.hidden || options.names.is_some(),
        })
    }

    /// Returns whether files and directories with this last component are examined.
    pub(super) fn sees(&self, last: &[u8]) -> bool {
        self.hidden || !last.starts_with(b".")
    }

    /// Returns whether the file at this path below the source is selected.
    pub(super) fn takes(&self, name: &str) -> bool {
        let last = name.rsplit('/').next().unwrap_or(name);
        let any = |globs: &[GlobMatcher]| {
            globs
                .iter()
                .any(|glob| glob.is_match(name) || glob.is_match(last))
        };
        let named = self.names.as_ref().is_none_or(|names| names.contains(name));
        let seen = name
            .split('/')
            .all(|component| self.sees(component.as_bytes()));
        let ours = last.starts_with('.') && (last.contains(PARTIAL) || last.contains(RECORD));
        seen && !ours
            && named
            && (self.include.is_empty() || any(&self.include))
            && !any(&self.exclude)
    }

    /// Returns whether a name that cannot be that of a file, or something below it if it is a
    /// folder, would be selected. What is below such a folder is unknown.
    pub(super) fn may_take(&self, name: &str, is_folder: bool) -> bool {
        let last = name.rsplit('/').next().unwrap_or(name);
        let any = |globs: &[GlobMatcher]| {
            let matches = |glob: &GlobMatcher| glob.is_match(name) || glob.is_match(last);
            globs.iter().any(matches)
        };
        let is_included = is_folder || self.include.is_empty() || any(&self.include);
        self.names.is_none() && is_included && !any(&self.exclude)
    }
}

fn glob(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map_err(|error| {
            Error::invalid_request(format!("glob {pattern:?} is malformed: {}", error.kind()))
        })?;
    Ok(glob.compile_matcher())
}

/// Splits a path below the target into its components. Sources are untrusted: a key of an object
/// store may be any text.
pub fn components(name: &str) -> Result<Vec<&str>> {
    let components: Vec<&str> = name.split('/').collect();
    let wrong = if name.contains('\0') {
        "contains a zero byte"
    } else if name.starts_with('/') {
        "is absolute"
    } else if components.contains(&"..") {
        "contains `..`"
    } else if components
        .iter()
        .any(|component| component.is_empty() || *component == ".")
    {
        "contains an empty component or `.`"
    } else {
        return Ok(components);
    };
    Err(Error::invalid_request(
        // `{:?}` escapes control characters.
        format!("the name {name:?} {wrong}: it is not a path inside the directory"),
    )
    .with_hint("exclude it with a pattern, or rename it at the source"))
}

/// Returns the name of a file while it is being copied.
pub(super) fn partial(file_name: &str) -> String {
    format!(".{file_name}{PARTIAL}")
}

/// Returns the name of its journal.
pub(super) fn journal(file_name: &str) -> String {
    format!(".{file_name}{PARTIAL}.json")
}

/// Returns the name of its next journal until that is complete.
pub(super) fn next_journal(file_name: &str) -> String {
    format!("{}.new", journal(file_name))
}

/// Returns the name of the record beside a file, on file systems without extended attributes.
pub(super) fn record(file_name: &str) -> String {
    format!(".{file_name}{RECORD}")
}

/// Returns the name of its next record until that is complete.
pub(super) fn next_record(file_name: &str) -> String {
    format!("{}.new", record(file_name))
}

/// Returns the names of all files beside a file that its copy may leave.
pub(super) fn left_by_copy(file_name: &str) -> [String; 5] {
    [partial, journal, next_journal, record, next_record].map(|name| name(file_name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn filter(include: &[&str], exclude: &[&str], hidden: bool) -> Filter {
        let owned = |patterns: &[&str]| patterns.iter().map(|&text| text.to_owned()).collect();
        Filter::new(&CopyOptions {
            include: owned(include),
            exclude: owned(exclude),
            hidden,
            ..CopyOptions::default()
        })
        .expect("valid globs")
    }

    #[test]
    fn names_outside_target_are_rejected() {
        for name in ["", "/a", "..", "a/../b", "a//b", "./a", "a/", "a\0b", "a/."] {
            let error = components(name).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(error.message().contains(&format!("{name:?}")), "{error}");
        }
        assert_eq!(components("a/..b/c..").expect("good"), ["a", "..b", "c.."]);
    }

    #[test]
    fn globs_match_paths_or_last_components() {
        let all = filter(&[], &[], false);
        assert!(all.takes("a/config.json"));
        assert!(!all.takes(".gitattributes") && !all.takes(".cache/a.json"));
        let hidden = filter(&[], &[], true);
        assert!(hidden.takes(".gitattributes"));
        assert!(!hidden.takes("a/.x.tload-partial") && !hidden.takes(".x.tload-partial.json"));
        assert!(!hidden.takes("a/.x.tload-copied") && !hidden.takes(".x.tload-copied.new"));
        let some = filter(&["*.json", "deep/**"], &["tok*"], false);
        assert!(some.takes("config.json") && some.takes("a/config.json"));
        assert!(some.takes("deep/a/b.bin") && !some.takes("b.bin"));
        assert!(!some.takes("tokenizer.json") && !some.takes("deep/tokenizer.model"));
    }
}
