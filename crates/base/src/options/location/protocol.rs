//! Protocols of object stores, and the schemes of their URLs.

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

/// Every protocol that a URL can name, with its schemes.
pub(super) const SCHEMES: [(Protocol, &[&str]); 6] = [
    (Protocol::S3, &["s3", "s3a"]),
    (Protocol::Gcs, &["gs", "gcs"]),
    (Protocol::Azure, &["az", "azure", "adl", "abfs", "abfss"]),
    (Protocol::Http, &["http", "https"]),
    (Protocol::Hub, &["hf"]),
    (Protocol::Oci, &["oci"]),
];

impl Protocol {
    /// Every protocol that a URL can name.
    pub const ALL: [Self; SCHEMES.len()] = {
        let mut all = [Self::Custom; SCHEMES.len()];
        let mut row = 0;
        while row < all.len() {
            all[row] = SCHEMES[row].0;
            row += 1;
        }
        all
    };

    /// Returns the protocol of a scheme in lower case.
    pub(super) fn of_scheme(scheme: &str) -> Option<Self> {
        let row = SCHEMES.iter().find(|(_, own)| own.contains(&scheme));
        row.map(|(protocol, _)| *protocol)
    }
}
