//! Tests of the faulty server on the wire: its responses without faults, and the exact effect of
//! each fault.
//!
//! Reads sockets itself, because a client library would hide the bytes under test.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in the functions that it calls"
)]

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tload_testbed::{Fault, FaultyServer, Issue, Operation, Rule};

/// Timeout of everything expected: a server that hangs fails the test and does not block it.
const PATIENCE: Duration = Duration::from_secs(60);

/// End of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    /// The connection was closed in good order before `Content-Length` was reached.
    Closed,
    Reset,
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    end: End,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }
}

struct Client(TcpStream);

impl Client {
    fn new(server: &FaultyServer) -> Self {
        let stream = TcpStream::connect(server.url().strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: test\r\n");
        for (name, value) in headers {
            head += &[name, ": ", value, "\r\n"].concat();
        }
        self.0.write_all((head + "\r\n").as_bytes()).unwrap();
    }

    /// Reads the status and headers, byte by byte so that the body stays unread.
    fn head(&mut self) -> io::Result<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let text = String::from_utf8(head).unwrap();
        let mut lines = text.trim_end().split("\r\n");
        let status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_lowercase(), value.to_owned())
        });
        Ok(Answer {
            status,
            headers: headers.collect(),
            body: Vec::new(),
            end: End::Whole,
        })
    }

    fn answer(&mut self, method: &str) -> io::Result<Answer> {
        let mut answer = self.head()?;
        let length = answer
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        let length = if method == "HEAD" { 0 } else { length };
        let mut buffer = vec![0; 64 << 10];
        while answer.body.len() < length {
            let want = buffer.len().min(length - answer.body.len());
            match self.0.read(&mut buffer[..want]) {
                Ok(0) => {
                    answer.end = End::Closed;
                    break;
                }
                Ok(count) => answer.body.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    answer.end = End::Reset;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(answer)
    }

    fn ask(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(method, target, headers);
        self.answer(method).unwrap()
    }

    fn get(&mut self, target: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", target, headers)
    }

    fn range(&mut self, range: &str) -> Answer {
        self.get("/b/k", &[("Range", range)])
    }

    /// Returns whether no byte has arrived so far.
    fn is_silent(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let peeked = self.0.peek(&mut [0]);
        self.0.set_nonblocking(false).unwrap();
        peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

fn pattern(count: usize) -> Vec<u8> {
    (0_u8..251).cycle().take(count).collect()
}

/// Starts a server with `b/k`, 1000 bytes long.
fn server() -> FaultyServer {
    let server = FaultyServer::start();
    server.put("/b/k", pattern(1000));
    server
}

/// Reads bytes 100 to 199 under a fault.
fn under(fault: Fault) -> (FaultyServer, Client, Answer) {
    let server = server();
    server.fault(Rule::once(fault));
    let mut client = Client::new(&server);
    let answer = client.range("bytes=100-199");
    (server, client, answer)
}

/// Asserts that the connection stays open and the next response is correct.
fn assert_sound_after(client: &mut Client) {
    let answer = client.range("bytes=100-199");
    assert_eq!(
        (answer.status, &answer.body[..]),
        (206, &pattern(1000)[100..200])
    );
    assert_eq!(answer.header("content-range"), Some("bytes 100-199/1000"));
}

#[test]
fn ranges_are_served_on_one_connection() {
    let server = server();
    let mut client = Client::new(&server);
    for (range, status, span, content_range) in [
        ("bytes=0-9", 206, 0..10, Some("bytes 0-9/1000")),
        ("bytes=990-2000", 206, 990..1000, Some("bytes 990-999/1000")),
        ("bytes=400-", 206, 400..1000, Some("bytes 400-999/1000")),
        ("bytes=-1", 206, 999..1000, Some("bytes 999-999/1000")),
        ("bytes=5-4", 200, 0..1000, None),
    ] {
        let answer = client.range(range);
        assert_eq!(answer.status, status, "{range}");
        assert_eq!(answer.body, pattern(1000)[span], "{range}");
        assert_eq!(answer.header("content-range"), content_range);
        assert_eq!(answer.header("accept-ranges"), Some("bytes"));
    }
    let answer = client.range("bytes=1000-");
    assert_eq!(
        (answer.status, answer.header("content-range")),
        (416, Some("bytes */1000"))
    );
    assert!(answer.text().contains("<Code>InvalidRange</Code>"));

    let answer = client.ask("HEAD", "/b/k", &[]);
    assert_eq!(
        (answer.status, answer.header("content-length")),
        (200, Some("1000"))
    );
    assert_eq!(client.ask("HEAD", "/b/none", &[]).status, 404);
    let answer = client.get("/b/none", &[]);
    assert!(answer.text().contains("<Code>NoSuchKey</Code>"));
    let id = answer.header("x-amz-request-id").unwrap();
    assert_eq!(id, "REQ0009");
    assert!(
        answer
            .text()
            .contains(&format!("<RequestId>{id}</RequestId>"))
    );
    assert!(
        client
            .get("/none/k", &[])
            .text()
            .contains("<Code>NoSuchBucket</Code>")
    );

    // An unexpected request body is discarded, and the connection stays open.
    client.send("PUT", "/b/k", &[("Content-Length", "5")]);
    client.0.write_all(b"12345").unwrap();
    assert_eq!(client.answer("PUT").unwrap().status, 501);
    assert_sound_after(&mut client);

    let requests = server.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.connection == 1 && !request.faulted)
    );
    assert_eq!(requests[1].range, Some(990..1000));
    assert_eq!(requests[1].headers["range"], "bytes=990-2000");
    assert_eq!(
        (requests[5].range.clone(), requests[5].status),
        (None, Some(416))
    );
    assert_eq!(requests.last().unwrap().order, requests.len());
    assert_eq!(server.counts().connections, 1);
    assert!(server.counts().body_bytes > 2000);
}

#[test]
fn conditional_requests_follow_object_state() {
    let server = server();
    let mut client = Client::new(&server);
    let first = client.ask("HEAD", "/b/k", &[]);
    let (etag, modified) = (
        first.header("etag").unwrap(),
        first.header("last-modified").unwrap(),
    );
    assert_eq!(client.get("/b/k", &[("If-Match", etag)]).status, 200);
    assert_eq!(
        client
            .get("/b/k", &[("If-Unmodified-Since", modified)])
            .status,
        200
    );
    assert_eq!(client.get("/b/k", &[("If-None-Match", etag)]).status, 304);
    assert_eq!(
        client
            .get("/b/k", &[("If-Modified-Since", modified)])
            .status,
        304
    );

    assert_ne!(server.put("b/k", pattern(1000)), etag);
    let answer = client.get("/b/k", &[("If-Match", etag)]);
    assert_eq!(answer.status, 412);
    assert!(answer.text().contains("<Code>PreconditionFailed</Code>"));
    assert_eq!(
        client
            .get("/b/k", &[("If-Unmodified-Since", modified)])
            .status,
        412
    );
    assert_eq!(client.get("/b/k", &[("If-None-Match", etag)]).status, 200);
    assert_eq!(
        client
            .get("/b/k", &[("If-Modified-Since", modified)])
            .status,
        200
    );

    assert!(server.remove("b/k"));
    assert_eq!(client.get("/b/k", &[]).status, 404);
}

#[test]
fn kept_version_is_readable_by_id() {
    let server = server();
    let mut client = Client::new(&server);
    assert_eq!(client.get("/b/k", &[]).header("x-amz-version-id"), None);
    server.keep_versions();
    server.put("b/k", "old");
    let old = client
        .get("/b/k", &[])
        .header("x-amz-version-id")
        .unwrap()
        .to_owned();
    server.put("b/k", "newer");
    assert_eq!(client.get("/b/k", &[]).text(), "newer");
    assert_eq!(
        client.get(&format!("/b/k?versionId={old}"), &[]).text(),
        "old"
    );
    assert_eq!(client.get("/b/k?versionId=none", &[]).status, 404);
    let target = format!("/b/k?versionId={old}");
    assert_eq!(client.get(&target, &[("Range", "bytes=0-")]).text(), "old");
    assert_eq!(server.requests().last().unwrap().range, Some(0..3));
}

/// Returns the contents of all elements of this name.
fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(open.as_str())
        .skip(1)
        .map(|rest| rest.split_once(&close).unwrap().0)
        .collect()
}

