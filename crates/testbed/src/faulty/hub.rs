//! Model hub in this process: resolves revisions to commits, lists their files, and redirects to
//! them.
//!
//! Implements the paths and headers of huggingface.co as `huggingface_hub` 2.4 reads them; those of
//! buckets are in `bucket.rs`. Large
//! files are on a [`FaultyServer`] on another port, behind signed links, as the hub has them on
//! other hosts; small ones are on the hub itself, behind a relative redirect. Owns the access
//! control. Called by tests only.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::json;

use super::FaultyServer;
use super::bucket;
use super::reply::{Piece, Reply};
use super::wire::{self, Head, Wanted};

/// Path to which requests for small files are redirected.
const SMALL: &str = "resolve-cache/";

/// Suffix of large files.
const LARGE: &str = ".safetensors";

/// Access to a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Public.
    #[default]
    Public,
    /// Readable with this token; for all other clients it does not exist.
    Private(String),
    /// Visible to all, and readable with this token.
    Gated(String),
    /// Disabled for all.
    Disabled,
}

/// Request as the hub received it.
#[derive(Clone, Debug)]
pub struct HubRequest {
    /// Decoded path, without the leading slash.
    pub path: String,
    /// True if it had any token.
    pub with_token: bool,
}

/// Hub on a free port of `127.0.0.1`, and the server of its large files; both are stopped when
/// dropped.
pub struct Hub {
    address: SocketAddr,
    files: FaultyServer,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    /// Address of the server of large files.
    elsewhere: String,
}

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each changes the responses independently"
)]
struct Inner {
    stopping: bool,
    repositories: BTreeMap<String, Repository>,
    log: Vec<HubRequest>,
    terse: bool,
    undated: bool,
    /// Revisions to move, each before a request.
    moves: Vec<Move>,
    /// True if small files are sent completely, whatever the range.
    whole: bool,
    streams: Vec<Arc<TcpStream>>,
    threads: Vec<JoinHandle<()>>,
}

/// Move of a revision to another commit when a path is requested.
struct Move {
    path: String,
    repository: String,
    revision: String,
    commit: String,
}

#[derive(Default)]
struct Repository {
    access: Access,
    revisions: BTreeMap<String, String>,
    commits: BTreeMap<String, BTreeMap<String, Arc<Vec<u8>>>>,
}

