//! The key file of a sealed checkpoint, `sealed.json`: what it is sealed with, and the wrapped data
//! key. It is not secret, and nothing in it is trusted: a changed one opens nothing.

use aws_lc_rs::rand;
use serde::{Deserialize, Serialize};
use tload_base::error::{Error, ErrorKind, Result, printable};
use tload_base::options::location::hexadecimal;

use crate::key::{Key, wrong_key};
use crate::keyset::MainKey;
use crate::recipients::Recipients;
use crate::stream::Algorithm;

/// Name of the file.
pub const KEY_FILE_NAME: &str = "sealed.json";

/// Longest key file, bytes.
pub(crate) const KEY_FILE_BYTES_MAX: u64 = 1 << 20;

/// Value of the field `format`.
const FORMAT: &str = "tload-sealed";

/// Version of the layout that this crate reads and writes.
const VERSION: u64 = 1;

/// Length of an id, bytes.
const ID_BYTES: usize = 16;

/// Key file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyFile {
    format: String,
    version: u64,
    algorithm: String,
    id: String,
    key_check: String,
    /// Age file in its text form that holds the data key; none if it is kept elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wrapped_key: Option<String>,
}

impl KeyFile {
    /// Creates the key file of a new checkpoint.
    ///
    /// # Errors
    ///
    /// Those of wrapping the key.
    pub(crate) fn new(key: &MainKey, recipients: Option<&Recipients>) -> Result<Self> {
        let mut id = [0; ID_BYTES];
        rand::fill(&mut id).expect("the system's random numbers do not fail");
        let id = hexadecimal(&id);
        Ok(Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            algorithm: key.algorithm().name().to_owned(),
            key_check: key.check(&id),
            id,
            wrapped_key: recipients.map(|it| it.wrap(key)).transpose()?,
        })
    }

    /// Reads a key file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidFormat`] for other files; [`ErrorKind::Unsupported`] for another version
    /// or algorithm.
    pub fn parse(text: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            format: String,
            version: u64,
        }

        let invalid = |error: serde_json::Error| {
            let message = format!("is no key file of a sealed checkpoint: {error}");
            Error::new(ErrorKind::InvalidFormat, message)
        };
        let Versioned { format, version } = serde_json::from_slice(text).map_err(invalid)?;
        if format != FORMAT {
            let message = format!(
                "is no key file of a sealed checkpoint: its format is {:?}, not {FORMAT:?}",
                printable(&format)
            );
            return Err(Error::new(ErrorKind::InvalidFormat, message));
        }
        if version != VERSION {
            let message = format!(
                "is sealed in version {version} of the format, and this tload reads version {VERSION}"
            );
            return Err(Error::unsupported(message).with_hint("update tload"));
        }
        let file: Self = serde_json::from_slice(text).map_err(invalid)?;
        if file.algorithm().is_none() {
            let message = format!(
                "is sealed with {:?}, and this tload reads AES256_GCM_HKDF_1MB and AES128_GCM_HKDF_1MB",
                printable(&file.algorithm)
            );
            return Err(Error::unsupported(message));
        }
        let is_hexadecimal = file.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if file.id.len() != 2 * ID_BYTES || !is_hexadecimal {
            let message = "is no key file of a sealed checkpoint: its id is not 32 hex digits";
            return Err(Error::new(ErrorKind::InvalidFormat, message));
        }
        Ok(file)
    }

    /// Returns the text of the file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("only text");
        text.push('\n');
        text
    }

    fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::from_name(&self.algorithm)
    }

    /// Returns the id of the checkpoint.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the data key, which `key` opens or is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] for another key; those of reading it.
    pub fn main_key(&self, key: &Key) -> Result<MainKey> {
        let main_key = key.main_key(self.wrapped_key.as_deref())?;
        if self.algorithm() != Some(main_key.algorithm())
            || main_key.check(&self.id) != self.key_check
        {
            return Err(wrong_key(
                "wrong key: the checkpoint is sealed with another one",
            ));
        }
        Ok(main_key)
    }

    /// Returns the same file with the data key wrapped anew: files stay as they are.
    ///
    /// # Errors
    ///
    /// Those of [`Self::main_key`] and of wrapping.
    pub fn rekeyed(&self, key: &Key, recipients: &Recipients) -> Result<Self> {
        let main_key = self.main_key(key)?;
        Ok(Self {
            wrapped_key: Some(recipients.wrap(&main_key)?),
            ..self.clone()
        })
    }
}
