//! Proxy before a server that fails on command: each connection carries one request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Failure of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The request arrives, and its response is lost.
    LostAnswer,
    /// The connection is closed in the middle of the request.
    LostRequest,
    /// 503, `SlowDown`.
    Throttled,
    /// 400, `ExpiredToken`.
    Expired,
    /// 409, `ConditionalRequestConflict`.
    Conflicting,
    /// The request waits in the proxy until [`Proxy::release`].
    Held,
    /// The connection is closed, and the request arrives with [`Proxy::release`].
    Late,
    /// The request waits for a moment in the proxy.
    Slow,
    /// Lists say that all objects are years old.
    Aged,
}

/// Requests that fail: those whose request line contains a text, a number of times.
type Rules = Mutex<Vec<(&'static str, Failure, usize)>>;

#[derive(Default)]
struct Shared {
    rules: Rules,
    /// Requests that wait, and whether they may go on.
    held: Mutex<(usize, bool)>,
    changed: Condvar,
    /// First lines of the requests that have been answered, in this order.
    answered: Mutex<Vec<String>>,
}

pub(crate) struct Proxy {
    pub(crate) url: String,
    shared: Arc<Shared>,
}

impl Proxy {
    pub(crate) fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("has one"));
        let shared = Arc::new(Shared::default());
        let (state, server) = (Arc::clone(&shared), server.to_owned());
        // It ends with the process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (state, server) = (Arc::clone(&state), server.clone());
                std::thread::spawn(move || serve(client, &server, &state));
            }
        });
        Self { url, shared }
    }

    /// Lets the next requests with this text in their first line fail.
    pub(crate) fn fail(&self, line: &'static str, failure: Failure, times: usize) {
        let mut rules = self.shared.rules.lock().expect("no thread panics");
        rules.push((line, failure, times));
    }

    /// Waits until a request is held.
    pub(crate) fn wait_for_held(&self) {
        let held = self.shared.held.lock().expect("no thread panics");
        let none = |held: &mut (usize, bool)| held.0 == 0;
        let waited = self.shared.changed.wait_while(held, none);
        drop(waited.expect("no thread panics"));
    }

    /// Lets all held requests go on, and waits until they have been answered.
    pub(crate) fn release(&self) {
        let mut held = self.shared.held.lock().expect("no thread panics");
        held.1 = true;
        self.shared.changed.notify_all();
        let some = |held: &mut (usize, bool)| held.0 > 0;
        let waited = self.shared.changed.wait_while(held, some);
        waited.expect("no thread panics").1 = false;
    }

    /// Returns the first lines of the requests that have been answered.
    pub(crate) fn answered(&self) -> Vec<String> {
        let answered = self.shared.answered.lock().expect("no thread panics");
        answered.clone()
    }

    /// Returns how many failures have not happened.
    pub(crate) fn left(&self) -> usize {
        let mut rules = self.shared.rules.lock().expect("no thread panics");
        rules.drain(..).map(|(_, _, times)| times).sum()
    }
}

impl Shared {
    fn note(&self, line: &str) {
        let mut answered = self.answered.lock().expect("no thread panics");
        answered.push(line.to_owned());
    }

    fn hold(&self) {
        let mut held = self.held.lock().expect("no thread panics");
        held.0 += 1;
        self.changed.notify_all();
        let closed = |held: &mut (usize, bool)| !held.1;
        let waited = self.changed.wait_while(held, closed);
        drop(waited.expect("no thread panics"));
    }
}

/// Gives the times of all objects in a list the year 2001.
fn age(answer: &mut [u8]) {
    let tag = b"<LastModified>";
    let is_tag = |at: &usize| answer[*at..].starts_with(tag);
    let tags: Vec<_> = (0..answer.len()).filter(is_tag).collect();
    for at in tags {
        answer[at + tag.len()..][..4].copy_from_slice(b"2001");
    }
}

fn failure(rules: &Rules, line: &str) -> Option<Failure> {
    let mut rules = rules.lock().expect("no thread panics");
    let mut due = rules.iter_mut().filter(|rule| rule.2 > 0);
    let rule = due.find(|(text, ..)| text.split(' ').all(|part| line.contains(part)))?;
    rule.2 -= 1;
    Some(rule.1)
}

/// Passes one request and its response on. Either side may close its connection.
fn serve(mut client: TcpStream, server: &str, shared: &Shared) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let (mut head, mut body) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(len) = lower.strip_prefix("content-length:") {
            body = len.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
        head.push(line);
    }
    let failure = failure(&shared.rules, &head[0]);
    let mut bytes = vec![0; body];
    if failure == Some(Failure::LostRequest) {
        let _ = reader.read_exact(&mut bytes[..body / 2]);
        return None;
    }
    reader.read_exact(&mut bytes).ok()?;
    let error = match failure {
        Some(Failure::Throttled) => Some(("503 Slow Down", "SlowDown")),
        Some(Failure::Expired) => Some(("400 Bad Request", "ExpiredToken")),
        Some(Failure::Conflicting) => Some(("409 Conflict", "ConditionalRequestConflict")),
        _ => None,
    };
    if let Some((status, code)) = error {
        let text = format!("<Error><Code>{code}</Code><Message>as the test says</Message></Error>");
        let len = text.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n{text}"
        );
        shared.note(&head[0]);
        return client.write_all(answer.as_bytes()).ok();
    }
    match failure {
        Some(Failure::Slow) => std::thread::sleep(Duration::from_millis(500)),
        Some(Failure::Late) => {
            client.shutdown(Shutdown::Both).ok()?;
            shared.hold();
        }
        Some(Failure::Held) => shared.hold(),
        _ => {}
    }
    let mut upstream = TcpStream::connect(server).ok()?;
    upstream.write_all(head.concat().as_bytes()).ok()?;
    upstream.write_all(b"connection: close\r\n\r\n").ok()?;
    upstream.write_all(&bytes).ok()?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).ok()?;
    shared.note(&head[0]);
    if matches!(failure, Some(Failure::Held | Failure::Late)) {
        shared.held.lock().expect("no thread panics").0 -= 1;
        shared.changed.notify_all();
    }
    if failure == Some(Failure::Aged) {
        age(&mut answer);
    }
    if failure == Some(Failure::LostAnswer) {
        return None;
    }
    client.write_all(&answer).ok()
}
