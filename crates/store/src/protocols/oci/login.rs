//! Finds the credentials of a registry in the files that `docker login`, `podman login` and `oras
//! login` write, and runs credential helpers.
//!
//! Documented in `containers-auth.json(5)` and in "docker login". The files are read when a store
//! is opened; a helper runs when the registry asks for credentials.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::builder::Opening;
use crate::credentials::origin::ANONYMOUS;
use crate::credentials::program::answer;
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result, printable};
use crate::errors::classification::Classification;
use crate::options::oci_reference::OciReference;

/// Time that a credential helper may take: some ask a cloud.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// User name by which helpers mark an identity token.
const TOKEN_USER: &str = "<token>";

/// Docker Hub's names, and the name that stands for them in files.
const HUB_NAMES: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// Server that Docker passes to helpers for its hub.
const HUB_SERVER: &str = "https://index.docker.io/v1/";

/// Credentials of a registry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Login {
    Anonymous,
    /// User and password, for the registry or its token service.
    Password(String, String),
    /// Token that the token service exchanges for others.
    Identity(String),
    /// Token for the registry itself.
    Bearer(String),
    /// Program that returns one of the above, and the server to ask it about.
    Helper {
        name: String,
        /// `None` if it is not in `PATH`: public artifacts do not need it.
        program: Option<PathBuf>,
        server: String,
    },
}

/// Configuration of Docker, or an authentication file of Podman.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    auths: BTreeMap<String, Auth>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    #[serde(rename = "auth")]
    pair: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// Response of a credential helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

impl Login {
    /// Finds the credentials for a repository and their origin, for display.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a file that is malformed, and the kinds of I/O for one
    /// that cannot be read.
    pub(crate) fn find(opening: &Opening, artifact: &OciReference) -> Result<(Self, String)> {
        if let Some(token) = opening.options.get("token") {
            let token = token.trim().to_owned();
            return Ok((Self::Bearer(token), "option token".to_owned()));
        }
        let anonymous = (Self::Anonymous, ANONYMOUS.to_owned());
        if opening.options.flag("anonymous") == Some(true) {
            return Ok(anonymous);
        }
        for path in paths(opening.environment) {
            let Some(config) = Config::read(&path)? else {
                continue;
            };
            if let Some((login, by)) = config.login(artifact, opening.environment, &path)? {
                return Ok((login, format!("{by}file {}", path.display())));
            }
        }
        Ok(anonymous)
    }

    /// Replaces a helper by what it returns.
    pub(crate) async fn resolved(&self) -> Result<Self, Classification> {
        match self {
            Self::Helper {
                name,
                program,
                server,
            } => {
                let program = program.as_deref().ok_or_else(|| absent(name))?;
                ask_program(program, server, WAIT_MAX).await
            }
            Self::Anonymous | Self::Password(..) | Self::Identity(_) | Self::Bearer(_) => {
                Ok(self.clone())
            }
        }
    }
}

/// Returns the files in which credentials are looked up, in this order. Variables that name one
/// come first.
fn paths(environment: &Environment) -> Vec<PathBuf> {
    let below = |variable: &str, name: &str| Some(Path::new(environment.get(variable)?).join(name));
    let paths = [
        below("REGISTRY_AUTH_FILE", ""),
        below("DOCKER_CONFIG", "config.json"),
        below("XDG_RUNTIME_DIR", "containers/auth.json"),
        below("XDG_CONFIG_HOME", "containers/auth.json")
            .or_else(|| below("HOME", ".config/containers/auth.json")),
        below("HOME", ".docker/config.json").filter(|_| environment.get("DOCKER_CONFIG").is_none()),
    ];
    // Joining an empty name leaves a slash at the end.
    let named = paths.into_iter().flatten();
    named.map(|path| path.components().collect()).collect()
}

fn malformed(path: &Path, message: &str) -> Error {
    Error::invalid_request(message)
        .with_location(path.display())
        .with_hint("log in again, or set anonymous=true")
}

