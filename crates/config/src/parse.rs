//! Reads the text of the file. Every error names the file, the line and the key, and no value that
//! may be a secret.

use std::path::Path;

use tload::{Error, LoadOptions, Location, Result, StoreOptions, Verify};
use tload_base::options::StoreKey;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::prefix::Prefix;
use crate::secrets;
use crate::table::{self, CACHE, LISTS, PATHS};
use crate::values::{self, Kind};
use crate::{Config, Setting};

/// Tables of the file.
const TABLES: [&str; 3] = ["load", "store", "cache"];

type Key<'a> = Spanned<DeString<'a>>;
type Value<'a> = Spanned<DeValue<'a>>;

/// Text of the file, to turn places in it into lines.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
    home: Option<&'a Path>,
}

impl Config {
    /// Parses the text of `file`. A path that begins with `~/` is below `home`.
    pub(crate) fn parse(file: &Path, text: &str, home: Option<&Path>) -> Result<Self> {
        let source = Source { file, text, home };
        let root = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let message = error.message().lines().collect::<Vec<_>>().join("; ");
            source.at(
                at,
                Error::invalid_request(format!("is not TOML: {message}")),
            )
        })?;
        let mut config = Self {
            file: Some(file.to_owned()),
            ..Self::default()
        };
        for (key, value) in root.get_ref() {
            let name: &str = key.get_ref();
            if !TABLES.contains(&name) {
                return Err(source.unknown(key, "", &TABLES));
            }
            let DeValue::Table(table) = value.get_ref() else {
                return Err(source.wrong_type("", key, value, "a table"));
            };
            match name {
                "load" => config.load = source.load(table)?,
                "cache" => config.store.extend(source.cache(table)?),
                _ => source.store(table, &mut config)?,
            }
        }
        config.prefixes.sort_by_key(|(prefix, _)| prefix.len());
        Ok(config)
    }
}

