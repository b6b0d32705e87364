//! Locations, names of hubs and options of stores: whatever the input is, what is shown contains no
//! secret and can be printed.

use super::{Input, assert_fit_to_print};
use tload::{Location, StoreOptions};
use tload_base::error::printable;

/// Placeholder for every secret; nothing else in an input looks like it.
const SECRET: &str = "pLaNtEdSeCrEt";

/// Checks `input` as a location, as the text around secrets in one, and its lines as options of a
/// store.
pub(super) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    parsed(&text);
    if text.contains(SECRET) {
        return;
    }
    planted(&mut Input::new(input));
    for line in text.lines().take(16) {
        option(line);
    }
}

fn parsed(text: &str) {
    let location = match Location::parse(text) {
        Ok(location) => location,
        Err(error) => return assert_fit_to_print(&error),
    };
    let shown = location.to_string();
    assert_eq!(
        shown,
        printable(&shown),
        "a location with control characters"
    );
    // A location below another one is shown as such.
    let below = location.join("model.safetensors");
    assert!(below.has_extension("safetensors"));
    assert_eq!(below.protocol(), location.protocol());
    assert_eq!(below.parent().protocol(), location.protocol());
    let _ = (location.file_name(), format!("{location:?} {below:?}"));
    if let Some(url) = location.remote() {
        assert!(!url.host().is_empty(), "a URL without a host");
    }
}

/// Places secrets where URLs carry them: users, passwords, queries, fragments.
fn planted(input: &mut Input<'_>) {
    let scheme = input.pick(&[
        "https", "http", "s3", "gs", "az", "abfss", "hf", "ftp", "S3A", "file",
    ]);
    let is_web = scheme.starts_with("http");
    let plain = |text: String| text.replace(['/', '?', '#', '\\'], "");
    let user = plain(input.text(6));
    let host = plain(input.text(12));
    // In keys of stores a `?` is a character like any other, unless a `=` shows that it is not.
    let path = input.text(12).replace(['?', '#'], "");
    let (name, value) = (plain(input.text(6)), plain(input.text(6)));
    let texts = [
        format!("{scheme}://{user}:{SECRET}@{host}/{path}"),
        format!("{scheme}://{host}/{path}?{name}={value}{SECRET}"),
        format!("{scheme}://{SECRET}@{host}/{path}?{name}={SECRET}&x={SECRET}"),
        format!("{scheme}:/{user}:{SECRET}@{host}/{path}"),
    ];
    // The second has no user, and a fragment is part of a key.
    let web = [
        format!("{scheme}://{host}/{path}?{SECRET}"),
        format!("{scheme}://{host}/{path}#{SECRET}"),
    ];
    // `file://` URLs and a single slash after an unknown scheme are paths: shown as they are.
    let is_path = |text: &&String| {
        scheme == "file" || text.starts_with("ftp:/") && !text.starts_with("ftp://")
    };
    let texts = texts.iter().filter(|text| !is_path(text));
    for text in texts.chain(web.iter().filter(|_| is_web)) {
        let shown = match Location::parse(text) {
            // The part before the `@` of such a URL is the name of a container.
            Ok(_) if scheme == "abfss" && text.starts_with("abfss://pL") => continue,
            Ok(location) => {
                let below = location.join("a");
                let all = [&location, &below, &location.parent()];
                let texts = all.map(|one| format!("{one} {one:?} {:?}", one.remote()));
                texts.concat()
            }
            Err(error) => format!("{} {error:?}", error.chain()),
        };
        assert!(!shown.contains(SECRET), "{text:?} is shown as {shown:?}");
    }
}

/// Checks a key with a value that is a secret unless the key is known to hold none: neither the
/// options nor an error show it.
fn option(line: &str) {
    match StoreOptions::parse(line) {
        Ok((key, value)) => {
            let mut options = StoreOptions::new();
            if let Err(error) = options.set(&key, value) {
                assert_fit_to_print(&error);
            }
            let mut options = StoreOptions::new();
            let shown = match options.set(&key, SECRET) {
                _ if is_open(&key) => String::new(),
                Ok(()) => format!("{options:?}"),
                Err(error) => error.chain(),
            };
            assert!(!shown.contains(SECRET), "{key:?} is shown as {shown:?}");
        }
        Err(error) => assert_fit_to_print(&error),
    }
}

/// Returns whether the values of a key are shown. Those of an unknown key are not.
fn is_open(key: &str) -> bool {
    let mut known = StoreOptions::KEYS.iter();
    known.any(|known| !known.secret && known.name.eq_ignore_ascii_case(key.trim()))
}
