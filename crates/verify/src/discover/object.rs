//! Interprets the headers of an object store that state an object's checksums. Pure.
//!
//! Amazon S3: `x-amz-checksum-ALGORITHM` in Base64, and `x-amz-checksum-type`. A `COMPOSITE`
//! checksum, which is the checksum of the parts' checksums, cannot be compared with bytes unless
//! the boundaries of the parts are known (S3 user guide, "Checking object integrity"). Google:
//! `x-goog-hash: crc32c=…,md5=…`, of the bytes as they are stored (Cloud Storage, "HTTP headers").

use crate::claims::Claim;
use crate::digest::{Algorithm, Digest};
use crate::options::Protocol;

const S3: [(&str, Algorithm); 3] = [
    ("x-amz-checksum-crc64nvme", Algorithm::Crc64Nvme),
    ("x-amz-checksum-crc32c", Algorithm::Crc32c),
    ("x-amz-checksum-sha256", Algorithm::Sha256),
];

/// Returns the digests that the headers of an object state, or the reason why there are none.
pub(super) fn from_headers(
    protocol: Option<Protocol>,
    stated: &[(&str, String)],
) -> Result<Claim, String> {
    let digests = match protocol {
        Some(Protocol::S3) => from_s3(stated),
        Some(Protocol::Gcs) => from_gcs(stated),
        Some(
            Protocol::Azure | Protocol::Http | Protocol::Hub | Protocol::Oci | Protocol::Custom,
        )
        | None => Err("stores of this kind provide no checksum that tload supports".to_owned()),
    }?;
    let names: Vec<_> = digests
        .iter()
        .map(|digest| title(digest.algorithm()))
        .collect();
    Ok(Claim::from_whole(
        format!("the object's own {}", names.join(" and ")),
        digests,
    ))
}

fn from_s3(stated: &[(&str, String)]) -> Result<Vec<Digest>, String> {
    let value = |name: &str| {
        let mut found = stated.iter().filter(|(stated, _)| *stated == name);
        found.next().map(|(_, value)| value.trim())
    };
    let kind = value("x-amz-checksum-type");
    let mut digests = Vec::new();
    let mut silent = None;
    for (name, algorithm) in S3 {
        let Some(text) = value(name) else { continue };
        match (kind, Digest::from_base64(algorithm, text)) {
            // CRC-64/NVME exists only for full objects.
            (Some("FULL_OBJECT"), Some(digest)) => digests.push(digest),
            (None, Some(digest)) if algorithm == Algorithm::Crc64Nvme => digests.push(digest),
            (Some("COMPOSITE"), _) | (_, None) if is_composite(kind, text) => {
                silent = Some(format!(
                    "its {} covers the parts of its upload, not the whole object",
                    title(algorithm)
                ));
            }
            (_, None) => {
                silent = Some(format!("its {} cannot be read", title(algorithm)));
            }
            (_, Some(_)) => {
                silent = Some(format!(
                    "the store does not say that its {} covers the whole object",
                    title(algorithm)
                ));
            }
        }
    }
    if digests.is_empty() {
        return Err(silent.unwrap_or_else(|| "the store provides no checksum of it".to_owned()));
    }
    Ok(digests)
}

/// Returns whether a checksum is composite: these end in a hyphen and the number of parts.
fn is_composite(kind: Option<&str>, text: &str) -> bool {
    let counted = text.rsplit_once('-').is_some_and(|(_, count)| {
        !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit())
    });
    kind == Some("COMPOSITE") || counted
}

fn from_gcs(stated: &[(&str, String)]) -> Result<Vec<Digest>, String> {
    let values = |name: &'static str| {
        let named = stated.iter().filter(move |(stated, _)| *stated == name);
        named.flat_map(|(_, value)| value.split(',').map(str::trim))
    };
    if values("x-goog-stored-content-encoding")
        .any(|encoding| encoding.eq_ignore_ascii_case("gzip"))
    {
        return Err(
            "it is stored compressed, and its checksum covers the compressed bytes".to_owned(),
        );
    }
    let Some(text) = values("x-goog-hash").find_map(|hash| hash.strip_prefix("crc32c=")) else {
        return Err("the store provides no CRC-32C of it".to_owned());
    };
    let digest = Digest::from_base64(Algorithm::Crc32c, text);
    digest
        .map(|digest| vec![digest])
        .ok_or_else(|| "its CRC-32C cannot be read".to_owned())
}

