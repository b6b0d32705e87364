//! Decides which part of a source can be compared: its tensors one by one, the whole file, or
//! nothing, and why not more. Pure.
//!
//! - Digests of the header and of each tensor that is read, each in full: the header is compared
//!   before the first tensor is handed over, each tensor before it is.
//! - A digest of the whole file, if all of it is read: it is compared before the stream ends.
//! - Digests of some tensors: these are compared.
//!
//! The header defines the meaning of all other bytes: a source whose header cannot be compared is
//! not completely verified.

use crate::crc::Crcs;
use crate::format::TensorInfo;
use crate::storage::Source;
use crate::verify::{Digest, Expected, implied_header};

/// Facts known about a source since it was opened.
#[derive(Clone, Copy, Debug)]
pub struct SourceFacts<'a> {
    /// The source.
    pub source: &'a dyn Source,
    /// Offset of the first tensor.
    pub header_bytes: u64,
    /// CRCs of the header as read when the source was opened.
    pub header: Crcs,
    /// All tensors of the source in the checkpoint, in file order.
    pub tensors: &'a [TensorInfo],
    /// Another node reads it, and compares it.
    pub is_elsewhere: bool,
}

/// Outcome for one source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) coverage: Coverage,
    /// Expected digest of the header; `None` if the header is compared as part of the whole, or if
    /// no digest of it is known.
    pub(super) header: Option<Digest>,
    /// Reason why some of it is not compared, as the end of "was not verified: …".
    pub(super) why: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    Nothing,
    /// Digest for each requested tensor, in order.
    Tensors(Vec<Option<Digest>>),
    Whole(Digest),
}

