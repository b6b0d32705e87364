//! Models in OCI registries: artifacts of every tool, one manifest per load, digests that are
//! compared, and errors about artifacts.

use std::sync::Arc;

use serde_json::{Value, json};
use tload::copy::CopyJob;
use tload::verify::{FileOutcome, Verification};
use tload::{Checkpoint, Error, ErrorKind, Loader, Location, Result, Verify};
use tload_testbed::{Fault, FaultyServer, Registry, Rule, require};

use crate::fixtures::{assert_all, even, folder, in_file_order, index, load, options, read};
use crate::sites;

const MODEL: &str = "org/model";

const RAW: &str = "application/vnd.cncf.model.weight.v1.raw";
const CONFIG: &str = "application/vnd.cncf.model.weight.config.v1.raw";
const PATH: &str = "org.cncf.model.filepath";
const TITLE: &str = "org.opencontainers.image.title";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

fn location(address: &str, rest: &str) -> Location {
    Location::parse(&format!("oci://{address}/{MODEL}{rest}")).expect("a location")
}

fn open(registry: &Registry, rest: &str) -> Result<Checkpoint> {
    Checkpoint::open_with(location(registry.address(), rest), sites::options(&[]))
}

fn shards(seed: u64) -> [Vec<u8>; 2] {
    [even("a", seed, 20, 70_000), even("b", seed + 1, 20, 70_000)]
}

/// Puts a blob of this type and returns its layer; without a name if that is empty.
fn layer(registry: &Registry, kind: &str, annotation: &str, name: &str, bytes: &[u8]) -> Value {
    let annotations = if name.is_empty() {
        json!({})
    } else {
        json!({annotation: name})
    };
    let layer = registry.layer(MODEL, kind, &annotations, bytes);
    layer.expect("the blob is stored")
}

/// Pushes shards, an index and a configuration as the CNCF's model-spec says.
fn push_model(registry: &Registry, tag: &str, shards: &[Vec<u8>; 2]) -> String {
    let placed = |prefix: &str, shard| {
        (0..20)
            .map(move |at| (format!("{prefix}{at}"), shard))
            .collect::<Vec<_>>()
    };
    let index = index(&[placed("a", SHARDS[0]), placed("b", SHARDS[1])].concat());
    let layers = [
        layer(registry, RAW, PATH, SHARDS[0], &shards[0]),
        layer(registry, RAW, PATH, SHARDS[1], &shards[1]),
        layer(
            registry,
            CONFIG,
            PATH,
            "model.safetensors.index.json",
            &index,
        ),
        layer(registry, CONFIG, PATH, "config.json", b"{}"),
        layer(registry, CONFIG, PATH, "sub/empty.txt", b""),
    ];
    registry
        .push(MODEL, tag, &layers)
        .expect("the push succeeds")
}

fn assert_loads(checkpoint: &Checkpoint, files: &[&[u8]]) {
    let (tensors, report) = load(checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, files);
    assert_eq!((&*report.engine.name, report.retries), ("object", 0));
}

#[test]
fn artifacts_of_every_tool_load() {
    let Some(registry) = require(Registry::start()) else {
        return;
    };
    let files = shards(1);
    let both: [&[u8]; 2] = [&files[0], &files[1]];
    let digest = push_model(&registry, "latest", &files);
    let docker = |kind: &str, name: &str, bytes: &[u8]| {
        let kind = format!("application/vnd.docker.ai.{kind}");
        layer(&registry, &kind, PATH, name, bytes)
    };
    let oras = |kind: &str, name: &str, bytes: &[u8]| layer(&registry, kind, TITLE, name, bytes);
    let push = |tag: &str, layers: &[Value]| {
        registry
            .push(MODEL, tag, layers)
            .expect("the push succeeds")
    };
    push(
        "docker",
        &[
            docker("safetensors", "", &files[0]),
            docker("safetensors", "", &files[1]),
            docker("vllm.config.tar", "", b"tar"),
            docker("license", "", b"text"),
        ],
    );
    push(
        "docker-named",
        &[
            docker("safetensors", "text/b.safetensors", &files[1]),
            docker("model.file", "text/config.json", b"{}"),
            docker("safetensors", "text/a.safetensors", &files[0]),
        ],
    );
    // The first type is the default of `oras push`, although files are not packed.
    push(
        "oras",
        &[
            oras(
                "application/vnd.oci.image.layer.v1.tar",
                "a.safetensors",
                &files[0],
            ),
            oras("application/octet-stream", "b.safetensors", &files[1]),
        ],
    );
    for tag in ["", ":latest", &*format!("@{digest}"), ":docker", ":oras"] {
        assert_loads(&open(&registry, tag).expect(tag), &both);
    }
    assert_loads(
        &open(&registry, ":docker-named/text").expect("a directory"),
        &both,
    );
    let one = format!("@{digest}/{}", SHARDS[0]);
    assert_loads(&open(&registry, &one).expect("a file"), &both[..1]);
}

