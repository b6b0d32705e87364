//! Tests of exports, with made-up results.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::bench::schedule;
use crate::bench::testing::{MockRunner, plan, results};

fn measured() -> Results {
    let plan = plan(2, 3);
    let mut results = results(&plan);
    schedule::run(&plan, &mut MockRunner::default(), &mut results, |_| Ok(())).unwrap();
    results.warnings.push("a | warning".to_owned());
    results
}

fn json(path: &Path) -> ExportArgs {
    ExportArgs {
        json: Some(path.to_owned()),
        ..ExportArgs::default()
    }
}

#[test]
fn json_has_every_sample_and_stable_keys() {
    let json: serde_json::Value = serde_json::from_str(&json::Json.render(&measured())).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["complete"], true);
    assert_eq!(json["host"]["kernel"], "6.18.0");
    assert_eq!(json["cells"].as_array().unwrap().len(), 2);
    let cell = &json["cells"][0];
    assert_eq!(cell["mode"], "stream");
    assert_eq!(cell["cache_state"], "cold");
    assert_eq!(cell["configuration"]["engine"], "auto");
    assert_eq!(cell["samples"].as_array().unwrap().len(), 9);
    assert_eq!(cell["samples"][0]["residency"]["found"], "cold");
    assert_eq!(cell["summaries"][1]["contender"], "ceiling");
    let ratio = cell["summaries"][1]["tload_ratio"]["median"]
        .as_f64()
        .unwrap();
    assert!((0.94..0.96).contains(&ratio), "{ratio}");
}

#[test]
fn csv_has_one_line_per_sample_and_as_many_fields_as_titles() {
    let csv = csv::Csv.render(&measured());
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + 2 * 3 * 3);
    let fields = lines[0].split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == fields));
    assert!(
        lines[1].starts_with("1,0,tload,stream,cold,cold,0,auto,uring,"),
        "{}",
        lines[1]
    );
}

#[test]
fn markdown_is_a_table() {
    let markdown = markdown::Markdown.render(&measured());
    let table: Vec<&str> = markdown
        .lines()
        .filter(|line| line.starts_with('|'))
        .collect();
    assert_eq!(table.len(), 2 + 2 * 3);
    assert!(
        table[2].starts_with("| stream | cold | uring |  | tload | 1.9"),
        "{}",
        table[2]
    );
    assert!(
        markdown.ends_with("\n* a | warning\n\n`tload bench`\n"),
        "{markdown}"
    );
}

#[test]
fn export_files_are_created_before_first_run_and_bad_path_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    Exports::create(&json(&path)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
    let missing = folder.path().join("no/out");
    let csv = ExportArgs {
        csv: Some(missing.clone()),
        ..ExportArgs::default()
    };
    let html = ExportArgs {
        html: Some(missing),
        ..ExportArgs::default()
    };
    for args in [csv, html] {
        let error = Exports::create(&args).err().unwrap();
        assert_eq!(error.kind(), tload::ErrorKind::NotFound);
    }
}

#[test]
fn existing_files_keep_what_they_have_until_it_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let [file, link, new, pipe] = ["a", "link", "new", "pipe"].map(|it| folder.path().join(it));
    fs::write(&file, "before").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let (fifo, rights) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, rights, 0).unwrap();
    for path in [&file, &link, &new, &pipe] {
        create(&[path]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "before", "{path:?}");
    }
    assert_eq!(fs::read_to_string(&new).unwrap(), "");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    create(&[&folder.path().to_owned()]).unwrap_err();
}

#[test]
fn plot_is_written_as_svg_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["out.png", "out", "svg", "out.svg.gz"] {
        let both = ExportArgs {
            plot: Some(path(name)),
            ..json(&path("out.json"))
        };
        let error = Exports::create(&both).err().unwrap();
        assert_eq!(error.kind(), tload::ErrorKind::InvalidRequest, "{name}");
        assert!(error.hint().unwrap().contains(".svg"), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let plot = |name| ExportArgs {
        plot: Some(path(name)),
        ..ExportArgs::default()
    };
    let missing = Exports::create(&plot("no/out.svg"));
    let error = missing.err().unwrap();
    assert_eq!(error.kind(), tload::ErrorKind::NotFound);
    Exports::create(&plot("out.SVG"))
        .unwrap()
        .write(&measured())
        .unwrap();
    let svg = fs::read_to_string(path("out.SVG")).unwrap();
    assert!(svg.starts_with("<svg "), "{svg}");
}

#[test]
fn file_is_replaced_at_once_and_link_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("a.json"), folder.path().join("link"));
    write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let rights = fs::Permissions::from_mode(0o600);
    fs::set_permissions(&file, rights.clone()).unwrap();
    write(&file, "first").unwrap();
    // A reader, or a crash, never meets half a text.
    let mut open = fs::File::open(&file).unwrap();
    write(&file, "second").unwrap();
    let mut seen = String::new();
    open.read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "first");
    assert_eq!(fs::read_to_string(&file).unwrap(), "second");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, rights.mode());

    write(&link, "third").unwrap();
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), "third");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// Names have 255 bytes at most.
#[test]
fn file_with_a_long_name_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a".repeat(250));
    for text in ["first", "second"] {
        write(&path, text).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn planted_link_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["a.json", "other"] {
        fs::write(path(name), "before").unwrap();
    }
    std::os::unix::fs::symlink(path("other"), path(".a.json.partial")).unwrap();
    write(&path("a.json"), "after").unwrap();
    assert_eq!(fs::read_to_string(path("a.json")).unwrap(), "after");
    assert_eq!(fs::read_to_string(path("other")).unwrap(), "before");
}

/// A container often has a single file of the host.
#[test]
fn mounted_file_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["host", "a.json"] {
        fs::write(path(name), "before").unwrap();
    }
    let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
        let output = std::process::Command::new(program)
            .args(arguments)
            .output()
            .map_err(|error| error.to_string())?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(()).ok_or(stderr)
    };
    let (host, export) = (path("host"), path("a.json"));
    let mounted = run(
        "mount",
        &["--bind".as_ref(), host.as_ref(), export.as_ref()],
    );
    if tload_testbed::require_named("mount", mounted).is_none() {
        return;
    }
    let written = write(&export, "after");
    run("umount", &[export.as_ref()]).unwrap();
    written.unwrap();
    assert_eq!(fs::read_to_string(&host).unwrap(), "after");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}
