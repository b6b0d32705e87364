//! `--verify`: correct bytes are counted, corrupt ones have an exit status of their own.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};
use tload::verify::{Algorithm, Digest};

use crate::{command, json, run, stderr, succeed};

/// Returns CRC and SHA-256, as manifests have them.
fn digests(bytes: &[u8]) -> Value {
    let hex = |algorithm| {
        let text = Digest::compute(algorithm, bytes).to_string();
        text.split_once(':').unwrap().1.to_owned()
    };
    json!({"crc64nvme": hex(Algorithm::Crc64Nvme), "sha256": hex(Algorithm::Sha256)})
}

/// Writes a manifest of the only file of a directory beside it.
fn write_manifest(folder: &Path, name: &str) {
    let bytes = fs::read(folder.join(name)).unwrap();
    let first = bytes.first_chunk::<8>().unwrap();
    let header_bytes = 8 + usize::try_from(u64::from_le_bytes(*first)).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut tensors = json!({});
    for (tensor, info) in header.tensors() {
        let (begin, end) = info.data_offsets;
        let (begin, end) = (header_bytes + begin, header_bytes + end);
        let mut entry = digests(&bytes[begin..end]);
        (entry["begin"], entry["end"]) = (begin.into(), end.into());
        tensors[tensor] = entry;
    }
    let mut file = digests(&bytes);
    (file["bytes"], file["tensors"]) = (bytes.len().into(), tensors);
    let manifest = json!({"tload_manifest": 1, "files": {name: file}});
    fs::write(folder.join("tload-manifest.json"), manifest.to_string()).unwrap();
}

#[test]
fn flipped_bit_is_status_11_and_names_its_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("m");
    let path = folder.to_str().unwrap();
    succeed(["synth", path, "--preset", "tiny", "--size", "1MiB"]);
    let names = fs::read_dir(path).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let name = names
        .filter(|name| name.ends_with(".safetensors"))
        .max()
        .unwrap();
    let file = folder.join(&name);
    let file = file.to_str().unwrap();

    // There is nothing to compare with.
    let text = succeed(["load", file, "--verify"]);
    assert!(
        text.contains("\nverify   0 B; not fully verified: "),
        "{text}"
    );
    let output = run(["load", file, "--verify=require"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));

    write_manifest(&folder, &name);
    let manifest = format!("--verify={path}/tload-manifest.json");
    for verify in ["--verify", "--verify=require", &manifest] {
        let report = json(["load", file, "--json", verify]);
        let report = &report["report"];
        let verified = &report["verification"]["bytes"];
        assert_eq!(verified, &report["tensor_bytes"], "{report}");
    }

    let mut bytes = fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
    succeed(["load", file]);
    let output = command(["load", file])
        .env("TLOAD_VERIFY", "auto")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(11), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("tensor \""), "{text}");
    assert!(text.contains("expected crc64nvme:"), "{text}");
}
