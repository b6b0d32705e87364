//! Places of a range of a file in the content store: the response to a reconstruction query,
//! checked and turned into requests. Pure.
//!
//! A file is a sequence of terms: runs of chunks of xorbs, which are objects of at most 64 MiB. The
//! response has the terms of the range, the offset of the range in the first one, and presigned
//! URLs for the bytes of each xorb (<https://huggingface.co/docs/xet/download-protocol>): in version
//! 1 of the query one for each range of a xorb, in version 2 one for several ranges. They are
//! requested one range at a time either way, as xet-core does by default
//! (`enable_multirange_fetching`).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use http::Uri;
use serde::{Deserialize, Deserializer};

use super::unpack::{PACKED_MAX, UNPACKED_MAX};
use crate::steps::steps;

/// Chunks in a xorb: `MAX_XORB_CHUNKS` in `xorb_object/constants.rs` of xet-core-structures 1.6.
const COUNT_MAX: u32 = 8 * 1024;

/// Terms in a response. A range that is asked for at once has a term for each 8 KiB at most.
const TERMS_MAX: usize = 8 * 1024;

/// Shortest chunk but for the last one of a file, bytes: `MINIMUM_CHUNK_DIVISOR` and
/// `TARGET_CHUNK_SIZE` of xet-core. Each term has at least one.
const TERM_BYTES_MIN: u64 = 8 * 1024;

/// Terms that a response may have in addition to those that the length of the range allows.
const TERMS_EXTRA: u64 = 256;

/// Longest place, bytes: twice `MAX_XORB_SERIALIZED_SIZE` of xet-core.
const PLACE_BYTES_MAX: u64 = 128 << 20;

/// Comparisons of terms with places that have other ranges of chunks. Stores answer with a place
/// for each term, or with few places.
const COMPARISONS_MAX: usize = 1 << 20;

/// Places in a response: no more than one for each term is of use.
const PLACES_MAX: usize = TERMS_MAX;

/// Longest presigned URL, bytes. Those of the Hub have about 1 KiB.
const URL_MAX: usize = 8 * 1024;

/// Version of the reconstruction query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

impl Version {
    /// Returns the first part of the query's path.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::One => "v1",
            Self::Two => "v2",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::One => Self::Two,
            Self::Two => Self::One,
        }
    }
}

/// Response to a reconstruction query, whose version determines `P`.
#[derive(Deserialize)]
struct Answer<P> {
    offset_into_first_range: u64,
    terms: Vec<Term>,
    /// Places of xorbs by their hashes. Version 1 has another name for them.
    #[serde(alias = "fetch_info")]
    xorbs: BTreeMap<String, Vec<P>>,
}

#[derive(Deserialize)]
struct Term {
    hash: String,
    unpacked_length: u64,
    range: Numbers<u32>,
}

#[derive(Deserialize)]
struct Place {
    range: Numbers<u32>,
    /// `None` if it is too long or not valid.
    #[serde(deserialize_with = "short_url")]
    url: Option<Uri>,
    /// The end is inclusive.
    url_range: Numbers<u64>,
    /// True if the URL is for other ranges, too.
    #[serde(skip)]
    is_shared: bool,
}

/// Places with one URL, as version 2 has them.
#[derive(Deserialize)]
struct Places {
    #[serde(deserialize_with = "short_url")]
    url: Option<Uri>,
    ranges: Vec<RangePlace>,
}

#[derive(Deserialize)]
struct RangePlace {
    chunks: Numbers<u32>,
    /// The end is inclusive.
    bytes: Numbers<u64>,
}

impl Places {
    fn each(self) -> impl Iterator<Item = Place> {
        let is_shared = self.ranges.len() > 1;
        self.ranges.into_iter().map(move |range| Place {
            range: range.chunks,
            url: self.url.clone(),
            url_range: range.bytes,
            is_shared,
        })
    }
}

/// Parses a URL once for all terms: clones of it share its bytes.
fn short_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Uri>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_short = text.len() <= URL_MAX;
    Ok(is_short.then(|| text.try_into().ok()).flatten())
}

#[derive(Clone, Copy, Deserialize)]
struct Numbers<T> {
    start: T,
    end: T,
}

/// Request for the chunks of one term.
pub(super) struct Step {
    pub(super) url: Uri,
    /// True if the URL is for other ranges, too.
    pub(super) is_shared: bool,
    /// Bytes of the xorb to request.
    pub(super) bytes: Range<u64>,
    /// Number of chunks in front of the first one of the term.
    pub(super) leading: u32,
    /// Number of chunks of the term.
    pub(super) count: u32,
    /// Length of the term.
    pub(super) unpacked: u64,
    /// Number of bytes of the term that precede the range.
    pub(super) skip: u64,
}

