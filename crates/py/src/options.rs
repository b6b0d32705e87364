//! Keyword arguments and `TLOAD_*` text as the core's options, by its table, and as selections.
//!
//! A value of the wrong Python type is a `TypeError`; an invalid value is an `InvalidRequestError`.
//! The core decides which values are valid.

use std::path::PathBuf;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDelta};
use tload::internal::{OptionKey, OptionKind, OptionValue};
use tload::{Error, ErrorKind, LoadOptions, Selection};
use tload_pymemory::error::{exception, invalid_request};

/// Reads `tload.Options`, whose fields have the names of the core's options.
pub(crate) fn read(fields: &Bound<'_, PyAny>) -> PyResult<LoadOptions> {
    let mut options = LoadOptions::default();
    let trial = std::env::var_os(tload::internal::TRIAL_VARIABLE).unwrap_or_default();
    options.trial =
        (trial.to_string_lossy().parse()).map_err(|error| exception(fields.py(), &error))?;
    for key in LoadOptions::KEYS {
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
    let key = LoadOptions::key(name).expect("the caller takes names from the table");
    let value = key.parse(text).map_err(|invalid| {
        let variable = key.variable().unwrap_or_default();
        let message = format!(
            "environment variable {variable} is {text:?}; it {}",
            key.valid_values()
        );
        let error = Error::new(ErrorKind::InvalidRequest, message);
        let error = match invalid.hint() {
            Some(hint) => error.with_hint(hint),
            None => error,
        };
        exception(py, &error)
    })?;
    match value {
        OptionValue::Flag(flag) => flag.into_bound_py_any(py),
        OptionValue::Count(count) => count.into_bound_py_any(py),
        OptionValue::Duration(duration) => duration.as_secs_f64().into_bound_py_any(py),
        // As the user wrote it, with its unit.
        OptionValue::Text(_) | OptionValue::Bytes(_) => text.into_bound_py_any(py),
    }
}

/// Returns the bytes that a text such as `50GiB` stands for. `name` is for messages.
#[pyfunction]
pub(crate) fn parse_bytes(py: Python<'_>, name: &str, text: &str) -> PyResult<u64> {
    let parsed = tload::internal::parse_bytes(text);
    parsed.map_err(|error| invalid_request(py, format!("{name}: {}", error.message())))
}

/// Returns the seconds of a duration of any type that an option takes. `name` is for messages.
#[pyfunction]
pub(crate) fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    let text = duration(value)?.ok_or_else(|| wrong_type(name, DURATION, value))?;
    let parsed = tload::internal::parse_duration(&text);
    let duration = parsed
        .map_err(|error| invalid_request(value.py(), format!("{name}: {}", error.message())))?;
    Ok(duration.as_secs_f64())
}

/// Returns the mode of verification as text, without secrets: `off`, `auto`, …
#[pyfunction]
pub(crate) fn verify_mode(options: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(read(options)?.verify.to_string())
}

/// Formats a size with one decimal and a binary unit.
#[pyfunction]
pub(crate) fn format_bytes(bytes: u64) -> String {
    tload::internal::format_bytes(bytes)
}

/// Returns the selection of all names, given and found by rules in Python, globs and regular
/// expressions; without any, all tensors.
pub(crate) fn selection(
    py: Python<'_>,
    names: Vec<String>,
    found: Vec<String>,
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
    let given = (!names.is_empty()).then(|| Ok(Selection::names(names)));
    let found = (!found.is_empty()).then(|| Ok(Selection::matched_names(found)));
    let all = given.into_iter().chain(found).chain(patterns);
    let union = all
        .reduce(|union, next| Ok(union?.union(next?)))
        .transpose()
        .map_err(|error| exception(py, &error))?;
    Ok(union.unwrap_or_default())
}

