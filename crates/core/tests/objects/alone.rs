//! Tests that need a process of their own, for its environment or to count its threads and files.
//!
//! The test binary is run again for one test, with a mark in its environment.

use std::process::{Command, Output};

const MARK: &str = "TLOAD_TEST_ALONE";

/// Returns whether this is the process of one test. If not, runs the test `name` in a process of
/// its own and asserts that it passes.
pub(crate) fn is_alone(name: &str) -> bool {
    if variable(MARK).is_some() {
        return true;
    }
    let output = run(name, &[]);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{name}, alone: {}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    false
}

/// Runs the test `name` in a process that has only these variables, and none of a cloud's.
pub(crate) fn run(name: &str, variables: &[(&str, &str)]) -> Output {
    command(name, variables)
        .output()
        .expect("the test binary runs")
}

pub(crate) fn command(name: &str, variables: &[(&str, &str)]) -> Command {
    let binary = std::env::current_exe().expect("a running test has a binary");
    let mut command = Command::new(binary);
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env_clear()
        .envs(
            ["PATH", "LD_LIBRARY_PATH", "TLOAD_REQUIRE"]
                .map(|name| (name, variable(name).unwrap_or_default())),
        )
        .env(MARK, "1")
        .envs(variables.iter().copied());
    command
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are steered from outside; the library is not"
)]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