#[test]
fn listing_splits_into_pages() {
    let server = FaultyServer::start();
    for key in [
        "b/a", "b/a/1", "b/a/2", "b/a/x/3", "b/c d&e", "b/z", "other/b",
    ] {
        server.put(key, "x");
    }
    let mut client = Client::new(&server);
    let mut pages = |target: &str| -> Vec<Vec<String>> {
        let (mut pages, mut token) = (Vec::new(), String::new());
        loop {
            let answer = client.get(&format!("{target}{token}"), &[]);
            assert_eq!(answer.status, 200);
            let xml = answer.text();
            let prefixes = elements(xml, "CommonPrefixes").into_iter();
            let prefixes = prefixes.flat_map(|entry| elements(entry, "Prefix"));
            let names: Vec<_> = elements(xml, "Key").into_iter().chain(prefixes).collect();
            assert_eq!(elements(xml, "KeyCount"), [names.len().to_string()]);
            pages.push(names.into_iter().map(str::to_owned).collect());
            let next = elements(xml, "NextContinuationToken");
            assert_eq!(
                elements(xml, "IsTruncated"),
                [(!next.is_empty()).to_string()]
            );
            let [next] = next[..] else { return pages };
            assert!(pages.len() < 10, "endless listing: {pages:?}");
            token = format!("&continuation-token={next}");
        }
    };
    let all = ["a", "a/1", "a/2", "a/x/3", "c d&amp;e", "z"];
    assert_eq!(pages("/b?list-type=2"), [all]);
    assert_eq!(pages("/b?list-type=2&max-keys=4"), [&all[..4], &all[4..]]);
    assert_eq!(pages("/b?list-type=2&start-after=a%2F2"), [&all[3..]]);
    assert_eq!(
        pages("/b/?list-type=2&prefix=a/&delimiter=/"),
        [["a/1", "a/2", "a/x/"]]
    );
    assert_eq!(pages("/b?list-type=2&prefix=none"), [[""; 0]]);
    server.list_page_entries(1);
    assert_eq!(
        pages("/b?list-type=2&delimiter=%2F"),
        [["a"], ["a/"], ["c d&amp;e"], ["z"]]
    );
    assert_eq!(pages("/b?list-type=2").concat(), all);
    assert_eq!(client.get("/none?list-type=2", &[]).status, 404);
    assert_eq!(
        client
            .get("/b?list-type=2&continuation-token=x", &[])
            .status,
        400
    );
}

