//! Servers that echo what they receive: errors show no secret, whatever the form in which it is
//! echoed.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tload::{Checkpoint, Location};

use crate::listener::Listener;
use crate::secrets::{MARK, Told, show_error};
use crate::sites;

/// Characters of `hunter2` in base64 at each of the three offsets where it may begin.
const MARK_IN_BASE64: [&str; 3] = ["aHVudGVyM", "h1bnRlcj", "odW50ZXIy"];

/// A secret, and the URL and options that open a store with it.
struct Planted {
    secret: &'static str,
    url: String,
    options: Vec<(&'static str, String)>,
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn planted(server: &str) -> Vec<Planted> {
    let host = server.strip_prefix("http://").expect("plain");
    let of = |secret, url: &str, options: &[(&'static str, &str)]| Planted {
        secret,
        url: url.to_owned(),
        options: options
            .iter()
            .map(|(key, value)| (*key, (*value).to_owned()))
            .collect(),
    };
    let endpoint = ("endpoint", server);
    let (s3, gs, web) = (
        "s3://models/m",
        "gs://models/m",
        format!("{server}/m.safetensors"),
    );
    let account = [("endpoint", server), ("account", "account")];
    let azure = |secret, key, value| {
        of(
            secret,
            "az://models/m",
            &[account[0], account[1], (key, value)],
        )
    };
    let keys = [
        endpoint,
        ("access_key_id", "AKIAhunter2hunter2"),
        ("secret_access_key", "hunter2/secret+of=S3"),
        ("session_token", "hunter2//session+token=="),
    ];
    vec![
        of("AKIAhunter2hunter2", s3, &keys),
        of("hunter2/secret+of=S3", s3, &keys),
        of("hunter2//session+token==", s3, &keys),
        of(
            "hunter2 a header",
            s3,
            &[
                endpoint,
                ("anonymous", "true"),
                ("header.x-team", "hunter2 a header"),
            ],
        ),
        of(
            "ya29.hunter2-bearer",
            gs,
            &[endpoint, ("token", "ya29.hunter2-bearer")],
        ),
        azure(
            "hunter2/signature+of=",
            "sas",
            "sv=1&sig=hunter2%2Fsignature%2Bof%3D",
        ),
        azure("eyJhunter2.bearer", "token", "eyJhunter2.bearer"),
        of(
            "hf_hunter2Hunter2",
            "hf://org/model",
            &[endpoint, ("token", "hf_hunter2Hunter2")],
        ),
        of(
            "hunter2/signed+url",
            &format!("{web}?v=1&X-Amz-Signature=hunter2%2Fsigned%2Burl"),
            &[],
        ),
        of(
            "hunter2-of-a-folder",
            &format!("{server}/models?auth=hunter2-of-a-folder"),
            &[],
        ),
        of(
            "hunter2:p@ss",
            &format!("http://user:hunter2%3Ap%40ss@{host}/m.safetensors"),
            &[],
        ),
        of(
            "hunter2-of-a-header",
            &web,
            &[("header.authorization", "Bearer hunter2-of-a-header")],
        ),
    ]
}

/// Returns the forms in which a server may echo a secret.
fn forms(secret: &str) -> Vec<String> {
    let each_byte = secret.bytes().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "%{byte:02x}");
        text
    });
    vec![
        secret.to_owned(),
        secret.to_uppercase(),
        utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string(),
        each_byte,
        STANDARD.encode(secret),
        STANDARD.encode(format!("user:{secret}")),
        URL_SAFE_NO_PAD.encode(format!("u{secret}&")),
    ]
}

