//! Requests that fail in the middle of a write.

use tload_base::error::ErrorKind;
use tload_base::options::StoreOptions;
use tload_write::{WriteOptions, Writer, remove_incomplete};

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
    let options = options_through(proxy, site, retries);
    WriteOptions::new().store(options).replace(true)
}

fn options_through(proxy: &Proxy, site: &Site, retries: &str) -> StoreOptions {
    let pairs = site.pairs.iter().map(|(key, value)| match &**key {
        "endpoint" => (&**key, &*proxy.url),
        _ => (&**key, &**value),
    });
    let pairs = pairs.chain([("retries", retries)]);
    StoreOptions::from_pairs(pairs).expect("valid")
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

/// S3 refuses conditions while other requests are under way. That is no other writer.
#[test]
fn refused_conditions_lose_no_objects() {
    for site in [versitygw(), moto()].into_iter().flatten() {
        for is_replaced in [false, true] {
            for is_late in [false, true] {
                let proxy = Proxy::before(&site.address);
                let prefix = format!("conflict/{is_replaced}/{is_late}");
                let location = site.location(&prefix);
                if is_replaced {
                    write_to(&location, &tensors(3, 900, 1), site.writing()).expect("is written");
                }
                let new = tensors(4, 1000, 2);
                if is_late {
                    // The first request is stored after the writer has given up.
                    proxy.fail("PUT index.json", Failure::Late, 1);
                    proxy.fail("PUT index.json", Failure::Conflicting, 1000);
                    let error = write_to(&location, &new, through(&proxy, &site, "2"));
                    let error = error.expect_err("its outcome is open");
                    assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
                    proxy.release();
                } else {
                    proxy.fail("PUT index.json", Failure::Conflicting, 2);
                    write_to(&location, &new, through(&proxy, &site, "8")).expect(site.name);
                    assert_eq!(proxy.left(), 0);
                }
                assert_eq!(site.read(&prefix).expect("is there"), new, "{}", site.name);
            }
        }
    }
}

/// A writer whose claim is late finds what another one has written meanwhile.
#[test]
fn late_claims_of_plain_names_replace_nothing() {
    for site in [versitygw(), moto()].into_iter().flatten() {
        for shard_bytes in [1 << 30, 6000] {
            let proxy = Proxy::before(&site.address);
            let prefix = format!("late/{shard_bytes}");
            let location = site.location(&prefix);
            let change = |it: WriteOptions| it.plain_names(true).max_shard_bytes(shard_bytes);
            proxy.fail("PUT .tload-write", Failure::Held, 1);
            let before = std::thread::scope(|scope| {
                let options = change(through(&proxy, &site, "8"));
                let late = scope.spawn(|| write_to(&location, &tensors(4, 5000, 2), options));
                proxy.wait_for_held();
                write_to(&location, &tensors(4, 5000, 1), change(site.writing())).expect("first");
                let before = site.objects(&prefix);
                proxy.release();
                let error = late.join().expect("no panic").expect_err("is too late");
                assert_eq!(error.kind(), ErrorKind::Changed, "{}: {error}", site.name);
                before
            });
            assert_eq!(site.objects(&prefix), before, "{}", site.name);
        }
    }
}

#[test]
fn objects_of_failed_writers_are_removed() {
    for site in [versitygw(), moto()].into_iter().flatten() {
        // The first name is of the file that was not finished.
        for (failure, left) in [(Failure::Throttled, 0), (Failure::Expired, 1)] {
            let proxy = Proxy::before(&site.address);
            let prefix = format!("removed/{left}");
            let location = site.location(&prefix);
            let options = through(&proxy, &site, "8").plain_names(true);
            let mut writer = Writer::create(&location, options.max_shard_bytes(1000));
            let begun = writer.as_mut().expect("begins");
            for (name, (dtype, shape, bytes)) in &tensors(5, 5000, 1) {
                begun.tensor(name, *dtype, shape, bytes).expect("is stored");
            }
            let before: Vec<_> = site.objects(&prefix).into_keys().collect();
            assert!(
                before.len() > 2 && before[0] == ".tload-write",
                "{before:?}"
            );
            proxy.fail("POST ?delete", failure, 2);
            drop(writer);
            assert_eq!(proxy.left(), 0);
            let found: Vec<_> = site.objects(&prefix).into_keys().collect();
            assert_eq!(
                found,
                before[before.len() - left..],
                "{} {failure:?}",
                site.name
            );
        }
    }
}

/// Stores keep parts that arrive after their upload is aborted, and do not list them.
#[test]
fn uploads_are_aborted_once_their_parts_have_ended() {
    for site in [versitygw(), moto()].into_iter().flatten() {
        let proxy = Proxy::before(&site.address);
        proxy.fail("PUT partNumber=1&", Failure::Slow, 1);
        proxy.fail("PUT partNumber=2&", Failure::Expired, 1);
        let location = site.location("drained");
        let options = through(&proxy, &site, "8");
        let error = write_to(&location, &tensors(5, 20 << 20, 2), options);
        error.expect_err("fails");
        let answered = proxy.answered();
        let at = |text: &str| answered.iter().position(|line| line.contains(text));
        let (part, aborted) = (at("partNumber=1&"), at("DELETE"));
        assert!(
            part.expect("is sent") < aborted.expect("is sent"),
            "{answered:?}"
        );
    }
}

/// Names of other programs are not touched, however old, nor is what a plain writer has claimed.
#[test]
fn only_old_files_of_writes_are_removed() {
    let foreign = [
        "ema-202611291417-step.safetensors",
        "lora-0a1b2c3d4e5f-v1.safetensors",
        "model-00001-of-00001.safetensors",
        "notes.txt",
    ];
    let ours = [
        ".tload-write",
        "model-0a1b2c3d4e5f-00001-of-00002.safetensors",
    ];
    for site in [versitygw(), moto()].into_iter().flatten() {
        for is_old in [false, true] {
            let prefix = format!("others/{is_old}");
            for name in foreign.iter().chain(&ours) {
                site.put(&format!("{prefix}/{name}"), b"0123456789ab");
            }
            let proxy = Proxy::before(&site.address);
            if is_old {
                proxy.fail("GET list-type=2", Failure::Aged, 1);
            }
            let location = site.location(&prefix);
            let found = remove_incomplete(&location, &options_through(&proxy, &site, "8"));
            let found = found.expect(site.name);
            let removed: Vec<_> = found.iter().map(|it| it.removed).collect();
            assert_eq!(removed, [is_old; 2], "{} {found:?}", site.name);
            let left: Vec<_> = site.objects(&prefix).into_keys().collect();
            let kept = if is_old { &[][..] } else { &ours };
            let mut wanted = [&foreign, kept].concat();
            wanted.sort_unstable();
            assert_eq!(left, wanted, "{}", site.name);
        }
    }
}
