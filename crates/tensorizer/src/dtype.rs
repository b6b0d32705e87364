//! Element types, as Tensorizer writes them: numpy's name, and for *opaque* ones, which numpy does
//! not have, a zero byte and torch's name behind it.

use tload_format::Dtype;

use crate::error::FormatError;

/// Names of numpy. Elements of one byte have no byte order.
const NUMPY: [(&str, Dtype); 13] = [
    ("|b1", Dtype::Bool),
    ("|u1", Dtype::U8),
    ("|i1", Dtype::I8),
    ("<i2", Dtype::I16),
    ("<u2", Dtype::U16),
    ("<f2", Dtype::F16),
    ("<i4", Dtype::I32),
    ("<u4", Dtype::U32),
    ("<f4", Dtype::F32),
    ("<c8", Dtype::C64),
    ("<f8", Dtype::F64),
    ("<i8", Dtype::I64),
    ("<u8", Dtype::U64),
];

/// Names of opaque types: that of numpy says their size only.
const OPAQUE: [(&str, Dtype); 6] = [
    ("<V2\0torch.bfloat16", Dtype::Bf16),
    ("|V1\0torch.float8_e4m3fn", Dtype::F8E4M3),
    ("|V1\0torch.float8_e5m2", Dtype::F8E5M2),
    ("|V1\0torch.float8_e4m3fnuz", Dtype::F8E4M3Fnuz),
    ("|V1\0torch.float8_e5m2fnuz", Dtype::F8E5M2Fnuz),
    ("|V1\0torch.float8_e8m0fnu", Dtype::F8E8M0),
];

/// Returns the dtype with this name.
pub(crate) fn dtype(name: &[u8]) -> Result<Dtype, FormatError> {
    let known = NUMPY.iter().chain(&OPAQUE);
    let mut named = known.filter(|(known, _)| known.as_bytes() == name);
    named
        .next()
        .map(|(_, dtype)| *dtype)
        .ok_or_else(|| FormatError::Dtype {
            found: String::from_utf8_lossy(name).replace('\0', " "),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_size_of_elements() {
        for (name, dtype) in NUMPY.iter().chain(&OPAQUE) {
            let (numpy, _) = name.split_once('\0').unwrap_or((name, ""));
            let bytes: usize = numpy[2..].parse().expect("a number");
            assert_eq!(bytes * 8, dtype.bits(), "{name:?}");
        }
    }

    #[test]
    fn other_dtypes_are_errors_with_their_names() {
        for (name, shown) in [
            (">f4", ">f4"),
            ("<c16", "<c16"),
            ("<V4\0torch.complex32", "<V4 torch.complex32"),
            ("<V2\0torch.bfloat16\0", "<V2 torch.bfloat16 "),
            ("", ""),
        ] {
            let found = shown.to_owned();
            let error = FormatError::Dtype { found };
            assert_eq!(dtype(name.as_bytes()), Err(error));
        }
    }
}
