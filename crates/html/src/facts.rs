//! Facts about a run: the machine, the options, the command, the build.

use serde_json::Value;

use crate::page::{Item, Page, text};
use crate::quantity::{format_time, plain};

/// Circumstances of a result.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Version of tload.
    pub version: String,
    /// True for a build without optimisation.
    pub is_debug: bool,
    /// When it began, seconds since 1970.
    pub unix_seconds: u64,
    /// Arguments without secrets.
    pub command: Vec<String>,
    /// Record of the host, as JSON.
    pub host: Value,
    /// Names and values of the options that were used: see [`options`].
    pub options: Vec<(String, String)>,
}

/// Fields of the record of a host, in the order in which they are shown.
const HOST: [&str; 12] = [
    "store",
    "file_system",
    "mount_options",
    "disk",
    "disk_model",
    "disk_scheduler",
    "kernel",
    "cpu",
    "architecture",
    "cores",
    "memory_bytes",
    "gpu",
];

/// Returns the names and values of options that are set, from their JSON.
#[must_use]
pub fn options(options: &Value) -> Vec<(String, String)> {
    let fields = options.as_object().into_iter().flatten();
    fields
        .filter_map(|(name, value)| Some((name.clone(), plain(name, value)?)))
        .collect()
}

/// Returns a field as people call it: `memory_bytes` is the memory.
pub(crate) fn label(name: &str) -> String {
    match name {
        "cpu" => "CPU".to_owned(),
        "gpu" => "GPU".to_owned(),
        "cores" => "CPUs".to_owned(),
        _ => name.trim_end_matches("_bytes").replace('_', " "),
    }
}

impl Run {
    /// Adds the sections at the end of a page.
    pub(crate) fn add_to(&self, page: &mut Page) {
        let known = HOST.iter().filter_map(|name| {
            let value = plain(name, self.host.get(name)?)?;
            Some((label(name), text(&value)))
        });
        let host: Vec<_> = known.collect();
        if !host.is_empty() {
            page.section("Machine", "", vec![Item::Facts(host)]);
        }
        let options = self.options.iter();
        let options: Vec<_> = options
            .map(|(name, value)| (name.clone(), text(value)))
            .collect();
        if !options.is_empty() {
            let intro = "The load chose what is not listed.";
            page.section("Options", intro, vec![Item::Facts(options)]);
        }
        if !self.command.is_empty() {
            let line = text(&self.command.join(" "));
            page.section("Command", "", vec![Item::Text("Command line", line)]);
        }
        page.foot = self.foot();
    }

    fn foot(&self) -> String {
        let build = if self.is_debug { ", a debug build" } else { "" };
        format!(
            "Made by tload {}{build}, {}. This file is complete: it loads nothing from elsewhere.",
            self.version,
            format_time(self.unix_seconds)
        )
    }
}
