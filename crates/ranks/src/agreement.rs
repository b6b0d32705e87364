//! Agreement of the ranks on a load: the facts that must be equal on all of them. Pure.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::messages::Failure;
use crate::error::{Comparison, Error, ErrorKind, Result, listed_ranks};

/// Version of the protocol between ranks.
const PROTOCOL: u32 = 4;

/// Most bytes of the files' states that a rank sends: they must fit into one message.
const STATES_BYTES_MAX: usize = 40 << 10;

/// Name and state of each file.
pub(crate) type FileStates = Vec<(String, String)>;

/// Facts about one rank's load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Reason why the rank does not begin the load; everything else is empty then.
    failure: Option<Failure>,
    /// True if the rank has not opened its checkpoint yet: this is not its load, but its opening.
    #[serde(default)]
    is_opening: bool,
    /// Facts that must be equal on all ranks: name, in the notation of error messages, and value.
    facts: Vec<(String, String)>,
    /// Name and state of each file. Every rank receives the message of every other, so these are
    /// sent only by two ranks that differ.
    #[serde(skip)]
    files: FileStates,
    /// Digest of the states of all files without the time of change, which differs between the
    /// disks of two nodes: the load, also for groups that have to tell one from another. Of an
    /// opening, a digest of the locations.
    pub load: String,
    /// Digest of the states of all files, with the time of change.
    digest: String,
    /// Name of the socket that ranks of the same node can connect to.
    pub socket: Option<String>,
    /// List of the CPUs that the rank may use, if it knows them.
    #[serde(default)]
    pub cpus: Option<String>,
}

/// Outcome of a rank's search for the leader of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeChoice {
    /// The leader, which may be the rank itself.
    pub leader: usize,
    /// Reason why the rank cannot share with others, if so.
    pub reason: Option<String>,
}

impl Hello {
    /// Describes a load of `files`, each with its name and state, with these `options`, each with
    /// its name and value.
    pub fn new(options: Vec<(&str, String)>, files: FileStates) -> Self {
        let mut facts = vec![
            ("the protocol".to_owned(), PROTOCOL.to_string()),
            (
                "the version of tload".to_owned(),
                env!("CARGO_PKG_VERSION").to_owned(),
            ),
            ("the number of files".to_owned(), files.len().to_string()),
        ];
        let options = options.into_iter();
        facts.extend(options.map(|(name, value)| (format!("‹{name}›"), value)));
        let digest = |state: fn(&str) -> &str| {
            let mut digest = Sha256::new();
            for (name, found) in &files {
                digest.update(format!("{name}\n{}\n", state(found)));
            }
            let digest = digest.finalize();
            let start: [u8; 8] = std::array::from_fn(|index| digest[index]);
            format!("{:016x}", u64::from_be_bytes(start))
        };
        Self {
            failure: None,
            is_opening: false,
            facts,
            load: digest(contents),
            digest: digest(|state| state),
            files,
            socket: None,
            cpus: None,
        }
    }

    /// Describes the opening of a rank; `load` stands for what it opens.
    pub fn opening(load: String) -> Self {
        Self {
            is_opening: true,
            load,
            ..Self::default()
        }
    }

    /// Returns whether this is the opening of a rank, which another message of every rank follows.
    pub fn is_opening(&self) -> bool {
        self.is_opening
    }

    /// Describes a rank that does not begin the load.
    pub fn given_up(failure: Failure) -> Self {
        Self {
            failure: Some(failure),
            ..Self::default()
        }
    }
}

/// Returns the state of a file without its time of change.
fn contents(state: &str) -> &str {
    state
        .split_once(", modified ")
        .map_or(state, |(contents, _)| contents)
}

/// Finds ranks that do not begin the load.
///
/// # Errors
///
/// [`ErrorKind::Peer`] with these ranks, and the first one's reason: the same on every rank.
pub(crate) fn require_begun(hellos: &[Hello]) -> Result<()> {
    let failed: Vec<usize> = (0..hellos.len())
        .filter(|rank| hellos[*rank].failure.is_some())
        .collect();
    match hellos.iter().find_map(|hello| hello.failure.as_ref()) {
        Some(failure) => Err(failure.not_begun().with_ranks(failed)),
        None => Ok(()),
    }
}

/// Compares what all ranks have said, except of their files.
///
/// # Errors
///
/// Those of [`require_begun`]; [`ErrorKind::Peer`] with the ranks that differ from rank 0, the
/// fact, and both values: the same on every rank.
pub(crate) fn compare(hellos: &[Hello]) -> Result<()> {
    require_begun(hellos)?;
    let Some(first) = hellos.first() else {
        return Ok(());
    };
    for (index, (name, expected)) in first.facts.iter().enumerate() {
        let value = |hello: &Hello| {
            let fact = hello.facts.get(index).filter(|(found, _)| found == name);
            fact.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
        };
        let values: Vec<_> = hellos.iter().map(value).enumerate().collect();
        differing(&values, name, expected)?;
    }
    Ok(())
}