/// Returns a value as text for [`LoadOptions::set`]. A value of a type that the option does not
/// take is a `TypeError`.
fn text(key: &OptionKey, value: &Bound<'_, PyAny>) -> PyResult<String> {
    // In Python, True is the int 1; and truthiness is not enough for a flag: the text "no" would be
    // true.
    let is_bool = value.is_instance_of::<PyBool>();
    let (text, wanted) = match key.kind {
        OptionKind::Flag => {
            let flag = is_bool.then(|| value.is_truthy()).transpose()?;
            (flag.map(|flag| flag.to_string()), "a bool")
        }
        OptionKind::Count(0, _) => (integer(value)?, "an int, 0 or more"),
        OptionKind::Count(..) => (integer(value)?, "a positive int"),
        OptionKind::Bytes(..) => (
            size(value)?,
            "a number of bytes (int, or a whole float) or a size with a unit such as \"4 MiB\" (str)",
        ),
        OptionKind::Duration => (duration(value)?, DURATION),
        OptionKind::Verify if is_bool => (Some(value.is_truthy()?.to_string()), VERIFY),
        OptionKind::Verify => {
            let path = if_of_type(value.extract::<PathBuf>())?;
            (
                path.and_then(|path| path.into_os_string().into_string().ok()),
                VERIFY,
            )
        }
        OptionKind::Choice(_) => (if_of_type(value.extract())?, "a str"),
    };
    text.ok_or_else(|| wrong_type(key.name, wanted, value))
}

/// Valid types of a duration, for messages.
const DURATION: &str = "seconds (float), a text such as \"1h30m\" (str) or a timedelta";

/// Valid values of `verify`, for messages.
const VERIFY: &str =
    "a bool, \"off\", \"auto\", \"require\", \"sha256\" or the path or URL of a manifest";

/// Returns a size as text; none for other types. The core decides on its value.
fn size(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if value.is_instance_of::<PyBool>() {
        return Ok(None);
    }
    if let Some(text) = if_of_type(value.extract())? {
        return Ok(Some(text));
    }
    if let Some(text) = integer(value)? {
        return Ok(Some(text));
    }
    let number = if_of_type(value.extract::<f64>())?;
    let whole = number.filter(|number| number.fract() == 0.0);
    Ok(whole.map(|number| format!("{number:.0}")))
}

/// Returns a duration as text; none for other types. The core decides on its value.
fn duration(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if value.is_instance_of::<PyBool>() {
        return Ok(None);
    }
    if let Some(text) = if_of_type(value.extract())? {
        return Ok(Some(text));
    }
    // Not as a float: it may be too large for one.
    if let Some(text) = integer(value)? {
        return Ok(Some(text));
    }
    let seconds = if value.is_instance_of::<PyDelta>() {
        Some(value.call_method0("total_seconds")?.extract::<f64>()?)
    } else {
        if_of_type(value.extract::<f64>())?
    };
    Ok(seconds.map(|seconds| seconds.to_string()))
}

/// Returns an integer as text, of any size, so that the core can name it.
fn integer(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if value.is_instance_of::<PyBool>() || !value.hasattr("__index__")? {
        return Ok(None);
    }
    let Some(number) = if_of_type(value.call_method0("__index__"))? else {
        return Ok(None);
    };
    Ok(Some(match number.str() {
        // Not as `Display`: that calls `str` again, and hides a Ctrl-C that arrives there.
        Ok(text) => text.to_str()?.to_owned(),
        // Python does not write numbers of more than 4300 digits.
        Err(error) if error.is_instance_of::<PyValueError>(value.py()) => {
            "a number of thousands of digits".to_owned()
        }
        Err(error) => return Err(error),
    }))
}

/// Returns none for a `TypeError`. Other exceptions are not about the type: Ctrl-C, for example.
fn if_of_type<T, E: Into<PyErr>>(result: Result<T, E>) -> PyResult<Option<T>> {
    let error = match result {
        Ok(value) => return Ok(Some(value)),
        Err(error) => error.into(),
    };
    if Python::attach(|py| error.is_instance_of::<PyTypeError>(py)) {
        Ok(None)
    } else {
        Err(error)
    }
}

fn wrong_type(name: &str, wanted: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let found = value.get_type().qualname().map_or_else(
        |_| "?".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    PyTypeError::new_err(format!("{name}: wanted {wanted}, found {found}"))
}
