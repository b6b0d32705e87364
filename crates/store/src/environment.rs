//! Reads the environment variables of object stores. No other module reads them.
//!
//! Cloud tools are configured through these variables, and users expect that a configuration for
//! `aws s3 cp` works here. They are read once, when a store is opened, into a map; everything
//! derived from them is pure. The files of the protocols describe theirs as [`Variables`].
//!
//! Libraries read some of their own, whatever the options say: the AWS SDK (`aws.rs`) its variables
//! and files; `object_store` `HOME`, `AZURITE_BLOB_STORAGE_URL`, `IDENTITY_HEADER` and
//! `GCE_METADATA_*`. The variables of proxies count for every client, too: they say how this
//! machine reaches others.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::options::store_options::StoreOptions;

/// Variables that name metadata services: those of AWS's containers and machines, Google's, and
/// Azure's in App Service and Container Apps.
const METADATA_SERVICES: [&str; 8] = [
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AZURE_IDENTITY_ENDPOINT",
    "AZURE_MSI_ENDPOINT",
    "GCE_METADATA_HOST",
    "GCE_METADATA_ROOT",
    "GCE_METADATA_IP",
    "IDENTITY_ENDPOINT",
];

/// Variables as they were when a store was opened. Empty ones do not count: `X= tload …` means "not
/// X".
#[derive(Default)]
pub(crate) struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the environment of the process.
    pub(crate) fn from_process() -> Self {
        Self::new(std::env::vars_os().filter_map(|(name, value)| {
            // Values that are not UTF-8 cannot be sent to a store.
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }))
    }

    /// Reads the environment of the process, unless the options forbid it.
    pub(crate) fn unless_forbidden(options: &StoreOptions) -> Self {
        if options.flag("environment").unwrap_or(true) {
            Self::from_process()
        } else {
            Self::default()
        }
    }

    pub(crate) fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let variables = variables
            .into_iter()
            .filter(|(_, value)| !value.trim().is_empty())
            .collect();
        Self { variables }
    }

    /// Returns the value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns a path with `~` at its beginning expanded to the user's directory.
    pub(crate) fn expanded(&self, path: &str) -> Option<PathBuf> {
        match path.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                let home = PathBuf::from(self.get("HOME")?);
                Some(home.join(rest.trim_start_matches('/')))
            }
            _ => Some(PathBuf::from(path)),
        }
    }

    /// Returns whether a variable is true by the rules of the tools of model hubs.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        let yes = ["1", "ON", "YES", "TRUE"];
        self.get(name)
            .is_some_and(|text| yes.iter().any(|yes| text.eq_ignore_ascii_case(yes)))
    }

    /// Returns the hosts of metadata services that variables name, without ports and brackets. A
    /// service behind TLS may be on another machine, and is none of them.
    pub(crate) fn metadata_hosts(&self) -> impl Iterator<Item = &str> + '_ {
        METADATA_SERVICES.iter().filter_map(|name| {
            let address = self.get(name)?;
            let (scheme, address) = address.split_once("://").unwrap_or(("http", address));
            if scheme == "https" {
                return None;
            }
            let authority = address.split('/').next()?;
            match authority.strip_prefix('[') {
                Some(ipv6) => ipv6.split(']').next(),
                None => authority.split(':').next(),
            }
        })
    }

    /// Returns the value of the first of these variables that is set.
    pub(crate) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Returns names in lower case and values for the builder of `object_store`: those that its own
    /// `from_env` would take, and those that it misses. If `credentials` is false, settings of
    /// credentials are left out, because explicit credentials must not be mixed with others.
    pub(crate) fn settings(&self, of: &Variables, credentials: bool) -> Vec<(String, String)> {
        // Additions come first: a variable that `object_store` also knows overrides them.
        let mut settings = (of.additions)(self);
        for (name, value) in &self.variables {
            if name.starts_with(of.prefix) {
                settings.push((name.to_ascii_lowercase(), value.clone()));
            }
        }
        settings.retain(|(name, _)| credentials || !of.is_credential(name));
        settings
    }
}

/// Everything except its URL and options that a store was opened from, to notice a change. All
/// variables count: libraries read some of their own. Holds secrets, which are never shown.
pub(crate) struct Surroundings {
    variables: BTreeMap<OsString, OsString>,
    files: Vec<Stamped>,
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

/// File and its state; the state is `None` if there is no such file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamped {
    path: PathBuf,
    stamp: Option<Stamp>,
}

impl Stamped {
    /// Records the state of a file, before it is read.
    pub(crate) fn new(path: PathBuf) -> Self {
        let stamp = stamp(&path);
        Self { path, stamp }
    }

    fn is_unchanged(&self) -> bool {
        stamp(&self.path) == self.stamp
    }
}

