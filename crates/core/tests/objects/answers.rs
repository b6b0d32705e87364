//! Answers to requests for a range that are legal and rare, and those that mean nothing: one table,
//! for each store, with curl as the oracle.

use std::ops::Range;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tload::internal::storage::{ObjectSource, Source};
use tload::{Error, ErrorKind, Location, StoreOptions};

use crate::fixtures::{assert_all, even, in_file_order, index, load};
use crate::listener::Listener;
use crate::sites;

/// Length of the object, of which a server may send less at once than is asked for.
const LEN: usize = 200_000;

/// Most bytes that one row's server sends at once.
const PART: usize = 70_000;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Request for an object.
struct Asked {
    is_head: bool,
    /// `None` without a range.
    range: Option<Range<usize>>,
}

impl Asked {
    fn parse(head: &str, len: usize) -> Self {
        let mut lines = head.lines();
        let range = lines.find_map(|line| {
            let (name, value) = line.split_once(": bytes=")?;
            let (first, last) = value.trim().split_once('-')?;
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            let is_range = name.eq_ignore_ascii_case("range");
            is_range.then_some(first..(last + 1).min(len))
        });
        Self {
            is_head: head.starts_with("HEAD"),
            range,
        }
    }
}

/// Returns the text of the object, whose parts are all different.
fn text(len: usize) -> String {
    let lines = (0..=len / 8).map(|line| format!("{line:07}\n"));
    lines.collect::<String>()[..len].to_owned()
}

/// Returns a response without the headers that identify the object.
fn response(status: &str, headers: &str, body: &str) -> String {
    let (etag, date) = (
        "ETag: \"e\"",
        "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT",
    );
    let has_date = headers.contains("Last-Modified:");
    let date = if has_date { "X-Date: none" } else { date };
    format!("HTTP/1.1 {status}\r\n{etag}\r\n{date}\r\n{headers}Connection: close\r\n\r\n{body}")
}

fn sized(status: &str, headers: &str, body: &str) -> String {
    let len = body.len();
    response(status, &format!("{headers}Content-Length: {len}\r\n"), body)
}

/// Returns a body in chunks.
fn chunked(body: &str) -> String {
    let half = body.len() / 2;
    let parts = [&body[..half], &body[half..]];
    let parts = parts.iter().filter(|part| !part.is_empty());
    let chunks = parts.map(|part| format!("{:x}\r\n{part}\r\n", part.len()));
    format!("{}0\r\n\r\n", chunks.collect::<String>())
}

/// Answers with 206 and these headers; in them, `A`, `B` and `N` stand for the numbers.
fn partial(headers: &'static str) -> impl Fn(&Asked, &str) -> String + Send + Sync {
    move |asked, object| {
        let Some(range) = asked.range.clone().filter(|_| !asked.is_head) else {
            return whole(asked, object);
        };
        let headers = headers
            .replace("{A}", &range.start.to_string())
            .replace("{B}", &(range.end - 1).to_string())
            .replace("{N}", &object.len().to_string());
        sized("206 Partial Content", &headers, &object[range])
    }
}

/// Answers with 200 and the object.
fn whole(asked: &Asked, object: &str) -> String {
    let answer = sized("200 OK", "", object);
    let end = answer.len() - if asked.is_head { object.len() } else { 0 };
    answer[..end].to_owned()
}

type Answer = Box<dyn Fn(&Asked, &str) -> String + Send + Sync>;

/// Outcome of reading: the right bytes, or an error of this kind that says this.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Right,
    Error(ErrorKind, &'static str),
}

struct Row {
    name: &'static str,
    answer: Answer,
    wanted: Wanted,
}

fn row(
    name: &'static str,
    answer: impl Fn(&Asked, &str) -> String + Send + Sync + 'static,
    wanted: Wanted,
) -> Row {
    Row {
        name,
        answer: Box::new(answer),
        wanted,
    }
}

/// Ends a head that has only a `Content-Range`.
macro_rules! range {
    ($range:literal) => {
        concat!("Content-Range: ", $range, "\r\n")
    };
    ($range:literal, $more:literal) => {
        concat!("Content-Range: ", $range, "\r\n", $more, "\r\n")
    };
}

