//! Token services of workload identity federation: the identity provider's, which gives a subject
//! token, and Google's, which exchange it and give tokens of service accounts. Each checks what it
//! is sent, as the documents of Google and RFC 8693 demand.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::{Value, json};

/// Audience that tokens are exchanged for.
const AUDIENCE: &str =
    "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q";

/// Service account whose tokens are given.
const ACCOUNT: &str = "reader@project.iam.gserviceaccount.com";

/// Request to one of the services.
#[derive(Clone, Debug)]
pub struct TokenRequest {
    /// Path, without host.
    pub path: String,
    /// Headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body.
    pub body: String,
}

/// Services on one free loopback port. Their threads end with the process.
#[derive(Debug)]
pub struct TokenService {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    subject: String,
    /// Lifetime of tokens, seconds.
    lifetime: u64,
    /// Number of the last token that was given.
    given: usize,
    failures: Vec<u16>,
    requests: Vec<TokenRequest>,
}

impl TokenService {
    /// Starts services that accept the subject token `subject-0`.
    ///
    /// # Panics
    ///
    /// If the system has no free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the port is bound");
        let state = Arc::new(Mutex::new(State {
            subject: "subject-0".to_owned(),
            lifetime: 3600,
            given: 0,
            failures: Vec::new(),
            requests: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                // A client that goes away ends its own connection only.
                thread::spawn(move || serve(&stream, &state));
            }
        });
        Self { address, state }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the URL of a path here.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the file of an external account whose subject token is at `source`. With
    /// `impersonates`, the token is exchanged for one of a service account.
    pub fn file(&self, source: &Value, impersonates: bool) -> Value {
        let mut file = json!({
            "type": "external_account",
            "audience": AUDIENCE,
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": self.url("/v1/token"),
            "credential_source": source,
        });
        if impersonates {
            let path = format!("/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken");
            file["service_account_impersonation_url"] = self.url(&path).into();
            file["service_account_impersonation"] = json!({ "token_lifetime_seconds": 1200 });
        }
        file
    }

    /// Accepts another subject token from now on.
    pub fn accept(&self, subject: &str) {
        subject.clone_into(&mut self.state().subject);
    }

    /// Sets the lifetime of tokens that are given from now on, seconds.
    pub fn set_lifetime(&self, seconds: u64) {
        self.state().lifetime = seconds;
    }

    /// Answers the next requests with these statuses.
    pub fn fail(&self, statuses: &[u16]) {
        self.state().failures = statuses.to_vec();
    }

    /// Returns all requests since the last call.
    pub fn requests(&self) -> Vec<TokenRequest> {
        std::mem::take(&mut self.state().requests)
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let request = read(stream)?;
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let failure = (!state.failures.is_empty()).then(|| state.failures.remove(0));
    let (status, body) = match failure {
        Some(status) => (status, json!({ "error": "internal_failure" })),
        None => state.answer(&request),
    };
    state.requests.push(request);
    drop(state);
    let body = body
        .as_str()
        .map_or_else(|| body.to_string(), str::to_owned);
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn read(stream: &TcpStream) -> io::Result<TokenRequest> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let mut lines = lines.into_iter();
    let first = lines.next().unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let headers: BTreeMap<_, _> = lines
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        })
        .collect();
    let len = headers
        .get("content-length")
        .and_then(|len| len.parse().ok())
        .unwrap_or(0);
    let mut body = String::new();
    reader.take(len).read_to_string(&mut body)?;
    Ok(TokenRequest {
        path,
        headers,
        body,
    })
}

impl State {
    fn answer(&mut self, request: &TokenRequest) -> (u16, Value) {
        match &*request.path {
            "/subject" => (200, Value::String(format!("{}\n", self.subject))),
            "/subject.json" => {
                let is_asked = request.headers.get("x-provider");
                if is_asked.is_none_or(|value| value != "hunter2header") {
                    return (403, json!({ "error": "forbidden" }));
                }
                (200, json!({ "value": self.subject }))
            }
            "/v1/token" => self.exchange(&request.body),
            path if path.ends_with(":generateAccessToken") => self.impersonate(request),
            _ => (404, json!({ "error": "not_found" })),
        }
    }

    fn exchange(&mut self, body: &str) -> (u16, Value) {
        let form = form(body);
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        for (name, wanted) in [
            (
                "grant_type",
                "urn:ietf:params:oauth:grant-type:token-exchange",
            ),
            (
                "requested_token_type",
                "urn:ietf:params:oauth:token-type:access_token",
            ),
            ("audience", AUDIENCE),
            ("subject_token_type", "urn:ietf:params:oauth:token-type:jwt"),
        ] {
            if field(name) != wanted {
                return refused("invalid_request", name);
            }
        }
        if field("subject_token") != self.subject {
            // As a careless service would say it.
            return refused("invalid_grant", field("subject_token"));
        }
        if !field("scope").starts_with("https://www.googleapis.com/auth/") {
            return refused("invalid_scope", field("scope"));
        }
        self.given += 1;
        let token = json!({
            "access_token": format!("hunter2federated-{}", self.given),
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": self.lifetime,
        });
        (200, token)
    }

    fn impersonate(&mut self, request: &TokenRequest) -> (u16, Value) {
        let bearer = format!("Bearer hunter2federated-{}", self.given);
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        if request.headers.get("authorization") != Some(&bearer) || !request.path.contains(ACCOUNT)
        {
            return (401, json!({ "error": { "status": "UNAUTHENTICATED" } }));
        }
        if body["lifetime"] != "1200s" || body["scope"][0].as_str().is_none() {
            return (400, json!({ "error": { "status": "INVALID_ARGUMENT" } }));
        }
        let token = json!({
            "accessToken": format!("hunter2account-{}", self.given),
            "expireTime": "2099-01-01T00:00:00Z",
        });
        (200, token)
    }
}

fn refused(error: &str, description: &str) -> (u16, Value) {
    let body = json!({ "error": error, "error_description": description });
    (400, body)
}

/// Parses a form.
fn form(body: &str) -> BTreeMap<String, String> {
    let pairs = body.split('&').filter_map(|pair| pair.split_once('='));
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((first, others)) = rest.split_first() {
            let digits = others.get(..2).and_then(|it| std::str::from_utf8(it).ok());
            let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            if let Some(value) = value.filter(|_| *first == b'%') {
                bytes.push(value);
                rest = &others[2..];
            } else {
                bytes.push(*first);
                rest = others;
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    pairs
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}