#[test]
fn endless_listing_always_names_next_page() {
    for (fault, tokens) in [
        (Fault::RepeatedPage, ["again", "again"]),
        (Fault::EndlessPages, ["1", "2"]),
    ] {
        let server = server();
        server.fault(Rule::always(fault).on(Operation::List));
        let mut client = Client::new(&server);
        let mut query = "/b?list-type=2".to_owned();
        for token in tokens {
            let page = client.get(&query, &[]);
            assert_eq!(elements(page.text(), "NextContinuationToken"), [token]);
            assert_eq!(elements(page.text(), "IsTruncated"), ["true"]);
            query = format!("/b?list-type=2&continuation-token={token}");
        }
    }
}

#[test]
fn left_out_validators_are_absent_from_response() {
    let server = FaultyServer::start();
    server.put("b/a", "abc");
    server.leave_out_validators();
    let answer = Client::new(&server).get("/b/a", &[("Range", "bytes=0-1")]);
    assert_eq!((answer.status, answer.text()), (206, "ab"));
    for name in ["etag", "last-modified", "x-amz-version-id"] {
        assert_eq!(answer.header(name), None);
    }
}

#[test]
fn status_fault_sends_code_and_headers() {
    for (fault, status, code, header) in [
        (
            Fault::status(500, "InternalError"),
            500,
            "InternalError",
            None,
        ),
        (
            Fault::slow_down(7),
            503,
            "SlowDown",
            Some(("retry-after", "7")),
        ),
        (
            Fault::wrong_region("eu-west-9"),
            301,
            "PermanentRedirect",
            Some(("x-amz-bucket-region", "eu-west-9")),
        ),
        (
            Fault::clock_skew(),
            403,
            "RequestTimeTooSkewed",
            Some(("date", "Thu, 01 Jan 2015 00:00:00 GMT")),
        ),
    ] {
        let (server, mut client, answer) = under(fault);
        assert_eq!(answer.status, status);
        assert_eq!(elements(answer.text(), "Code"), [code]);
        assert_eq!(answer.header("location"), None);
        if let Some((name, value)) = header {
            assert_eq!(answer.header(name), Some(value));
            assert_eq!(
                answer
                    .headers
                    .iter()
                    .filter(|(other, _)| other == name)
                    .count(),
                1
            );
        }
        assert!(server.requests()[0].faulted);
        assert_sound_after(&mut client);
    }
}

