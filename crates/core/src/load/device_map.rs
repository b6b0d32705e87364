//! Devices by names of modules and globs, as in the device maps of Hugging Face. Pure.

use std::collections::{BTreeSet, HashMap};

use crate::error::{Error, ErrorKind, Result, counted, nearest_name};
use crate::options::Device;
use crate::plan::Selection;

/// Characters that make a key a glob.
const WILDCARDS: [char; 5] = ['*', '?', '[', '{', '\\'];

/// Devices of tensors by key: names of modules and tensors, and globs of whole names.
///
/// * A key without wildcards is a name, as in accelerate and transformers: `model.layers.0` matches
///   the tensor of this name and all tensors below it (`model.layers.0.*`).
/// * A key with one of `*?[{\` is a glob of whole names: see [`Selection::glob`].
/// * The first key that matches a tensor determines its device; of several names that match, the
///   longest one does, wherever it stands.
/// * The empty key stands for all tensors that no other key matches, wherever it stands.
///
/// # Examples
///
/// ```
/// use tload::{Device, DeviceMap};
///
/// let map = DeviceMap::new([
///     ("model.layers.0", Device::Cuda(0)),
///     ("*.norm.weight", Device::Cuda(1)),
///     ("", Device::Cpu),
/// ])?;
/// # let _ = map;
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DeviceMap {
    keys: Vec<Key>,
    otherwise: Option<Device>,
}

#[derive(Clone, Debug)]
struct Key {
    text: String,
    /// None for a name.
    glob: Option<Selection>,
    device: Device,
}

impl DeviceMap {
    /// Creates a map of keys to devices.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a malformed glob.
    pub fn new<K: Into<String>>(keys: impl IntoIterator<Item = (K, Device)>) -> Result<Self> {
        let mut map = Self::default();
        for (text, device) in keys {
            let text = text.into();
            if text.is_empty() {
                map.otherwise.get_or_insert(device);
                continue;
            }
            let is_glob = text.contains(WILDCARDS);
            let glob = is_glob.then(|| Selection::glob(&text)).transpose()?;
            map.keys.push(Key { text, glob, device });
        }
        Ok(map)
    }

    /// Returns the device of each name, if a key matches it; empty for an empty map.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchTensor`] for a key that matches none of `names`: it is probably misspelt.
    pub(crate) fn devices(&self, names: &[&str]) -> Result<Vec<Option<Device>>> {
        if self.keys.is_empty() && self.otherwise.is_none() {
            return Ok(Vec::new());
        }
        // Position of the first key that matches each name.
        let mut first: Vec<Option<usize>> = vec![None; names.len()];
        let mut modules: HashMap<&str, usize> = HashMap::new();
        for (position, key) in self.keys.iter().enumerate() {
            let Some(glob) = &key.glob else {
                modules.entry(&key.text).or_insert(position);
                continue;
            };
            let matches = glob
                .resolve(names)
                .map_err(|error| key.matches_nothing(names, question(&error)))?;
            for index in matches {
                first[index].get_or_insert(position);
            }
        }
        let longest = modules.keys().map(|key| key.len()).max().unwrap_or(0);
        let mut used = vec![false; self.keys.len()];
        let mut devices = Vec::with_capacity(names.len());
        for (name, glob) in names.iter().zip(first) {
            let matching =
                || modules_of(name, longest).filter_map(|module| modules.get(module).copied());
            for position in matching() {
                used[position] = true;
            }
            // The longest matching name comes first in `matching`.
            let key = match (glob, matching().min()) {
                (Some(glob), Some(module)) if glob < module => Some(glob),
                (glob, None) => glob,
                (_, Some(_)) => matching().next(),
            };
            devices.push(key.map(|key| self.keys[key].device).or(self.otherwise));
        }
        let unused = modules.into_values().filter(|&position| !used[position]);
        match unused.min() {
            Some(position) => {
                let key = &self.keys[position];
                let near = nearest(&key.text, names);
                let near = near.map(|near| format!("did you mean {near:?}?"));
                Err(key.matches_nothing(names, near.as_deref()))
            }
            None => Ok(devices),
        }
    }
}

