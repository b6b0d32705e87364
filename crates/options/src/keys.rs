//! The one table of a load's options: names, `TLOAD_*` variables, flags of the command, values.
//!
//! The command's arguments, the variables, the reading of Python's keywords, `tload doctor` and the
//! records of `tload bench` are derived from [`LoadOptions::KEYS`].

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::flag::parse_flag;
use super::{
    CacheMode, EngineChoice, LoadOptions, OnPeerLoss, Order, Share, parse_bytes, parse_duration,
};
use crate::error::{Error, ErrorKind, Result};
use crate::verify::Verify;

/// Description of an option of a load.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OptionKey {
    /// Name of the field of [`LoadOptions`], and of the keyword in Python.
    pub name: &'static str,
    /// Name of the command's flag, without dashes, and of the environment variable, if there is
    /// one, without `TLOAD_` and in lower case. None for an option that only a program can set.
    pub flag: Option<&'static str>,
    /// Kind of its values.
    pub kind: OptionKind,
    /// Default, in words.
    pub default: &'static str,
    /// Meaning, in one sentence without a full stop.
    pub summary: &'static str,
    field: Field,
}

/// Kind of an option's values, with their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// One of these names.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// Whole number between the two, inclusive.
    Count(u64, u64),
    /// Bytes between the two, inclusive, possibly with a unit: [`parse_bytes`].
    Bytes(u64, u64),
    /// Positive duration, in seconds or with a unit: [`parse_duration`].
    Duration,
    /// Mode of verification or location of a manifest: [`Verify`].
    Verify,
}

/// Value of an option. `Display` writes it as [`LoadOptions::set`] reads it. Serialized, a duration
/// is a number of seconds.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// Name of a choice, mode of verification or location of a manifest.
    Text(String),
    /// Flag.
    Flag(bool),
    /// Count.
    Count(u64),
    /// Bytes.
    Bytes(u64),
    /// Duration.
    Duration(Duration),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Flag(flag) => flag.fmt(f),
            Self::Count(number) | Self::Bytes(number) => number.fmt(f),
            Self::Duration(duration) => f.write_str(&seconds(*duration)),
        }
    }
}

impl Serialize for OptionValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Count(number) | Self::Bytes(number) => serializer.serialize_u64(*number),
            Self::Duration(duration) => serializer.serialize_f64(duration.as_secs_f64()),
        }
    }
}

/// Largest extent: one kernel read moves less than 2 GiB (`MAX_RW_COUNT`).
const EXTENT_BYTES_MAX: u64 = 1 << 30;
/// Largest depth: the size of the largest ring that every kernel with `io_uring` makes.
const DEPTH_MAX: u64 = 4096;
/// Most lanes.
const LANES_MAX: u64 = 256;

const ANY_BYTES: OptionKind = OptionKind::Bytes(1, u64::MAX);

/// Access to the field of an option, as text that [`OptionKey::parse`] has checked.
#[derive(Clone, Copy, Debug)]
struct Field {
    get: fn(&LoadOptions) -> Option<String>,
    set: fn(&mut LoadOptions, &str),
}

/// Makes the [`Field`] of an option: `optional` and `duration` if the load chooses unless it is
/// set.
macro_rules! field {
    (duration $name:ident) => {
        Field {
            get: |options| options.$name.map(seconds),
            set: |options, text| options.$name = parse_duration(text).ok(),
        }
    };
    (optional $name:ident) => {
        Field {
            get: |options| options.$name.as_ref().map(ToString::to_string),
            set: |options, text| options.$name = text.parse().ok(),
        }
    };
    ($name:ident) => {
        Field {
            get: |options| Some(options.$name.to_string()),
            set: |options, text| options.$name = text.parse().unwrap_or_default(),
        }
    };
}

