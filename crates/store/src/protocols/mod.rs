//! Protocols of stores: a file or folder for each, and the table of those that this build supports.
//! `hub_cache` reads what `huggingface_hub` has downloaded, and needs no hub.

pub(crate) mod azure;
pub(crate) mod gcs;
#[cfg(feature = "hub")]
pub(crate) mod hub;
pub(crate) mod hub_cache;
#[cfg(feature = "oci")]
pub(crate) mod oci;
pub(crate) mod s3;
pub(crate) mod web;

use crate::builder::StoreProtocol;
use crate::environment::Variables;
use crate::error::{Error, ErrorKind, Result};
use crate::options::location::{Protocol, RemoteUrl};

static PROTOCOLS: &[&StoreProtocol] = &[
    &s3::PROTOCOL,
    &gcs::PROTOCOL,
    &azure::PROTOCOL,
    &web::PROTOCOL,
    #[cfg(feature = "hub")]
    &hub::PROTOCOL,
    #[cfg(feature = "oci")]
    &oci::PROTOCOL,
];

/// Features of protocols that a build may leave out.
const FEATURES: [(Protocol, &str); 2] = [(Protocol::Hub, "hub"), (Protocol::Oci, "oci")];

/// Returns the protocol of a URL.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for a protocol that this build leaves out;
/// [`ErrorKind::InvalidRequest`] for stores that the caller opens.
pub(crate) fn of_url(url: &RemoteUrl) -> Result<&'static StoreProtocol> {
    let found = PROTOCOLS.iter().find(|it| it.protocol == url.protocol);
    found.copied().ok_or_else(|| absent(url))
}

/// Returns the environment variables of all protocols.
pub(crate) fn variables() -> impl Iterator<Item = &'static Variables> {
    PROTOCOLS.iter().filter_map(|protocol| protocol.variables)
}

/// Returns the error for a URL whose protocol is not in the table.
fn absent(url: &RemoteUrl) -> Error {
    let row = FEATURES.iter().find(|(it, _)| *it == url.protocol);
    let Some((_, feature)) = row else {
        return Error::invalid_request(
            "custom-store URLs must be opened with `Checkpoint::open_in`",
        );
    };
    let message = format!("this build does not support {}:// locations", url.scheme);
    Error::new(ErrorKind::Unsupported, message)
        .with_location(url.shown())
        .with_hint(format!("build with the feature {feature} of tload-store"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Location;

    #[test]
    fn absent_protocol_names_its_feature() {
        for (url, feature) in [("hf://org/name", "hub"), ("oci://r.example/a:1", "oci")] {
            let location = Location::parse(url).expect(url);
            let remote = location.remote().expect("a URL");
            let error = absent(remote);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().starts_with("this build does not support"));
            let hint = error.hint().expect("a hint");
            assert!(hint.contains(&format!("feature {feature} ")), "{hint}");
            let is_built = PROTOCOLS.iter().any(|it| it.protocol == remote.protocol);
            let opened = of_url(remote).map(|found| found.protocol);
            let wanted = is_built.then_some(remote.protocol);
            assert_eq!(opened.ok(), wanted, "{url}");
        }
    }
}
