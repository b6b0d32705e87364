//! What of a source can be compared: its tensors one by one, its whole, or nothing, and why not more. Pure.
//!
//! | known | read | compared |
//! |---|---|---|
//! | a digest of each tensor that is read | each of these whole | each tensor, before it is handed over; the header before that, if all digests are CRCs of one kind |
//! | a digest of the whole | all of the file | the whole, before the stream ends |
//! | a digest of some tensors | | these |

use super::{Digest, Expected};
use crate::crc::Crcs;
use crate::source::Source;
use crate::tensor::TensorInfo;

/// What is known of a source since it was opened.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) source: &'a dyn Source,
    /// Where tensors begin.
    pub(crate) header_bytes: u64,
    /// Of the header as it was read when the source was opened.
    pub(crate) header: Crcs,
    /// All tensors that the checkpoint has of it, in the order of the file.
    pub(crate) tensors: &'a [TensorInfo],
}

/// What is compared.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) way: Way,
    /// What is not, as the end of "was not verified: …".
    pub(super) why: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    Nothing,
    /// For each tensor that is wanted, in order: with what.
    Tensors(Vec<Option<Digest>>),
    Whole(Digest),
}

/// What can be compared of `wanted`, tensors or slices of one source. `all` are those that the checkpoint has of it.
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
    if missing == 0 {
        return Decision {
            way: Way::Tensors(digests),
            why: None,
        };
    }
    let read: u64 = wanted.iter().map(TensorInfo::byte_len).sum::<u64>() + header_bytes;
    if let Some(whole) = expected.whole.filter(|_| read == len) {
        return Decision {
            way: Way::Whole(whole),
            why: None,
        };
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
            format!("{by} says nothing of tensor {:?}{others}", tensor.name())
        } else {
            let name = tensor.name();
            format!("only a slice of tensor {name:?} is read{others}, and {by} is of whole tensors")
        }
    };
    let why = if !expected.tensors.is_empty() {
        of_tensors()
    } else if expected.whole.is_some() {
        format!("{read} of its {len} bytes are read, and {by} is of the whole file")
    } else {
        format!("{by} has no digest of it")
    };
    Decision {
        way: if missing == wanted.len() {
            Way::Nothing
        } else {
            Way::Tensors(digests)
        },
        why: Some(why),
    }
}

/// The digest of the whole source as its header, as it was read, and the digests of its tensors, as they are expected, make it: if that
/// is not the one expected, it is the header that differs. Known without reading anything, also when few tensors are wanted. None
/// if the digests do not say.
///
/// Worked example: of a header with the CRC `h` and tensors of 4 and 8 bytes with the CRCs `a` and `b`, the CRC of the file is that of
/// `h`, moved by 12 bytes, plus `a`, moved by 8, plus `b`.
pub(super) fn implied(
    len: u64,
    header_bytes: u64,
    header: &Crcs,
    all: &[TensorInfo],
    expected: &Expected,
) -> Option<Digest> {
    let algorithm = expected.whole?.algorithm();
    let polynomial = algorithm.polynomial()?;
    let (mut crc, mut end) = (header.get(polynomial), header_bytes);
    for tensor in all.iter().filter(|tensor| tensor.byte_len() > 0) {
        let digest = expected.tensors.get(tensor.name())?;
        let range = tensor.file_range();
        if digest.algorithm() != algorithm || range.start != end {
            return None;
        }
        crc = polynomial.combine(crc, digest.crc()?, tensor.byte_len());
        end = range.end;
    }
    (end == len).then(|| Digest::of_crc(algorithm, crc))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Dtype;
    use crate::plan::{Slice, Steps};
    use crate::testing::fixtures::tensor_info;
    use crate::verify::Algorithm;

    const HEADER: &[u8] = b"header";

    /// Two tensors, of 4 and 8 bytes, behind a header of 6.
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
            by: "somebody".to_owned(),
            len: Some(18),
            whole: whole.then(|| digest("crc32c:00000001")),
            tensors: names
                .iter()
                .map(|name| ((*name).to_owned(), digest("crc32c:00000002")))
                .collect(),
        }
    }

    fn decided(wanted: &[TensorInfo], expected: &Expected) -> (&'static str, Option<String>) {
        let decision = decide(18, 6, &tensors(), wanted, expected);
        let way = match decision.way {
            Way::Nothing => "nothing",
            Way::Whole(_) => "whole",
            Way::Tensors(digests) if digests.contains(&None) => "some",
            Way::Tensors(_) => "tensors",
        };
        (way, decision.why)
    }

    #[test]
    fn tensors_come_before_the_whole_and_the_whole_before_nothing() {
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
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        let all = tensors();
        let why = |wanted: &[TensorInfo], expected: &Expected| {
            let (way, why) = decided(wanted, expected);
            (way, why.expect("not all is compared"))
        };
        assert_eq!(
            why(&all[1..], &expected(true, &[])),
            (
                "nothing",
                "14 of its 18 bytes are read, and somebody is of the whole file".to_owned()
            )
        );
        assert_eq!(
            why(&all, &expected(false, &["b"])),
            ("some", "somebody says nothing of tensor \"a\"".to_owned())
        );
        assert_eq!(
            why(&all, &expected(false, &["c"])),
            (
                "nothing",
                "somebody says nothing of tensor \"a\" (and 1 more)".to_owned()
            )
        );
        assert_eq!(
            why(&all, &expected(false, &[])),
            ("nothing", "somebody has no digest of it".to_owned())
        );
    }

    #[test]
    fn slices_are_not_compared_unless_they_are_the_whole() {
        let all = tensors();
        let slice = |steps: Steps| all[1].sliced(&Slice::new(vec![steps])).expect("inside");
        let expected = expected(true, &["a", "b"]);
        let half = slice(Steps::from(0..4));
        let every_second = slice(Steps {
            start: 0,
            count: 4,
            step: 2,
            single: false,
        });
        for slice in [half, every_second] {
            let (way, why) = decided(&[all[0].clone(), slice], &expected);
            assert_eq!(way, "some");
            assert_eq!(
                why.expect("not all is compared"),
                "only a slice of tensor \"b\" is read, and somebody is of whole tensors"
            );
        }
        let whole = slice(Steps::from(0..8));
        assert_eq!(decided(&[whole], &expected), ("tensors", None));
    }

    #[test]
    fn the_header_follows_from_the_whole_and_the_tensors() {
        let (first, second) = (&[1, 2, 3, 4][..], &[5; 8][..]);
        for algorithm in [Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let polynomial = algorithm.polynomial().expect("a CRC");
            let of = |all: &[&[u8]]| Digest::of_crc(algorithm, polynomial.of(all));
            let mut expected = expected(false, &[]);
            expected.whole = Some(of(&[HEADER, first, second]));
            expected.tensors = [("a", first), ("b", second)]
                .map(|(name, bytes)| (name.to_owned(), of(&[bytes])))
                .into();
            let implied = |expected: &Expected, header: &[u8]| {
                implied(18, 6, &Crcs::of(&[header]), &tensors(), expected)
            };
            assert_eq!(implied(&expected, HEADER), expected.whole);
            assert_ne!(implied(&expected, b"heAder"), expected.whole);
            expected.tensors.remove("a");
            assert_eq!(implied(&expected, HEADER), None);
        }
    }
}