impl Source<'_> {
    /// Reads `[load]`.
    fn load(&self, table: &DeTable<'_>) -> Result<Vec<Setting>> {
        const TABLE: &str = "[load]";
        let mut settings = Vec::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            let Some((option, variable)) = table::load().find(|(option, _)| option.name == name)
            else {
                let names: Vec<_> = table::load().map(|(option, _)| option.name).collect();
                return Err(self.unknown(key, TABLE, &names));
            };
            let kind = table::kind_of_load(option.kind);
            let text = self.text(TABLE, key, value, kind)?;
            let failed = |error| self.about(TABLE, key, error);
            if has_secret(&text) {
                return Err(failed(secrets::in_value(&variable)));
            }
            LoadOptions::default()
                .set(option.name, &text)
                .map_err(|error| {
                    // Without the name, which each interface shows as its own.
                    let message = format!("{text:?} is not valid: it {}", option.valid_values());
                    let hint = error.hint().map(str::to_owned);
                    let error = Error::invalid_request(message);
                    failed(match hint {
                        Some(hint) => error.with_hint(hint),
                        None => error,
                    })
                })?;
            settings.push(self.setting(TABLE, option.name, text, key));
        }
        Ok(settings)
    }

    /// Reads `[cache]`.
    fn cache(&self, table: &DeTable<'_>) -> Result<Vec<Setting>> {
        const TABLE: &str = "[cache]";
        let mut settings = Vec::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            let Some((_, option)) = table::cache().find(|(short, _)| *short == name) else {
                let names: Vec<_> = table::cache().map(|(short, _)| short).collect();
                return Err(self.unknown(key, TABLE, &names));
            };
            settings.push(self.store_option(TABLE, key, value, option)?);
        }
        Ok(settings)
    }

    /// Reads `[store]`, and the tables of prefixes in it.
    fn store(&self, table: &DeTable<'_>, config: &mut Config) -> Result<()> {
        const TABLE: &str = "[store]";
        for (key, value) in table {
            let name: &str = key.get_ref();
            if !name.contains("://") {
                let option = self.store_key(TABLE, key)?;
                if let Some(short) = option.name.strip_prefix(CACHE) {
                    let error = Error::invalid_request("is a key of [cache]");
                    let error = error.with_hint(format!("write {short} in the table [cache]"));
                    return Err(self.about(TABLE, key, error));
                }
                if LISTS.contains(&option.name) {
                    let message = "is a key of the table of a prefix: no place has the files of every location";
                    let hint = "write it in a table such as [store.\"s3://models/\"]";
                    let error = Error::invalid_request(message).with_hint(hint);
                    return Err(self.about(TABLE, key, error));
                }
                config
                    .store
                    .push(self.store_option(TABLE, key, value, option)?);
                continue;
            }
            let prefix = Prefix::parse(name).map_err(|error| {
                // A password may be in it.
                self.at(key.span().start, error.with_context("a prefix in [store]"))
            })?;
            let DeValue::Table(options) = value.get_ref() else {
                return Err(self.wrong_type(TABLE, key, value, "a table"));
            };
            let table = format!("[store.{name:?}]");
            let mut settings = Vec::new();
            for (key, value) in options {
                let option = self.store_key(&table, key)?;
                settings.push(self.store_option(&table, key, value, option)?);
            }
            config.prefixes.push((prefix, settings));
        }
        Ok(())
    }

    /// Returns the store option that a key names.
    fn store_key(&self, table: &str, key: &Key<'_>) -> Result<&'static StoreKey> {
        let name: &str = key.get_ref();
        match table::store().find(|option| option.name == name) {
            Some(option) if option.secret => Err(self.about(table, key, secrets::in_file(name))),
            Some(option) => Ok(option),
            None if secrets::may_be_secret(name) => {
                Err(self.about(table, key, secrets::in_file(name)))
            }
            None => {
                let names = table::store().filter(|option| !option.secret);
                let names: Vec<_> = names.map(|option| option.name).collect();
                Err(self.unknown(key, table, &names))
            }
        }
    }

    fn store_option(
        &self,
        table: &str,
        key: &Key<'_>,
        value: &Value<'_>,
        option: &'static StoreKey,
    ) -> Result<Setting> {
        let mut text = self.text(table, key, value, table::kind_of_store(option.form))?;
        let failed = |error| self.about(table, key, error);
        if PATHS.contains(&option.name) {
            text = self.absolute(&text).map_err(failed)?;
        }
        // An empty list of mirrors is none, which no option says.
        let is_none = LISTS.contains(&option.name) && text.is_empty();
        if !is_none {
            let mut options = StoreOptions::new();
            options.set(option.name, &text).map_err(failed)?;
            let has_secret = options.secrets().next().is_some();
            if has_secret {
                let variable = format!("{} to {}=…", secrets::STORE, option.name);
                return Err(failed(secrets::in_value(&variable)));
            }
        }
        Ok(self.setting(table, option.name, text, key))
    }

    fn text(&self, table: &str, key: &Key<'_>, value: &Value<'_>, kind: Kind) -> Result<String> {
        values::text(kind, value.get_ref())
            .ok_or_else(|| self.wrong_type(table, key, value, kind.wanted()))
    }

    /// Returns an absolute path as it is, and one that begins with `~/` below the home directory.
    fn absolute(&self, path: &str) -> Result<String> {
        if Path::new(path).is_absolute() {
            return Ok(path.to_owned());
        }
        let below = path.strip_prefix("~/").zip(self.home);
        let absolute =
            below.and_then(|(rest, home)| home.join(rest).into_os_string().into_string().ok());
        absolute.ok_or_else(|| {
            Error::invalid_request(format!(
                "the path is {path:?}, which depends on the current directory"
            ))
            .with_hint("write a path that begins with / or ~/")
        })
    }

    fn setting(&self, table: &str, option: &'static str, value: String, key: &Key<'_>) -> Setting {
        Setting {
            table: table.to_owned(),
            option,
            value,
            line: self.line(key.span().start),
        }
    }

    fn unknown(&self, key: &Key<'_>, table: &str, names: &[&str]) -> Error {
        let name: &str = key.get_ref();
        let (what, of) = if table.is_empty() {
            ("table", String::new())
        } else {
            ("key", format!(" in {table}"))
        };
        let is_of_load = table.is_empty() && table::load().any(|(key, _)| key.name == name);
        let is_of_store = table.is_empty() && table::store().any(|key| key.name == name);
        let error = Error::invalid_request(format!("{what} {name:?}{of} is unknown"));
        let error = if is_of_load || is_of_store {
            let table = if is_of_load { "[load]" } else { "[store]" };
            error.with_hint(format!("write it below {table}"))
        } else {
            error
                .with_hint(format!("it can be {}", names.join(", ")))
                .suggesting(name, names.iter().copied())
        };
        self.at(key.span().start, error)
    }

    fn wrong_type(&self, table: &str, key: &Key<'_>, value: &Value<'_>, wanted: &str) -> Error {
        let found = values::found(value.get_ref());
        let error = Error::invalid_request(format!("wanted {wanted}, found {found}"));
        self.about(table, key, error)
    }

    /// Returns `error` with the key and its place.
    fn about(&self, table: &str, key: &Key<'_>, error: Error) -> Error {
        let blank = if table.is_empty() { "" } else { " " };
        let error = error.with_context(format!("{table}{blank}{}", key.get_ref()));
        self.at(key.span().start, error)
    }

    fn at(&self, byte: usize, error: Error) -> Error {
        let line = self.line(byte);
        error.with_location(format!("{}:{line}", self.file.display()))
    }

    /// Returns the line of a byte, from 1.
    fn line(&self, byte: usize) -> usize {
        let before = self.text.bytes().take(byte);
        1 + before.filter(|byte| *byte == b'\n').count()
    }
}

/// Returns whether a text is a URL with more than is shown of it.
fn has_secret(text: &str) -> bool {
    let manifest = match text.parse() {
        Ok(Verify::Manifest(manifest)) => manifest,
        _ => text.strip_prefix("sha256:").unwrap_or_default().to_owned(),
    };
    manifest.contains("://") && Location::parse(&manifest).is_ok_and(|it| it.has_secret())
}
