//! Options of a prefix in the configuration file, for what a server has.

use std::fs;

use serde_json::Value;

use super::Server;
use crate::{command, stderr, succeed};

#[test]
fn tables_of_prefixes_cache_and_mirror_what_is_below_them() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    for name in ["a", "b"] {
        let model = root.join(name);
        succeed(["synth", model.to_str().unwrap(), "--preset", "tiny"]);
    }
    let [origin, mirror] = [(); 2].map(|()| Server::start(&root, &[]));
    let cache = folder.path().join("cache");
    let file = folder.path().join("config.toml");
    let (url, other) = (&origin.url, &mirror.url);
    let text = format!(
        "[store.\"{url}/a\"]\nmirrors = [\"{other}/a\"]\n[store.\"{url}/b\"]\ncache_dir = {:?}\n",
        cache.to_str().unwrap()
    );
    fs::write(&file, text).unwrap();
    let load = |location: &str, arguments: &[&str]| {
        let mut command = command([&["load", location, "--json"], arguments].concat());
        let output = command.env("TLOAD_CONFIG", &file).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer["report"].clone()
    };
    let report = load(&format!("{url}/a"), &[]);
    assert_eq!(
        report["mirrors"][0]["location"],
        format!("{other}/a"),
        "{report}"
    );
    assert!(report["cache"].is_null());
    let report = load(&format!("{url}/b"), &[]);
    assert!(report["mirrors"].as_array().unwrap().is_empty());
    assert!(report["remote_bytes"].as_u64().unwrap() > 0);
    assert!(cache.exists());
    let report = load(&format!("{url}/b"), &[]);
    assert_eq!(report["remote_bytes"], 0, "{report}");
    let elsewhere = folder.path().join("elsewhere");
    let report = load(
        &format!("{url}/b"),
        &["--cache-dir", elsewhere.to_str().unwrap()],
    );
    assert!(report["remote_bytes"].as_u64().unwrap() > 0, "{report}");
}
