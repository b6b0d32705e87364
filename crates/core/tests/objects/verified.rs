//! Objects that arrive with wrong bytes: a digest detects corruption that lengths and identities do
//! not show.

use std::sync::Arc;

use tload::verify::{Algorithm, Digest, Expectation, Expected};
use tload::{ErrorKind, Loader, Verify};
use tload_testbed::{Fault, FaultyServer, Rule};

use crate::fixtures::{assert_all, even, options};
use crate::sites::faulty_at;

const KEY: &str = "m.safetensors";

#[test]
fn corrupt_byte_from_server_is_detected() {
    let server = Arc::new(FaultyServer::start());
    let site = faulty_at(&server);
    let file = even("t", 1, 4, 1 << 20);
    site.put(KEY, &file);
    let checkpoint = site.checkpoint(KEY).expect("opens");
    let crc = Digest::compute(Algorithm::Crc64Nvme, &file);
    let expected = Expectation::Of(Expected {
        by: "the object's own CRC-64/NVME".to_owned(),
        len: Some(file.len() as u64),
        whole: Some(crc),
        ..Expected::default()
    });
    let loader = Loader::new(checkpoint)
        .options(options(|it| it.verify = Verify::Require))
        .expectations([expected]);
    let mut stream = loader.stream().expect("starts");
    let tensors: Vec<_> = stream.by_ref().collect::<Result<_, _>>().expect("loads");
    assert_all(&tensors, &[&file]);
    let verification = stream.report().verification.expect("was requested");
    assert_eq!(verification.bytes, file.len() as u64);

    server.fault(Rule::once(Fault::Corrupt(3 << 20)).from_byte(1));
    let mut stream = loader.stream().expect("starts");
    let error = stream.by_ref().find_map(Result::err);
    let error = error.expect("a byte is wrong");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
    assert_eq!(error.range(), Some(0..file.len() as u64));
    assert!(error.message().contains("the object's own"), "{error}");
    assert_eq!(stream.report().outcome, "corrupt");
}
