//! Lists of stores: complete or an error, bounded whatever the server sends, and names that are no
//! paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use tload::copy::{CopyJob, CopyOptions, list_files};
use tload::{Checkpoint, ErrorKind, Location, StoreClient, StoreOptions};
use tload_testbed::FaultyServer;
use url::Url;

use crate::fixtures::even;
use crate::listener::Listener;
use crate::sites;

const KEYS: usize = 33;

/// Behaviour of a server whose list has more entries than a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Names the next page by a token.
    Token,
    /// Says that the page is truncated, and knows `start-after`: older versions of Ceph.
    StartAfter,
    /// Says that the page is truncated, and knows `marker`.
    Marker,
    /// Version 1 of the protocol: names a marker, and knows it.
    NextMarker,
    /// Names a marker and does not know it.
    DeadMarker,
    /// Says that the page is truncated, and knows nothing.
    Mute,
    /// Does not even say that.
    Silent,
    /// Sends all prefixes with the first page, and knows `start-after`.
    PrefixesFirst,
}

fn response(kind: &str, more: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{more}Connection: close\r\n\r\n{body}",
        body.len()
    )
}

fn target(request: &str) -> Url {
    let path = request.split(' ').nth(1).unwrap_or("/");
    let base = Url::parse("http://host").expect("a URL");
    base.join(path).expect("a path")
}

fn queries(url: &Url) -> BTreeMap<String, String> {
    url.query_pairs().into_owned().collect()
}

/// Responds to requests for a list of keys, with ten entries or fewer in a page, and for the
/// objects.
fn bucket(form: Form, objects: &BTreeMap<String, Vec<u8>>, request: &str) -> String {
    let url = target(request);
    let asked = queries(&url);
    if !asked.contains_key("list-type") {
        let path = percent_encoding::percent_decode_str(url.path()).decode_utf8_lossy();
        return object(objects.get(path.trim_start_matches("/bucket/")), request);
    }
    let text = |name: &str| asked.get(name).map(String::as_str);
    let prefix = text("prefix").unwrap_or_default();
    let entries = entries_below(prefix, objects);
    let after = match form {
        Form::Token => text("continuation-token"),
        Form::StartAfter | Form::PrefixesFirst => text("start-after"),
        Form::Marker | Form::NextMarker => text("marker"),
        Form::DeadMarker | Form::Mute | Form::Silent => None,
    };
    let mut rest: Vec<_> = entries.iter().cloned().collect();
    if form == Form::PrefixesFirst {
        rest.retain(|it| !it.ends_with('/'));
    }
    rest.retain(|key| after.is_none_or(|after| key.as_str() > after));
    let is_truncated = rest.len() > 10;
    rest.truncate(10);
    let last = rest.last().cloned().unwrap_or_default();
    if form == Form::PrefixesFirst && after.is_none() {
        rest.extend(entries.into_iter().filter(|it| it.ends_with('/')));
    }
    let mut page = format!("<ListBucketResult><Prefix>{prefix}</Prefix>");
    page += &end_of_page(form, is_truncated, &last);
    for key in rest {
        // XML 1.0 has no control characters; S3 sends references to them.
        let name = key.replace('\u{1}', "&#x1;");
        let _ = match objects.get(&key) {
            None => write!(
                page,
                "<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
            ),
            Some(object) => write!(
                page,
                "<Contents><Key>{name}</Key><LastModified>2026-11-02T10:00:00.000Z</LastModified>\
                 <ETag>&quot;1&quot;</ETag><Size>{}</Size></Contents>",
                object.len()
            ),
        };
    }
    page.push_str("</ListBucketResult>");
    response("application/xml", "", &page)
}

