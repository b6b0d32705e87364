//! Chooses the files of one model among the names in a directory.
//!
//! A directory may hold a model twice, or an adapter beside it. An index decides if there is one.
//! Otherwise only the names tell: they are those that `transformers`, `diffusers`, PEFT and Mistral
//! give their files. The rule is the same for file systems, object stores, hubs and caches.

use std::collections::HashSet;
use std::fmt::Write;

use super::shards::{SUFFIX, natural_cmp, numbered};
use crate::error::{printable, shortened};

/// Suffix of an index's name.
pub const INDEX_SUFFIX: &str = ".safetensors.index.json";
/// Index name that `transformers` writes; it takes precedence over other indexes in the directory.
pub const INDEX_NAME: &str = "model.safetensors.index.json";

/// Name of the file with the wrapped keys of a sealed checkpoint.
pub const KEY_FILE_NAME: &str = "sealed.json";
/// Name that `transformers` writes when one file is enough.
pub const SINGLE_NAME: &str = "model.safetensors";

/// Most names in a note.
const NAMES_SHOWN: usize = 4;

/// Kinds of files, the one to load first. Of several kinds in a directory, only the first is
/// loaded: `transformers` prefers `model.safetensors` to shards too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// `model.safetensors`.
    Model,
    /// `model-00001-of-00002.safetensors`.
    ModelShard,
    /// `diffusion_pytorch_model.safetensors`.
    Diffusers,
    /// `diffusion_pytorch_model-00001-of-00002.safetensors`.
    DiffusersShard,
    /// Any other name.
    Other,
    /// `consolidated*.safetensors`: a model of Mistral or Meta under their own tensor names, often
    /// beside one for `transformers`.
    Consolidated,
    /// `adapter_model*.safetensors`: an adapter, which changes a model and is none itself.
    Adapter,
}

impl Kind {
    fn new(name: &str) -> Self {
        let stem = name.strip_suffix(SUFFIX).unwrap_or(name);
        let (base, is_shard) = match numbered(name) {
            Some((prefix, ..)) => (prefix.trim_end_matches('-'), true),
            None => (stem, false),
        };
        match (base, is_shard) {
            ("model", false) => Self::Model,
            ("model", true) => Self::ModelShard,
            ("diffusion_pytorch_model", false) => Self::Diffusers,
            ("diffusion_pytorch_model", true) => Self::DiffusersShard,
            _ if stem.starts_with("consolidated") => Self::Consolidated,
            _ if stem.starts_with("adapter_model") => Self::Adapter,
            _ => Self::Other,
        }
    }
}

/// Which of two models in one directory is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precedence {
    /// An index decides wherever there is one, as in vLLM and `SGLang`.
    #[default]
    Index,
    /// `model.safetensors` comes before any index, as in `transformers`.
    SingleFile,
}

/// Result of choosing among the names in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// The index with this name decides.
    Index(&'a str),
    /// Neither index is the model's, or both are.
    Indexes(&'a str, &'a str),
    /// The names of the files decide. There may be none.
    Files(ModelFiles<'a>),
}

/// Chooses among the names of all files of a directory.
pub fn choose_files<'a>(
    names: impl IntoIterator<Item = &'a str>,
    precedence: Precedence,
) -> Choice<'a> {
    let names = names.into_iter().filter(|name| !name.starts_with('.'));
    let (files, others): (Vec<_>, Vec<_>) = names.partition(|name| name.ends_with(SUFFIX));
    let mut indexes: Vec<_> = others
        .into_iter()
        .filter(|name| name.ends_with(INDEX_SUFFIX))
        .collect();
    let is_single = precedence == Precedence::SingleFile && files.contains(&SINGLE_NAME);
    match indexes[..] {
        [first, ..] if !is_single => {
            let own = indexes.iter().find(|name| **name == INDEX_NAME);
            match (own, indexes.get(1)) {
                (Some(own), _) => Choice::Index(own),
                (None, None) => Choice::Index(first),
                (None, Some(second)) => Choice::Indexes(first, second),
            }
        }
        _ => {
            let mut files = ModelFiles::choose(files);
            indexes.append(&mut files.left_out);
            files.left_out = indexes;
            Choice::Files(files)
        }
    }
}

/// Files of one model, and those beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles<'a> {
    /// Files to load, in natural order.
    pub chosen: Vec<&'a str>,
    /// Indexes that do not count, then files of other models, in natural order.
    pub left_out: Vec<&'a str>,
}

