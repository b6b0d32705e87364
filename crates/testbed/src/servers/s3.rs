//! Servers that speak S3: versitygw, s3s-fs and moto.
//!
//! They differ in how they start and how a bucket is created. Everything else is one type, generic
//! over the server.

use std::fmt;
use std::fs::create_dir_all;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{Certificate as Trusted, ClientOptions};

use super::address::local;
use super::certificate::Certificate;
use super::http::Request;
use super::objects;
use super::process::{Process, Ready, command};
use super::tool::tool;

const ACCESS_KEY: &str = "test";
const SECRET_KEY: &str = "testtest";
const REGION: &str = "us-east-1";

/// Markers for the programs.
pub mod kind {
    /// Checks signatures (403) and conditions (412); stores objects as files.
    #[derive(Debug)]
    pub enum Versitygw {}
    /// Checks signatures, but no conditions on reads; waits 40 ms before many responses.
    #[derive(Debug)]
    pub enum S3sFs {}
    /// Checks conditions, but signatures only on request; reads a whole object for each of its
    /// ranges, so keep them small.
    #[derive(Debug)]
    pub enum Moto {}
}

/// Default server of tests: the strictest of the three, and fast.
pub type Versitygw = S3Server<kind::Versitygw>;
/// Second implementation, in Rust.
pub type S3sFs = S3Server<kind::S3sFs>;
/// Third implementation, in Python.
pub type Moto = S3Server<kind::Moto>;

/// Running server with path-style addresses: `ENDPOINT/BUCKET/KEY`.
pub struct S3Server<Kind> {
    process: Process,
    address: String,
    certificate: Option<Certificate>,
    buckets: Buckets,
    kind: PhantomData<fn() -> Kind>,
}

/// Method of creating a bucket.
#[derive(Debug)]
enum Buckets {
    /// A folder in this one.
    Folders(PathBuf),
    /// A request, which needs no signature.
    Requests,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Versitygw {
    /// Starts a server that speaks HTTP.
    pub fn start() -> Result<Self, String> {
        Self::launch(Scheme::Http)
    }

    /// Starts a server that speaks HTTPS, for clients that trust [`S3Server::ca_file`].
    pub fn start_tls() -> Result<Self, String> {
        Self::launch(Scheme::Https)
    }

    fn launch(scheme: Scheme) -> Result<Self, String> {
        let program = tool("versitygw")?;
        let ready = match scheme {
            Scheme::Http => Ready::Answers("/"),
            Scheme::Https => Ready::Listens,
        };
        let (process, [port]) = Process::start(ready, |folder, [port]| {
            let buckets = made(folder, "buckets")?;
            let metadata = made(folder, "metadata")?;
            let mut command = command(&program, folder);
            command
                .env("ROOT_ACCESS_KEY", ACCESS_KEY)
                .env("ROOT_SECRET_KEY", SECRET_KEY)
                .args(["--region", REGION, "--keep-alive", "--port", &local(port)]);
            if scheme == Scheme::Https {
                let certificate = Certificate::make(folder)?;
                command.arg("--cert").arg(certificate.server);
                command.arg("--key").arg(certificate.key);
            }
            // Beside the files and not in their extended attributes, which not every file system
            // has.
            command
                .args(["posix", "--sidecar"])
                .arg(metadata)
                .arg(buckets);
            Ok(command)
        })?;
        let certificate = (scheme == Scheme::Https).then(|| Certificate::of(process.folder()));
        let buckets = Buckets::Folders(process.folder().join("buckets"));
        Ok(Self::running(process, port, certificate, buckets))
    }
}

impl S3sFs {
    /// Starts a server.
    pub fn start() -> Result<Self, String> {
        let program = tool("s3s-fs")?;
        let (process, [port]) = Process::start(Ready::Answers("/"), |folder, [port]| {
            let buckets = made(folder, "buckets")?;
            let mut command = command(&program, folder);
            command
                .args(["--host", "127.0.0.1", "--port", &port.to_string()])
                .args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY])
                .arg(buckets);
            Ok(command)
        })?;
        let buckets = Buckets::Folders(process.folder().join("buckets"));
        Ok(Self::running(process, port, None, buckets))
    }
}

