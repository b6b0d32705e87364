//! Where the servers' programs are, and what a test does without them.
//!
//! `tools/servers` puts the programs there; nothing here installs.

use std::io::Write;
use std::path::{Path, PathBuf};

/// The program of the server that `tools/servers` calls `name`, or why there is none.
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

/// A program that the shell would find.
pub(super) fn in_path(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// What was found. If nothing: prints that the test is skipped and why, or panics when `TLOAD_REQUIRE` (a list of names)
/// has `servers` or `all`.
pub fn require<T>(found: Result<T, String>) -> Option<T> {
    require_named("servers", found)
}

/// The same for something else that tests need.
pub fn require_named<T>(name: &str, found: Result<T, String>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(reason) => {
            assert!(
                !is_required(name),
                "TLOAD_REQUIRE names {name}, missing here: {reason}"
            );
            // Past the test harness, which shows what a test prints only when it fails. Nobody to tell is no reason to fail.
            let _ = writeln!(std::io::stderr(), "SKIPPED: needs {name}: {reason}");
            None
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are steered from outside; the library is not"
)]
fn is_required(name: &str) -> bool {
    std::env::var("TLOAD_REQUIRE")
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .any(|required| required == name || required == "all")
}