/// State of a file: device, inode, length, and the times of its last changes with nanoseconds.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Surroundings {
    /// Reads the variables of the process: before a store is opened, so that a change meanwhile is
    /// noticed.
    pub(crate) fn variables() -> BTreeMap<OsString, OsString> {
        std::env::vars_os().collect()
    }

    /// Records `variables`, and the state of `files`.
    pub(crate) fn new(variables: BTreeMap<OsString, OsString>, files: Vec<PathBuf>) -> Self {
        Self {
            variables,
            files: files.into_iter().map(Stamped::new).collect(),
        }
    }

    /// Adds a file that was found while the store was opened.
    pub(crate) fn and(mut self, file: Option<Stamped>) -> Self {
        self.files.extend(file);
        self
    }

    /// Returns whether nothing has changed.
    pub(crate) fn are_unchanged(&self) -> bool {
        self.variables == Self::variables() && self.files.iter().all(Stamped::is_unchanged)
    }
}

/// Returns the state of a file; `None` if there is none.
fn stamp(file: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(file).ok()?;
    Some((
        found.dev(),
        found.ino(),
        found.len(),
        (found.mtime(), found.mtime_nsec()),
        (found.ctime(), found.ctime_nsec()),
    ))
}

/// Environment variables with settings of a protocol's stores.
pub(crate) struct Variables {
    /// Prefix of those that `object_store` knows.
    pub(crate) prefix: &'static str,
    /// Settings that are credentials or the origin of one, in lower case.
    pub(crate) credentials: &'static [&'static str],
    /// Returns settings from variables that `object_store` does not know, by its names.
    pub(crate) additions: fn(&Environment) -> Vec<(String, String)>,
}

impl Variables {
    /// Returns whether a setting is a credential or the origin of one.
    pub(crate) fn is_credential(&self, setting: &str) -> bool {
        self.credentials.contains(&setting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::{azure, gcs, s3};

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(
            variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    /// Returns the value that a builder ends up with: later settings replace earlier ones.
    fn last<'a>(settings: &'a [(String, String)], name: &str) -> Option<&'a str> {
        let found = settings.iter().rev().find(|(setting, _)| setting == name);
        found.map(|(_, value)| value.as_str())
    }

    #[test]
    fn explicit_credentials_exclude_ambient_ones() {
        let environment = environment(&[
            ("AWS_ACCESS_KEY_ID", "AKIA"),
            ("AWS_SESSION_TOKEN", "token"),
            ("AWS_ENDPOINT_URL_S3", "http://s3"),
            ("AWS_REGION", ""),
            ("HOME", "/root"),
        ]);
        let with = environment.settings(&s3::VARIABLES, true);
        let without = environment.settings(&s3::VARIABLES, false);
        assert_eq!(last(&with, "aws_access_key_id"), Some("AKIA"));
        assert_eq!(
            without,
            [("aws_endpoint_url_s3".to_owned(), "http://s3".to_owned())]
        );
    }

    #[test]
    fn changed_file_or_variable_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("credentials");
        let now = || Surroundings::new(Surroundings::variables(), vec![file.clone()]);
        let mut seen = now();
        assert!(seen.are_unchanged());
        for text in ["one", "two"] {
            std::fs::write(&file, text).expect("a file");
            assert!(!seen.are_unchanged(), "{text}");
            seen = now();
            assert!(seen.are_unchanged());
        }
        std::fs::remove_file(&file).expect("it exists");
        assert!(!seen.are_unchanged());
        let mut seen = now();
        seen.variables.insert("TLOAD_TEST".into(), "hunter2".into());
        assert!(!seen.are_unchanged());
    }

    #[test]
    fn emulators_of_google_need_no_credentials() {
        for (host, url) in [
            ("localhost:4443", "http://localhost:4443"),
            ("https://host:4443/", "https://host:4443"),
        ] {
            let settings =
                environment(&[("STORAGE_EMULATOR_HOST", host)]).settings(&gcs::VARIABLES, true);
            assert_eq!(last(&settings, "google_base_url"), Some(url));
            assert_eq!(last(&settings, "google_skip_signature"), Some("true"));
        }
    }

    #[test]
    fn names_of_the_az_command_and_connection_strings() {
        let environment = environment(&[
            (
                "AZURE_STORAGE_CONNECTION_STRING",
                "DefaultEndpointsProtocol=https;AccountName=one;AccountKey=a2V5==;EndpointSuffix=core.windows.net",
            ),
            ("AZURE_STORAGE_ACCOUNT", "two"),
        ]);
        let settings = environment.settings(&azure::VARIABLES, true);
        assert_eq!(last(&settings, "azure_storage_account_name"), Some("two"));
        assert_eq!(last(&settings, "azure_storage_account_key"), Some("a2V5=="));
        assert_eq!(
            last(&settings, "azure_storage_endpoint"),
            Some("https://one.blob.core.windows.net")
        );
        let without = environment.settings(&azure::VARIABLES, false);
        assert_eq!(last(&without, "azure_storage_account_key"), None);
        assert_eq!(last(&without, "azure_storage_account_name"), Some("two"));
    }
}
