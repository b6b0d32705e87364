//! Reads a model's signature, `model.sig`, as `OpenSSF`'s model-signing writes it, for the digests
//! that it covers.
//!
//! A Sigstore bundle in JSON holds a DSSE envelope, which holds an in-toto statement, whose
//! predicate lists files with their digests (model-signing's `docs/model_signing_format.md`,
//! version 1.0). Digests are parsed strictly here. The signer is not checked: that takes keys or
//! certificates to trust, and is left to `model-signing` itself.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::Named;
use super::sidecar::Sidecars;
use crate::claims::Claim;
use crate::digest::{Algorithm, Digest};
use crate::error::{Error, ErrorKind, Result, printable};
use crate::manifest::{clipped, wrong_json, wrong_name};
use crate::options::Location;

/// File name of a signature, beside the checkpoint.
pub(crate) const NAME: &str = "model.sig";

/// Maximum length of a signature, bytes: enough for models of 70,000 files.
pub(crate) const BYTES_MAX: u64 = 16 << 20;

const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE: &str = "https://model_signing/signature/v1.0";

/// Contents of a signature.
#[derive(Debug)]
pub(super) struct Signed {
    location: Location,
    /// Digests by path below the directory, or the reason why none of them can be compared.
    files: Result<Named, String>,
}

/// Reads the signature in a directory, if there is one.
pub(super) fn beside(folder: &Location, sidecars: &Sidecars<'_>) -> Result<Option<Signed>> {
    let location = folder.join(NAME);
    let Some(text) = sidecars.read_in(folder, &location, BYTES_MAX)? else {
        return Ok(None);
    };
    let files = parse(&text).map_err(|error| error.with_location(&location))?;
    Ok(Some(Signed { location, files }))
}

/// Returns the signed digest of a file of a checkpoint in `folder`, or the reason why there is
/// none.
pub(super) fn for_file(
    file: &Location,
    folder: &Location,
    signed: Option<&Signed>,
) -> Result<Claim, String> {
    let signed = signed.ok_or_else(|| format!("there is no {NAME}"))?;
    let files = signed.files.as_ref().map_err(Clone::clone)?;
    let name = file.below(folder);
    let digest = name.and_then(|name| files.get(&name));
    let by = format!("digests in {}", signed.location);
    digest
        .map(|digest| Claim::from_whole(by, vec![*digest]))
        .ok_or_else(|| format!("{} does not list it", signed.location))
}

// Texts are borrowed and unused fields are skipped, so parsing takes no more than a few times the
// length of the text.

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle<'a> {
    #[serde(borrow)]
    dsse_envelope: Envelope<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow)]
    payload: Cow<'a, str>,
    #[serde(borrow)]
    payload_type: Cow<'a, str>,
}

/// Fields of every in-toto statement.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InToto<'a> {
    #[serde(rename = "_type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    subject: Vec<Subject<'a>>,
    #[serde(borrow)]
    predicate_type: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Subject<'a> {
    #[serde(borrow)]
    digest: SubjectDigest<'a>,
}

#[derive(Deserialize)]
struct SubjectDigest<'a> {
    #[serde(borrow)]
    sha256: Option<Cow<'a, str>>,
}

/// In-toto statement with a predicate whose type has been checked.
#[derive(Deserialize)]
struct Predicated<'a> {
    #[serde(borrow)]
    predicate: Predicate<'a>,
}

#[derive(Deserialize)]
struct Predicate<'a> {
    #[serde(borrow)]
    serialization: Serialization<'a>,
    #[serde(borrow)]
    resources: Vec<Resource<'a>>,
}

#[derive(Deserialize)]
struct Serialization<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Resource<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    algorithm: Cow<'a, str>,
    #[serde(borrow)]
    digest: Cow<'a, str>,
}

/// Parses the text of a signature and discards the result, for fuzzers and tests.
pub fn read(text: &[u8]) -> Result<()> {
    parse(text).map(|_| ())
}

