//! Addresses on this machine.

use std::net::{Ipv4Addr, TcpListener};

/// Returns ports that are free now. Another process may take one before the server does, which then
/// starts again on others.
pub(super) fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT], String> {
    let mut ports = [0; COUNT];
    // Held until all are known, or the same port would be found twice.
    let mut listeners = Vec::with_capacity(COUNT);
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(|error| format!("no free port: {error}"))?;
        *port = listener
            .local_addr()
            .map_err(|error| format!("no free port: {error}"))?
            .port();
        listeners.push(listener);
    }
    Ok(ports)
}

/// Formats host and port.
pub(super) fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}
