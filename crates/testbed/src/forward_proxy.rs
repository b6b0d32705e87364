//! Proxy for HTTP that forwards requests, opens tunnels, and records where they lead.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Longest head of a request, bytes.
const HEAD_MAX: usize = 64 << 10;

/// Proxy on a free loopback port. Its threads end with the process.
#[derive(Debug)]
pub struct ForwardProxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl ForwardProxy {
    /// Starts a proxy.
    ///
    /// # Panics
    ///
    /// If the system has no free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the port is bound");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&asked);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let asked = Arc::clone(&shared);
                // A client that goes away ends its own connection only.
                thread::spawn(move || serve(client, &asked));
            }
        });
        Self { address, asked }
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns hosts and ports that were asked for since the last call, in order.
    pub fn asked(&self) -> Vec<String> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut asked)
    }
}

fn serve(mut client: TcpStream, asked: &Mutex<Vec<String>>) -> io::Result<()> {
    let head = head(&mut client)?;
    let text = String::from_utf8_lossy(&head).into_owned();
    let (line, rest) = text.split_once("\r\n").unwrap_or((&text, ""));
    let mut words = line.split(' ');
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let is_tunnel = method == "CONNECT";
    let (authority, path) = if is_tunnel {
        (target, "")
    } else {
        let target = target.strip_prefix("http://").unwrap_or_default();
        target.split_at(target.find('/').unwrap_or(target.len()))
    };
    asked
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(authority.to_owned());
    let port = if authority.contains(':') { "" } else { ":80" };
    let Ok(mut server) = TcpStream::connect(format!("{authority}{port}")) else {
        return client
            .write_all(b"HTTP/1.1 502 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    if is_tunnel {
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    } else {
        // One request for each connection: the next one may be for another server.
        let head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{rest}");
        server.write_all(head.as_bytes())?;
        if method == "GET" || method == "HEAD" {
            // The client must not reuse the connection, which the server may keep open.
            let answer = self::head(&mut server)?;
            let line = answer.iter().position(|byte| *byte == b'\n');
            let (line, rest) = answer.split_at(line.map_or(0, |at| at + 1));
            client.write_all(&[line, b"Connection: close\r\n", rest].concat())?;
            io::copy(&mut server, &mut client)?;
            return client.shutdown(Shutdown::Both);
        }
    }
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        to_server.shutdown(Shutdown::Write)
    });
    io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}

/// Reads up to the empty line after the head, one byte at a time: what follows is not the proxy's.
fn head(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_MAX {
        client.read_exact(&mut byte)?;
        head.extend(byte);
    }
    Ok(head)
}
