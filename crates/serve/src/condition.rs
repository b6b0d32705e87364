//! Conditions of a request (RFC 9110, section 13): whether a file is sent, and whether a range of
//! it. Pure.

use std::time::{Duration, SystemTime};

use http::header::{
    HeaderMap, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE,
};

use crate::version::Version;

/// Answer to the conditions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The file is sent.
    Send,
    /// 304: the client has it.
    NotModified,
    /// 412: the client wants another version.
    Failed,
}

/// Age from which a file's time in seconds identifies its version: a later change would show.
const SETTLED: Duration = Duration::from_secs(2);

/// Evaluates the conditions in the order that the standard prescribes.
pub(crate) fn evaluate(headers: &HeaderMap, version: &Version) -> Verdict {
    let changed = |name| date(headers, name).zip(version.changed());
    if headers.contains_key(IF_MATCH) {
        // The strong comparison: a weak tag never matches.
        if !tags(headers, &IF_MATCH).any(|it| it == "*" || Some(it) == version.strong_tag()) {
            return Verdict::Failed;
        }
    } else if changed(&IF_UNMODIFIED_SINCE).is_some_and(|(date, changed)| changed > date) {
        return Verdict::Failed;
    }
    if headers.contains_key(IF_NONE_MATCH) {
        let opaque = |tag| str::strip_prefix(tag, "W/").unwrap_or(tag);
        let tag = version.tag().map(opaque);
        if tags(headers, &IF_NONE_MATCH).any(|it| it == "*" || Some(opaque(it)) == tag) {
            return Verdict::NotModified;
        }
    } else if changed(&IF_MODIFIED_SINCE).is_some_and(|(date, changed)| changed <= date) {
        return Verdict::NotModified;
    }
    Verdict::Send
}

/// Returns whether a range may be sent: `If-Range` is absent or names this version.
pub(crate) fn permits_range(headers: &HeaderMap, version: &Version, now: SystemTime) -> bool {
    let Some(value) = headers.get(IF_RANGE) else {
        return true;
    };
    let Ok(value) = value.to_str().map(str::trim) else {
        return false;
    };
    if value.starts_with('"') || value.starts_with("W/") {
        return Some(value) == version.strong_tag();
    }
    let is_settled = |changed: &SystemTime| {
        let age = now.duration_since(*changed);
        age.is_ok_and(|age| age >= SETTLED)
    };
    let changed = version.changed().filter(is_settled);
    httpdate::parse_http_date(value).is_ok_and(|date| Some(date) == changed)
}

/// Returns the entity tags of a header. A tag contains no comma here: those of [`Version`] do not.
fn tags<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let values = headers.get_all(name).into_iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',').map(str::trim))
}