/// Returns responses with a text in each place from which errors are built.
#[expect(clippy::too_many_lines, reason = "a table")]
fn answers(text: &str) -> Vec<String> {
    // Codes, regions and hosts are names: a text that is not a name cannot be part of one.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let name = if text.bytes().all(is_name) {
        text
    } else {
        "name"
    };
    let xml = text.replace('&', "&amp;");
    let answer = |status: &str, headers: &str, body: &str| {
        let len = body.len();
        format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {len}\r\nConnection: close\r\n\r\n{body}"
        )
    };
    let mut answers = Vec::new();
    let statuses = [403, 401, 404, 503];
    // One status is enough for texts that are not names.
    let statuses = if text == name {
        &statuses[..]
    } else {
        &statuses[..1]
    };
    for status in statuses {
        for body in [
            format!(
                "<Error><Code>Denied</Code><Message>Invalid user token {xml}</Message></Error>"
            ),
            format!("<Error><Code>{name}</Code><Region>{name}</Region></Error>"),
            format!("<Error><Message>https://h/?auth={xml} is wrong</Message></Error>"),
            serde_json::json!({"error": format!("Invalid {text}"), "error_description": text})
                .to_string(),
            serde_json::json!({"error": {"status": name, "message": format!("({text})")}})
                .to_string(),
            text.to_owned(),
        ] {
            answers.push(answer(&format!("{status} {text}"), "", &body));
        }
    }
    for header in [
        "x-amz-request-id",
        "x-request-id",
        "x-ms-error-code",
        "x-error-code",
        "x-error-message",
        "x-amz-bucket-region",
        "retry-after",
        "www-authenticate",
    ] {
        answers.push(answer("403 No", &format!("{header}: {text}\r\n"), ""));
    }
    if text == name && text.starts_with(MARK) {
        // One of each: name resolution is slow.
        let to = format!("Location: http://{text}@{text}.invalid/{text}\r\n");
        answers.push(answer("302 Found", &to, ""));
    }
    for to in [
        format!("{text}://x"),
        format!("http://127.0.0.1:1/?x={text}"),
        format!("/{text}"),
    ] {
        answers.push(answer("302 Found", &format!("Location: {to}\r\n"), ""));
    }
    for headers in [
        format!("Content-Range: bytes {text}\r\n"),
        format!("Content-Range: bytes 0-3/4\r\nLast-Modified: {text}\r\n"),
        format!("Content-Range: bytes 0-3/4\r\nETag: \"{text}\"\r\nx-request-id: {text}\r\n"),
        format!("Content-Range: bytes 9-12/44\r\nx-amz-request-id: {text}\r\n"),
    ] {
        answers.push(answer("206 Partial", &headers, "abcd"));
    }
    // A hub's list of the files in a repository.
    answers.push(answer(
        "200 OK",
        "",
        &format!("{{\"sha\": {text:?}, \"siblings\": []}}"),
    ));
    let sha = "c".repeat(40);
    let listed = serde_json::json!({"sha": sha, "siblings": [{"rfilename": format!("../{text}")}]});
    answers.push(answer("200 OK", "", &listed.to_string()));
    answers.push(format!("HTTP/1.1 {text}\r\n\r\n"));
    answers.push(format!("{text}\r\n\r\n"));
    answers
}

#[test]
fn errors_show_no_secret_echoed_by_server() {
    let told = Told::of_process();
    let (sender, next) = std::sync::mpsc::channel::<String>();
    let current = std::sync::Mutex::new((next, String::new()));
    let server = Listener::start(move |_| {
        let mut current = current.lock().expect("one thread");
        while let Ok(answer) = current.0.try_recv() {
            current.1 = answer;
        }
        current.1.clone()
    });
    for planted in planted(&server.url()) {
        let mut store = sites::options(&[("retries", "0"), ("read_timeout", "2")]);
        for (key, value) in &planted.options {
            store.set(key, value.as_str()).expect("an option");
        }
        let location = Location::parse(&planted.url).expect("a valid URL");
        for form in forms(planted.secret) {
            for answer in answers(&form) {
                sender.send(answer.clone()).expect("the server runs");
                let error = Checkpoint::open_with(&location, &store).expect_err("not a checkpoint");
                let mut shown = String::new();
                show_error(&mut shown, &error);
                let lower = shown.to_ascii_lowercase();
                let is_shown = lower.contains(MARK)
                    || lower.contains(&form.to_ascii_lowercase())
                    || MARK_IN_BASE64.iter().any(|mark| shown.contains(mark));
                assert!(
                    !is_shown,
                    "{} as {form}, echoed in\n{answer}\nis shown in\n{shown}",
                    planted.url
                );
            }
        }
    }
    assert!(
        !told.told().to_ascii_lowercase().contains(MARK),
        "shown to log listeners"
    );
}

/// The text around a secret is helpful and stays.
#[test]
fn server_text_around_masked_secret_is_shown() {
    let body = "<Error><Code>Denied</Code><Message>Invalid user token hf_hunter2hunter2, ask for another</Message></Error>";
    let answer = format!(
        "HTTP/1.1 403 No\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let server = Listener::start(move |_| answer.clone());
    let store = sites::options(&[
        ("header.authorization", "Bearer hf_hunter2hunter2"),
        ("retries", "0"),
    ]);
    let location = Location::parse(&format!("{}/m.safetensors", server.url())).expect("a URL");
    let error = Checkpoint::open_with(&location, &store).expect_err("denied");
    let chain = error.chain();
    assert!(
        chain.contains("Invalid user token ***, ask for another"),
        "{chain}"
    );
    assert_eq!(
        error.request().and_then(|request| request.code.as_deref()),
        Some("Denied")
    );
}
