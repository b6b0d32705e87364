//! Proxy before a server that fails on command: each connection carries one request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

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
}

/// Requests that fail: those whose request line contains a text, a number of times.
type Rules = Arc<Mutex<Vec<(&'static str, Failure, usize)>>>;

pub(crate) struct Proxy {
    pub(crate) url: String,
    rules: Rules,
}

impl Proxy {
    pub(crate) fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("has one"));
        let rules = Rules::default();
        let (shared, server) = (Arc::clone(&rules), server.to_owned());
        // It ends with the process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (rules, server) = (Arc::clone(&shared), server.clone());
                std::thread::spawn(move || serve(client, &server, &rules));
            }
        });
        Self { url, rules }
    }

    /// Lets the next requests with this text in their first line fail.
    pub(crate) fn fail(&self, line: &'static str, failure: Failure, times: usize) {
        let mut rules = self.rules.lock().expect("no thread panics");
        rules.push((line, failure, times));
    }

    /// Returns how many failures have not happened.
    pub(crate) fn left(&self) -> usize {
        let mut rules = self.rules.lock().expect("no thread panics");
        rules.drain(..).map(|(_, _, times)| times).sum()
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
fn serve(mut client: TcpStream, server: &str, rules: &Rules) -> Option<()> {
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
    let failure = failure(rules, &head[0]);
    let mut bytes = vec![0; body];
    if failure == Some(Failure::LostRequest) {
        let _ = reader.read_exact(&mut bytes[..body / 2]);
        return None;
    }
    reader.read_exact(&mut bytes).ok()?;
    let error = match failure {
        Some(Failure::Throttled) => Some(("503 Slow Down", "SlowDown")),
        Some(Failure::Expired) => Some(("400 Bad Request", "ExpiredToken")),
        _ => None,
    };
    if let Some((status, code)) = error {
        let text = format!("<Error><Code>{code}</Code><Message>as the test says</Message></Error>");
        let len = text.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n{text}"
        );
        return client.write_all(answer.as_bytes()).ok();
    }
    let mut upstream = TcpStream::connect(server).ok()?;
    upstream.write_all(head.concat().as_bytes()).ok()?;
    upstream.write_all(b"connection: close\r\n\r\n").ok()?;
    upstream.write_all(&bytes).ok()?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).ok()?;
    if failure == Some(Failure::LostAnswer) {
        return None;
    }
    client.write_all(&answer).ok()
}
