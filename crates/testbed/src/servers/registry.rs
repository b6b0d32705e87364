//! The CNCF distribution registry: artifacts in repositories, pushed by plain HTTP.

use std::fs;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::address::local;
use super::http::Request;
use super::process::{Process, Ready, command};
use super::tool::tool;

const USER: &str = "test";
const PASSWORD: &str = "testtest";

/// The password, as the registry requires it (bcrypt, its lowest cost).
const USERS: &str = "test:$2b$04$abcdefghijklmnopqrstuuqyyLLpuVYWbE8OVUceJbhiDEB0LEHDm\n";

/// Media type of the manifests that [`Registry::push`] makes.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Access to a registry.
#[derive(Clone, Copy, Debug)]
pub enum Guard<'a> {
    /// Open to all.
    Open,
    /// Requires [`Registry::user`] and [`Registry::password`].
    Password,
    /// Requires any `Authorization`; a challenge names this token service.
    Token(&'a str),
    /// Redirects requests for blobs to this URL and their path in the registry's folder.
    Elsewhere(&'a str),
}

/// Running registry.
#[derive(Debug)]
pub struct Registry {
    /// Ends the process on drop.
    _process: Process,
    address: String,
}

impl Registry {
    /// Starts a registry that is open to all.
    pub fn start() -> Result<Self, String> {
        Self::start_with(Guard::Open)
    }

    /// Starts a registry.
    pub fn start_with(guard: Guard) -> Result<Self, String> {
        let program = tool("registry")?;
        let (process, [port]) = Process::start(Ready::Answers("/"), |folder, [port]| {
            let (settings, users) = (folder.join("config.json"), folder.join("users"));
            let mut configuration = json!({
                "version": "0.1",
                "log": {"level": "warn"},
                "storage": {"filesystem": {"rootdirectory": folder.join("blobs")}},
                "http": {"addr": local(port), "secret": "testtest"},
            });
            match guard {
                Guard::Open => {}
                Guard::Password => {
                    configuration["auth"] = json!({"htpasswd": {"realm": "tload", "path": users}});
                }
                Guard::Token(realm) => {
                    configuration["auth"] = json!({"silly": {"realm": realm, "service": "tload"}});
                }
                Guard::Elsewhere(base) => {
                    let redirect = json!({"name": "redirect", "options": {"baseurl": base}});
                    configuration["middleware"] = json!({"storage": [redirect]});
                }
            }
            // JSON is YAML.
            fs::write(&users, USERS)
                .and_then(|()| fs::write(&settings, configuration.to_string()))
                .map_err(|error| format!("cannot set the registry up: {error}"))?;
            let mut command = command(&program, folder);
            command.arg("serve").arg(settings);
            Ok(command)
        })?;
        Ok(Self {
            _process: process,
            address: local(port),
        })
    }

    /// Returns host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the user that [`Guard::Password`] admits.
    pub fn user(&self) -> &'static str {
        USER
    }

    /// Returns the password of [`Registry::user`].
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// Puts a blob and returns its digest.
    pub fn put_blob(&self, repository: &str, bytes: &[u8]) -> Result<String, String> {
        let digest = sha256(bytes);
        let target = format!("/v2/{repository}/blobs/uploads/");
        let authorization = authorization();
        let reply = Request::new("POST", &target)
            .header("authorization", &authorization)
            .send(&self.address)?;
        let location = reply.header("location").unwrap_or_default();
        let upload = location
            .split_once(&self.address)
            .map_or(location, |(_, target)| target);
        if reply.status != 202 || !upload.contains('?') {
            let body = String::from_utf8_lossy(&reply.body);
            return Err(format!("no upload: status {}: {body}", reply.status));
        }
        let length = u64::try_from(bytes.len()).expect("memory is smaller than 2^64 bytes");
        Request::new("PUT", &format!("{upload}&digest={digest}"))
            .header("authorization", &authorization)
            .header("content-type", "application/octet-stream")
            .body(length, bytes)
            .succeed(&self.address)?;
        Ok(digest)
    }

    /// Puts a manifest or an index under a tag or its digest, and returns its digest.
    pub fn put_manifest(
        &self,
        repository: &str,
        reference: &str,
        manifest: &Value,
    ) -> Result<String, String> {
        let body = manifest.to_string();
        let digest = sha256(body.as_bytes());
        let length = u64::try_from(body.len()).expect("it is small");
        let target = format!("/v2/{repository}/manifests/{reference}");
        Request::new("PUT", &target)
            .header("authorization", &authorization())
            .header(
                "content-type",
                manifest["mediaType"].as_str().unwrap_or_default(),
            )
            .body(length, body.as_bytes())
            .succeed(&self.address)?;
        Ok(digest)
    }

    /// Puts an artifact with these layers under a tag, and returns its digest. Its configuration is
    /// empty.
    pub fn push(&self, repository: &str, tag: &str, layers: &[Value]) -> Result<String, String> {
        let empty = self.put_blob(repository, b"{}")?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": empty, "size": 2},
            "layers": layers,
        });
        self.put_manifest(repository, tag, &manifest)
    }

    /// Puts a blob, and returns its layer for [`Registry::push`].
    pub fn layer(
        &self,
        repository: &str,
        media_type: &str,
        annotations: &Value,
        bytes: &[u8],
    ) -> Result<Value, String> {
        let digest = self.put_blob(repository, bytes)?;
        Ok(json!({
            "mediaType": media_type,
            "digest": digest,
            "size": bytes.len(),
            "annotations": annotations,
        }))
    }
}

fn authorization() -> String {
    format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")))
}

fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let digits: Vec<_> = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{}", digits.concat())
}
