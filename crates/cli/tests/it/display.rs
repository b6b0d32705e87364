//! Flags about messages and colours: what they silence, log and colour, and what they leave alone.

use std::process::Output;

use tempfile::TempDir;

use crate::requirement::requirement;
use crate::{command, run, stderr, succeed};

fn model(folder: &TempDir) -> String {
    let model = folder.path().join("model").to_str().unwrap().to_owned();
    succeed(["synth", &model, "--preset", "tiny", "--size", "1MiB"]);
    model
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn quiet_commands_print_results_and_errors_only() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(&folder);
    let target = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for arguments in [
        vec!["synth", &target("synthetic"), "--preset", "tiny", "-q"],
        vec!["-q", "cp", &model, &target("copy")],
        vec!["cp", &model, &target("copy"), "--quiet"],
    ] {
        let output = run(&arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(
            (stdout(&output), stderr(&output)),
            (String::new(), String::new())
        );
    }
    assert_eq!(succeed(["-q", "ls", &model]), succeed(["ls", &model]));

    let notes = |output: &Output| stderr(output).matches("note:").count();
    let loud = run(["verify", &model]);
    let quiet = run(["verify", &model, "-q"]);
    assert!(notes(&loud) > 0 && notes(&quiet) == 0, "{}", stderr(&loud));
    assert_eq!(quiet.status, loud.status);

    let failed = run(["-q", "ls", "/nonexistent"]);
    assert_eq!(failed.status.code(), Some(3));
    assert!(stderr(&failed).starts_with("error: /nonexistent"));
}

#[test]
fn verbose_commands_log_openings_and_variables() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(&folder);
    let run = |flags: &[&str], level: Option<&str>| {
        let mut command = command(flags);
        command.args(["ls", &model]).env("TLOAD_CACHE", "drop");
        if let Some(level) = level {
            command.env("TLOAD_LOG", level);
        }
        let output = command.output().unwrap();
        assert!(output.status.success());
        stderr(&output)
    };
    for (flags, level) in [
        (&["-v"][..], None),
        (&["-vv"], Some("off")),
        (&["--verbose"], None),
        (&[], Some("info")),
    ] {
        let log = run(flags, level);
        assert!(log.contains("INFO TLOAD_CACHE=drop\n"), "{log}");
        assert!(log.contains(&format!("INFO opened {model} in ")), "{log}");
    }
    assert_eq!(run(&[], None), "");
    assert_eq!(run(&["-q"], Some("debug")), "");
    assert_eq!(
        run(&[], Some("loud")),
        "warning: TLOAD_LOG=\"loud\" is ignored; it can be debug, info, warning, error, off\n"
    );
}

#[test]
fn colours_follow_flag_then_variables_and_never_enter_json() {
    let colours = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = command(["ls", "/nonexistent"]);
        command
            .args(flags)
            .env_remove("NO_COLOR")
            .env_remove("CLICOLOR_FORCE");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert!(!stdout(&output).contains('\u{1b}'));
        stderr(&output).contains("\u{1b}[31merror:\u{1b}[0m /nonexistent")
    };
    let (no, force) = (("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1"));
    assert!(!colours(&[], &[]), "no terminal");
    assert!(colours(&["--color=always"], &[no]));
    assert!(colours(&["--color", "always", "--json"], &[]));
    assert!(colours(&[], &[force]));
    assert!(!colours(&[], &[no, force]));
    assert!(!colours(&["--color=never"], &[force]));

    // The parser's own messages, before there are arguments.
    let unknown = |flag: &str| stderr(&run(["ls", flag, "--bogus"])).contains('\u{1b}');
    assert!(unknown("--color=always"));
    assert!(!unknown("--color=never"));

    let findings = succeed(["doctor", "--color=always"]);
    assert!(findings.contains("\u{1b}[32mok  \u{1b}[0m"), "{findings}");
}

#[test]
fn second_name_is_the_same_command() {
    let alias = env!("CARGO_BIN_EXE_tensorload");
    let output = std::process::Command::new(alias)
        .args(["ls", "--bogus"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let usage = stderr(&output);
    assert!(usage.contains("Usage: tensorload ls [OPTIONS]"), "{usage}");
    let version = std::process::Command::new(alias).arg("--version").output();
    assert_eq!(stdout(&version.unwrap()), succeed(["--version"]));
}

#[test]
fn bash_completes_flags() {
    let script = "source \"$1\"; COMP_WORDS=(tload ls --su); COMP_CWORD=2; \
                  _tload tload --su ls; echo \"${COMPREPLY[@]}\"";
    let completions = succeed(["completions", "bash"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tload.bash");
    std::fs::write(&path, completions).unwrap();
    let output = std::process::Command::new("bash")
        .args(["-c", script, "bash", path.to_str().unwrap()])
        .output()
        .map_err(|error| error.to_string());
    let Some(output) = requirement("bash", output) else {
        return;
    };
    assert_eq!(stdout(&output).trim(), "--summary", "{}", stderr(&output));
}

#[test]
fn manual_pages_are_written_for_every_subcommand() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man1");
    succeed(["man", pages.to_str().unwrap()]);
    for name in [
        "tload.1",
        "tload-ls.1",
        "tload-doctor.1",
        "tload-completions.1",
    ] {
        let page = std::fs::read_to_string(pages.join(name)).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
    }
    let file = pages.join("tload.1");
    let refused = run(["man", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).starts_with("error: "),
        "{}",
        stderr(&refused)
    );
}
