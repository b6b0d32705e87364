//! The content store of the hub in this process speaks the protocol of `huggingface_hub`.

use std::path::Path;
use std::process::Command;

use tload_testbed::{Hub, require_named};

const DOWNLOAD: &str = "
import sys
from huggingface_hub import hf_hub_download
path = hf_hub_download('org/model', 'model.safetensors', cache_dir=sys.argv[1], token='hf_hunter2')
print(open(path, 'rb').read() == open(sys.argv[2], 'rb').read())
";

/// Returns the Python of the tests, if it has the hub's client with its extension for xet.
fn python() -> Result<std::path::PathBuf, String> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let imports = Command::new(&python)
        .args(["-c", "import hf_xet, huggingface_hub"])
        .output();
    match imports {
        Ok(output) if output.status.success() => Ok(python),
        Ok(_) | Err(_) => Err("no hf_xet and huggingface_hub in .venv: run make wheel".to_owned()),
    }
}

#[test]
fn client_of_hub_reads_content_store() {
    let Some(python) = require_named("hf_xet", python()) else {
        return;
    };
    for version in [2, 1] {
        assert_read_by(&python, version);
    }
}

fn assert_read_by(python: &Path, version: u8) {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    hub.keep_in_xet();
    hub.forget_xet_version(3 - version, 404);
    let bytes: Vec<u8> = (0..300_000_u32)
        .flat_map(|at| (at / 3).to_le_bytes())
        .collect();
    let twice = [&bytes[..], &bytes[..]].concat();
    hub.commit("org/model", "main", &[("model.safetensors", &twice)]);
    let original = folder.path().join("original");
    std::fs::write(&original, &twice).expect("a temporary folder");
    let output = Command::new(python)
        .args(["-c", DOWNLOAD])
        .args([folder.path().join("cache"), original])
        .env_clear()
        .env("HF_ENDPOINT", hub.url())
        .env("HF_HOME", folder.path())
        .env("HOME", folder.path())
        .output()
        .expect("Python starts");
    let (out, err) = (output.stdout, output.stderr);
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    assert_eq!(out.trim(), "True", "{err}");
    let queries = hub.queries();
    let is_answered = |query: &tload_testbed::HubRequest| {
        let path = format!("v{version}/reconstructions/");
        query.path.starts_with(&path) && query.with_token
    };
    assert!(queries.iter().any(is_answered), "{queries:?}");
    let served = hub.files().requests();
    let is_xorb = |request: &tload_testbed::Request| request.path.starts_with("xorbs/");
    assert!(served.len() > 2 && served.iter().all(is_xorb), "{served:?}");
}
