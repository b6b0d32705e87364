//! Server that records each request verbatim and sends a response written by the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// Listener on a free loopback port. Its thread ends with the process.
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    received: Receiver<Vec<u8>>,
}

impl Listener {
    /// Answers every request with the result of `answer`, and closes the connection.
    pub(crate) fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (sender, received) = channel();
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, sender) = (Arc::clone(&answer), sender.clone());
                // An unused connection must not block the others.
                thread::spawn(move || {
                    let head = head(&stream);
                    let text = String::from_utf8_lossy(&head).into_owned();
                    // Recorded before the response is sent, so that a client with the response
                    // finds it.
                    if head.is_empty() || sender.send(head).is_err() {
                        return;
                    }
                    let _ = (&stream).write_all(answer(&text).as_bytes());
                });
            }
        });
        Self { address, received }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the heads of the requests so far, and any other bytes received.
    pub(crate) fn received(&self) -> Vec<String> {
        let heads = self.received.try_iter();
        heads
            .map(|head| String::from_utf8_lossy(&head).into_owned())
            .collect()
    }
}

/// Returns the bytes up to an empty line, or all bytes received if they are not an HTTP request.
fn head(mut stream: &TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    let mut bytes = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        let len = stream.read(&mut bytes).unwrap_or(0);
        head.extend_from_slice(&bytes[..len]);
        // TLS begins with a byte that no HTTP method begins with.
        if len == 0 || head[0] == 0x16 {
            break;
        }
    }
    head
}