#[test]
fn fault_before_headers_ends_connection() {
    let server = server();
    server.fault(Rule::once(Fault::CutBeforeHeaders));
    server.fault(Rule::once(Fault::ResetBeforeHeaders));
    for kind in [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset] {
        let mut client = Client::new(&server);
        client.send("GET", "/b/k", &[]);
        assert_eq!(client.answer("GET").err().unwrap().kind(), kind);
    }
    assert_sound_after(&mut Client::new(&server));
    let statuses: Vec<_> = server
        .requests()
        .iter()
        .map(|request| request.status)
        .collect();
    assert_eq!(statuses, [None, None, Some(206)]);
}

#[test]
fn fault_in_body_ends_connection() {
    for (fault, end) in [
        (Fault::CutBody(30), End::Closed),
        (Fault::ResetBody(30), End::Reset),
    ] {
        let (server, _client, answer) = under(fault);
        assert_eq!((answer.status, answer.end), (206, end));
        assert_eq!(answer.header("content-length"), Some("100"));
        assert_eq!(answer.body, pattern(1000)[100..130]);
        assert!(server.wait_until(PATIENCE, |counts| counts.open_connections == 0));
        assert_eq!(server.counts().body_bytes, 30);
        assert_sound_after(&mut Client::new(&server));
    }
}

#[test]
fn stalled_response_resumes_when_faults_cleared() {
    let server = server();
    server.fault(Rule::once(Fault::StallHeaders));
    server.fault(Rule::once(Fault::StallBody(30)));
    let (mut headers, mut body) = (Client::new(&server), Client::new(&server));
    headers.send("GET", "/b/k", &[]);
    assert!(server.wait_for_in_flight(1, PATIENCE));
    body.send("GET", "/b/k", &[]);
    assert_eq!(body.head().unwrap().status, 200);
    body.0.read_exact(&mut [0; 30]).unwrap();
    // A third request completes meanwhile, so the first two have had time to.
    assert_sound_after(&mut Client::new(&server));
    assert!(headers.is_silent() && body.is_silent());
    assert!(server.wait_until(PATIENCE, |counts| counts.in_flight == 2));
    assert_eq!(server.requests()[0].status, None);

    server.clear_faults();
    assert_eq!(headers.answer("GET").unwrap().body, pattern(1000));
    let mut rest = vec![0; 970];
    body.0.read_exact(&mut rest).unwrap();
    assert_eq!(rest, pattern(1000)[30..]);
    assert!(server.wait_for_idle(PATIENCE));
    assert_eq!(server.counts().in_flight_max, 3);
    assert_sound_after(&mut headers);
    assert_sound_after(&mut body);
}

#[test]
fn client_disconnect_ends_stalled_response() {
    let server = server();
    server.fault(Rule::always(Fault::StallHeaders));
    let mut client = Client::new(&server);
    client.send("GET", "/b/k", &[]);
    assert!(server.wait_for_in_flight(1, PATIENCE));
    assert!(!server.wait_for_in_flight(2, Duration::ZERO));
    drop(client);
    assert!(server.wait_until(PATIENCE, |counts| counts.open_connections == 0));
    assert_eq!(server.in_flight(), 0);
}

