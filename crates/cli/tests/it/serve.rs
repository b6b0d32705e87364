//! `tload serve`: the server as a process of its own, asked by sockets, curl and tload itself.

mod configured;
mod descriptors;
mod loads;
mod passed_on;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::interrupt::signal;
use crate::{command, run, stderr};

/// Time longer than any response takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// More bytes than the buffers of both ends of a connection hold.
const LARGE: usize = 64 << 20;

/// A running server, killed when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(path: &Path, arguments: &[&str]) -> Self {
        Self::start_with(path, arguments, &[])
    }

    fn start_with(path: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = command(["serve", path.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
        let mut child = command
            .args(arguments)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let url = line.trim_end().rsplit(' ').next().unwrap_or_default();
        let url = url.strip_suffix('/').unwrap_or(url).to_owned();
        assert!(url.starts_with("http"), "{line:?}");
        Self { child, url }
    }

    fn connect(&self) -> TcpStream {
        let address = self.url.split("//").nth(1).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request over a connection of its own.
    fn ask(&self, method: &str, path: &str, headers: &[&str]) -> Reply {
        let mut stream = self.connect();
        send(&mut stream, method, path, headers);
        Reply::read(&mut stream, method == "HEAD")
    }

    fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[])
    }

    /// Returns the value of a metric.
    fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").text();
        let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
        text.lines().find_map(value).expect(name)
    }

    /// Stops the server as a service manager does.
    fn stop(self) -> Output {
        assert!(signal(&self.child, "TERM"), "it had ended");
        self.output()
    }

    /// Waits for the server's end.
    fn output(mut self) -> Output {
        let mut output = Output {
            status: self.child.wait().unwrap(),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_end(&mut output.stderr).unwrap();
        output
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn send(stream: &mut TcpStream, method: &str, path: &str, headers: &[&str]) {
    let lines = [&["Host: localhost"], headers].concat().join("\r\n");
    let head = format!("{method} {path} HTTP/1.1\r\n{lines}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
}

#[derive(Debug)]
struct Reply {
    status: u16,
    /// Names in lower case.
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Reply {
    fn read(stream: &mut TcpStream, is_head: bool) -> Self {
        let (status, headers) = read_head(stream);
        let len = headers
            .get("content-length")
            .map_or(0, |it| it.parse().unwrap());
        let mut body = vec![0; if is_head { 0 } else { len }];
        stream.read_exact(&mut body).unwrap();
        Self {
            status,
            headers,
            body,
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).expect(name)
    }
}

/// Reads a head byte by byte, so that the body stays in the socket.
fn read_head(stream: &mut TcpStream) -> (u16, BTreeMap<String, String>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let pair = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    };
    (status.parse().unwrap(), lines.map(pair).collect())
}

/// Returns the output of curl, or `None` if it is not installed.
fn curl(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*"]);
    let output = command.args(arguments).output();
    tload_testbed::require_named("curl", output.map_err(|error| error.to_string()))
}

#[test]
fn curl_reads_ranges_and_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(folder.path().join("a b.bin"), &content).unwrap();
    let server = Server::start(folder.path(), &[]);
    let url = format!("{}/a%20b.bin", server.url);
    for (range, wanted) in [
        ("0-0", &content[..1]),
        ("70000-170000", &content[70_000..=170_000]),
        ("399990-", &content[399_990..]),
        ("-7", &content[399_993..]),
        // Several ranges get the whole file.
        ("0-1,5-6", &content[..]),
    ] {
        let Some(output) = curl(&["-r", range, &url]) else {
            return;
        };
        assert!(output.stdout == wanted, "{range}: {}", stderr(&output));
    }
    let target = folder.path().join("copy");
    fs::write(&target, &content[..123_456]).unwrap();
    curl(&["-C", "-", "-o", target.to_str().unwrap(), &url]);
    assert!(fs::read(&target).unwrap() == content);
    let code = curl(&[
        "-r",
        "400000-",
        "-w",
        "%{http_code}",
        "-o",
        "/dev/null",
        &url,
    ]);
    assert_eq!(code.unwrap().stdout, b"416");
}

#[test]
fn conditions_and_ranges_follow_the_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    fs::write(&path, "0123456789").unwrap();
    let server = Server::start(folder.path(), &[]);
    let first = server.get("/a.bin");
    assert_eq!((first.status, &*first.text()), (200, "0123456789"));
    assert_eq!(first.header("accept-ranges"), "bytes");
    let tag = first.header("etag").to_owned();
    let date = first.header("last-modified").to_owned();
    assert!(tag.starts_with('"') && tag.len() == 34, "{tag}");

    let ask = |headers: &[&str]| {
        let reply = server.ask("GET", "/a.bin", headers);
        let range = reply.headers.get("content-range").cloned();
        (reply.status, range.unwrap_or_default(), reply.text())
    };
    let status = |headers: &[&str]| ask(headers).0;
    let partial = (206, "bytes 2-3/10".to_owned(), "23".to_owned());
    assert_eq!(ask(&["Range: bytes=2-3"]), partial);
    assert_eq!(
        ask(&["Range: bytes=2-3", &format!("If-Range: {tag}")]),
        partial
    );
    assert_eq!(
        ask(&["Range: bytes=2-3", &format!("If-Match: {tag}")]),
        partial
    );
    assert_eq!(status(&["Range: bytes=2-3", "If-Range: \"other\""]), 200);
    let (code, range, _) = ask(&["Range: bytes=10-"]);
    assert_eq!((code, &*range), (416, "bytes */10"));
    assert_eq!(status(&["If-Match: \"other\""]), 412);
    assert_eq!(status(&[&format!("If-None-Match: {tag}")]), 304);
    assert_eq!(status(&[&format!("If-Modified-Since: {date}")]), 304);
    assert_eq!(
        status(&["If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT"]),
        412
    );

    let head = server.ask("HEAD", "/a.bin", &["Range: bytes=2-3"]);
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
    assert_eq!(head.header("etag"), tag);

    // Another file of equal length, at the same path.
    fs::write(folder.path().join("new"), "abcdefghij").unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    assert_ne!(server.get("/a.bin").header("etag"), tag);
    assert_eq!(
        status(&["Range: bytes=2-3", &format!("If-Range: {tag}")]),
        200
    );
    assert_eq!(status(&[&format!("If-Match: {tag}")]), 412);
}

#[test]
fn requests_cannot_leave_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("deep/.cache")).unwrap();
    fs::create_dir(folder.path().join("outside")).unwrap();
    for name in [
        "secret",
        "outside/secret",
        "root/.secret",
        "root/deep/.cache/secret",
    ] {
        fs::write(folder.path().join(name), "hunter2").unwrap();
    }
    fs::write(root.join("a"), "fine").unwrap();
    for (to, name) in [
        ("../secret", "file"),
        ("../outside", "folder"),
        ("/dev/zero", "zero"),
        ("/proc/self/environ", "environment"),
        ("folder", "chain"),
        ("..", "up"),
    ] {
        symlink(to, root.join(name)).unwrap();
    }
    let made = Command::new("mkfifo").arg(root.join("fifo")).status();
    assert!(made.unwrap().success());
    let server = Server::start(&root, &[]);
    for path in [
        "/../secret",
        "/../../../../../../etc/passwd",
        "//etc/passwd",
        "/%2e%2e/secret",
        "/%2E%2E%2Fsecret",
        "/..%2fsecret",
        "/deep/../../secret",
        "/deep/%2e%2e/%2e%2e/secret",
        "/.%2e/secret",
        "/a%00.txt",
        "/./a",
        "/.secret",
        "/%2esecret",
        "/deep/.cache/secret",
        "/file",
        "/folder/",
        "/folder/secret",
        "/chain/secret",
        "/up/secret",
        "/zero",
        "/environment",
        "/fifo",
        "/a/",
        "/a/b",
        "/gone",
    ] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(!reply.text().contains("hunter2"), "{path}");
    }
    let list = server.get("/").text();
    let links = list.matches("href=").count();
    assert_eq!(links, 2, "{list}");
    assert_eq!(server.get("http://127.0.0.1/a").text(), "fine");
    // Replaced by a link while the server runs.
    fs::remove_file(root.join("a")).unwrap();
    symlink("../secret", root.join("a")).unwrap();
    assert_eq!(server.get("/a").status, 404);
}