/// Responds to a request for an object.
fn object(object: Option<&Vec<u8>>, request: &str) -> String {
    let Some(object) = object else {
        let gone = "<Error><Code>NoSuchKey</Code></Error>";
        return response("application/xml", "", gone).replace("200 OK", "404 Not Found");
    };
    let tag = "ETag: \"1\"\r\nLast-Modified: Mon, 02 Nov 2026 10:00:00 GMT\r\n";
    let body = String::from_utf8(object.clone()).expect("text");
    let lower = request.to_ascii_lowercase();
    if object.is_empty() || !lower.contains("range: bytes=") {
        return response("text/plain", tag, &body);
    }
    let range = lower.split("range: bytes=").nth(1).unwrap_or_default();
    let range = range.split("\r\n").next().unwrap_or_default();
    let (first, last) = range.split_once('-').expect("a range");
    let first: usize = first.parse().expect("a number");
    let last = last.parse().unwrap_or(usize::MAX).min(body.len() - 1);
    let more = format!(
        "{tag}Content-Range: bytes {first}-{last}/{}\r\n",
        body.len()
    );
    response("text/plain", &more, &body[first..=last]).replace("200 OK", "206 Partial Content")
}

/// Returns the keys and common prefixes below a prefix.
fn entries_below(prefix: &str, objects: &BTreeMap<String, Vec<u8>>) -> BTreeSet<String> {
    let keys = objects.keys().filter(|key| key.starts_with(prefix));
    let entries = keys.map(|key| {
        let slash = key[prefix.len()..].find('/');
        let end = slash.map_or(key.len(), |at| prefix.len() + at + 1);
        key[..end].to_owned()
    });
    entries.collect()
}

/// Returns what a page says of the pages behind it.
fn end_of_page(form: Form, is_truncated: bool, last: &str) -> String {
    let stated = match form {
        Form::Silent => return "<MaxKeys>10</MaxKeys>".to_owned(),
        _ if !is_truncated => String::new(),
        Form::Token => format!("<NextContinuationToken>{last}</NextContinuationToken>"),
        Form::NextMarker | Form::DeadMarker => format!("<NextMarker>{last}</NextMarker>"),
        Form::StartAfter | Form::Marker | Form::Mute | Form::PrefixesFirst => String::new(),
    };
    format!("<IsTruncated>{is_truncated}</IsTruncated>{stated}")
}

fn serve(form: Form, keys: &[&str]) -> (Listener, StoreOptions) {
    let objects = keys
        .iter()
        .map(|&key| (key.to_owned(), b"x".to_vec()))
        .collect();
    serve_objects(form, objects)
}

fn serve_objects(form: Form, objects: BTreeMap<String, Vec<u8>>) -> (Listener, StoreOptions) {
    let server = Listener::start(move |request| bucket(form, &objects, request));
    let options = sites::options(&[
        ("endpoint", &server.url()),
        ("access_key_id", "id"),
        ("secret_access_key", "hunter2"),
        ("addressing", "path"),
        ("retries", "0"),
    ]);
    (server, options)
}

fn model() -> Location {
    Location::parse("s3://bucket/m").expect("a location")
}

/// A truncated page without a token was taken for the whole list.
#[test]
fn list_is_complete_or_an_error() {
    let keys: Vec<_> = (0..KEYS)
        .map(|at| match at % 3 {
            0 => format!("m/{at:02}/x"),
            _ => format!("m/{at:02}"),
        })
        .collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    for form in [
        Form::Token,
        Form::StartAfter,
        Form::Marker,
        Form::NextMarker,
        Form::PrefixesFirst,
    ] {
        let (_server, options) = serve(form, &keys);
        let listed = list_files(model(), &options).expect("a list");
        let names: BTreeSet<_> = listed
            .iter()
            .map(|file| format!("m/{}", file.name))
            .collect();
        let wanted: BTreeSet<_> = keys.iter().map(ToString::to_string).collect();
        assert_eq!(names, wanted, "{form:?}");
        assert_eq!(listed.len(), KEYS, "{form:?}");
        let target = tempfile::tempdir().expect("a folder");
        let copy = CopyJob::new(model(), target.path()).store(options).run();
        assert_eq!(copy.expect("a copy").copied_files, KEYS as u64, "{form:?}");
    }
    for form in [Form::DeadMarker, Form::Mute, Form::Silent] {
        let (_server, options) = serve(form, &keys);
        let target = tempfile::tempdir().expect("a folder");
        let copy = CopyJob::new(model(), target.path())
            .store(options.clone())
            .run();
        let opened = Checkpoint::open_with(model(), options).map(drop);
        for error in [copy.map(drop).expect_err("cut"), opened.expect_err("cut")] {
            assert_eq!(error.kind(), ErrorKind::Remote, "{form:?}: {error}");
            assert!(error.message().contains("ends early"), "{form:?}: {error}");
            assert!(error.location().is_some() && error.hint().is_some());
        }
        assert_eq!(
            std::fs::read_dir(target.path()).expect("a folder").count(),
            0
        );
    }
}