#[test]
fn index_leads_to_manifest() {
    let Some(registry) = require(Registry::start()) else {
        return;
    };
    let (files, others) = (shards(1), shards(5));
    let put = |tag: &str, manifests: &[Value]| {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
        let put = registry.put_manifest(MODEL, tag, &index);
        put.expect("the index is stored")
    };
    let of = |tag: &str, files: &[Vec<u8>; 2]| {
        let digest = push_model(&registry, tag, files);
        json!({"mediaType": MANIFEST, "digest": digest, "size": 1})
    };
    let models = [of("one", &files), of("two", &others)];
    let digest = put("index", &models[..1]);
    let outer = json!({"mediaType": INDEX, "digest": digest, "size": 1});
    put("nested", &[outer]);
    for tag in [":index", &*format!("@{digest}"), ":nested"] {
        let checkpoint = open(&registry, tag).expect(tag);
        assert_loads(&checkpoint, &[&files[0], &files[1]]);
    }
    put("several", &models);
    let error = refused(&location(registry.address(), ":several"));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for model in models {
        let digest = model["digest"].as_str().expect("a digest");
        assert!(error.message().contains(digest), "{error}");
    }
}

#[test]
fn one_manifest_is_read_while_tag_moves() {
    let Some(registry) = require(Registry::start()) else {
        return;
    };
    let (files, others) = (shards(1), shards(5));
    let digest = push_model(&registry, "latest", &files);
    let checkpoint = open(&registry, "").expect("opens");
    push_model(&registry, "latest", &others);
    // Other processes open the same manifest.
    let place = location(registry.address(), "");
    let elsewhere = checkpoint.locations_elsewhere(&[place]).expect("a URL");
    assert_eq!(
        elsewhere,
        [location(registry.address(), &format!("@{digest}"))]
    );
    assert_loads(&checkpoint, &[&files[0], &files[1]]);
    let checkpoint = open(&registry, "").expect("opens");
    assert_loads(&checkpoint, &[&others[0], &others[1]]);
}

#[test]
fn artifact_is_copied_and_verified() {
    let Some(registry) = require(Registry::start()) else {
        return;
    };
    let files = shards(1);
    push_model(&registry, "v1", &files);
    let location = location(registry.address(), ":v1");
    let target = folder();
    let copy = CopyJob::new(&location, target.path()).store(sites::options(&[]));
    copy.run().expect("copies");
    for (name, bytes) in SHARDS.iter().zip(&files) {
        assert!(read(&target.path().join(name)) == *bytes, "{name}");
    }
    assert_eq!(read(&target.path().join("config.json")), b"{}");
    assert_eq!(read(&target.path().join("sub/empty.txt")), b"");
    let verification = Verification::new(&location).opening(sites::options(&[]));
    let report = verification.run().expect("reads");
    let outcomes: Vec<_> = report.files.iter().map(|file| file.outcome).collect();
    // The index has a digest too.
    assert_eq!(outcomes, [FileOutcome::Matches; 3]);
}

/// Asserts that a location cannot be opened, and returns the error, which says what to do.
fn refused(location: &Location) -> Error {
    let error = Checkpoint::open_with(location, sites::options(&[("retries", "0")]));
    let error = error.expect_err("cannot be opened");
    assert!(
        error.hint().is_some() && error.location().is_some(),
        "{error:?}"
    );
    error
}