impl<'a> ModelFiles<'a> {
    /// Returns the files beside `index`, which names `shards`.
    pub fn of_index(
        index: &'a str,
        shards: &[String],
        names: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let shards: HashSet<_> = shards.iter().map(String::as_str).collect();
        let is_other = |name: &&str| {
            let counts = name.ends_with(SUFFIX) || name.ends_with(INDEX_SUFFIX);
            counts && *name != index && !shards.contains(name)
        };
        let mut left_out: Vec<_> = names.into_iter().filter(is_other).collect();
        // A note may name only the first: an index stands for many files.
        let is_file = |name: &str| !name.ends_with(INDEX_SUFFIX);
        left_out.sort_by(|a, b| {
            let by_kind = is_file(a).cmp(&is_file(b));
            by_kind.then_with(|| natural_cmp(a, b))
        });
        Self {
            chosen: vec![index],
            left_out,
        }
    }

    /// Chooses among the names of a directory's `*.safetensors`.
    fn choose(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_by(|a, b| natural_cmp(a, b));
        let first = names.iter().map(|name| Kind::new(name)).min();
        let (chosen, left_out) = names
            .into_iter()
            .partition(|name| Some(Kind::new(name)) == first);
        Self { chosen, left_out }
    }

    /// Returns a note for the report if files were left out, or if the chosen ones may not belong
    /// together.
    pub fn note(&self) -> Option<String> {
        if !self.left_out.is_empty() {
            return Some(format!(
                "the directory has several models; read: {}; left out: {}; to read others, pass their paths",
                listed(&self.chosen),
                listed(&self.left_out)
            ));
        }
        let mut patterns = self.chosen.iter().map(|name| pattern(name));
        let first = patterns.next()?;
        patterns.any(|pattern| pattern != first).then(|| {
            format!(
                "the directory has no index, and its files are not numbered alike; read as one model: {}",
                listed(&self.chosen)
            )
        })
    }
}

/// Returns a name with every number replaced: the shards of one set differ in numbers only.
fn pattern(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for character in name.chars() {
        if !character.is_ascii_digit() {
            pattern.push(character);
        } else if !pattern.ends_with('#') {
            pattern.push('#');
        }
    }
    pattern
}