/// Two of several ranks whose files differ.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The first of the ranks, and the digest of its files.
    first: (usize, String),
    /// Ranks whose files differ from those, but not from each other, and the digest.
    others: (Vec<usize>, String),
    /// Part of a file's state that counts.
    state: fn(&str) -> &str,
}

impl Difference {
    /// Compares the files of all ranks, without their times of change.
    pub(crate) fn of_contents(hellos: &[Hello]) -> Option<Self> {
        let ranks: Vec<usize> = (0..hellos.len()).collect();
        Self::find(hellos, &ranks, contents, |hello| &hello.load)
    }

    /// Compares the files of the ranks of one node, including their times of change.
    pub(crate) fn of_node(hellos: &[Hello], node: &[usize]) -> Option<Self> {
        Self::find(hellos, node, |state| state, |hello| &hello.digest)
    }

    fn find(
        hellos: &[Hello],
        ranks: &[usize],
        state: fn(&str) -> &str,
        digest: fn(&Hello) -> &str,
    ) -> Option<Self> {
        let of = |rank: usize| digest(&hellos[rank]);
        let (first, rest) = ranks.split_first()?;
        let other = rest.iter().find(|rank| of(**rank) != of(*first))?;
        let others = rest.iter().copied().filter(|rank| of(*rank) == of(*other));
        Some(Self {
            first: (*first, of(*first).to_owned()),
            others: (others.collect(), of(*other).to_owned()),
            state,
        })
    }

    /// Returns the states that `rank`, which has sent `hello`, sends to explain the difference: as
    /// many as fit, or none if it is not one of the two.
    pub(crate) fn states<'h>(&self, rank: usize, hello: &'h Hello) -> &'h [(String, String)] {
        if rank != self.first.0 && rank != self.others.0[0] {
            return &[];
        }
        let mut bytes = 0;
        let fits = |(name, state): &&(String, String)| {
            bytes += name.len() + state.len() + 8;
            bytes <= STATES_BYTES_MAX
        };
        &hello.files[..hello.files.iter().take_while(fits).count()]
    }

    /// Returns the error, which names the first file that differs, if it is among the `states` that
    /// all ranks have sent.
    pub(crate) fn error(&self, states: &[FileStates]) -> Error {
        let ((first, _), (others, _)) = (&self.first, &self.others);
        let (expected, found) = (&states[*first], &states[others[0]]);
        for (index, (name, expected)) in expected.iter().enumerate() {
            let expected = (self.state)(expected);
            let found = match found.get(index) {
                Some((found, state)) if found == name => (self.state)(state).to_owned(),
                Some((found, state)) => format!("{found}, {}", (self.state)(state)),
                None => "no such file".to_owned(),
            };
            if found != expected {
                return disagreement(name, *first, expected, others, &found);
            }
        }
        let text = |digest: &str| format!("files with digest {digest}");
        let (expected, found) = (text(&self.first.1), text(&self.others.1));
        disagreement("the files", *first, &expected, others, &found)
    }
}

/// Returns an error if the value of any rank is not `expected`, that of the first one.
fn differing(values: &[(usize, String)], what: &str, expected: &str) -> Result<()> {
    let Some((_, found)) = values.iter().find(|(_, value)| value != expected) else {
        return Ok(());
    };
    let same = values.iter().filter(|(_, value)| value == found);
    let ranks: Vec<usize> = same.map(|(rank, _)| *rank).collect();
    Err(disagreement(what, values[0].0, expected, &ranks, found))
}

/// Returns the error about `what` for `ranks` that have `found` while the first one has `expected`.
fn disagreement(what: &str, first: usize, expected: &str, ranks: &[usize], found: &str) -> Error {
    let have = if ranks.len() == 1 { "has" } else { "have" };
    let message = format!(
        "the ranks disagree on {what}: rank {first} has {expected}, {} {have} {found}",
        listed_ranks(ranks)
    );
    Error::new(ErrorKind::Peer, message)
        .with_hint("start every rank with the same files, options and version of tload")
        .with_comparison(Comparison {
            expected: expected.to_owned(),
            found: found.to_owned(),
            by: what.trim_matches(['‹', '›']).to_owned(),
        })
        .with_ranks(ranks.iter().copied())
}

