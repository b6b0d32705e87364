//! Locations in object stores, in builds without object stores: one error, about the location.
//!
//! `make powerset` runs this; builds of the whole workspace have object stores.

#![cfg(not(feature = "object"))]

use tload_base::error::ErrorKind;
use tload_base::options::Location;
use tload_checkpoint::{OpenOptions, OpenedCheckpoint};

#[test]
fn locations_in_stores_are_unsupported() {
    for url in [
        "s3://bucket/model",
        "gs://bucket/model.safetensors",
        "https://host.invalid/model",
        "https://host.invalid/model.safetensors.index.json",
        "hf://org/model",
        "oci://host.invalid/model:1",
    ] {
        let location = Location::parse(url).expect("a URL");
        let opened = OpenedCheckpoint::open_with(&location, OpenOptions::default());
        let error = opened.expect_err("this build has no object stores");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}: {error}");
        assert_eq!(
            error.message(),
            "this build does not support object stores",
            "{url}"
        );
        assert!(error.is_about(&location), "{url}: {:?}", error.location());
        assert_eq!(error.hint(), Some("build with the feature `object`"));
    }
}