/// Other documents are errors, not empty lists.
#[test]
fn other_responses_are_no_lists() {
    for body in [
        "<html><body>Welcome to the hotel</body></html>",
        "<Error><Code>InternalError</Code></Error>",
        "<ListBucketResult><IsTruncated>false</IsTruncated>",
    ] {
        let server = Listener::start(move |_| response("application/xml", "", body));
        let options = sites::options(&[
            ("endpoint", &server.url()),
            ("anonymous", "true"),
            ("retries", "0"),
        ]);
        let error = list_files(model(), &options).expect_err(body);
        assert_eq!(error.kind(), ErrorKind::Remote, "{body}: {error}");
    }
}

#[test]
fn names_that_are_no_paths_are_left_out_and_named() {
    let shard = String::from_utf8(even("t", 1, 1, 0)).expect("no tensor bytes");
    for odd in ["m//leftover.bin", "m/./x", "m/a\u{1}b", "m/../evil"] {
        let mut objects = BTreeMap::new();
        objects.insert("m/model.safetensors".to_owned(), shard.clone().into_bytes());
        objects.insert("m/config.json".to_owned(), b"{}".to_vec());
        objects.insert(odd.to_owned(), b"x".to_vec());
        let (_server, options) = serve_objects(Form::Token, objects);
        let checkpoint = Checkpoint::open_with(model(), options.clone()).expect(odd);
        let shown = format!("{:?}", odd.trim_end_matches("leftover.bin"));
        let shown = shown.trim_end_matches("x\"").trim_end_matches("evil\"");
        let notes = checkpoint.notes().join("\n");
        assert!(notes.contains(shown.trim_end_matches('"')), "{notes}");
        assert_eq!(list_files(model(), &options).expect(odd).len(), 2);

        let copied = |skip: bool, exclude: Vec<String>| {
            let target = tempfile::tempdir().expect("a folder");
            let mut how = CopyOptions::default();
            (how.skip_unusable, how.exclude) = (skip, exclude);
            let copy = CopyJob::new(model(), target.path());
            let report = copy.options(how).store(options.clone()).run();
            let files = std::fs::read_dir(target.path()).expect("a folder");
            let names: BTreeSet<_> = files
                .map(|file| {
                    file.expect("an entry")
                        .file_name()
                        .into_string()
                        .expect("UTF-8")
                })
                .filter(|name| !name.starts_with('.'))
                .collect();
            let wanted = ["config.json", "model.safetensors"].map(str::to_owned);
            assert_eq!(names, BTreeSet::from(wanted), "{odd}");
            report
        };
        let error = copied(false, Vec::new()).expect_err(odd);
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        assert!(
            error.message().contains(shown.trim_end_matches('"')),
            "{error}"
        );
        let report = copied(true, Vec::new()).expect(odd);
        assert_eq!(
            (report.copied_files, report.unusable.len()),
            (2, 1),
            "{odd}"
        );
    }
}

#[test]
fn hidden_names_that_are_no_paths_fail_no_copy() {
    let mut objects = BTreeMap::new();
    objects.insert("m/config.json".to_owned(), b"{}".to_vec());
    for odd in ["m/.a\u{1}b", "m/.\u{1}/x"] {
        objects.insert(odd.to_owned(), b"x".to_vec());
    }
    let (_server, options) = serve_objects(Form::Token, objects);
    for (hidden, wanted) in [(false, 0), (true, 2)] {
        let target = tempfile::tempdir().expect("a folder");
        let mut how = CopyOptions::default();
        (how.skip_unusable, how.hidden) = (hidden, hidden);
        let copy = CopyJob::new(model(), target.path()).options(how);
        let report = copy.store(options.clone()).run().expect("a copy");
        assert_eq!((report.copied_files, report.unusable.len()), (1, wanted));
    }
}

