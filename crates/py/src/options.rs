//! Keyword arguments and `TLOAD_*` text as the core's options, by its table, and as selections.
//!
//! A value of the wrong Python type is a `TypeError`; an invalid value is an `InvalidRequestError`.
//! The core decides which values are valid.

use std::path::PathBuf;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBool;
use tload::{OptionKey, OptionKind, OptionValue, Options, Selection};

use crate::error::{exception, invalid_request};

/// Reads `tload.Options`, whose fields have the names of the core's options.
pub(crate) fn read(fields: &Bound<'_, PyAny>) -> PyResult<Options> {
    let mut options = Options::default();
    for key in Options::KEYS {
        let value = fields.getattr(key.name)?;
        if !value.is_none() {
            let set = options.set(key.name, &text(key, &value)?);
            set.map_err(|error| exception(fields.py(), &error))?;
        }
    }
    Ok(options)
}

/// Fails if a load with these options would fail for every checkpoint.
#[pyfunction]
pub(crate) fn check_options(options: &Bound<'_, PyAny>) -> PyResult<()> {
    read(options).map(drop)
}

/// Returns the value of the option `name` that the text of its environment variable stands for.
#[pyfunction]
pub(crate) fn option_from_variable<'py>(
    py: Python<'py>,
    name: &str,
    text: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let key = Options::key(name).expect("the caller takes names from the table");
    let Ok(value) = key.parse(text) else {
        let variable = key.variable().unwrap_or_default();
        let message = format!(
            "environment variable {variable} is {text:?}; it {}",
            key.valid_values()
        );
        return Err(invalid_request(py, message));
    };
    match value {
        OptionValue::Flag(flag) => flag.into_bound_py_any(py),
        OptionValue::Count(count) => count.into_bound_py_any(py),
        OptionValue::Duration(duration) => duration.as_secs_f64().into_bound_py_any(py),
        // As the user wrote it, with its unit.
        OptionValue::Text(_) | OptionValue::Bytes(_) => text.into_bound_py_any(py),
    }
}

/// Formats a size with one decimal and a binary unit.
#[pyfunction]
pub(crate) fn format_bytes(bytes: u64) -> String {
    tload::format_bytes(bytes)
}

/// Returns the selection of all names, globs and regular expressions; without any, all tensors.
pub(crate) fn selection(
    py: Python<'_>,
    names: Vec<String>,
    globs: Vec<String>,
    regexes: Vec<String>,
) -> PyResult<Selection> {
    let patterns = globs
        .into_iter()
        .map(|pattern| Selection::glob(&pattern))
        .chain(
            regexes
                .into_iter()
                .map(|pattern| Selection::regex(&pattern)),
        );
    let mut selected = (!names.is_empty()).then(|| Selection::names(names));
    for pattern in patterns {
        let pattern = pattern.map_err(|error| exception(py, &error))?;
        selected = Some(match selected {
            Some(selected) => selected.or(pattern),
            None => pattern,
        });
    }
    Ok(selected.unwrap_or_default())
}

/// Returns a value as text for [`Options::set`]. A value of a type that the option does not take is
/// a `TypeError`.
fn text(key: &OptionKey, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let wrong = |wanted| wrong_type(key.name, wanted, value);
    // In Python, True is the int 1; and truthiness is not enough for a flag: the text "no" would be
    // true.
    let is_bool = value.is_instance_of::<PyBool>();
    match key.kind {
        OptionKind::Flag if is_bool => Ok(value.is_truthy()?.to_string()),
        OptionKind::Flag => Err(wrong("a bool")),
        OptionKind::Count(0, _) => integer(value).ok_or_else(|| wrong("an int, 0 or more")),
        OptionKind::Count(..) => integer(value).ok_or_else(|| wrong("a positive int")),
        OptionKind::Bytes(..) => value
            .extract()
            .ok()
            .or_else(|| integer(value))
            .ok_or_else(|| {
                wrong("a number of bytes (int) or a size with a unit such as \"4 MiB\" (str)")
            }),
        OptionKind::Duration if !is_bool && value.extract::<f64>().is_ok() => {
            Ok(value.str()?.to_string())
        }
        OptionKind::Duration => Err(wrong("seconds (float)")),
        OptionKind::Verify => value
            .extract::<PathBuf>()
            .ok()
            .and_then(|path| path.into_os_string().into_string().ok())
            .ok_or_else(|| wrong(VERIFY)),
        OptionKind::Choice(_) => value.extract().map_err(|_| wrong("a str")),
    }
}

/// Valid values of `verify`, for messages. A bool would be ambiguous.
const VERIFY: &str = "\"off\", \"auto\", \"require\", \"sha256\" or the path or URL of a manifest";

/// Returns an integer as text, of any size, so that the core can name it.
fn integer(value: &Bound<'_, PyAny>) -> Option<String> {
    if value.is_instance_of::<PyBool>() {
        return None;
    }
    let number = value.call_method0("__index__").ok()?;
    Some(number.str().ok()?.to_string())
}

fn wrong_type(name: &str, wanted: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let found = value
        .get_type()
        .qualname()
        .map_or_else(|_| "?".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{name}: wanted {wanted}, found {found}"))
}
