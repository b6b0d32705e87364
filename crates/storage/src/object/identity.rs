//! Identity of one state of an object: what a store states of it, and how two states differ. Pure.

use object_store::ObjectMeta;

use super::store::obs_text::of_list;

/// Identity of one state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// Length, bytes.
    pub len: u64,
    /// `ETag`, if the store gives one.
    pub e_tag: Option<String>,
    /// Version or generation, if the store keeps any.
    pub version: Option<String>,
    /// Time of the last modification, seconds since 1970.
    pub modified: i64,
}

impl ObjectIdentity {
    pub(crate) fn from_meta(meta: &ObjectMeta) -> Self {
        // ETags and versions of lists come from JSON or XML, where any text is possible. Requests
        // send them in headers.
        let is_header = |text: &String| !text.contains(char::is_control);
        let e_tag = meta.e_tag.clone().filter(is_header).map(of_list);
        let version = meta.version.clone().filter(is_header);
        Self {
            len: meta.size,
            e_tag: e_tag.filter(|tag| !is_blank(tag)),
            // S3 calls the version "null" in a bucket without versioning.
            version: version.filter(|version| version != "null"),
            modified: meta.last_modified.timestamp(),
        }
    }

    /// Returns whether the store can tell states of the object apart by more than its length: by an
    /// entity tag, a version, or the time of the last modification.
    pub fn is_versioned(&self) -> bool {
        // `object_store` reports a missing time as 1970.
        self.e_tag.is_some() || self.version.is_some() || self.modified > 0
    }

    /// Returns the entity tag if it changes with every byte. A weak one never matches (RFC 9110,
    /// 13.1.1).
    pub(super) fn strong_tag(&self) -> Option<&str> {
        let tag = self.e_tag.as_deref()?;
        (!tag.starts_with("W/")).then_some(tag)
    }

    /// Returns the entity tag as a server that relays the object states it: a strong one of the
    /// form that HTTP prescribes (RFC 9110, 8.8.3), and without a comma, which separates tags.
    pub fn relayed_tag(&self) -> Option<&str> {
        let tag = self.strong_tag()?;
        let opaque = tag.strip_prefix('"')?.strip_suffix('"')?;
        let is_relayed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',');
        opaque.bytes().all(is_relayed).then_some(tag)
    }

    /// Returns the difference between this state, which was opened, and `found`, in words.
    pub(super) fn difference(&self, found: &Self) -> Option<String> {
        let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        let is_weak = self.strong_tag().is_none();
        Some(if found.len != self.len {
            let (seen, found) = (self.len, found.len);
            format!("its length changed from {seen} to {found} bytes")
        } else if found.e_tag != self.e_tag {
            format!(
                "its ETag changed from {} to {}",
                shown(&self.e_tag),
                shown(&found.e_tag)
            )
        } else if is_weak && found.version != self.version {
            format!(
                "its version changed from {} to {}",
                shown(&self.version),
                shown(&found.version)
            )
        } else if is_weak && found.modified != self.modified {
            "its modification time changed".to_owned()
        } else {
            return None;
        })
    }
}

/// Returns whether an entity tag is the same for every object: `""`, `W/""`.
fn is_blank(tag: &str) -> bool {
    let opaque = tag.strip_prefix("W/").unwrap_or(tag);
    opaque.trim_matches('"').is_empty()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use object_store::path::Path;

    use super::*;

    #[test]
    fn blank_tag_null_version_and_epoch_are_no_validator() {
        let identity = |e_tag: Option<&str>, version: Option<&str>, modified: i64| {
            ObjectIdentity::from_meta(&ObjectMeta {
                location: Path::default(),
                last_modified: DateTime::from_timestamp(modified, 0).expect("a time"),
                size: 1,
                e_tag: e_tag.map(str::to_owned),
                version: version.map(str::to_owned),
            })
        };
        for (e_tag, version, modified) in [
            (Some("\"a\""), None, 0),
            (Some("W/\"a\""), None, 0),
            (None, Some("1"), 0),
            (None, None, 1_767_225_600),
        ] {
            assert!(identity(e_tag, version, modified).is_versioned());
        }
        for e_tag in [
            None,
            Some(""),
            Some("\"\""),
            Some("W/\"\""),
            Some("\"a\r\nSet-Cookie: b\""),
            Some("\"\u{85}\""),
        ] {
            assert!(
                !identity(e_tag, Some("null"), 0).is_versioned(),
                "{e_tag:?}"
            );
        }
    }

    #[test]
    fn relayed_tag_is_strong_and_well_formed() {
        for (tag, is_relayed) in [
            ("\"a-1\"", true),
            ("\"sha256:ab/+=\"", true),
            ("W/\"a\"", false),
            ("a", false),
            ("\"", false),
            ("\"a\"b\"", false),
            ("\"a,b\"", false),
            ("\"a b\"", false),
            ("\"\u{fc}\"", false),
            ("\"a\nb\"", false),
        ] {
            let identity = ObjectIdentity {
                len: 1,
                e_tag: Some(tag.to_owned()),
                version: None,
                modified: 0,
            };
            let wanted = is_relayed.then_some(tag);
            assert_eq!(identity.relayed_tag(), wanted, "{tag:?}");
        }
    }
}