#[test]
fn links_show_nothing_hidden() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("deep/.cache/more")).unwrap();
    for name in [".secret", "deep/.cache/secret", "deep/.cache/more/secret"] {
        fs::write(root.join(name), "hunter2").unwrap();
    }
    for (to, name) in [
        (".secret", "readme"),
        ("readme", "chain"),
        ("deep/.cache", "docs"),
        ("../.secret", "deep/readme"),
        (".cache/more", "deep/more"),
    ] {
        symlink(to, root.join(name)).unwrap();
    }
    let server = Server::start(root, &[]);
    for path in [
        "/readme",
        "/chain",
        "/docs",
        "/docs/",
        "/docs/secret",
        "/deep/readme",
        "/deep/more/secret",
    ] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404, "{path}");
    }
    // One leads to `deep`, and one up from there.
    for path in ["/", "/deep/"] {
        let list = server.get(path).text();
        assert_eq!(list.matches("href=").count(), 1, "{list}");
    }
}

/// A browser takes this server for that of the page, and names the page's host (DNS rebinding).
#[test]
fn web_page_whose_name_leads_here_is_not_answered() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "hunter2").unwrap();
    let token = folder.path().join(".token");
    fs::write(&token, "abc").unwrap();
    let ask = |server: &Server, path: &str, host: &str, more: &str| {
        let mut stream = server.connect();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        Reply::read(&mut stream, false)
    };
    let server = Server::start(folder.path(), &[]);
    for path in ["/a", "/", "/metrics", "/gone"] {
        let reply = ask(&server, path, "evil.example:8080", "");
        assert_eq!(reply.status, 421, "{path}");
        assert!(reply.text().contains("localhost or 127.0.0.1"), "{reply:?}");
    }
    let address = server.url.split("//").nth(1).unwrap();
    for host in [address, "localhost:8080", "[::1]"] {
        assert_eq!(ask(&server, "/a", host, "").text(), "hunter2", "{host}");
    }
    assert_eq!(
        server.metric("tload_serve_responses_total{status=\"421\"}"),
        4
    );
    // A page does not know the token.
    let server = Server::start(folder.path(), &["--token-file", token.to_str().unwrap()]);
    assert_eq!(ask(&server, "/a", "evil.example", "").status, 401);
    let with_token = ask(
        &server,
        "/a",
        "evil.example",
        "Authorization: Bearer abc\r\n",
    );
    assert_eq!(with_token.text(), "hunter2");
}

