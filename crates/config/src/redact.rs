//! Redaction of a command line for the record of a benchmark: removes the secrets of `--store` and
//! of URLs. Pure.

use std::ffi::OsString;

use tload::{Location, StoreOptions};

const FLAG: &str = "--store";
const HIDDEN: &str = "***";

/// Returns the arguments without secrets.
pub fn arguments(arguments: &[OsString]) -> Vec<String> {
    let mut is_option = false;
    let mut shown = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let text = argument.to_string_lossy();
        if std::mem::take(&mut is_option) {
            shown.push(options(&text));
            continue;
        }
        is_option = text == FLAG;
        let joined = text
            .strip_prefix(FLAG)
            .and_then(|rest| rest.strip_prefix('='));
        shown.push(match joined {
            Some(value) => format!("{FLAG}={}", options(value)),
            None => url(&text),
        });
    }
    shown
}

/// Redacts one value of the flag, which holds one option per line.
fn options(text: &str) -> String {
    let shown: Vec<_> = text.lines().map(store_option).collect();
    shown.join("\n")
}

/// Redacts one option of a store. The value of an unknown key may be a secret, so it is hidden.
pub fn store_option(text: &str) -> String {
    let Ok((key, value)) = StoreOptions::parse(text) else {
        return HIDDEN.to_owned();
    };
    let mut keys = StoreOptions::KEYS.iter();
    match keys.find(|known| known.name.eq_ignore_ascii_case(&key)) {
        Some(known) if !known.secret => format!("{key}={}", url(&value)),
        _ => format!("{key}={HIDDEN}"),
    }
}

/// Returns a URL without user, password and query; any other text unchanged.
fn url(text: &str) -> String {
    let Some((before, _)) = text.split_once("://") else {
        return text.to_owned();
    };
    match Location::parse(text) {
        Ok(location) => location.to_string(),
        Err(_) => format!("{before}://{HIDDEN}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redaction_removes_secrets_only() {
        let line = [
            ("tload", "tload"),
            ("s3://bucket/model", "s3://bucket/model"),
            ("https://u:secret@h/m?sig=secret", "https://h/m?…"),
            ("ftp://u:secret@h/m", "ftp://***"),
            ("--store", "--store"),
            ("secret_access_key=secret", "secret_access_key=***"),
            ("--store=Session_Token=secret", "--store=Session_Token=***"),
            ("--store=header.x-key=secret", "--store=header.x-key=***"),
            (
                "--store=aws_secret_access_key=secret",
                "--store=aws_secret_access_key=***",
            ),
            ("--store", "--store"),
            ("secret", "***"),
            ("--store", "--store"),
            (
                "region=eu-west-1\ntoken=secret",
                "region=eu-west-1\ntoken=***",
            ),
            (
                "--store=proxy=http://u:secret@p:3128",
                "--store=proxy=http://p:3128",
            ),
            (
                "--store=proxy=socks5://u:secret@p",
                "--store=proxy=socks5://***",
            ),
            ("--depth", "--depth"),
            ("4,8", "4,8"),
        ];
        let typed: Vec<OsString> = line.iter().map(|(typed, _)| typed.into()).collect();
        let wanted: Vec<&str> = line.iter().map(|(_, shown)| *shown).collect();
        assert_eq!(arguments(&typed), wanted);
        assert!(!arguments(&typed).join(" ").contains("=secret"));
    }
}