#[test]
fn slow_response_is_complete() {
    let pause = Duration::from_millis(1);
    for fault in [Fault::Drip { bytes: 9, pause }, Fault::Delay(pause)] {
        let (_server, mut client, answer) = under(fault);
        assert_eq!(
            (answer.end, &answer.body[..]),
            (End::Whole, &pattern(1000)[100..200])
        );
        assert_sound_after(&mut client);
    }
    // The rest of a drip waits for its pause; clearing the faults cuts the pause short.
    let server = server();
    server.fault(Rule::once(Fault::Drip {
        bytes: 10,
        pause: PATIENCE * 100,
    }));
    let mut client = Client::new(&server);
    client.send("GET", "/b/k", &[]);
    client.head().unwrap();
    client.0.read_exact(&mut [0; 10]).unwrap();
    // Another request completes meanwhile, so the first has had time to.
    assert_sound_after(&mut Client::new(&server));
    assert!(client.is_silent());
    server.clear_faults();
    client.0.read_exact(&mut [0; 990]).unwrap();
}

#[test]
fn short_or_long_body_states_its_length() {
    let wanted = pattern(1000)[100..200].to_vec();
    let (_server, mut client, answer) = under(Fault::ShortBody(30));
    assert_eq!(
        (answer.header("content-length"), &answer.body[..]),
        (Some("70"), &wanted[..70])
    );
    assert_eq!(answer.header("content-range"), Some("bytes 100-199/1000"));
    assert_sound_after(&mut client);

    let (_server, mut client, answer) = under(Fault::LongBody(30));
    assert_eq!(answer.header("content-length"), Some("130"));
    assert_eq!((answer.body.len(), &answer.body[..100]), (130, &wanted[..]));
    assert_eq!(answer.header("content-range"), Some("bytes 100-199/1000"));
    assert_sound_after(&mut client);
}

#[test]
fn wrong_length_is_stated_and_closes_connection() {
    let (_server, _client, answer) = under(Fault::WrongLength(5));
    assert_eq!(answer.header("content-length"), Some("105"));
    assert_eq!((answer.body.len(), answer.end), (100, End::Closed));
    let (_server, mut client, answer) = under(Fault::WrongLength(-5));
    assert_eq!(answer.header("content-length"), Some("95"));
    let mut rest = Vec::new();
    client.0.read_to_end(&mut rest).unwrap();
    assert_eq!((answer.body.len(), rest.len()), (95, 5));
}

#[test]
fn garbage_replaces_response() {
    let server = server();
    server.fault(Rule::once(Fault::Garbage(b"220 mail\r\n".to_vec())));
    let mut client = Client::new(&server);
    client.send("GET", "/b/k", &[]);
    let mut all = Vec::new();
    client.0.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"220 mail\r\n");
    assert_eq!(server.requests()[0].status, None);
    assert_sound_after(&mut Client::new(&server));
}

#[test]
fn redirect_states_location() {
    let (_server, mut client, answer) = under(Fault::redirect("http://127.0.0.1:1/x"));
    assert_eq!(answer.status, 307);
    assert_eq!(answer.header("location"), Some("http://127.0.0.1:1/x"));
    assert_sound_after(&mut client);
}

#[test]
fn range_faults_misstate_or_ignore_range() {
    for (fault, content_range) in [
        (Fault::WrongContentRange(8), Some("bytes 108-207/1000")),
        (Fault::WrongContentRange(-8), Some("bytes 92-191/1000")),
        (Fault::NoContentRange, None),
        (Fault::WrongTotal(5000), Some("bytes 100-199/5000")),
    ] {
        let (_server, mut client, answer) = under(fault);
        assert_eq!(
            (answer.status, answer.header("content-range")),
            (206, content_range)
        );
        assert_eq!(answer.body, pattern(1000)[100..200]);
        assert_sound_after(&mut client);
    }
    let (_server, mut client, answer) = under(Fault::IgnoreRange);
    assert_eq!((answer.status, answer.header("content-range")), (200, None));
    assert_eq!(answer.body, pattern(1000));
    assert_sound_after(&mut client);
}