/// Parses the response to a query for `len` bytes. The error describes what is wrong with it, and
/// quotes nothing: URLs are secrets.
pub(super) fn parse(answer: &[u8], version: Version, len: u64) -> Result<VecDeque<Step>, String> {
    let answer = match version {
        Version::One => serde_json::from_slice(answer),
        Version::Two => serde_json::from_slice(answer).map(|answer: Answer<Places>| Answer {
            offset_into_first_range: answer.offset_into_first_range,
            terms: answer.terms,
            xorbs: (answer.xorbs.into_iter())
                .map(|(hash, places)| (hash, places.into_iter().flat_map(Places::each).collect()))
                .collect(),
        }),
    };
    let answer: Answer<Place> =
        answer.map_err(|_| "the content store's response is not a reconstruction".to_owned())?;
    let count = answer.terms.len();
    let is_many = count as u64 > len / TERM_BYTES_MIN + TERMS_EXTRA;
    if count == 0 || count > TERMS_MAX || is_many {
        return Err(format!("the content store sent {count} terms"));
    }
    let places: usize = answer.xorbs.values().map(Vec::len).sum();
    if places > PLACES_MAX {
        return Err(format!("the content store sent {places} places"));
    }
    let mut xorbs = answer.xorbs;
    for places in xorbs.values_mut() {
        places.sort_by_key(|place| (place.range.start, place.range.end));
    }
    let mut comparisons = 0;
    let mut steps = VecDeque::with_capacity(answer.terms.len());
    let mut total = 0;
    let mut skip = answer.offset_into_first_range;
    for (index, term) in answer.terms.iter().enumerate() {
        if total >= len.saturating_add(answer.offset_into_first_range) {
            return Err(format!("term {index} lies behind the range"));
        }
        let places = xorbs.get(&term.hash).map_or(&[][..], Vec::as_slice);
        let place = place_of(term, places, &mut comparisons);
        if comparisons > COMPARISONS_MAX {
            return Err("the content store sent too many places for its terms".to_owned());
        }
        let step = step(term, place, skip);
        steps.push_back(step.map_err(|what| format!("term {index} {what}"))?);
        total += term.unpacked_length;
        skip = 0;
    }
    let found = total.saturating_sub(answer.offset_into_first_range);
    if found < len {
        return Err(format!("the terms have {found} of {len} bytes"));
    }
    Ok(steps)
}

/// Returns the shortest place that has all chunks of a term, of sorted ones. Counts the places that
/// it looks at if none has just these chunks.
fn place_of<'a>(term: &Term, places: &'a [Place], comparisons: &mut usize) -> Option<&'a Place> {
    let Numbers { start, end } = term.range;
    steps(1);
    let exact = places.binary_search_by_key(&(start, end), |it| (it.range.start, it.range.end));
    if let Ok(at) = exact {
        return Some(&places[at]);
    }
    // Later places begin after the term.
    let places = &places[..places.partition_point(|place| place.range.start <= start)];
    *comparisons += places.len();
    steps(places.len());
    let around = places.iter().filter(|place| end <= place.range.end);
    around.min_by_key(|place| place.range.end - place.range.start)
}

fn step(term: &Term, place: Option<&Place>, skip: u64) -> Result<Step, &'static str> {
    let Numbers { start, end } = term.range;
    if start >= end || end > COUNT_MAX {
        return Err("has no valid range of chunks");
    }
    let count = end - start;
    if term.unpacked_length == 0 || term.unpacked_length > u64::from(count) * UNPACKED_MAX as u64 {
        return Err("has a length that its chunks cannot have");
    }
    if skip >= term.unpacked_length {
        return Err("ends in front of the range");
    }
    let place = place.ok_or("has no URL")?;
    let Numbers {
        start: first,
        end: last,
    } = place.url_range;
    let chunks = u64::from(place.range.end - place.range.start);
    let most = chunks
        .saturating_mul(PACKED_MAX as u64)
        .min(PLACE_BYTES_MAX);
    let len = last.checked_sub(first).filter(|&bytes| bytes < most);
    if len.is_none() || last == u64::MAX || place.range.end > COUNT_MAX {
        return Err("has a place that its chunks cannot have");
    }
    Ok(Step {
        url: place.url.clone().ok_or("has no valid URL")?,
        is_shared: place.is_shared,
        bytes: first..last + 1,
        leading: start - place.range.start,
        count,
        unpacked: term.unpacked_length,
        skip,
    })
}

