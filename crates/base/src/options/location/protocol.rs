//! Protocols of object stores, and the form of their URLs.

use crate::error::Result;
use crate::options::{hub_id, oci_reference};

/// Protocol of an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// `s3://bucket/key`; also `s3a://`.
    S3,
    /// `gs://bucket/key`; also `gcs://`.
    Gcs,
    /// `az://container/key`, also `azure://` and `adl://`;
    /// `abfss://container@account.dfs.core.windows.net/key`, also `abfs://`.
    Azure,
    /// `http://host/path` and `https://host/path`.
    Http,
    /// A model on the Hugging Face Hub or on a server with the same API: `hf://org/name`,
    /// `hf://org/name@revision`, each also with the path of a file or directory in it. Read from the
    /// local cache of `huggingface_hub` if it is complete there. Else the revision is resolved to
    /// a commit once, and that commit is read by ranges. Also a bucket: `hf://buckets/org/name/path`.
    Hub,
    /// A model in an OCI registry: `oci://registry/repository:tag` or
    /// `oci://registry/repository@sha256:…`, each also with the path of a file or directory in it.
    /// The manifest is requested once; its layers are files, read by ranges.
    Oci,
    /// A store that the caller opened.
    Custom,
}

/// Splits what follows `://` into authority and path.
type Split = fn(&str) -> Result<(String, String)>;

/// URLs of a protocol: their schemes, and what stands behind them.
pub(super) struct UrlForm {
    protocol: Protocol,
    /// Schemes in lower case, the usual one first.
    pub(super) schemes: &'static [&'static str],
    /// Word for the text before the path.
    pub(super) authority: &'static str,
    /// True if paths are percent-encoded, and `?` and `#` end them.
    pub(super) is_encoded: bool,
    /// `None` if the first slash after `://` splits authority and path.
    pub(super) split: Option<Split>,
}

/// Every protocol that a URL can name.
pub(super) const FORMS: &[UrlForm] = &[
    keys(Protocol::S3, &["s3", "s3a"], "bucket"),
    keys(Protocol::Gcs, &["gs", "gcs"], "bucket"),
    keys(
        Protocol::Azure,
        &["az", "azure", "adl", "abfs", "abfss"],
        "container",
    ),
    UrlForm {
        is_encoded: true,
        ..keys(Protocol::Http, &["http", "https"], "host")
    },
    UrlForm {
        split: Some(hub_id::split),
        ..keys(Protocol::Hub, &["hf"], "repository")
    },
    UrlForm {
        split: Some(oci_reference::split),
        ..keys(Protocol::Oci, &["oci"], "repository")
    },
];

static CUSTOM: UrlForm = keys(Protocol::Custom, &["store"], "store");

/// Returns the form of URLs whose path is a key of an object, as it is.
const fn keys(
    protocol: Protocol,
    schemes: &'static [&'static str],
    authority: &'static str,
) -> UrlForm {
    UrlForm {
        protocol,
        schemes,
        authority,
        is_encoded: false,
        split: None,
    }
}

impl Protocol {
    /// Every protocol that a URL can name.
    pub const ALL: [Self; FORMS.len()] = {
        let mut all = [Self::Custom; FORMS.len()];
        let mut row = 0;
        while row < all.len() {
            all[row] = FORMS[row].protocol;
            row += 1;
        }
        all
    };

    /// Returns the protocol of a scheme in lower case.
    pub(super) fn of_scheme(scheme: &str) -> Option<Self> {
        let form = FORMS.iter().find(|form| form.schemes.contains(&scheme))?;
        Some(form.protocol)
    }

    pub(super) fn form(self) -> &'static UrlForm {
        let form = FORMS.iter().find(|form| form.protocol == self);
        form.unwrap_or(&CUSTOM)
    }

    /// Returns the usual scheme of the protocol's URLs.
    #[doc(hidden)]
    pub fn scheme(self) -> &'static str {
        self.form().schemes[0]
    }
}
