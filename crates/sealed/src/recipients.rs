//! Recipients: the public keys that a data key is wrapped to.

use std::fmt;
use std::io::Write as _;
use std::path::Path;

use age::armor::{ArmoredWriter, Format};
use age::plugin::RecipientPluginV1;
use age::{Encryptor, Recipient, plugin, ssh, tag, tagpq, x25519};
use tload_base::error::{Error, Result, shortened};

use crate::key::{Silent, read_text};
use crate::keyset::MainKey;

/// Public keys of age, SSH and plugins.
#[derive(Default)]
pub struct Recipients {
    native: Vec<Box<dyn Recipient + Send>>,
    plugins: Vec<plugin::Recipient>,
}

impl Recipients {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.native.is_empty() && self.plugins.is_empty()
    }

    /// Adds a recipient: `age1…`, `age1tag…`, `age1tagpq…`, that of a plugin, or a public key of
    /// SSH.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`](tload_base::error::ErrorKind::InvalidRequest) for another
    /// text.
    pub fn add(&mut self, text: &str) -> Result<()> {
        if text.contains("SECRET-KEY") || text.contains("PRIVATE KEY") {
            return Err(Error::invalid_request(
                "a recipient is a public key, and this one is private",
            ));
        }
        if let Ok(recipient) = text.parse::<x25519::Recipient>() {
            self.native.push(Box::new(recipient));
        } else if let Ok(recipient) = text.parse::<tag::Recipient>() {
            self.native.push(Box::new(recipient));
        } else if let Ok(recipient) = text.parse::<tagpq::Recipient>() {
            self.native.push(Box::new(recipient));
        } else if let Ok(recipient) = text.parse::<ssh::Recipient>() {
            self.native.push(Box::new(recipient));
        } else if let Ok(recipient) = text.parse::<plugin::Recipient>() {
            self.plugins.push(recipient);
        } else {
            // Anything else may be a key.
            let is_public = ["age1", "ssh-"].iter().any(|it| text.starts_with(it));
            let shown = if is_public {
                format!("{:?}", shortened(text))
            } else {
                "a text".to_owned()
            };
            return Err(
                Error::invalid_request(format!("{shown} is no recipient of age"))
                    .with_hint("a recipient begins with age1, ssh-ed25519 or ssh-rsa"),
            );
        }
        Ok(())
    }

    /// Reads a list of recipients.
    ///
    /// # Errors
    ///
    /// Those of [`Self::add`].
    pub fn parse(texts: &[String]) -> Result<Self> {
        let mut recipients = Self::new();
        texts.iter().try_for_each(|text| recipients.add(text))?;
        Ok(recipients)
    }

    /// Adds the recipients of a file, one a line; empty lines and those that begin with `#` are
    /// skipped.
    ///
    /// # Errors
    ///
    /// Those of reading the file and of [`Self::add`].
    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        let text = read_text(path)?;
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if !line.is_empty() && !line.starts_with('#') {
                let location = format!("{}:{number}", path.display());
                let added = self.add(line);
                added.map_err(|error| error.with_location(location))?;
            }
        }
        Ok(())
    }

    /// Wraps a data key to all of them: an age file in its text form.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`](tload_base::error::ErrorKind::InvalidRequest) if there is no
    /// recipient, if they cannot be used together, or if a plugin fails.
    pub(crate) fn wrap(&self, key: &MainKey) -> Result<String> {
        let failed = |error: &dyn fmt::Display| {
            let message = format!("cannot wrap the data key to these recipients: {error}");
            Error::invalid_request(message)
        };
        let mut names: Vec<&str> = self.plugins.iter().map(plugin::Recipient::plugin).collect();
        names.sort_unstable();
        names.dedup();
        let plugins = names.into_iter().map(|name| {
            let opened = RecipientPluginV1::new(name, &self.plugins, &[], Silent);
            opened.map_err(|error| failed(&error))
        });
        let plugins: Vec<_> = plugins.collect::<Result<_>>()?;
        let native = self.native.iter().map(|it| -> &dyn Recipient { &**it });
        let plugins = plugins.iter().map(|it| -> &dyn Recipient { it });
        let encryptor = Encryptor::with_recipients(native.chain(plugins));
        let encryptor = encryptor.map_err(|error| failed(&error))?;
        let wrap = || {
            let armored = ArmoredWriter::wrap_output(Vec::new(), Format::AsciiArmor)?;
            let mut writer = encryptor.wrap_output(armored)?;
            writer.write_all(key.to_keyset().as_bytes())?;
            writer.finish()?.finish()
        };
        let wrapped = wrap().map_err(|error| failed(&error))?;
        Ok(String::from_utf8(wrapped).expect("its text form"))
    }
}

impl fmt::Debug for Recipients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipients")
            .field("native", &self.native.len())
            .field("plugins", &self.plugins.len())
            .finish()
    }
}
