//! Texts in which option names are marked, so that each interface shows its own names.
//!
//! The core writes `set ‹memory_limit› to 8` and `use ‹cache=auto›`. Users of Rust and Python
//! read `memory_limit` and `cache=auto`; the command shows `--memory-limit` and `--cache auto`.
//! `‹list_names›` stands for the call or command that lists the tensors of the error's location.

use std::ops::Range;

const OPEN: char = '‹';
const CLOSE: char = '›';

/// Names that can be marked, sorted. Other text in `‹›` is not a mark: it may be the name of a
/// file.
const NAMES: [&str; 31] = [
    "align",
    "cache",
    "depth",
    "device",
    "device_map",
    "device_memory_limit",
    "dtype",
    "engine",
    "extent_bytes",
    "follow_symlinks",
    "force",
    "framework",
    "hedge",
    "in_flight_bytes",
    "include",
    "join_timeout",
    "lanes",
    LIST_NAMES,
    "memory_limit",
    "on_peer_loss",
    "order",
    "private",
    "range_bytes",
    "region_bytes",
    "retries",
    "share",
    "skip_unusable",
    "store",
    "timeout",
    "verify",
    "writable",
];

/// Mark of the call or command that lists the tensors of a location, which becomes its value.
pub(super) const LIST_NAMES: &str = "list_names";
/// Text of [`LIST_NAMES`] in Rust.
pub(super) const LISTING_CALL: &str = "Checkpoint::tensors";

/// Message or hint with marked option names.
#[derive(Clone, Default)]
pub(super) struct MarkedText {
    plain: String,
    /// Places of `name` or `name=value` in `plain`, in order.
    marks: Vec<Range<usize>>,
}

impl MarkedText {
    /// Takes the marks out of `text`. `shown` makes the text between them fit to be printed.
    pub(super) fn new(text: &str, shown: impl Fn(&str) -> String) -> Self {
        let mut marked = Self::default();
        let mut rest = text;
        while let Some((before, name, after)) = next_mark(rest) {
            marked.plain.push_str(&shown(before));
            let start = marked.plain.len();
            let is_listing = name == LIST_NAMES;
            let name = if is_listing { LISTING_CALL } else { name };
            marked.plain.push_str(name);
            marked.marks.push(start..marked.plain.len());
            rest = after;
        }
        marked.plain.push_str(&shown(rest));
        marked
    }

    /// Returns the text with the names that options have in Rust and Python.
    pub(super) fn plain(&self) -> &str {
        &self.plain
    }

    /// Returns `text` with this behind it.
    pub(super) fn behind(&self, text: &str) -> Self {
        let shift = |mark: &Range<usize>| mark.start + text.len()..mark.end + text.len();
        Self {
            plain: format!("{text}{}", self.plain),
            marks: self.marks.iter().map(shift).collect(),
        }
    }

    /// Returns the option that the text begins with.
    pub(super) fn subject(&self) -> Option<&str> {
        let first = self.marks.first().filter(|mark| mark.start == 0)?;
        Some(option(&self.plain[first.clone()]).0)
    }

    /// Returns the text with options named by `name`, which gets the option, and the value in
    /// `cache=auto`.
    pub(super) fn with_names(&self, name: impl Fn(&str, Option<&str>) -> String) -> String {
        let mut text = String::with_capacity(self.plain.len());
        let mut end = 0;
        for mark in &self.marks {
            let (option, value) = match &self.plain[mark.clone()] {
                LISTING_CALL => (LIST_NAMES, None),
                name => option(name),
            };
            text.push_str(&self.plain[end..mark.start]);
            text.push_str(&name(option, value));
            end = mark.end;
        }
        text.push_str(&self.plain[end..]);
        text
    }
}

/// Splits `text` around its first marked option. What is in double quotes is a name from a file,
/// a user or a server, and not a mark.
fn next_mark(text: &str) -> Option<(&str, &str, &str)> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let unquoted = |(_, character): &(usize, char)| {
        if *character == '"' && !is_escaped {
            is_quoted = !is_quoted;
        }
        is_escaped = *character == '\\' && !is_escaped;
        *character == OPEN && !is_quoted
    };
    text.char_indices().filter(unquoted).find_map(|(at, _)| {
        let inside = &text[at + OPEN.len_utf8()..];
        let (name, after) = inside.split_once(CLOSE)?;
        let is_word = |word: &str| {
            !word.is_empty()
                && word
                    .bytes()
                    .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
        };
        let (option, value) = option(name);
        let is_mark = NAMES.binary_search(&option).is_ok() && value.is_none_or(is_word);
        is_mark.then_some((&text[..at], name, after))
    })
}