#[test]
fn lists_are_for_browsers_and_programs() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("deep")).unwrap();
    fs::write(folder.path().join("<b>.bin"), "123").unwrap();
    fs::write(folder.path().join("deep/c"), "").unwrap();
    let server = Server::start(folder.path(), &[]);
    let page = server.get("/");
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(
        page.text()
            .contains("<a href=\"%3Cb%3E.bin\">&lt;b&gt;.bin</a>"),
        "{page:?}"
    );
    for reply in [
        server.get("/?format=json"),
        server.ask("GET", "/", &["Accept: application/json"]),
    ] {
        assert_eq!(reply.header("content-type"), "application/json");
        let list: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(list["entries"][0]["href"], "%3Cb%3E.bin");
        assert_eq!(list["entries"][0]["bytes"], 3);
        assert_eq!(list["entries"][1]["type"], "directory");
        assert_eq!(list["entries"].as_array().unwrap().len(), 2);
    }
    // HTTP has no date for it.
    let old = fs::File::options()
        .write(true)
        .open(folder.path().join("<b>.bin"))
        .unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH - Duration::from_secs(3600))
        .unwrap();
    let list: Value = serde_json::from_str(&server.get("/?format=json").text()).unwrap();
    assert_eq!(list["entries"][0]["modified"], Value::Null);
    assert_eq!(
        server.get("/%3Cb%3E.bin").headers.get("last-modified"),
        None
    );
    let moved = server.get("/deep?format=json");
    assert_eq!(moved.status, 301);
    assert_eq!(moved.header("location"), "/deep/?format=json");
    assert_eq!(server.get("/%3Cb%3E.bin").text(), "123");
    assert_eq!(
        server.metric("tload_serve_responses_total{status=\"301\"}"),
        1
    );
    assert_eq!(server.metric("tload_serve_connections_limit"), 256);

    let file = folder.path().join("<b>.bin");
    let single = Server::start(&file, &[]);
    assert!(single.get("/").text().contains("%3Cb%3E.bin"));
    assert_eq!(single.get("/%3Cb%3E.bin").text(), "123");
    assert_eq!(single.get("/deep/").status, 404);
}