fn legal() -> Vec<Row> {
    let right = Wanted::Right;
    vec![
        row("usual", partial(range!("bytes {A}-{B}/{N}")), right),
        row(
            "unit in capitals",
            partial(range!("BYTES {A}-{B}/{N}")),
            right,
        ),
        row("spaces", partial(range!("bytes   {A}-{B}/{N}  ")), right),
        row(
            "leading zeros",
            partial(range!("bytes 00{A}-0{B}/000{N}")),
            right,
        ),
        row("total unknown", partial(range!("bytes {A}-{B}/*")), right),
        row(
            "twice the same",
            partial(range!(
                "bytes {A}-{B}/{N}",
                "Content-Range: bytes {A}-{B}/{N}"
            )),
            right,
        ),
        row(
            "not encoded",
            partial(range!("bytes {A}-{B}/{N}", "Content-Encoding: identity")),
            right,
        ),
        row(
            "no encoding: how it was uploaded",
            partial(range!("bytes {A}-{B}/{N}", "Content-Encoding: aws-chunked")),
            right,
        ),
        row(
            "no encoding: a set of characters",
            partial(range!("bytes {A}-{B}/{N}", "Content-Encoding: utf-8")),
            right,
        ),
        row(
            "date of RFC 850",
            partial(range!(
                "bytes {A}-{B}/{N}",
                "Last-Modified: Thursday, 01-Jan-26 00:00:00 GMT"
            )),
            right,
        ),
        row(
            "date of asctime",
            partial(range!(
                "bytes {A}-{B}/{N}",
                "Last-Modified: Thu Jan  1 00:00:00 2026"
            )),
            right,
        ),
        row(
            "206 in chunks",
            |asked, object| {
                let Some(range) = asked.range.clone().filter(|_| !asked.is_head) else {
                    return whole(asked, object);
                };
                let (first, last) = (range.start, range.end - 1);
                let headers = format!(
                    "Content-Range: bytes {first}-{last}/{LEN}\r\nTransfer-Encoding: chunked\r\n"
                );
                response("206 Partial Content", &headers, &chunked(&object[range]))
            },
            right,
        ),
        row(
            "less than was asked for",
            |asked, object| {
                let part = |range: &Range<usize>| range.start..range.end.min(range.start + PART);
                let asked = Asked {
                    range: asked.range.as_ref().map(part),
                    ..*asked
                };
                partial(range!("bytes {A}-{B}/{N}"))(&asked, object)
            },
            right,
        ),
        row("200", whole, right),
        row(
            "200 with the range of all",
            |asked, object| {
                if asked.is_head {
                    return whole(asked, object);
                }
                let last = object.len() - 1;
                let range = format!("Content-Range: bytes 0-{last}/{}\r\n", object.len());
                sized("200 OK", &range, object)
            },
            right,
        ),
        row(
            "200 in chunks",
            |asked, object| {
                if asked.is_head {
                    return whole(asked, object);
                }
                response("200 OK", "Transfer-Encoding: chunked\r\n", &chunked(object))
            },
            right,
        ),
    ]
}