impl Config {
    fn read(path: &Path) -> Result<Option<Self>> {
        match std::fs::read_to_string(path) {
            // The cause is left out: it may quote the file.
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|_| {
                malformed(
                    path,
                    "the file with credentials of registries is not JSON of the expected form",
                )
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(
                Error::from_io("cannot read credentials of registries", error)
                    .with_location(path.display())
                    .with_hint("set anonymous=true to use no credentials"),
            ),
        }
    }

    /// Returns the credentials for a repository: those of its helper, those of the longest prefix
    /// of its name, or those of the general helper.
    fn login(
        &self,
        artifact: &OciReference,
        environment: &Environment,
        path: &Path,
    ) -> Result<Option<(Login, String)>> {
        let host = canonical(&artifact.host);
        let helper = |name: &String| {
            let server = if host == HUB_NAMES[0] {
                HUB_SERVER
            } else {
                &*artifact.host
            };
            let login = Login::Helper {
                name: name.clone(),
                program: program(name, environment),
                server: server.to_owned(),
            };
            let by = format!("credential helper {} of ", printable(name));
            Ok(Some((login, by)))
        };
        let mut own = self.cred_helpers.iter();
        if let Some((_, name)) = own.find(|(key, _)| normalized(key) == host) {
            return helper(name);
        }
        let whole = format!("{host}/{}", artifact.repository);
        let mut prefixes = std::iter::successors(Some(&*whole), |prefix| {
            prefix.rsplit_once('/').map(|(shorter, _)| shorter)
        });
        let found = prefixes.find_map(|prefix| {
            let mut matching = self
                .auths
                .iter()
                .filter(|(key, _)| normalized(key) == prefix);
            // Entries that belong to a helper are empty in this file.
            matching.find_map(|(_, auth)| auth.login())
        });
        match (found, &self.creds_store) {
            (Some(Ok(login)), _) => Ok(Some((login, String::new()))),
            (Some(Err(())), _) => Err(malformed(
                path,
                "the entry of the registry is not base64 of user:password",
            )),
            (None, Some(name)) => helper(name),
            (None, None) => Ok(None),
        }
    }
}

impl Auth {
    /// Returns `None` for an empty entry, and an error for a malformed one.
    fn login(&self) -> Option<std::result::Result<Login, ()>> {
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = filled(&self.identitytoken) {
            return Some(Ok(Login::Identity(token)));
        }
        if let Some(token) = filled(&self.registrytoken) {
            return Some(Ok(Login::Bearer(token)));
        }
        if let Some((user, password)) = filled(&self.username).zip(filled(&self.password)) {
            return Some(Ok(Login::Password(user, password)));
        }
        let pair = STANDARD
            .decode(filled(&self.pair)?.trim())
            .ok()
            .and_then(|pair| String::from_utf8(pair).ok());
        let login = pair
            .as_deref()
            .map(|pair| pair.trim_end_matches('\0'))
            .and_then(|pair| pair.split_once(':'))
            .map(|(user, password)| Login::Password(user.to_owned(), password.to_owned()));
        Some(login.ok_or(()))
    }
}

/// Returns the name of a registry that stands for all its names.
fn canonical(host: &str) -> &str {
    if HUB_NAMES.contains(&host) {
        HUB_NAMES[0]
    } else {
        host
    }
}

/// Returns the key of a file as host and repository. Keys with a scheme are URLs of a registry.
fn normalized(key: &str) -> String {
    let (host, rest) = match key.split_once("://") {
        Some((_, rest)) => (rest.split('/').next().unwrap_or_default(), ""),
        None => key.split_once('/').unwrap_or((key, "")),
    };
    let slash = if rest.is_empty() { "" } else { "/" };
    format!("{}{slash}{rest}", canonical(host))
}

/// Returns the path of a credential helper.
fn program(name: &str, environment: &Environment) -> Option<PathBuf> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let folders = environment
        .get("PATH")
        .filter(|_| name.bytes().all(allowed))?;
    std::env::split_paths(folders)
        .map(|folder| folder.join(format!("docker-credential-{name}")))
        .find(|program| program.is_file())
}

fn failed(message: String) -> Classification {
    Classification::new(ErrorKind::PermissionDenied, message)
        .hint("log in again, or set anonymous=true for public artifacts")
}

fn absent(name: &str) -> Classification {
    let program = format!("docker-credential-{}", printable(name));
    let message = format!("the credential helper {program} is not in PATH");
    failed(message).hint(format!(
        "install {program}, log in again, or set anonymous=true for public artifacts"
    ))
}