#[test]
fn other_methods_and_malformed_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "fine").unwrap();
    let server = Server::start(folder.path(), &[]);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "FROB"] {
        let reply = server.ask(method, "/a", &["Content-Length: 5"]);
        assert_eq!(reply.status, 405, "{method}");
        assert_eq!(reply.header("allow"), "GET, HEAD");
        assert_eq!(reply.header("connection"), "close");
    }
    assert_eq!(fs::read_to_string(folder.path().join("a")).unwrap(), "fine");
    for (text, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("\u{16}\u{3}\u{1}\r\n\r\n".to_owned(), 400),
        (format!("GET /{} HTTP/1.1\r\n", "a".repeat(20_000)), 431),
        ("GET / HTTP/2.0\r\n\r\n".to_owned(), 505),
    ] {
        let mut stream = server.connect();
        stream.write_all(text.as_bytes()).unwrap();
        assert_eq!(
            Reply::read(&mut stream, false).status,
            status,
            "{text:.20?}"
        );
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
    }
    // Several requests over one connection, sent before the first response.
    let mut stream = server.connect();
    for path in ["/a", "/gone", "/a"] {
        send(&mut stream, "GET", path, &[]);
    }
    for status in [200, 404, 200] {
        assert_eq!(Reply::read(&mut stream, false).status, status);
    }
}

/// Reads to the end of the connection and returns the number of bytes.
fn drain(stream: &mut TcpStream) -> usize {
    let mut bytes = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        let read = stream.read(&mut bytes);
        // An abort is an end, too.
        let is_aborted = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
        match if read.as_ref().is_err_and(is_aborted) {
            0
        } else {
            read.unwrap()
        } {
            0 => return total,
            len => total += len,
        }
    }
}

/// Writes to a file and sets the time of that back, as `rsync --inplace --times` does.
fn write_and_set_back(mut file: &fs::File) {
    let before = file.metadata().unwrap();
    let changed = |it: &fs::File| {
        let metadata = it.metadata().unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    // The clock of file systems moves on by ticks.
    while changed(&tempfile::tempfile().unwrap()) <= changed(file) {}
    file.write_all(b"a").unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
}

#[test]
fn changed_file_ends_the_response() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let server = Server::start(folder.path(), &[]);
    let changes: [fn(&fs::File); 4] = [
        |file| file.set_len(0).unwrap(),
        |file| file.set_len(LARGE as u64 + 1).unwrap(),
        |mut file| file.write_all(b"a").unwrap(),
        write_and_set_back,
    ];
    for (count, change) in (1..).zip(changes) {
        fs::write(&path, vec![0; LARGE]).unwrap();
        let mut stream = server.connect();
        send(&mut stream, "GET", "/a.bin", &[]);
        // The server waits for the client from here on: the rest does not fit into buffers.
        let (status, headers) = read_head(&mut stream);
        assert_eq!((status, &*headers["content-length"]), (200, "67108864"));
        change(&fs::File::options().write(true).open(&path).unwrap());
        let received = drain(&mut stream);
        assert!(received < LARGE, "change {count} was sent");
        assert_eq!(server.metric("tload_serve_changed_files_total"), count);
    }
}

#[test]
fn replaced_file_is_sent_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    fs::write(&path, vec![1; LARGE]).unwrap();
    let server = Server::start(folder.path(), &[]);
    let mut stream = server.connect();
    send(&mut stream, "GET", "/a.bin", &["Connection: close"]);
    read_head(&mut stream);
    fs::write(folder.path().join("new"), vec![2; LARGE]).unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    let mut content = Vec::new();
    stream.read_to_end(&mut content).unwrap();
    assert!(content == vec![1; LARGE]);
    assert_eq!(server.ask("GET", "/a.bin", &["Range: bytes=0-0"]).body, [2]);
}

#[test]
fn switched_link_serves_the_other_directory() {
    let folder = tempfile::tempdir().unwrap();
    for version in ["one", "two"] {
        fs::create_dir(folder.path().join(version)).unwrap();
        fs::write(folder.path().join(version).join("a"), version).unwrap();
        symlink("../one/a", folder.path().join(version).join("out")).unwrap();
    }
    let link = folder.path().join("served");
    symlink("one", &link).unwrap();
    let server = Server::start(&link, &[]);
    let first = server.get("/a");
    assert_eq!(first.text(), "one");
    symlink("two", folder.path().join("new")).unwrap();
    fs::rename(folder.path().join("new"), &link).unwrap();
    let second = server.get("/a");
    assert_eq!(second.text(), "two");
    assert_ne!(first.header("etag"), second.header("etag"));
    assert!(server.get("/").text().contains("href=\"a\""));
    assert_eq!(server.get("/out").status, 404);
    // The directory before contains this one: its other parts are no longer served.
    let outer = folder.path().join("two");
    fs::create_dir(outer.join("inner")).unwrap();
    symlink("../a", outer.join("inner/out")).unwrap();
    symlink("two/inner", folder.path().join("new")).unwrap();
    assert_eq!(server.get("/inner/out").text(), "two");
    fs::rename(folder.path().join("new"), &link).unwrap();
    assert_eq!(server.get("/out").status, 404);
}

