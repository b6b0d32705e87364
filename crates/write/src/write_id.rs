//! Identifier of one write: names of its files carry it, so that no two writes share a name.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// Hexadecimal digits of an identifier.
const DIGITS: usize = 12;

/// Identifier of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriteId(String);

impl WriteId {
    /// Draws an identifier. The keys of the standard library's hash tables are the system's random
    /// numbers.
    pub(crate) fn draw() -> Self {
        let random = RandomState::new().hash_one(());
        Self(format!("{:012x}", random >> 16))
    }

    /// Returns the identifier that `text` is.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == DIGITS && text.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }

    /// Returns the identifier in the name of a shard: `model-0123456789ab-00001-of-00002…`.
    pub(crate) fn of_shard(name: &str) -> Option<Self> {
        name.split('-').find_map(Self::parse)
    }
}

impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_is_read_from_names() {
        let id = WriteId::draw();
        assert_ne!(id, WriteId::draw());
        assert_eq!(WriteId::parse(&id.to_string()), Some(id.clone()));
        let name = format!("model-{id}-00001-of-00002.safetensors");
        assert_eq!(WriteId::of_shard(&name), Some(id));
        assert_eq!(WriteId::of_shard("model-00001-of-00002.safetensors"), None);
        assert_eq!(WriteId::parse("0123456789AB"), None);
    }
}
