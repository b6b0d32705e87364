//! Persistent failures: the error, the number of requests, and the error's text.

use std::sync::Arc;

use tload::{Checkpoint, Error, ErrorKind, FailedRequest, Location, OpenOptions, Result};
use tload_testbed::{Fault, FaultyServer, Operation, Rule};

use crate::fixtures::{even, load, options};
use crate::sites::{Site, faulty_at, faulty_web_at};
use ErrorKind::{
    Changed, InvalidFormat, InvalidRequest, NotFound, PermissionDenied, Remote, TimedOut,
    Unsupported,
};

const RETRIES: u32 = 2;

/// Fault, with its outcome.
struct Row {
    fault: Fault,
    /// Kind of the error of opening, if opening fails.
    opening: Option<ErrorKind>,
    /// Kind of the error of reading.
    reading: ErrorKind,
    attempts: u32,
    status: Option<u16>,
    code: Option<&'static str>,
    /// Fragment of the message or the hint, in either phase.
    says: &'static str,
}

fn row(fault: Fault, kinds: (ErrorKind, ErrorKind), attempts: u32, says: &'static str) -> Row {
    Row {
        fault,
        opening: Some(kinds.0),
        reading: kinds.1,
        attempts,
        status: None,
        code: None,
        says,
    }
}

/// Returns the row of a response with this status and code.
fn answer(
    status: u16,
    code: &'static str,
    kinds: (ErrorKind, ErrorKind),
    attempts: u32,
    says: &'static str,
) -> Row {
    Row {
        status: Some(status),
        code: Some(code),
        ..row(Fault::status(status, code), kinds, attempts, says)
    }
}

fn both(kind: ErrorKind) -> (ErrorKind, ErrorKind) {
    (kind, kind)
}

/// Error responses.
fn answers() -> Vec<Row> {
    let all = RETRIES + 1;
    let denied = both(PermissionDenied);
    let lost = (NotFound, Changed);
    vec![
        answer(
            400,
            "InvalidRequest",
            both(InvalidRequest),
            1,
            "does not accept",
        ),
        answer(400, "ExpiredToken", denied, 1, "expired"),
        answer(400, "InvalidToken", denied, 1, "token"),
        answer(401, "Unauthorized", denied, 1, "credentials"),
        answer(403, "AccessDenied", denied, 1, "s3:GetObject"),
        answer(403, "InvalidAccessKeyId", denied, 1, "access key"),
        answer(403, "SignatureDoesNotMatch", denied, 1, "secret"),
        answer(403, "InvalidObjectState", both(Unsupported), 1, "archived"),
        answer(404, "NoSuchKey", lost, 1, ""),
        answer(404, "NoSuchBucket", lost, 1, ""),
        answer(405, "MethodNotAllowed", both(Unsupported), 1, ""),
        answer(408, "RequestTimeout", both(Remote), all, "busy"),
        answer(412, "PreconditionFailed", both(Changed), 1, "changed"),
        answer(416, "InvalidRange", both(Changed), 1, ""),
        answer(429, "TooManyRequests", both(Remote), all, "busy"),
        answer(500, "InternalError", both(Remote), all, "failed"),
        answer(502, "BadGateway", both(Remote), all, "failed"),
        answer(503, "SlowDown", both(Remote), all, "busy"),
        answer(504, "GatewayTimeout", both(Remote), all, "failed"),
        Row {
            status: Some(301),
            code: Some("PermanentRedirect"),
            ..row(
                Fault::wrong_region("eu-west-1"),
                both(InvalidRequest),
                1,
                "region=eu-west-1",
            )
        },
        Row {
            status: Some(403),
            code: Some("RequestTimeTooSkewed"),
            ..row(Fault::clock_skew(), denied, 1, "clock")
        },
    ]
}

/// Connections that break, and malformed responses.
fn misbehaviour() -> Vec<Row> {
    let all = RETRIES + 1;
    vec![
        row(Fault::CutBeforeHeaders, both(Remote), all, "was lost"),
        row(Fault::ResetBeforeHeaders, both(Remote), all, "was lost"),
        row(Fault::StallHeaders, both(TimedOut), all, "read_timeout"),
        Row {
            status: Some(206),
            ..row(Fault::StallBody(10), both(TimedOut), all, "read_timeout")
        },
        Row {
            status: Some(206),
            ..row(Fault::CutBody(10), both(Remote), all, "")
        },
        row(Fault::ShortBody(40_000), both(Remote), all, "body ended"),
        row(Fault::LongBody(5), both(Remote), 1, "more than"),
        row(
            Fault::WrongContentRange(5),
            both(Remote),
            1,
            "different range",
        ),
        row(Fault::NoContentRange, both(Remote), 1, "no Content-Range"),
        row(
            Fault::Encoded("br"),
            both(Unsupported),
            1,
            "Content-Encoding: br",
        ),
        row(
            Fault::WrongTotal(77_777_777),
            (InvalidFormat, Changed),
            1,
            "77777777",
        ),
        Row {
            opening: None,
            ..row(Fault::WeakEtag, both(Changed), 1, "ETag changed")
        },
        row(Fault::BadLastModified, both(Remote), 1, "Last-Modified"),
    ]
}

