//! TLS: the certificate, and connections that use it.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tload::{Error, ErrorKind, Result};

use crate::TlsFiles;
use crate::socket::Socket;

/// Settings of all connections.
#[derive(Debug, Clone)]
pub(crate) struct Tls(Arc<ServerConfig>);

/// Connection with TLS.
pub(crate) struct TlsStream(StreamOwned<ServerConnection, Socket>);

impl Tls {
    /// Reads a certificate, with those between it and the authority, and its key.
    pub(crate) fn read(files: &TlsFiles) -> Result<Self> {
        let TlsFiles { certificate, key } = files;
        let failed = |error, what, path| unreadable(error, what, path);
        let certificates: Vec<_> = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .map_err(|error| failed(error, "certificate", certificate))?;
        if certificates.is_empty() {
            return Err(failed(pem::Error::NoItemsFound, "certificate", certificate));
        }
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|error| failed(error, "private key", key))?;
        let invalid = |error: rustls::Error| {
            Error::new(ErrorKind::InvalidRequest, "the certificate cannot be used")
                .with_location(certificate.display())
                .with_hint(format!(
                    "{} must be the key of the first certificate in this file",
                    key.display()
                ))
                .with_source(error)
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_no_client_auth()
            .with_single_cert(certificates, private)
            .map_err(invalid)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// Begins a connection. The handshake takes place with the first read.
    pub(crate) fn accept(&self, socket: Socket) -> io::Result<TlsStream> {
        let connection = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        Ok(TlsStream(StreamOwned::new(connection, socket)))
    }
}

fn unreadable(error: pem::Error, what: &str, path: &Path) -> Error {
    let message = format!("cannot read the {what}");
    let error = if let pem::Error::Io(error) = error {
        Error::from_io(message, error)
    } else {
        let message = format!("contains no valid {what}");
        let hint = "it must be in the PEM format, with lines of -----BEGIN …-----";
        let reason = Error::new(ErrorKind::InvalidRequest, message).with_hint(hint);
        // The text of other errors may contain bytes of the file.
        if matches!(error, pem::Error::NoItemsFound) {
            reason
        } else {
            reason.with_source("the text is damaged")
        }
    };
    error.with_location(path.display())
}

impl TlsStream {
    pub(crate) fn socket(&mut self) -> &mut Socket {
        &mut self.0.sock
    }

    /// Tells the client that no more follows.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.0.conn.send_close_notify();
        self.0.flush()
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
