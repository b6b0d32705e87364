//! One commit of a repository and the files in it, as the hub lists them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta};
use serde::Deserialize;

use super::super::{Fault, Level, Listed};
use crate::error::ErrorKind;

/// Longest file that may come as a whole, bytes: an index of 100,000 tensors.
const WHOLE_BYTES_MAX: u64 = 16 << 20;

/// What a commit is called: hexadecimal digits of SHA-1, or of SHA-256 for repositories of the future.
const COMMIT_DIGITS: std::ops::RangeInclusive<usize> = 40..=64;

/// A commit never changes: as long as it is asked for by its name, what is read is of one version.
#[derive(Debug)]
pub(crate) struct Commit {
    name: String,
    /// Of the last change, as far as the hub says; files have no time of their own.
    modified: Option<DateTime<Utc>>,
    /// By path: those below a folder follow one another.
    files: BTreeMap<String, File>,
}

/// What the hub says of a file. Not every server that speaks like it says all.
#[derive(Debug, Default)]
struct File {
    len: Option<u64>,
    /// SHA-256 of large files, git's name of small ones.
    identity: Option<String>,
}

impl File {
    /// Returns the identity as an entity tag.
    fn e_tag(&self) -> Option<String> {
        Some(format!("\"{}\"", self.identity.as_deref()?))
    }
}

/// `GET /api/models/org/name/revision/main?blobs=true`, as far as it is wanted.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    sha: String,
    last_modified: Option<String>,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
}

