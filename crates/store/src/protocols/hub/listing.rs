//! One commit of a repository and its files, as the hub lists them. Pure.

use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta};
use serde::Deserialize;

use crate::lists::tree::Files;
use crate::protocols::hub_cache::is_commit;
use crate::{Level, Listed};

/// Largest number of files for which a hub's description of a repository has them all, as
/// `huggingface_hub` 1.1 assumes (`VERY_LARGE_REPO_THRESHOLD` in `_snapshot_download.py`). Beyond
/// it the hub's tree is listed, page by page.
const DESCRIBED_MAX: usize = 50_000;

/// Commit of a repository. It never changes: everything requested by its name is of one version.
#[derive(Debug)]
pub(crate) struct Commit {
    name: String,
    /// Time of the last change, if the hub states it; files have no separate time.
    modified: Option<DateTime<Utc>>,
    files: Files<File>,
}

/// Properties of a file. Not every compatible server states all of them.
#[derive(Debug, Default)]
struct File {
    len: Option<u64>,
    /// SHA-256 for large files, the git object id for small ones. It becomes an entity tag and the
    /// name of a file: [`is_object_id`].
    identity: Option<String>,
}

impl File {
    /// Returns the identity as an entity tag.
    fn e_tag(&self) -> Option<String> {
        Some(format!("\"{}\"", self.identity.as_deref()?))
    }
}

/// Response to `GET /api/models/org/name/revision/main?blobs=true`, as far as it is used.
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

/// Entry of a hub's tree, as far as it is used.
#[derive(Deserialize)]
struct Item {
    path: String,
    #[serde(rename = "type")]
    kind: String,
    size: Option<u64>,
    oid: Option<String>,
    lfs: Option<Pointer>,
}

#[derive(Deserialize)]
struct Pointer {
    oid: Option<String>,
}

/// Returns the commit that a hub's description of a repository names, if the repository may have
/// more files than the description lists.
pub(crate) fn commit_of_many(answer: &[u8]) -> Option<String> {
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    let is_cut = answer.siblings.len() > DESCRIBED_MAX && is_commit(&answer.sha);
    is_cut.then_some(answer.sha)
}

/// Returns a hub's description of a repository with the files on the pages of its tree in place of
/// those that it lists itself. The error describes what is wrong with them.
pub(crate) fn with_tree(answer: &[u8], pages: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let malformed = |error| format!("it is not a hub's list of files: {error}");
    let mut siblings = Vec::new();
    for page in pages {
        let items: Vec<Item> = serde_json::from_slice(page).map_err(malformed)?;
        let files = items.into_iter().filter(|item| item.kind == "file");
        siblings.extend(files.map(|file| {
            serde_json::json!({
                "rfilename": file.path,
                "size": file.size,
                "blobId": file.oid,
                "lfs": file.lfs.map(|lfs| serde_json::json!({"sha256": lfs.oid})),
            })
        }));
    }
    let mut answer: serde_json::Value = serde_json::from_slice(answer).map_err(malformed)?;
    answer["siblings"] = siblings.into();
    Ok(answer.to_string().into_bytes())
}

/// Returns whether a text is a git object id (SHA-1 or SHA-256) or a SHA-256. Any other text that a
/// hub states in its place is ignored.
fn is_object_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the request without conditions. A commit cannot change, and the hub, which gets the
/// request first, does not know the entity tags of the hosts that it redirects to. For files of a
/// bucket, which may change, the tags of the responses are compared.
pub(super) fn unconditional(options: GetOptions) -> GetOptions {
    GetOptions {
        if_match: None,
        if_none_match: None,
        if_unmodified_since: None,
        version: None,
        ..options
    }
}

