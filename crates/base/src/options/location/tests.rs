//! Tests of locations.

use super::*;
use crate::error::ErrorKind;

#[test]
fn digests_differ_in_all_that_selects_bytes() {
    let digest = |text: &str| Location::parse(text).expect(text).digest("");
    let long = "/x".repeat(1000);
    let mut digests = std::collections::BTreeSet::new();
    for text in [
        "http://h/get",
        "http://h/get?id=1",
        "http://h/get?id=2",
        "http://h/get?versionId=3&X-Amz-Signature=s",
        "https://h/get",
        "http://other/get",
        &format!("http://h{long}/a"),
        &format!("http://h{long}/b"),
        "s3://h/get",
        "h/get",
        &format!("{long}/a"),
        &format!("{long}/b"),
        "hf://o/m@main/get",
        "hf://o/m@v2/get",
    ] {
        assert!(digests.insert(digest(text)), "{text}");
    }
    let elsewhere = Location::parse("s3://h/get").expect("a URL");
    assert!(digests.insert(elsewhere.digest("http://minio:9000")));
    for (one, other) in [
        ("http://h/get", "http://user:hunter2@h/get"),
        (
            "http://h/get",
            "http://h/get?X-Amz-Signature=s&X-Amz-Date=d",
        ),
        ("http://h/get?id=1", "http://h/get?sig=s&id=1&se=2"),
    ] {
        assert_eq!(digest(one), digest(other), "{other}");
    }
    assert!(digests.iter().all(|digest| digest.len() == 64));
}

#[test]
fn locations_with_hidden_text_have_secrets() {
    for (text, has_secret) in [
        ("model?a=b@c", false),
        ("s3://bucket/key", false),
        ("s3://bucket/key?X-Amz-Signature=hunter2", true),
        ("https://host/a.safetensors", false),
        ("https://host/a.safetensors?sig=hunter2", true),
        ("https://user:hunter2@host/a.safetensors", true),
        ("hf://org/name@main/a", false),
        ("abfss://container@account.dfs.core.windows.net/a", false),
    ] {
        let location = Location::parse(text).expect(text);
        assert_eq!(location.has_secret(), has_secret, "{text}");
    }
}

#[test]
fn url_without_secret_is_whole() {
    let long = format!("s3://bucket/\u{200b}{}/model", "a".repeat(2000));
    for (text, url) in [
        (&*long, Some(&*long)),
        ("hf://org/name@main/a", Some("hf://org/name@main/a")),
        ("https://host/a.safetensors?sig=hunter2", None),
        ("model", None),
    ] {
        let location = Location::parse(text).expect(text);
        assert_eq!(location.url().as_deref(), url, "{text}");
    }
}