impl Key {
    /// Returns the error for a key that matches no tensor. `question` asks for the one that was
    /// meant.
    fn matches_nothing(&self, names: &[&str], question: Option<&str>) -> Error {
        let total = counted(names.len() as u64, "tensor");
        let message = format!("‹device_map›: {:?} matches none of {total}", self.text);
        let rule = "keys are names of modules, which stand for all tensors below them, and globs of whole names";
        let hint = match question {
            Some(question) => format!("{question} {rule}"),
            None => format!("{rule}; leave out those without tensors"),
        };
        Error::new(ErrorKind::NoSuchTensor, message).with_hint(hint)
    }
}

/// Returns the hint of a glob's error if it asks for another glob.
fn question(error: &Error) -> Option<&str> {
    error
        .hint()
        .filter(|hint| hint.starts_with("did you mean "))
}

/// Returns a tensor's name and the names of the modules that it is in, the longest first, without
/// those of more than `longest` bytes: a name may consist of dots, and each is looked up.
fn modules_of(name: &str, longest: usize) -> impl Iterator<Item = &str> {
    let whole = (name.len() <= longest).then_some(name);
    let within = name.len().min(longest.saturating_add(1));
    let dots = name.as_bytes()[..within]
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, byte)| **byte == b'.');
    whole.into_iter().chain(dots.map(|(dot, _)| &name[..dot]))
}