#[test]
fn object_changes_or_vanishes_before_response() {
    let server = server();
    let mut client = Client::new(&server);
    let first = client.ask("HEAD", "/b/k", &[]);
    let same = [
        ("If-Match", first.header("etag").unwrap()),
        ("Range", "bytes=0-3"),
    ];
    server.fault(Rule::once(Fault::ChangeBefore(b"changed".to_vec())).on(Operation::Get));
    assert_eq!(client.get("/b/k", &same).status, 412);
    assert_eq!(client.get("/b/k", &same).status, 412);
    server.fault(Rule::once(Fault::IgnoreIfMatch));
    let answer = client.get("/b/k", &same);
    assert_eq!((answer.status, answer.text()), (206, "chan"));
    assert_ne!(answer.header("etag"), first.header("etag"));
    assert_ne!(
        answer.header("last-modified"),
        first.header("last-modified")
    );
    server.fault(Rule::once(Fault::RemoveBefore));
    assert_eq!(client.get("/b/k", &same).status, 404);
    assert_eq!(client.get("/b/k", &[]).status, 404);
}

#[test]
fn validator_faults_alter_object_headers() {
    let (_server, mut client, answer) = under(Fault::NoEtag);
    assert_eq!((answer.status, answer.header("etag")), (206, None));
    let sound = client.range("bytes=0-0");
    let etag = sound.header("etag").unwrap();
    let (_server, _client, answer) = under(Fault::WeakEtag);
    assert_eq!(answer.header("etag").unwrap(), format!("W/{etag}"));

    let (_server, _client, answer) = under(Fault::BadLastModified);
    let (wrong, right) = (
        answer.header("last-modified").unwrap(),
        sound.header("last-modified"),
    );
    assert_eq!(wrong[3..], right.unwrap()[3..]);
    assert_ne!(wrong[..3], right.unwrap()[..3]);
}

#[test]
fn corrupt_byte_is_flipped_in_every_read() {
    let server = server();
    server.fault(Rule::always(Fault::Corrupt(150)));
    let mut client = Client::new(&server);
    let mut wrong = pattern(1000);
    wrong[150] = !wrong[150];
    for (range, span) in [
        ("bytes=100-199", 100..200),
        ("bytes=150-", 150..1000),
        ("bytes=0-149", 0..150),
    ] {
        assert_eq!(client.range(range).body, wrong[span]);
    }
    assert_eq!(client.get("/b/k", &[]).body, wrong);
    let faulted: Vec<_> = server
        .requests()
        .iter()
        .map(|request| request.faulted)
        .collect();
    assert_eq!(faulted, [true, true, false, true]);
}

#[test]
fn rule_applies_to_matching_requests_only() {
    let server = server();
    server.put("b/other", pattern(1000));
    let mut client = Client::new(&server);
    let refuse = || Fault::status(503, "SlowDown");
    let mut statuses = |targets: &[(&str, &str, &str)]| -> Vec<u16> {
        let ask = |(method, target, range): &(&str, &str, &str)| {
            client.ask(method, target, &[("Range", range)]).status
        };
        targets.iter().map(ask).collect()
    };
    let (head, low, high) = (
        ("HEAD", "/b/k", "bytes=0-"),
        ("GET", "/b/k", "bytes=0-499"),
        ("GET", "/b/k", "bytes=500-"),
    );
    let (suffix, list) = (("GET", "/b/k", "bytes=-500"), ("GET", "/b?list-type=2", ""));

    server.fault(Rule::times(2, refuse()).from_byte(500).after(1));
    let asked = [head, low, list, high, low, high, suffix, high];
    assert_eq!(statuses(&asked), [206, 206, 200, 206, 206, 503, 503, 206]);

    server.fault(Rule::always(refuse()).path("k").on(Operation::Head));
    assert_eq!(
        statuses(&[head, low, ("HEAD", "/b/other", ""), head]),
        [503, 206, 200, 503]
    );

    // The first rule that matches applies, and the others do not count the request.
    server.clear_faults();
    server.fault(Rule::once(Fault::status(500, "InternalError")).on(Operation::List));
    server.fault(Rule::times(2, refuse()));
    assert_eq!(statuses(&[list, list, low, low]), [500, 503, 503, 206]);

    server.clear_faults();
    server.fault(Rule::times(2, refuse()).after(1).every(2));
    let asked = [low, low, low, low, low, low];
    assert_eq!(statuses(&asked), [206, 503, 206, 503, 206, 206]);
}

