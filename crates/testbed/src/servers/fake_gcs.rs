//! fake-gcs-server: the HTTP interfaces of Google Cloud Storage, without credentials.

use std::io::Read;
use std::path::Path;

use serde_json::json;

use super::address::local;
use super::http::{Request, encoded};
use super::objects::open;
use super::process::{Process, Ready, command};
use super::tool::tool;

/// Running server. Ignores `If-Match`, but a wrong generation is not found. Stores objects in
/// memory.
#[derive(Debug)]
pub struct FakeGcs {
    /// Ends the process on drop.
    _process: Process,
    address: String,
}

impl FakeGcs {
    /// Starts a server. It works behind a proxy on 127.0.0.1: requests may name any port of it.
    pub fn start() -> Result<Self, String> {
        let program = tool("fake-gcs-server")?;
        let ready = Ready::Succeeds("/_internal/healthcheck");
        let (process, [port]) = Process::start(ready, |folder, [port]| {
            let mut command = command(&program, folder);
            command
                .args([
                    "-scheme",
                    "http",
                    "-host",
                    "127.0.0.1",
                    "-backend",
                    "memory",
                ])
                .args(["-port", &port.to_string(), "-log-level", "warn"])
                // Without a port it covers all of them; requests for other hosts would be
                // misinterpreted.
                .args(["-public-host", "127.0.0.1"])
                .args(["-external-url", &format!("http://{}", local(port))]);
            Ok(command)
        })?;
        Ok(Self {
            _process: process,
            address: local(port),
        })
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns host and port, for a proxy in front.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Puts an object, or replaces it; the bucket is created if missing.
    pub fn put(&self, bucket: &str, key: &str, bytes: &[u8]) -> Result<(), String> {
        let length = u64::try_from(bytes.len()).expect("memory is smaller than 2^64 bytes");
        self.upload(bucket, key, length, bytes)
    }

    /// Puts a file's contents.
    pub fn put_file(&self, bucket: &str, key: &str, file: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot put {}: {error}", file.display());
        let source = open(file).map_err(failed)?;
        let length = source.metadata().map_err(failed)?.len();
        self.upload(bucket, key, length, source)
    }

    /// Deletes an object.
    pub fn delete(&self, bucket: &str, key: &str) -> Result<(), String> {
        let path = format!("/storage/v1/b/{}/o/{}", encoded(bucket), encoded(key));
        Request::new("DELETE", &path)
            .succeed(&self.address)
            .map(|_| ())
    }

    fn upload(&self, bucket: &str, key: &str, length: u64, body: impl Read) -> Result<(), String> {
        self.make(bucket)?;
        let path = format!(
            "/upload/storage/v1/b/{}/o?uploadType=media&name={}",
            encoded(bucket),
            encoded(key)
        );
        Request::new("POST", &path)
            .header("content-type", "application/octet-stream")
            .body(length, body)
            .succeed(&self.address)
            .map(|_| ())
    }

    fn make(&self, bucket: &str) -> Result<(), String> {
        let path = format!("/storage/v1/b/{}", encoded(bucket));
        if Request::new("GET", &path).send(&self.address)?.status == 200 {
            return Ok(());
        }
        let bucket = json!({ "name": bucket }).to_string();
        let length = u64::try_from(bucket.len()).expect("it is small");
        Request::new("POST", "/storage/v1/b?project=test")
            .header("content-type", "application/json")
            .body(length, bucket.as_bytes())
            .succeed(&self.address)
            .map(|_| ())
    }
}
