//! toxiproxy: a TCP proxy that is slow, lossy or gone on command.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::address::local;
use super::http::{Request, encoded};
use super::process::{Process, Ready, command};
use super::tool::tool;

/// Running toxiproxy, without proxies at first.
#[derive(Debug)]
pub struct Toxiproxy {
    server: Arc<Server>,
}

/// Port that leads to a server. Closed when dropped; keeps its toxiproxy alive.
#[derive(Debug)]
pub struct Proxy {
    server: Arc<Server>,
    /// Name as a component of a path.
    name: String,
    address: String,
}

/// Direction that a toxic affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Responses, from the server to the client.
    Downstream,
    /// Requests, from the client to the server.
    Upstream,
}

#[derive(Debug)]
struct Server {
    /// Ends the process on drop.
    _process: Process,
    /// Address of its own interface.
    address: String,
    proxies: AtomicUsize,
}

impl Toxiproxy {
    /// Starts a toxiproxy.
    pub fn start() -> Result<Self, String> {
        let program = tool("toxiproxy")?;
        let (process, [port]) = Process::start(Ready::Succeeds("/version"), |folder, [port]| {
            let mut command = command(&program, folder);
            command.args(["-host", "127.0.0.1", "-port", &port.to_string()]);
            Ok(command)
        })?;
        let server = Arc::new(Server {
            _process: process,
            address: local(port),
            proxies: AtomicUsize::new(0),
        });
        Ok(Self { server })
    }

    /// Creates a proxy for the server at `upstream` (host and port), on a free port. It has no
    /// effect until it gets a toxic.
    pub fn proxy(&self, upstream: &str) -> Result<Proxy, String> {
        let number = self.server.proxies.fetch_add(1, Ordering::Relaxed);
        let name = format!("{number}-{upstream}");
        let settings = json!({
            "name": &name, "listen": "127.0.0.1:0", "upstream": upstream, "enabled": true,
        });
        let made = self.server.ask("POST", "/proxies", &settings)?;
        let address = made["listen"]
            .as_str()
            .ok_or("toxiproxy names no address")?
            .to_owned();
        Ok(Proxy {
            server: Arc::clone(&self.server),
            name: encoded(&name),
            address,
        })
    }
}

impl Proxy {
    /// Returns host and port to use in place of the server's.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Adds a toxic, which affects connections, including open ones, each with the probability
    /// `toxicity`. Kinds and their attributes: `latency` (`latency` and `jitter` in ms),
    /// `bandwidth` (`rate` in kB/s per connection), `slow_close` (`delay` in ms), `timeout`
    /// (`timeout` in ms, 0 for no response ever), `reset_peer` (`timeout` in ms), `slicer`
    /// (`average_size` and `size_variation` in bytes, `delay` in µs), `limit_data` (`bytes` per
    /// connection).
    pub fn toxic(
        &self,
        kind: &str,
        attributes: &Value,
        stream: Stream,
        toxicity: f64,
    ) -> Result<(), String> {
        let stream = match stream {
            Stream::Downstream => "downstream",
            Stream::Upstream => "upstream",
        };
        let present = self.toxics()?.len();
        let settings = json!({
            "name": format!("{present}-{kind}"), "type": kind, "stream": stream,
            "toxicity": toxicity, "attributes": attributes,
        });
        let path = format!("/proxies/{}/toxics", self.name);
        self.server.ask("POST", &path, &settings).map(|_| ())
    }

    /// Removes all toxics.
    pub fn clear(&self) -> Result<(), String> {
        for toxic in self.toxics()? {
            let path = format!("/proxies/{}/toxics/{}", self.name, encoded(&toxic));
            self.server.ask("DELETE", &path, &Value::Null)?;
        }
        Ok(())
    }

    /// Sets whether clients may connect: if not, open connections are cut and new ones refused. The
    /// address stays the same.
    pub fn enable(&self, enabled: bool) -> Result<(), String> {
        let path = format!("/proxies/{}", self.name);
        let settings = json!({ "enabled": enabled });
        self.server.ask("POST", &path, &settings).map(|_| ())
    }

    fn toxics(&self) -> Result<Vec<String>, String> {
        let path = format!("/proxies/{}/toxics", self.name);
        let reply = self.server.ask("GET", &path, &Value::Null)?;
        let toxics = reply.as_array().ok_or("toxiproxy names no toxics")?;
        let names = toxics.iter().filter_map(|toxic| toxic["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let path = format!("/proxies/{}", self.name);
        // If this fails, the proxy lives as long as its toxiproxy, which does no harm.
        let _ = self.server.ask("DELETE", &path, &Value::Null);
    }
}

impl Server {
    /// Returns the server's response, null if it is empty; with a null `body`, sends none.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let length = u64::try_from(body.len()).expect("it is small");
        let reply = Request::new(method, path)
            .body(length, body.as_bytes())
            .succeed(&self.address)?;
        if reply.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&reply).map_err(|error| format!("toxiproxy: {error}"))
    }
}