fn meaningless() -> Vec<Row> {
    let remote = |words| Wanted::Error(ErrorKind::Remote, words);
    let unsupported = |words| Wanted::Error(ErrorKind::Unsupported, words);
    let encoded = |header: &'static str, words| {
        let answer = move |asked: &Asked, object: &str| {
            let answer = partial(range!("bytes {A}-{B}/{N}"))(asked, object);
            answer.replacen("ETag:", &format!("{header}\r\nETag:"), 1)
        };
        row(header, answer, unsupported(words))
    };
    vec![
        encoded("Content-Encoding: gzip", "Content-Encoding: gzip"),
        encoded("content-encoding: GZIP", "Content-Encoding: GZIP"),
        encoded("Content-Encoding: identity, br", "Content-Encoding: br"),
        encoded("Content-Encoding: zstd", "Content-Encoding: zstd"),
        row(
            "200, compressed",
            |_, _| sized("200 OK", "Content-Encoding: gzip\r\n", "\u{1f}compressed"),
            unsupported("Content-Encoding: gzip"),
        ),
        row(
            "200, decompressed on the way",
            |_, object| sized("200 OK", "x-goog-stored-content-encoding: gzip\r\n", object),
            unsupported("x-goog-stored-content-encoding: gzip"),
        ),
        row(
            "total too small",
            partial(range!("bytes {A}-{B}/0")),
            remote("different range"),
        ),
        row(
            "end overflows",
            partial(range!("bytes {A}-18446744073709551615/*")),
            remote("cannot be read"),
        ),
        row(
            "a sign",
            partial(range!("bytes +{A}-{B}/{N}")),
            remote("cannot be read"),
        ),
        row(
            "another unit",
            partial(range!("lines {A}-{B}/{N}")),
            remote("cannot be read"),
        ),
        row(
            "another range",
            partial(range!("bytes 1{A}-1{B}/{N}")),
            remote("different range"),
        ),
        row(
            "two ranges",
            partial(range!("bytes {A}-{B}/{N}", "Content-Range: bytes 1-2/{N}")),
            remote("cannot be read"),
        ),
        row("none", partial(""), remote("no Content-Range")),
        row(
            "several parts",
            partial("Content-Type: multipart/byteranges; boundary=b\r\n"),
            remote("multipart"),
        ),
        row(
            "200 with the range of a part",
            |_, object| sized("200 OK", "Content-Range: bytes 5-9/100\r\n", &object[5..10]),
            remote("status 200"),
        ),
        row(
            "200 that may be cut short",
            |_, object| response("200 OK", "", &object[..1000]),
            unsupported("whole files"),
        ),
    ]
}

/// Returns each store at a server: the location of the object, and options.
fn stores(server: &str) -> Vec<(String, StoreOptions)> {
    let endpoint = ("endpoint", server);
    let host = server.strip_prefix("http://").expect("plain");
    let anonymous = ("anonymous", "true");
    let all: [(String, &[_]); 6] = [
        ("s3://models/a.json".to_owned(), &[endpoint, anonymous]),
        (format!("{server}/models/a.json"), &[]),
        ("gs://models/a.json".to_owned(), &[endpoint, anonymous]),
        (
            "az://models/a.json".to_owned(),
            &[endpoint, anonymous, ("account", "account")],
        ),
        ("hf://org/model/a.json".to_owned(), &[endpoint]),
        (format!("oci://{host}/org/model:v1/a.json"), &[]),
    ];
    let retries = ("retries", "1");
    all.map(|(url, pairs)| {
        let pairs: Vec<_> = pairs.iter().copied().chain([retries]).collect();
        (url, sites::options(&pairs))
    })
    .into()
}

/// Starts a server of an object of `len` bytes, which is also a hub and a registry.
fn serve(len: usize, answer: Answer) -> Listener {
    let object = Arc::new(text(len));
    Listener::start(move |head| {
        let target = head.split(' ').nth(1).unwrap_or_default();
        if target.starts_with("/api/models/") {
            let files = json!([{"rfilename": "a.json", "size": len, "blobId": COMMIT}]);
            return sized(
                "200 OK",
                "",
                &json!({"sha": COMMIT, "siblings": files}).to_string(),
            );
        }
        if target.contains("/manifests/") {
            let layer = json!({
                "mediaType": "application/vnd.cncf.model.weight.v1.raw", "size": len,
                "digest": format!("sha256:{}", "7".repeat(64)),
                "annotations": {"org.cncf.model.filepath": "a.json"},
            });
            let media_type = "application/vnd.oci.image.manifest.v1+json";
            let manifest = json!({"schemaVersion": 2, "mediaType": media_type, "layers": [layer]});
            let headers = format!("Content-Type: {media_type}\r\n");
            return sized("200 OK", &headers, &manifest.to_string());
        }
        answer(&Asked::parse(head, len), &object)
    })
}

/// Reads the object as loads do, and returns two ranges of it.
fn read(url: &str, options: &StoreOptions) -> Result<[Vec<u8>; 2], Error> {
    let object = ObjectSource::at(&Location::parse(url)?, options)?;
    assert_eq!(object.len(), LEN as u64, "{url}");
    Ok([object.fetch(0, LEN)?, object.fetch(5, 85)?])
}

