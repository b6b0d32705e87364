//! Hint for a path that does not exist: patterns that no shell expanded, typing errors, and models
//! of a hub.

use std::path::{Path, PathBuf};

use crate::error::{nearest_name, printable, shortened};
use crate::options::Location;

/// Most names of a directory that are compared with a wrong one.
const NAMES_MAX: usize = 100_000;

/// Returns the hint for a path that does not exist.
pub(super) fn missing_hint(location: &Location) -> String {
    let Some(path) = location.as_path() else {
        return CHECK.to_owned();
    };
    let text = path.to_string_lossy();
    if text.starts_with('~') {
        return "~ is expanded by a shell, where it is not quoted, and by Python's \
                os.path.expanduser only: write the whole path"
            .to_owned();
    }
    if text.contains(['*', '?', '[']) {
        return "wildcards are expanded by a shell, where they are not quoted, and by Python's \
                glob.glob only: pass the directory"
            .to_owned();
    }
    let scheme = text.split_once(':').or_else(|| text.split_once("//"));
    let scheme = scheme.filter(|(scheme, _)| {
        let mut schemes = Location::schemes();
        schemes.any(|known| known.eq_ignore_ascii_case(scheme))
    });
    if let Some((scheme, rest)) = scheme {
        let rest = printable(&shortened(rest.trim_start_matches('/')));
        return if scheme.eq_ignore_ascii_case("file") {
            format!("leave out {scheme}:, or write {scheme}:///absolute/path")
        } else {
            format!("write {scheme}://{rest}")
        };
    }
    if path.is_symlink() {
        return "this is a symbolic link to something that does not exist".to_owned();
    }
    if let Some(near) = nearest_path(path) {
        let near = near.to_string_lossy();
        return format!("did you mean {:?}?", printable(&shortened(&near)));
    }
    let is_id = path.is_relative()
        && path.components().count() == 2
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte));
    if is_id {
        let id = printable(&shortened(&text));
        format!("check the path; if {id:?} is a model of the Hugging Face Hub, it is hf://{id}")
    } else {
        CHECK.to_owned()
    }
}

const CHECK: &str = "check the path; is the volume mounted?";

/// Returns an existing path that differs from `path` in its first component that does not exist.
fn nearest_path(path: &Path) -> Option<PathBuf> {
    let is_missing = |at: &&Path| !at.as_os_str().is_empty() && !at.exists();
    let missing = path.ancestors().take_while(is_missing).last()?;
    let wanted = missing.file_name()?.to_str()?;
    let parent = missing.parent()?;
    let listed = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let entries = std::fs::read_dir(listed).ok()?;
    let names = entries.take(NAMES_MAX).filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        (!name.starts_with('.')).then_some(name)
    });
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    let near = nearest_name(wanted, names.iter().map(String::as_str))?;
    let found = parent.join(near);
    let rest = path.strip_prefix(missing).ok()?;
    let whole = found.join(rest);
    // Without a rest, `join` would add a slash.
    let is_whole = !rest.as_os_str().is_empty() && whole.exists();
    Some(if is_whole { whole } else { found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_names_the_cause() {
        let folder = tempfile::tempdir().expect("a directory");
        let model = folder.path().join("llama");
        std::fs::create_dir(&model).expect("made");
        std::fs::write(model.join("model.safetensors"), b"").expect("written");
        std::os::unix::fs::symlink("gone", model.join("link")).expect("linked");
        let root = folder.path().to_str().expect("UTF-8");
        let file = format!("did you mean \"{root}/llama/model.safetensors\"?");
        let hint = |path: String| missing_hint(&Location::from_path(path));
        for (path, wanted) in [
            (format!("{root}/llama/model.safetensor"), &*file),
            (format!("{root}/lama/model.safetensors"), &file),
            (
                format!("{root}/Llama"),
                &format!("did you mean \"{root}/llama\"?"),
            ),
            (
                format!("{root}/llama/*.safetensors"),
                "wildcards are expanded by",
            ),
            ("~/llama".to_owned(), "~ is expanded by a shell"),
            (format!("{root}/llama/link"), "this is a symbolic link to"),
            (format!("{root}/other"), CHECK),
            // Tests run in the directory of their package.
            ("Cargo.tom".to_owned(), "did you mean \"Cargo.toml\"?"),
            ("scr/lib.rs".to_owned(), "did you mean \"src/lib.rs\"?"),
            ("no-such/model".to_owned(), "it is hf://no-such/model"),
            ("hf:org/name".to_owned(), "write hf://org/name"),
            ("S3:bucket/x".to_owned(), "write S3://bucket/x"),
            ("s3//bucket/x".to_owned(), "write s3://bucket/x"),
            ("file:x".to_owned(), "leave out file:"),
            ("$HOME/x".to_owned(), CHECK),
        ] {
            let hint = hint(path.clone());
            assert!(hint.contains(wanted), "{path}: {hint}");
        }
    }
}