/// Decides how to compare `wanted`, tensors or slices of one source. `all` are the tensors of the
/// source in the checkpoint.
pub(super) fn decide(
    len: u64,
    header_bytes: u64,
    all: &[TensorInfo],
    wanted: &[TensorInfo],
    expected: &Expected,
) -> Decision {
    let is_whole = |tensor: &TensorInfo| {
        let found = all.binary_search_by(|other| {
            let range = other.file_range();
            let key = (range.start, range.end, other.name());
            let wanted = tensor.file_range();
            key.cmp(&(wanted.start, wanted.end, tensor.name()))
        });
        found.is_ok() && tensor.strides().is_none()
    };
    let digests: Vec<_> = wanted
        .iter()
        .map(|tensor| {
            let digest = expected.tensors.get(tensor.name()).copied();
            digest.filter(|_| is_whole(tensor))
        })
        .collect();
    let missing = digests.iter().filter(|digest| digest.is_none()).count();
    let header = header(len, header_bytes, all, expected);
    let read: u64 = wanted.iter().map(TensorInfo::byte_len).sum::<u64>() + header_bytes;
    let complete = |coverage, header| Decision {
        coverage,
        header,
        why: None,
    };
    if missing == 0 && header.is_some() {
        return complete(Coverage::Tensors(digests), header);
    }
    if let Some(whole) = expected.whole.filter(|_| read == len) {
        return complete(Coverage::Whole(whole), None);
    }
    let by = &expected.by;
    let of_tensors = || {
        let first = digests.iter().position(Option::is_none);
        let tensor = &wanted[first.expect("one is missing")];
        let others = match missing - 1 {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        if is_whole(tensor) {
            format!("{by} has no digest of tensor {:?}{others}", tensor.name())
        } else {
            let name = tensor.name();
            format!(
                "{by} only has digests of whole tensors, and a slice of tensor {name:?} was requested{others}"
            )
        }
    };
    let why = if missing == 0 && expected.whole.is_some() {
        format!(
            "only {read} of its {len} bytes are read, and {by} covers the header only as part of the whole file"
        )
    } else if missing == 0 {
        format!("{by} has no digest of its header")
    } else if !expected.tensors.is_empty() {
        of_tensors()
    } else if expected.whole.is_some() {
        format!("only {read} of its {len} bytes are read, and {by} covers the whole file")
    } else {
        format!("{by} has no digest of it")
    };
    Decision {
        coverage: if missing == wanted.len() && missing > 0 {
            Coverage::Nothing
        } else {
            Coverage::Tensors(digests)
        },
        header,
        why: Some(why),
    }
}

/// Returns the expected digest of the header: stated by the authority, or derived from the digests
/// of the whole and of all tensors that the checkpoint has of the source.
fn header(len: u64, header_bytes: u64, all: &[TensorInfo], expected: &Expected) -> Option<Digest> {
    let implied = || {
        let digest = |tensor: &TensorInfo| expected.tensors.get(tensor.name()).copied();
        let tensors = all
            .iter()
            .map(|tensor| (tensor.file_range(), digest(tensor)));
        let (bytes, digest) = implied_header(expected.whole?, len, tensors)?;
        (bytes == header_bytes).then_some(digest)
    };
    expected.header.or_else(implied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Dtype;
    use crate::plan::{Indices, Slice};
    use crate::verify::Algorithm;
    use tload_testing::fixtures::tensor_info;

    const HEADER: &[u8] = b"header";

    /// Returns two tensors of 4 and 8 bytes behind a header of 6.
    fn tensors() -> [TensorInfo; 2] {
        [
            tensor_info("a", Dtype::U8, vec![4], 0, 6..10),
            tensor_info("b", Dtype::U8, vec![8], 0, 10..18),
        ]
    }

    fn digest(text: &str) -> Digest {
        text.parse().expect("a digest")
    }

    fn expected(whole: bool, names: &[&str]) -> Expected {
        Expected {
            by: "M".to_owned(),
            len: Some(18),
            header: None,
            whole: whole.then(|| digest("crc32c:00000001")),
            tensors: names
                .iter()
                .map(|name| ((*name).to_owned(), digest("crc32c:00000002")))
                .collect(),
            before: std::collections::BTreeMap::new(),
        }
    }

    fn decided(wanted: &[TensorInfo], expected: &Expected) -> (&'static str, Option<String>) {
        let decision = decide(18, 6, &tensors(), wanted, expected);
        let coverage = match decision.coverage {
            Coverage::Nothing => "nothing",
            Coverage::Whole(_) => "whole",
            Coverage::Tensors(digests) if digests.contains(&None) => "some",
            Coverage::Tensors(_) => "tensors",
        };
        (coverage, decision.why)
    }

    #[test]
    fn decide_prefers_tensors_then_whole() {
        let all = tensors();
        assert_eq!(
            decided(&all, &expected(true, &["a", "b"])),
            ("tensors", None)
        );
        assert_eq!(
            decided(&all[1..], &expected(true, &["a", "b"])),
            ("tensors", None)
        );
        assert_eq!(decided(&all, &expected(true, &["a"])), ("whole", None));
        assert_eq!(decided(&all, &expected(true, &[])), ("whole", None));
        // A digest other than a CRC covers the header only as part of the whole.
        let mut other = expected(true, &["a", "b"]);
        other.whole = Some(Digest::compute(Algorithm::Sha256, b"x"));
        assert_eq!(decided(&all, &other), ("whole", None));
        other.header = other.whole;
        assert_eq!(decided(&all, &other), ("tensors", None));
    }

    #[test]
    fn decide_states_why_not_everything_is_compared() {
        let all = tensors();
        let why = |wanted: &[TensorInfo], expected: &Expected| {
            let (coverage, why) = decided(wanted, expected);
            (coverage, why.expect("not all is compared"))
        };
        assert_eq!(
            why(&all[1..], &expected(true, &[])),
            (
                "nothing",
                "only 14 of its 18 bytes are read, and M covers the whole file".to_owned()
            )
        );
        let mut other = expected(true, &["a", "b"]);
        other.whole = Some(Digest::compute(Algorithm::Sha256, b"x"));
        assert_eq!(
            why(&all[1..], &other),
            (
                "tensors",
                "only 14 of its 18 bytes are read, and M covers the header only as part of the whole file"
                    .to_owned()
            )
        );
        assert_eq!(
            why(&all, &expected(false, &["a", "b"])),
            ("tensors", "M has no digest of its header".to_owned())
        );
        assert_eq!(
            why(&all, &expected(false, &["b"])),
            ("some", "M has no digest of tensor \"a\"".to_owned())
        );
        assert_eq!(
            why(&all, &expected(false, &["c"])),
            (
                "nothing",
                "M has no digest of tensor \"a\" (and 1 more)".to_owned()
            )
        );
        assert_eq!(
            why(&all, &expected(false, &[])),
            ("nothing", "M has no digest of it".to_owned())
        );
    }

    #[test]
    fn slice_is_compared_only_if_it_spans_its_tensor() {
        let all = tensors();
        let slice = |steps: Indices| all[1].sliced(&Slice::new(vec![steps])).expect("inside");
        let expected = expected(true, &["a", "b"]);
        let half = slice(Indices::from(0..4));
        let every_second = slice(Indices {
            start: 0,
            count: 4,
            step: 2,
            single: false,
        });
        for slice in [half, every_second] {
            let (coverage, why) = decided(&[all[0].clone(), slice], &expected);
            assert_eq!(coverage, "some");
            assert_eq!(
                why.expect("not all is compared"),
                "M only has digests of whole tensors, and a slice of tensor \"b\" was requested"
            );
        }
        let whole = slice(Indices::from(0..8));
        assert_eq!(decided(&[whole], &expected), ("tensors", None));
    }

    /// A tensor that an index leaves out is a gap in the checkpoint's knowledge of the file, not in
    /// the authority's.
    #[test]
    fn header_digest_is_stated_or_derived() {
        let (first, second) = (&[1, 2, 3, 4][..], &[5; 8][..]);
        for algorithm in [Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let polynomial = algorithm.polynomial().expect("a CRC");
            let of = |all: &[&[u8]]| Digest::from_crc(algorithm, polynomial.checksum(all));
            let mut expected = expected(false, &[]);
            expected.whole = Some(of(&[HEADER, first, second]));
            expected.tensors = [("a", first), ("b", second)]
                .map(|(name, bytes)| (name.to_owned(), of(&[bytes])))
                .into();
            let all = tensors();
            let wanted = Some(of(&[HEADER]));
            assert_eq!(header(18, 6, &all, &expected), wanted);
            assert_eq!(header(18, 6, &all[1..], &expected), None);
            expected.header = wanted;
            assert_eq!(header(18, 6, &all[1..], &expected), wanted);
            expected.tensors.remove("a");
            assert_eq!(header(18, 6, &all, &expected), wanted);
            expected.header = None;
            assert_eq!(header(18, 6, &all, &expected), None);
        }
    }
}
