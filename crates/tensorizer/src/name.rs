//! Names of tensors: a text, or a path of keys and positions within nested dictionaries and lists.

use std::fmt::Write;

use crate::error::FormatError;

/// First byte of a path, which is a JSON array behind it (RFC 7464).
const PATH: u8 = 0x1E;

/// Key of a dictionary, or position in a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathPiece {
    /// Key.
    Key(String),
    /// Position.
    Position(u64),
}

/// Name of a tensor, as the file has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorPath(Vec<PathPiece>);

impl TensorPath {
    /// Parses the bytes at `position` of the file.
    pub(crate) fn parse(bytes: &[u8], position: u64) -> Result<Self, FormatError> {
        let invalid = |wanted: &str| {
            let range = position..position + bytes.len() as u64;
            let found = format!("{:?}", String::from_utf8_lossy(bytes));
            FormatError::invalid(range, "name of a tensor", &found, wanted)
        };
        let text = str::from_utf8(bytes).map_err(|_| invalid("UTF-8"))?;
        if bytes.is_empty() {
            return Err(invalid("at least one byte"));
        }
        if bytes[0] != PATH {
            return Ok(Self(vec![PathPiece::Key(text.to_owned())]));
        }
        let wanted = "an array of keys and positions";
        let pieces: Vec<serde_json::Value> =
            serde_json::from_str(&text[1..]).map_err(|_| invalid(wanted))?;
        let pieces = pieces.into_iter().map(|piece| match piece {
            serde_json::Value::String(key) => Some(PathPiece::Key(key)),
            serde_json::Value::Number(number) => number.as_u64().map(PathPiece::Position),
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Array(_)
            | serde_json::Value::Object(_) => None,
        });
        let pieces: Option<Vec<_>> = pieces.collect();
        let pieces = pieces.filter(|pieces| !pieces.is_empty());
        pieces.map(Self).ok_or_else(|| invalid(wanted))
    }

    /// Returns keys and positions, the outermost first.
    pub fn pieces(&self) -> &[PathPiece] {
        &self.0
    }

    /// Returns the name under which `state_dict()` has the tensor: keys and positions joined by
    /// dots. Tensorizer puts a dot before tensors of the outermost module, which is left out.
    pub(crate) fn name(&self, is_of_module: bool) -> String {
        let mut name = String::new();
        for (depth, piece) in self.0.iter().enumerate() {
            let dot = if depth == 0 { "" } else { "." };
            // Writing to a string cannot fail.
            let _ = match piece {
                PathPiece::Key(key) => write!(name, "{dot}{key}"),
                PathPiece::Position(position) => write!(name, "{dot}{position}"),
            };
        }
        match name.strip_prefix('.').filter(|_| is_of_module) {
            Some(own) => own.to_owned(),
            None => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_state_dictionaries() {
        for (bytes, is_of_module, wanted) in [
            ("lin.weight", true, "lin.weight"),
            (".weight", true, "weight"),
            (".weight", false, ".weight"),
            ("\u{1e}[\"a\",0,\"b\"]", false, "a.0.b"),
            ("\u{1e}[3]", false, "3"),
            ("é", true, "é"),
        ] {
            let path = TensorPath::parse(bytes.as_bytes(), 0).expect(bytes);
            assert_eq!(path.name(is_of_module), wanted);
        }
    }

    #[test]
    fn other_names_are_errors() {
        for bytes in [
            &b""[..],
            b"\xff",
            b"\x1e",
            b"\x1e[]",
            b"\x1e[-1]",
            b"\x1e[1.5]",
            b"\x1e[null]",
            b"\x1e[[\"a\"]]",
            b"\x1e[{}]",
            b"\x1e[\"a\"",
            b"\x1e\"a\"",
        ] {
            let error = TensorPath::parse(bytes, 7).expect_err("none of these is a name");
            assert_eq!(error.range(), Some(7..7 + bytes.len() as u64), "{error}");
        }
    }
}
