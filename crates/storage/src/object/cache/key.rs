//! Names of cache entries: one object in one state. Pure.
//!
//! A name is a hash of the object's URL without user, password and query, of the server's address,
//! and of a validator that the server gave. Nothing secret goes into it.

use sha2::{Digest as _, Sha256};

use crate::object::ObjectIdentity;
use crate::options::hub_id::HubId;
use crate::options::location::{Protocol, RemoteUrl, hexadecimal, is_signature};
use crate::options::oci_reference;

/// Version of the layout of entries; part of every name.
pub(super) const FORMAT: u32 = 1;

/// Age from which the time of the last modification, which has whole seconds, distinguishes states
/// of an object: RFC 9110, 8.8.2.2, requires one second, by the server's clock. The minute allows
/// for differences between its clock and that of the file system behind it.
const AGE_SECS: i64 = 60;

/// Reason why no entry can stand for an object.
pub(super) type Uncacheable = &'static str;

const RECENT: Uncacheable = "the store gives no strong ETag, and the object changed less than a \
    minute ago by the store's clock: a load after that minute caches it if its responses have a Date";

/// Returns whether the time of an object's last modification has been the same for long enough to
/// tell its states apart. `date` is that of the response: both are of the server's clock, and this
/// machine's may be wrong. Seconds since 1970.
pub(in crate::object) fn is_settled(modified: i64, date: Option<i64>) -> bool {
    modified > 0 && date.is_some_and(|date| date.saturating_sub(modified) >= AGE_SECS)
}

/// Returns the name of the entry for an object: 64 hexadecimal digits. `origin` is the address of
/// the server; `is_settled` is the result of [`is_settled`] when the object was requested.
pub(super) fn entry_name(
    url: &RemoteUrl,
    origin: &str,
    identity: &ObjectIdentity,
    is_settled: bool,
) -> Result<String, Uncacheable> {
    // Files of equal contents are shared between revisions and tags.
    let (scheme, authority, _) = place(url)?;
    let is_strong = |tag: &&String| !tag.starts_with("W/");
    let modified = if identity.e_tag.as_ref().is_some_and(|tag| is_strong(&tag))
        || identity.version.is_some()
    {
        0
    } else if is_settled {
        identity.modified
    } else if identity.modified > 0 {
        return Err(RECENT);
    } else {
        return Err("the store gives neither a strong ETag nor the time of the last change");
    };
    let (len, modified) = (identity.len.to_string(), modified.to_string());
    let format = FORMAT.to_string();
    let optional =
        |text: &Option<String>| text.as_ref().map_or(String::new(), |it| format!("={it}"));
    let (tag, version) = (optional(&identity.e_tag), optional(&identity.version));
    let fields = [
        &*format, scheme, origin, &authority, &url.path, &tag, &version, &len, &modified,
    ];
    Ok(hashed(&fields))
}

/// Returns the name of the answer to a question of this `kind` about `url`.
pub(super) fn answer_name(
    kind: &str,
    url: &RemoteUrl,
    origin: &str,
) -> Result<String, Uncacheable> {
    // Revisions and tags have separate answers.
    let (scheme, _, authority) = place(url)?;
    let format = FORMAT.to_string();
    let fields = [&*format, kind, scheme, origin, &authority, &url.path];
    Ok(hashed(&fields))
}

/// Returns the scheme of a URL, of which some have several spellings, and the store without and
/// with the revision or tag.
fn place(url: &RemoteUrl) -> Result<(&str, String, String), Uncacheable> {
    if !url.query.as_deref().is_none_or(is_signature) {
        return Err("a query that is no signature may be a secret");
    }
    if url.protocol == Protocol::Custom {
        return Err("the caller's own store has no address");
    }
    let scheme = url.protocol.scheme();
    if url.protocol == Protocol::Hub {
        let id = HubId::from_authority(&url.authority);
        return Ok((scheme, id.repository.clone(), id.to_string()));
    }
    if url.protocol == Protocol::Oci {
        let place = oci_reference::place(&url.authority);
        return Ok((scheme, place.to_owned(), url.authority.clone()));
    }
    // Only one of the web's schemes verifies the server, so they are kept apart.
    let is_web = url.protocol == Protocol::Http;
    let scheme = if is_web { &*url.scheme } else { scheme };
    Ok((scheme, url.host().to_owned(), url.host().to_owned()))
}