/// Creates a site. The read timeout is short where silence is the fault, and long elsewhere, so
/// that a busy machine does not appear silent.
fn site(server: &Arc<FaultyServer>, fault: &Fault) -> Site {
    let is_silent = matches!(fault, Fault::StallHeaders | Fault::StallBody(_));
    let read_timeout = if is_silent { "1" } else { "60" };
    let mut site = faulty_at(server);
    let retries = RETRIES.to_string();
    for (key, value) in [
        ("retries", retries.as_str()),
        ("read_timeout", read_timeout),
    ] {
        site.options.set(key, value).expect("an option");
    }
    site.put("m.safetensors", &even("t", 1, 1, 400_000));
    site
}

/// Reads after a successful opening.
fn read(server: &Arc<FaultyServer>, site: &Site, fault: Fault) -> Option<Error> {
    let checkpoint = site.checkpoint("m.safetensors").expect("opens");
    server.forget_requests();
    server.fault(Rule::always(fault).from_byte(1));
    load(&checkpoint, options(|_| {})).err()
}

/// Returns the deviations of an error from its row, one line each.
fn check(
    row: &Row,
    phase: &str,
    error: &Error,
    kind: ErrorKind,
    server: &FaultyServer,
) -> Vec<String> {
    let hint = error.hint().unwrap_or_default();
    // A HEAD request for the length after a refusal does not count.
    let mut requests = server.requests();
    requests.retain(|request| request.operation == Operation::Get);
    let mut claims = vec![
        (error.kind() == kind, format!("is not {kind:?}")),
        (
            error.location() == Some("s3://models/m.safetensors"),
            "has a wrong location".to_owned(),
        ),
        (
            phase == "opening" || error.range().is_some(),
            "has no range".to_owned(),
        ),
        (!hint.is_empty(), "has no hint".to_owned()),
        (
            format!("{error} {hint}").contains(row.says),
            format!("does not say {:?}", row.says),
        ),
        (
            requests.len() == row.attempts as usize,
            format!("took {} requests", requests.len()),
        ),
    ];
    let last = requests
        .last()
        .map(|request| format!("REQ{:04}", request.order));
    match error.request() {
        Some(request) => claims.extend(claims_of(row, request, last.as_deref())),
        // Errors about wrong bytes need no request.
        None => claims.push((
            matches!(kind, Changed | InvalidFormat) && row.status.is_none(),
            "has no request".to_owned(),
        )),
    }
    let wrong = claims.into_iter().filter(|(holds, _)| !holds);
    let complaint = |(_, what)| format!("{phase}, {:?}: {what}\n    {error:?}", row.fault);
    wrong.map(complaint).collect()
}

fn claims_of(row: &Row, request: &FailedRequest, last: Option<&str>) -> Vec<(bool, String)> {
    let answered = row.status.is_some();
    let credentials = request.credentials.as_deref();
    vec![
        (
            request.operation == "GET",
            "has a wrong operation".to_owned(),
        ),
        (
            request.attempts == row.attempts,
            format!("counts {} attempts", request.attempts),
        ),
        (
            request.code.as_deref() == row.code,
            "has a wrong code".to_owned(),
        ),
        (
            !answered || request.status == row.status,
            "has a wrong status".to_owned(),
        ),
        (
            !answered || request.request_id.as_deref() == last,
            format!("is not of request {last:?}"),
        ),
        (
            !answered || credentials == Some("option access_key_id"),
            "names wrong credentials".to_owned(),
        ),
    ]
}