#[test]
fn commits_replace_revisions() {
    for (text, wanted) in [
        ("hf://org/name", "hf://org/name@c0ffee"),
        ("hf://org/name@refs/pr/1/a/b", "hf://org/name@c0ffee/a/b"),
        ("oci://h:1/a/b:v1/c", "oci://h:1/a/b@c0ffee/c"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("a/b", "a/b"),
    ] {
        let location = Location::parse(text).expect(text);
        assert_eq!(location.at_commit("c0ffee").to_string(), wanted, "{text}");
    }
}

#[test]
fn location_parses_paths_and_file_urls() {
    for (text, path) in [
        ("model", "model"),
        ("/m/a b", "/m/a b"),
        ("file:///m/a%20b", "/m/a b"),
        ("file://localhost/m", "/m"),
    ] {
        let location = Location::parse(text).expect(text);
        assert_eq!(location.as_path(), Some(Path::new(path)));
        assert_eq!(location.to_string(), text);
    }
}

#[test]
fn location_parses_object_store_urls() {
    for (text, protocol, authority, path) in [
        ("s3://bucket/a/b c", Protocol::S3, "bucket", "a/b c"),
        ("S3A://bucket", Protocol::S3, "bucket", ""),
        ("gs://bucket/a?b#c", Protocol::Gcs, "bucket", "a?b#c"),
        ("az://container/a/", Protocol::Azure, "container", "a/"),
        (
            "abfss://container@account.dfs.core.windows.net/a",
            Protocol::Azure,
            "container@account.dfs.core.windows.net",
            "a",
        ),
        ("https://host:80/a%20b", Protocol::Http, "host:80", "a%20b"),
        ("hf://org/name", Protocol::Hub, "org/name", ""),
        ("hf://buckets/o/n/a", Protocol::Hub, "buckets/o/n", "a"),
        (
            "hf://org/name@v1/a%20b",
            Protocol::Hub,
            "org/name@v1",
            "a%20b",
        ),
        ("oci://h:1/a/b/", Protocol::Oci, "h:1/a/b:latest", ""),
        ("oci://h/a:v1/a b", Protocol::Oci, "h/a:v1", "a b"),
    ] {
        let location = Location::parse(text).expect(text);
        assert_eq!(location.protocol(), Some(protocol), "{text}");
        assert_eq!(location.as_path(), None);
        let url = location.remote().expect("a URL");
        assert_eq!((&*url.authority, &*url.path), (authority, path), "{text}");
    }
}

#[test]
fn every_scheme_is_accepted() {
    let mut protocols = Vec::new();
    for scheme in Location::schemes() {
        let slash = if scheme == FILE { "/" } else { "" };
        let url = format!("{}://{slash}o/n", scheme.to_uppercase());
        protocols.extend(Location::parse(&url).expect(scheme).protocol());
    }
    protocols.dedup();
    assert_eq!(protocols, Protocol::ALL);
}

#[test]
fn displayed_location_hides_secrets() {
    let text = "https://user:secret@host/a?X-Amz-Signature=secret#secret";
    let location = Location::parse(text).expect("a URL");
    assert_eq!(location.to_string(), "https://host/a?…");
    assert!(!format!("{location:?} {:?}", location.remote()).contains("secret"));
    let odd = Location::parse("az://c/a?sv=1&sig=secret").expect("a URL");
    assert_eq!(odd.to_string(), "az://c/a?…");
    let url = location.remote().expect("a URL");
    assert_eq!(url.authority, "user:secret@host");
    assert_eq!(url.query.as_deref(), Some("X-Amz-Signature=secret"));
}

#[test]
fn join_and_parent_follow_the_protocol() {
    let odd = Location::parse("http://h/m").expect("a URL").join("a b%?é");
    assert_eq!(odd.to_string(), "http://h/m/a%20b%25%3F%C3%A9");
    let nested = Location::parse("http://h/m").expect("a URL").join("a/b");
    assert_eq!(nested.to_string(), "http://h/m/a/b");
    for (text, below, above) in [
        ("s3://b", "s3://b/x", "s3://b"),
        ("s3://b/", "s3://b/x", "s3://b"),
        ("s3://b/m", "s3://b/m/x", "s3://b"),
        ("s3://b/m/n/", "s3://b/m/n/x", "s3://b/m"),
        ("http://h/m?q", "http://h/m/x?…", "http://h?…"),
        ("hf://o/n", "hf://o/n/x", "hf://o/n"),
        ("hf://o/n@v1/m", "hf://o/n@v1/m/x", "hf://o/n@v1"),
        (
            "hf://buckets/o/n/m",
            "hf://buckets/o/n/m/x",
            "hf://buckets/o/n",
        ),
        ("m/n", "m/n/x", "m"),
    ] {
        let location = Location::parse(text).expect(text);
        assert_eq!(location.join("x").to_string(), below);
        assert_eq!(location.parent().to_string(), above);
    }
}

#[test]
fn rejected_locations_report_kind_and_hide_secrets() {
    for (text, kind) in [
        ("", ErrorKind::InvalidRequest),
        ("file://host/x", ErrorKind::InvalidRequest),
        ("s3://key:secret@bucket/x", ErrorKind::InvalidRequest),
        ("s3:///x", ErrorKind::InvalidRequest),
        ("az://user:secret@container/x", ErrorKind::InvalidRequest),
        ("https://user:secret@/x", ErrorKind::InvalidRequest),
        ("ftp://user:secret@host/x", ErrorKind::Unsupported),
        ("https:/user:secret@host/x", ErrorKind::InvalidRequest),
        ("HTTPS:/user:secret@host/x", ErrorKind::InvalidRequest),
        ("https:/user:secret@host/x://y", ErrorKind::Unsupported),
        (
            "abfss://user:secret@account.dfs.core.windows.net/x",
            ErrorKind::InvalidRequest,
        ),
        ("hf://user:secret@org/name", ErrorKind::InvalidRequest),
        ("hf://org", ErrorKind::InvalidRequest),
        ("hf:/org/name", ErrorKind::InvalidRequest),
    ] {
        let error = Location::parse(text).expect_err(text);
        assert_eq!(error.kind(), kind, "{text}");
        assert!(!error.chain().contains("secret"), "{}", error.chain());
    }
}