#[test]
fn required_access_key_is_the_only_one_admitted() {
    let server = server();
    let mut client = Client::new(&server);
    let mut status = |authorization: &str| {
        let answer = client.get("/b/k", &[("Authorization", authorization)]);
        let code = if answer.status == 200 {
            ""
        } else {
            elements(answer.text(), "Code")[0]
        };
        (answer.status, code.to_owned())
    };
    let signed =
        |key: &str| format!("AWS4-HMAC-SHA256 Credential={key}/20260101/r/s3/aws4_request");
    let expired = (403, "ExpiredToken".to_owned());
    server.require_access_key(Some("KEY1"));
    assert_eq!(status(&signed("KEY1")).0, 200);
    assert_eq!(status(&signed("KEY2")), expired);
    assert_eq!(status("Bearer KEY1"), (200, String::new()));
    assert_eq!(status("Basic KEY1"), expired);
    server.require_access_key_or(Some("KEY2"), 400, "ExpiredToken");
    assert_eq!(status(&signed("KEY1")).0, 400);
    assert_eq!(status(&signed("KEY2")).0, 200);
    assert_eq!(client.get("/b/k", &[]).status, 400);
    server.require_access_key(None);
    assert_eq!(client.get("/b/k", &[]).status, 200);

    let request = &server.requests()[0];
    assert!(request.headers["authorization"].contains("KEY1"));
    assert!(!format!("{request:?}").contains("KEY1"));
}

#[test]
fn credentials_are_issued_in_order() {
    let server = server();
    server.require_access_key(Some("KEY1"));
    server.fault(Rule::always(Fault::status(503, "SlowDown")));
    let mut client = Client::new(&server);
    let target = server.credentials_url().replace(&server.url(), "");
    assert_eq!(client.get(&target, &[]).status, 404);
    let hour = Duration::from_secs(3600);
    server.issue_credentials([Issue::Failure(500), Issue::keys("KEY1", hour)]);
    assert_eq!(client.get(&target, &[]).status, 500);
    for _ in 0..2 {
        let answer = client.get(&target, &[("Authorization", "pod-token")]);
        let keys: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((answer.status, &keys["AccessKeyId"]), (200, &"KEY1".into()));
        assert_eq!(keys["SecretAccessKey"], "secret-of-KEY1");
        assert_eq!(keys["Token"], "token-of-KEY1");
        let expiration = keys["Expiration"].as_str().unwrap();
        assert!(
            expiration.ends_with('Z') && expiration.len() == 24,
            "{expiration}"
        );
    }
    assert!(!format!("{:?}", Issue::keys("KEY1", hour)).contains("secret"));
    server.fault(Rule::once(Fault::CutBody(3)));
    server.clear_faults();
    server.fault(Rule::once(Fault::CutBody(3)).on(Operation::Credentials));
    assert_eq!(client.get(&target, &[]).end, End::Closed);
}

#[test]
fn server_drop_ends_open_and_stalled_connections() {
    let server = server();
    server.put("b/big", vec![0; 64 << 20]);
    server.fault(Rule::times(20, Fault::StallHeaders));
    server.fault(Rule::times(20, Fault::StallBody(30)));
    server.fault(Rule::times(
        20,
        Fault::Drip {
            bytes: 1,
            pause: PATIENCE * 100,
        },
    ));
    let mut clients: Vec<_> = (0..70).map(|_| Client::new(&server)).collect();
    for (index, client) in clients[..65].iter_mut().enumerate() {
        client.send("GET", if index < 60 { "/b/k" } else { "/b/big" }, &[]);
        assert!(server.wait_for_in_flight(index + 1, PATIENCE));
        let sent = match index {
            0..20 => continue,
            20..40 => 30,
            40..60 => 1,
            _ => 0,
        };
        client.head().unwrap();
        client.0.read_exact(&mut vec![0; sent]).unwrap();
    }
    assert!(server.wait_until(PATIENCE, |counts| counts.open_connections == 70));
    // Twenty clients have no response, forty wait in the middle of one, five do not read theirs so
    // that the server is blocked in writing, and five have sent no request.
    drop(server);
    for (index, client) in clients.iter_mut().enumerate() {
        let mut rest = Vec::new();
        let read = client.0.read_to_end(&mut rest);
        assert!(
            read.is_ok() || read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
        );
        match index {
            60..65 => assert!(rest.len() < 64 << 20),
            _ => assert!(rest.is_empty()),
        }
    }
}