/// Returns the module or tensor whose name is nearest to `key`: with a prefix more or less, or with
/// misspelt words.
fn nearest(key: &str, names: &[&str]) -> Option<String> {
    let exists = |key: &str| {
        let below = |rest: &str| rest.is_empty() || rest.starts_with('.');
        let mut rests = names.iter().filter_map(|name| name.strip_prefix(key));
        rests.any(below)
    };
    let mut shorter = key.match_indices('.').map(|(dot, _)| &key[dot + 1..]);
    if let Some(shorter) = shorter.find(|key| exists(key)) {
        return Some(shorter.to_owned());
    }
    let inner = format!(".{key}");
    let longer = names.iter().find_map(|name| {
        let end = name.find(&inner)? + inner.len();
        let whole = name[end..].is_empty() || name[end..].starts_with('.');
        whole.then(|| name[..end].to_owned())
    });
    if longer.is_some() {
        return longer;
    }
    // Walk down from the root word by word: few words follow each module, however many tensors
    // there are.
    let mut found = String::new();
    for word in key.split('.') {
        let words: BTreeSet<&str> = names
            .iter()
            .filter_map(|name| name.strip_prefix(&*found)?.split('.').next())
            .collect();
        let same = words.get(word).copied();
        found.push_str(same.or_else(|| nearest_name(word, words))?);
        found.push('.');
    }
    found.pop();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] = [
        "model.layers.1.norm",
        "model.layers.1.up.weight",
        "model.layers.10.norm",
        "model.norm",
        "lm_head.weight",
        "scale",
    ];

    /// Devices by name, as digits: the GPU, or `-` for none.
    fn devices(keys: &[(&str, usize)]) -> String {
        let keys = keys.iter().map(|&(key, gpu)| (key, Device::Cuda(gpu)));
        let map = DeviceMap::new(keys).expect("valid");
        let devices = map.devices(&NAMES).expect("all keys match");
        let digit = |device: &Option<Device>| match device {
            Some(Device::Cuda(gpu)) => gpu.to_string(),
            Some(Device::Cpu) | None => "-".to_owned(),
        };
        devices.iter().map(digit).collect()
    }

    fn refused(key: &str) -> Error {
        let map = DeviceMap::new([(key, Device::Cpu)]).expect("valid");
        map.devices(&NAMES).expect_err("matches nothing")
    }

    #[test]
    fn names_match_whole_words_and_the_longest_one_applies() {
        assert_eq!(devices(&[("", 0)]), "000000");
        assert_eq!(devices(&[("model.layers.1", 1)]), "11----");
        assert_eq!(devices(&[("scale", 1)]), "-----1");
        let orders = [
            [("", 0), ("model", 1), ("model.layers.1", 2), ("lm_head", 3)],
            [("model.layers.1", 2), ("lm_head", 3), ("model", 1), ("", 0)],
        ];
        for keys in orders {
            assert_eq!(devices(&keys), "221130");
        }
    }

    #[test]
    fn only_modules_that_keys_may_name_are_looked_up() {
        let found = |name, longest| modules_of(name, longest).collect::<Vec<_>>();
        assert_eq!(found("a.é.c", 9), ["a.é.c", "a.é", "a"]);
        assert_eq!(found("a.é.c", 6), ["a.é.c", "a.é", "a"]);
        assert_eq!(found("a.é.c", 4), ["a.é", "a"]);
        assert_eq!(found("a.é.c", 3), ["a"]);
        assert_eq!(found("a.é.c", 0), [""; 0]);
        let dots = ".".repeat(64 << 10);
        assert_eq!(modules_of(&dots, 3).count(), 4);
        let map = DeviceMap::new([("model", Device::Cpu)]).expect("valid");
        let devices = map
            .devices(&[dots.as_str(), "model.norm"])
            .expect("matches");
        assert_eq!(devices, [None, Some(Device::Cpu)]);
    }

    #[test]
    fn globs_match_whole_names_and_the_first_one_applies() {
        assert_eq!(devices(&[("*.norm", 1), ("model.*", 2)]), "1211--");
        assert_eq!(devices(&[("model.*", 2), ("*.norm", 1)]), "2222--");
        assert_eq!(devices(&[("model.layers.?.*", 1)]), "11----");
    }

    #[test]
    fn first_matching_key_decides_between_names_and_globs() {
        assert_eq!(devices(&[("lm_head", 1), ("*", 2)]), "222212");
        assert_eq!(devices(&[("*", 2), ("lm_head", 1)]), "222222");
        assert_eq!(devices(&[("", 0), ("*.norm", 1)]), "101100");
        // The longer name takes the place of the shorter one, which stands before the glob.
        let keys = [("model", 1), ("*.norm", 2), ("model.layers", 3)];
        assert_eq!(devices(&keys), "3331--");
        let keys = [("*.norm", 2), ("model", 1), ("model.layers", 3)];
        assert_eq!(devices(&keys), "2322--");
    }

    #[test]
    fn empty_map_and_empty_checkpoint_are_valid() {
        assert!(
            DeviceMap::default()
                .devices(&NAMES)
                .expect("none")
                .is_empty()
        );
        let all = DeviceMap::new([("", Device::Cpu)]).expect("valid");
        assert!(all.devices(&[]).expect("none").is_empty());
    }

    #[test]
    fn key_without_match_names_the_nearest_one() {
        for (key, near) in [
            ("model.layer.1", Some("model.layers.1")),
            ("layers.1", Some("model.layers.1")),
            ("language.model.layers.1", Some("model.layers.1")),
            ("model.layers.1.nrom", Some("model.layers.1.norm")),
            ("lm_haed", Some("lm_head")),
            ("vision_tower", None),
            ("model.layers.1.*.bias", None),
            ("model.layer.*", Some("model.layers.*")),
            ("*.nrom", Some("*.norm")),
        ] {
            let error = refused(key);
            assert_eq!(error.kind(), ErrorKind::NoSuchTensor);
            assert_eq!(
                error.message(),
                format!("device_map: {key:?} matches none of 6 tensors")
            );
            let hint = error.hint().expect("a hint");
            assert!(hint.contains("names of modules") && hint.contains("globs of whole names"));
            let found = hint.strip_prefix("did you mean ");
            let found = found.and_then(|found| found.split_once("? "));
            assert_eq!(
                found.map(|(found, _)| found.to_owned()),
                near.map(|near| format!("{near:?}")),
                "{key}"
            );
        }
        assert_eq!(
            DeviceMap::new([("[z-", Device::Cpu)])
                .expect_err("malformed")
                .kind(),
            ErrorKind::InvalidRequest
        );
    }
}