/// Azure's file systems and FUSE mounts keep an empty object with the name of each folder.
#[test]
fn empty_objects_stand_for_folders() {
    let mut objects: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (key, bytes) in [
        ("m", &b""[..]),
        ("m/config.json", b"{}"),
        ("m/tokenizer", b""),
        ("m/tokenizer/vocab.json", b"{}"),
        ("m/empty", b""),
    ] {
        objects.insert(key.to_owned(), bytes.to_vec());
    }
    let target = tempfile::tempdir().expect("a folder");
    let (_server, options) = serve_objects(Form::Token, objects.clone());
    let report = CopyJob::new(model(), target.path()).store(options).run();
    assert_eq!(report.expect("a copy").copied_files, 3);
    assert!(target.path().join("tokenizer/vocab.json").is_file());
    assert!(target.path().join("empty").is_file());

    objects.insert("m/tokenizer".to_owned(), b"x".to_vec());
    let target = tempfile::tempdir().expect("a folder");
    let (_server, options) = serve_objects(Form::Token, objects);
    let error = CopyJob::new(model(), target.path()).store(options).run();
    let error = error.expect_err("a file and a folder");
    assert!(error.message().contains("\"tokenizer\""), "{error}");
    assert!(target.path().join("tokenizer/vocab.json").is_file());
}

fn hub_bucket(server: &Listener) -> (Location, StoreOptions) {
    let location = Location::parse("hf://buckets/org/name").expect("a location");
    let options = sites::options(&[("endpoint", &server.url()), ("retries", "0")]);
    (location, options)
}

/// Responds with a page whose next page has the number `next(n)`, or has this link.
fn page_with_next(request: &str, next: impl Fn(u64) -> u64) -> String {
    let host = request.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("host: ")
            .map(str::to_owned)
    });
    let host = host.unwrap_or_default();
    let url = target(request);
    let page = queries(&url)
        .get("page")
        .and_then(|page| page.parse().ok())
        .unwrap_or(0);
    let link = format!(
        "Link: <http://{}{}?page={}>; rel=\"next\"\r\n",
        host.trim(),
        url.path(),
        next(page)
    );
    response("application/json", &link, "[]")
}

#[test]
fn pages_of_hubs_that_never_end_are_an_error() {
    for (name, next, most) in [
        ("numbered", (|page| page + 1) as fn(u64) -> u64, 4001),
        ("self-linking", |page| page, 2),
        ("cycle", |page| (page + 1) % 10, 12),
    ] {
        let server = Listener::start(move |request| page_with_next(request, next));
        let (location, options) = hub_bucket(&server);
        let error = list_files(&location, &options).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Remote, "{name}: {error}");
        assert!(error.message().contains("oversized"), "{name}: {error}");
        let requests = server.received().len();
        assert!(requests <= most, "{name}: {requests}");
    }
}