impl Moto {
    /// Starts a server that accepts every request, whatever its signature.
    pub fn start() -> Result<Self, String> {
        let program = tool("moto")?;
        let (process, [port]) = Process::start(Ready::Succeeds("/moto-api/"), |folder, [port]| {
            let mut command = command(&program, folder);
            command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
            Ok(command)
        })?;
        Ok(Self::running(process, port, None, Buckets::Requests))
    }

    /// From now on, accepts only requests whose key belongs to a known user, of whom there are
    /// none: every request is refused with 403. Existing objects stay.
    pub fn refuse_all(&self) -> Result<(), String> {
        let allowed = "0";
        Request::new("POST", "/moto-api/reset-auth")
            .body(1, allowed.as_bytes())
            .succeed(&self.address)
            .map(|_| ())
    }
}

impl<Kind> S3Server<Kind> {
    fn running(
        process: Process,
        port: u16,
        certificate: Option<Certificate>,
        buckets: Buckets,
    ) -> Self {
        Self {
            process,
            address: local(port),
            certificate,
            buckets,
            kind: PhantomData,
        }
    }

    /// Returns `http://127.0.0.1:PORT`, or the same with `https`.
    pub fn endpoint(&self) -> String {
        let scheme = if self.certificate.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.address)
    }

    /// Returns host and port, for a proxy in front.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the access key of the only user.
    pub fn access_key(&self) -> &'static str {
        ACCESS_KEY
    }

    /// Returns the secret key of the only user.
    pub fn secret_key(&self) -> &'static str {
        SECRET_KEY
    }

    /// Returns the region that signatures must name.
    pub fn region(&self) -> &'static str {
        REGION
    }

    /// Returns the path of the authority's certificate, as a PEM file; `None` unless started with
    /// TLS.
    pub fn ca_file(&self) -> Option<&Path> {
        self.certificate
            .as_ref()
            .map(|certificate| certificate.authority.as_path())
    }

    /// Returns a client for a bucket, which is created if missing.
    pub fn store(&self, bucket: &str) -> Result<AmazonS3, String> {
        self.make(bucket)?;
        let mut options = ClientOptions::new()
            .with_allow_http(true)
            .with_timeout_disabled();
        if let Some(file) = self.ca_file() {
            options = options.with_root_certificate(trusted(file)?);
        }
        AmazonS3Builder::new()
            .with_endpoint(self.endpoint())
            .with_access_key_id(ACCESS_KEY)
            .with_secret_access_key(SECRET_KEY)
            .with_region(REGION)
            .with_bucket_name(bucket)
            .with_client_options(options)
            .build()
            .map_err(|error| format!("no client for {bucket}: {error}"))
    }

    /// Puts an object, or replaces it; the bucket is created if missing.
    pub fn put(&self, bucket: &str, key: &str, bytes: &[u8]) -> Result<(), String> {
        objects::put(self.store(bucket)?, key, bytes)
    }

    /// Puts a file's contents, which need not fit into memory.
    pub fn put_file(&self, bucket: &str, key: &str, file: &Path) -> Result<(), String> {
        objects::put_file(self.store(bucket)?, key, file)
    }

    /// Deletes an object.
    pub fn delete(&self, bucket: &str, key: &str) -> Result<(), String> {
        objects::delete(self.store(bucket)?, key)
    }

    fn make(&self, bucket: &str) -> Result<(), String> {
        match &self.buckets {
            Buckets::Folders(folder) => made(folder, bucket).map(|_| ()),
            // Creating it again succeeds in the region us-east-1.
            Buckets::Requests => Request::new("PUT", &format!("/{bucket}"))
                .succeed(&self.address)
                .map(|_| ()),
        }
    }
}

impl<Kind> fmt::Debug for S3Server<Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Server")
            .field("endpoint", &self.endpoint())
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// Returns a folder in another one, created if missing.
fn made(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let path = folder.join(name);
    create_dir_all(&path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
    Ok(path)
}

fn trusted(file: &Path) -> Result<Trusted, String> {
    let pem = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Trusted::from_pem(pem.as_bytes()).map_err(|error| format!("no certificate: {error}"))
}
