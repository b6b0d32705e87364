//! Stands in for `tls.rs` in builds without the feature `object`, which have no TLS.

use std::convert::Infallible;
use std::io::{self, Read, Write};

use tload::{Error, ErrorKind, Result};

use crate::TlsFiles;
use crate::socket::Socket;

#[derive(Debug, Clone)]
pub(crate) struct Tls(Infallible);

pub(crate) struct TlsStream(Infallible);

impl Tls {
    pub(crate) fn read(_files: &TlsFiles) -> Result<Self> {
        let message = "this build of tload has no TLS";
        Err(Error::new(ErrorKind::Unsupported, message)
            .with_hint("build it with the feature object"))
    }

    pub(crate) fn accept(&self, _socket: Socket) -> io::Result<TlsStream> {
        match self.0 {}
    }
}

impl TlsStream {
    pub(crate) fn socket(&mut self) -> &mut Socket {
        match self.0 {}
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

impl Read for TlsStream {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}

impl Write for TlsStream {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}
