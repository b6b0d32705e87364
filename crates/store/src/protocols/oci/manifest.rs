//! One artifact of a registry: its files, as its manifest names them, and the manifests of an
//! index. Pure.
//!
//! Names of files are annotations of layers: `org.cncf.model.filepath` (CNCF model-spec, also in
//! Docker's model artifacts) or `org.opencontainers.image.title` (`oras push`). Older artifacts of
//! Docker have no names; their files are named as Docker's model runner does
//! (`pkg/distribution/internal/bundle/unpack.go`). Contents of archives cannot be read by ranges.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use crate::error::{ErrorKind, counted};
use crate::errors::classification::Classification;
use crate::format::SUFFIX;
use crate::lists::tree::Files;
use crate::options::oci_reference::is_digest;
use crate::steps::step;

/// Media types of manifests and of indexes: OCI's, then Docker's.
pub(crate) const MANIFESTS: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
pub(crate) const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

/// Annotations that name the file of a layer; the first one present counts.
const NAMES: [&str; 3] = [
    "org.cncf.model.filepath",
    "org.cnai.model.filepath",
    "org.opencontainers.image.title",
];

/// Annotation of `oras push` for a folder, which is one archive.
const UNPACK: &str = "io.deis.oras.content.unpack";

/// Default media type of `oras push` for files, which it does not pack.
const TITLED: &str = "application/vnd.oci.image.layer.v1.tar";

/// Stands for "no layers" (OCI image specification 1.1).
const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// Longest list in an error.
const SHOWN_MAX: usize = 5;

/// Properties of a file.
#[derive(Debug)]
pub(crate) struct File {
    /// Digest of the blob, with its algorithm.
    pub(crate) digest: String,
    pub(crate) len: u64,
}

impl File {
    /// Returns the identity as an entity tag.
    pub(crate) fn e_tag(&self) -> String {
        format!("\"{}\"", self.digest)
    }
}

/// Meaning of a registry's response.
#[derive(Debug)]
pub(crate) enum Manifest {
    Files(Files<File>),
    /// Digest of the manifest that an index leads to.
    Index(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    media_type: Option<String>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    annotations: Option<BTreeMap<String, String>>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

impl Manifest {
    /// Parses the response; `content_type` is its header.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for other manifests, for weights in archives and for files
    /// without names; [`ErrorKind::Remote`] for a malformed manifest.
    pub(crate) fn parse(body: &[u8], content_type: Option<&str>) -> Result<Self, Classification> {
        let answer: Answer = serde_json::from_slice(body)
            .map_err(|error| malformed(&format!("is not a manifest ({error})")))?;
        let stated = content_type.and_then(|text| text.split(';').next());
        let media_type = answer.media_type.as_deref().or(stated).map(str::trim);
        let is_any = |known: &[&str]| media_type.is_some_and(|it| known.contains(&it));
        match answer {
            Answer {
                manifests: Some(manifests),
                ..
            } if is_any(&INDEXES) => select(&manifests).map(Self::Index),
            Answer {
                layers: Some(layers),
                ..
            } if is_any(&MANIFESTS) => files(&layers).map(Self::Files),
            _ => Err(Classification::new(
                ErrorKind::Unsupported,
                format!(
                    "the manifest has the type {:?}, which tload does not read",
                    media_type.unwrap_or_default()
                ),
            )
            .hint("push the model as an OCI artifact: modctl push, oras push, docker model push")),
        }
    }
}

fn malformed(what: &str) -> Classification {
    Classification::new(ErrorKind::Remote, format!("the registry's manifest {what}"))
        .hint("check that the server is an OCI registry, and push the artifact again")
}

impl Descriptor {
    fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name).map(String::as_str)
    }

    fn name(&self) -> Option<&str> {
        NAMES.iter().find_map(|name| self.annotation(name))
    }

