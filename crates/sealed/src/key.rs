//! Keys that users give: where the text of a key comes from, and the data key that it opens.

use std::fmt;
use std::io::Read as _;
use std::iter;
use std::mem;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use age::armor::ArmoredReader;
use age::secrecy::SecretString;
use age::{Callbacks, DecryptError, Decryptor, Identity, IdentityFile};
use tload_base::error::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

use crate::keyset::MainKey;

/// Longest text of a key, bytes.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Key that opens sealed checkpoints: identities of age (its own, those of SSH, those of plugins),
/// or a data key as a keyset of Tink. For files of Tensorizer it is theirs: 32 bytes, 64
/// hexadecimal digits, or a passphrase. Its text is read each time that a checkpoint is opened. It
/// is in no error, report or `Debug`.
#[derive(Clone)]
pub struct Key(Arc<Origin>);

enum Origin {
    Text(Zeroizing<String>),
    File(PathBuf),
    Command(String),
    Function(Box<KeyFunction>),
}

/// Function that returns the text of a key.
type KeyFunction = dyn Fn() -> Result<Zeroizing<String>> + Send + Sync;

impl Key {
    /// Creates a key from its text.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(Arc::new(Origin::Text(Zeroizing::new(text.into()))))
    }

    /// Creates a key whose text is in a file.
    #[must_use]
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Origin::File(path.into())))
    }

    /// Creates a key whose text a command prints, which a shell runs: for key management services.
    #[must_use]
    pub fn from_command(command: impl Into<String>) -> Self {
        Self(Arc::new(Origin::Command(command.into())))
    }

    /// Creates a key whose text a function returns.
    #[must_use]
    pub fn from_function(
        function: impl Fn() -> Result<Zeroizing<String>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Origin::Function(Box::new(function))))
    }

    /// Creates a key of a kind that has a name, from its value.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for another name.
    #[doc(hidden)]
    pub fn of_kind(kind: &str, value: String) -> Result<Self> {
        match kind {
            "text" => Ok(Self::from_text(value)),
            "file" => Ok(Self::from_file(value)),
            "command" => Ok(Self::from_command(value)),
            _ => Err(Error::unknown_name(
                "kind of key",
                kind,
                &["text", "file", "command"],
            )),
        }
    }

    /// Returns the text of the key, which for files of Tensorizer may be any bytes.
    ///
    /// # Errors
    ///
    /// Those of reading the file, of the command, or of the function.
    pub(crate) fn bytes(&self) -> Result<Zeroizing<Vec<u8>>> {
        let bytes_of = |mut text: Zeroizing<String>| mem::take(&mut *text).into_bytes().into();
        match &*self.0 {
            Origin::Text(text) => Ok(bytes_of(text.clone())),
            Origin::File(path) => read_bytes(path),
            Origin::Command(command) => run(command),
            Origin::Function(function) => function().map(bytes_of),
        }
    }

    /// Returns the data key that this one opens, or is. `wrapped` is an age file in its text form,
    /// if the checkpoint has one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] if it is another key; [`ErrorKind::InvalidRequest`] if its
    /// text is no key; those of reading it.
    pub(crate) fn main_key(&self, wrapped: Option<&str>) -> Result<MainKey> {
        // Names the file of a text that is no key.
        let of_key = |error: Error| match &*self.0 {
            Origin::File(path) => error.or_location(path.display()),
            Origin::Text(_) | Origin::Command(_) | Origin::Function(_) => error,
        };
        let text = to_text(self.bytes()?).map_err(of_key)?;
        if text.trim_start().starts_with('{') {
            return MainKey::from_keyset(text.trim()).map_err(of_key);
        }
        let identities = identities(&text).map_err(of_key)?;
        let Some(wrapped) = wrapped else {
            return Err(wrong_key(
                "the checkpoint is not sealed to recipients, only with a keyset",
            )
            .with_hint("pass the keyset that it was sealed with as the key"));
        };
        let keyset = unwrap(wrapped, &identities)?;
        MainKey::from_keyset(&keyset)
    }
}

/// Creates the error of a key that does not open a checkpoint.
pub(crate) fn wrong_key(message: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, message)
}

fn unwrap(
    wrapped: &str,
    identities: &[Box<dyn Identity + Send + Sync>],
) -> Result<Zeroizing<String>> {
    let damaged = |error: &dyn fmt::Display| {
        let message = format!("the wrapped key is no age file that tload reads: {error}");
        Error::new(ErrorKind::Corrupt, message)
    };
    let failed = |error: DecryptError| {
        if matches!(error, DecryptError::NoMatchingKeys) {
            return wrong_key(
                "wrong key: the checkpoint is not sealed to any of the key's identities",
            );
        }
        if let DecryptError::Io(error) = error {
            return damaged(&error);
        }
        let message = format!("the key did not open the checkpoint's data key: {error}");
        wrong_key(&message)
    };
    let decryptor = Decryptor::new_buffered(ArmoredReader::new(wrapped.as_bytes()));
    let decryptor = decryptor.map_err(|error| damaged(&error))?;
    let borrowed = identities.iter().map(|it| -> &dyn Identity { &**it });
    let reader = decryptor.decrypt(borrowed).map_err(failed)?;
    let mut keyset = Zeroizing::new(String::with_capacity(1024));
    let mut reader = reader.take(TEXT_BYTES_MAX);
    let read = reader.read_to_string(&mut keyset);
    read.map_err(|error| damaged(&error))?;
    Ok(keyset)
}

