//! The configuration file: what overrides it, how wrong ones are reported, what the doctor shows.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::secrets::{VARIABLES, assert_none};
use crate::{command, stderr, succeed};

/// A model without digests, and a configuration file.
struct Configured {
    folder: TempDir,
    file: PathBuf,
    model: String,
}

impl Configured {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model").to_str().unwrap().to_owned();
        succeed(["synth", &model, "--preset", "tiny", "--size", "1MiB"]);
        let file = folder.path().join("config.toml");
        let configured = Self {
            folder,
            file,
            model,
        };
        configured.write(text);
        configured
    }

    fn write(&self, text: &str) {
        fs::write(&self.file, text).unwrap();
        fs::set_permissions(&self.file, fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = command(arguments);
        command.env("TLOAD_CONFIG", &self.file);
        command.envs(variables.iter().copied()).output().unwrap()
    }

    fn load(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        self.run(&[&["load", &self.model], arguments].concat(), variables)
    }

    /// Returns the finding of the doctor about the file.
    fn finding(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Value {
        let output = self.run(&[&["doctor", "--json"], arguments].concat(), variables);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let found = findings.iter().find(|it| it["id"] == "configuration");
        found.unwrap().clone()
    }
}

#[test]
fn arguments_come_before_variables_before_the_file() {
    let configured = Configured::new("[load]\nverify = \"require\"\n");
    let variable = "TLOAD_VERIFY";
    for (arguments, value, succeeds) in [
        (&[][..], None, false),
        (&[], Some("off"), true),
        (&[], Some("require"), false),
        (&["--verify=off"], None, true),
        (&["--verify=off"], Some("require"), true),
        (&["--verify=require"], Some("off"), false),
        // A blank variable counts as unset.
        (&[], Some(" "), false),
    ] {
        let variables: Vec<_> = value.map(|value| (variable, value)).into_iter().collect();
        let output = configured.load(arguments, &variables);
        let text = stderr(&output);
        assert_eq!(output.status.success(), succeeds, "{variables:?}: {text}");
    }
    // Without the variable that names it, the file is that of the user.
    let home = configured.folder.path().join("home");
    let folder = home.join(".config/tload");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(&configured.file, folder.join("config.toml")).unwrap();
    for (name, value) in [("HOME", &home), ("XDG_CONFIG_HOME", &home.join(".config"))] {
        let mut command = command(["load", &configured.model]);
        command
            .env_remove("TLOAD_CONFIG")
            .env_remove("XDG_CONFIG_HOME");
        let output = command.env("HOME", "/").env(name, value).output().unwrap();
        assert!(!output.status.success(), "{name}: the file is not read");
    }
}

#[test]
fn error_about_an_option_names_the_file_that_sets_it() {
    let configured = Configured::new("[load]\n\nmemory_limit = \"64KiB\"\n");
    let told = format!(
        "--memory-limit ({}:3 sets 64KiB)",
        configured.file.display()
    );
    for (variable, is_told) in [(None, true), (Some("64KiB"), false)] {
        let variables = variable.map(|value| ("TLOAD_MEMORY_LIMIT", value));
        let output = configured.load(&[], variables.as_slice());
        let text = stderr(&output);
        assert_eq!(
            (output.status.code(), text.contains(&told)),
            (Some(6), is_told),
            "{text}"
        );
    }
}

#[test]
fn every_command_takes_its_options() {
    let configured = Configured::new("");
    let cache = configured.folder.path().join("cache");
    fs::create_dir_all(cache.join("v1")).unwrap();
    let cache = cache.to_str().unwrap();
    configured.write(&format!(
        "[cache]\ndir = {cache:?}\nlimit = \"1GiB\"\n[load]\ndepth = 3\ntimeout = \"1h\"\n"
    ));
    let target = configured.folder.path().join("copy");
    for arguments in [
        &["cache", "stat"][..],
        &["cache", "prune"],
        &["ls", &configured.model],
        &["verify", &configured.model, "--write"],
        &["cp", &configured.model, target.to_str().unwrap()],
        &["bench", &configured.model, "--rounds", "1", "--no-fio"],
    ] {
        let output = configured.run(arguments, &[]);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    let elsewhere = configured.run(&["cache", "stat", "--cache-dir", "/nonexistent"], &[]);
    assert!(
        stderr(&elsewhere).contains("/nonexistent"),
        "{}",
        stderr(&elsewhere)
    );
    configured.write("");
    let output = configured.run(&["cache", "stat"], &[]);
    assert!(
        stderr(&output).contains("--cache-dir"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn wrong_files_fail_loads_and_are_findings() {
    let configured = Configured::new("");
    let file = configured.file.to_str().unwrap().to_owned();
    let wrong = [
        ("[load]\ndeepth = 3\n", 0o644, 2, "deepth"),
        ("[load]\ndepth = true\n", 0o644, 2, "depth"),
        ("[store]\ntoken = \"hunter2\"\n", 0o644, 2, "TLOAD_STORE"),
        ("[load\n", 0o644, 2, "is not TOML"),
        ("", 0o666, 5, "chmod go-w"),
    ];
    for (text, mode, status, wanted) in wrong {
        configured.write(text);
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let output = configured.load(&[], &[]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.starts_with(&format!("error: {file}")), "{said}");
        assert!(said.contains(wanted), "{said}");
        let output = configured.load(&["--json"], &[]);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let location = answer["error"]["location"].as_str().unwrap();
        assert!(location.starts_with(&file), "{answer}");
        let finding = configured.finding(&[&configured.model], &[]);
        assert_eq!(finding["level"], "fail", "{finding}");
        assert!(finding.to_string().contains(wanted), "{finding}");
        // Commands that do not need it work.
        for arguments in [
            &["--help"][..],
            &["load", "--help"],
            &["completions", "bash"],
        ] {
            let output = configured.run(arguments, &[]);
            assert!(output.status.success(), "{arguments:?}");
        }
    }
    fs::remove_file(&file).unwrap();
    let output = configured.load(&[], &[]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("TLOAD_CONFIG names it"));
}

#[test]
fn doctor_shows_the_file_and_what_overrides_it() {
    let configured = Configured::new(
        "[load]\ndepth = 3\nverify = \"auto\"\n[cache]\ndir = \"/c\"\n[store]\nregion = \"eu-west-1\"\nretries = 2\n\
         [store.\"s3://m/\"]\nmirrors = [\"http://127.0.0.1:1/m\"]\n",
    );
    let file = configured.file.display();
    let finding = configured.finding(&[], &[]);
    assert_eq!(
        finding["value"],
        format!(
            "{file}: [load] depth = 3, [load] verify = auto, [cache] dir = /c, [store] region = eu-west-1, \
             [store] retries = 2, [store.\"s3://m/\"] mirrors = http://127.0.0.1:1/m"
        )
    );
    let arguments = ["--store", "retries=0", "s3://m/a"];
    let variables = [
        ("TLOAD_DEPTH", "4"),
        ("TLOAD_CACHE_DIR", "/d"),
        (
            "TLOAD_STORE",
            "region=us-east-1\nendpoint=http://127.0.0.1:1",
        ),
    ];
    let finding = configured.finding(&arguments, &variables);
    assert_eq!(
        finding["value"],
        format!(
            "{file}: [load] depth = 3 (overridden by TLOAD_DEPTH), [load] verify = auto, \
             [cache] dir = /c (overridden by TLOAD_CACHE_DIR), [store] region = eu-west-1 (overridden by TLOAD_STORE), \
             [store] retries = 2 (overridden by --store), [store.\"s3://m/\"] mirrors = http://127.0.0.1:1/m, \
             in force for s3://m/a: mirrors=http://127.0.0.1:1/m/a"
        )
    );
    let mut command = command(["doctor"]);
    let output = command.env("TLOAD_CONFIG", "").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("no configuration file"), "{text}");
}

/// Not of the environment, and not of a file that has some after all.
#[test]
fn secrets_are_not_shown_with_a_file() {
    let good = "[store]\nregion = \"eu\"\nendpoint = \"http://127.0.0.1:1\"\nretries = 0\n";
    for text in [
        good,
        "[store]\nsecret_access_key = \"hunter2\"\n",
        "[store]\nproxy = \"http://me:hunter2@127.0.0.1:1\"\n",
        "[store]\nheaders = { authorization = \"hunter2\" }\n",
        "[store.\"https://me:hunter2@host/\"]\nretries = 0\n",
        "[load]\nverify = \"https://me:hunter2@host/m.json\"\n",
        "[store]\ntoken = hunter2\n",
    ] {
        let configured = Configured::new(text);
        for arguments in [
            &["load", "s3://bucket/m"][..],
            &["load", "s3://bucket/m", "--json"],
            &["ls", "hf://org/m"],
            &["doctor", "s3://bucket/m"],
            &["doctor", "--json"],
        ] {
            let output = configured.run(arguments, &VARIABLES);
            assert_none(&format!("{arguments:?} with {text:?}"), &output);
        }
    }
}