impl LoadOptions {
    /// Every option, in the order of the command's help.
    #[doc(hidden)]
    pub const KEYS: &'static [OptionKey] = &[
        OptionKey {
            name: "engine",
            flag: Some("engine"),
            kind: OptionKind::Choice(EngineChoice::NAMES),
            default: "auto",
            summary: "Engine that performs the reads: auto, uring, pread or tokio-uring",
            field: field!(engine),
        },
        OptionKey {
            name: "depth",
            flag: Some("depth"),
            kind: OptionKind::Count(1, DEPTH_MAX),
            default: "tuned while loading",
            summary: "Reads in flight, over all lanes",
            field: field!(optional depth),
        },
        OptionKey {
            name: "extent_bytes",
            flag: Some("extent"),
            kind: OptionKind::Bytes(4096, EXTENT_BYTES_MAX),
            default: "chosen for the storage",
            summary: "Maximum bytes per read",
            field: field!(optional extent_bytes),
        },
        OptionKey {
            name: "align",
            flag: Some("align"),
            kind: OptionKind::Bytes(1, 64),
            default: "the size of the dtype's elements",
            summary: "Alignment of tensors in host memory, bytes, rounded up to a power of two",
            field: field!(optional align),
        },
        OptionKey {
            name: "dtype",
            flag: Some("dtype"),
            kind: OptionKind::Choice(tload_convert::NAMES),
            default: "as in the file",
            summary: "Dtype that floating-point tensors in host memory are converted to: bf16, f16, f32, \
                f64, or bfloat16, float16, float32, float64",
            field: Field {
                get: |options| options.dtype.map(|it| it.name().to_ascii_lowercase()),
                set: |options, text| options.dtype = tload_convert::named(text),
            },
        },
        OptionKey {
            name: "lanes",
            flag: Some("lanes"),
            kind: OptionKind::Count(1, LANES_MAX),
            default: "one per core for cached files (1 to a GPU), else 1, growing while it is saturated",
            summary: "Threads that read the files of one file system, each with its own engine",
            field: field!(optional lanes),
        },
        OptionKey {
            name: "in_flight_bytes",
            flag: Some("in-flight"),
            kind: ANY_BYTES,
            default: "tuned while loading",
            summary: "Maximum bytes in flight",
            field: field!(optional in_flight_bytes),
        },
        OptionKey {
            name: "memory_limit",
            flag: Some("memory-limit"),
            kind: ANY_BYTES,
            default: "max(512 MiB, largest tensor + max(a quarter of it, bytes in flight)); less in a \
                container with little memory",
            summary: "Maximum bytes that the load holds and the caller has not received",
            field: field!(optional memory_limit),
        },
        OptionKey {
            name: "device_memory_limit",
            flag: Some("device-memory-limit"),
            kind: ANY_BYTES,
            default: "as for --memory-limit, at least 8 regions, but no more than is free",
            summary: "Maximum bytes of each GPU that the load holds and the caller has not received; \
                --memory-limit then applies to staging memory",
            field: field!(optional device_memory_limit),
        },
        OptionKey {
            name: "region_bytes",
            flag: Some("region-bytes"),
            kind: ANY_BYTES,
            default: "64 MiB; less if --device-memory-limit or the free memory is small, or many files are read at once",
            summary: "Maximum bytes of a region of GPU memory that several tensors share, and so the most \
                that a kept tensor retains besides its own memory",
            field: field!(optional region_bytes),
        },
        OptionKey {
            name: "cache",
            flag: Some("cache"),
            kind: OptionKind::Choice(CacheMode::NAMES),
            default: "auto",
            summary: "Page cache: auto (copy cached bytes from it, bypass it for the rest), direct \
                (always bypass it), buffered (always read through it), drop (like auto, but \
                leave nothing in it) or map (copy nothing: tensors are views of the files)",
            field: field!(cache),
        },
        OptionKey {
            name: "writable",
            flag: None,
            kind: OptionKind::Flag,
            default: "false",
            summary: "Tensors that are views of files may be written to",
            field: field!(writable),
        },
        OptionKey {
            name: "verify",
            flag: Some("verify"),
            kind: OptionKind::Verify,
            default: "off",
            summary: "Compare the bytes read with known digests during the load: auto (if there are \
                any), require (fail if there are none), sha256 (like require, but CRCs do not \
                count, because they can be forged), sha256:MANIFEST, off, or a tload manifest; \
                --verify alone means auto",
            field: field!(verify),
        },
        OptionKey {
            name: "retries",
            flag: Some("retries"),
            kind: OptionKind::Count(0, u32::MAX as u64),
            default: "8; 0 for files that are not on a network file system",
            summary: "Retries of a failed request to an object store or a failed read of a file",
            field: field!(optional retries),
        },
        OptionKey {
            name: "order",
            flag: Some("order"),
            kind: OptionKind::Choice(Order::NAMES),
            default: "ready",
            summary: "Order of delivery: ready (as tensors complete) or file",
            field: field!(order),
        },
        OptionKey {
            name: "hedge",
            flag: Some("hedge"),
            kind: OptionKind::Flag,
            default: "true",
            summary: "Send a second request to an object store if one takes much longer than others: \
                true or false",
            field: field!(optional hedge),
        },
        OptionKey {
            name: "timeout",
            flag: Some("timeout"),
            kind: OptionKind::Duration,
            default: "none",
            summary: "Time limit for opening and, separately, for loading: 10 (seconds), 500ms, 30s, \
                2m",
            field: field!(duration timeout),
        },
        OptionKey {
            name: "share",
            flag: Some("share"),
            kind: OptionKind::Choice(Share::NAMES),
            default: "node",
            summary: "Ranks of a group that share what is read: node (those of one node), cluster (all; \
                nodes send each other the rest) or none",
            field: field!(share),
        },
        OptionKey {
            name: "join_timeout",
            flag: Some("join-timeout"),
            kind: OptionKind::Duration,
            default: "30s",
            summary: "Time that the ranks of a group have to begin a load together",
            field: field!(duration join_timeout),
        },
        OptionKey {
            name: "on_peer_loss",
            flag: Some("on-peer-loss"),
            kind: OptionKind::Choice(OnPeerLoss::NAMES),
            default: "error",
            summary: "Reaction to the loss of the rank that reads for this one: error (fail) or read (read \
                what is missing)",
            field: field!(on_peer_loss),
        },
        OptionKey {
            name: "private",
            flag: None,
            kind: OptionKind::Flag,
            default: "true",
            summary: "Tensors in host memory are writable, and what one rank writes is its own; if false, \
                those that ranks share can only be read",
            field: field!(optional private),
        },
    ];

    /// Returns the description of the option `name`.
    #[doc(hidden)]
    pub fn key(name: &str) -> Option<&'static OptionKey> {
        Self::KEYS.iter().find(|key| key.name == name)
    }

    /// Sets the option `name` to the value that `text` stands for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if there is no such option, or for an invalid value.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod tload {
    /// #     pub use tload_base::error::*;
    /// #     pub use tload_options::*;
    /// # }
    /// use tload::LoadOptions;
    ///
    /// let mut options = LoadOptions::new();
    /// options.set("memory_limit", "1.5 GiB")?;
    /// assert_eq!(options.memory_limit, Some(3 << 29));
    /// let error = options.set("depth", "0").unwrap_err();
    /// assert_eq!(error.message(), "depth is 0; it must lie between 1 and 4096");
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn set(&mut self, name: &str, text: &str) -> Result<()> {
        let Some(key) = Self::key(name) else {
            let names: Vec<_> = Self::KEYS.iter().map(|key| key.name).collect();
            return Err(Error::unknown_name("option", name, &names));
        };
        let value = key.parse(text)?;
        (key.field.set)(self, &value.to_string());
        Ok(())
    }

    /// Returns a copy with the memory limit divided by `divisor`.
    #[doc(hidden)]
    #[must_use]
    pub fn with_divided_memory(&self, divisor: u64) -> Self {
        Self {
            memory_limit: self.memory_limit.map(|limit| limit / divisor),
            ..self.clone()
        }
    }

    /// Rejects values that are invalid for any checkpoint. Starting a load does the same.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] that names the option, its value and its bounds.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tload_options as tload;
    /// let error = tload::LoadOptions::new().lanes(0).validate().unwrap_err();
    /// assert_eq!(error.option(), Some("lanes"));
    /// ```
    pub fn validate(&self) -> Result<()> {
        for key in Self::KEYS {
            if let Some(text) = (key.field.get)(self) {
                key.parse(&text)?;
            }
        }
        Ok(())
    }
}

