//! Resource limits: locked memory, open files, threads, stacks.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use rustix::process::Resource;
use signal_hook::consts::SIGTERM;

use super::under::Under;
use super::{Model, assert_refused, shown};
use crate::cp::names;
use crate::interrupt::signal;
use crate::stderr;
use crate::succeed;

/// Locked memory that an old shell allows a user.
const LITTLE_LOCKED: u64 = 64 << 10;

#[test]
fn load_and_bench_work_with_64_kib_of_locked_memory() {
    let model = Model::with_shards(3);
    let Some(user) = Under::new().user() else {
        return;
    };
    let under = user.limit(Resource::Memlock, LITTLE_LOCKED);
    for engine in ["auto", "pread", "uring", "tokio-uring"] {
        let output = under
            .command(["load", &model.text(), "--digest", "--engine", engine])
            .output()
            .unwrap();
        // If rings are unavailable, requesting one is an error that names the reason.
        if engine.contains("uring") && output.status.code() == Some(7) {
            assert_refused(engine, &output, 7, &["hint: "]);
            continue;
        }
        model.assert_loaded(engine, &output);
    }
    let output = under
        .command([
            "bench",
            &model.text(),
            "--rounds",
            "1",
            "--no-fio",
            "--cache-state",
            "warm",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
}

#[test]
fn hundred_shards_with_64_descriptors_name_required_limit() {
    let model = Model::with_shards(100);
    let load = ["load", &model.text(), "--digest"];
    let under = Under::new().limit(Resource::Nofile, 64);
    for subcommand in [
        &load[..],
        &["ls", &model.text()],
        &["bench", &model.text(), "--rounds", "1"],
    ] {
        let output = under.command(subcommand).output().unwrap();
        let said = [
            ".safetensors: cannot open",
            "Too many open files",
            "the limit of open files is 64; a checkpoint of 100 files needs 264: ulimit -n 264",
            "the hard limit is 64",
        ];
        assert_refused(subcommand[0], &output, 1, &said);
    }
    // Headers can be read, but the limit leaves no second descriptor for each file.
    let output = Under::new()
        .limit(Resource::Nofile, 150)
        .command(load)
        .output()
        .unwrap();
    assert_refused(
        "150 descriptors",
        &output,
        1,
        &["the limit of open files is 150; "],
    );
    // Following the hint helps.
    let output = Under::new()
        .limit(Resource::Nofile, 264)
        .command(load)
        .output()
        .unwrap();
    model.assert_loaded("264 descriptors", &output);
}

/// The limit of most shells is for programs that call `select`; this one raises its own.
#[test]
fn command_raises_open_file_limit_to_hard_limit() {
    let model = Model::with_shards(100);
    let under = Under::new().limits(Resource::Nofile, 64, 4096);
    let output = under
        .command(["load", &model.text(), "--digest"])
        .output()
        .unwrap();
    model.assert_loaded("64 that may be raised", &output);
}

#[test]
fn few_descriptors_load_or_report_the_limit() {
    let model = Model::with_shards(2);
    let mut loaded = Vec::new();
    for descriptors in (3..24).chain([40, 64]) {
        let what = format!("{descriptors} descriptors");
        let under = Under::new().limit(Resource::Nofile, descriptors);
        let output = under
            .command(["load", &model.text(), "--digest"])
            .output()
            .unwrap();
        if output.status.success() {
            model.assert_loaded(&what, &output);
            loaded.push(descriptors);
        } else {
            // The dynamic linker needs one first.
            let began = output.status.code() != Some(127);
            if began {
                let status = output.status.code().unwrap_or(0);
                assert!([1, 6].contains(&status), "{what}: {}", shown(&output));
                assert_refused(&what, &output, status, &["Too many open files"]);
            }
        }
    }
    assert!(loaded.len() >= 5 && loaded.contains(&64), "{loaded:?}");
}

#[test]
fn few_threads_load_or_report_the_limit() {
    let model = Model::with_shards(3);
    let mut loaded = Vec::new();
    for threads in [1, 2, 3, 4, 5, 6, 8, 12] {
        for engine in ["auto", "pread"] {
            let Some(user) = Under::new().user() else {
                return;
            };
            let what = format!("{threads} threads, {engine}");
            let output = user
                .limit(Resource::Nproc, threads)
                .command(["load", &model.text(), "--digest", "--engine", engine])
                .output()
                .unwrap();
            if output.status.success() {
                model.assert_loaded(&what, &output);
                loaded.push((threads, engine));
            } else {
                let said = [
                    "cannot start a thread",
                    "raise the limit of processes (ulimit -u)",
                ];
                assert_refused(&what, &output, 6, &said);
            }
        }
    }
    for wanted in [(5, "auto"), (5, "pread"), (12, "pread")] {
        assert!(loaded.contains(&wanted), "{wanted:?} is not in {loaded:?}");
    }
}

#[test]
fn single_thread_writes_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let Some(user) = Under::new().user() else {
        return;
    };
    let model = folder.path().join("model");
    let output = user
        .limit(Resource::Nproc, 1)
        .command([
            "synth",
            model.to_str().unwrap(),
            "--size",
            "4MiB",
            "--shards",
            "3",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    succeed(["ls", model.to_str().unwrap()]);
}

/// Files that may not grow end the command as a kill does.
#[test]
fn checkpoint_stays_until_another_is_written() {
    let model = Model::with_shards(3);
    let text = model.text();
    succeed(["verify", &text, "--write"]);
    let synth = ["synth", &text, "--size", "16MiB", "--force"];
    let under = Under::new().limit(Resource::Fsize, 1 << 20);
    let under = under.limit(Resource::Core, 0);
    let output = under.command(synth).output().unwrap();
    assert!(!output.status.success(), "{}", shown(&output));
    let load = ["load", &text, "--digest"];
    let output = Under::new().command(load).output().unwrap();
    model.assert_loaded("the old checkpoint", &output);
    succeed(synth);
    // The manifest was that of the old one.
    assert_eq!(names(&model.path()), ["config.json", "model.safetensors"]);
}

/// Without a thread that listens, signals take their default action.
#[test]
fn signal_ends_command_without_threads() {
    let model = Model::with_shards(3);
    let Some(user) = Under::new().user() else {
        return;
    };
    let text = model.text();
    let mut child = user
        .limit(Resource::Nproc, 1)
        .command(["ls", &text, &text, &text, "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It waits for the rest to be read: that is more than a pipe holds.
    let mut listing = child.stdout.take().unwrap();
    listing.read_exact(&mut [0]).unwrap();
    assert!(signal(&child, "TERM"), "it had ended");
    drop(listing);
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(SIGTERM), "{status}");
}

/// Too few threads for requests: the load uses fewer, or returns an error; it never panics.
#[test]
fn few_threads_still_reach_store_or_name_limit() {
    for threads in 1..10 {
        let Some(user) = Under::new().user() else {
            return;
        };
        let what = format!("{threads} threads");
        let url = "http://127.0.0.1:1/model.safetensors";
        let output = user
            .limit(Resource::Nproc, threads)
            .command(["ls", url, "--store", "retries=0"])
            .output()
            .unwrap();
        let text = stderr(&output);
        if text.contains("ulimit -u") {
            assert_refused(
                &what,
                &output,
                6,
                &["cannot start the threads for requests"],
            );
        } else {
            assert_refused(
                &what,
                &output,
                9,
                &["error: http://127.0.0.1:1/model.safetensors"],
            );
        }
        assert!(
            threads < 6 || output.status.code() == Some(9),
            "{what}: {text}"
        );
    }
}

/// A load needs threads for requests, lanes, and the look-up of a profile.
#[test]
fn few_threads_load_from_a_store_or_report_the_limit() {
    let model = Model::with_shards(3);
    let server = tload_testbed::FaultyServer::start();
    for (name, bytes) in crate::cp::tree(&model.path()) {
        server.put(&format!("bucket/model/{name}"), bytes);
    }
    let endpoint = format!("endpoint={}", server.url());
    // With keys of the environment, the files of the AWS configuration are read, too.
    let by_options = ["anonymous=true", "environment=false", &endpoint];
    for threads in [1, 2, 3, 4, 5, 6, 8, 12, 64] {
        for from_environment in [false, true] {
            let Some(user) = Under::new().user() else {
                return;
            };
            let what = format!("{threads} threads, environment: {from_environment}");
            let mut arguments = vec!["load", "s3://bucket/model", "--digest"];
            let mut variables = vec![
                ("AWS_CONFIG_FILE", "/dev/null".to_owned()),
                ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null".to_owned()),
                ("AWS_ACCESS_KEY_ID", "test".to_owned()),
                ("AWS_SECRET_ACCESS_KEY", "testtest".to_owned()),
            ];
            if from_environment {
                variables.push(("AWS_ENDPOINT_URL", server.url()));
            } else {
                arguments.extend(by_options.iter().flat_map(|option| ["--store", *option]));
            }
            let output = user
                .limit(Resource::Nproc, threads)
                .command(arguments)
                .env_clear()
                .envs(variables)
                .output()
                .unwrap();
            if output.status.success() {
                model.assert_loaded(&what, &output);
            } else {
                let said = ["cannot start", "raise the limit of processes (ulimit -u)"];
                assert_refused(&what, &output, 6, &said);
            }
            assert!(
                threads < 64 || output.status.success(),
                "{what}: {}",
                shown(&output)
            );
        }
    }
}

/// Twice that of an optimised build.
#[test]
fn stack_of_512_kib_suffices() {
    let model = Model::with_shards(3);
    let under = Under::new().limit(Resource::Stack, 512 << 10);
    let output = under
        .command(["load", &model.text(), "--digest"])
        .output()
        .unwrap();
    model.assert_loaded("load", &output);
    for arguments in [
        &["ls", &model.text()][..],
        &["doctor", &model.text()],
        &["load", "--help"],
    ] {
        let output = under.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", shown(&output));
    }
}