/// Returns the display name of an algorithm.
fn title(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Crc32c => "CRC-32C",
        Algorithm::Crc64Nvme => "CRC-64/NVME",
        Algorithm::Crc32 => "CRC-32",
        Algorithm::Sha256 => "SHA-256",
        Algorithm::Blake3 => "BLAKE3",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRC64: &str = "rosUhgp5mIg=";
    const CRC32: &str = "4waSgw==";
    const SHA: &str = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

    fn said(protocol: Protocol, headers: &[(&'static str, &str)]) -> Result<Vec<String>, String> {
        let stated: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        let claim = from_headers(Some(protocol), &stated)?;
        Ok(claim.whole.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn checksums_of_whole_objects_count_and_others_do_not() {
        let s3 = |headers: &[(&'static str, &str)]| said(Protocol::S3, headers);
        let kind = |kind| ("x-amz-checksum-type", kind);
        let crc64 = ("x-amz-checksum-crc64nvme", CRC64);
        let wanted = Ok(vec!["crc64nvme:ae8b14860a799888".to_owned()]);
        assert_eq!(s3(&[crc64, kind("FULL_OBJECT")]), wanted);
        assert_eq!(
            s3(&[crc64]),
            wanted,
            "CRC-64/NVME always covers the whole object"
        );
        let all = [
            crc64,
            ("x-amz-checksum-crc32c", CRC32),
            ("x-amz-checksum-sha256", SHA),
            kind("FULL_OBJECT"),
        ];
        assert_eq!(s3(&all).map(|all| all.len()), Ok(3));
        for (headers, why) in [
            (vec![], "provides no checksum"),
            (vec![kind("FULL_OBJECT")], "provides no checksum"),
            (
                vec![("x-amz-checksum-crc32c", CRC32)],
                "does not say that its CRC-32C covers the whole object",
            ),
            (
                vec![("x-amz-checksum-sha256", SHA), kind("COMPOSITE")],
                "covers the parts",
            ),
            (
                vec![("x-amz-checksum-crc32c", "4waSgw==-3"), kind("COMPOSITE")],
                "covers the parts",
            ),
            (
                vec![("x-amz-checksum-crc32c", "4waSgw==-12")],
                "covers the parts",
            ),
            (vec![crc64, kind("COMPOSITE")], "covers the parts"),
            (
                vec![
                    ("x-amz-checksum-crc64nvme", "4waSgw=="),
                    kind("FULL_OBJECT"),
                ],
                "cannot be read",
            ),
        ] {
            let error = s3(&headers).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn gcs_crc_counts_unless_object_is_compressed() {
        let gcs = |headers: &[(&'static str, &str)]| said(Protocol::Gcs, headers);
        let wanted = Ok(vec!["crc32c:e3069283".to_owned()]);
        let hash = (
            "x-goog-hash",
            "crc32c=4waSgw==,md5=JfnnlDI7RTiF9RgfGwHIzA==",
        );
        assert_eq!(gcs(&[hash]), wanted);
        let md5 = ("x-goog-hash", "md5=JfnnlDI7RTiF9RgfGwHIzA==");
        let crc = ("x-goog-hash", "crc32c=4waSgw==");
        let identity = ("x-goog-stored-content-encoding", "identity");
        assert_eq!(gcs(&[md5, crc, identity]), wanted);
        for (headers, why) in [
            (vec![md5], "provides no CRC-32C"),
            (
                vec![hash, ("x-goog-stored-content-encoding", "gzip")],
                "stored compressed",
            ),
            (vec![("x-goog-hash", "crc32c=4waS")], "cannot be read"),
        ] {
            let error = gcs(&headers).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        assert!(said(Protocol::Azure, &[hash]).is_err());
        assert!(said(Protocol::S3, &[hash]).is_err());
    }
}