    /// Returns whether the layer holds packed or compressed files.
    fn is_archive(&self) -> bool {
        let kind = self.media_type.as_str();
        let is_packed = ["tar", "tar+gzip", "tar+zstd", "tar.gzip", "+gzip", "+zstd"]
            .iter()
            .any(|end| kind.ends_with(end));
        let is_titled = kind == TITLED && self.name().is_some();
        self.annotation(UNPACK) == Some("true") || (is_packed && !is_titled)
    }

    /// Returns whether an archive says that it holds weights.
    fn holds_weights(&self) -> bool {
        let kind = self.media_type.as_str();
        let kinds = [
            ".model.weight.v",
            ".modelkit.model.",
            ".modelkit.modelpart.",
        ];
        kinds.iter().any(|known| kind.contains(known))
            || self.name().is_some_and(|name| name.ends_with(SUFFIX))
    }

    fn shown(&self) -> String {
        let name = self.name().unwrap_or("without a name");
        format!("{name:?} ({}, {})", self.media_type, self.digest)
    }

    fn platform(&self) -> Option<String> {
        let Platform { os, architecture } = self.platform.as_ref()?;
        Some(format!("{os}/{architecture}"))
    }
}

/// Returns the digest of an index's manifest: the only one, or that for this machine.
fn select(manifests: &[Descriptor]) -> Result<String, Classification> {
    // An index also lists attestations, which are no models.
    let is_model = |one: &&Descriptor| {
        one.annotation("vnd.docker.reference.type").is_none()
            && one.platform().as_deref() != Some("unknown/unknown")
    };
    let models: Vec<_> = manifests.iter().filter(is_model).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let here = format!("linux/{architecture}");
    let mut of_here = models
        .iter()
        .filter(|one| one.platform().as_ref() == Some(&here));
    let selected = match (&*models, of_here.next(), of_here.next()) {
        ([only], _, _) => only,
        (_, Some(one), None) => one,
        ([], _, _) => return Err(malformed("is an index without manifests")),
        _ => {
            let shown = models.iter().take(SHOWN_MAX).map(|one| {
                let platform = one.platform().unwrap_or_else(|| "no platform".to_owned());
                format!("{} ({platform})", one.digest)
            });
            let shown: Vec<_> = shown.collect();
            let message = format!(
                "the tag names {}, not one for {here} among them: {}",
                counted(models.len() as u64, "manifest"),
                shown.join(", ")
            );
            return Err(Classification::new(ErrorKind::Unsupported, message)
                .hint("pass the digest of one of them: oci://registry/repository@sha256:…"));
        }
    };
    if is_digest(&selected.digest) {
        return Ok(selected.digest.clone());
    }
    Err(malformed("names a digest that is none"))
}

fn files(layers: &[Descriptor]) -> Result<Files<File>, Classification> {
    let (archives, layers): (Vec<_>, Vec<_>) = layers
        .iter()
        .filter(|layer| layer.media_type != EMPTY)
        .partition(|layer| layer.is_archive());
    let packed = archives.iter().find(|layer| layer.holds_weights());
    if let Some(layer) = packed.or(archives.first().filter(|_| layers.is_empty())) {
        let message = format!(
            "the layer {} is an archive, whose files cannot be read by ranges",
            layer.shown()
        );
        return Err(Classification::new(ErrorKind::Unsupported, message).hint(
            "push the weights as raw layers (modctl build --raw, oras push), or unpack the artifact to a directory and load that",
        ));
    }
    // Counts the layers of each type, because a file without a name is numbered among them.
    let mut alike: HashMap<&str, Alike> = HashMap::new();
    for layer in &layers {
        step();
        alike.entry(&layer.media_type).or_default().all += 1;
    }
    let mut files = Files::new();
    for layer in &layers {
        step();
        let alike = alike.entry(&layer.media_type).or_default();
        alike.at += 1;
        let name = match layer.name() {
            Some(name) => name.to_owned(),
            None => of_docker(&layer.media_type, alike).ok_or_else(|| unnamed(layer))?,
        };
        if !is_digest(&layer.digest) {
            return Err(malformed(&format!("has no digest of {name:?}")));
        }
        let file = File {
            digest: layer.digest.clone(),
            len: layer.size,
        };
        if files.insert(name.clone(), file).is_some() {
            return Err(malformed(&format!("names {name:?} twice")));
        }
    }
    Ok(files)
}

