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
use std::time::{SystemTime, UNIX_EPOCH};

use super::FaultyServer;
use super::bucket;
use super::hub_files::{
    Repository, SMALL, Telling, cut, file, identity, is_large, refusal, resolve, small, tell,
};
use super::reply::Reply;
use super::wire::{self, Head, Wanted};
use super::xet::ContentStore;

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
#[derive(Clone)]
pub struct HubRequest {
    /// Decoded path, without the leading slash.
    pub path: String,
    /// True if it had any token.
    pub with_token: bool,
    /// Headers by name in lower case.
    pub headers: BTreeMap<String, String>,
}

impl fmt::Debug for HubRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubRequest")
            .field("path", &self.path)
            .field("with_token", &self.with_token)
            .finish_non_exhaustive()
    }
}

/// Hub on a free port of `127.0.0.1`, and the server of its large files; both are stopped when
/// dropped.
pub struct Hub {
    address: SocketAddr,
    files: FaultyServer,
    shared: Arc<Shared>,
    /// Address of the content store.
    store: SocketAddr,
    acceptors: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    /// Address of the server of large files.
    elsewhere: String,
    /// URL of the content store.
    store: String,
    /// URL of the hub.
    hub: String,
}

#[derive(Default)]
struct Inner {
    stopping: bool,
    repositories: BTreeMap<String, Repository>,
    log: Vec<HubRequest>,
    /// Content store, if large files are in one.
    xet: Option<ContentStore>,
    /// Responses to requests for tokens for the content store, after the spared ones.
    token_fault: Option<(u16, Option<serde_json::Value>)>,
    spared_tokens: usize,
    /// Requests that it received.
    queries: Vec<HubRequest>,
    telling: Telling,
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

impl Hub {
    /// Starts a hub without repositories.
    ///
    /// Panics if this machine has no free port on the loopback or cannot start a thread.
    pub fn start() -> Self {
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                .expect("the loopback has a free port for a test server");
            let address = listener
                .local_addr()
                .expect("a bound listener knows its address");
            (listener, address)
        };
        let ((listener, address), (queries, store)) = (listen(), listen());
        let files = FaultyServer::start();
        let shared = Arc::new(Shared {
            elsewhere: files.url(),
            store: format!("http://{store}"),
            hub: format!("http://{address}"),
            ..Shared::default()
        });
        let accept = |listener: TcpListener, is_store| {
            let seen = Arc::clone(&shared);
            thread::Builder::new()
                .name("hub-accept".to_owned())
                .spawn(move || accept_all(&listener, &seen, is_store))
                .expect("a test may start one thread more")
        };
        let acceptors = vec![accept(listener, false), accept(queries, true)];
        Self {
            address,
            files,
            shared,
            store,
            acceptors,
        }
    }

    /// Keeps large files of later commits in a content store, too, for clients that know it (xet).
    pub fn keep_in_xet(&self) {
        self.shared.lock().xet = Some(ContentStore::default());
    }

    /// Sets the number of chunks in each xorb of later commits.
    pub fn set_xorb_len(&self, chunks: usize) {
        self.with_xet(|store| store.xorb_len = chunks);
    }

    /// Returns every request to the content store itself so far.
    pub fn queries(&self) -> Vec<HubRequest> {
        self.shared.lock().queries.clone()
    }

    /// Responds to the next query of the content store with this status, or with this body.
    pub fn fail_query(&self, status: u16, body: Option<serde_json::Value>) {
        self.with_xet(|store| store.fail(status, body));
    }

    /// Refuses the tokens for the content store that were issued so far.
    pub fn expire_xet_tokens(&self) {
        self.with_xet(ContentStore::expire_tokens);
    }

    /// Sets the lifetime of tokens for the content store that are issued from now on, seconds.
    pub fn set_xet_token_lifetime(&self, seconds: i64) {
        self.with_xet(|store| store.set_lifetime(seconds));
    }

    /// Makes each chunk a term of its own. The URL of neighbouring terms is the same one.
    pub fn split_xet_terms(&self) {
        self.with_xet(ContentStore::split_terms);
    }

    /// Responds to queries of this version with this status from now on, as content stores that do
    /// not know it.
    pub fn forget_xet_version(&self, version: u8, status: u16) {
        self.with_xet(|store| store.forget_version(version, status));
    }

    /// Issues no tokens for the content store from now on, as compatible hubs without one.
    pub fn issue_no_xet_tokens(&self) {
        self.refuse_xet_tokens(404);
    }

    /// Responds to requests for tokens for the content store with this status from now on.
    pub fn refuse_xet_tokens(&self, status: u16) {
        self.fail_xet_tokens(status, None, 0);
    }

    /// Responds to requests for tokens for the content store with this status, or with this body,
    /// once some of them have been `spared`.
    pub fn fail_xet_tokens(&self, status: u16, body: Option<serde_json::Value>, spared: usize) {
        let mut inner = self.shared.lock();
        (inner.token_fault, inner.spared_tokens) = (Some((status, body)), spared);
    }

    /// Answers as many queries of the content store before the next fault.
    pub fn spare_queries(&self, queries: usize) {
        self.with_xet(|store| store.spare(queries));
    }

    /// Issues tokens for the content store again.
    pub fn issue_xet_tokens(&self) {
        self.shared.lock().token_fault = None;
    }

