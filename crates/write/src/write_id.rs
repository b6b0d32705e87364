//! Identifier of one write: names of its files carry it, so that no two writes share a name.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use crate::format::SUFFIX;

/// Hexadecimal digits of an identifier.
const DIGITS: usize = 12;

/// Identifier of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteId(String);

impl WriteId {
    /// Draws an identifier. The keys of the standard library's hash tables are the system's random
    /// numbers.
    pub fn draw() -> Self {
        let random = RandomState::new().hash_one(());
        Self(format!("{:012x}", random >> 16))
    }

    /// Returns the identifier that `text` is.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == DIGITS && text.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }

    /// Returns the identifier in the name of a shard, `model-0123456789ab-00001-of-00002…`.
    /// Other programs put dates and hashes into names: only a name that a write gives has one.
    pub(crate) fn of_shard(name: &str) -> Option<Self> {
        let name = name.strip_prefix("model-")?.strip_suffix(SUFFIX)?;
        let (id, numbers) = name.split_once('-')?;
        let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|it| it.is_ascii_digit());
        let is_ours = numbers.splitn(2, "-of-").all(is_number);
        Self::parse(id).filter(|_| is_ours)
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
        assert_eq!(WriteId::of_shard(&name), Some(id.clone()));
        let name = format!("model-{id}-100000.safetensors");
        assert_eq!(WriteId::of_shard(&name), Some(id));
        for name in [
            "model-00001-of-00002.safetensors",
            "ema-202611291417-step.safetensors",
            "ema-202611291417-00001-of-00002.safetensors",
            "lora-0a1b2c3d4e5f-v1.safetensors",
            "model-0a1b2c3d4e5f.safetensors",
            "model-0a1b2c3d4e5f-v1.safetensors",
            "model-0a1b2c3d4e5f-1.safetensors",
            "model-0a1b2c3d4e5f-00001-of-2.safetensors",
            "model-0a1b2c3d4e5f-00001-of-00002-of-00003.safetensors",
            "model-0a1b2c3d4e5f-00001-of-00002.safetensors.index.json",
            "model-old-0a1b2c3d4e5f-00001.safetensors",
        ] {
            assert_eq!(WriteId::of_shard(name), None, "{name}");
        }
        assert_eq!(WriteId::parse("0123456789AB"), None);
    }
}