/// Returns what curl writes for a range, if it is installed.
fn by_curl(url: &str, range: &Range<usize>) -> Option<Vec<u8>> {
    let bytes = format!("{}-{}", range.start, range.end - 1);
    let output = Command::new("curl")
        .args(["-sS", "-q", "--noproxy", "*", "-r", &bytes, url])
        .output();
    Some(output.ok().filter(|output| output.status.success())?.stdout)
}

#[test]
fn legal_answers_give_right_bytes() {
    let wanted = text(LEN);
    let wanted = wanted.as_bytes();
    for row in legal() {
        let name = row.name;
        let server = serve(LEN, row.answer);
        for (url, options) in stores(&server.url()) {
            let [all, part] = read(&url, &options)
                .unwrap_or_else(|error| panic!("{name}, {url}: {}", error.chain()));
            assert!(all == wanted, "{name}, {url}: wrong bytes");
            assert!(part == wanted[5..90], "{name}, {url}: wrong bytes");
        }
        let url = format!("{}/models/a.json", server.url());
        for range in [0..LEN, 5..90] {
            let Some(theirs) = by_curl(&url, &range) else {
                continue;
            };
            let is_part = wanted[range.clone()].starts_with(&theirs) && !theirs.is_empty();
            assert!(
                is_part || theirs == wanted,
                "{name}: curl has other bytes of {range:?}"
            );
        }
    }
}

#[test]
fn meaningless_answers_are_errors() {
    for row in meaningless() {
        let name = row.name;
        let Wanted::Error(kind, words) = row.wanted else {
            panic!("{name}");
        };
        let server = serve(LEN, row.answer);
        for (url, options) in stores(&server.url()) {
            let Err(error) = read(&url, &options) else {
                panic!("{name}, {url}: read");
            };
            assert_eq!(error.kind(), kind, "{name}, {url}: {}", error.chain());
            let text = error.chain();
            assert!(text.contains(words), "{name}, {url}: {text}");
            assert!(error.hint().is_some(), "{name}, {url}: {text}");
        }
    }
}

/// Every request asks for bytes that are not compressed; those of a file that is compressed itself
/// are its bytes.
#[test]
fn requests_ask_for_identity_and_packed_files_stay_packed() {
    let packed = |asked: &Asked, object: &str| {
        let answer = partial(range!("bytes {A}-{B}/{N}"))(asked, object);
        answer.replacen("ETag:", "Content-Encoding: gzip\r\nETag:", 1)
    };
    let server = serve(LEN, Box::new(packed));
    for url in [
        "s3://models/a.json.gz".to_owned(),
        format!("{}/a.tar.gz", server.url()),
    ] {
        let endpoint = [("endpoint", &*server.url()), ("anonymous", "true")];
        let pairs = if url.starts_with("s3") {
            &endpoint[..]
        } else {
            &[]
        };
        let [all, _] = read(&url, &sites::options(pairs)).expect("as it is");
        assert!(all == text(LEN).as_bytes(), "{url}");
    }
    for (url, options) in stores(&server.url()) {
        read(&url, &options).expect_err("compressed");
    }
    for head in server.received() {
        assert!(
            head.to_lowercase()
                .contains("accept-encoding: identity\r\n"),
            "{head}"
        );
    }
}

#[test]
fn empty_objects_open_however_that_is_said() {
    type Answer = fn(&Asked) -> String;
    let refuse =
        |status: &'static str| move |asked: &Asked| asked.is_head.then(|| sized(status, "", ""));
    let answers: [(&str, Answer); 5] = [
        ("416", |_| {
            sized("416 Range Not Satisfiable", range!("bytes */0"), "")
        }),
        ("416 without its range", |asked| match asked.range {
            Some(_) => sized("416 Range Not Satisfiable", "", ""),
            None => sized("200 OK", "", ""),
        }),
        ("200", |_| sized("200 OK", "", "")),
        ("200 in chunks", |_| {
            response("200 OK", "Transfer-Encoding: chunked\r\n", &chunked(""))
        }),
        ("204", |_| response("204 No Content", "", "")),
    ];
    for status in [
        "403 Forbidden",
        "405 Method Not Allowed",
        "501 Not Implemented",
        "200 OK",
    ] {
        for (name, answer) in answers {
            let refusal = refuse(status);
            let answer =
                move |asked: &Asked, _: &str| refusal(asked).unwrap_or_else(|| answer(asked));
            let server = serve(0, Box::new(answer));
            for (url, options) in stores(&server.url()) {
                let location = Location::parse(&url).expect("a URL");
                let object = ObjectSource::at(&location, &options).unwrap_or_else(|error| {
                    panic!("{name}, HEAD {status}, {url}: {}", error.chain())
                });
                assert_eq!(object.len(), 0, "{name}, {url}");
                assert_eq!(
                    object.fetch(0, 10).expect("nothing"),
                    [0; 0],
                    "{name}, {url}"
                );
            }
        }
    }
}

