//! The keys of [`StoreOptions`](super::StoreOptions): names, forms, protocols, defaults, meaning.

use super::location::Protocol;

/// Description of a key of [`StoreOptions`](super::StoreOptions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreKey {
    /// Name of the key.
    pub name: &'static str,
    /// Protocols that use it.
    pub protocols: &'static [Protocol],
    /// Default, in words.
    pub default: &'static str,
    /// True if its value is never shown.
    pub secret: bool,
    /// Meaning, in one line.
    pub summary: &'static str,
    /// Form that a value must have.
    pub form: Form,
}

/// Form of the values of a [`StoreKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text without control characters.
    Text,
    /// `true` or `false`.
    Flag,
    /// Positive duration.
    Duration,
    /// Whole number.
    Count,
    /// Bytes, possibly with a unit.
    Bytes,
    /// URL of a server.
    Url,
    /// `path` or `virtual`.
    Addressing,
    /// `always`, `never` or `offline`.
    CacheCheck,
    /// URLs, separated by commas.
    Locations,
}

const S3: &[Protocol] = &[Protocol::S3];
const GCS: &[Protocol] = &[Protocol::Gcs];
const HUB: &[Protocol] = &[Protocol::Hub];
const AZURE: &[Protocol] = &[Protocol::Azure];
const TOKENS: &[Protocol] = &[Protocol::Gcs, Protocol::Azure, Protocol::Hub, Protocol::Oci];
const ENDPOINTS: &[Protocol] = &[
    Protocol::S3,
    Protocol::Gcs,
    Protocol::Azure,
    Protocol::Hub,
    Protocol::Oci,
];
const ALL: &[Protocol] = &Protocol::ALL;

const fn key(
    name: &'static str,
    form: Form,
    protocols: &'static [Protocol],
    default: &'static str,
    summary: &'static str,
) -> StoreKey {
    StoreKey {
        name,
        protocols,
        default,
        secret: false,
        summary,
        form,
    }
}

const fn secret(
    name: &'static str,
    protocols: &'static [Protocol],
    summary: &'static str,
) -> StoreKey {
    StoreKey {
        name,
        protocols,
        default: "from the environment",
        secret: true,
        summary,
        form: Form::Text,
    }
}

/// Every key, in the order of the documentation.
pub(super) const KEYS: &[StoreKey] = &[
    key(
        "endpoint",
        Form::Url,
        ENDPOINTS,
        "the cloud's own, or from the environment",
        "URL of the server, for example http://127.0.0.1:9000",
    ),
    key(
        "region",
        Form::Text,
        S3,
        "from the environment or the profile, else us-east-1",
        "region that the bucket is in",
    ),
    key(
        "profile",
        Form::Text,
        S3,
        "none",
        "profile of the AWS configuration files that credentials and region come from",
    ),
    secret("access_key_id", S3, "access key; needs secret_access_key"),
    secret("secret_access_key", S3, "secret of the access key"),
    secret("session_token", S3, "token of temporary credentials"),
    key(
        "anonymous",
        Form::Flag,
        ENDPOINTS,
        "false",
        "send requests without credentials, as public buckets allow",
    ),
    key(
        "addressing",
        Form::Addressing,
        S3,
        "path if an endpoint is given, else virtual",
        "where the bucket's name goes: path (in the path) or virtual (in the host name)",
    ),
    key(
        "request_payer",
        Form::Flag,
        S3,
        "false",
        "agree to pay for the requests",
    ),
    key(
        "express",
        Form::Flag,
        S3,
        "true for names that end with --x-s3",
        "the bucket is one of S3 Express One Zone",
    ),
    key(
        "account",
        Form::Text,
        AZURE,
        "from the URL or the environment",
        "storage account",
    ),
    secret("account_key", AZURE, "access key of the storage account"),
    secret("sas", AZURE, "shared access signature"),
    secret("token", TOKENS, "bearer token"),
    key(
        "tenant_id",
        Form::Text,
        AZURE,
        "from the environment",
        "tenant of the application",
    ),
    key(
        "client_id",
        Form::Text,
        AZURE,
        "from the environment",
        "application, or the managed identity to use",
    ),
    secret("client_secret", AZURE, "secret of the application"),
    key(
        "service_account",
        Form::Text,
        GCS,
        "from the environment",
        "path of the key file of a service account, or of an external account's file",
    ),
    key(
        "ca_file",
        Form::Text,
        ALL,
        "from AWS_CA_BUNDLE, the AWS profile, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE",
        "path of a PEM file of certificates to trust in addition to the system's",
    ),
    key(
        "tls_verify",
        Form::Flag,
        ALL,
        "true",
        "verify the server's certificate; if false, anyone can impersonate the server",
    ),
    key(
        "proxy",
        Form::Url,
        ALL,
        "from https_proxy, http_proxy and all_proxy, also in capitals",
        "URL of a proxy for HTTP",
    ),
    key(
        "connect_timeout",
        Form::Duration,
        ALL,
        "5",
        "time that connecting may take, in seconds or with a unit: 500ms, 30s, 2m",
    ),
    key(
        "read_timeout",
        Form::Duration,
        ALL,
        "30",
        "time that may pass without a byte arriving",
    ),
    key(
        "open_timeout",
        Form::Duration,
        ALL,
        "none",
        "time that opening a checkpoint may take, with lists, headers and retries",
    ),
    key(
        "retries",
        Form::Count,
        ALL,
        "8",
        "maximum number of retries of a failed request",
    ),
    key(
        "allow_unversioned",
        Form::Flag,
        ALL,
        "false",
        "read objects that have neither ETag nor Last-Modified; a replaced one may go unnoticed",
    ),
    key(
        "cache_dir",
        Form::Text,
        ALL,
        "none: nothing is cached",
        "directory of a read-through cache: a second load reads from there",
    ),
    key(
        "cache_limit",
        Form::Bytes,
        ALL,
        "none",
        "size of the cache, for example 500GiB: least recently used objects are evicted",
    ),
    key(
        "cache_check",
        Form::CacheCheck,
        ALL,
        "always",
        "always: each opening asks whether objects have changed; never: only what the cache lacks is \
         requested; offline: nothing is requested",
    ),
    key(
        "cache_wait",
        Form::Flag,
        ALL,
        "false",
        "wait for the cache's disk instead of dropping bytes when it is slower than the store",
    ),
    key(
        "cache_shared",
        Form::Flag,
        ALL,
        "false",
        "use a cache (cache_dir, hf_cache) that other users own or may write to: they can change the weights",
    ),
    key(
        "mirrors",
        Form::Locations,
        ALL,
        "none",
        "URLs with the same files as the location, separated by commas: ranges are spread over them and the \
         location by speed",
    ),
    key(
        "peers",
        Form::Locations,
        ALL,
        "none",
        "URL with the same files, http://NAME:PORT/…; each address of NAME serves its own parts of the files",
    ),
    StoreKey {
        default: "none",
        ..secret("mirror_token", ALL, "bearer token for mirrors and peers")
    },
    key(
        "hf_cache",
        Form::Flag,
        HUB,
        "false",
        "download models into the cache of huggingface_hub first, with the small files beside them",
    ),
    key(
        "environment",
        Form::Flag,
        ALL,
        "true",
        "read the store's own environment variables and configuration files",
    ),
];
