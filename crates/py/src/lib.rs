//! The extension module `tload._tload`: what Python needs of the crate `tload`, and nothing that Python can do itself.
//!
//! No logic lives here: a function extracts its arguments, lets go of the interpreter, calls one function of the core,
//! and wraps what came back. The public face, with its types and docs, is the Python package in `python/tload`; the
//! stub of this module is `python/tload/_tload.pyi`.

mod allocator;
mod checkpoint;
mod copy;
mod dlpack;
mod error;
mod forked;
mod index;
mod interrupt;
mod loader;
mod options;
mod readiness;
mod receivers;
mod store;
mod stream;
mod tensor;
mod verify;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _tload {
    use std::ffi::{CString, OsString};
    use std::io::{self, Write};

    use pyo3::exceptions::PyRuntimeWarning;
    use pyo3::prelude::*;
    use tload::ErrorKind;

    #[pymodule_export]
    use crate::checkpoint::Checkpoint;
    #[pymodule_export]
    use crate::copy::{copy, list_files, show_location};
    #[pymodule_export]
    use crate::loader::Loader;
    #[pymodule_export]
    use crate::options::{check_options, format_bytes};
    #[pymodule_export]
    use crate::store::{check_store, parse_store_option};
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::tensor::{FlatBytes, Tensor};
    #[pymodule_export]
    use crate::verify::{read_signature, verify};

    /// Runs the command `tload` and returns its exit status. `argv[0]` is the program's name.
    #[pyfunction]
    fn cli_main(py: Python<'_>, argv: Vec<OsString>) -> u8 {
        py.detach(|| {
            let status = tload_cli::main(argv);
            // Rust flushes its own buffer only when a Rust `main` ends. A closed pipe has been dealt with by the command.
            drop(io::stdout().flush());
            status
        })
    }

    /// Frees the staging memory that loads to GPUs and into memory of the caller's have left for the next one; bytes.
    #[pyfunction]
    fn release_staging(py: Python<'_>) -> usize {
        py.detach(tload::release_staging)
    }

    /// Bytes of memory that loads which are over have left to storage that does not answer.
    #[pyfunction]
    fn parked_bytes() -> u64 {
        tload::parked_bytes()
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("ERROR_KINDS", ErrorKind::ALL.map(ErrorKind::name))?;
        module.add("DTYPES", tload::Dtype::ALL.map(tload::Dtype::name))?;
        let keys = tload::StoreOptions::KEYS.iter();
        module.add(
            "STORE_KEYS",
            keys.map(|key| (key.name, key.default)).collect::<Vec<_>>(),
        )?;
        if cfg!(debug_assertions) {
            let category = module.py().get_type::<PyRuntimeWarning>();
            let message = CString::from(
                c"this is a debug build of tload: it is many times slower than a release build, do not measure with it",
            );
            PyErr::warn(module.py(), &category, &message, 1)?;
        }
        Ok(())
    }
}