/// Parses the files that a signature covers, or returns the reason why they cannot be compared.
fn parse(text: &[u8]) -> Result<Result<Named, String>> {
    let json = |error: serde_json::Error| invalid(printable(&wrong_json(&error)));
    let bundle: Bundle<'_> = serde_json::from_slice(text).map_err(json)?;
    let envelope = bundle.dsse_envelope;
    require("payload", &envelope.payload_type, PAYLOAD_TYPE)?;
    let payload = BASE64_STANDARD
        .decode(envelope.payload.as_bytes())
        .map_err(|_| invalid("its payload is not Base64"))?;
    let statement: InToto<'_> = serde_json::from_slice(&payload).map_err(json)?;
    require("statement", &statement.kind, STATEMENT_TYPE)?;
    if statement.predicate_type != PREDICATE_TYPE {
        return Ok(Err(format!(
            "{NAME} has an unsupported predicate type, wanted {PREDICATE_TYPE}"
        )));
    }
    let Predicated { predicate } = serde_json::from_slice(&payload).map_err(json)?;
    let [subject] = &statement.subject[..] else {
        return Err(invalid(format!(
            "found {} subjects, wanted one",
            statement.subject.len()
        )));
    };
    require_root(subject, &predicate.resources)?;
    if predicate.serialization.method != "files" {
        return Ok(Err(format!(
            "{NAME} covers pieces of files, and only whole files are compared"
        )));
    }
    digests(&predicate.resources)
}

/// Requires that the digest of the subject is computed over those of all resources, in their order.
fn require_root(subject: &Subject<'_>, resources: &[Resource<'_>]) -> Result<()> {
    let mut root = Sha256::new();
    for resource in resources {
        let bytes = bytes_of(&resource.digest);
        root.update(bytes.ok_or_else(|| {
            invalid(format!(
                "the digest of {:?} is not hexadecimal",
                clipped(&resource.name)
            ))
        })?);
    }
    let found = Digest::new(Algorithm::Sha256, &root.finalize());
    let stated = subject
        .digest
        .sha256
        .as_deref()
        .and_then(|text| Digest::from_hex(Algorithm::Sha256, text));
    if stated.is_none() || stated != found {
        return Err(invalid(
            "the digest of its subject does not match its list of files",
        ));
    }
    Ok(())
}

fn digests(resources: &[Resource<'_>]) -> Result<Result<Named, String>> {
    let mut named = Named::new();
    for resource in resources {
        let shown = clipped(&resource.name);
        if let Some(wrong) = wrong_name(&resource.name) {
            return Err(invalid(format!("the file name {shown:?} {wrong}")));
        }
        if resource.algorithm != Algorithm::Sha256.name() {
            return Ok(Err(format!(
                "{NAME} does not use SHA-256, and only SHA-256 is compared"
            )));
        }
        let digest = Digest::from_hex(Algorithm::Sha256, &resource.digest);
        let digest = digest.ok_or_else(|| invalid(format!("{shown:?} has no SHA-256")))?;
        if named.insert(resource.name.to_string(), digest).is_some() {
            return Err(invalid(format!("the file {shown:?} is listed twice")));
        }
    }
    Ok(Ok(named))
}

/// Decodes a digest of any length.
fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    let value = |digit: u8| char::from(digit).to_digit(16);
    let pair = |pair: &[u8]| u8::try_from(16 * value(pair[0])? + value(*pair.get(1)?)?).ok();
    digits.chunks(2).map(pair).collect()
}

fn require(what: &str, found: &str, wanted: &str) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(invalid(format!(
        "its {what} has another type, wanted {wanted:?}"
    )))
}

