//! Lists of directories, for browsers and programs. Pure.

use std::ffi::OsString;
use std::fmt::Write;
use std::time::SystemTime;

use serde::Serialize;
use tload::internal::format_bytes;
use tload::verify::Digest;

use crate::target::encode;
use crate::version::http_date;

/// File or directory in a list.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    pub(crate) is_directory: bool,
    /// `None` for directories and for objects.
    pub(crate) bytes: Option<u64>,
    /// `None` for objects.
    pub(crate) modified: Option<SystemTime>,
    /// SHA-256, if it is known.
    pub(crate) digest: Option<Digest>,
}

/// Entry in JSON.
#[derive(Serialize)]
struct Item {
    name: String,
    /// Address, relative to that of the list; also of names that are not UTF-8.
    href: String,
    #[serde(rename = "type")]
    kind: &'static str,
    bytes: Option<u64>,
    modified: Option<String>,
    sha256: Option<String>,
}

#[derive(Serialize)]
struct List {
    entries: Vec<Item>,
}

impl Entry {
    fn href(&self) -> String {
        encode(&self.name) + if self.is_directory { "/" } else { "" }
    }

    fn modified(&self) -> Option<String> {
        self.modified.and_then(http_date)
    }
}

/// Returns the list as JSON.
pub(crate) fn json(entries: &[Entry]) -> String {
    let item = |entry: &Entry| Item {
        name: entry.name.to_string_lossy().into_owned(),
        href: entry.href(),
        kind: if entry.is_directory {
            "directory"
        } else {
            "file"
        },
        bytes: entry.bytes,
        modified: entry.modified(),
        sha256: entry.digest.map(|digest| digest.to_hex()),
    };
    let list = List {
        entries: entries.iter().map(item).collect(),
    };
    let text = serde_json::to_string_pretty(&list);
    text.expect("it has only strings and numbers") + "\n"
}

/// Returns the list as a page; `path` is that of the directory, encoded.
pub(crate) fn html(path: &str, entries: &[Entry]) -> String {
    let title = escape(&percent_encoding::percent_decode_str(path).decode_utf8_lossy());
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
         <body>\n<h1>{title}</h1>\n<table>\n"
    );
    if path != "/" {
        page.push_str("<tr><td><a href=\"../\">../</a></td></tr>\n");
    }
    for entry in entries {
        let name = escape(&entry.name.to_string_lossy());
        let slash = if entry.is_directory { "/" } else { "" };
        let size = entry.bytes.map(format_bytes).unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "<tr><td><a href=\"{}\">{name}{slash}</a></td><td align=\"right\">{size}</td><td>{}</td></tr>",
            entry.href(),
            entry.modified().unwrap_or_default(),
        );
    }
    page.push_str("</table>\n</body>\n</html>\n");
    page
}

/// Escapes a name for text in HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use tload::verify::Algorithm;

    use super::*;

    fn entry(name: &str, is_directory: bool) -> Entry {
        Entry {
            name: name.into(),
            is_directory,
            bytes: (!is_directory).then_some(1536),
            modified: Some(SystemTime::UNIX_EPOCH),
            digest: (!is_directory).then(|| Digest::compute(Algorithm::Sha256, b"")),
        }
    }

    #[test]
    fn names_cannot_add_elements_or_leave_the_directory() {
        let entries = [
            entry("<script>\"&'", false),
            entry("//host", true),
            entry("a:b", false),
        ];
        let page = html("/%3Cb%3E/", &entries);
        assert!(
            !page.contains("<script>") && !page.contains("<b>"),
            "{page}"
        );
        assert!(
            page.contains("&lt;script&gt;&quot;&amp;&#39;</a>"),
            "{page}"
        );
        assert!(page.contains("href=\"%2F%2Fhost/\""), "{page}");
        assert!(page.contains("href=\"a%3Ab\""), "{page}");
        assert!(
            page.contains("1.5 KiB") && page.contains("href=\"../\""),
            "{page}"
        );
        assert!(!html("/", &[]).contains("../"));
    }

    #[test]
    fn json_has_what_clients_need() {
        let list = json(&[entry("a b", false), entry("deep", true)]);
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let wanted = serde_json::json!({"entries": [
            {"name": "a b", "href": "a%20b", "type": "file", "bytes": 1536,
             "modified": "Thu, 01 Jan 1970 00:00:00 GMT",
             "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
            {"name": "deep", "href": "deep/", "type": "directory", "bytes": null,
             "modified": "Thu, 01 Jan 1970 00:00:00 GMT", "sha256": null},
        ]});
        assert_eq!(list, wanted);
    }
}
