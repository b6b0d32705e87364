//! Azurite: Azure Blob Storage, with its signatures and conditions.

use std::path::Path;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use object_store::ClientOptions;
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};

use super::address::local;
use super::http::Request;
use super::objects;
use super::process::{Process, Ready, command};
use super::tool::tool;

/// Account that every emulator of Azure has, and its key:
/// <https://learn.microsoft.com/azure/storage/common/storage-use-azurite#well-known-storage-account-and-key>.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Version of the interface that `object_store` requests.
const VERSION: &str = "2023-11-03";

/// Running server. Stores objects as files.
#[derive(Debug)]
pub struct Azurite {
    /// Ends the process on drop.
    _process: Process,
    address: String,
}

impl Azurite {
    /// Starts a server.
    pub fn start() -> Result<Self, String> {
        let program = tool("azurite")?;
        let (process, [port]) = Process::start(Ready::Answers("/"), |folder, [port]| {
            let mut command = command(&program, folder);
            command
                .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
                .args(["--silent", "--skipApiVersionCheck"])
                // Otherwise it sends telemetry.
                .arg("--disableTelemetry")
                .arg("--location")
                .arg(folder);
            Ok(command)
        })?;
        Ok(Self {
            _process: process,
            address: local(port),
        })
    }

    /// Returns `http://127.0.0.1:PORT/ACCOUNT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}/{ACCOUNT}", self.address)
    }

    /// Returns host and port, for a proxy in front.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the name of the only account.
    pub fn account(&self) -> &'static str {
        ACCOUNT
    }

    /// Returns the key of the only account, in Base64.
    pub fn key(&self) -> &'static str {
        KEY
    }

    /// Returns a client for a container, which is created if missing.
    pub fn store(&self, container: &str) -> Result<MicrosoftAzure, String> {
        self.make(container)?;
        let options = ClientOptions::new()
            .with_allow_http(true)
            .with_timeout_disabled();
        MicrosoftAzureBuilder::new()
            .with_account(ACCOUNT)
            .with_access_key(KEY)
            .with_endpoint(self.endpoint())
            .with_container_name(container)
            .with_client_options(options)
            .build()
            .map_err(|error| format!("no client for {container}: {error}"))
    }

    /// Puts an object, or replaces it; the container is created if missing.
    pub fn put(&self, container: &str, key: &str, bytes: &[u8]) -> Result<(), String> {
        objects::put(self.store(container)?, key, bytes)
    }

    /// Puts a file's contents, which need not fit into memory.
    pub fn put_file(&self, container: &str, key: &str, file: &Path) -> Result<(), String> {
        objects::put_file(self.store(container)?, key, file)
    }

    /// Deletes an object.
    pub fn delete(&self, container: &str, key: &str) -> Result<(), String> {
        objects::delete(self.store(container)?, key)
    }

    /// Creates a container, which `object_store` has no call for.
    fn make(&self, container: &str) -> Result<(), String> {
        // A signature covers twelve headers, of which this request has none: one empty line each.
        // Azurite requires no date.
        let signed = format!(
            "PUT{}\nx-ms-version:{VERSION}\n/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container",
            "\n".repeat(11)
        );
        let secret = BASE64_STANDARD.decode(KEY).expect("the constant is base64");
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let signature = BASE64_STANDARD.encode(hmac::sign(&key, signed.as_bytes()));
        let target = format!("/{ACCOUNT}/{container}?restype=container");
        let reply = Request::new("PUT", &target)
            .header("x-ms-version", VERSION)
            .header("authorization", &format!("SharedKey {ACCOUNT}:{signature}"))
            .send(&self.address)?;
        match reply.status {
            // Created, or it existed.
            201 | 409 => Ok(()),
            status => Err(format!("no container {container}: status {status}")),
        }
    }
}
