//! Requests that fail in the middle of a write.

use tload_base::error::ErrorKind;
use tload_base::options::StoreOptions;
use tload_write::WriteOptions;

use crate::expected::{tensors, write_to};
use crate::proxy::{Failure, Proxy};
use crate::sites::{Site, moto, versitygw};

/// Parts of the first lines of the requests of a write.
const REQUESTS: [&str; 5] = [
    "POST uploads",
    "PUT partNumber=1&",
    "PUT partNumber=2&",
    "POST uploadId=",
    "PUT index.json",
];

fn through(proxy: &Proxy, site: &Site, retries: &str) -> WriteOptions {
    let pairs = site.pairs.iter().map(|(key, value)| match &**key {
        "endpoint" => (&**key, &*proxy.url),
        _ => (&**key, &**value),
    });
    let pairs = pairs.chain([("retries", retries)]);
    let options = StoreOptions::from_pairs(pairs).expect("valid");
    WriteOptions::new().store(options).replace(true)
}

/// Also where the answer to a request that succeeded is lost: the upload is complete already, and
/// the index is already the new one, when they are asked for again.
#[test]
fn failures_that_pass_are_retried() {
    for site in [versitygw(), moto()].into_iter().flatten() {
        let proxy = Proxy::before(&site.address);
        for (at, failure) in [
            Failure::LostAnswer,
            Failure::LostRequest,
            Failure::Throttled,
        ]
        .into_iter()
        .enumerate()
        {
            for (number, request) in REQUESTS.into_iter().enumerate() {
                let prefix = format!("retried/{at}/{number}");
                let location = site.location(&prefix);
                let options = through(&proxy, &site, "8");
                let old = tensors(3, 900, 1);
                write_to(&location, &old, options.clone()).expect("is written");
                // Two parts.
                let new = tensors(4, 9 << 20, 2);
                proxy.fail(request, failure, 2);
                let written = write_to(&location, &new, options);
                written
                    .unwrap_or_else(|error| panic!("{} {failure:?} {request}: {error}", site.name));
                assert_eq!(proxy.left(), 0, "{failure:?} {request}");
                assert_eq!(site.read(&prefix).expect("is there"), new);
            }
        }
    }
}

/// An upload that fails for good leaves the old checkpoint, and no objects.
#[test]
fn failures_that_stay_leave_old_checkpoint() {
    for site in [versitygw(), moto()].into_iter().flatten() {
        let proxy = Proxy::before(&site.address);
        for (number, request) in REQUESTS.into_iter().enumerate() {
            for (failure, kind) in [
                (Failure::Expired, ErrorKind::PermissionDenied),
                (Failure::Throttled, ErrorKind::Remote),
            ] {
                let prefix = format!("failed/{number}/{failure:?}");
                let location = site.location(&prefix);
                let old = tensors(3, 900, 1);
                write_to(&location, &old, site.writing()).expect("is written");
                let before = site.objects(&prefix);
                proxy.fail(request, failure, 1000);
                let options = through(&proxy, &site, "1");
                let error = write_to(&location, &tensors(4, 9 << 20, 2), options);
                let error = error.expect_err("fails");
                assert_eq!(error.kind(), kind, "{} {request}: {error}", site.name);
                assert!(proxy.left() > 900);
                assert_eq!(site.read(&prefix).expect("is there"), old);
                if request != "PUT index.json" {
                    assert_eq!(site.objects(&prefix), before, "{} {request}", site.name);
                }
            }
        }
    }
}