#[test]
fn unreadable_artifacts_are_refused_with_hints() {
    use ErrorKind::{NotFound, Remote, Unsupported};
    let Some(registry) = require(Registry::start()) else {
        return;
    };
    let push = |tag: &str, layers: &[Value]| registry.push(MODEL, tag, layers).expect("stored");
    let raw = |name: &str, bytes: &[u8]| layer(&registry, RAW, PATH, name, bytes);
    let packed = "application/vnd.cncf.model.weight.v1.tar+gzip";
    let image = "application/vnd.oci.image.layer.v1.tar+gzip";
    push(
        "packed",
        &[
            layer(&registry, packed, PATH, "w.safetensors", b"gz"),
            raw("config.json", b"{}"),
        ],
    );
    push("image", &[layer(&registry, image, PATH, "", b"gz")]);
    push("unnamed", &[layer(&registry, RAW, PATH, "", b"raw")]);
    push("outside", &[raw("../x.safetensors", b"x")]);
    push("root", &[raw("/etc/x.safetensors", b"x")]);
    push(
        "twice",
        &[raw("x.safetensors", b"x"), raw("x.safetensors", b"y")],
    );
    push("good", &[raw("x.safetensors", b"x")]);
    for (rest, kind, words) in [
        (
            ":packed",
            Unsupported,
            "\"w.safetensors\" (application/vnd.cncf.model.weight.v1.tar+gzip",
        ),
        (":image", Unsupported, "is an archive"),
        (":unnamed", Unsupported, "has no name"),
        (":outside", NotFound, "left out: \"../x.safetensors\""),
        (":root", NotFound, "left out: \"/etc/x.safetensors\""),
        (":twice", Remote, "\"x.safetensors\" twice"),
        (":missing", NotFound, "no such tag"),
        (":good/y.safetensors", NotFound, "no such file"),
        ("/other", NotFound, "no such"),
    ] {
        let error = refused(&location(registry.address(), rest));
        assert_eq!(error.kind(), kind, "{rest}: {error:?}");
        let hint = error.hint().unwrap_or_default();
        let shown = format!("{error}; {hint}");
        assert!(shown.contains(words), "{rest}: {shown}");
    }
}

/// Puts an artifact with one file on a server that does what a registry does for reads, and fails
/// on command; `len` is that of the file in the manifest.
fn put_by_hand(server: &FaultyServer, tag: &str, file: &[u8], len: usize) -> Location {
    use sha2::{Digest as _, Sha256};
    let digits: Vec<_> = Sha256::digest(file)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let digest = format!("sha256:{}", digits.concat());
    let annotations = json!({PATH: "model.safetensors"});
    let layer =
        json!({"mediaType": RAW, "digest": digest, "size": len, "annotations": annotations});
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [layer]});
    let path = |rest: &str| format!("v2/{MODEL}/{rest}");
    server.put(&path(&format!("manifests/{tag}")), manifest.to_string());
    server.put(&path(&format!("blobs/{digest}")), file);
    let address = server.url();
    let address = address.strip_prefix("http://").expect("its scheme");
    location(address, &format!(":{tag}"))
}

#[test]
fn wrong_bytes_of_layer_are_detected() {
    let server = FaultyServer::start();
    let file = even("t", 1, 4, 1 << 20);
    let location = put_by_hand(&server, "v1", &file, file.len());
    let checkpoint = Checkpoint::open_with(&location, sites::options(&[])).expect("opens");
    let loader = Loader::new(checkpoint).options(options(|it| it.verify = Verify::Require));
    let load = || loader.stream().expect("starts").collect::<Result<Vec<_>>>();
    assert_all(&load().expect("loads"), &[&file]);
    server.fault(Rule::once(Fault::Corrupt(3 << 20)).from_byte(1));
    let error = load().expect_err("a byte is wrong");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
    assert!(
        error.message().contains("the registry's manifest"),
        "{error}"
    );
}

#[test]
fn layer_of_another_length_is_refused() {
    let server = Arc::new(FaultyServer::start());
    let file = even("t", 1, 2, 5000);
    for (tag, len) in [("short", file.len() - 1), ("long", file.len() + 1)] {
        let error = refused(&put_by_hand(&server, tag, &file, len));
        assert_eq!(error.kind(), ErrorKind::Remote, "{error:?}");
        let words = format!("has {} bytes, but {len} in the manifest", file.len());
        assert!(error.message().contains(&words), "{error}");
    }
}

#[test]
fn manifests_that_are_none_are_refused() {
    let server = FaultyServer::start();
    let location = put_by_hand(&server, "v1", b"file", 4);
    let digest = format!("sha256:{}", "0".repeat(64));
    let manifest = format!("v2/{MODEL}/manifests/");
    for (tag, body, kind, words) in [
        (
            "v1",
            "<html>".to_owned(),
            ErrorKind::Remote,
            "is not a manifest",
        ),
        (
            "v1",
            json!({"mediaType": "x/y"}).to_string(),
            ErrorKind::Unsupported,
            "\"x/y\"",
        ),
        (
            &*digest,
            json!({"mediaType": MANIFEST, "layers": []}).to_string(),
            ErrorKind::Remote,
            &digest,
        ),
    ] {
        server.put(&format!("{manifest}{tag}"), body);
        let colon = if tag == "v1" { ":" } else { "@" };
        let text = location
            .to_string()
            .replace(":v1", &format!("{colon}{tag}"));
        let error = refused(&Location::parse(&text).expect("a location"));
        assert_eq!(error.kind(), kind, "{tag}: {error:?}");
        assert!(error.message().contains(words), "{tag}: {error}");
    }
}