/// A range of an object that is empty by now is none of the object that was opened.
#[test]
fn object_that_became_empty_has_changed() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static IS_EMPTY: AtomicBool = AtomicBool::new(false);
    let answer = |asked: &Asked, object: &str| {
        if IS_EMPTY.load(Ordering::SeqCst) {
            return sized("200 OK", "", "");
        }
        partial(range!("bytes {A}-{B}/{N}"))(asked, object)
    };
    let server = serve(LEN, Box::new(answer));
    let url = format!("{}/models/a.json", server.url());
    let location = Location::parse(&url).expect("a URL");
    let object = ObjectSource::at(&location, &sites::options(&[])).expect("opens");
    IS_EMPTY.store(true, Ordering::SeqCst);
    let error = object.fetch(5, 85).expect_err("empty by now");
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
}

/// To read a part of a large object, all of it would have to come.
#[test]
fn large_objects_need_ranges_unless_all_is_wanted() {
    const LARGE: usize = 17 << 20;
    let server = serve(LARGE, Box::new(whole));
    for (url, options) in stores(&server.url()) {
        let location = Location::parse(&url).expect("a URL");
        let error = ObjectSource::at(&location, &options).expect_err("a part is wanted");
        assert_eq!(
            error.kind(),
            ErrorKind::Unsupported,
            "{url}: {}",
            error.chain()
        );
        assert!(error.message().contains("whole files"), "{url}: {error}");
    }
}

/// A shard's name with a backslash names the object below the directory.
#[test]
fn index_written_on_windows_names_objects() {
    let site = sites::faulty();
    let file = even("t", 1, 2, 1000);
    site.put("m/deep/a.safetensors", &file);
    let placed = [
        ("t0".to_owned(), "deep\\a.safetensors"),
        ("t1".to_owned(), "./deep/a.safetensors"),
    ];
    site.put("m/model.safetensors.index.json", &index(&placed));
    let checkpoint = site.checkpoint("m").expect("opens");
    let (tensors, _) = load(&checkpoint, in_file_order()).expect("loads");
    assert_all(&tensors, &[&file]);
}

/// HTTP permits bytes beyond ASCII in an entity tag. It is sent back as it came.
#[test]
fn entity_tag_may_have_bytes_beyond_ascii() {
    let whole = text(1_000_000);
    let changes = Arc::new(AtomicBool::new(false));
    let (body, is_other) = (whole.clone(), Arc::clone(&changes));
    let server = Listener::start(move |head| {
        let range = Asked::parse(head, body.len()).range.expect("a range");
        let tag = if is_other.load(Ordering::Relaxed) {
            "\"cafÉ\""
        } else {
            "\"café %E9\""
        };
        let (first, last, len) = (range.start, range.end - 1, body.len());
        format!(
            "HTTP/1.1 206 Partial Content\r\nETag: {tag}\r\nContent-Range: bytes {first}-{last}/{len}\r\n\
             Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
            range.len(),
            &body[range]
        )
    });
    let location = Location::parse(&format!("{}/m.bin", server.url())).expect("a URL");
    let source = ObjectSource::at(&location, &sites::options(&[])).expect("opens");
    server.received();
    let read = || source.fetch(500_000, 100);
    assert_eq!(read().expect("reads"), whole.as_bytes()[500_000..500_100]);
    let heads = server.received();
    let sent = |head: &String| head.contains("\"café %E9\"\r\n");
    assert!(!heads.is_empty() && heads.iter().all(sent), "{heads:?}");
    changes.store(true, Ordering::Relaxed);
    let error = read().expect_err("another state");
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
    assert!(error.chain().contains("caf%C3%89"), "{}", error.chain());
}
