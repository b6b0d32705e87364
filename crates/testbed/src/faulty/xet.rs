//! Content store of the hub in this process: xorbs, their terms, and queries for them.
//!
//! Implements the protocol of <https://huggingface.co/docs/xet> as `hf_xet` 1.8 reads it: both
//! versions of queries and all three schemes of compression. Xorbs are short, so that a file has
//! several; equal chunks are stored once; names are digests of another kind, which readers do not
//! check. Called by `hub.rs`.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::ops::Range;

use aws_lc_rs::digest::{SHA256, digest};
use lz4_flex::frame::FrameEncoder;
use serde_json::{Value, json};

use super::FaultyServer;
use super::hub_files::{refusal, sha256};
use super::reply::Reply;
use super::wire::Head;

/// Lengths of chunks, bytes, in turn: the longest permitted one, odd ones, a very short one.
const LENGTHS: [usize; 5] = [128 << 10, 8 << 10, 30_001, 64 << 10, 3];

/// Chunks of a xorb, unless set otherwise.
const XORB_LEN: usize = 7;

/// Folder of the xorbs on the server of large files.
pub(super) const FOLDER: &str = "xorbs";

/// Path prefixes of queries, and their versions.
const QUERIES: [(&str, u8); 2] = [("v1/reconstructions/", 1), ("v2/reconstructions/", 2)];

/// Chunk in a xorb.
#[derive(Clone, Copy)]
struct Stored {
    xorb: usize,
    index: usize,
}

/// Xorb: the name it is served under, and the ends of its chunks, packed and unpacked.
struct Xorb {
    name: String,
    packed: Vec<usize>,
    lens: Vec<usize>,
}

/// Run of chunks of a xorb.
struct Term {
    xorb: usize,
    chunks: Range<usize>,
}

/// All files and xorbs.
pub(super) struct ContentStore {
    /// Chunks of a xorb that is stored from now on.
    pub(super) xorb_len: usize,
    xorbs: Vec<Xorb>,
    known: HashMap<Vec<u8>, Stored>,
    files: BTreeMap<String, Vec<Stored>>,
    /// Number of tokens that were issued. Only the last one is accepted.
    tokens: usize,
    /// Responses to the next queries, after the spared ones.
    faults: Vec<(u16, Option<Value>)>,
    spared: usize,
    /// Lifetime of tokens, seconds.
    lifetime: i64,
    /// True if each chunk is a term of its own.
    is_split: bool,
    /// Version of queries that is not known, and the status that tells so.
    unknown: Option<(u8, u16)>,
}

impl Default for ContentStore {
    fn default() -> Self {
        Self {
            xorb_len: XORB_LEN,
            xorbs: Vec::new(),
            known: HashMap::new(),
            files: BTreeMap::new(),
            tokens: 0,
            faults: Vec::new(),
            spared: 0,
            lifetime: 3600,
            is_split: false,
            unknown: None,
        }
    }
}

