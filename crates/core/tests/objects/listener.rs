//! A server that records each request as it came, and gives an answer that a test wrote.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// A listener on a free port of the loopback. Its thread ends with the process.
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    received: Receiver<Vec<u8>>,
}

impl Listener {
    /// Answers every request with what `answer` makes of it, and closes the connection.
    pub(crate) fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (sender, received) = channel();
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, sender) = (Arc::clone(&answer), sender.clone());
                // A connection that is not used yet keeps no other one waiting.
                thread::spawn(move || {
                    let head = head(&stream);
                    let text = String::from_utf8_lossy(&head).into_owned();
                    // The request counts before it is answered: a client with the answer can tell.
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

    /// Heads of the requests so far, and whatever else was sent.
    pub(crate) fn received(&self) -> Vec<String> {
        let heads = self.received.try_iter();
        heads
            .map(|head| String::from_utf8_lossy(&head).into_owned())
            .collect()
    }
}

/// Bytes up to an empty line, or all that came before something that is no request.
fn head(mut stream: &TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    let mut bytes = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        let len = stream.read(&mut bytes).unwrap_or(0);
        head.extend_from_slice(&bytes[..len]);
        // TLS begins with a byte that no method does.
        if len == 0 || head[0] == 0x16 {
            break;
        }
    }
    head
}