fn invalid(message: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidFormat,
        format!("is not a model signature: {message}"),
    )
    .with_hint("download the signature again, or sign the model again: model_signing sign")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SHA: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn resource(name: &str) -> Value {
        json!({"name": name, "algorithm": "sha256", "digest": SHA})
    }

    fn root(resources: &[Value]) -> String {
        let mut root = Sha256::new();
        for resource in resources {
            let digest = resource["digest"].as_str().expect("a text");
            root.update(bytes_of(digest).expect("digits"));
        }
        let digest = Digest::new(Algorithm::Sha256, &root.finalize()).expect("32 bytes");
        digest.to_string().replace("sha256:", "")
    }

    fn statement(resources: &[Value]) -> Value {
        json!({
            "_type": STATEMENT_TYPE,
            "subject": [{"name": "model", "digest": {"sha256": root(resources)}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": false},
                "resources": resources,
            },
        })
    }

    fn bundle(statement: &Value) -> Value {
        json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"publicKey": {"hint": "x"}},
            "dsseEnvelope": {
                "payload": BASE64_STANDARD.encode(statement.to_string()),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": "AA=="}],
            },
        })
    }

    fn read(bundle: &Value) -> Result<Result<Named, String>> {
        parse(bundle.to_string().as_bytes())
    }

    #[test]
    fn files_and_their_digests() {
        let files = read(&bundle(&statement(&[resource("a/b"), resource("c")])));
        let files = files.expect("valid").expect("comparable");
        let names: Vec<_> = files.keys().map(String::as_str).collect();
        assert_eq!(names, ["a/b", "c"]);
        assert_eq!(files["c"].to_string(), format!("sha256:{SHA}"));
    }

    #[test]
    fn unsupported_signature_states_reason() {
        let mut shards = statement(&[resource("a:0:8")]);
        shards["predicate"]["serialization"]["method"] = json!("shards");
        let mut other = statement(&[]);
        other["predicateType"] = json!("https://example.com/\u{1b}");
        let blake = json!({"name": "a", "algorithm": "blake3", "digest": SHA});
        for (statement, wanted) in [
            (shards, "pieces of files"),
            (other, "wanted https://model_signing/"),
            (statement(&[blake]), "does not use SHA-256"),
        ] {
            let why = read(&bundle(&statement)).expect("valid").expect_err(wanted);
            assert!(why.contains(wanted), "{why}");
        }
    }

    #[test]
    fn malformed_signature_is_rejected() {
        let good = statement(&[resource("a")]);
        let set = |pointer: &str, value: Value| {
            let mut changed = good.clone();
            *changed.pointer_mut(pointer).expect("there") = value;
            bundle(&changed)
        };
        let mut payload = bundle(&good);
        payload["dsseEnvelope"]["payload"] = json!("%");
        let mut of_type = bundle(&good);
        of_type["dsseEnvelope"]["payloadType"] = json!("text/plain");
        let twice = bundle(&statement(&[resource("a"), resource("a")]));
        for (bundle, wanted) in [
            (json!({}), "dsseEnvelope"),
            (json!([]), "is not a model signature"),
            (payload, "not Base64"),
            (of_type, "its payload has another type"),
            (twice, "listed twice"),
            (
                bundle(&statement(&[resource("../a")])),
                "leaves the directory",
            ),
            (bundle(&statement(&[resource("/a")])), "an absolute path"),
            (
                set("/_type", json!("other")),
                "its statement has another type",
            ),
            (set("/subject", json!([])), "0 subjects"),
            (
                set("/subject/0/digest", json!({})),
                "the digest of its subject",
            ),
            (
                set(
                    "/predicate/resources",
                    json!([resource("a"), resource("b")]),
                ),
                "the digest of its subject",
            ),
            (set("/predicate/resources", json!({})), "wanted a sequence"),
            (
                set("/predicate/resources/0/digest", json!("abc")),
                "not hexadecimal",
            ),
        ] {
            let error = read(&bundle).expect_err(wanted);
            assert!(error.message().contains(wanted), "{wanted}: {error}");
            assert_eq!(error.kind(), ErrorKind::InvalidFormat);
        }
        let short = json!({"name": "a", "algorithm": "sha256", "digest": "abcd"});
        assert!(
            read(&bundle(&statement(&[short])))
                .expect_err("short")
                .message()
                .contains("no SHA-256")
        );
    }
}