/// Returns the date of a header. One that is not understood counts as absent.
fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    let text = headers.get(name)?.to_str().ok()?;
    httpdate::parse_http_date(text).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const CHANGED: u64 = 1_700_000_000;

    const TAG: &str = "\"tag\"";

    fn version() -> Version {
        Version::for_test(7, (i64::try_from(CHANGED).unwrap(), 5), Some(TAG))
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        let pairs = pairs.iter();
        pairs
            .map(|(name, text)| (name.clone(), value(text)))
            .collect()
    }

    #[test]
    fn conditions_follow_the_standard() {
        let tag = TAG.to_owned();
        let weak = format!("W/{tag}");
        let several = format!("\"a\", {tag}");
        let several_weak = format!("\"a\" , {weak}");
        let [before, same, after] =
            [CHANGED - 1, CHANGED, CHANGED + 1].map(|it| httpdate::fmt_http_date(at(it)));
        for (pairs, verdict) in [
            (&[][..], Verdict::Send),
            (&[(IF_MATCH, &*tag)], Verdict::Send),
            (&[(IF_MATCH, &several)], Verdict::Send),
            (&[(IF_MATCH, "*")], Verdict::Send),
            (&[(IF_MATCH, &weak)], Verdict::Failed),
            (&[(IF_MATCH, "\"a\"")], Verdict::Failed),
            (&[(IF_NONE_MATCH, &tag)], Verdict::NotModified),
            (&[(IF_NONE_MATCH, &several_weak)], Verdict::NotModified),
            (&[(IF_NONE_MATCH, "*")], Verdict::NotModified),
            (&[(IF_NONE_MATCH, "\"a\"")], Verdict::Send),
            (&[(IF_MODIFIED_SINCE, &before)], Verdict::Send),
            (&[(IF_MODIFIED_SINCE, &same)], Verdict::NotModified),
            (&[(IF_MODIFIED_SINCE, "yesterday")], Verdict::Send),
            (&[(IF_UNMODIFIED_SINCE, &before)], Verdict::Failed),
            (&[(IF_UNMODIFIED_SINCE, &same)], Verdict::Send),
            (&[(IF_UNMODIFIED_SINCE, &after)], Verdict::Send),
            // Tags take precedence over dates.
            (
                &[(IF_NONE_MATCH, "\"a\""), (IF_MODIFIED_SINCE, &after)],
                Verdict::Send,
            ),
            (
                &[(IF_MATCH, &tag), (IF_UNMODIFIED_SINCE, &before)],
                Verdict::Send,
            ),
            (
                &[(IF_MATCH, "\"a\""), (IF_NONE_MATCH, &tag)],
                Verdict::Failed,
            ),
        ] {
            let found = evaluate(&headers(pairs), &version());
            assert_eq!(found, verdict, "{pairs:?}");
        }
    }

    #[test]
    fn what_is_unknown_of_a_version_matches_nothing() {
        let date = httpdate::fmt_http_date(at(CHANGED));
        let weak = Version::for_test(7, (-1, 0), Some("W/\"tag\""));
        let none = Version::for_test(7, (-1, 0), None);
        for version in [&weak, &none] {
            for (pair, verdict) in [
                ((IF_MATCH, TAG), Verdict::Failed),
                ((IF_MATCH, "W/\"tag\""), Verdict::Failed),
                ((IF_MODIFIED_SINCE, &*date), Verdict::Send),
                ((IF_UNMODIFIED_SINCE, &*date), Verdict::Send),
            ] {
                let found = evaluate(&headers(std::slice::from_ref(&pair)), version);
                assert_eq!(found, verdict, "{pair:?}");
            }
            for text in [TAG, "W/\"tag\"", &*date, "Thu, 01 Jan 1970 00:00:00 GMT"] {
                let headers = headers(&[(IF_RANGE, text)]);
                assert!(
                    !permits_range(&headers, version, at(CHANGED + 60)),
                    "{text}"
                );
            }
        }
        let known = evaluate(&headers(&[(IF_NONE_MATCH, TAG)]), &weak);
        assert_eq!(known, Verdict::NotModified);
        let unknown = evaluate(&headers(&[(IF_NONE_MATCH, TAG)]), &none);
        assert_eq!(unknown, Verdict::Send);
    }

    #[test]
    fn range_needs_the_same_version() {
        let tag = TAG.to_owned();
        let weak = format!("W/{tag}");
        let [same, after] = [CHANGED, CHANGED + 1].map(|it| httpdate::fmt_http_date(at(it)));
        let permits = |text: &str, now: u64| {
            permits_range(&headers(&[(IF_RANGE, text)]), &version(), at(now))
        };
        let now = CHANGED + 60;
        assert!(permits_range(&HeaderMap::new(), &version(), at(now)));
        assert!(permits(&tag, now));
        assert!(permits(&same, now));
        // A second change in the same second would not show.
        assert!(!permits(&same, CHANGED + 1));
        for other in [&*weak, "\"a\"", &after, "yesterday"] {
            assert!(!permits(other, now), "{other}");
        }
    }
}