/// Runs a credential helper, and kills it if it takes longer than `wait_max` or the future is
/// dropped.
async fn ask_program(
    program: &Path,
    server: &str,
    wait_max: Duration,
) -> Result<Login, Classification> {
    let shown = printable(&program.display().to_string());
    let mut command = Command::new(program);
    let answer = answer(command.arg("get"), server.into(), wait_max).await;
    let answer =
        answer.map_err(|reason| failed(format!("the credential helper {shown} {reason}")))?;
    match answer {
        (true, text) => {
            let answer: Answer = serde_json::from_slice(&text).map_err(|_| {
                failed(format!(
                    "the credential helper {shown} sent a malformed response"
                ))
            })?;
            Ok(match &*answer.username {
                TOKEN_USER => Login::Identity(answer.secret),
                _ => Login::Password(answer.username, answer.secret),
            })
        }
        (false, text) if text.starts_with(b"credentials not found") => Ok(Login::Anonymous),
        (false, _) => Err(failed(format!("the credential helper {shown} failed"))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{CWD, FileType, Mode, OFlags};

    use super::*;

    fn artifact(host: &str, repository: &str) -> OciReference {
        OciReference::from_authority(&format!("{host}/{repository}:latest"))
    }

    fn password(user: &str) -> Login {
        Login::Password(user.to_owned(), "hunter2".to_owned())
    }

    fn auth(user: &str) -> serde_json::Value {
        serde_json::json!({"auth": STANDARD.encode(format!("{user}:hunter2"))})
    }

    fn found(config: &serde_json::Value, host: &str, repository: &str) -> Option<Login> {
        let config: Config = serde_json::from_value(config.clone()).expect("a configuration");
        let environment = Environment::default();
        let login = config.login(&artifact(host, repository), &environment, Path::new("f"));
        login.expect("a valid one").map(|(login, _)| login)
    }

    #[test]
    fn longest_prefix_of_repository_wins() {
        let config = serde_json::json!({"auths": {
            "h:5000": auth("host"),
            "h:5000/a": auth("a"),
            "h:5000/a/b": auth("b"),
            "https://url.example/v2/": auth("url"),
            "https://index.docker.io/v1/": auth("hub"),
            "empty": {},
            "plain": {"username": "plain", "password": "hunter2"},
            "identity": {"auth": "", "identitytoken": "t"},
            "bearer": {"registrytoken": "t"},
        }});
        let token = || "t".to_owned();
        for (host, repository, wanted) in [
            ("h:5000", "x", Some(password("host"))),
            ("h:5000", "a", Some(password("a"))),
            ("h:5000", "a/b", Some(password("b"))),
            ("h:5000", "a/b/c", Some(password("b"))),
            ("h:5000", "a/bc", Some(password("a"))),
            ("h", "a", None),
            ("url.example", "a", Some(password("url"))),
            ("docker.io", "a", Some(password("hub"))),
            ("registry-1.docker.io", "a", Some(password("hub"))),
            ("empty", "a", None),
            ("plain", "a", Some(password("plain"))),
            ("identity", "a", Some(Login::Identity(token()))),
            ("bearer", "a", Some(Login::Bearer(token()))),
        ] {
            assert!(
                found(&config, host, repository) == wanted,
                "{host}/{repository}"
            );
        }
    }

    #[test]
    fn malformed_entries_are_refused_without_showing_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("auth.json");
        for text in ["hunter2", r#"{"auths": {"h": "hunter2"}}"#] {
            std::fs::write(&path, text).expect("a file");
            let error = Config::read(&path).err().expect("malformed");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
        let text = r#"{"auths": {"h": {"auth": "hunter2!"}}}"#;
        let config: Config = serde_json::from_str(text).expect("a configuration");
        let error = config.login(&artifact("h", "a"), &Environment::default(), &path);
        let error = error.err().expect("malformed");
        assert!(!error.chain().contains("hunter2"), "{}", error.chain());
    }

    #[test]
    fn files_are_looked_up_in_order() {
        let of = |variables: &[(&str, &str)]| {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let found = paths(&Environment::new(variables.iter().map(owned)));
            let shown = found.iter().map(|path| path.display().to_string());
            shown.collect::<Vec<_>>()
        };
        let home = ("HOME", "/h");
        let wanted = ["/h/.config/containers/auth.json", "/h/.docker/config.json"];
        assert_eq!(of(&[home]), wanted);
        let all = [
            home,
            ("DOCKER_CONFIG", "/d"),
            ("REGISTRY_AUTH_FILE", "/r.json"),
            ("XDG_CONFIG_HOME", "/c"),
            ("XDG_RUNTIME_DIR", "/run"),
        ];
        let wanted = [
            "/r.json",
            "/d/config.json",
            "/run/containers/auth.json",
            "/c/containers/auth.json",
        ];
        assert_eq!(of(&all), wanted);
        assert!(of(&[]).is_empty());
    }

    /// Writes a helper, and returns its path.
    fn helper(folder: &Path, name: &str, script: &str) -> PathBuf {
        let path = folder.join(format!("docker-credential-{name}"));
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("its mode");
        path
    }

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    }

    #[test]
    fn helper_that_closes_its_output_and_stays_is_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = "cat >/dev/null; exec >&-; exec sleep 600";
        let program = helper(folder.path(), "stays", script);
        let started = std::time::Instant::now();
        let asked = ask_program(&program, "h", Duration::from_secs(1));
        let error = runtime().block_on(asked).err().expect("an error");
        assert!(
            error.message.ends_with("longer than 1s"),
            "{}",
            error.message
        );
        assert!(started.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn helper_of_a_cancelled_request_is_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let alive = folder.path().join("alive");
        rustix::fs::mknodat(CWD, &alive, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        // It holds the pipe open for as long as it runs.
        let script = format!("exec 3>'{}'; exec sleep 600", alive.display());
        let program = helper(folder.path(), "cancelled", &script);
        let runtime = runtime();
        let pipe = runtime.block_on(async {
            let open = move || rustix::fs::open(alive, OFlags::RDONLY, Mode::empty());
            let begun = tokio::task::spawn_blocking(open);
            tokio::select! {
                _ = ask_program(&program, "h", WAIT_MAX) => panic!("it does not answer"),
                begun = begun => begun.expect("no panic").expect("opens once it runs"),
            }
        });
        let (sender, ended) = std::sync::mpsc::channel();
        let mut pipe = std::fs::File::from(pipe);
        std::thread::spawn(move || sender.send(pipe.read_to_end(&mut Vec::new())));
        let ended = ended.recv_timeout(Duration::from_secs(100));
        assert!(ended.is_ok_and(|end| end.is_ok()), "it still runs");
    }

    #[test]
    fn helper_is_asked_about_the_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = |name: &str, text: &str| helper(folder.path(), name, text);
        script(
            "good",
            r#"read -r server; echo "{\"Username\": \"$1 $server\", \"Secret\": \"hunter2\"}""#,
        );
        script(
            "token",
            r#"cat >/dev/null; echo '{"Username": "<token>", "Secret": "t"}'"#,
        );
        script(
            "none",
            "cat >/dev/null; echo credentials not found in native keychain; exit 1",
        );
        script("bad", "cat >/dev/null; echo hunter2; exit 1");
        script("odd", "cat >/dev/null; echo hunter2");
        let path = folder.path().to_str().expect("UTF-8").to_owned();
        let environment = Environment::new([("PATH".to_owned(), path)]);
        let runtime = runtime();
        let ask = |key: &str, name: &str, host: &str| {
            let helpers = serde_json::json!({key: if key == "credsStore" { serde_json::json!(name) } else {
                serde_json::json!({host: name})
            }});
            let config: Config = serde_json::from_value(helpers).expect("a configuration");
            let found = config.login(&artifact(host, "a"), &environment, Path::new("f"));
            let (login, by) = found.expect("a helper").expect("a helper");
            assert!(by.contains(name), "{by}");
            runtime.block_on(login.resolved())
        };
        assert!(ask("credHelpers", "good", "h:1").is_ok_and(|login| login == password("get h:1")));
        let hub = format!("get {HUB_SERVER}");
        assert!(ask("credsStore", "good", "docker.io").is_ok_and(|login| login == password(&hub)));
        let identity = Login::Identity("t".to_owned());
        assert!(ask("credsStore", "token", "h").is_ok_and(|login| login == identity));
        assert!(ask("credsStore", "none", "h").is_ok_and(|login| login == Login::Anonymous));
        for name in ["bad", "odd", "absent", "../none"] {
            let error = ask("credsStore", name, "h").err().expect("an error");
            assert_eq!(error.kind, ErrorKind::PermissionDenied);
            assert!(!error.message.contains("hunter2"), "{}", error.message);
        }
    }
}
