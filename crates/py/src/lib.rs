//! The extension module `tload._tload`: the parts of the crate `tload` that Python needs and cannot
//! do itself.
//!
//! No logic lives here. A function extracts its arguments, detaches from the interpreter, calls one
//! function of the core, and wraps the result. The public interface, with its types and docs, is
//! the Python package in `python/tload`; the stub of this module is `python/tload/_tload.pyi`.
//!
//! No lane takes the interpreter's lock. Functions that wait release it, and freeing a tensor does
//! not need it. Lanes only hold references to the caller's memory or allocator, which Python frees
//! when it runs.

mod allocator;
mod checkpoint;
mod configuration;
mod copy;
mod delta;
mod early;
mod events;
mod forked;
mod group;
mod index;
mod interrupt;
mod key;
mod loader;
mod options;
mod pages;
mod raised;
mod reader;
mod readiness;
mod sharding;
mod speed;
mod store;
mod stream;
mod tensor;
mod verify;
mod watch;
mod writer;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _tload {
    use std::ffi::{CString, OsString};
    use std::io::{self, Write};

    use pyo3::exceptions::PyRuntimeWarning;
    use pyo3::prelude::*;
    use tload::ErrorKind;

    use crate::interrupt::wait_in_steps;

    #[pymodule_export]
    use crate::{
        checkpoint::Checkpoint,
        configuration::{configured_options, configured_store},
        copy::{copy, has_secret, list_files, read_beside, show_location},
        delta::{apply_into, patch_files},
        early::EarlyStart,
        group::Group,
        loader::Loader,
        options::{
            check_options, format_bytes, option_from_variable, parse_bytes, seconds, verify_mode,
        },
        pages::{report_fragment, report_page, verified_fragment},
        reader::{Reader, Reading, scatter},
        sharding::Sharding,
        speed::{RecentSpeed, rate_as_text},
        store::{check_store, parse_store_option, store_secrets},
        stream::Stream,
        tensor::{FlatBytes, Tensor},
        verify::{read_signature, verify},
        writer::{Writer, publish_fragments, remove_incomplete},
    };

    /// Waits until this process reads for no other rank any more, for `timeout` seconds at most.
    /// Returns whether it does not.
    #[pyfunction]
    fn finish_serving(py: Python<'_>, timeout: f64) -> PyResult<bool> {
        wait_in_steps(py, timeout, tload::ranks::finish_serving)
    }

    /// Waits until the cache of object stores has what this process read, for `timeout` seconds at
    /// most. Returns whether it has.
    #[pyfunction]
    fn finish_caching(py: Python<'_>, timeout: f64) -> PyResult<bool> {
        wait_in_steps(py, timeout, tload::cache::finish_caching)
    }

    /// Passes the events that wait to `logging`.
    #[pyfunction]
    fn forward_events(py: Python<'_>) -> PyResult<()> {
        crate::events::forward(py)
    }

    /// Returns the counters of this process's loads and caches, in the text format of Prometheus.
    #[pyfunction]
    fn metrics_text(py: Python<'_>) -> String {
        py.detach(tload::internal::metrics_text)
    }

    /// Runs the command `tload` and returns its exit status. `argv[0]` is the program's name.
    #[pyfunction]
    fn cli_main(py: Python<'_>, argv: Vec<OsString>) -> u8 {
        py.detach(|| {
            let status = tload_cli::main(argv);
            // Rust flushes its own buffer only at the end of a Rust `main`. The command has handled
            // a closed pipe already.
            drop(io::stdout().flush());
            status
        })
    }

    /// Returns the name in `names` that `wanted` most likely stands for, if one is near enough.
    #[pyfunction]
    fn nearest_name(py: Python<'_>, wanted: &str, names: Vec<String>) -> Option<String> {
        py.detach(move || {
            let nearest = tload::internal::nearest_name(wanted, names.iter().map(String::as_str));
            nearest.map(str::to_owned)
        })
    }

    /// Returns the unknown ones of those `names` of environment variables that begin with `TLOAD_`,
    /// each with a warning.
    #[pyfunction]
    fn unknown_variables(py: Python<'_>, names: Vec<String>) -> Vec<(String, String)> {
        py.detach(move || tload::internal::unknown_variables(names.iter().map(String::as_str)))
    }

    /// Frees the staging memory that loads have left for the next one, and returns its bytes.
    ///
    /// A load to a GPU or into the caller's memory reads into staging memory. Pinning it for the
    /// GPU takes longer than most reads, so up to 1 GiB of it is kept for the next load of the
    /// process. The exit of Python frees it too. Staging memory of a running load is not freed.
    #[pyfunction]
    fn release_staging(py: Python<'_>) -> usize {
        py.detach(tload::release_staging)
    }

    /// Returns the bytes of orphaned memory: memory of ended loads that storage may still write to.
    ///
    /// A read of a dead mount cannot be cancelled: its memory stays allocated until storage
    /// responds, and is then freed. It does not count against the `memory_limit` of a load. 0 if
    /// there is none. `Report.parked_bytes` is the value for one load.
    #[pyfunction]
    fn parked_bytes() -> u64 {
        tload::orphaned_bytes()
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        tload::internal::reserve_descriptors();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("ERROR_KINDS", ErrorKind::ALL.map(ErrorKind::name))?;
        module.add("DTYPES", tload::Dtype::ALL.map(tload::Dtype::name))?;
        let variable = |key: &tload::internal::OptionKey| Some((key.name, key.variable()?));
        let variables = tload::LoadOptions::KEYS.iter().filter_map(variable);
        module.add("OPTION_VARIABLES", variables.collect::<Vec<_>>())?;
        let schemes = tload::Location::schemes();
        module.add("SCHEMES", schemes.collect::<Vec<_>>())?;
        let store_keys = tload::StoreOptions::KEYS.iter().map(|key| {
            let protocols = key.protocols.iter().map(|protocol| format!("{protocol:?}"));
            (key.name, key.default, protocols.collect::<Vec<_>>())
        });
        module.add("STORE_KEYS", store_keys.collect::<Vec<_>>())?;
        if cfg!(debug_assertions) {
            let category = module.py().get_type::<PyRuntimeWarning>();
            let message = CString::from(
                c"this is a debug build of tload: it is many times slower than a release build, do not benchmark it",
            );
            PyErr::warn(module.py(), &category, &message, 1)?;
        }
        Ok(())
    }
}