/// Returns the error for ranks that did not do `what` in time.
pub(crate) fn missing(ranks: &[usize], what: &str) -> Error {
    let message = format!("{} did not {what} in time", listed_ranks(ranks));
    Error::new(ErrorKind::Peer, message)
        .with_hint("see whether these ranks run, and raise ‹join_timeout› if they start later")
        .with_ranks(ranks.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(limit: &str, modified: u32) -> Hello {
        let state = format!("length 100, CRC-32C of the header 01020304, modified {modified}.0");
        Hello::new(
            vec![("memory_limit", limit.to_owned())],
            vec![("a.safetensors".to_owned(), state)],
        )
    }

    /// Returns the error for a difference, once all ranks have sent what explains it.
    fn explained(difference: &Difference, hellos: &[Hello]) -> Error {
        let states = |(rank, hello)| difference.states(rank, hello).to_vec();
        let states: Vec<_> = hellos.iter().enumerate().map(states).collect();
        difference.error(&states)
    }

    #[test]
    fn equal_loads_agree() {
        let hellos = [hello("1 GiB", 1), hello("1 GiB", 1)];
        compare(&hellos).expect("equal");
        assert!(Difference::of_contents(&hellos).is_none());
        assert!(Difference::of_node(&hellos, &[0, 1]).is_none());
    }

    #[test]
    fn differing_option_names_ranks_and_both_values() {
        let hellos = [
            hello("1 GiB", 1),
            hello("2 GiB", 1),
            hello("1 GiB", 1),
            hello("2 GiB", 1),
        ];
        let error = compare(&hellos).expect_err("differs");
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert_eq!(
            error.message(),
            "the ranks disagree on memory_limit: rank 0 has 1 GiB, ranks 1 and 3 have 2 GiB"
        );
        assert_eq!(error.ranks(), [1, 3]);
        let compared = error.comparison().expect("two values");
        assert_eq!(
            (&*compared.by, &*compared.expected, &*compared.found),
            ("memory_limit", "1 GiB", "2 GiB")
        );
    }

    #[test]
    fn ranks_that_do_not_begin_are_named_with_first_reason() {
        let given_up = |rank, message: &str| {
            let error = Error::new(ErrorKind::NotFound, message).with_location("m");
            Hello::given_up(Failure::new(rank, &error))
        };
        let hellos = [
            hello("1 GiB", 1),
            given_up(1, "no such directory"),
            hello("2 GiB", 1),
            given_up(3, "no weights"),
        ];
        let error = compare(&hellos).expect_err("two have given up");
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert_eq!(
            error.message(),
            "rank 1 did not begin the load: m: no such directory"
        );
        assert_eq!(error.ranks(), [1, 3]);
    }

    #[test]
    fn reason_of_any_length_fits_into_message() {
        for text in ["\u{1b}", "\"", "é"].map(|it| it.repeat(100_000)) {
            let error = Error::new(ErrorKind::NotFound, &*text)
                .with_location(&text)
                .with_tensor(&*text)
                .with_source(&*text)
                .with_hint(&*text)
                .with_ranks(0..500);
            let hello = Hello::given_up(Failure::new(1, &error));
            let message = serde_json::to_vec(&hello).expect("serializes");
            assert!(message.len() <= crate::MESSAGE_BYTES_MAX);
        }
    }

    #[test]
    fn times_of_change_count_on_one_node_only() {
        let hellos = [hello("", 1), hello("", 2), hello("", 1)];
        assert!(Difference::of_contents(&hellos).is_none());
        assert!(Difference::of_node(&hellos, &[0, 2]).is_none());
        let difference = Difference::of_node(&hellos, &[1, 2]).expect("another file");
        let error = explained(&difference, &hellos);
        assert_eq!(
            error.message(),
            "the ranks disagree on a.safetensors: rank 1 has length 100, CRC-32C of the header 01020304, \
             modified 2.0, rank 2 has length 100, CRC-32C of the header 01020304, modified 1.0"
        );
        assert_eq!(error.ranks(), [2]);
    }

    #[test]
    fn states_are_sent_by_two_ranks_that_differ() {
        let many = |last: &str| {
            let file = |index: usize| format!("model-{index:05}.safetensors");
            let files = (0..2000).map(|index| (file(index), "length 5".to_owned()));
            let mut files: Vec<_> = files.collect();
            files[2].1 = format!("length {last}");
            Hello::new(Vec::new(), files)
        };
        let hellos = ["5", "5", "6", "7", "6"].map(many);
        for hello in &hellos {
            let text = serde_json::to_vec(hello).expect("serializes");
            assert!(text.len() < 2 << 10, "{}", text.len());
        }
        let difference = Difference::of_contents(&hellos).expect("differs");
        for (rank, hello) in hellos.iter().enumerate() {
            let states = difference.states(rank, hello);
            assert_eq!(states.is_empty(), ![0, 2].contains(&rank));
            let text = serde_json::to_vec(states).expect("serializes");
            assert!(text.len() < crate::MESSAGE_BYTES_MAX);
        }
        let error = explained(&difference, &hellos);
        assert_eq!(
            error.message(),
            "the ranks disagree on model-00002.safetensors: rank 0 has length 5, ranks 2 and 4 have \
             length 6"
        );
        assert_eq!(error.ranks(), [2, 4]);
    }

    #[test]
    fn files_beyond_the_message_are_compared_by_digest() {
        let many = |last: &str| {
            let file = |index: usize| {
                (
                    format!("model-{index:05}.safetensors"),
                    "length 5".to_owned(),
                )
            };
            let mut files: Vec<_> = (0..2000).map(file).collect();
            files.push((last.to_owned(), "length 5".to_owned()));
            Hello::new(Vec::new(), files)
        };
        let hellos = [many("a"), many("b")];
        let difference = Difference::of_contents(&hellos).expect("differs");
        let error = explained(&difference, &hellos);
        let start = "the ranks disagree on the files: rank 0 has files with digest ";
        assert!(error.message().starts_with(start), "{error}");
    }
}
