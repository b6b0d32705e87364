//! Recognizes other file formats by their first bytes.

/// First bytes, the format that they indicate, and a hint.
///
/// Read as a header length, each of them is far above the format's limit, so a valid file is never
/// mistaken for one. Worked example: `"version "` is `0x206e_6f69_7372_6576`, about 2.3e18.
const MAGIC: [(&[u8], &str, &str); 20] = [
    (
        b"version ",
        "a git-lfs pointer",
        "run `git lfs pull` to fetch the file itself",
    ),
    (b"<!DOCTYP", "an HTML page", SERVER_ANSWER),
    (b"<!doctyp", "an HTML page", SERVER_ANSWER),
    (b"<html", "an HTML page", SERVER_ANSWER),
    (b"<?xml", "an XML text", SERVER_ANSWER),
    (b"{", "a JSON text without a header length", SERVER_ANSWER),
    (
        b"PK\x03\x04",
        "a zip archive (torch.save writes these)",
        CONVERT,
    ),
    (b"\x80\x02", "a Python pickle", CONVERT),
    (b"\x80\x03", "a Python pickle", CONVERT),
    (b"\x80\x04", "a Python pickle", CONVERT),
    (b"\x80\x05", "a Python pickle", CONVERT),
    (b"GGUF", "a GGUF file", CONVERT),
    (b"\x93NUMPY", "a numpy array", CONVERT),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", CONVERT),
    (b"PAR1", "a Parquet file", CONVERT),
    (b"\x1f\x8b", "a gzip file", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd file", UNPACK),
    (b"\xfd7zXZ\0", "an xz file", UNPACK),
    (b"BZh", "a bzip2 file", UNPACK),
    (b"\x7fELF", "a program (ELF)", PASS_ANOTHER),
];
const SERVER_ANSWER: &str =
    "a server's response or another file was saved under this name: download the file again";
const CONVERT: &str = "convert it to safetensors first";
const UNPACK: &str = "unpack it first";
const PASS_ANOTHER: &str = "pass a safetensors file";

/// Offset of a tar archive's magic, behind the first file's name, mode, owner and so on.
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");
/// Offsets of the length of the first name in a zip archive, and of that name.
const ZIP_NAME: (usize, usize) = (26, 30);
/// Bytes that have to be text for a file to count as one.
const TEXT_BYTES: usize = 64;

/// Returns the format of a file that begins with `first`, with its article, and a hint. More
/// formats are recognized with more bytes; at least eight are needed.
pub(super) fn recognize(first: &[u8]) -> Option<(&'static str, &'static str)> {
    if first
        .get(TAR_MAGIC.0..)
        .is_some_and(|at| at.starts_with(TAR_MAGIC.1))
    {
        return Some(("a tar archive", UNPACK));
    }
    if first.starts_with(b"PK\x03\x04")
        && first_zip_name(first).is_some_and(|name| name.ends_with(b".npy"))
    {
        return Some(("an archive of numpy arrays (npz)", CONVERT));
    }
    let known = MAGIC.iter().find(|(magic, ..)| first.starts_with(magic));
    if let Some(&(_, format, hint)) = known {
        return Some((format, hint));
    }
    if is_onnx(first) {
        return Some(("an ONNX model", CONVERT));
    }
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~');
    let text = &first[..first.len().min(TEXT_BYTES)];
    text.iter().all(is_text).then_some(("a text", PASS_ANOTHER))
}

fn first_zip_name(first: &[u8]) -> Option<&[u8]> {
    let (length, name) = ZIP_NAME;
    let length = first.get(length..)?.first_chunk().copied();
    first
        .get(name..)?
        .get(..usize::from(u16::from_le_bytes(length?)))
}

/// Returns whether this looks like ONNX: a message of Protocol Buffers whose first field is the
/// version of the format (1 to 127), and the next one the producer's name or the graph.
fn is_onnx(first: &[u8]) -> bool {
    matches!(first, [0x08, 1..=0x7f, 0x12 | 0x3a, ..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HEADER_BYTES_MAX, HeaderError, header_len};

    #[test]
    fn magic_of_other_formats_is_never_a_valid_length() {
        for (magic, format, _) in MAGIC {
            // A magic shorter than eight bytes only counts when the other bytes make the length
            // impossible.
            let mut bytes = [0; 8];
            bytes[..magic.len()].copy_from_slice(magic);
            let length = u64::from_le_bytes(bytes);
            if length <= HEADER_BYTES_MAX {
                assert_eq!(header_len(&bytes, u64::MAX), Ok(length), "{format}");
            }
            bytes[magic.len()..].fill(b' ');
            let error = header_len(&bytes, u64::MAX).unwrap_err();
            assert!(
                matches!(error, HeaderError::OtherFormat { .. }),
                "{format}: {error}"
            );
        }
    }

    #[test]
    fn formats_are_told_by_more_than_their_first_bytes() {
        let mut npz = b"PK\x03\x04".to_vec();
        npz.resize(26, 1);
        npz.extend(b"\x05\0\0\0a.npy");
        let mut tar = b"model/config.json".to_vec();
        tar.resize(257, 0);
        tar.extend(b"ustar");
        let names = |first: &[u8]| recognize(first).map(|(format, _)| format);
        assert_eq!(names(&npz), Some("an archive of numpy arrays (npz)"));
        npz.truncate(33);
        assert_eq!(names(&npz), Some("a zip archive (torch.save writes these)"));
        assert_eq!(names(&tar), Some("a tar archive"));
        assert_eq!(names(b"\x08\x07\x12\x07pytorch"), Some("an ONNX model"));
        assert_eq!(names(b"root:x:0:0:root:/root:/bin/bash\n"), Some("a text"));
        assert_eq!(names(b"root:x:0\0"), None);
        assert_eq!(names(&[0xff; 16]), None);
    }
}