#[test]
fn persistent_failures_are_reported() {
    let mut complaints = Vec::new();
    let rows: Vec<_> = answers().into_iter().chain(misbehaviour()).collect();
    assert!(rows.len() >= 30, "the table has shrunk to {}", rows.len());
    for row in rows {
        let server = Arc::new(FaultyServer::start());
        let site = site(&server, &row.fault);
        match read(&server, &site, row.fault.clone()) {
            Some(error) => complaints.extend(check(&row, "reading", &error, row.reading, &server)),
            None => complaints.push(format!("reading, {:?}: loads", row.fault)),
        }
        server.clear_faults();

        let server = Arc::new(FaultyServer::start());
        let site = self::site(&server, &row.fault);
        server.fault(Rule::always(row.fault.clone()).on(Operation::Get));
        match (site.checkpoint("m.safetensors"), row.opening) {
            (Ok(_), None) => {}
            (Ok(_), Some(_)) => complaints.push(format!("{:?}: opens", row.fault)),
            (Err(error), kind) => {
                let kind = kind.unwrap_or(Changed);
                complaints.extend(check(&row, "opening", &error, kind, &server));
            }
        }
        server.clear_faults();
    }
    assert!(
        complaints.is_empty(),
        "{}\n{} complaints",
        complaints.join("\n"),
        complaints.len()
    );
}

/// Failed lists are reported like failed reads.
#[test]
fn failed_lists_are_reported() {
    let mut complaints = Vec::new();
    for (fault, kind, attempts, says) in [
        (
            Fault::status(403, "AccessDenied"),
            PermissionDenied,
            1,
            "s3:ListBucket",
        ),
        (
            Fault::status(404, "NoSuchBucket"),
            NotFound,
            1,
            "no such bucket",
        ),
        (Fault::slow_down(0), Remote, RETRIES + 1, "busy"),
        (
            Fault::wrong_region("eu-west-1"),
            InvalidRequest,
            1,
            "region=eu-west-1",
        ),
        (Fault::CutBeforeHeaders, Remote, RETRIES + 1, "was lost"),
        (Fault::StallHeaders, TimedOut, RETRIES + 1, "read_timeout"),
    ] {
        let server = Arc::new(FaultyServer::start());
        let site = site(&server, &fault);
        server.fault(Rule::always(fault.clone()).on(Operation::List));
        let error = site.checkpoint("folder").expect_err("cannot be listed");
        let text = format!("{error} {}", error.hint().unwrap_or_default());
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(text.contains(says), "{}", error.chain());
        assert_eq!(error.location(), Some("s3://models/folder"));
        if error.hint().is_none() {
            complaints.push(format!("{fault:?}: no hint: {}", error.chain()));
        }
        let request = error.request().expect("a request");
        assert_eq!(
            (&*request.operation, request.attempts),
            ("LIST", attempts),
            "{fault:?}"
        );
        assert_eq!(server.requests().len(), attempts as usize, "{fault:?}");
        server.clear_faults();
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// The retries of a load win over those of the store.
#[test]
fn load_retries_override_store_retries() {
    let server = Arc::new(FaultyServer::start());
    let fault = Fault::status(500, "InternalError");
    let site = site(&server, &fault);
    let checkpoint = site.checkpoint("m.safetensors").expect("opens");
    server.fault(Rule::always(fault));
    for (retries, attempts) in [
        (None, RETRIES + 1),
        (Some(0), 1),
        (Some(1), 2),
        (Some(4), 5),
    ] {
        server.forget_requests();
        let result: Result<_> = load(&checkpoint, options(|it| it.retries = retries));
        let error = result.expect_err("always fails");
        assert_eq!(error.request().expect("a request").attempts, attempts);
        assert_eq!(server.requests().len(), attempts as usize);
    }
}

/// Error responses of a web server, which have no codes, no request ids and other credentials.
/// A directory on a web server is searched for names that may be absent. A file of the caller is
/// not one of these.
#[test]
fn missing_ca_file_is_not_a_missing_checkpoint() {
    let location = Location::parse("https://localhost:9/model").unwrap();
    let mut missing = OpenOptions::default();
    missing.store.set("ca_file", "/nothing/here.pem").unwrap();
    let error = Checkpoint::open_with(&location, &missing).unwrap_err();
    assert_eq!(error.location(), Some("/nothing/here.pem"), "{error}");
    assert_eq!(error.message(), "cannot read the certificates of ca_file");
}

#[test]
fn web_server_refusals_are_classified() {
    for (status, kind, says) in [
        (401, PermissionDenied, "user:password"),
        (403, PermissionDenied, "signed URL"),
        (404, NotFound, "no such"),
        (500, Remote, "failed"),
    ] {
        let server = Arc::new(FaultyServer::start());
        let mut site = faulty_web_at(&server);
        site.options.set("retries", "1").expect("an option");
        server.fault(Rule::always(Fault::status(status, "")));
        let error = site.checkpoint("m.safetensors").expect_err("always fails");
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(error.chain().contains(says), "{}", error.chain());
        let request = error.request().expect("a request");
        assert_eq!(
            (request.status, request.code.as_deref()),
            (Some(status), None)
        );
        assert_eq!(request.credentials.as_deref(), Some("anonymous"));
    }
}
