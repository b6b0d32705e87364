//! Errors of the core as Python exceptions.
//!
//! The classes and their table by kind are in `python/tload/_errors.py`, which makes the instances:
//! Python can define classes with two bases, Rust cannot. A Python test checks that each of
//! `ERROR_KINDS` has a class.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use tload::{Error, ErrorKind, FailedRequest};

/// Returns the exception for `error`, of the class of its kind.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = MAKE
        .get_or_try_init(py, || {
            Ok(py.import("tload._errors")?.getattr("make_error")?.unbind())
        })
        .and_then(|make| {
            make.bind(py).call1((
                error.kind().name(),
                error.chain_with(keyword),
                error.location(),
                error.tensor(),
                error.range().map(|range| (range.start, range.end)),
                error.hint_with(keyword),
                error.errno(),
                error.request().map(described),
                error
                    .comparison()
                    .map(|compared| (&compared.expected, &compared.found, &compared.by)),
                PyTuple::new(py, error.ranks())?,
            ))
        });
    match made {
        Ok(instance) => PyErr::from_value(instance),
        Err(failed) => failed,
    }
}

/// Returns the keyword of an option that an error or a hint names, and the value behind it. For
/// `list_names`, whose value is a location, returns the call.
fn keyword(option: &str, value: Option<&str>) -> String {
    match (option, value) {
        // Rust escapes a superset of what Python does, and the text is for people.
        ("list_names", Some(location)) => format!("list(tload.open({location:?}))"),
        ("list_names", None) => "list(tload.open(…))".to_owned(),
        // Integrations such as `tload.patch` have no keyword for it.
        ("follow_symlinks", None) => "follow_symlinks=True, or TLOAD_FOLLOW_SYMLINKS=1".to_owned(),
        ("force", None) => "force=True".to_owned(),
        (_, Some(value)) => format!("{option}={value}"),
        (_, None) => tload_config::with_origin(option, option.to_owned()),
    }
}

/// Description of a failed request to an object store: operation, status, code, request ID,
/// attempts, origin of the credentials.
type RequestDescribed<'a> = (
    &'a str,
    Option<u16>,
    Option<&'a str>,
    Option<&'a str>,
    u32,
    Option<&'a str>,
);

fn described(request: &FailedRequest) -> RequestDescribed<'_> {
    (
        &request.operation,
        request.status,
        request.code.as_deref(),
        request.request_id.as_deref(),
        request.attempts,
        request.credentials.as_deref(),
    )
}

/// Returns the exception for an impossible request.
pub fn invalid_request(py: Python<'_>, message: String) -> PyErr {
    exception(py, &Error::new(ErrorKind::InvalidRequest, message))
}