impl ContentStore {
    /// Stores a file and returns its name.
    pub(super) fn put(&mut self, bytes: &[u8], server: &FaultyServer) -> String {
        let mut lens = LENGTHS.iter().cycle();
        let mut rest = bytes;
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let len = lens.next().map_or(1, |len| rest.len().min(*len));
            let (piece, behind) = rest.split_at(len);
            pieces.push(piece);
            rest = behind;
        }
        let is_new = |piece: &&[u8]| !self.known.contains_key(&key(piece));
        let mut fresh: Vec<_> = pieces.iter().copied().filter(is_new).collect();
        fresh.dedup();
        for pieces in fresh.chunks(self.xorb_len) {
            self.put_xorb(pieces, server);
        }
        let name = sha256(bytes);
        let stored = pieces.iter().map(|piece| self.known[&key(piece)]).collect();
        self.files.insert(name.clone(), stored);
        name
    }

    fn put_xorb(&mut self, pieces: &[&[u8]], server: &FaultyServer) {
        let mut body = Vec::new();
        let mut xorb = Xorb {
            name: String::new(),
            packed: Vec::new(),
            lens: Vec::new(),
        };
        for (index, piece) in pieces.iter().enumerate() {
            body.extend(packed(piece, index % 3));
            xorb.packed.push(body.len());
            xorb.lens.push(piece.len());
            let stored = Stored {
                xorb: self.xorbs.len(),
                index,
            };
            self.known.entry(key(piece)).or_insert(stored);
        }
        xorb.name = sha256(&body);
        server.put(&format!("{FOLDER}/{}", xorb.name), body);
        self.xorbs.push(xorb);
    }

    /// Refuses all tokens issued so far.
    pub(super) fn expire_tokens(&mut self) {
        self.tokens += 1;
    }

    pub(super) fn set_lifetime(&mut self, seconds: i64) {
        self.lifetime = seconds;
    }

    pub(super) fn split_terms(&mut self) {
        self.is_split = true;
    }

    pub(super) fn forget_version(&mut self, version: u8, status: u16) {
        self.unknown = Some((version, status));
    }

    /// Answers as many queries before the next fault.
    pub(super) fn spare(&mut self, queries: usize) {
        self.spared = queries;
    }

    /// Responds to the next query with this status, or with this body.
    pub(super) fn fail(&mut self, status: u16, body: Option<Value>) {
        self.faults.push((status, body));
    }

    /// Returns the response to the request for a token.
    pub(super) fn token(&mut self, url: &str, now: u64) -> Reply {
        self.tokens += 1;
        let exp = now.saturating_add_signed(self.lifetime);
        let token = self.current();
        let body = json!({"accessToken": token, "exp": exp, "casUrl": url});
        let mut reply = Reply::text(200, "application/json", body.to_string());
        // `huggingface_hub` reads these.
        reply.set("X-Xet-Cas-Url", url);
        reply.set("X-Xet-Access-Token", token);
        reply.set("X-Xet-Token-Expiration", exp.to_string());
        reply
    }

    fn current(&self) -> String {
        format!("xet-hunter2-{}", self.tokens)
    }

    /// Responds to a query. Presigned URLs are on `elsewhere`.
    pub(super) fn answer(&mut self, head: &Head, elsewhere: &str) -> Reply {
        let query = |(prefix, version)| Some((head.path.strip_prefix(prefix)?, version));
        let Some((name, version)) = QUERIES.into_iter().find_map(query) else {
            return refusal(404, "", "Not found");
        };
        if let Some((_, status)) = self.unknown.filter(|unknown| unknown.0 == version) {
            return refusal(status, "", "No such version");
        }
        if head.header("authorization") != Some(&format!("Bearer {}", self.current())) {
            return refusal(
                401,
                "",
                "The token is not valid, or it has expired: xet-hunter2",
            );
        }
        if self.spared > 0 {
            self.spared -= 1;
        } else if !self.faults.is_empty() {
            let (status, body) = self.faults.remove(0);
            return match body {
                Some(body) => Reply::text(status, "application/json", body.to_string()),
                None => refusal(status, "", "It fails as it was told to: hunter2"),
            };
        }
        let Some(stored) = self.files.get(name) else {
            return refusal(404, "", "No such file");
        };
        let len = |stored: &Stored| self.xorbs[stored.xorb].lens[stored.index];
        let total: usize = stored.iter().map(len).sum();
        let Some(span) = head.wanted().within(total as u64) else {
            return refusal(416, "", "Range not satisfiable");
        };
        let index = |at| usize::try_from(at).expect("an offset in memory is an index");
        let (start, end) = (index(span.start), index(span.end));
        let mut terms: Vec<Term> = Vec::new();
        let (mut at, mut offset) = (0, 0);
        for stored in stored {
            let behind = at + len(stored);
            if behind > start && at < end {
                offset = if terms.is_empty() { start - at } else { offset };
                match terms.last_mut() {
                    Some(term)
                        if !self.is_split
                            && term.xorb == stored.xorb
                            && term.chunks.end == stored.index =>
                    {
                        term.chunks.end += 1;
                    }
                    Some(_) | None => terms.push(Term {
                        xorb: stored.xorb,
                        chunks: stored.index..stored.index + 1,
                    }),
                }
            }
            at = behind;
        }
        let body = self.described(version, &terms, offset, elsewhere);
        Reply::text(200, "application/json", body.to_string())
    }

    /// Returns terms as JSON. Ranges of one xorb that meet are one place.
    fn described(&self, version: u8, terms: &[Term], offset: usize, elsewhere: &str) -> Value {
        let mut places: BTreeMap<usize, Vec<Range<usize>>> = BTreeMap::new();
        let mut sorted: Vec<&Term> = terms.iter().collect();
        sorted.sort_by_key(|term| (term.xorb, term.chunks.start));
        for term in sorted {
            let places = places.entry(term.xorb).or_default();
            match places.last_mut() {
                Some(place) if term.chunks.start <= place.end => {
                    place.end = place.end.max(term.chunks.end);
                }
                Some(_) | None => places.push(term.chunks.clone()),
            }
        }
        let places = places.into_iter().map(|(xorb, places)| {
            let Xorb { name, packed, .. } = &self.xorbs[xorb];
            let start = |chunk: usize| chunk.checked_sub(1).map_or(0, |before| packed[before]);
            let place = |chunks: Range<usize>| Place {
                bytes: start(chunks.start)..packed[chunks.end - 1],
                chunks,
            };
            let places: Vec<_> = places.into_iter().map(place).collect();
            (name.clone(), places)
        });
        let terms = terms.iter().map(|term| {
            let xorb = &self.xorbs[term.xorb];
            let len = xorb.lens[term.chunks.clone()].iter().sum();
            (&*xorb.name, len, term.chunks.clone())
        });
        let places: Vec<_> = places.collect();
        // Signed like those of the Hub, but no server checks that.
        let url = |name: &str, places: &[Place]| {
            let range = |place: &Place| format!("{}-{}", place.bytes.start, place.bytes.end - 1);
            let ranges = places.iter().map(range).collect::<Vec<_>>().join("%2C");
            format!(
                "{elsewhere}/{FOLDER}/{name}?X-Xet-Signed-Range=bytes%3D{ranges}\
                 &X-Amz-Signature=hunter2&Expires=1"
            )
        };
        answer(version, offset, terms, &places, url)
    }
}

