//! Certificates for this machine, from an authority that no other machine trusts.
//!
//! Created by the `openssl` command. There are two, since clients with rustls refuse a server that
//! is its own authority.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SETTINGS: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = tload test
[authority]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:false
subjectAltName = IP:127.0.0.1, DNS:localhost
extendedKeyUsage = serverAuth
authorityKeyIdentifier = keyid
";

/// Paths of files in the PEM format, valid for 127.0.0.1 and localhost.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// Certificate that a client has to trust.
    pub authority: PathBuf,
    /// Certificate of the server.
    pub server: PathBuf,
    /// Key of the server.
    pub key: PathBuf,
}

impl Certificate {
    /// Returns the paths of a certificate in `folder`, whether it exists or not.
    pub(super) fn of(folder: &Path) -> Self {
        Self {
            authority: folder.join("authority.pem"),
            server: folder.join("server.pem"),
            key: folder.join("server.key"),
        }
    }

    /// Creates a certificate, with all its files in `folder`.
    pub fn make(folder: &Path) -> Result<Self, String> {
        let settings = folder.join("openssl.cnf");
        fs::write(&settings, SETTINGS)
            .map_err(|error| format!("cannot write {}: {error}", settings.display()))?;
        let made = Self::of(folder);
        let authority_key = folder.join("authority.key");
        let request = |extensions: &str, name: &str, key: &Path, certificate: &Path| {
            let mut command = Command::new("openssl");
            command
                .args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"])
                .args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", name])
                .args(["-extensions", extensions, "-config"])
                .arg(&settings)
                .arg("-keyout")
                .arg(key)
                .arg("-out")
                .arg(certificate);
            command
        };
        run(request(
            "authority",
            "/CN=tload test authority",
            &authority_key,
            &made.authority,
        ))?;
        let mut server = request("server", "/CN=localhost", &made.key, &made.server);
        server.arg("-CA").arg(&made.authority);
        server.arg("-CAkey").arg(&authority_key);
        run(server)?;
        Ok(made)
    }
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("cannot run openssl: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("openssl: {}: {}", output.status, errors.trim()))
}
