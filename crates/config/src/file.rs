//! Finds the file, checks that no other user can change it, and keeps its contents until it
//! changes.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tload::{Error, ErrorKind, Result};
use tload_base::files::open_plain;

use crate::Config;

/// Environment variable that names the file. Empty, it means none.
pub const VARIABLE: &str = "TLOAD_CONFIG";

/// Most bytes of the file. One of a thousand prefixes has a tenth of it.
const BYTES_MAX: u64 = 1 << 20;

/// Bits of a file's mode by which others than its owner may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// File of one environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// True if the variable names it: then it must exist.
    pub(crate) is_named: bool,
}

/// State of the file when it was read.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    file: (u64, u64),
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn new(path: &Path, status: &Metadata) -> Self {
        Self {
            path: path.to_owned(),
            file: (status.dev(), status.ino()),
            len: status.len(),
            modified: (status.mtime(), status.mtime_nsec()),
            changed: (status.ctime(), status.ctime_nsec()),
        }
    }
}

/// The last file that was read without an error.
static LAST: Mutex<Option<(Stamp, Arc<Config>)>> = Mutex::new(None);

/// Returns what the file of an environment says.
pub(crate) fn current(variable: impl Fn(&str) -> Option<OsString>) -> Result<Arc<Config>> {
    let Some(place) = find(&variable) else {
        return Ok(Arc::default());
    };
    let path = &place.path;
    if let Ok(status) = std::fs::metadata(path) {
        let last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((stamp, config)) = &*last
            && *stamp == Stamp::new(path, &status)
        {
            return Ok(Arc::clone(config));
        }
    }
    let file = match open_plain(path) {
        Ok(file) => file,
        Err(error) if !place.is_named && (is_absent(&error) || is_out_of_reach(path)) => {
            return Ok(Arc::default());
        }
        Err(error) => return Err(failed(&place, "cannot open the configuration file", error)),
    };
    let (stamp, text) = read(&place, file)?;
    let home = variable("HOME").map(PathBuf::from);
    let config = Arc::new(Config::parse(path, &text, home.as_deref())?);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    *last = Some((stamp, Arc::clone(&config)));
    Ok(config)
}

/// Returns the file that the environment leads to.
pub(crate) fn find(variable: &impl Fn(&str) -> Option<OsString>) -> Option<Place> {
    if let Some(named) = variable(VARIABLE) {
        let is_none = named.to_string_lossy().trim().is_empty();
        return (!is_none).then(|| Place {
            path: named.into(),
            is_named: true,
        });
    }
    // The specification of these folders ignores relative paths.
    let folder = |name| {
        let path = PathBuf::from(variable(name)?);
        path.is_absolute().then_some(path)
    };
    let folder = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(Place {
        path: folder.join("tload").join("config.toml"),
        is_named: false,
    })
}

/// Returns whether there is no such file: below a home that does not exist or is a file, either.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Returns whether a folder above may not be searched: containers often run as a user whose `HOME`
/// is that of root.
fn is_out_of_reach(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn read(place: &Place, file: File) -> Result<(Stamp, String)> {
    let shown = place.path.display();
    let status = file.metadata().map_err(|error| {
        failed(
            place,
            "cannot read the status of the configuration file",
            error,
        )
    })?;
    if !status.is_file() {
        let message = "the configuration file is not a regular file";
        return Err(Error::invalid_request(message).with_location(shown));
    }
    let user = rustix::process::geteuid().as_raw();
    check_owner(status.uid(), status.mode(), user).map_err(|error| error.with_location(&shown))?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(place, "cannot read the configuration file", error))?;
    if bytes.len() as u64 > BYTES_MAX {
        let message = format!("the configuration file is longer than {BYTES_MAX} bytes");
        return Err(Error::invalid_request(message).with_location(shown));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!("the configuration file is not UTF-8 at byte {at}");
        Error::invalid_request(message).with_location(&shown)
    })?;
    Ok((Stamp::new(&place.path, &status), text))
}

/// Rejects a file that another user could change: options choose the server that credentials and
/// weights belong to.
pub(crate) fn check_owner(owner: u32, mode: u32, user: u32) -> Result<()> {
    let denied = |message: String| Error::new(ErrorKind::PermissionDenied, message);
    if owner != user && owner != 0 {
        return Err(denied(format!(
            "the configuration file belongs to user {owner}, neither to this user ({user}) nor to root"
        ))
        .with_hint("chown the file, or set TLOAD_CONFIG to another one, or to nothing"));
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        let mode = mode & 0o7777;
        return Err(denied(format!(
            "the configuration file may be written to by other users (mode {mode:04o})"
        ))
        .with_hint("run chmod go-w on the file"));
    }
    Ok(())
}

fn failed(place: &Place, what: &str, error: io::Error) -> Error {
    let error = Error::from_io(what, error).with_location(place.path.display());
    if place.is_named {
        error.with_hint(format!("{VARIABLE} names it; set it to nothing for none"))
    } else {
        error
    }
}
