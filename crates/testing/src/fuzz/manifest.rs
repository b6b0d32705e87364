//! Manifests: whatever they contain, files stay below the directory, tensors lie in their files,
//! and a written manifest is read back unchanged. Signatures of models, which contain the same in
//! another format, are read or refused.

use std::path::{Component, Path};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::assert_fit_to_print;
use tload_verify::parse_signature;

use tload::verify::Manifest;

/// Checks `input` as a manifest, a signature, and the payload of a signature.
pub(super) fn check(input: &[u8]) {
    let payload = BASE64_STANDARD.encode(input);
    let kind = "application/vnd.in-toto+json";
    let bundle = format!(r#"{{"dsseEnvelope":{{"payload":"{payload}","payloadType":"{kind}"}}}}"#);
    for signature in [input, bundle.as_bytes()] {
        if let Err(error) = parse_signature(signature) {
            assert_fit_to_print(&error.with_location("model.sig"));
        }
    }
    let manifest = match Manifest::parse(input) {
        Ok(manifest) => manifest,
        Err(error) => return assert_fit_to_print(&error.with_location("manifest")),
    };
    for (name, file) in &manifest.files {
        let plain = |name: &str| {
            let mut components = Path::new(name).components();
            !name.is_empty() && components.all(|one| matches!(one, Component::Normal(_)))
        };
        assert!(plain(name) && !name.contains('\0'), "{name:?}");
        assert!(plain(&name.replace('\\', "/")), "{name:?} elsewhere");
        for (tensor, said) in &file.tensors {
            assert!(said.range.start <= said.range.end, "{tensor:?}");
            assert!(
                said.range.end <= file.bytes,
                "{tensor:?} is outside of {name:?}"
            );
        }
    }
    let written = manifest.render();
    let read = Manifest::parse(&written).expect("what was written can be read");
    assert_eq!(read, manifest);
    assert_eq!(read.render(), written, "the text is canonical");
}