/// Serialized as a map of each option to its [`OptionValue`], or to null if the load chooses.
impl Serialize for LoadOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Self::KEYS.iter().map(|key| (key.name, key.value(self))))
    }
}

impl OptionKey {
    /// Returns the environment variable that the command and the Python package read. There is none
    /// for the dtype: it would change what programs get that rely on those of their files.
    pub fn variable(&self) -> Option<String> {
        if self.name == "dtype" {
            return None;
        }
        let flag = self.flag?.to_ascii_uppercase().replace('-', "_");
        Some(format!("TLOAD_{flag}"))
    }

    /// Returns the value in `options`, a location without its secrets; none if the load chooses.
    pub fn value(&self, options: &LoadOptions) -> Option<OptionValue> {
        self.parsed(&(self.field.get)(options)?)
    }

    /// Parses a value.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] that names the option, `text` and the valid values.
    pub fn parse(&self, text: &str) -> Result<OptionValue> {
        self.parsed(text).ok_or_else(|| {
            // Numbers read better without quotes; other text may be anything.
            let is_number = text.parse::<f64>().is_ok();
            let found = if is_number {
                text.to_owned()
            } else {
                format!("{text:?}")
            };
            let message = format!("‹{}› is {found}; it {}", self.name, self.valid_values());
            let error = Error::new(ErrorKind::InvalidRequest, message);
            if let OptionKind::Choice(names) = self.kind {
                error.suggesting(text, names.iter().copied())
            } else {
                error
            }
        })
    }