/// Returns the end of the beginning of `text` up to `end`, or up to the mark that `end` is in.
pub(super) fn end_outside_marks(text: &str, end: usize) -> usize {
    match text[..end].rfind(OPEN) {
        Some(open) if !text[open..end].contains(CLOSE) => open,
        _ => end,
    }
}

fn option(name: &str) -> (&str, Option<&str>) {
    match name.split_once('=') {
        Some((option, value)) => (option, Some(value)),
        None => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(option: &str, value: Option<&str>) -> String {
        let flag = format!("--{}", option.replace('_', "-"));
        value.map_or(flag.clone(), |value| format!("{flag} {value}"))
    }

    #[test]
    fn marked_options_get_the_names_of_the_interface() {
        for (text, plain, command) in [
            (
                "set ‹memory_limit› to 8, or lower (‹depth›)",
                "set memory_limit to 8, or lower (depth)",
                "set --memory-limit to 8, or lower (--depth)",
            ),
            (
                "use ‹cache=auto› or ‹engine=tokio-uring›",
                "use cache=auto or engine=tokio-uring",
                "use --cache auto or --engine tokio-uring",
            ),
            ("‹depth› is 0", "depth is 0", "--depth is 0"),
        ] {
            let marked = MarkedText::new(text, str::to_owned);
            assert_eq!(marked.plain(), plain);
            assert_eq!(marked.with_names(flag), command);
        }
    }

    #[test]
    fn text_without_marks_is_unchanged() {
        for text in [
            "",
            "memory_limit",
            "tensor \"depth\" of cache=auto",
            "‹",
            "›‹",
            "‹A name› ‹› ‹=› ‹cache=›",
            "a/‹model›/‹x=1›",
            "tensor \"a\\\"‹depth›\"",
        ] {
            let marked = MarkedText::new(text, str::to_owned);
            assert_eq!(marked.plain(), text);
            assert_eq!(marked.with_names(flag), text);
            assert_eq!(marked.subject(), None);
        }
    }

    #[test]
    fn listing_of_names_is_a_call_in_rust() {
        let marked = MarkedText::new("see ‹list_names›", str::to_owned);
        assert_eq!(marked.plain(), "see Checkpoint::tensors");
        assert_eq!(marked.with_names(flag), "see --list-names");
    }

    #[test]
    fn names_are_sorted() {
        assert!(NAMES.is_sorted());
    }

    #[test]
    fn text_before_marked_text_keeps_marks() {
        let marked = MarkedText::new("‹depth› is ‹cache=map›", str::to_owned).behind("é: ");
        assert_eq!(marked.plain(), "é: depth is cache=map");
        assert_eq!(marked.with_names(flag), "é: --depth is --cache map");
        assert_eq!(marked.subject(), None);
    }

    #[test]
    fn text_is_not_cut_inside_mark() {
        let text = "é ‹depth› ‹cache=map›";
        let ends = |wanted: usize| end_outside_marks(text, wanted);
        let (first, second) = (text.find('‹').expect("one"), text.rfind('‹').expect("two"));
        assert_eq!(ends(first), first);
        assert_eq!(ends(first + 5), first);
        assert_eq!(ends(second), second);
        assert_eq!(ends(second + 4), second);
        assert_eq!(ends(text.len()), text.len());
    }

    #[test]
    fn subject_is_the_option_at_the_beginning() {
        let subject = |text| {
            let marked = MarkedText::new(text, str::to_owned);
            marked.subject().map(str::to_owned)
        };
        assert_eq!(subject("‹depth› is 0").as_deref(), Some("depth"));
        assert_eq!(subject("‹cache=map› reads").as_deref(), Some("cache"));
        assert_eq!(subject("raise ‹timeout›"), None);
    }

    #[test]
    fn text_between_marks_is_made_printable() {
        let marked = MarkedText::new("a\n‹depth›\n", |text| text.replace('\n', "\\n"));
        assert_eq!(marked.plain(), "a\\ndepth\\n");
        assert_eq!(marked.with_names(flag), "a\\n--depth\\n");
    }
}
