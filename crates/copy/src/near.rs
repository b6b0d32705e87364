//! Names near a misspelt one in a store, for the error that nothing has that name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result, nearest_name};
use crate::options::{Location, Protocol};
use crate::storage::{Folder, ObjectSource, Remote, Source};

/// Longest time that the error waits for the list of the parent.
const PATIENCE: Duration = Duration::from_secs(3);

/// Longest list of a web server that is read, bytes: some 10,000 names.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// Adds a name beside `location` to the error that nothing has its name, if one is near. Lists the
/// parent with the credentials of `remote`, and changes nothing if that fails: the store cannot
/// list, denies it, or takes too long.
#[must_use]
pub fn suggest_near(
    error: Error,
    location: &Location,
    remote: impl FnOnce() -> Result<Arc<Remote>>,
) -> Error {
    let name = location.file_name();
    let is_missing = error.kind() == ErrorKind::NotFound
        && error.location() == Some(location.to_string().as_str());
    // A list that is not there means that the bucket or repository is not there either.
    let is_list = error.request().is_some_and(|it| it.operation == "LIST");
    // Patterns have a hint of their own.
    if !is_missing
        || is_list
        || location.as_path().is_some()
        || name.is_empty()
        || name.contains(['*', '?'])
    {
        return error;
    }
    match remote().and_then(|remote| beside(&remote, location)) {
        // The name exists, so the error is about something below it.
        Ok(names) if names.iter().any(|it| it == name) => error,
        Ok(names) => {
            let names = names.iter().map(String::as_str);
            let near = |it: &&str| nearest_name(stem(name), [stem(it)]).is_some();
            error.suggesting(name, names.filter(near))
        }
        Err(_) => error,
    }
}

/// Returns a name without the extension that most names share.
fn stem(name: &str) -> &str {
    name.strip_suffix(".safetensors").unwrap_or(name)
}

/// Returns the names of objects and prefixes beside `location`.
fn beside(remote: &Arc<Remote>, location: &Location) -> Result<Vec<String>> {
    let deadline = Some(Instant::now() + PATIENCE);
    if location.protocol() != Some(Protocol::Http) {
        let folder = Folder::list(remote, &location.parent(), deadline)?;
        return Ok([folder.below, folder.names].concat());
    }
    // As `tload serve` lists. A URL with a secret has none here.
    let Some(parent) = location.parent().url().filter(|_| !location.has_secret()) else {
        return Ok(Vec::new());
    };
    let list = Location::parse(&format!("{}/?format=json", parent.trim_end_matches('/')))?;
    let (object, bytes) = ObjectSource::open(remote, &list, LIST_BYTES_MAX, deadline)?;
    let is_whole = object.len() == bytes.len() as u64;
    Ok(if is_whole { names(&bytes) } else { Vec::new() })
}

/// Returns the names in a list of `tload serve`; none if it is anything else.
fn names(list: &[u8]) -> Vec<String> {
    let list: serde_json::Value = serde_json::from_slice(list).unwrap_or_default();
    let entries = list["entries"].as_array().into_iter().flatten();
    let names = entries.filter_map(|entry| entry["name"].as_str());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_a_list() {
        let list = br#"{"entries": [{"name": "llama", "type": "directory"}, {"name": 1}, {}]}"#;
        assert_eq!(names(list), ["llama"]);
        for other in ["", "<html>", "[]", "{\"entries\": {}}", "null"] {
            assert_eq!(names(other.as_bytes()), Vec::<String>::new(), "{other}");
        }
    }

    #[test]
    fn other_errors_cost_no_request() {
        let s3 = Location::parse("s3://models/llam").expect("a URL");
        let remote = || -> Result<Arc<Remote>> { panic!("no list is wanted") };
        let missing =
            |location: &Location| Error::new(ErrorKind::NotFound, "none").with_location(location);
        for (error, location) in [
            (
                Error::new(ErrorKind::PermissionDenied, "no").with_location(&s3),
                &s3,
            ),
            // It is about another file.
            (missing(&s3.join("a")), &s3),
            (
                missing(&Location::from_path("/a")),
                &Location::from_path("/a"),
            ),
            (missing(&s3.parent()), &s3.parent()),
            (
                missing(&s3.join("*.safetensors")),
                &s3.join("*.safetensors"),
            ),
        ] {
            assert_eq!(
                suggest_near(error, location, remote).hint(),
                None,
                "{location}"
            );
        }
        let failed = || Err(Error::new(ErrorKind::PermissionDenied, "may not list"));
        assert_eq!(suggest_near(missing(&s3), &s3, failed).hint(), None);
    }
}
