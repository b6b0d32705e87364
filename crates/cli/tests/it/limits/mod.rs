//! Small limits and bare machines: the command works there, with the right bytes, or reports the
//! exact reason and a remedy.
//!
//! Each test runs the real command in a process that is restricted by a limit, another user, a
//! filter of system calls, or a namespace of its own. Some tests need root; where that is missing,
//! they are skipped with a message.

mod bare;
mod denied;
mod doctor;
mod full;
mod memory;
mod numbers;
mod streams;
mod under;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

use tempfile::TempDir;

use crate::{stderr, succeed};

/// Checkpoint that all users may read, and the digest of its bytes.
struct Model {
    folder: TempDir,
    digest: String,
}

impl Model {
    /// Writes so many shards: 16 MiB in thousands of tensors.
    fn with_shards(shards: usize) -> Self {
        let folder = open_folder();
        let model = folder.path().join("model");
        let text = model.to_str().unwrap();
        let shards = shards.to_string();
        succeed([
            "synth", text, "--preset", "moe", "--size", "16MiB", "--shards", &shards,
        ]);
        Self::of(folder)
    }

    fn of(folder: TempDir) -> Self {
        let model = folder.path().join("model");
        let text = succeed(["load", model.to_str().unwrap(), "--digest"]);
        Self {
            digest: digest_of(&text).unwrap(),
            folder,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    fn text(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }

    /// Asserts that the load has succeeded with these bytes.
    #[track_caller]
    fn assert_loaded(&self, what: &str, output: &Output) {
        assert!(output.status.success(), "{what}: {}", shown(output));
        let stdout = String::from_utf8_lossy(&output.stdout);
        let digest = digest_of(&stdout);
        assert_eq!(
            digest.as_deref(),
            Some(&*self.digest),
            "{what}: {}",
            shown(output)
        );
    }
}

/// Returns a directory that all users may list.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

/// Returns the digest in a report, as text or JSON.
fn digest_of(stdout: &str) -> Option<String> {
    if let Ok(json) = serde_json::from_str::<serde_json::Value>(stdout) {
        return Some(json["digest"].as_str()?.to_owned());
    }
    let line = stdout
        .lines()
        .find_map(|line| line.strip_prefix("digest: "));
    line.map(str::to_owned)
}

fn shown(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    format!("{}\n{stdout}{}", output.status, stderr(output))
}

/// Asserts that the command has failed with this status and printed these texts.
#[track_caller]
fn assert_refused(what: &str, output: &Output, status: i32, said: &[&str]) {
    let text = stderr(output);
    assert_eq!(
        output.status.code(),
        Some(status),
        "{what}: {}",
        shown(output)
    );
    assert!(!text.contains("panicked"), "{what}: {text}");
    for said in said {
        assert!(text.contains(said), "{what}: {said:?} is not in:\n{text}");
    }
}