    /// Describes the valid values, as the end of a sentence: `must lie between 1 and 4096`.
    pub fn valid_values(&self) -> String {
        match self.kind {
            OptionKind::Choice(names) => format!("can be {}", names.join(", ")),
            OptionKind::Flag => "must be true or false".to_owned(),
            OptionKind::Count(min, max) => format!("must lie between {min} and {max}"),
            OptionKind::Bytes(min, max) => format!(
                "must lie between {min} and {max} bytes, written as a number or with a unit such as \"4 MiB\""
            ),
            OptionKind::Duration => {
                "must be a positive duration such as 500ms, 30s, 2m or 1h30m".to_owned()
            }
            OptionKind::Verify => {
                "can be off, auto, require, sha256, sha256:MANIFEST, or the path or URL of a manifest"
                    .to_owned()
            }
        }
    }

    fn parsed(&self, text: &str) -> Option<OptionValue> {
        Some(match self.kind {
            OptionKind::Choice(names) => names
                .contains(&text.trim())
                .then(|| OptionValue::Text(text.trim().to_owned()))?,
            OptionKind::Flag => OptionValue::Flag(parse_flag(text)?),
            OptionKind::Count(min, max) => OptionValue::Count(
                text.trim()
                    .parse()
                    .ok()
                    .filter(|it| (min..=max).contains(it))?,
            ),
            OptionKind::Bytes(min, max) => OptionValue::Bytes(
                parse_bytes(text)
                    .ok()
                    .filter(|it| (min..=max).contains(it))?,
            ),
            OptionKind::Duration => OptionValue::Duration(parse_duration(text).ok()?),
            OptionKind::Verify => {
                let verify = text.parse::<Verify>().ok()?;
                let is_mode = !matches!(verify, Verify::Manifest(_) | Verify::Sha256(Some(_)));
                // The text of a manifest is its location, with the secrets that the mode leaves
                // out.
                OptionValue::Text(if is_mode {
                    verify.to_string()
                } else {
                    text.to_owned()
                })
            }
        })
    }
}