    fn with_xet(&self, change: impl FnOnce(&mut ContentStore)) {
        let mut inner = self.shared.lock();
        change(inner.xet.as_mut().expect("large files are in xet"));
    }

    /// Returns `http://127.0.0.1:PORT`: a value for `HF_ENDPOINT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the URL of the content store.
    pub fn store_url(&self) -> String {
        format!("http://{}", self.store)
    }

    /// Returns the server of large files: for faults, and for its requests.
    pub fn files(&self) -> &FaultyServer {
        &self.files
    }

    /// Adds a commit with these files to a repository, moves `revision` to it, and returns the
    /// commit's name.
    pub fn commit(&self, repository: &str, revision: &str, files: &[(&str, &[u8])]) -> String {
        let mut inner = self.shared.lock();
        let inner = &mut *inner;
        let found = inner.repositories.entry(repository.to_owned()).or_default();
        let name = format!("{:040x}", found.commits.len() + 0xc0);
        let mut commit = BTreeMap::new();
        for (file, bytes) in files {
            if is_large(file) {
                let place = format!("{name}/{file}");
                found.identities.insert(place.clone(), identity(bytes, 64));
                self.files.put(&format!("{repository}/{place}"), *bytes);
                if let Some(store) = &mut inner.xet {
                    let hash = store.put(bytes, &self.files);
                    found.hashes.insert(place, hash);
                }
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
        self.shared.lock().telling.is_terse = true;
    }

    /// Omits `lastModified` from now on, as some mirrors do.
    pub fn be_undated(&self) {
        self.shared.lock().telling.is_undated = true;
    }

    /// States `name` from now on as the name of the contents of every file.
    pub fn name_contents(&self, name: &str) {
        self.shared.lock().telling.contents_name = Some(name.to_owned());
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
        for (acceptor, address) in self.acceptors.drain(..).zip([self.address, self.store]) {
            // Wakes `accept`. A panic in a thread has failed there.
            drop(TcpStream::connect(address));
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

fn accept_all(listener: &TcpListener, shared: &Arc<Shared>, is_store: bool) {
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
            .spawn(move || while let Ok(true) = serve(&stream, &shared, is_store) {});
        inner.threads.extend(thread);
    }
}

/// Serves one request; returns whether there may be another.
fn serve(stream: &TcpStream, shared: &Shared, is_store: bool) -> io::Result<bool> {
    let Some(head) = wire::read_head(stream)? else {
        return Ok(false);
    };
    wire::take_last_byte(stream)?;
    let head = Head::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
    let mut reply = {
        let mut inner = shared.lock();
        let request = HubRequest {
            path: head.path.clone(),
            with_token: head.header("authorization").is_some(),
            headers: head.headers.clone(),
        };
        if is_store {
            inner.queries.push(request);
            let answer = |store: &mut ContentStore| store.answer(&head, &shared.elsewhere);
            let answered = inner.xet.as_mut().map(answer);
            answered.unwrap_or_else(|| refusal(404, "", "Not found"))
        } else {
            inner.log.push(request);
            inner.make_moves(&head.path);
            answer(&mut inner, shared, &head)
        }
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

fn answer(inner: &mut Inner, shared: &Shared, head: &Head) -> Reply {
    if let Some((repository, _)) =
        (head.path.strip_prefix("api/models/")).and_then(|rest| rest.split_once("/xet-read-token/"))
    {
        if let Err(refusal) = find(inner, repository, head, true) {
            return refusal;
        }
        return token(inner, &shared.store);
    }
    if let Some(rest) = head.path.strip_prefix("api/models/") {
        let Some((repository, revision)) = rest.split_once("/revision/") else {
            return refusal(404, "", "Not found");
        };
        return match find(inner, repository, head, false) {
            Ok(found) => tell(found, revision, head, &inner.telling),
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
            let place = format!("{}/{repository}", shared.elsewhere);
            bucket::resolve(&found.commits[""], &place, rest, head)
        }
        Ok(found) => {
            let mut reply = resolve(found, repository, rest, &shared.elsewhere);
            if let (Some((commit, _)), Some((_, path))) = (file(found, rest), rest.split_once('/'))
                && let Some(hash) = found.hashes.get(&format!("{commit}/{path}"))
            {
                let route = format!(
                    "{}/api/models/{repository}/xet-read-token/{commit}",
                    shared.hub
                );
                reply.set("X-Xet-Hash", hash);
                reply.set("X-Xet-Refresh-Route", &route);
                reply.set("Link", format!("<{route}>; rel=\"xet-auth\""));
            }
            reply
        }
        Err(refusal) => refusal,
    }
}

/// Responds to a request for a token for the content store at `url`.
fn token(inner: &mut Inner, url: &str) -> Reply {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("it is after 1970")
        .as_secs();
    let is_spared = inner.spared_tokens > 0;
    inner.spared_tokens -= usize::from(is_spared);
    let fault = inner.token_fault.as_ref().filter(|_| !is_spared);
    match (fault, &mut inner.xet) {
        (Some((status, Some(body))), _) => {
            Reply::text(*status, "application/json", body.to_string())
        }
        (Some((status, None)), _) => refusal(*status, "", "No token: hunter2"),
        (None, Some(store)) => store.token(url, now),
        (None, None) => refusal(404, "", "Not found"),
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
