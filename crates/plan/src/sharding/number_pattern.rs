//! Patterns of names with a number in one place: that of a layer or an expert. Pure.

use globset::{Glob, GlobMatcher};

use crate::Selection;
use crate::error::{Error, ErrorKind, Result, counted};

/// Place of the number in a pattern.
const NUMBER: &str = "{}";

/// Glob with a number in one place.
#[derive(Clone, Debug)]
pub(super) struct NumberPattern {
    text: String,
    before: GlobMatcher,
    after: GlobMatcher,
}

impl NumberPattern {
    pub(super) fn new(text: &str) -> Result<Self> {
        let (before, after) = text
            .split_once(NUMBER)
            .filter(|(_, after)| !after.contains(NUMBER))
            .ok_or_else(|| {
                let message = format!("pattern {text:?} has no single {NUMBER} for the number");
                Error::invalid_request(message).with_hint("for example *.layers.{}.*")
            })?;
        let compile = |glob: &str| {
            let glob = Glob::new(glob).map_err(|error| {
                let message = format!("pattern {text:?} is malformed: {}", error.kind());
                Error::invalid_request(message)
            })?;
            Ok(glob.compile_matcher())
        };
        Ok(Self {
            text: text.to_owned(),
            before: compile(before)?,
            after: compile(after)?,
        })
    }

    /// Returns the number in each name that matches.
    pub(super) fn numbers(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
        let numbers: Vec<_> = names.iter().map(|name| self.number(name)).collect();
        if numbers.iter().any(Option::is_some) {
            return Ok(numbers);
        }
        let total = counted(names.len() as u64, "tensor");
        let message = format!("pattern {:?} matches none of {total}", self.text);
        let error = Error::new(ErrorKind::NoSuchTensor, message);
        let any = Selection::glob(&self.text.replace(NUMBER, "*"))?;
        let hint = match any.resolve(names) {
            Ok(_) => Some(format!(
                "{NUMBER} stands for a number; the names have none there"
            )),
            Err(error) => error.hint().map(str::to_owned),
        };
        Err(
            match hint.filter(|hint| hint.starts_with("did you mean") || hint.starts_with(NUMBER)) {
                Some(hint) => error.with_hint(hint),
                None => error.with_hint("list the names with ‹list_names›"),
            },
        )
    }

    /// Returns the first number of a name that is in the place.
    fn number(&self, name: &str) -> Option<u64> {
        let mut from = 0;
        while let Some(start) = name[from..].find(|c: char| c.is_ascii_digit()) {
            let start = from + start;
            let digits = name[start..].find(|c: char| !c.is_ascii_digit());
            let end = digits.map_or(name.len(), |len| start + len);
            if self.before.is_match(&name[..start]) && self.after.is_match(&name[end..]) {
                return name[start..end].parse().ok();
            }
            from = end;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_runs_of_digits_in_their_place() {
        let pattern = NumberPattern::new("a*.x{}.*").expect("valid");
        for (name, number) in [
            ("a.x12.w", Some(12)),
            ("a3.x4.w", Some(4)),
            ("a.x5.x6.w", Some(5)),
            ("é.x5.w", None),
            ("a.x5", None),
            ("aé.x007.é", Some(7)),
            ("a.x99999999999999999999.w", None),
        ] {
            assert_eq!(pattern.number(name), number, "{name}");
        }
    }
}