fn unnamed(layer: &Descriptor) -> Classification {
    let message = format!(
        "the layer {} of the type {:?} has no name",
        layer.digest, layer.media_type
    );
    Classification::new(ErrorKind::Unsupported, message).hint(
        "push the artifact with names: modctl push and oras push add them as annotations of the layers",
    )
}

/// Position of a layer among the layers of its type.
#[derive(Default)]
struct Alike {
    /// Number of layers of the type so far, with this one.
    at: usize,
    all: usize,
}

/// Returns the name that Docker's model runner gives to the file of a layer without one.
fn of_docker(kind: &str, alike: &Alike) -> Option<String> {
    let extension = match kind.strip_prefix("application/vnd.docker.ai.")? {
        "safetensors" => "safetensors",
        "gguf.v3" => "gguf",
        "mmproj" | "gguf.v3.mmproj" => return Some("model.mmproj".to_owned()),
        "chat.template.jinja" => return Some("template.jinja".to_owned()),
        "license" => return Some("LICENSE".to_owned()),
        _ => return None,
    };
    let Alike { at, all } = alike;
    Some(match all {
        1 => format!("model.{extension}"),
        _ => format!("model-{at:05}-of-{all:05}.{extension}"),
    })
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;
    use serde_json::{Value, json};

    use super::*;
    use crate::Listed;

    fn digest(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    fn layer(kind: &str, annotations: &Value) -> Value {
        json!({"mediaType": kind, "size": 7, "digest": digest('a'), "annotations": annotations})
    }

    fn raw(name: &str) -> Value {
        let annotations = json!({"org.cncf.model.filepath": name});
        layer("application/vnd.cncf.model.weight.v1.raw", &annotations)
    }

    fn parse(answer: &Value) -> Result<Manifest, Classification> {
        Manifest::parse(answer.to_string().as_bytes(), None)
    }

    fn names(layers: &[Value]) -> Result<Vec<String>, Classification> {
        match parse(&json!({"mediaType": MANIFESTS[0], "layers": layers}))? {
            Manifest::Files(files) => Ok(files.iter().map(|(path, _)| path.into()).collect()),
            Manifest::Index(index) => panic!("{index}"),
        }
    }

    #[test]
    fn files_are_named_by_annotations() {
        let title = json!({"org.opencontainers.image.title": "b/model.safetensors"});
        let config = "application/vnd.cncf.model.weight.config.v1.tar";
        let layers = [
            raw("a b.safetensors"),
            layer(TITLED, &title),
            layer(
                "text/plain",
                &json!({"org.opencontainers.image.title": "c"}),
            ),
            layer(config, &json!({"org.cncf.model.filepath": "config.json"})),
            layer(EMPTY, &Value::Null),
        ];
        let found = names(&layers).expect("files");
        assert_eq!(found, ["a b.safetensors", "b/model.safetensors", "c"]);
    }

    #[test]
    fn dockers_files_without_names_are_numbered() {
        let of = |kind: &str| layer(&format!("application/vnd.docker.ai.{kind}"), &Value::Null);
        let one = [of("safetensors"), of("license"), of("vllm.config.tar")];
        assert_eq!(
            names(&one).expect("files"),
            ["LICENSE", "model.safetensors"]
        );
        let two = [of("safetensors"), of("gguf.v3"), of("safetensors")];
        let wanted = [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.gguf",
        ];
        assert_eq!(names(&two).expect("files"), wanted);
    }

    #[test]
    fn names_that_are_no_paths_are_kept_apart() {
        let odd = ["../x", "/etc/x", "a/../../x", "", "a//b", "a/x\n"];
        let layers: Vec<_> = odd.into_iter().chain(["a/y"]).map(raw).collect();
        let answer = json!({"mediaType": MANIFESTS[0], "layers": layers});
        let Ok(Manifest::Files(files)) = parse(&answer) else {
            panic!("{answer}");
        };
        let unusable = |folder: Option<&str>| {
            let describe = |location, file: &File| Listed {
                location,
                len: Some(file.len),
                modified: 0,
                e_tag: None,
                version: None,
            };
            files
                .level(folder.map(Path::from).as_ref(), describe)
                .unusable
        };
        assert_eq!(files.iter().count(), 1);
        assert_eq!(unusable(None), ["", "../x", "/etc/x"]);
        assert_eq!(unusable(Some("a")), ["a/../../x", "a//b", "a/x\n"]);
    }

    #[test]
    fn unreadable_layers_are_refused() {
        use ErrorKind::{Remote, Unsupported};
        let packed = |kind: &str| layer(kind, &json!({"org.cncf.model.filepath": "w"}));
        let folder = json!({"org.opencontainers.image.title": "f", UNPACK: "true"});
        let bad_digest = json!({
            "mediaType": "x", "size": 1, "digest": "sha256:../../x", "annotations": {NAMES[0]: "n"}
        });
        for (layers, kind, words) in [
            (vec![raw("a"), raw("a")], Remote, "\"a\" twice"),
            (vec![bad_digest], Remote, "no digest"),
            (
                vec![raw("a"), layer("x/y", &json!({}))],
                Unsupported,
                "\"x/y\" has no name",
            ),
            (
                vec![
                    raw("a"),
                    packed("application/vnd.cncf.model.weight.v1.tar+gzip"),
                ],
                Unsupported,
                "\"w\" (application/vnd.cncf.model.weight.v1.tar+gzip",
            ),
            (
                vec![
                    layer("application/vnd.kitops.modelkit.model.v1.tar", &json!({})),
                    raw("a"),
                ],
                Unsupported,
                "is an archive",
            ),
            (vec![layer(TITLED, &folder)], Unsupported, "is an archive"),
            (
                vec![layer(
                    "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    &json!({}),
                )],
                Unsupported,
                "is an archive",
            ),
        ] {
            let found = names(&layers).expect_err(words);
            assert_eq!(found.kind, kind, "{}", found.message);
            assert!(found.message.contains(words), "{}", found.message);
            assert!(found.hint.is_some());
        }
        for answer in [
            json!({"layers": []}),
            json!({"mediaType": "x/y", "layers": []}),
        ] {
            let found = parse(&answer).expect_err("of another type");
            assert_eq!(found.kind, Unsupported, "{}", found.message);
        }
        assert_eq!(parse(&json!([])).expect_err("no manifest").kind, Remote);
    }

    #[test]
    fn index_leads_to_one_manifest() {
        let here = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let one = |digit, platform: &Value| json!({"mediaType": MANIFESTS[0], "size": 7, "digest": digest(digit), "platform": platform});
        let of = |architecture: &str| json!({"os": "linux", "architecture": architecture});
        let unknown = json!({"os": "unknown", "architecture": "unknown"});
        let select =
            |manifests: &[Value]| parse(&json!({"mediaType": INDEXES[0], "manifests": manifests}));
        for manifests in [
            vec![one('b', &Value::Null)],
            vec![one('b', &of("riscv64"))],
            vec![one('b', &Value::Null), one('c', &unknown)],
            vec![one('a', &of("s390x")), one('b', &of(here))],
        ] {
            match select(&manifests).expect("a manifest") {
                Manifest::Index(found) => assert_eq!(found, digest('b')),
                Manifest::Files(files) => panic!("{files:?}"),
            }
        }
        let several = [one('a', &Value::Null), one('b', &of("s390x"))];
        let found = select(&several).expect_err("two models");
        assert_eq!(found.kind, ErrorKind::Unsupported);
        for words in [digest('a'), digest('b'), "linux/s390x".to_owned()] {
            assert!(found.message.contains(&words), "{}", found.message);
        }
        select(&[]).expect_err("none");
    }
}
