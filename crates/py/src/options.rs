//! Keyword arguments and `TLOAD_*` text as the core's options and selections.
//!
//! A value of the wrong Python type is a `TypeError`; an invalid value is an `InvalidRequestError`.
//! The core decides which values are valid.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use tload::{Options, Selection, Verify, parse_bytes};

use crate::error::{exception, invalid_request};

/// `tload.Options`, attribute by attribute.
#[derive(FromPyObject)]
pub(crate) struct OptionsArgument<'py> {
    engine: Option<Bound<'py, PyAny>>,
    cache: Option<Bound<'py, PyAny>>,
    writable: Option<Bound<'py, PyAny>>,
    order: Option<Bound<'py, PyAny>>,
    depth: Option<Bound<'py, PyAny>>,
    in_flight_bytes: Option<Bound<'py, PyAny>>,
    extent_bytes: Option<Bound<'py, PyAny>>,
    lanes: Option<Bound<'py, PyAny>>,
    memory_limit: Option<Bound<'py, PyAny>>,
    device_memory_limit: Option<Bound<'py, PyAny>>,
    verify: Option<Bound<'py, PyAny>>,
    retries: Option<Bound<'py, PyAny>>,
    hedge: Option<Bound<'py, PyAny>>,
    timeout: Option<Bound<'py, PyAny>>,
}

impl OptionsArgument<'_> {
    pub(crate) fn read(self) -> PyResult<Options> {
        let mut options = Options::default();
        if let Some(engine) = &self.engine {
            options.engine = word("engine", engine)?;
        }
        if let Some(cache) = &self.cache {
            options.cache = word("cache", cache)?;
        }
        if let Some(writable) = &self.writable {
            options.writable = flag("writable", writable)?;
        }
        if let Some(order) = &self.order {
            options.order = word("order", order)?;
        }
        options.depth = read(self.depth.as_ref(), |value| count("depth", value))?;
        options.lanes = read(self.lanes.as_ref(), |value| count("lanes", value))?;
        options.in_flight_bytes = read(self.in_flight_bytes.as_ref(), |value| {
            size("in_flight_bytes", value)
        })?;
        options.extent_bytes = read(self.extent_bytes.as_ref(), |value| {
            size("extent_bytes", value)
        })?;
        options.memory_limit = read(self.memory_limit.as_ref(), |value| {
            size("memory_limit", value)
        })?;
        options.device_memory_limit = read(self.device_memory_limit.as_ref(), |value| {
            size("device_memory_limit", value)
        })?;
        if let Some(verify) = &self.verify {
            options.verify = choice(verify)?;
        }
        options.retries = read(self.retries.as_ref(), |value| whole("retries", value))?;
        options.hedge = read(self.hedge.as_ref(), |value| flag("hedge", value))?;
        options.timeout = read(self.timeout.as_ref(), seconds)?;
        Ok(options)
    }
}

/// Fails if a load with these options would fail for every checkpoint.
#[pyfunction]
pub(crate) fn check_options(py: Python<'_>, options: OptionsArgument<'_>) -> PyResult<()> {
    let options = options.read()?;
    options.validate().map_err(|error| exception(py, &error))
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

fn read<T>(
    value: Option<&Bound<'_, PyAny>>,
    with: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Option<T>> {
    value.map(with).transpose()
}

fn word<T: FromStr<Err = tload::Error>>(name: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    let text: String = value
        .extract()
        .map_err(|_| wrong_type(name, "a str", value))?;
    text.parse().map_err(|error| exception(value.py(), &error))
}

/// Valid values of `verify`, for messages. A bool would be ambiguous.
const VERIFY: &str = "\"off\", \"auto\", \"require\", \"sha256\" or the path or URL of a manifest";

/// Reads a word, or the path or URL of a manifest, which may be a path object.
fn choice(value: &Bound<'_, PyAny>) -> PyResult<Verify> {
    let text: String = match value.extract::<String>() {
        Ok(text) => text,
        Err(_) => value
            .extract::<PathBuf>()
            .ok()
            .and_then(|path| path.into_os_string().into_string().ok())
            .ok_or_else(|| wrong_type("verify", VERIFY, value))?,
    };
    text.parse().map_err(|error| exception(value.py(), &error))
}

fn flag(name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    // Truthiness is not enough: the text "no" would be true.
    let flag = value.cast::<PyBool>();
    flag.map(PyBoolMethods::is_true)
        .map_err(|_| wrong_type(name, "a bool", value))
}

fn integer(name: &str, wanted: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    // In Python, True is the int 1.
    if value.is_instance_of::<PyBool>() {
        return Err(wrong_type(name, wanted, value));
    }
    value.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            invalid_request(value.py(), format!("{name} is {value}; wanted {wanted}"))
        } else {
            wrong_type(name, wanted, value)
        }
    })
}

fn count(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    const WANTED: &str = "a positive int";
    let number = integer(name, WANTED, value)?;
    usize::try_from(number)
        .map_err(|_| invalid_request(value.py(), format!("{name} is {number}; wanted {WANTED}")))
}

fn whole(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    const WANTED: &str = "an int, 0 or more";
    let number = integer(name, WANTED, value)?;
    u32::try_from(number)
        .map_err(|_| invalid_request(value.py(), format!("{name} is {number}; wanted {WANTED}")))
}

fn size(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(text) = value.extract::<String>() {
        return parse_bytes(&text)
            .map_err(|error| invalid_request(value.py(), format!("{name}: {}", error.message())));
    }
    integer(
        name,
        "a number of bytes (int) or a size with a unit such as \"4 MiB\" (str)",
        value,
    )
}

fn seconds(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let wrong = || wrong_type("timeout", "seconds (float)", value);
    if value.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    let number: f64 = value.extract().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number).map_err(|_| {
        invalid_request(
            value.py(),
            format!("timeout is {value}; wanted a positive number of seconds"),
        )
    })
}

fn wrong_type(name: &str, wanted: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let found = value
        .get_type()
        .qualname()
        .map_or_else(|_| "?".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{name}: wanted {wanted}, found {found}"))
}
