//! Export files. They are created before the first run, so that a bad path fails early, and what
//! exists stays until there is something to replace it. Those of a benchmark are replaced after
//! each run, so that a crash loses at most one; `load` has those of a load.

mod csv;
pub(crate) mod html;
mod json;
pub(crate) mod load;
mod markdown;
mod plain;
mod plot;

use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use serde::Serialize;
use tempfile::NamedTempFile;
use tload::{Error, Result};
use tload_trace::Recorder;

use crate::args::ExportArgs;
use crate::bench::results::Results;
use crate::output;
use crate::output::error::note;
use crate::output::failure::{Failure, Outcome};
use tload_quantity::format_count;

pub(crate) use self::plain::run;

/// File format.
trait Format {
    /// Returns the whole file.
    fn render(&self, results: &Results) -> String;
}

/// Files requested by the user.
#[derive(Default)]
pub(crate) struct Exports {
    files: Vec<(PathBuf, Box<dyn Format>)>,
}

impl Exports {
    /// Creates the files as [`create`] does.
    pub(crate) fn create(args: &ExportArgs) -> Result<Self> {
        let plot = (args.plot.as_ref())
            .map(|path| Ok::<_, Error>((path, plot::Plot::for_path(path)?)))
            .transpose()?;
        let mut files: Vec<(PathBuf, Box<dyn Format>)> = Vec::new();
        let mut add = |path: Option<&PathBuf>, format: Box<dyn Format>| {
            files.extend(path.map(|path| (path.clone(), format)));
        };
        add(args.json.as_ref(), Box::new(json::Json));
        add(args.csv.as_ref(), Box::new(csv::Csv));
        add(args.markdown.as_ref(), Box::new(markdown::Markdown));
        add(args.html.as_ref(), Box::new(html::Html));
        if let Some((path, plot)) = plot {
            add(Some(path), Box::new(plot));
        }
        create(&args.paths())?;
        Ok(Self { files })
    }

    /// Rewrites all files.
    pub(crate) fn write(&self, results: &Results) -> Result<()> {
        for (path, format) in &self.files {
            write_text(path, &format.render(results))?;
        }
        Ok(())
    }
}

/// Writes the samples measured before a failure, and the failure, as JSON.
pub(crate) fn write_failure(path: &Path, results: Option<&impl Serialize>, failure: Failure<'_>) {
    let text = match results {
        Some(results) => output::json::text(&Outcome::new(results, Some(failure))),
        None => output::json::text(&Outcome::failed(failure)),
    };
    // If this fails too, standard error and the exit status still report the failure.
    drop(text.and_then(|text| write(path, &text)));
}

/// Writes results that have no other format than JSON.
pub(crate) fn write_json(path: &Path, results: &impl Serialize) -> Result<()> {
    let text = output::json::text(results);
    let written = text.and_then(|text| write(path, &text));
    written.map_err(|error| export_error(path, error))
}

/// Creates files, empty, so that a bad path fails early. Those that exist keep what they have, and
/// are only known to be writable then.
pub(crate) fn create(paths: &[&PathBuf]) -> Result<()> {
    check(paths)?;
    let mut paths = paths.iter();
    paths.try_for_each(|path| try_to_write(path).map_err(|error| export_error(path, error)))
}

/// Refuses to replace one export by another, and weights by an export.
pub(crate) fn check(paths: &[&PathBuf]) -> Result<()> {
    let mut files = Vec::new();
    for path in paths {
        let file = followed(path);
        // Pipes and devices take several texts.
        let is_twice = files.contains(&file) && (file.is_file() || !file.exists());
        let message = if is_twice {
            "is the file of two exports, of which one would be lost"
        } else if path.is_file() && (is_weights(path) || is_weights(&file)) {
            "is a file of a checkpoint, which no export replaces"
        } else {
            files.push(file);
            continue;
        };
        return Err(Error::invalid_request(message)
            .with_location(path.display())
            .with_hint("name another file"));
    }
    Ok(())
}

/// Returns the path with links followed, also of a file that does not exist yet.
fn followed(path: &Path) -> PathBuf {
    let beside = || Some(folder_of(path).canonicalize().ok()?.join(path.file_name()?));
    let found = path.canonicalize().ok().or_else(beside);
    found.unwrap_or_else(|| path.to_owned())
}

/// Returns whether this is the name of a shard, or of an index.
fn is_weights(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = [".safetensors", ".tensors", ".safetensors.index.json"];
    ends.iter().any(|end| name.ends_with(end))
}

/// Makes sure that [`write_with`] can write a file, and creates one that does not exist.
fn try_to_write(path: &Path) -> io::Result<()> {
    if path.symlink_metadata().is_ok_and(|it| it.is_file()) {
        match partial_beside(path) {
            Err(error) if !is_full(&error) => {}
            made => return made.map(drop),
        }
    }
    // Opening a pipe would wait for its reader, and closing it would end what that reads.
    if path.metadata().is_ok_and(|it| it.file_type().is_fifo()) {
        return Ok(access(path, Access::WRITE_OK)?);
    }
    let mut options = fs::File::options();
    let opened = options.write(true).create(true).truncate(false).open(path);
    opened.map(drop)
}

/// Writes a whole file as [`write_with`] does.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<()> {
    write(path, text).map_err(|error| export_error(path, error))
}

/// Writes a trace as [`write_with`] does.
pub(crate) fn write_trace(path: &Path, recorder: &Recorder) -> Result<()> {
    write_with(path, &|out| recorder.write(out)).map_err(|error| export_error(path, error))?;
    if recorder.dropped() > 0 {
        let dropped = format_count(recorder.dropped(), "event");
        note(&format!(
            "{dropped} of the trace were not kept: it has a limited number"
        ));
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    write_with(path, &|out| out.write_all(text.as_bytes()))
}

/// Writes the content of a file.
type Content<'a> = &'a dyn Fn(&mut dyn Write) -> io::Result<()>;

/// Writes a whole file. An existing one is replaced at once, so that a crash or a full disk leaves
/// what it held before. Links (`/dev/stdout`), pipes and devices are written to, as is a file that
/// cannot be replaced: a mount point, or one in a directory where no other can be created.
fn write_with(path: &Path, content: Content<'_>) -> io::Result<()> {
    let existing = path.symlink_metadata().ok();
    let Some(regular) = existing.filter(fs::Metadata::is_file) else {
        return write_directly(path, content);
    };
    match replace(path, content, regular.permissions()) {
        Err(error) if !is_full(&error) => write_directly(path, content),
        replaced => replaced,
    }
}

fn write_directly(path: &Path, content: Content<'_>) -> io::Result<()> {
    let mut out = BufWriter::new(fs::File::create(path)?);
    content(&mut out)?;
    out.flush()
}

fn replace(path: &Path, content: Content<'_>, permissions: fs::Permissions) -> io::Result<()> {
    let mut partial = partial_beside(path)?;
    let mut out = BufWriter::new(&mut partial);
    content(&mut out)?;
    out.flush()?;
    drop(out);
    partial.as_file().set_permissions(permissions)?;
    partial.persist(path)?;
    Ok(())
}

fn partial_beside(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".tload-")
        .suffix(".partial")
        .tempfile_in(folder_of(path))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Returns whether a file that is written to directly would lose what it has, too.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

fn export_error(path: &Path, error: io::Error) -> Error {
    let hint = if error.kind() == io::ErrorKind::NotFound {
        Some("create the directory first")
    } else if is_full(&error) {
        Some("free some space, or write it elsewhere")
    } else {
        None
    };
    let error = Error::from_write("cannot write the export", error).with_location(path.display());
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

#[cfg(test)]
mod tests;