/// Returns the names for a message: the first four, and the number of others.
pub fn listed(names: &[&str]) -> String {
    let shown: Vec<_> = names
        .iter()
        .take(NAMES_SHOWN)
        .map(|it| printable(&shortened(it)))
        .collect();
    let mut text = shown.join(", ");
    if let more @ 1.. = names.len().saturating_sub(NAMES_SHOWN) {
        // Writing to a string cannot fail.
        let _ = write!(text, " and {more} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the chosen names and those left out, without their suffix.
    fn choose(names: &[&str]) -> (Vec<String>, Vec<String>) {
        let names: Vec<_> = names.iter().map(|name| format!("{name}{SUFFIX}")).collect();
        let files = ModelFiles::choose(names.iter().map(String::as_str));
        let bare = |names: Vec<&str>| {
            let bare = names.iter().map(|name| name.trim_end_matches(SUFFIX));
            bare.map(str::to_owned).collect()
        };
        (bare(files.chosen), bare(files.left_out))
    }

    fn note(names: &[&str]) -> Option<String> {
        ModelFiles::choose(names.iter().copied()).note()
    }

    #[test]
    fn index_decides_unless_single_file_has_precedence() {
        let single = |left_out: &[&'static str]| {
            Choice::Files(ModelFiles {
                chosen: vec![SINGLE_NAME],
                left_out: left_out.to_vec(),
            })
        };
        let other = "x.safetensors.index.json";
        let third = "y.safetensors.index.json";
        for (names, index_first, single_first) in [
            (
                &[SINGLE_NAME, INDEX_NAME, "config.json"][..],
                Choice::Index(INDEX_NAME),
                single(&[INDEX_NAME]),
            ),
            (
                &[other, INDEX_NAME],
                Choice::Index(INDEX_NAME),
                Choice::Index(INDEX_NAME),
            ),
            (
                &[other, SINGLE_NAME, "model-1-of-1.safetensors"],
                Choice::Index(other),
                single(&[other, "model-1-of-1.safetensors"]),
            ),
            (
                &[third, other, SINGLE_NAME],
                Choice::Indexes(third, other),
                single(&[third, other]),
            ),
            (
                &[other, "x.safetensors", ".hidden.safetensors.index.json"],
                Choice::Index(other),
                Choice::Index(other),
            ),
            (&[SINGLE_NAME], single(&[]), single(&[])),
        ] {
            let choose = |precedence| choose_files(names.iter().copied(), precedence);
            assert_eq!(choose(Precedence::Index), index_first, "{names:?}");
            assert_eq!(choose(Precedence::SingleFile), single_first, "{names:?}");
        }
    }

    #[test]
    fn files_that_an_index_does_not_name_are_left_out() {
        let shards = [
            "a-1.safetensors".to_owned(),
            "deep/a-2.safetensors".to_owned(),
        ];
        let names = [
            INDEX_NAME,
            "a-1.safetensors",
            SINGLE_NAME,
            "config.json",
            "consolidated.safetensors.index.json",
        ];
        let files = ModelFiles::of_index(INDEX_NAME, &shards, names);
        let left_out = ["consolidated.safetensors.index.json", SINGLE_NAME];
        assert_eq!(files.left_out, left_out);
        let note = files.note().expect("files were left out");
        assert!(
            note.contains("read: model.safetensors.index.json; left out: consolidated"),
            "{note}"
        );
        let whole = ModelFiles::of_index(INDEX_NAME, &shards, [INDEX_NAME, "a-1.safetensors"]);
        assert_eq!(whole.note(), None);
    }

    #[test]
    fn model_wins_over_adapter_consolidated_and_others() {
        for (names, chosen) in [
            (&["adapter_model", "model"][..], &["model"][..]),
            (&["consolidated", "model", "x"], &["model"]),
            (&["model", "model-1-of-2", "model-2-of-2"], &["model"]),
            (&["model", "model.fp16"], &["model"]),
            (
                &["model-2-of-2", "adapter_model", "model-1-of-2", "a"],
                &["model-1-of-2", "model-2-of-2"],
            ),
            // The missing shard is an error of the set, no reason to load something else.
            (&["model-1-of-2", "consolidated"], &["model-1-of-2"]),
            (
                &["diffusion_pytorch_model", "diffusion_pytorch_model.fp16"],
                &["diffusion_pytorch_model"],
            ),
            (&["a", "b", "consolidated"], &["a", "b"]),
            (&["consolidated.00", "adapter_model"], &["consolidated.00"]),
        ] {
            let (found, left_out) = choose(names);
            assert_eq!(found, chosen, "{names:?}");
            assert_eq!(found.len() + left_out.len(), names.len(), "{names:?}");
        }
    }

    #[test]
    fn files_of_one_kind_are_all_chosen() {
        for names in [
            &["adapter_model"][..],
            &["consolidated.00", "consolidated.01"],
            &["model.fp16"],
            &["a", "b", "model2"],
            &["9", "10"],
            &[
                "diffusion_pytorch_model-1-of-2",
                "diffusion_pytorch_model-2-of-2",
            ],
            &[],
        ] {
            let all: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(choose(names), (all, Vec::new()), "{names:?}");
        }
    }

    #[test]
    fn note_names_files_that_were_left_out() {
        assert_eq!(
            note(&["model.safetensors", "adapter_model.safetensors"]).as_deref(),
            Some(
                "the directory has several models; read: model.safetensors; left out: adapter_model.safetensors; to \
                 read others, pass their paths"
            )
        );
        let names: Vec<_> = (0..9)
            .map(|n| format!("consolidated.{n}.safetensors"))
            .collect();
        let mut names: Vec<_> = names.iter().map(String::as_str).collect();
        names.push("x.safetensors");
        let text = note(&names).expect("some are left out");
        assert!(text.contains("left out: consolidated.0.safetensors, consolidated.1.safetensors, consolidated.2.safetensors, consolidated.3.safetensors and 5 more;"), "{text}");
    }

    #[test]
    fn note_escapes_names() {
        let text = note(&["a\u{1b}[2J.safetensors", "b\n.safetensors"]).expect("unrelated");
        assert!(
            text.ends_with(": a\\u{1b}[2J.safetensors, b\\n.safetensors"),
            "{text}"
        );
    }

    #[test]
    fn note_names_files_that_look_unrelated() {
        let text = note(&["llama.safetensors", "vae.safetensors"]).expect("they do");
        assert!(
            text.ends_with(": llama.safetensors, vae.safetensors"),
            "{text}"
        );
        for related in [
            &["x-1.safetensors", "x-22.safetensors"][..],
            &[
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
            ],
            &["only.safetensors"],
            &[],
        ] {
            assert_eq!(note(related), None, "{related:?}");
        }
    }
}
