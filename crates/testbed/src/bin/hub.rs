//! Hub with one model and its content store, for measurements: serves the files of a folder as
//! `hf://org/model` until its standard input ends, and prints then how often it was asked.

use std::io::{Read as _, Write as _};

use tload_testbed::Hub;

/// Chunks in a xorb, of 47 KiB on average: the Hub's have up to 64 MiB.
const XORB_LEN: usize = 1024;

#[expect(clippy::disallowed_methods, reason = "this program loads nothing")]
fn main() -> std::io::Result<()> {
    let folder = std::env::args_os()
        .nth(1)
        .ok_or_else(|| std::io::Error::other("usage: hub FOLDER"))?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push((name, std::fs::read(entry.path())?));
    }
    let hub = Hub::start();
    hub.keep_in_xet();
    hub.set_xorb_len(XORB_LEN);
    let named = files.iter().map(|(name, bytes)| (&**name, &**bytes));
    hub.commit("org/model", "main", &named.collect::<Vec<_>>());
    drop(files);
    let mut out = std::io::stdout();
    writeln!(out, "HF_ENDPOINT={}", hub.url())?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let served = hub.files().requests();
    let ranges = served.iter().filter_map(|request| request.range.clone());
    let bytes: u64 = ranges.map(|range| range.end - range.start).sum();
    let (asked, queries, served) = (hub.requests().len(), hub.queries().len(), served.len());
    writeln!(
        out,
        "{asked} requests to the hub, {queries} queries, {served} for {bytes} bytes"
    )
}
