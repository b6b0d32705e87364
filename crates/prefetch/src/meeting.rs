//! The socket that the reader listens on, and that a load connects to when it begins. Nothing is
//! sent. Its abstract name needs no file and ends with the reader.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

/// Environment variable that names the socket, for the command and all that it starts.
pub const VARIABLE: &str = "TLOAD_PREFETCH";

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Connections that wait while the reader looks at another one.
const WAITING: i32 = 16;

/// Listens under a new name, and returns it too.
pub(crate) fn open() -> io::Result<(OwnedFd, String)> {
    let name = format!("tload-prefetch-{:016x}", fastrand::u64(..));
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    bind(&socket, &address(name.as_bytes())?)?;
    listen(&socket, WAITING)?;
    Ok((socket, name))
}

/// Returns whether a process of the same user has connected to `socket`.
pub(crate) fn has_begun(socket: impl AsFd) -> bool {
    loop {
        match accept_with(&socket, FLAGS) {
            Ok(peer) => {
                // Anyone in the network namespace can connect, and is let go.
                if is_same_user(&peer) {
                    return true;
                }
            }
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => return false,
        }
    }
}

/// Tells the reader that `tload exec` has started for this process, if it has, that a load begins.
/// Does not wait, and nothing is said if there is no reader any more.
pub fn load_begins() {
    if let Some(name) = std::env::var_os(VARIABLE) {
        let met = meet(&name);
        tracing::debug!(?met, "told the reader of tload exec that a load begins");
    }
}

fn meet(name: &OsStr) -> io::Result<()> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    connect(&socket, &address(name.as_bytes())?)?;
    Ok(())
}

#[cfg(target_os = "linux")]
fn address(name: &[u8]) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name)?)
}

/// Other systems have no abstract names.
#[cfg(not(target_os = "linux"))]
fn address(_name: &[u8]) -> io::Result<SocketAddrUnix> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
fn is_same_user(peer: &OwnedFd) -> bool {
    let credentials = rustix::net::sockopt::socket_peercred(peer);
    credentials.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

#[cfg(not(target_os = "linux"))]
fn is_same_user(_peer: &OwnedFd) -> bool {
    true
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn load_is_seen_once_and_no_reader_is_no_failure() {
        let (socket, name) = open().expect("listens");
        assert!(!has_begun(&socket));
        meet(OsStr::new(&name)).expect("connects");
        assert!(has_begun(&socket) && !has_begun(&socket));
        drop(socket);
        assert!(meet(OsStr::new(&name)).is_err());
    }
}