/// Reads identities: private keys of SSH, or those of age and its plugins, one a line.
fn identities(text: &str) -> Result<Vec<Box<dyn Identity + Send + Sync>>> {
    let wrong = || {
        Error::invalid_request("the key is neither an identity of age or SSH nor a keyset of Tink")
            .with_hint("it begins with AGE-SECRET-KEY-1, AGE-PLUGIN-, -----BEGIN OPENSSH or {; a file with it is named by a pathlib.Path in Python, and by --key-file or TLOAD_KEY_FILE")
    };
    if text.trim_start().starts_with("-----BEGIN ") {
        let identity = age::ssh::Identity::from_buffer(text.as_bytes(), None);
        let identity = match identity.map_err(|_| wrong())? {
            identity @ age::ssh::Identity::Unencrypted(_) => identity,
            age::ssh::Identity::Encrypted(_) => {
                let message = "the key is an SSH key with a passphrase, and no one can be asked";
                return Err(
                    Error::unsupported(message).with_hint("use a key without one, or one of age")
                );
            }
            age::ssh::Identity::Unsupported(_) => return Err(wrong()),
        };
        return Ok(vec![Box::new(identity)]);
    }
    // Errors of the parser name the line only, which helps in files; its text is never in them.
    let file = IdentityFile::from_buffer(text.as_bytes()).map_err(|_| wrong())?;
    let identities = file.with_callbacks(Silent).into_identities();
    let identities = identities.map_err(|error| {
        let message = format!("cannot use the key's identities: {error}");
        Error::invalid_request(message).with_hint("install the plugin that they belong to")
    })?;
    if identities.is_empty() {
        return Err(wrong());
    }
    Ok(identities)
}

/// Answers of a program without a terminal to the questions of plugins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silent;

impl Callbacks for Silent {
    fn display_message(&self, message: &str) {
        tracing::info!("a plugin of age says: {message}");
    }

    fn confirm(&self, _message: &str, _yes: &str, _no: Option<&str>) -> Option<bool> {
        None
    }

    fn request_public_string(&self, _description: &str) -> Option<String> {
        None
    }

    fn request_passphrase(&self, _description: &str) -> Option<SecretString> {
        None
    }
}

/// Reads a short file of text.
pub(crate) fn read_text(path: &Path) -> Result<Zeroizing<String>> {
    let text = read_bytes(path).and_then(to_text);
    text.map_err(|error| error.or_location(path.display()))
}

fn to_text(mut bytes: Zeroizing<Vec<u8>>) -> Result<Zeroizing<String>> {
    let text = String::from_utf8(mem::take(&mut *bytes));
    text.map(Zeroizing::new).map_err(|error| {
        drop(Zeroizing::new(error.into_bytes()));
        Error::invalid_request("found bytes that are no text, wanted a key or recipients")
    })
}

fn read_bytes(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let failed =
        |error| Error::from_io("cannot read the file", error).with_location(path.display());
    #[expect(
        clippy::disallowed_methods,
        reason = "a few bytes of the user's, no shard"
    )]
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = Zeroizing::new(Vec::with_capacity(4096));
    let read = file.take(TEXT_BYTES_MAX).read_to_end(&mut text);
    read.map_err(failed)?;
    Ok(text)
}

/// Runs a command and returns what it prints. Its own errors go where those of this process go.
fn run(command: &str) -> Result<Zeroizing<Vec<u8>>> {
    // The command may have secrets in its arguments, so that it is not shown.
    let failed = |error| Error::from_io("cannot run the key command", error);
    let mut child = Command::new("sh")
        .args(iter::once("-c").chain([command]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut text = Zeroizing::new(Vec::with_capacity(4096));
    let output = child.stdout.take().expect("piped above");
    let read = output.take(TEXT_BYTES_MAX).read_to_end(&mut text);
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        let message = format!("the key command failed: {status}");
        return Err(Error::invalid_request(message)
            .with_hint("run it in a shell: it must print the key and exit with 0"));
    }
    read.map_err(failed)?;
    Ok(text)
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match &*self.0 {
            Origin::Text(_) => "text",
            Origin::File(_) => "file",
            Origin::Command(_) => "command",
            Origin::Function(_) => "function",
        };
        f.debug_tuple("Key").field(&origin).finish()
    }
}
