//! Whole checkpoints: sealed, unsealed, with every kind of key, and with every kind of fault.

#![expect(clippy::disallowed_methods, reason = "the test reads by itself")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use age::secrecy::ExposeSecret as _;
use age::x25519::Identity;
use tempfile::TempDir;
use tload_base::error::{Error, ErrorKind};
use tload_base::options::{Location, StoreOptions};
use tload_base::sync::cancel::CancelFlag;
use tload_sealed::stream::Algorithm;
use tload_sealed::{
    Key, Recipients, SealOptions, WrittenCheckpoint, rekey, seal, unseal, write_new_key,
};
use zeroize::Zeroizing;

/// Private key of SSH, made for this test only.
const SSH_KEY: &str = include_str!("ssh_key");
const SSH_PUBLIC_KEY: &str = include_str!("ssh_key.pub");

/// Directory with a checkpoint, and room for sealed ones.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        let site = Self(tempfile::tempdir().expect("a directory"));
        let long: Vec<u8> = (0..2_300_000_u32).map(|at| at.to_le_bytes()[1]).collect();
        site.write("plain/model-1.safetensors", &long);
        site.write("plain/model-2.safetensors", &long[..100]);
        site.write("plain/sub/model-3.safetensors", &long[..1_048_520]);
        site.write("plain/config.json", b"{}");
        site.write("plain/empty", b"");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn location(&self, name: &str) -> Location {
        Location::from_path(self.path(name))
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("below")).expect("creates");
        fs::write(path, bytes).expect("writes");
    }

    fn seal(&self, to: &str, options: &SealOptions) -> Result<WrittenCheckpoint, Error> {
        let (from, to) = (self.location("plain"), self.path(to));
        seal(
            &from,
            &StoreOptions::new(),
            &to,
            options,
            &CancelFlag::default(),
        )
    }

    fn unseal(&self, from: &str, key: &Key) -> Result<WrittenCheckpoint, Error> {
        let to = self.path("opened");
        let _ = fs::remove_dir_all(&to);
        unseal(
            &self.location(from),
            &StoreOptions::new(),
            key,
            &to,
            &CancelFlag::default(),
        )
    }

    /// Requires that the checkpoint opens to what was sealed.
    fn opens(&self, from: &str, key: &Key) {
        self.unseal(from, key).expect("opens");
        assert_eq!(files(&self.path("opened")), files(&self.path("plain")));
    }

    /// Returns the error of a checkpoint that does not open, and requires that nothing is left.
    fn fails(&self, from: &str, key: &Key) -> Error {
        let error = self.unseal(from, key).expect_err(from);
        assert!(!self.path("opened").exists());
        let left = fs::read_dir(self.0.path()).expect("lists");
        let mut left = left.map(|entry| entry.expect("listed").file_name());
        assert!(left.all(|name| !name.to_string_lossy().contains("partial")));
        error
    }

    fn copy(&self, from: &str, to: &str) {
        for (name, bytes) in files(&self.path(from)) {
            self.write(&format!("{to}/{name}"), &bytes);
        }
    }
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("lists") {
        let entry = entry.expect("listed");
        let name = entry.file_name().into_string().expect("UTF-8");
        if entry.path().is_dir() {
            let below = files(&entry.path()).into_iter();
            all.extend(below.map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else {
            all.insert(name, fs::read(entry.path()).expect("reads"));
        }
    }
    all
}

fn options(recipients: &[&str]) -> SealOptions {
    let mut list = Recipients::new();
    for recipient in recipients {
        list.add(recipient).expect("a recipient");
    }
    SealOptions {
        algorithm: Algorithm::Aes256,
        recipients: list,
        key: None,
        plain: Vec::new(),
    }
}

/// Returns a recipient and its key.
fn pair() -> (String, Key) {
    let identity = Identity::generate();
    let text = identity.to_string();
    let key = Key::from_text(text.expose_secret().to_owned());
    (identity.to_public().to_string(), key)
}

#[test]
fn every_kind_of_key_opens_what_it_is_a_recipient_of() {
    let site = Site::new();
    let (recipient, key) = pair();
    let sealed = options(&[&recipient, SSH_PUBLIC_KEY.trim()]);
    let written = site.seal("sealed", &sealed).expect("seals");
    assert_eq!(
        (written.files, written.bytes),
        (5, 2_300_000 + 100 + 1_048_520 + 2)
    );
    site.opens("sealed", &key);
    site.opens("sealed", &Key::from_text(SSH_KEY));
    site.write("key", SSH_KEY.as_bytes());
    site.opens("sealed", &Key::from_file(site.path("key")));
    let command = format!("cat {}", site.path("key").display());
    site.opens("sealed", &Key::from_command(command));
    let function = || Ok(Zeroizing::new(format!("# a comment\n\n{SSH_KEY}\n")));
    let function = Key::from_function(move || {
        function().map(|text| Zeroizing::new(text.replace("# a comment\n\n", "")))
    });
    site.opens("sealed", &function);
    // Nothing of the files is readable.
    let sealed = files(&site.path("sealed"));
    for (name, bytes) in files(&site.path("plain")) {
        let found = &sealed[&name];
        assert!(found.len() > bytes.len());
        assert!(bytes.len() < 100 || !found.windows(100).any(|it| it == &bytes[..100]));
    }
}

#[test]
fn keysets_are_keys_with_both_algorithms() {
    let site = Site::new();
    for (algorithm, name) in [(Algorithm::Aes256, "a"), (Algorithm::Aes128, "b")] {
        let path = site.path(&format!("{name}.json"));
        write_new_key(algorithm, &path).expect("writes");
        let error = write_new_key(algorithm, &path).expect_err("exists");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        let key = Key::from_file(&path);
        let sealed = SealOptions {
            key: Some(key.clone()),
            ..options(&[])
        };
        site.seal(name, &sealed).expect("seals");
        site.opens(name, &key);
    }
    let other = Key::from_file(site.path("b.json"));
    let error = site.fails("a", &other);
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let error = site.fails("a", &pair().1);
    assert!(error.message().contains("only with a keyset"), "{error}");
}

#[test]
fn plain_files_stay_readable_and_are_compared() {
    let site = Site::new();
    let (recipient, key) = pair();
    let sealed = SealOptions {
        plain: vec!["*.json".to_owned()],
        ..options(&[&recipient])
    };
    site.seal("sealed", &sealed).expect("seals");
    assert_eq!(
        fs::read(site.path("sealed/config.json")).expect("reads"),
        b"{}"
    );
    site.opens("sealed", &key);
    site.write("sealed/config.json", b"[]");
    let error = site.fails("sealed", &key);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn rekeying_changes_the_key_file_only() {
    let site = Site::new();
    let ((recipient, key), (other, others_key)) = (pair(), pair());
    site.seal("sealed", &options(&[&recipient])).expect("seals");
    let before = files(&site.path("sealed"));
    let error = rekey(
        &site.path("sealed"),
        &others_key,
        &options(&[&other]).recipients,
    );
    assert_eq!(
        error.expect_err("another key").kind(),
        ErrorKind::PermissionDenied
    );
    assert_eq!(files(&site.path("sealed")), before);
    rekey(&site.path("sealed"), &key, &options(&[&other]).recipients).expect("rekeys");
    let mut after = files(&site.path("sealed"));
    assert_ne!(after["sealed.json"], before["sealed.json"]);
    after.insert("sealed.json".to_owned(), before["sealed.json"].clone());
    assert_eq!(after, before);
    site.opens("sealed", &others_key);
    assert_eq!(
        site.fails("sealed", &key).kind(),
        ErrorKind::PermissionDenied
    );
}

#[test]
fn texts_that_are_no_key_are_errors_without_the_text() {
    let site = Site::new();
    let (recipient, _) = pair();
    site.seal("sealed", &options(&[&recipient])).expect("seals");
    for text in [
        "",
        "secret words",
        "AGE-SECRET-KEY-1SECRET",
        "{\"secret\": 1}",
        "-----BEGIN X",
    ] {
        let error = site.fails("sealed", &Key::from_text(text));
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        assert!(!format!("{error:?}").to_lowercase().contains("secret words"));
    }
    let no_keys: [&[u8]; 3] = [b"AGE-SECRET-KEY-1SECRET", b"{\"secret\": 1}", &[0xff; 9]];
    for bytes in no_keys {
        let path = site.path("no-key");
        fs::write(&path, bytes).expect("writes");
        let error = site.fails("sealed", &Key::from_file(&path));
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        let location = error.location().expect("names the key's file");
        assert!(location.ends_with("no-key"), "{error}");
    }
}

#[test]
fn wrong_keys_and_formats_are_told_apart() {
    let site = Site::new();
    let (recipient, key) = pair();
    site.seal("sealed", &options(&[&recipient])).expect("seals");
    let says = |name: &str, key: &Key, kind: ErrorKind, words: &str| {
        let error = site.fails(name, key);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    says(
        "sealed",
        &pair().1,
        ErrorKind::PermissionDenied,
        "wrong key",
    );
    let failing = Key::from_command("echo secret; exit 3");
    says(
        "sealed",
        &failing,
        ErrorKind::InvalidRequest,
        "exit status: 3",
    );
    let gone = Key::from_file(site.path("none"));
    says("sealed", &gone, ErrorKind::NotFound, "none");
    says("plain", &key, ErrorKind::InvalidRequest, "is not sealed");
    let text = fs::read_to_string(site.path("sealed/sealed.json")).expect("reads");
    for (from, to, kind, words) in [
        (
            "\"version\": 1",
            "\"version\": 2",
            ErrorKind::Unsupported,
            "version 2",
        ),
        (
            "tload-sealed",
            "other",
            ErrorKind::InvalidFormat,
            "\"other\"",
        ),
        ("AES256", "AES512", ErrorKind::Unsupported, "AES512"),
        (
            "\"id\": \"",
            "\"id\": \"x",
            ErrorKind::InvalidFormat,
            "32 hex digits",
        ),
        ("{", "", ErrorKind::InvalidFormat, "key file"),
        ("BEGIN AGE", "BEGIN EGA", ErrorKind::Corrupt, "age file"),
    ] {
        site.copy("sealed", "changed");
        site.write("changed/sealed.json", text.replacen(from, to, 1).as_bytes());
        says("changed", &key, kind, words);
    }
}

#[test]
fn missing_exchanged_older_and_damaged_files_are_errors() {
    let site = Site::new();
    let (recipient, key) = pair();
    site.seal("sealed", &options(&[&recipient])).expect("seals");
    site.seal("other", &options(&[&recipient])).expect("seals");
    let (good, other) = (files(&site.path("sealed")), files(&site.path("other")));
    let mut cases: Vec<(String, &str, Vec<u8>)> = Vec::new();
    for (name, bytes) in &good {
        if name == "sealed.json" {
            continue;
        }
        cases.push((
            format!("{name} of another checkpoint"),
            name,
            other[name].clone(),
        ));
        for at in [
            0,
            1,
            32,
            33,
            39,
            40,
            bytes.len() / 2,
            bytes.len() - 17,
            bytes.len() - 1,
        ] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            cases.push((format!("byte {at} of {name}"), name, flipped));
        }
        for len in [0, 39, 40, 56, bytes.len() - 1, bytes.len() & !0xF_FFFF] {
            if len < bytes.len() {
                cases.push((format!("{name} cut to {len}"), name, bytes[..len].to_vec()));
            }
        }
        cases.push((format!("{name} longer"), name, [&bytes[..], b"x"].concat()));
    }
    let (one, two) = ("model-1.safetensors", "model-2.safetensors");
    cases.push((
        format!("{one} under the name of {two}"),
        two,
        good[one].clone(),
    ));
    site.copy("sealed", "changed");
    for (case, name, bytes) in cases {
        site.write(&format!("changed/{name}"), &bytes);
        let error = site.fails("changed", &key);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{case}: {error}");
        assert!(error.to_string().contains(name), "{case}: {error}");
        site.write(&format!("changed/{name}"), &good[name]);
    }
    site.opens("changed", &key);
    for name in good.keys().filter(|name| *name != "sealed.json") {
        let path = site.path("changed").join(name);
        fs::remove_file(&path).expect("removes");
        let error = site.fails("changed", &key);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{name}: {error}");
        fs::write(&path, &good[name]).expect("writes");
    }
}

#[test]
fn sealing_refuses_what_it_would_spoil() {
    let site = Site::new();
    let (recipient, key) = pair();
    let without = site
        .seal("sealed", &options(&[]))
        .expect_err("no recipient");
    assert_eq!(without.kind(), ErrorKind::InvalidRequest);
    let no_keyset = SealOptions {
        key: Some(key.clone()),
        ..options(&[])
    };
    assert!(site.seal("sealed", &no_keyset).is_err());
    assert!(!site.path("sealed").exists());
    site.seal("sealed", &options(&[&recipient])).expect("seals");
    let again = site
        .seal("sealed", &options(&[&recipient]))
        .expect_err("exists");
    assert!(again.message().contains("exists"), "{again}");
    let cancelled = CancelFlag::default();
    cancelled.cancel();
    let (from, to) = (site.location("sealed"), site.path("cancelled"));
    let error = unseal(&from, &StoreOptions::new(), &key, &to, &cancelled);
    assert_eq!(error.expect_err("cancelled").kind(), ErrorKind::Cancelled);
    assert!(!to.exists());
    let twice = seal(
        &site.location("sealed"),
        &StoreOptions::new(),
        &site.path("twice"),
        &options(&[&recipient]),
        &CancelFlag::default(),
    );
    assert!(
        twice
            .expect_err("sealed")
            .message()
            .contains("sealed already")
    );
    let mut recipients = Recipients::new();
    for wrong in ["", "age1", "AGE-SECRET-KEY-1SECRET", "ssh-dss AAAA"] {
        let error = recipients.add(wrong).expect_err(wrong);
        assert!(!error.to_string().contains("SECRET-KEY-1SECRET"), "{error}");
    }
    site.write(
        "list",
        format!("# a comment\n\n{recipient}\n{SSH_PUBLIC_KEY}\n").as_bytes(),
    );
    recipients.add_file(&site.path("list")).expect("a list");
    site.write("list", b"age1wrong");
    let error = recipients
        .add_file(&site.path("list"))
        .expect_err("a wrong list");
    assert!(error.to_string().contains("list"), "{error}");
}
