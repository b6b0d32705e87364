//! Values of the file as the text that options are set by.

use toml::de::DeValue;

/// Kind of value that an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Flag,
    FlagOrText,
    Count,
    Bytes,
    Duration,
    List,
}

impl Kind {
    /// Returns the valid values, for errors.
    pub(crate) fn wanted(self) -> &'static str {
        match self {
            Self::Text => "a text in quotes",
            Self::Flag => "true or false",
            Self::FlagOrText => "true, false or a text in quotes",
            Self::Count => "a whole number",
            Self::Bytes => "a number of bytes, or a size such as \"4 MiB\"",
            Self::Duration => "a number of seconds, or a duration such as \"30s\"",
            Self::List => "a list of URLs in quotes",
        }
    }
}

/// Returns `value` as text; `None` if it is of a type that `kind` does not take.
pub(crate) fn text(kind: Kind, value: &DeValue<'_>) -> Option<String> {
    match (kind, value) {
        (Kind::Flag | Kind::FlagOrText, DeValue::Boolean(flag)) => Some(flag.to_string()),
        (
            Kind::Text | Kind::FlagOrText | Kind::Bytes | Kind::Duration | Kind::List,
            DeValue::String(text),
        ) => Some(text.to_string()),
        (Kind::Count | Kind::Bytes | Kind::Duration, DeValue::Integer(number)) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix()).ok();
            // The option's check says that so large a number is out of range.
            Some(parsed.map_or_else(|| number.as_str().to_owned(), |it| it.to_string()))
        }
        (Kind::Bytes | Kind::Duration, DeValue::Float(number)) => Some(number.as_str().to_owned()),
        (Kind::List, DeValue::Array(items)) => {
            let items = items.iter().map(|item| item.get_ref().as_str());
            let items: Option<Vec<_>> = items.collect();
            items.map(|items| items.join(","))
        }
        _ => None,
    }
}

/// Returns the type of `value`, for errors: the value itself may be a secret.
pub(crate) fn found(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
