//! The program that the name `tload` runs: procps installs another one of that name, which shows
//! the system's load.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::{Finding, Level, Urgency};

const NAME: &str = "tload";
/// Bytes of a script that are searched. pip writes a few hundred.
const SCRIPT_BYTES: u64 = 4096;

/// Returns the finding about the programs named `tload` on `path`. `this` is the running program:
/// the command itself, or Python.
pub(crate) fn finding(path: Option<&OsStr>, this: Option<&Path>) -> Finding {
    let (id, title) = ("program", "program");
    let folders = path.map(std::env::split_paths);
    let found: Vec<PathBuf> = folders
        .into_iter()
        .flatten()
        .map(|folder| folder.join(NAME))
        .filter(|program| is_program(program))
        .collect();
    let Some(first) = found.first() else {
        return Finding::ok(id, title, "no tload on PATH");
    };
    if is_own(first, this) {
        return Finding::ok(id, title, format!("{} is first on PATH", first.display()));
    }
    let own = found.iter().find(|program| is_own(program, this));
    let rank = match own {
        Some(own) => format!("comes before {} on PATH", own.display()),
        None => "is on PATH, and this tload is not".to_owned(),
    };
    let command = "run python -m tload, or tensorload";
    let advice = format!(
        "the name tload runs another program, perhaps that of procps (tload: can not open tty): {command}"
    );
    Finding::ok(id, title, format!("{} {rank}", first.display()))
        .advise(Level::Warn, advice)
        .change(Urgency::Little, command)
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// Returns whether a program is this one, or a script of the Python package: Python does not tell
/// which script it runs.
fn is_own(program: &Path, this: Option<&Path>) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    let is_this = this.is_some_and(|this| real(this).is_some() && real(this) == real(program));
    is_this || is_script(program)
}

fn is_script(program: &Path) -> bool {
    let Ok(file) = fs::File::open(program) else {
        return false;
    };
    let mut text = Vec::new();
    let read = file.take(SCRIPT_BYTES).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    read.is_ok() && text.starts_with("#!") && text.contains("from tload")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Makes a directory with a program named `tload`.
    fn folder(root: &Path, name: &str, text: &str) -> PathBuf {
        let folder = root.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(NAME), text).unwrap();
        fs::set_permissions(folder.join(NAME), fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    #[test]
    fn other_program_of_this_name_warns_if_it_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let other = folder(root.path(), "other", "\x7fELF");
        let own = folder(root.path(), "own", "\x7fELF own");
        let script = folder(
            root.path(),
            "venv",
            "#!/venv/bin/python\nfrom tload.__main__ import main\n",
        );
        let empty = root.path().join("empty");
        fs::create_dir(&empty).unwrap();
        let this = own.join(NAME);
        let look = |folders: &[&PathBuf]| {
            let path = std::env::join_paths(folders).unwrap();
            finding(Some(&path), Some(&this))
        };
        for own_first in [&own, &script] {
            let found = look(&[&empty, own_first, &other]);
            assert_eq!(found.level, Level::Ok, "{found:?}");
            assert!(found.value.ends_with("is first on PATH"), "{found:?}");
        }
        let program = |folder: &Path| folder.join(NAME).display().to_string();
        for second in [&own, &script] {
            let found = look(&[&other, second]);
            assert_eq!(found.level, Level::Warn);
            let wanted = format!(
                "{} comes before {} on PATH",
                program(&other),
                program(second)
            );
            assert_eq!(found.value, wanted);
            let advice = found.advice.unwrap();
            assert!(advice.contains("python -m tload"), "{advice}");
        }
        let alone = look(&[&other]);
        let wanted = format!("{} is on PATH, and this tload is not", program(&other));
        assert_eq!((alone.level, alone.value), (Level::Warn, wanted));
    }

    #[test]
    fn path_without_tload_is_fine() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(
            finding(Some(root.path().as_os_str()), None).level,
            Level::Ok
        );
        assert_eq!(finding(None, None).value, "no tload on PATH");
        // Neither a directory nor a file that cannot be run is a program.
        fs::create_dir(root.path().join(NAME)).unwrap();
        let found = finding(Some(root.path().as_os_str()), None);
        assert_eq!(found.value, "no tload on PATH");
    }
}