/// Writes a duration as [`parse_duration`] reads it. As a float, the longest durations would be
/// rounded up to more than a [`Duration`] holds.
fn seconds(duration: Duration) -> String {
    const LONGEST: Duration = Duration::from_secs(u64::MAX / 2);
    format!("{}s", duration.min(LONGEST).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns valid values of each kind, as they are shown.
    fn examples(kind: OptionKind) -> Vec<String> {
        match kind {
            OptionKind::Choice(names) => names.iter().map(ToString::to_string).collect(),
            OptionKind::Flag => vec!["false".to_owned(), "true".to_owned()],
            OptionKind::Count(min, max) | OptionKind::Bytes(min, max) => {
                vec![min.to_string(), max.to_string()]
            }
            OptionKind::Duration => vec!["0.5s".to_owned(), "90s".to_owned()],
            OptionKind::Verify => vec!["off".to_owned(), "sha256:s3://b/m.json".to_owned()],
        }
    }

    #[test]
    fn every_option_keeps_every_kind_of_value() {
        for key in LoadOptions::KEYS {
            for text in examples(key.kind) {
                let mut options = LoadOptions::default();
                options.set(key.name, &text).expect(key.name);
                let value = key.value(&options).expect(key.name);
                // A dtype may have two names, of which the shorter is shown.
                let is_shown = value.to_string() == text;
                assert!(is_shown || key.name == "dtype", "{}: {text}", key.name);
                let mut again = LoadOptions::default();
                again.set(key.name, &value.to_string()).expect(key.name);
                assert_eq!(again, options);
                options.validate().expect("a valid value");
                for other in LoadOptions::KEYS
                    .iter()
                    .filter(|other| other.name != key.name)
                {
                    let default = other.value(&LoadOptions::default());
                    assert_eq!(other.value(&options), default, "{}", other.name);
                }
            }
        }
    }

    #[test]
    fn every_field_has_a_key() {
        let shown = format!("{:#?}", LoadOptions::default());
        let fields: Vec<_> = shown
            .lines()
            .filter_map(|line| line.strip_prefix("    ")?.split_once(": "))
            .map(|(name, _)| name)
            .filter(|name| *name != "trial" && !name.starts_with(' '))
            .collect();
        let mut names: Vec<_> = LoadOptions::KEYS.iter().map(|key| key.name).collect();
        names.sort_by_key(|name| fields.iter().position(|field| field == name));
        assert_eq!(names, fields);
    }

    #[test]
    fn summaries_name_each_choice() {
        for key in LoadOptions::KEYS {
            if let OptionKind::Choice(names) = key.kind {
                let between = |c: char| !c.is_alphanumeric() && c != '-';
                let words: Vec<_> = key.summary.split(between).collect();
                let missing = names.iter().find(|name| !words.contains(name));
                assert_eq!(missing, None, "not in the summary of {}", key.name);
            }
        }
    }

    /// Each interface shows its own name of an option where an error marks it, as in `‹depth›`.
    #[test]
    fn errors_mark_every_option() {
        for key in LoadOptions::KEYS {
            let error = key.parse("").expect_err("no option takes it");
            assert_eq!(
                error.option(),
                Some(key.name),
                "add {:?} to NAMES in crates/base/src/error/option_names.rs: {error}",
                key.name
            );
        }
    }

    #[test]
    fn invalid_values_name_option_value_and_valid_values() {
        for (name, text, message) in [
            ("depth", "0", "depth is 0; it must lie between 1 and 4096"),
            (
                "cache",
                "mmap",
                "cache is \"mmap\"; it can be auto, direct, buffered, drop, map",
            ),
            (
                "depth",
                "x",
                "depth is \"x\"; it must lie between 1 and 4096",
            ),
            (
                "retries",
                "-1",
                "retries is -1; it must lie between 0 and 4294967295",
            ),
            (
                "hedge",
                "maybe",
                "hedge is \"maybe\"; it must be true or false",
            ),
            (
                "extent_bytes",
                "1 XB",
                "extent_bytes is \"1 XB\"; it must lie between 4096 and 1073741824 bytes, written as a number or with a unit such as \"4 MiB\"",
            ),
            (
                "timeout",
                "0",
                "timeout is 0; it must be a positive duration such as 500ms, 30s, 2m or 1h30m",
            ),
        ] {
            let mut options = LoadOptions::default();
            let error = options.set(name, text).expect_err(name);
            assert_eq!((error.message(), error.option()), (message, Some(name)));
            assert_eq!(options, LoadOptions::default(), "{name} is unchanged");
        }
        let error = LoadOptions::default()
            .set("deepth", "3")
            .expect_err("unknown");
        assert!(error.message().starts_with("option \"deepth\" is unknown"));
    }

    #[test]
    fn blanks_around_values_do_not_count() {
        for key in LoadOptions::KEYS {
            for text in examples(key.kind) {
                let value = key.parse(&format!(" {text} ")).expect(key.name);
                // They may be part of a path.
                if !text.contains("m.json") {
                    assert_eq!(value.to_string(), text, "{}", key.name);
                }
            }
        }
    }

    #[test]
    fn validate_checks_fields_that_were_set_directly() {
        let options = LoadOptions {
            depth: Some(0),
            ..LoadOptions::default()
        };
        let error = options.validate().expect_err("zero depth");
        assert_eq!(
            error.message(),
            "depth is 0; it must lie between 1 and 4096"
        );
        let options = LoadOptions {
            timeout: Some(Duration::ZERO),
            ..LoadOptions::default()
        };
        assert_eq!(
            options.validate().expect_err("zero").option(),
            Some("timeout")
        );
        let options = LoadOptions {
            timeout: Some(Duration::MAX),
            ..LoadOptions::default()
        };
        options.validate().expect("as good as no limit");
        LoadOptions::default()
            .validate()
            .expect("defaults are valid");
    }

    #[test]
    fn variables_are_named_after_flags() {
        let variable = |name| LoadOptions::key(name).and_then(OptionKey::variable);
        assert_eq!(
            variable("in_flight_bytes").as_deref(),
            Some("TLOAD_IN_FLIGHT")
        );
        assert_eq!((variable("writable"), variable("dtype")), (None, None));
    }

    #[test]
    fn serialized_options_have_numbers_and_nulls() {
        let mut options = LoadOptions::default();
        for (name, text) in [("depth", "3"), ("memory_limit", "1KiB"), ("timeout", "1m")] {
            options.set(name, text).expect(name);
        }
        let json = serde_json::to_value(&options).expect("plain values");
        assert_eq!(json["depth"], 3);
        assert_eq!(json["memory_limit"], 1024);
        assert_eq!(json["timeout"], 60.0);
        assert_eq!(json["engine"], "auto");
        assert!(json["lanes"].is_null());
    }

    #[test]
    fn manifest_keeps_its_url_and_shows_no_secret() {
        let mut options = LoadOptions::default();
        options.set("verify", "dir/m.json ").expect("a path");
        assert_eq!(options.verify, Verify::Manifest("dir/m.json ".to_owned()));
        let url = "https://user:hunter2@host/m.json?sig=hunter2";
        options.set("verify", url).expect("a URL");
        assert_eq!(options.verify, Verify::Manifest(url.to_owned()));
        let shown = serde_json::to_string(&options).expect("plain values");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
