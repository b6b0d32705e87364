//! The slow file system as a program. The implementation is in `tload_testbed::slowfs`.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use std::io::Write as _;

    use tload_testbed::slowfs::{Setup, USAGE, run};

    let complain = |text: &str| {
        // A closed stderr does not change the status.
        let _ = writeln!(std::io::stderr(), "slowfs: {text}");
    };
    match Setup::parse(std::env::args_os().skip(1)) {
        Err(reason) => {
            complain(&format!("{reason}\n{USAGE}"));
            ExitCode::from(2)
        }
        Ok(setup) => match run(&setup) {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => {
                complain(&reason);
                ExitCode::FAILURE
            }
        },
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
