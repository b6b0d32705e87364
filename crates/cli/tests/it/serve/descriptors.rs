//! Answers of a server that may open few files.

use std::fs;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::{Reply, Server, send};

/// Lets a server open more and more files, from none, until its answer is not a refusal. Returns
/// that answer and the number of refusals.
pub(super) fn ask_with_few(server: &Server, path: &str, headers: &[&str]) -> (Reply, u32) {
    let mut stream = server.connect();
    let mut ask = |path: &str, headers: &[&str]| {
        send(&mut stream, "GET", path, headers);
        Reply::read(&mut stream, false)
    };
    // The connection is there before the limit is.
    assert_eq!(ask("/metrics", &[]).status, 200);
    let process = Pid::from_child(&server.child);
    let limits = getrlimit(Resource::Nofile);
    let mut refused = 0;
    let answer = loop {
        let limit = Rlimit {
            current: Some(3 + u64::from(refused)),
            ..limits
        };
        prlimit(Some(process), Resource::Nofile, limit).unwrap();
        let reply = ask(path, headers);
        if reply.status != 503 {
            break reply;
        }
        assert_eq!(reply.header("retry-after"), "1");
        refused += 1;
    };
    prlimit(Some(process), Resource::Nofile, limits).unwrap();
    (answer, refused)
}

#[test]
fn list_is_whole_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    fs::create_dir(folder.path().join("d")).unwrap();
    let server = Server::start(folder.path(), &[]);
    let whole = server.get("/?format=json");
    let (reply, refused) = ask_with_few(&server, "/?format=json", &[]);
    assert_eq!((reply.status, reply.text()), (200, whole.text()));
    assert!(refused > 2);
}
