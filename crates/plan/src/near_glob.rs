//! Suggests a glob for one that matches nothing, for "did you mean" hints.

use std::collections::HashSet;

use globset::Glob;

use crate::error::nearest_name;

/// Longest glob that is corrected, bytes: each of its words is searched for among all words.
const GLOB_BYTES_MAX: usize = 256;
/// Most unknown words of a glob that are searched for.
const UNKNOWN_WORDS_MAX: usize = 4;
/// Most words of names that are searched.
const KNOWN_WORDS_MAX: usize = 1_000_000;

/// Returns a glob near `pattern` that matches one of `names`: with its unknown words replaced by
/// the nearest words of names, or with more of the name before or behind it.
///
/// Takes bounded time, as [`nearest_name`] does.
pub(super) fn nearest_glob(pattern: &str, names: &[&str]) -> Option<String> {
    if pattern.is_empty() || pattern.len() > GLOB_BYTES_MAX {
        return None;
    }
    let forms = [
        with_known_words(pattern, names),
        format!("{pattern}.*"),
        format!("*.{pattern}"),
        format!("*.{pattern}.*"),
    ];
    forms
        .into_iter()
        .filter(|form| form != pattern)
        .find(|form| {
            let glob = Glob::new(form).map(|glob| glob.compile_matcher());
            glob.is_ok_and(|glob| names.iter().any(|name| glob.is_match(name)))
        })
}

/// Returns `pattern` with every word that no name has, up to [`UNKNOWN_WORDS_MAX`], replaced by the
/// nearest one that a name has.
fn with_known_words(pattern: &str, names: &[&str]) -> String {
    let known: HashSet<&str> = names
        .iter()
        .flat_map(|name| words(name))
        .take(KNOWN_WORDS_MAX)
        .collect();
    // The words are sorted, so that the first of equally near words is always the same.
    let mut sorted: Vec<&str> = known.iter().copied().collect();
    sorted.sort_unstable();
    let mut searches = 0;
    let correct = |piece: &str| {
        let word = piece.trim_end_matches(separates);
        let unknown = (!word.is_empty() && !known.contains(word)).then_some(word);
        searches += usize::from(unknown.is_some());
        let unknown = unknown.filter(|_| searches <= UNKNOWN_WORDS_MAX);
        let near = unknown.and_then(|word| nearest_name(word, sorted.iter().copied()));
        [near.unwrap_or(word), &piece[word.len()..]].concat()
    };
    pattern.split_inclusive(separates).map(correct).collect()
}

/// Splits a name where words end.
fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(separates).filter(|word| !word.is_empty())
}

/// Returns whether a character separates words, in names and in globs.
fn separates(c: char) -> bool {
    !c.is_alphanumeric() && c != '_' && c != '-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_glob_matches_a_name() {
        let names = [
            "model.embed_tokens.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.1.mlp.up_proj.weight",
            "lm_head.weight",
        ];
        for (pattern, nearest) in [
            ("model.layer.*", Some("model.layers.*")),
            ("*.wieght", Some("*.weight")),
            ("*.{0,1}.mpl.up_porj.*", Some("*.{0,1}.mlp.up_proj.*")),
            ("lm_haed*", Some("lm_head*")),
            // Part of the name is missing.
            ("layers.1.*", Some("*.layers.1.*")),
            ("model.layers.0", Some("model.layers.0.*")),
            ("q_proj", Some("*.q_proj.*")),
            ("lay*.weight", Some("*.lay*.weight")),
            // No word is near, or no name has both.
            ("vision.*", None),
            ("model.layers.1.self_attn.*", None),
            ("", None),
            ("é*", None),
        ] {
            assert_eq!(
                nearest_glob(pattern, &names).as_deref(),
                nearest,
                "{pattern:?}"
            );
        }
        let corrected = with_known_words("modle.modle.modle.modle.modle", &names);
        assert_eq!(corrected, "model.model.model.model.modle");
        let long = "x.".repeat(GLOB_BYTES_MAX);
        assert_eq!(nearest_glob(&long, &names), None);
        assert_eq!(nearest_glob("a*", &[]), None);
    }
}