/// Returns an answer to a query with one term of `len` bytes, which has 100 chunks at `url`.
pub fn reconstruction(version: u8, len: usize, url: &str) -> Value {
    let place = Place {
        chunks: 0..100,
        bytes: 0..100,
    };
    let places = [("a".to_owned(), vec![place])];
    let terms = [("a", len, 0..100)].into_iter();
    answer(version, 0, terms, &places, |_, _| url.to_owned())
}

/// Place of some chunks of a xorb.
struct Place {
    chunks: Range<usize>,
    bytes: Range<usize>,
}

/// Returns an answer to a query, with one URL for each place in version 1, and for each xorb in
/// version 2. Its terms have the names of their xorbs, lengths and chunks.
fn answer<'a>(
    version: u8,
    offset: usize,
    terms: impl Iterator<Item = (&'a str, usize, Range<usize>)>,
    places: &[(String, Vec<Place>)],
    url: impl Fn(&str, &[Place]) -> String,
) -> Value {
    let numbers = |start: usize, end: usize| json!({"start": start, "end": end});
    let bytes = |place: &Place| numbers(place.bytes.start, place.bytes.end - 1);
    let chunks = |place: &Place| numbers(place.chunks.start, place.chunks.end);
    let of_xorb = |name: &str, places: &[Place]| {
        if version == 1 {
            let place = |place: &Place| {
                let url = url(name, std::slice::from_ref(place));
                json!({"range": chunks(place), "url": url, "url_range": bytes(place)})
            };
            places.iter().map(place).collect()
        } else {
            let range = |place: &Place| json!({"chunks": chunks(place), "bytes": bytes(place)});
            let ranges: Vec<_> = places.iter().map(range).collect();
            json!([{"url": url(name, places), "ranges": ranges}])
        }
    };
    let places = places
        .iter()
        .map(|(name, places)| (name.clone(), of_xorb(name, places)));
    let terms = terms.map(|(name, len, chunks)| {
        json!({"hash": name, "unpacked_length": len, "range": numbers(chunks.start, chunks.end)})
    });
    let key = if version == 1 { "fetch_info" } else { "xorbs" };
    json!({
        "offset_into_first_range": offset,
        "terms": terms.collect::<Vec<_>>(),
        key: places.collect::<serde_json::Map<_, _>>(),
    })
}

fn key(piece: &[u8]) -> Vec<u8> {
    digest(&SHA256, piece).as_ref().to_vec()
}

/// Returns a chunk as it is sent, compressed by a scheme: none, LZ4, or LZ4 of four groups.
fn packed(piece: &[u8], scheme: usize) -> Vec<u8> {
    let grouped = || {
        let group = |group| piece.iter().skip(group).step_by(4).copied();
        (0..4).flat_map(group).collect::<Vec<u8>>()
    };
    let body = match scheme {
        0 => piece.to_vec(),
        1 => lz4(piece),
        _ => lz4(&grouped()),
    };
    let three = |len: usize| (len as u64).to_le_bytes().into_iter().take(3);
    let scheme = u8::try_from(scheme).expect("one of three");
    let header = [0].into_iter().chain(three(body.len())).chain([scheme]);
    header
        .chain(three(piece.len()))
        .chain(body.iter().copied())
        .collect()
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = FrameEncoder::new(Vec::new());
    let written = encoder.write_all(bytes);
    written.expect("memory takes all that is written");
    encoder.finish().expect("memory takes all that is written")
}