/// Links may be relative (RFC 8288); the token goes to no other host.
#[test]
fn pages_of_hubs_may_have_relative_links() {
    for (link, files) in [
        ("?page=2", Some(2)),
        ("/api/buckets/org/name/tree?page=2", Some(2)),
        ("../name/tree?page=2", Some(2)),
        ("//HOST/api/buckets/org/name/tree?page=2", Some(2)),
        ("//other.invalid/api/buckets/org/name/tree?page=2", None),
        ("../other?page=2", None),
        ("/api/buckets/org/other/tree?page=2", None),
    ] {
        let server = Listener::start(move |request| {
            let host = request.lines().find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("host: ")
                    .map(|host| host.trim().to_owned())
            });
            let link = link.replace("HOST", &host.unwrap_or_default());
            let (link, name) = match queries(&target(request)).get("page") {
                Some(_) => (String::new(), "b"),
                None => (format!("Link: <{link}>; rel=\"next\"\r\n"), "a"),
            };
            let item = format!(r#"[{{"type": "file", "path": "{name}.json", "size": 1}}]"#);
            response("application/json", &link, &item)
        });
        let (location, mut options) = hub_bucket(&server);
        options.set("token", "hf_hunter2").expect("an option");
        let found = list_files(&location, &options);
        if let Some(files) = files {
            assert_eq!(found.expect(link).len(), files, "{link}");
        } else {
            let error = found.expect_err(link);
            assert!(error.chain().contains("is elsewhere"), "{}", error.chain());
            assert_eq!(server.received().len(), 1, "{link}");
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a pause between two looks at the server"
)]
#[test]
fn endless_list_ends_at_cancel() {
    let server = Listener::start(|request| page_with_next(request, |page| page + 1));
    let (location, options) = hub_bucket(&server);
    let target = tempfile::tempdir().expect("a folder");
    let copy = CopyJob::new(&location, target.path()).store(options);
    let control = copy.control();
    let error = std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy.run());
        let mut seen = 0;
        while seen < 3 && !copying.is_finished() {
            seen += server.received().len();
            std::thread::sleep(Duration::from_millis(1));
        }
        control.cancel();
        copying.join().expect("no panic").expect_err("cancelled")
    });
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
}

/// A hub describes a repository with very many files only in part.
#[test]
fn files_beyond_the_description_of_a_hub_are_listed() {
    const DESCRIBED: usize = 50_001;
    const ALL: usize = 50_010;
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let server = Listener::start(move |request| {
        let url = target(request);
        let item = |at: usize| {
            format!(r#"{{"type": "file", "oid": "o{at}", "size": 1, "path": "{at}.json"}}"#)
        };
        let sibling = |at: usize| format!(r#"{{"rfilename": "{at}.json"}}"#);
        if !url.path().contains("/tree/") {
            let siblings: Vec<_> = (0..DESCRIBED).map(sibling).collect();
            let body = format!(
                r#"{{"sha": "{commit}", "siblings": [{}]}}"#,
                siblings.join(",")
            );
            return response("application/json", "", &body);
        }
        let asked = queries(&url);
        let start = asked
            .get("cursor")
            .and_then(|at| at.parse().ok())
            .unwrap_or(0);
        let end = ALL.min(start + 20_000);
        let items: Vec<_> = (start..end).map(item).collect();
        let host = request.lines().find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("host: ")
                .map(str::to_owned)
        });
        let link = match end {
            ALL => String::new(),
            _ => format!(
                "Link: <http://{}{}?recursive=true&cursor={end}>; rel=\"next\"\r\n",
                host.unwrap_or_default().trim(),
                url.path()
            ),
        };
        response("application/json", &link, &format!("[{}]", items.join(",")))
    });
    let location = Location::parse("hf://org/many").expect("a location");
    let options = sites::options(&[("endpoint", &server.url()), ("retries", "0")]);
    let listed = list_files(&location, &options).expect("a list");
    assert_eq!(listed.len(), ALL);
    let trees = server.received();
    let trees = trees
        .iter()
        .filter(|it| it.contains(&format!("/tree/{commit}?")));
    assert_eq!(trees.count(), 3);
}

#[test]
fn each_copy_uses_the_connections_of_its_client() {
    let server = Arc::new(FaultyServer::start());
    let site = sites::faulty_web_at(&server);
    site.put("m.safetensors", &even("t", 1, 2, 5000));
    let mut connections = 0;
    for _ in 0..3 {
        let target = tempfile::tempdir().expect("a folder");
        let copy = CopyJob::new(site.location("m.safetensors"), target.path())
            .store(site.options.clone())
            .client(StoreClient::new());
        assert_eq!(copy.run().expect("a copy").copied_files, 1);
        let opened = server.counts().connections;
        assert!(opened > connections, "a new client has no connections");
        connections = opened;
    }
}
