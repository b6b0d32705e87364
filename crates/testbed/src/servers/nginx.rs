//! nginx: a folder over HTTP, with some addresses that misbehave.
//!
//! Uses its own configuration in its own folder: the machine's, if it has one, is neither read nor
//! changed.

use std::fs;
use std::path::{Path, PathBuf};

use super::address::local;
use super::certificate::Certificate;
use super::process::{Process, Ready, command};
use super::tool::tool;

const USER: &str = "test";
const PASSWORD: &str = "testtest";

/// Running nginx. Each file of its folder has these addresses, below [`Nginx::url`] and
/// [`Nginx::tls_url`]:
///
/// | path | response |
/// |---|---|
/// | `/FILE` | the file, with ranges and conditions |
/// | `/forbidden/FILE` | 403 |
/// | `/unavailable/FILE` | 503 |
/// | `/noranges/FILE` | the whole file with 200, whatever the range |
/// | `/redirect/FILE` | 302 to `/FILE` |
/// | `/plain/FILE` | 302 to `/FILE` below [`Nginx::url`] |
/// | `/basic/FILE` | 401 unless [`Nginx::user`] and [`Nginx::password`] are given |
/// | `/slow/FILE` | the file at 1 MiB/s per connection |
/// | `/bare/FILE` | the file, with neither `ETag` nor `Last-Modified` |
///
/// Its entity tags consist of a file's length and the second of its last change.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    port: u16,
    tls_port: u16,
    ca_file: PathBuf,
}

impl Nginx {
    /// Starts a server that speaks HTTP and, on another port, HTTPS.
    pub fn start() -> Result<Self, String> {
        let program = tool("nginx")?;
        let (process, [port, tls_port]) = Process::start(Ready::Answers("/"), |folder, ports| {
            let settings = folder.join("nginx.conf");
            let users = format!("{USER}:{{PLAIN}}{PASSWORD}\n");
            let certificate = Certificate::make(folder)?;
            fs::create_dir(folder.join("files"))
                .and_then(|()| fs::write(folder.join("users"), users))
                .and_then(|()| fs::write(&settings, configuration(folder, ports, &certificate)))
                .map_err(|error| format!("cannot set nginx up: {error}"))?;
            let mut command = command(&program, folder);
            command.arg("-p").arg(folder).arg("-c").arg(settings);
            Ok(command)
        })?;
        let ca_file = Certificate::of(process.folder()).authority;
        Ok(Self {
            process,
            port,
            tls_port,
            ca_file,
        })
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Returns host and port without TLS, for a proxy in front.
    pub fn address(&self) -> String {
        local(self.port)
    }

    /// Returns `https://127.0.0.1:PORT`, for clients that trust [`Nginx::ca_file`].
    pub fn tls_url(&self) -> String {
        format!("https://{}", local(self.tls_port))
    }

    /// Returns the path of the authority's certificate, as a PEM file.
    pub fn ca_file(&self) -> &Path {
        &self.ca_file
    }

    /// Returns the folder served: put files there, or links to them.
    pub fn folder(&self) -> PathBuf {
        self.process.folder().join("files")
    }

    /// Puts a file with these contents, or replaces it; `name` may have folders, which are created
    /// if missing.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let path = self.folder().join(name);
        let folder = path.parent().expect("it is below a folder");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, bytes))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Returns the user that may read `/basic/`.
    pub fn user(&self) -> &'static str {
        USER
    }

    /// Returns the password of [`Nginx::user`].
    pub fn password(&self) -> &'static str {
        PASSWORD
    }
}

/// Returns the configuration. One process, since a killed master would leave its workers behind,
/// and since workers may not read the folder if root starts them. All paths are set, or nginx would
/// use those of the machine's service.
fn configuration(folder: &Path, [port, tls_port]: [u16; 2], certificate: &Certificate) -> String {
    let folder = folder.display();
    let key = certificate.key.display();
    let certificate = certificate.server.display();
    format!(
        "\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    default_type application/octet-stream;
    sendfile on;
    tcp_nopush on;
    server {{
        listen 127.0.0.1:{port};
        listen 127.0.0.1:{tls_port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        root {folder}/files;
        # Right behind a proxy, too.
        absolute_redirect off;
        location /forbidden/ {{ return 403; }}
        location /unavailable/ {{ return 503; }}
        location /noranges/ {{ alias {folder}/files/; max_ranges 0; }}
        location /redirect/ {{ rewrite ^/redirect(/.*)$ $1 redirect; }}
        location /plain/ {{ rewrite ^/plain(/.*)$ http://127.0.0.1:{port}$1 redirect; }}
        location /basic/ {{
            alias {folder}/files/;
            auth_basic tload;
            auth_basic_user_file {folder}/users;
        }}
        location /slow/ {{ alias {folder}/files/; limit_rate 1m; }}
        location /bare/ {{ alias {folder}/files/; etag off; add_header Last-Modified \"\"; }}
    }}
}}
"
    )
}
