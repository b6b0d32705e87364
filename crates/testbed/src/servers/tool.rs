//! Finds the servers' programs, and handles missing ones in tests.
//!
//! `tools/servers` installs the programs; this module does not.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Returns the program of the server that `tools/servers` calls `name`, or the reason why there is
/// none.
pub fn tool(name: &str) -> Result<PathBuf, String> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools");
    let path = match name {
        "nginx" => in_path("nginx").unwrap_or_else(|| PathBuf::from("/usr/sbin/nginx")),
        "azurite" => tools.join("azurite/node_modules/.bin/azurite-blob"),
        "moto" => tools.join("moto/bin/moto_server"),
        "toxiproxy" => tools.join("bin/toxiproxy-server"),
        _ => tools.join("bin").join(name),
    };
    match path.try_exists() {
        Ok(true) => Ok(path),
        Ok(false) | Err(_) => Err(format!("{name} is missing: run tools/servers {name}")),
    }
}

/// Finds a program in `PATH`, as the shell does.
pub(super) fn in_path(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// Returns the server found. If there is none, prints that the test is skipped and why, or panics
/// if `TLOAD_REQUIRE` (a list of names) contains `servers` or `all`.
pub fn require<T>(found: Result<T, String>) -> Option<T> {
    require_named("servers", found)
}

/// Like [`require`], for another requirement of tests.
pub fn require_named<T>(name: &str, found: Result<T, String>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(reason) => {
            assert!(
                !is_required(name),
                "TLOAD_REQUIRE names {name}, missing here: {reason}"
            );
            // Past the test harness, which shows the output of a test only when it fails. A closed
            // stderr is no reason to fail.
            let _ = writeln!(std::io::stderr(), "SKIPPED: needs {name}: {reason}");
            None
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are controlled from outside; the library is not"
)]
fn is_required(name: &str) -> bool {
    std::env::var("TLOAD_REQUIRE")
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .any(|required| required == name || required == "all")
}
