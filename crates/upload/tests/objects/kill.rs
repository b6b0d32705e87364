//! A copy that is killed at every one of its steps shows no checkpoint, and the next one completes
//! it without sending again what is complete. Copies need little memory.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use tempfile::tempdir;
use tload_base::options::{Location, StoreOptions};
use tload_copy::CopyOptions;
use tload_upload::UploadJob;
use tload_write::kill_at;

use crate::model::{INDEX, copy, known_bytes, stored, total, write_model};
use crate::sites::{Site, on_each, versitygw};

/// Variable that makes this test program a copy: a source, a target, a step, and options of the
/// store.
const VARIABLE: &str = "TLOAD_TEST_COPY";

/// Not a test: the program that is killed.
#[test]
fn copier() {
    let Ok(order) = std::env::var(VARIABLE) else {
        return;
    };
    let mut lines = order.lines();
    let mut line = || lines.next().expect("a line");
    let source = Location::from_path(line());
    let target = Location::parse(line()).expect("a URL");
    kill_at(line().parse().expect("a number"));
    let pairs = lines.map(|line| line.split_once('=').expect("an option"));
    let options = StoreOptions::from_pairs(pairs).expect("valid");
    let job = UploadJob::new(source, target).store(options);
    let copied = job.options(CopyOptions::default().depth(3)).run();
    copied.expect("is copied");
    let status = std::fs::read_to_string("/proc/self/status").expect("is read");
    println!("{status}");
}

fn run(site: &Site, source: &std::path::Path, prefix: &str, step: u64) -> Output {
    let pairs = site.pairs.iter();
    let options: Vec<_> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    let (source, target) = (source.display(), format!("{}/{prefix}", site.base));
    let order = format!("{source}\n{target}\n{step}\n{}", options.join("\n"));
    Command::new(std::env::current_exe().expect("is known"))
        .args(["--exact", "kill::copier", "--nocapture"])
        .env(VARIABLE, order)
        .output()
        .expect("is started")
}

#[test]
fn killed_copy_is_completed_by_the_next() {
    on_each(|site| {
        let folder = tempdir().expect("a folder");
        let files = write_model(folder.path(), 1);
        let (mut kills, mut kept) = (0, 0);
        for step in 1.. {
            let prefix = format!("killed/{step}");
            let output = run(site, folder.path(), &prefix, step);
            let killed = output.status.signal() == Some(9);
            assert!(killed || output.status.success(), "{output:?}");
            let found = stored(site, &prefix);
            assert!(!found.contains_key(INDEX) || found == files, "{step}");
            let known = known_bytes(site, &prefix, &files);
            let report = copy(folder.path(), site, &prefix).expect(site.name);
            assert!(
                stored(site, &prefix) == files,
                "{} at step {step}",
                site.name
            );
            assert!(!site.objects(&prefix).contains_key(".tload-write"));
            assert!(report.copied_bytes <= total(&files) - known, "{report:?}");
            kept += u64::from(known > 0);
            if !killed {
                assert_eq!(report.copied_files, 0);
                break;
            }
            kills += 1;
        }
        println!(
            "{}: {kills} kills, {kept} with bytes that were kept",
            site.name
        );
        assert!(kills > 25 && kept > 5, "{kills} {kept}");
    });
}

#[test]
fn memory_is_bounded() {
    let Some(site) = versitygw() else { return };
    let folder = tempdir().expect("a folder");
    let file = std::fs::File::create(folder.path().join("model.safetensors")).expect("a file");
    file.set_len(600 << 20).expect("is sparse");
    let output = run(&site, folder.path(), "large", u64::MAX);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = line.expect("is told").trim().trim_end_matches(" kB");
    let peak_mib = peak.parse::<u64>().expect("a number") >> 10;
    println!("peak: {peak_mib} MiB");
    assert!(peak_mib < 150, "{peak_mib} MiB for three parts of 8 MiB");
}