/// Parses a response whose terms are in one xorb, each with its own place, and with one for all.
#[cfg(test)]
pub(crate) fn terms_of_one_xorb(number: usize) {
    use serde_json::json;

    let place = |start: usize, end: usize| {
        json!({"range": {"start": start, "end": end}, "url": "https://h/x",
               "url_range": {"start": 0, "end": 99}})
    };
    let term = |at: usize| json!({"hash": "a", "unpacked_length": TERM_BYTES_MIN, "range": {"start": at, "end": at + 1}});
    let places = (0..number).map(|at| place(at, at + 1));
    let places: Vec<_> = places.chain([place(0, number)]).collect();
    let answer = json!({
        "offset_into_first_range": 0,
        "terms": (0..number).map(term).collect::<Vec<_>>(),
        "fetch_info": {"a": places},
    });
    let len = number as u64 * TERM_BYTES_MIN;
    let steps = parse(answer.to_string().as_bytes(), Version::One, len);
    assert_eq!(steps.map(|steps| steps.len()), Ok(number));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const VERSIONS: [Version; 2] = [Version::One, Version::Two];

    fn answer(version: Version) -> Value {
        let numbers = |start: u64, end: u64| json!({"start": start, "end": end});
        let place = |start, end, first, last| {
            json!({"range": numbers(start, end), "url": format!("https://h/{start}?s=1"),
                   "url_range": numbers(first, last)})
        };
        let chunks = |start, end, first, last| json!({"chunks": numbers(start, end), "bytes": numbers(first, last)});
        let mut answer = json!({
            "offset_into_first_range": 10,
            "terms": [
                {"hash": "a", "unpacked_length": 100, "range": numbers(2, 4)},
                {"hash": "b", "unpacked_length": 50, "range": numbers(0, 1)},
            ],
        });
        match version {
            Version::One => {
                answer["fetch_info"] = json!({
                    "a": [place(0, 9, 0, 999), place(1, 5, 100, 499)],
                    "b": [place(0, 1, 0, 57)],
                });
            }
            Version::Two => {
                answer["xorbs"] = json!({
                    "a": [
                        {"url": "https://h/0?s=1", "ranges": [chunks(0, 9, 0, 999)]},
                        {"url": "https://h/1?s=1",
                         "ranges": [chunks(1, 5, 100, 499), chunks(7, 8, 600, 699)]},
                    ],
                    "b": [{"url": "https://h/0?s=1", "ranges": [chunks(0, 1, 0, 57)]}],
                });
            }
        }
        answer
    }

    fn parsed(answer: &Value, version: Version, len: u64) -> Result<VecDeque<Step>, String> {
        parse(answer.to_string().as_bytes(), version, len)
    }

    #[test]
    fn terms_become_requests() {
        for version in VERSIONS {
            assert_requests(version);
        }
    }

    fn assert_requests(version: Version) {
        let steps = parsed(&answer(version), version, 140).expect("valid");
        let found: Vec<_> = steps
            .iter()
            .map(|step| {
                (
                    step.bytes.clone(),
                    step.leading,
                    step.count,
                    step.unpacked,
                    step.skip,
                )
            })
            .collect();
        assert_eq!(found, [(100..500, 1, 2, 100, 10), (0..58, 0, 1, 50, 0)]);
        assert_eq!(steps[0].url, "https://h/1?s=1");
        let are_shared: Vec<_> = steps.iter().map(|step| step.is_shared).collect();
        assert_eq!(are_shared, [version == Version::Two, false]);
    }

    #[test]
    fn terms_of_one_place_share_its_url() {
        for version in VERSIONS {
            let mut answer = answer(version);
            answer["terms"][1] = answer["terms"][0].clone();
            let steps = parsed(&answer, version, 190).expect("valid");
            let [first, second] = [&steps[0].url, &steps[1].url].map(|url| url.path().as_ptr());
            assert_eq!(first, second);
        }
    }

    #[test]
    fn version_is_as_asked_for() {
        for version in VERSIONS {
            let error = parsed(&answer(version), version.other(), 140).err();
            let wanted = "the content store's response is not a reconstruction";
            assert_eq!(error.as_deref(), Some(wanted));
        }
    }

    /// Checks that an answer with another value at `pointer` is refused, and why.
    fn is_refused(version: Version, (pointer, value, words): (&str, Value, &str)) {
        let mut answer = answer(version);
        *answer.pointer_mut(pointer).expect(pointer) = value;
        let Err(error) = parsed(&answer, version, 140) else {
            panic!("{pointer}: {words}");
        };
        assert!(error.contains(words), "{pointer}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn hostile_terms_are_refused() {
        for version in VERSIONS {
            refuse_hostile_terms(version);
        }
    }

    fn refuse_hostile_terms(version: Version) {
        let pointers = [
            ("/terms", json!([]), "0 terms"),
            (
                "/terms",
                Value::from(vec![answer(version)["terms"][0].clone(); TERMS_MAX + 1]),
                "8193 terms",
            ),
            ("/terms/0/range/end", json!(2), "term 0 has no valid range"),
            (
                "/terms/0/range/end",
                json!(COUNT_MAX + 1),
                "term 0 has no valid range",
            ),
            ("/terms/0/unpacked_length", json!(0), "term 0 has a length"),
            (
                "/terms/0/unpacked_length",
                json!((2 << 17) + 1),
                "term 0 has a length",
            ),
            (
                "/terms/0/unpacked_length",
                json!(u64::MAX),
                "term 0 has a length",
            ),
            (
                "/terms/0/unpacked_length",
                json!(-1),
                "not a reconstruction",
            ),
            (
                "/offset_into_first_range",
                json!(100),
                "term 0 ends in front",
            ),
            (
                "/offset_into_first_range",
                json!(u64::MAX),
                "term 0 ends in front",
            ),
            ("/offset_into_first_range", json!(11), "139 of 140 bytes"),
            ("/terms/1/unpacked_length", json!(49), "139 of 140 bytes"),
        ];
        for pointer in pointers {
            is_refused(version, pointer);
        }
        let mut behind = answer(version);
        behind["offset_into_first_range"] = json!(0);
        let error = parsed(&behind, version, 100).err();
        assert_eq!(error.as_deref(), Some("term 1 lies behind the range"));
    }

    #[test]
    fn hostile_places_are_refused() {
        let pointers = [
            ("/terms/0/hash", json!("c"), "term 0 has no URL"),
            ("/fetch_info/b/0/range/end", json!(0), "term 1 has no URL"),
            (
                "/fetch_info/b/0/range/end",
                json!(u32::MAX),
                "term 1 has a place",
            ),
            (
                "/fetch_info/b/0/url_range/end",
                json!(1_000_000),
                "term 1 has a place",
            ),
            (
                "/fetch_info/b/0/url_range/start",
                json!(58),
                "term 1 has a place",
            ),
            (
                "/fetch_info/b/0/url",
                json!("http://[hunter2"),
                "term 1 has no valid URL",
            ),
            (
                "/fetch_info/b/0/url",
                Value::from(format!("https://h/{}", "x".repeat(URL_MAX))),
                "term 1 has no valid URL",
            ),
            (
                "/fetch_info/a",
                Value::from(vec![
                    answer(Version::One)["fetch_info"]["a"][0].clone();
                    PLACES_MAX
                ]),
                "8193 places",
            ),
            ("/fetch_info", json!([]), "not a reconstruction"),
        ];
        for pointer in pointers {
            is_refused(Version::One, pointer);
        }
    }

    #[test]
    fn hostile_places_of_several_ranges_are_refused() {
        let range = answer(Version::Two)["xorbs"]["a"][0]["ranges"][0].clone();
        let pointers = [
            ("/terms/0/hash", json!("c"), "term 0 has no URL"),
            ("/xorbs/b", json!([]), "term 1 has no URL"),
            ("/xorbs/b/0/ranges", json!([]), "term 1 has no URL"),
            (
                "/xorbs/b/0/ranges/0/chunks/end",
                json!(u32::MAX),
                "term 1 has a place",
            ),
            (
                "/xorbs/b/0/ranges/0/bytes/end",
                json!(u64::MAX),
                "term 1 has a place",
            ),
            (
                "/xorbs/b/0/ranges/0/bytes/start",
                json!(58),
                "term 1 has a place",
            ),
            (
                "/xorbs/b/0/url",
                Value::from(format!("https://h/{}", "x".repeat(URL_MAX))),
                "term 1 has no valid URL",
            ),
            (
                "/xorbs/a/0/ranges",
                Value::from(vec![range; PLACES_MAX]),
                "8195 places",
            ),
            (
                "/xorbs/b/0/ranges/0/bytes",
                json!("bytes=0-57"),
                "not a reconstruction",
            ),
            ("/xorbs", json!(null), "not a reconstruction"),
        ];
        for pointer in pointers {
            is_refused(Version::Two, pointer);
        }
    }
}
