//! SHA-256 of an object that its server states in a header. Pure.

use base64::Engine as _;

/// Bytes of a SHA-256.
pub type Sha256 = [u8; 32];

/// Parses the field `Repr-Digest` (RFC 9530): a dictionary of algorithms, whose values are bytes in
/// Base64 between colons. Returns the SHA-256 if there is one.
pub(crate) fn from_field(field: &str) -> Option<Sha256> {
    let mut members = field.split(',').map(str::trim);
    let bytes = members.find_map(|member| member.strip_prefix("sha-256=:"))?;
    let (digits, _) = bytes.split_once(':')?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(digits);
    bytes.ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha_256_is_found_among_other_algorithms() {
        // The SHA-256 of an empty file.
        let digits = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        let found = from_field(&format!("sha-256=:{digits}:"));
        assert_eq!(
            found.map(|it| it[..4].to_vec()),
            Some(vec![0xe3, 0xb0, 0xc4, 0x42])
        );
        assert_eq!(
            from_field(&format!("sha-512=:AA==:, sha-256=:{digits}:;a=1")),
            found
        );
        for field in [
            "",
            "sha-256",
            "sha-256=:47DEQpj8:",
            "sha-256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
            "sha-512=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:",
        ] {
            assert_eq!(from_field(field), None, "{field}");
        }
    }
}
