//! Rows: the place of a fault, how it is made, the engines it is for, and the expected outcome.

use std::fmt;

use tload::{Error, ErrorKind, Report};

/// Part of the system in which a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Files, on a failing file system.
    Files,
    /// Objects, in a failing store.
    Objects,
    /// Models, in the failing content store of a hub.
    Hubs,
    /// A GPU and its driver.
    Devices,
    /// Contents of a file.
    Contents,
}

/// Way of reading bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Uring,
    TokioUring,
    Pread,
    /// Memory-mapped files.
    Map,
    Object,
}

impl Via {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::TokioUring => "tokio-uring",
            Self::Pread => "pread",
            Self::Map => "map",
            Self::Object => "object",
        }
    }
}

/// Engines that copy files into memory.
pub(crate) const ALL_ON_FILES: &[Via] = &[Via::Uring, Via::TokioUring, Via::Pread];

/// Expected retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retried {
    No,
    /// Retried, and counted.
    Yes,
    /// The kernel retries by itself; tload is not told.
    ByKernel,
}

/// Places that an error must name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// None: no single place failed.
    Nothing,
    /// The file or object.
    Location,
    /// The file or object, and bytes of it.
    Range,
    /// A tensor.
    Tensor,
    /// The file, bytes of it, and a tensor.
    TensorAndRange,
}

/// Expected outcome of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// Every byte is right.
    Loads(Retried),
    /// One byte is wrong, undetectable without a digest to compare with.
    Wrong,
    /// An error at the end, of this kind, with all of these fragments, that names the file; tensors
    /// delivered before it may mix two states.
    Mixed {
        kind: ErrorKind,
        says: &'static [&'static str],
    },
    /// An error of this kind with all of these fragments; tensors delivered before it are right.
    Fails {
        kind: ErrorKind,
        says: &'static [&'static str],
        names: Names,
        retried: Retried,
    },
}

pub(crate) const fn fails(
    kind: ErrorKind,
    says: &'static [&'static str],
    names: Names,
    retried: Retried,
) -> Outcome {
    Outcome::Fails {
        kind,
        says,
        names,
        retried,
    }
}

impl Outcome {
    /// Returns the outcome for a sealed file. Tags tell wrong bytes, and bytes of another state.
    pub(crate) fn when_sealed(self) -> Self {
        match self {
            Self::Wrong | Self::Mixed { .. } => {
                let says = &[
                    "is damaged, or of another file",
                    "get the sealed file again",
                ];
                fails(ErrorKind::Corrupt, says, Names::Range, Retried::No)
            }
            Self::Loads(_) | Self::Fails { .. } => self,
        }
    }
}

/// Row of the table, without the means to run it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) place: Place,
    /// Description of the fault.
    pub(crate) fault: &'static str,
    /// Means by which the test makes it.
    pub(crate) made: String,
    pub(crate) engines: &'static [Via],
    pub(crate) outcome: Outcome,
}

/// Actual end of a load.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Number of bytes of delivered tensors that differ from the source.
    pub(crate) wrong_bytes: usize,
    /// All tensors were delivered.
    pub(crate) is_whole: bool,
    /// Length of the file that the error names, if it names one.
    pub(crate) file_len: Option<u64>,
    pub(crate) error: Option<Error>,
    /// `None` if the load never began.
    pub(crate) report: Option<Report>,
}

impl Ended {
    pub(crate) fn before_it_began(error: Error) -> Self {
        Self {
            wrong_bytes: 0,
            is_whole: false,
            file_len: None,
            error: Some(error),
            report: None,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => write!(f, "{:?}: {}", error.kind(), error.chain())?,
            None => f.write_str("loads")?,
        }
        let retries = self.report.as_ref().map(|report| report.retries);
        write!(
            f,
            " ({} wrong bytes, retries {retries:?})",
            self.wrong_bytes
        )
    }
}

impl Row {
    /// Returns the deviations from the row, as text.
    pub(crate) fn complaints(&self, ended: &Ended) -> Vec<String> {
        let claims = match self.outcome {
            Outcome::Loads(retried) => [loads(ended), vec![retries(ended, retried)]].concat(),
            Outcome::Wrong => vec![
                (ended.error.is_none(), "fails".to_owned()),
                (ended.wrong_bytes == 1, "the byte is right".to_owned()),
            ],
            Outcome::Mixed { kind, says } => {
                failed(ended, kind, says, Names::Location, Retried::No)
            }
            Outcome::Fails {
                kind,
                says,
                names,
                retried,
            } => {
                let right = (ended.wrong_bytes == 0, "delivered wrong bytes".to_owned());
                [failed(ended, kind, says, names, retried), vec![right]].concat()
            }
        };
        let wrong = claims.into_iter().filter(|(holds, _)| !holds);
        wrong.map(|(_, complaint)| complaint).collect()
    }
}

type Claim = (bool, String);

fn loads(ended: &Ended) -> Vec<Claim> {
    vec![
        (ended.error.is_none(), "fails".to_owned()),
        (ended.is_whole, "tensors are missing".to_owned()),
        (ended.wrong_bytes == 0, "bytes are wrong".to_owned()),
    ]
}

fn retries(ended: &Ended, retried: Retried) -> Claim {
    let counted = ended
        .report
        .as_ref()
        .map_or(0, |report| report.retries + report.opening_retries);
    let attempts = ended
        .error
        .as_ref()
        .and_then(|error| Some(error.request()?.attempts))
        .unwrap_or(1);
    let hint = ended.error.as_ref().and_then(|error| error.hint());
    let is_told = hint.is_some_and(|hint| hint.contains("failed after 4 attempts"));
    let is_counted = counted > 0 || attempts > 1 || is_told;
    match retried {
        Retried::Yes => (is_counted, "counts no retries".to_owned()),
        Retried::No | Retried::ByKernel => (!is_counted, "counts retries".to_owned()),
    }
}

fn failed(
    ended: &Ended,
    kind: ErrorKind,
    says: &[&str],
    names: Names,
    retried: Retried,
) -> Vec<Claim> {
    let Some(error) = &ended.error else {
        return vec![(false, "loads".to_owned())];
    };
    let text = error.chain();
    let mut claims = vec![
        (error.kind() == kind, format!("is not {kind:?}")),
        (error.hint().is_some(), "has no hint".to_owned()),
        (
            !text.contains(char::from(0)),
            "contains a NUL character".to_owned(),
        ),
        retries(ended, retried),
    ];
    if let Some(report) = &ended.report {
        let is_told = report.outcome == error.kind().name();
        claims.push((is_told, format!("the report says {}", report.outcome)));
    }
    let missing = says.iter().filter(|words| !text.contains(**words));
    claims.extend(missing.map(|words| (false, format!("does not say {words:?}"))));
    let in_file = match (error.range(), ended.file_len) {
        (Some(range), Some(len)) => range.start < range.end && range.end <= len,
        (range, _) => range.is_some(),
    };
    let location = (error.location().is_some(), "names no location".to_owned());
    let range = (
        in_file,
        format!("names no range inside the file: {:?}", error.range()),
    );
    let tensor = (error.tensor().is_some(), "names no tensor".to_owned());
    claims.extend(match names {
        Names::Nothing => vec![],
        Names::Location => vec![location],
        Names::Range => vec![location, range],
        Names::Tensor => vec![tensor],
        Names::TensorAndRange => vec![location, range, tensor],
    });
    claims
}