#[test]
fn slow_clients_are_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), vec![0; LARGE]).unwrap();
    let server = Server::start(folder.path(), &["--client-timeout", "2s"]);
    let mut silent = server.connect();
    let mut partial = server.connect();
    partial.write_all(b"GET /a.bin HTTP/1.1\r\nHo").unwrap();
    let mut idle = server.connect();
    send(&mut idle, "HEAD", "/a.bin", &[]);
    assert_eq!(Reply::read(&mut idle, true).status, 200);
    let mut stalled = server.connect();
    send(&mut stalled, "GET", "/a.bin", &[]);
    for stream in [&mut silent, &mut idle] {
        assert_eq!(drain(stream), 0);
    }
    assert_eq!(Reply::read(&mut partial, false).status, 408);
    // Until the server has given up.
    while server.metric("tload_serve_unfinished_responses_total") == 0 {}
    assert!(drain(&mut stalled) < LARGE);
    assert_eq!(server.metric("tload_serve_request_timeouts_total"), 3);
}

#[test]
fn clients_above_the_limit_wait() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), vec![0; LARGE]).unwrap();
    fs::write(folder.path().join("b"), "b").unwrap();
    let server = Server::start(folder.path(), &["--max-connections", "1"]);
    let mut busy = server.connect();
    send(&mut busy, "GET", "/a.bin", &[]);
    read_head(&mut busy);
    let mut waiting = server.connect();
    send(&mut waiting, "GET", "/b", &[]);
    // A busy machine only hides an answer that is too early.
    waiting
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let early = waiting.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(early, Err(io::ErrorKind::WouldBlock));
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    drop(busy);
    assert_eq!(Reply::read(&mut waiting, false).text(), "b");
    // An idle connection makes way.
    let _idle = server.connect();
    assert_eq!(server.get("/b").text(), "b");
}

#[test]
fn signal_lets_responses_end_and_cuts_off_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), vec![7; LARGE]).unwrap();
    let server = Server::start(folder.path(), &[]);
    let mut idle = server.connect();
    let mut stalled = server.connect();
    let mut reading = server.connect();
    for stream in [&mut stalled, &mut reading] {
        send(stream, "GET", "/a.bin", &[]);
        read_head(stream);
    }
    assert!(signal(&server.child, "TERM"));
    assert_eq!(drain(&mut idle), 0);
    assert_eq!(drain(&mut reading), LARGE);
    let address = server.url.split("//").nth(1).unwrap().to_owned();
    let output = server.output();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(drain(&mut stalled) < LARGE);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn errors_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let server = Server::start(folder.path(), &[]);
    let taken = server.url.split("//").nth(1).unwrap();
    let empty = folder.path().join("empty");
    fs::write(&empty, "\n").unwrap();
    let empty = empty.to_str().unwrap();
    let gone = folder.path().join("gone");
    let gone = gone.to_str().unwrap();
    for (arguments, status, texts) in [
        (
            &[root, "--listen", taken][..],
            1,
            &[taken, "cannot listen", "hint: another program", "--listen"][..],
        ),
        (
            &[root, "--listen", "8080"],
            2,
            &["8080: is no address", "hint: write an address and a port"],
        ),
        (
            &[root, "--listen", "192.0.2.1:0"],
            1,
            &["cannot listen", "0.0.0.0"],
        ),
        (&[gone], 3, &[gone, "cannot open"]),
        (&["/dev/null"], 2, &["/dev/null: is not a regular file"]),
        (
            &[root, "--token-file", gone],
            3,
            &[gone, "cannot read the token"],
        ),
        (
            &[root, "--token-file", empty],
            2,
            &[empty, "the token is empty", "hint: write one line"],
        ),
        (&[root, "--tls-cert", gone], 2, &["--tls-key"]),
        (
            &["--cache"],
            2,
            &["there is no cache", "hint: ", "--cache-dir"],
        ),
        (&["--cache", root], 2, &["--cache"]),
        (&[], 2, &["LOCATION"]),
        (&[root, "--max-connections", "0"], 2, &["--max-connections"]),
        (&[root, "--client-timeout", "soon"], 2, &["--client-"]),
        (&[root, "--client-timeout", "9e18"], 2, &["longer than 24h"]),
    ] {
        let output = run([&["serve"], arguments].concat());
        let errors = stderr(&output);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {errors}"
        );
        for text in texts {
            assert!(
                errors.contains(text),
                "{arguments:?}: no {text:?} in {errors}"
            );
        }
    }
}
