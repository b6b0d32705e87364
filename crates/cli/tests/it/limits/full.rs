//! Full disks: whatever a command writes, the exit status says that there is no room.

use super::under::Under;
use super::{Model, assert_refused};

const NO_ROOM: &str = "No space left on device";

#[test]
fn full_disk_has_its_own_exit_status() {
    let model = Model::with_shards(1);
    let full = model.folder.path().join("full");
    std::fs::create_dir(&full).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=64k none '{0}'\ncat /dev/zero >'{0}/zeros' 2>/dev/null || :",
        full.display()
    );
    let Some(under) = Under::new().mounts(&script) else {
        return;
    };
    let file = |name: &str| full.join(name).display().to_string();
    let model = model.text();
    let bench = ["bench", &model, "--rounds", "1", "--no-fio"];
    let bench = [&bench[..], &["--cache-state", "warm"]].concat();
    let manifest = file("manifest");
    let manifest = ["verify", &model, "--write", &manifest];
    let copy = file("copy");
    let mut cases = vec![
        vec!["cp", &*model, &copy],
        vec!["synth", &copy, "--size", "16KiB", "--preset", "tiny"],
        manifest.to_vec(),
        vec!["man", &copy],
    ];
    let page = file("a.svg");
    for option in [
        "--json",
        "--csv",
        "--markdown",
        "--plot",
        "--html",
        "--trace",
    ] {
        cases.push([&bench[..], &[option, &page]].concat());
    }
    for option in ["--html", "--trace"] {
        cases.push(vec!["load", &model, option, &page]);
    }
    cases.push(vec!["doctor", &model, "--html", &page]);
    for arguments in cases {
        let output = under.command(&arguments).output().unwrap();
        let what = arguments.join(" ");
        assert_refused(&what, &output, 6, &["error: ", "full/", "hint: "]);
    }
    for arguments in [
        &["ls", &*model][..],
        &["ls", &model, "--json"],
        &["load", &model],
        &["load", &model, "--json"],
        &["verify", &model, "--write", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["bench", &model, "--rounds", "1", "--no-fio"],
        &["completions", "bash"],
        &["--version"],
        &["-h"],
        &["help"],
        &["ls", "--help"],
    ] {
        let stdout = std::fs::File::options().write(true).open("/dev/full");
        let mut command = Under::new().command(arguments);
        let output = command.stdout(stdout.unwrap()).output().unwrap();
        let what = arguments.join(" ");
        assert_refused(&what, &output, 6, &["standard output", NO_ROOM]);
    }
}