pub(super) fn is_commit(name: &str) -> bool {
    COMMIT_DIGITS.contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Commit {
    /// Reads the hub's answer, or says what is wrong with it.
    pub(in super::super) fn parse(answer: &[u8]) -> Result<Self, String> {
        let answer: Answer = serde_json::from_slice(answer)
            .map_err(|error| format!("it is not what a hub says of a model: {error}"))?;
        if !is_commit(&answer.sha) {
            return Err("it names no commit".to_owned());
        }
        let mut files = BTreeMap::new();
        for sibling in answer.siblings {
            let path = Path::parse(&sibling.rfilename).ok();
            let path = path.filter(|path| !path.as_ref().is_empty());
            let path =
                path.ok_or_else(|| format!("it lists {:?}, which is no path", sibling.rfilename))?;
            let digest = sibling.lfs.and_then(|lfs| lfs.sha256);
            let file = File {
                len: sibling.size,
                identity: digest.or(sibling.blob_id),
            };
            files.insert(path.into(), file);
        }
        let modified = answer.last_modified.as_deref();
        Ok(Self {
            name: answer.sha,
            modified: modified
                .and_then(|text| DateTime::parse_from_rfc3339(text).ok())
                .map(Into::into),
            files,
        })
    }

    pub(in super::super) fn name(&self) -> &str {
        &self.name
    }

    /// What the hub calls the contents of a file: SHA-256 of large ones, git's name of small ones.
    pub(in super::super) fn contents_name(&self, file: &Path) -> Option<&str> {
        self.files.get(file.as_ref())?.identity.as_deref()
    }

    /// Where a file is below the repository's own place.
    pub(in super::super) fn path_of(&self, file: &Path) -> Path {
        let commit = std::iter::once(self.name.as_str().into());
        commit.chain(file.parts()).collect()
    }

    /// The same question without conditions. A commit cannot change; and the hub, asked first, knows nothing of the tags of those
    /// that it redirects to.
    pub(in super::super) fn question(options: GetOptions) -> GetOptions {
        GetOptions {
            if_match: None,
            if_unmodified_since: None,
            version: None,
            ..options
        }
    }

    /// Whether a request failed only because the server sends all of a file where a range was asked for, and there is so little of it
    /// that this will do. Hubs have been seen to, with small files: caches in front of them take no notice of ranges.
    pub(in super::super) fn may_come_whole(&self, file: &Path, fault: &Fault) -> bool {
        let status = fault.error.request().and_then(|request| request.status);
        let len = self.files.get(file.as_ref()).and_then(|file| file.len);
        status == Some(200)
            && fault.error.kind() == ErrorKind::Unsupported
            && len.is_some_and(|len| len <= WHOLE_BYTES_MAX)
    }

    /// Puts what the hub says of a file in place of what the server says that it redirected to, or says that the two disagree.
    pub(in super::super) fn describe(
        &self,
        file: &Path,
        meta: &mut ObjectMeta,
    ) -> Result<(), String> {
        let listed = self.files.get(file.as_ref());
        if let Some(len) = listed
            .and_then(|file| file.len)
            .filter(|&len| len != meta.size)
        {
            return Err(format!(
                "the hub lists a file of {len} bytes, and sends one of {}",
                meta.size
            ));
        }
        match listed.and_then(File::e_tag) {
            Some(tag) => meta.e_tag = Some(tag),
            // The file may be another one in another commit, and nothing else needs to tell.
            None => meta.version = Some(self.name.clone()),
        }
        if let Some(modified) = self.modified {
            meta.last_modified = modified;
        }
        meta.location = file.clone();
        Ok(())
    }

    /// Returns the files and folders directly below a folder. Looks only at what is below it: a copy
    /// asks for every folder of the commit.
    pub(in super::super) fn level(&self, folder: Option<&Path>) -> Level {
        let root = Path::default();
        let folder = folder.unwrap_or(&root);
        let below = match folder.as_ref() {
            "" => self.files.range::<str, _>(..),
            // '0' follows '/'.
            name => self.files.range(format!("{name}/")..format!("{name}0")),
        };
        let mut objects = Vec::new();
        let mut prefixes = BTreeSet::new();
        for (path, file) in below {
            let path = Path::parse(path).expect("was a path");
            let Some(mut below) = path.prefix_match(folder) else {
                continue;
            };
            match (below.next(), below.next()) {
                (Some(first), Some(_)) => {
                    prefixes.insert(folder.parts().chain([first]).collect::<Path>());
                }
                (Some(_), None) => {
                    drop(below);
                    objects.push(Listed {
                        location: path,
                        len: file.len,
                        modified: self.modified.map_or(0, |at| at.timestamp()),
                        e_tag: file.e_tag(),
                        version: file.identity.is_none().then(|| self.name.clone()),
                    });
                }
                (None, _) => {}
            }
        }
        Level {
            objects,
            prefixes: prefixes.into_iter().collect(),
        }
    }
}

/// Checks that each file that an answer of a hub lists is in one folder, and all folders are found.
///
/// # Panics
///
/// When one is missing, or there twice.
#[cfg(feature = "testing")]
pub(crate) fn assert_levels_are_whole(answer: &[u8]) {
    let Ok(commit) = Commit::parse(answer) else {
        return;
    };
    let mut folders = vec![None];
    let mut found: Vec<String> = Vec::new();
    while let Some(folder) = folders.pop() {
        let level = commit.level(folder.as_ref());
        found.extend(level.objects.into_iter().map(|one| one.location.into()));
        folders.extend(level.prefixes.into_iter().map(Some));
    }
    found.sort_unstable();
    let listed: Vec<String> = commit.files.into_keys().collect();
    assert_eq!(found, listed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "0123456789abcdef0123456789abcdef01234567";

    fn commit() -> Commit {
        let answer = serde_json::json!({
            "_id": "x", "sha": NAME, "lastModified": "2026-01-01T00:00:10.000Z", "private": false,
            "siblings": [
                {"rfilename": "model.safetensors", "size": 100, "blobId": "pointer", "lfs": {"sha256": "digest", "size": 100}},
                {"rfilename": "config.json", "size": 5, "blobId": "blob"},
                {"rfilename": "a b/é.json"},
                {"rfilename": "a b/deep/x"},
            ],
        });
        Commit::parse(answer.to_string().as_bytes()).expect("an answer")
    }

    fn meta(size: u64) -> ObjectMeta {
        ObjectMeta {
            location: "elsewhere".into(),
            last_modified: DateTime::default(),
            size,
            e_tag: Some("\"of the cache\"".to_owned()),
            version: None,
        }
    }

    #[test]
    fn folders_have_levels() {
        let names = |folder: Option<&str>| {
            let level = commit().level(folder.map(Path::from).as_ref());
            let objects = level
                .objects
                .iter()
                .map(|object| object.location.to_string());
            let prefixes = level.prefixes.iter().map(ToString::to_string);
            (objects.collect::<Vec<_>>(), prefixes.collect::<Vec<_>>())
        };
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let root = (
            owned(&["config.json", "model.safetensors"]),
            owned(&["a b"]),
        );
        assert_eq!(names(None), root);
        let below = (owned(&["a b/é.json"]), owned(&["a b/deep"]));
        assert_eq!(names(Some("a b")), below);
        assert_eq!(names(Some("a")), (Vec::new(), Vec::new()));
        assert_eq!(names(Some("config.json")), (Vec::new(), Vec::new()));
    }

    /// A look at every file for each folder takes 10^10 looks: hours.
    #[test]
    fn folders_of_a_large_commit_are_listed_without_looking_at_all_files_each() {
        let files = (0..100_000).map(|file| format!("f{:05}/{file}.json", file / 2));
        let siblings: Vec<_> = files
            .map(|name| serde_json::json!({"rfilename": name}))
            .collect();
        let answer = serde_json::json!({"sha": NAME, "siblings": siblings});
        let commit = Commit::parse(answer.to_string().as_bytes()).expect("an answer");
        let folders = commit.level(None).prefixes;
        assert_eq!(folders.len(), 50_000);
        let below = folders.iter().map(|folder| commit.level(Some(folder)));
        assert_eq!(
            below.map(|level| level.objects.len()).sum::<usize>(),
            100_000
        );
    }

    #[test]
    fn names_beside_a_folder_are_not_in_it() {
        let names = ["a", "a-b/x", "a/x", "a/y/z", "a0", "a0/x"];
        let siblings = names.map(|name| serde_json::json!({"rfilename": name}));
        let answer = serde_json::json!({"sha": NAME, "siblings": siblings});
        let commit = Commit::parse(answer.to_string().as_bytes()).expect("an answer");
        let level = commit.level(Some(&Path::from("a")));
        let objects = level.objects.iter().map(|object| object.location.as_ref());
        assert_eq!(objects.collect::<Vec<_>>(), ["a/x"]);
        assert_eq!(level.prefixes, [Path::from("a/y")]);
    }

    #[test]
    fn what_the_hub_says_of_a_file_counts() {
        let commit = commit();
        for (file, size, tag, version) in [
            ("model.safetensors", 100, "\"digest\"", None),
            ("config.json", 5, "\"blob\"", None),
            ("a b/é.json", 7, "\"of the cache\"", Some(NAME)),
            ("not listed", 7, "\"of the cache\"", Some(NAME)),
        ] {
            let mut meta = meta(size);
            commit
                .describe(&Path::parse(file).expect("a path"), &mut meta)
                .expect(file);
            assert_eq!(meta.e_tag.as_deref(), Some(tag), "{file}");
            assert_eq!(meta.version.as_deref(), version, "{file}");
            assert_eq!(meta.last_modified.timestamp(), 1_767_225_610);
        }
        let wrong = commit.describe(&Path::from("config.json"), &mut meta(6));
        assert!(wrong.expect_err("another length").contains("5 bytes"));
        let path = commit.path_of(&Path::parse("a b/é.json").expect("a path"));
        assert_eq!(path.as_ref(), format!("{NAME}/a b/é.json"));
    }

    #[test]
    fn answers_that_are_none_are_refused() {
        for answer in [
            "",
            "[]",
            "<html>",
            r#"{"sha": "main", "siblings": []}"#,
            r#"{"sha": "../../../../../../../../../../../../../etc", "siblings": []}"#,
            r#"{"sha": "0123456789abcdef0123456789abcdef01234567"}"#,
            r#"{"sha": "0123456789abcdef0123456789abcdef01234567", "siblings": [{"rfilename": "../x"}]}"#,
            r#"{"sha": "0123456789abcdef0123456789abcdef01234567", "siblings": [{"rfilename": "a//x"}]}"#,
            r#"{"sha": "0123456789abcdef0123456789abcdef01234567", "siblings": [{"rfilename": ""}]}"#,
        ] {
            Commit::parse(answer.as_bytes()).expect_err(answer);
        }
    }
}