impl Hub {
    /// Starts a hub without repositories.
    ///
    /// Panics if this machine has no free port on the loopback or cannot start a thread.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .expect("the loopback has a free port for a test server");
        let address = listener
            .local_addr()
            .expect("a bound listener knows its address");
        let files = FaultyServer::start();
        let shared = Arc::new(Shared {
            elsewhere: files.url(),
            ..Shared::default()
        });
        let seen = Arc::clone(&shared);
        let acceptor = thread::Builder::new()
            .name("hub-accept".to_owned())
            .spawn(move || accept_all(&listener, &seen))
            .expect("a test may start one thread more");
        Self {
            address,
            files,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Returns `http://127.0.0.1:PORT`: a value for `HF_ENDPOINT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the server of large files: for faults, and for its requests.
    pub fn files(&self) -> &FaultyServer {
        &self.files
    }

    /// Adds a commit with these files to a repository, moves `revision` to it, and returns the
    /// commit's name.
    pub fn commit(&self, repository: &str, revision: &str, files: &[(&str, &[u8])]) -> String {
        let mut inner = self.shared.lock();
        let found = inner.repositories.entry(repository.to_owned());
        let found = found.or_default();
        let name = format!("{:040x}", found.commits.len() + 0xc0);
        let mut commit = BTreeMap::new();
        for (file, bytes) in files {
            if file.ends_with(LARGE) {
                self.files
                    .put(&format!("{repository}/{name}/{file}"), *bytes);
            }
            commit.insert((*file).to_owned(), Arc::new(bytes.to_vec()));
        }
        found.commits.insert(name.clone(), commit);
        found.revisions.insert(revision.to_owned(), name.clone());
        name
    }

    /// Puts a file into a bucket `buckets/org/name`, or replaces it.
    pub fn put(&self, bucket: &str, path: &str, bytes: &[u8]) {
        let mut inner = self.shared.lock();
        self.files.put(&format!("{bucket}/{path}"), bytes);
        let found = inner.repositories.entry(bucket.to_owned()).or_default();
        let files = found.commits.entry(String::new()).or_default();
        files.insert(path.to_owned(), Arc::new(bytes.to_vec()));
    }

    /// Sets the access to a repository from now on.
    pub fn grant(&self, repository: &str, access: Access) {
        let mut inner = self.shared.lock();
        let found = inner.repositories.entry(repository.to_owned());
        found.or_default().access = access;
    }

    /// Returns only the names of files from now on, as some mirrors do.
    pub fn be_terse(&self) {
        self.shared.lock().terse = true;
    }

    /// Omits `lastModified` from now on, as some mirrors do.
    pub fn be_undated(&self) {
        self.shared.lock().undated = true;
    }

    /// Moves `revision` to `commit` right before the response to the next request whose path
    /// contains `path`.
    pub fn move_before(&self, path: &str, repository: &str, revision: &str, commit: &str) {
        self.shared.lock().moves.push(Move {
            path: path.to_owned(),
            repository: repository.to_owned(),
            revision: revision.to_owned(),
            commit: commit.to_owned(),
        });
    }

    /// Sends small files completely from now on, whatever the range.
    pub fn ignore_ranges(&self) {
        self.shared.lock().whole = true;
    }

    /// Returns every request to the hub itself so far.
    pub fn requests(&self) -> Vec<HubRequest> {
        self.shared.lock().log.clone()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        if let Some(acceptor) = self.acceptor.take() {
            // Wakes `accept`. A panic in a thread has failed there.
            drop(TcpStream::connect(self.address));
            drop(acceptor.join());
        }
        for stream in &self.shared.lock().streams {
            // A closed socket is fine too.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let threads = std::mem::take(&mut self.shared.lock().threads);
        for thread in threads {
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("url", &self.url())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn make_moves(&mut self, path: &str) {
        for due in self.moves.extract_if(.., |due| path.contains(&due.path)) {
            let repository = self.repositories.entry(due.repository).or_default();
            repository.revisions.insert(due.revision, due.commit);
        }
    }
}

fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        let mut inner = shared.lock();
        if inner.stopping {
            return;
        }
        let Ok(stream) = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream)) else {
            continue;
        };
        let (stream, shared) = (Arc::new(stream), Arc::clone(shared));
        inner.streams.push(Arc::clone(&stream));
        let thread = thread::Builder::new()
            .name("hub".to_owned())
            // An error means a client that went away, or this server's stopping.
            .spawn(move || while let Ok(true) = serve(&stream, &shared) {});
        inner.threads.extend(thread);
    }
}

/// Serves one request; returns whether there may be another.
fn serve(stream: &TcpStream, shared: &Shared) -> io::Result<bool> {
    let Some(head) = wire::read_head(stream)? else {
        return Ok(false);
    };
    wire::take_last_byte(stream)?;
    let head = Head::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
    let mut reply = {
        let mut inner = shared.lock();
        inner.log.push(HubRequest {
            path: head.path.clone(),
            with_token: head.header("authorization").is_some(),
        });
        inner.make_moves(&head.path);
        answer(&inner, &shared.elsewhere, &head)
    };
    if head.method == "HEAD" {
        reply.leave_off_body();
    }
    let mut out = stream;
    out.write_all(reply.head().as_bytes())?;
    for piece in &reply.body {
        out.write_all(piece.bytes())?;
    }
    Ok(head.keep_alive)
}

fn answer(inner: &Inner, elsewhere: &str, head: &Head) -> Reply {
    if let Some(rest) = head.path.strip_prefix("api/models/") {
        let Some((repository, revision)) = rest.split_once("/revision/") else {
            return refusal(404, "", "Not found");
        };
        return match find(inner, repository, head, false) {
            Ok(found) => tell(inner, found, revision, head),
            Err(refusal) => refusal,
        };
    }
    if let Some((name, prefix)) = head
        .path
        .strip_prefix("api/")
        .and_then(|rest| rest.split_once("/tree"))
    {
        return match find(inner, name, head, true) {
            Ok(found) => {
                let prefix = prefix.trim_start_matches('/');
                bucket::tree(&found.commits[""], name, prefix, head)
            }
            Err(refusal) => refusal,
        };
    }
    if let Some(rest) = head.path.strip_prefix(SMALL) {
        let (repository, rest) = cut(rest);
        let found = find(inner, &repository, head, true);
        return match found.map(|found| file(found, &rest)) {
            Ok(Some((_, bytes))) if inner.whole => small(bytes, Wanted::All),
            Ok(Some((_, bytes))) => small(bytes, head.wanted()),
            Ok(None) => refusal(404, "EntryNotFound", "Entry not found"),
            Err(refusal) => refusal,
        };
    }
    let Some((repository, rest)) = head.path.split_once("/resolve/") else {
        return refusal(404, "", "Not found");
    };
    match find(inner, repository, head, true) {
        Ok(found) if repository.starts_with("buckets/") => {
            let place = format!("{elsewhere}/{repository}");
            bucket::resolve(&found.commits[""], &place, rest, head)
        }
        Ok(found) => resolve(found, repository, rest, elsewhere),
        Err(refusal) => refusal,
    }
}

/// Finds a repository that the client may see, or read.
fn find<'a>(
    inner: &'a Inner,
    repository: &str,
    head: &Head,
    reads: bool,
) -> Result<&'a Repository, Reply> {
    let token = head
        .header("authorization")
        .map(|value| value.strip_prefix("Bearer ").unwrap_or_default());
    let unknown = || {
        let status = if token.is_some() { 404 } else { 401 };
        refusal(status, "RepoNotFound", "Repository not found")
    };
    let found = inner.repositories.get(repository).ok_or_else(unknown)?;
    match &found.access {
        Access::Public if token == Some("invalid") => Err(refusal(
            401,
            "",
            "Invalid credentials in Authorization header",
        )),
        Access::Private(wanted) if token != Some(wanted) => Err(unknown()),
        Access::Gated(wanted) if reads && token != Some(wanted) => {
            let status = if token.is_some() { 403 } else { 401 };
            Err(refusal(status, "GatedRepo", "Access to it is restricted"))
        }
        Access::Disabled => Err(refusal(403, "", "Access to this resource is disabled.")),
        Access::Public | Access::Private(_) | Access::Gated(_) => Ok(found),
    }
}

pub(super) fn refusal(status: u16, code: &str, message: &str) -> Reply {
    let body = json!({"error": message}).to_string();
    let mut reply = Reply::text(status, "application/json", body);
    if !code.is_empty() {
        reply.set("X-Error-Code", code);
    }
    reply.set("X-Error-Message", message);
    reply
}

/// Returns the contents of the commit of a revision.
fn tell(inner: &Inner, repository: &Repository, revision: &str, head: &Head) -> Reply {
    let commit = repository
        .revisions
        .get(revision)
        .map_or(revision, String::as_str);
    let Some(files) = repository.commits.get(commit) else {
        return refusal(404, "RevisionNotFound", "Invalid rev id");
    };
    let with_blobs = head.query("blobs").is_some() && !inner.terse;
    let sibling = |(name, bytes): (&String, &Arc<Vec<u8>>)| {
        if !with_blobs {
            return json!({"rfilename": name});
        }
        let mut sibling =
            json!({"rfilename": name, "size": bytes.len(), "blobId": identity(bytes, 40)});
        if name.ends_with(LARGE) {
            let digest = sha256(bytes);
            sibling["lfs"] = json!({"sha256": digest, "size": bytes.len(), "pointerSize": 134});
        }
        sibling
    };
    let siblings: Vec<_> = files.iter().map(sibling).collect();
    // Each commit is one second later than the one before it.
    let second = u64::from_str_radix(commit, 16).unwrap_or_default() % 60;
    let mut told = json!({"sha": commit, "siblings": siblings});
    if !inner.undated {
        told["lastModified"] = format!("2026-01-01T00:00:{second:02}.000Z").into();
    }
    Reply::text(200, "application/json", told.to_string())
}

/// Returns a name that differs for different bytes, like a digest; good enough for a server without
/// attackers.
pub(super) fn identity(bytes: &[u8], digits: usize) -> String {
    let sum = bytes.iter().fold(bytes.len(), |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(usize::from(*byte))
    });
    format!("{sum:0digits$x}")
}

/// Returns the name of the bytes in Git LFS.
fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let mut text = String::new();
    for byte in digest.as_ref() {
        fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"))
            .expect("a string takes all that is written");
    }
    text
}

/// Splits `org/name/COMMIT/file` into the repository and the rest.
fn cut(path: &str) -> (String, String) {
    let at = path
        .match_indices('/')
        .nth(1)
        .map_or(path.len(), |(at, _)| at);
    let (repository, rest) = path.split_at(at);
    (
        repository.to_owned(),
        rest.trim_start_matches('/').to_owned(),
    )
}

/// Returns the commit and the bytes of `REVISION/file`.
fn file<'a>(repository: &'a Repository, rest: &str) -> Option<(&'a str, &'a Arc<Vec<u8>>)> {
    let (revision, name) = rest.split_once('/')?;
    let commit = repository
        .revisions
        .get(revision)
        .map_or(revision, String::as_str);
    let (commit, files) = repository.commits.get_key_value(commit)?;
    Some((commit.as_str(), files.get(name)?))
}

fn resolve(repository: &Repository, name: &str, rest: &str, elsewhere: &str) -> Reply {
    let Some((commit, bytes)) = file(repository, rest) else {
        return refusal(404, "EntryNotFound", "Entry not found");
    };
    let path = rest.split_once('/').map_or("", |(_, path)| path);
    let place = format!("{name}/{commit}/{}", encoded(path));
    let mut reply = if path.ends_with(LARGE) {
        let mut reply = Reply::new(302);
        let signature = "X-Amz-Signature=hunter2&Expires=1";
        reply.set("Location", format!("{elsewhere}/{place}?{signature}"));
        reply.set("X-Linked-Size", bytes.len().to_string());
        reply.set("X-Linked-ETag", format!("\"{}\"", identity(bytes, 64)));
        reply
    } else {
        let mut reply = Reply::new(307);
        reply.set("Location", format!("/{SMALL}{place}"));
        reply
    };
    reply.set("X-Repo-Commit", commit);
    reply
}

pub(super) fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let each = path.bytes().map(|byte| {
        if plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    each.collect()
}

fn small(bytes: &Arc<Vec<u8>>, wanted: Wanted) -> Reply {
    let size = u64::try_from(bytes.len()).expect("a length in memory fits 64 bits");
    let Some(span) = wanted.within(size) else {
        return refusal(416, "", "Range not satisfiable");
    };
    let mut reply = Reply::new(if wanted == Wanted::All { 200 } else { 206 });
    reply.set("ETag", format!("\"{}\"", identity(bytes, 40)));
    if wanted != Wanted::All {
        let last = span.end - 1;
        reply.set(
            "Content-Range",
            format!("bytes {}-{last}/{size}", span.start),
        );
    }
    let index = |at| usize::try_from(at).expect("an offset in memory is an index");
    let span = index(span.start)..index(span.end);
    reply.body = vec![Piece::Shared(Arc::clone(bytes), span)];
    reply
}
