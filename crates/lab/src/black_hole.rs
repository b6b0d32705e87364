//! An address where connections are asked for and never made: what a firewall that drops packets looks like.
//!
//! A listener that nobody accepts from, with its queue filled up. The kernel then drops what asks for one more connection.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A connection on the loopback is made at once, or it will not be.
const PATIENCE: Duration = Duration::from_millis(100);

/// More than the queue of any listener of the standard library holds.
const QUEUE_MAX: usize = 5000;

/// A port of `127.0.0.1` that says nothing, not even no, as long as this lives.
#[derive(Debug)]
pub struct BlackHole {
    address: SocketAddr,
    _queue: Vec<TcpStream>,
    _listener: TcpListener,
}

impl BlackHole {
    /// Takes a free port and fills its queue.
    ///
    /// # Errors
    ///
    /// The system has no port, or no limit of connections that wait.
    pub fn start() -> Result<Self, String> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(|error| format!("no port on the loopback: {error}"))?;
        let address = listener
            .local_addr()
            .map_err(|error| format!("a listener without an address: {error}"))?;
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, PATIENCE) {
            queue.push(stream);
            if queue.len() > QUEUE_MAX {
                return Err(format!("{QUEUE_MAX} connections wait and more may"));
            }
        }
        Ok(Self {
            address,
            _queue: queue,
            _listener: listener,
        })
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn black_hole_connection_times_out() {
        let hole = BlackHole::start().expect("a port");
        let error = TcpStream::connect_timeout(&hole.address, PATIENCE).expect_err("dropped");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    }
}