fn hashed(fields: &[&str]) -> String {
    let mut hash = Sha256::new();
    for field in fields {
        // Each field is preceded by its length, so that no two lists of fields have the same bytes.
        hash.update((field.len() as u64).to_le_bytes());
        hash.update(field);
    }
    hexadecimal(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Location;

    const NOW: i64 = 1_800_000_000;

    fn identity() -> ObjectIdentity {
        ObjectIdentity {
            len: 100,
            e_tag: Some("\"a\"".to_owned()),
            version: None,
            modified: NOW,
        }
    }

    fn name(url: &str, identity: &ObjectIdentity) -> Result<String, Uncacheable> {
        let location = Location::parse(url).expect(url);
        let is_settled = is_settled(identity.modified, Some(NOW));
        entry_name(location.remote().expect("a URL"), "", identity, is_settled)
    }

    #[test]
    fn names_differ_in_everything_that_selects_bytes() {
        let mut names = std::collections::BTreeSet::new();
        for url in [
            "s3://b/k",
            "gs://b/k",
            "s3://b/l",
            "s3://c/k",
            "http://b/k",
            "https://b/k",
        ] {
            assert!(names.insert(name(url, &identity()).expect(url)), "{url}");
        }
        for other in [
            ObjectIdentity {
                len: 101,
                ..identity()
            },
            ObjectIdentity {
                e_tag: Some("\"b\"".to_owned()),
                ..identity()
            },
            ObjectIdentity {
                version: Some("1".to_owned()),
                ..identity()
            },
            ObjectIdentity {
                e_tag: None,
                version: Some("1".to_owned()),
                ..identity()
            },
        ] {
            assert!(
                names.insert(name("s3://b/k", &other).expect("strong")),
                "{other:?}"
            );
        }
        let location = Location::parse("s3://b/k").expect("a URL");
        let url = location.remote().expect("a URL");
        let elsewhere = entry_name(url, "http://minio:9000", &identity(), false).expect("a name");
        assert!(names.insert(elsewhere));
        assert!(
            names
                .iter()
                .all(|name| name.len() == 64 && !name.contains(['/', '.']))
        );
    }

    #[test]
    fn names_are_the_same_with_other_credentials_and_revisions() {
        for (one, other) in [
            ("https://h/k", "https://user:hunter2@h/k"),
            (
                "https://h/k",
                "https://h/k?X-Amz-Signature=s&X-Amz-Date=d&x-amz-expires=1",
            ),
            ("https://h/k", "https://h/k?sv=1&sig=s&se=2"),
            (
                "https://h/k",
                "https://h/k?Expires=1&Signature=s&Key-Pair-Id=k",
            ),
            ("s3://b/k", "s3a://b/k"),
            ("hf://o/m/f", "hf://o/m@v2/f"),
        ] {
            assert_eq!(name(one, &identity()), name(other, &identity()), "{other}");
        }
        // The time of the last change does not count if there is an entity tag.
        let touched = ObjectIdentity {
            modified: 5,
            ..identity()
        };
        assert_eq!(name("s3://b/k", &identity()), name("s3://b/k", &touched));
    }

    #[test]
    fn objects_without_validator_or_with_other_queries_have_no_name() {
        for url in [
            "https://h/k?token=hunter2",
            "https://h/k?X-Amz-Signature=s&versionId=3",
            "https://h/k?se=1",
            "https://h/k?",
        ] {
            assert!(
                name(url, &identity()).is_err() || url.ends_with('?'),
                "{url}"
            );
        }
        let weak = |modified| ObjectIdentity {
            e_tag: Some("W/\"a\"".to_owned()),
            modified,
            ..identity()
        };
        for modified in [0, NOW, NOW - AGE_SECS + 1, NOW + 5] {
            let reason = name("s3://b/k", &weak(modified)).expect_err("unsettled");
            assert_eq!(
                reason.contains("a load after that minute"),
                modified > 0,
                "{reason}"
            );
            assert_eq!(reason.contains("nor the time"), modified <= 0, "{reason}");
        }
        let one = name("s3://b/k", &weak(NOW - AGE_SECS)).expect("old enough");
        let other = name("s3://b/k", &weak(NOW - AGE_SECS - 1)).expect("old enough");
        assert_ne!(one, other);
        // No server's clock is known: this machine's does not replace it.
        assert!(!is_settled(NOW - AGE_SECS, None));
        assert!(!is_settled(i64::MIN, Some(i64::MAX)) && !is_settled(i64::MAX, Some(i64::MIN)));
    }
}
