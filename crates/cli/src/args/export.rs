//! Files that `tload bench` writes.

use std::path::PathBuf;

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ExportArgs {
    /// Write every sample as JSON; if the benchmark fails, the samples so far and the error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write every sample as CSV
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the summary as Markdown
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    pub(crate) markdown: Option<PathBuf>,
    /// Plot the speeds as SVG (FILE ends in .svg) over the swept setting with the most values,
    /// together with the ceiling
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    pub(crate) plot: Option<PathBuf>,
    /// Write a page of HTML: bars beside their ceilings, the sweep as a heat map, the machine, and
    /// every run
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    pub(crate) html: Option<PathBuf>,
    /// Write a trace of the loads for Perfetto (ui.perfetto.dev): reads, copies to GPUs, tensors,
    /// waits of each lane
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    pub(crate) trace: Option<PathBuf>,
}

impl ExportArgs {
    /// Returns the path of every export.
    pub(crate) fn paths(&self) -> Vec<&PathBuf> {
        let tables = [&self.json, &self.csv, &self.markdown];
        let all = tables
            .into_iter()
            .chain([&self.plot, &self.html, &self.trace]);
        all.flatten().collect()
    }
}
