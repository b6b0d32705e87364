//! Address at which connections are never established, like that of a host behind a firewall that
//! drops packets.
//!
//! A listener that never accepts, with a full queue. The kernel then drops further connection
//! requests.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Connections on the loopback are established at once, or never.
const PATIENCE: Duration = Duration::from_millis(100);

/// Upper bound of the queue of any listener of the standard library.
const QUEUE_MAX: usize = 5000;

/// Port of `127.0.0.1` that neither accepts nor refuses connections, as long as this value lives.
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
    /// The system has no free port, or no limit of waiting connections.
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