impl Commit {
    /// Parses the hub's response. The error describes what is wrong with it.
    pub(crate) fn parse(answer: &[u8]) -> Result<Self, String> {
        let answer: Answer = serde_json::from_slice(answer)
            .map_err(|error| format!("it is not a hub's description of a model: {error}"))?;
        if !is_commit(&answer.sha) {
            return Err("it names no commit".to_owned());
        }
        let mut files = Files::new();
        for sibling in answer.siblings {
            // The git object of a large file is a pointer, which says nothing about its bytes.
            let name = sibling.lfs.map_or(sibling.blob_id, |lfs| lfs.sha256);
            let file = File {
                len: sibling.size,
                identity: name.filter(|name| is_object_id(name)),
            };
            files.insert(sibling.rfilename, file);
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

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the hub's name for the contents of a file: SHA-256 for large files, the git object
    /// id for small ones.
    pub(crate) fn contents_name(&self, file: &Path) -> Option<&str> {
        self.files.get(file.as_ref())?.identity.as_deref()
    }

    /// Returns whether a file has this entity tag.
    pub(crate) fn has_tag(&self, file: &Path, tag: &str) -> bool {
        let listed = self.files.get(file.as_ref());
        listed.and_then(File::e_tag).as_deref() == Some(tag)
    }

    /// Returns the path of a file below the repository's URL.
    pub(crate) fn path_of(&self, file: &Path) -> Path {
        let commit = std::iter::once(self.name.as_str().into());
        commit.chain(file.parts()).collect()
    }

    /// Replaces the metadata of the redirect target by that of the hub, or returns an error if they
    /// disagree.
    pub(crate) fn describe(&self, file: &Path, meta: &mut ObjectMeta) -> Result<(), String> {
        let listed = self.files.get(file.as_ref());
        if let Some(len) = listed
            .and_then(|file| file.len)
            .filter(|&len| len != meta.size)
        {
            return Err(format!(
                "the hub lists a file of {len} bytes, but sends one of {}",
                meta.size
            ));
        }
        match listed.and_then(File::e_tag) {
            Some(tag) => meta.e_tag = Some(tag),
            // The commit is the only identity of this file, which may differ in another commit.
            None => meta.version = Some(self.name.clone()),
        }
        if let Some(modified) = self.modified {
            meta.last_modified = modified;
        }
        meta.location = file.clone();
        Ok(())
    }

    /// Returns the files and directories directly below a directory.
    pub(crate) fn level(&self, folder: Option<&Path>) -> Level {
        let describe = |location, file: &File| self.listed(location, file);
        self.files.level(folder, describe)
    }

    /// Returns all files.
    pub(crate) fn all(&self) -> Vec<Listed> {
        let files = self.files.iter();
        files.map(|(path, file)| self.listed(path, file)).collect()
    }

    fn listed(&self, location: Path, file: &File) -> Listed {
        Listed {
            location,
            len: file.len,
            modified: self.modified.map_or(0, |at| at.timestamp()),
            e_tag: file.e_tag(),
            version: file.identity.is_none().then(|| self.name.clone()),
        }
    }
}

/// Checks that each file in a hub's response is in exactly one directory, and that all directories
/// are found.
///
/// # Panics
///
/// Panics if a file is missing or occurs twice.
#[cfg(feature = "testing")]
pub fn assert_levels_are_whole(answer: &[u8]) {
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
    let mut listed: Vec<String> = commit.files.iter().map(|(path, _)| path.into()).collect();
    listed.sort_unstable();
    assert_eq!(found, listed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "0123456789abcdef0123456789abcdef01234567";
    const BLOB: &str = "b10bb10bb10bb10bb10bb10bb10bb10bb10bb10b";
    const DIGEST: &str = "d16e57d16e57d16e57d16e57d16e57d16e57d16e57d16e57d16e57d16e57d16e";

    fn commit() -> Commit {
        let answer = serde_json::json!({
            "_id": "x", "sha": NAME, "lastModified": "2026-01-01T00:00:10.000Z", "private": false,
            "siblings": [
                {"rfilename": "model.safetensors", "size": 100, "blobId": NAME, "lfs": {"sha256": DIGEST, "size": 100}},
                {"rfilename": "config.json", "size": 5, "blobId": BLOB},
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
    fn level_lists_direct_children() {
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

    /// Visiting every file for each directory takes 10^10 steps: hours.
    #[test]
    fn level_of_large_commit_visits_only_folder() {
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
    fn names_beside_directory_are_not_listed_in_it() {
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
    fn hub_metadata_overrides_response() {
        let commit = commit();
        let [digest, blob] = [DIGEST, BLOB].map(|name| format!("\"{name}\""));
        for (file, size, tag, version) in [
            ("model.safetensors", 100, &*digest, None),
            ("config.json", 5, &*blob, None),
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

    /// Clients of a relay get it in a header, and `hf_cache` names a file so.
    #[test]
    fn contents_name_is_hexadecimal_digits_or_none() {
        let split = format!("{}\r\nSet-Cookie: a=b\r\n\r\n", &BLOB[..20]);
        let (short, long) = (&BLOB[1..], format!("{DIGEST}0"));
        for wrong in ["", "blob", "../../x", short, &long, &split, &"é".repeat(20)] {
            for (sibling, is_large) in [
                (
                    serde_json::json!({"rfilename": "x", "blobId": wrong}),
                    false,
                ),
                (
                    serde_json::json!({"rfilename": "x", "blobId": BLOB, "lfs": {"sha256": wrong}}),
                    true,
                ),
            ] {
                let answer = serde_json::json!({"sha": NAME, "siblings": [sibling]});
                let commit = Commit::parse(answer.to_string().as_bytes()).expect("an answer");
                let file = Path::from("x");
                assert_eq!(commit.contents_name(&file), None, "{wrong:?} {is_large}");
                let listed = &commit.level(None).objects[0];
                assert_eq!(
                    (&listed.e_tag, listed.version.as_deref()),
                    (&None, Some(NAME))
                );
            }
        }
        let upper = serde_json::json!({"rfilename": "x", "blobId": BLOB.to_ascii_uppercase()});
        let answer = serde_json::json!({"sha": NAME, "siblings": [upper]});
        let commit = Commit::parse(answer.to_string().as_bytes()).expect("an answer");
        assert!(commit.contents_name(&Path::from("x")).is_some());
    }

    #[test]
    fn names_that_are_no_paths_are_kept_apart() {
        let names = [
            "../x", "/y", "", "a/x", "a//x", "a/./x", "a/b\n", "a/b/", ".",
        ];
        let siblings = names.map(|name| serde_json::json!({"rfilename": name}));
        let answer = serde_json::json!({"sha": NAME, "siblings": siblings});
        let commit = Commit::parse(answer.to_string().as_bytes()).expect("an answer");
        assert_eq!(commit.level(None).unusable, ["", ".", "../x", "/y"]);
        let level = commit.level(Some(&Path::from("a")));
        assert_eq!(level.unusable, ["a/./x", "a//x", "a/b\n"]);
        assert_eq!(level.objects.len(), 1);
        let deeper = commit.level(Some(&Path::from("a/b")));
        assert_eq!(deeper.unusable, ["a/b/"]);
        assert_eq!(commit.all().len(), 1);
    }

    #[test]
    fn tree_replaces_files_of_long_description() {
        let siblings = |number: usize| {
            let files = (0..number).map(|at| serde_json::json!({"rfilename": at.to_string()}));
            let files: Vec<_> = files.collect();
            serde_json::json!({"sha": NAME, "siblings": files}).to_string()
        };
        assert_eq!(commit_of_many(siblings(DESCRIBED_MAX).as_bytes()), None);
        let answer = siblings(DESCRIBED_MAX + 1);
        assert_eq!(commit_of_many(answer.as_bytes()).as_deref(), Some(NAME));
        let pages = [
            serde_json::json!([
                {"type": "directory", "oid": "t", "size": 0, "path": "a"},
                {"type": "file", "oid": "p", "size": 100, "path": "model.safetensors",
                 "lfs": {"oid": DIGEST, "size": 100, "pointerSize": 1}},
            ]),
            serde_json::json!([{"type": "file", "oid": BLOB, "size": 5, "path": "a/config.json"}]),
        ];
        let pages = pages.map(|page| page.to_string().into_bytes());
        let whole = with_tree(answer.as_bytes(), &pages).expect("pages");
        let all = Commit::parse(&whole).expect("a description").all();
        let found: Vec<_> = all
            .iter()
            .map(|file| (file.location.as_ref(), file.len, file.e_tag.as_deref()))
            .collect();
        let (blob, digest) = (format!("\"{BLOB}\""), format!("\"{DIGEST}\""));
        let wanted = [
            ("a/config.json", Some(5), Some(&*blob)),
            ("model.safetensors", Some(100), Some(&*digest)),
        ];
        assert_eq!(found, wanted);
        with_tree(answer.as_bytes(), &[b"{}".to_vec()]).expect_err("no page");
    }

    #[test]
    fn malformed_hub_responses_are_rejected() {
        for answer in [
            "",
            "[]",
            "<html>",
            r#"{"sha": "main", "siblings": []}"#,
            r#"{"sha": "../../../../../../../../../../../../../etc", "siblings": []}"#,
            r#"{"sha": "0123456789abcdef0123456789abcdef01234567"}"#,
        ] {
            Commit::parse(answer.as_bytes()).expect_err(answer);
        }
    }
}
