//! Tensor selection: exact names, globs, regular expressions, or all.

use std::collections::HashMap;

use globset::{GlobBuilder, GlobMatcher};
use regex::Regex;

use super::near_glob::nearest_glob;
use crate::error::{Error, ErrorKind, Result, counted};

/// A set of tensors, by name. The default selects all.
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::error::*;
/// #     pub use tload_plan::*;
/// # }
/// use tload::Selection;
///
/// let norms = Selection::regex(r"\bnorm\b")?;
/// let some = Selection::glob("model.layers.0.*")?.union(norms);
/// let two = Selection::names(["lm_head.weight", "model.norm.weight"]);
/// assert!(Selection::glob("[").is_err());
/// # let _ = (some, two);
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// `None` selects everything.
    rules: Option<Vec<Rule>>,
}

#[derive(Clone, Debug)]
enum Rule {
    Name(String),
    /// A name that the caller has matched by its own rule.
    Matched(String),
    Glob(GlobMatcher),
    Regex(Regex),
}

impl Selection {
    /// Selects every tensor.
    pub fn all() -> Self {
        Self::default()
    }

    /// Selects exactly these tensors; none for an empty list. A name that the checkpoint lacks is
    /// an error of the load.
    pub fn names<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Self {
            rules: Some(
                names
                    .into_iter()
                    .map(|name| Rule::Name(name.into()))
                    .collect(),
            ),
        }
    }

    /// Selects these tensors, which the caller has matched by its own rule, such as a pattern:
    /// like [`Self::names`], except that verification still requires every file that a manifest
    /// lists.
    pub fn matched_names<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let rules = names.into_iter().map(|name| Rule::Matched(name.into()));
        Self {
            rules: Some(rules.collect()),
        }
    }

    /// Selects tensors whose whole name matches a glob: `*` and `?` match any characters (dots and
    /// slashes too), `[ab]` and `{a,b}` as in a shell. A glob that matches nothing is an error of
    /// the load.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] when the pattern is malformed.
    pub fn glob(pattern: &str) -> Result<Self> {
        let glob = GlobBuilder::new(pattern).build().map_err(|error| {
            Error::invalid_request(format!("glob {pattern:?} is malformed: {}", error.kind()))
        })?;
        Ok(Self {
            rules: Some(vec![Rule::Glob(glob.compile_matcher())]),
        })
    }

    /// Selects tensors whose name a regular expression matches anywhere (anchor it with `^` and `$`
    /// for whole names). An expression that matches nothing is an error of the load.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] when the expression is malformed.
    pub fn regex(pattern: &str) -> Result<Self> {
        let regex = Regex::new(pattern).map_err(|error| {
            let reason = last_line(&error);
            let is_beyond = ["look-around", "backreferences"].iter().any(|it| reason.contains(it));
            let hint = if is_beyond {
                "this syntax is not part of these regular expressions; Python takes a compiled one: re.compile(…)"
            } else {
                "escape a literal dot or bracket with a backslash"
            };
            Error::invalid_request(format!("regex {pattern:?} is malformed: {reason}")).with_hint(hint)
        })?;
        Ok(Self {
            rules: Some(vec![Rule::Regex(regex)]),
        })
    }

    /// Returns the union of both selections.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        let rules = self.rules.zip(other.rules).map(|(mut rules, more)| {
            rules.extend(more);
            rules
        });
        Self { rules }
    }

    /// Returns whether all rules are exact names.
    #[doc(hidden)]
    pub fn is_by_name(&self) -> bool {
        (self.rules.as_ref()).is_some_and(|rules| rules.iter().all(Rule::is_name))
    }

    /// Returns the indices of the selected names, ascending.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchTensor`] for a rule that selects nothing: a typing error would otherwise
    /// load half a model.
    #[doc(hidden)]
    pub fn resolve(&self, names: &[&str]) -> Result<Vec<usize>> {
        let Some(rules) = &self.rules else {
            return Ok((0..names.len()).collect());
        };
        // Only names get a lookup table: a load of a whole model may have one rule for each tensor.
        let by_name: HashMap<&str, usize> = if rules.iter().any(Rule::has_name) {
            let indexed = names.iter().enumerate();
            indexed.map(|(index, name)| (*name, index)).collect()
        } else {
            HashMap::new()
        };
        let mut selected = vec![false; names.len()];
        for rule in rules {
            let found = match rule {
                Rule::Name(name) | Rule::Matched(name) => by_name
                    .get(name.as_str())
                    .map(|&index| selected[index] = true)
                    .is_some(),
                Rule::Glob(glob) => mark(&mut selected, names, |name| glob.is_match(name)),
                Rule::Regex(regex) => mark(&mut selected, names, |name| regex.is_match(name)),
            };
            if !found {
                return Err(rule.selects_nothing(names));
            }
        }
        Ok((0..names.len()).filter(|&index| selected[index]).collect())
    }
}

/// Returns the last line of the error, which says what is wrong; the regex crate draws the position
/// over the lines before.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

/// Marks the names that match, and returns whether any does.
fn mark(selected: &mut [bool], names: &[&str], matches: impl Fn(&str) -> bool) -> bool {
    let mut found = false;
    for (selected, name) in selected.iter_mut().zip(names) {
        if matches(name) {
            *selected = true;
            found = true;
        }
    }
    found
}

impl Rule {
    fn is_name(&self) -> bool {
        matches!(self, Self::Name(_))
    }

    fn has_name(&self) -> bool {
        matches!(self, Self::Name(_) | Self::Matched(_))
    }

    fn selects_nothing(&self, names: &[&str]) -> Error {
        let total = counted(names.len() as u64, "tensor");
        let error = |message: String| {
            Error::new(ErrorKind::NoSuchTensor, message)
                .with_hint("list the names with ‹list_names›")
        };
        match self {
            Self::Name(name) | Self::Matched(name) => {
                error(format!("the checkpoint has no such tensor; it has {total}"))
                    .with_tensor(name)
                    .suggesting(name, names.iter().copied())
            }
            Self::Glob(glob) => {
                let pattern = glob.glob().glob();
                let error = error(format!("glob {pattern:?} matches none of {total}"));
                match nearest_glob(pattern, names) {
                    Some(near) => error.with_hint(format!("did you mean {near:?}?")),
                    None => error,
                }
            }
            Self::Regex(regex) => error(format!(
                "regex {:?} matches none of {total}",
                regex.as_str()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = [
        "model.a.weight",
        "model.a.bias",
        "model.b.weight",
        "lm_head",
    ];

    fn resolve(selection: &Selection) -> Vec<usize> {
        selection.resolve(&NAMES).expect("selects something")
    }

    #[test]
    fn names_globs_and_expressions_select_in_file_order() {
        assert_eq!(resolve(&Selection::all()), [0, 1, 2, 3]);
        assert_eq!(
            resolve(&Selection::names(["lm_head", "model.a.bias"])),
            [1, 3]
        );
        assert_eq!(
            resolve(&Selection::glob("*.weight").expect("valid")),
            [0, 2]
        );
        assert_eq!(resolve(&Selection::regex(r"\.b\.").expect("valid")), [2]);
        let both = Selection::regex("head$")
            .expect("valid")
            .union(Selection::names(["lm_head"]));
        assert_eq!(resolve(&both), [3]);
        assert_eq!(resolve(&both.union(Selection::all())), [0, 1, 2, 3]);
        assert!(resolve(&Selection::names::<&str>([])).is_empty());
    }

    #[test]
    fn rule_without_match_is_error_with_hint() {
        let error = Selection::names(["a.weight"])
            .resolve(&NAMES)
            .expect_err("not there");
        assert_eq!(error.kind(), ErrorKind::NoSuchTensor);
        assert_eq!(error.hint(), Some("did you mean \"model.a.weight\"?"));
        let error = Selection::glob("x*")
            .expect("valid")
            .resolve(&NAMES)
            .expect_err("nothing");
        assert_eq!(error.message(), "glob \"x*\" matches none of 4 tensors");
        assert_eq!(
            error.hint(),
            Some("list the names with Checkpoint::tensors")
        );
        let error = Selection::glob("modle.a.*")
            .expect("valid")
            .resolve(&NAMES)
            .expect_err("nothing");
        assert_eq!(error.hint(), Some("did you mean \"model.a.*\"?"));
        let error = Selection::regex("(").expect_err("malformed");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert_eq!(error.message(), "regex \"(\" is malformed: unclosed group");
        assert_eq!(
            Selection::glob("[").expect_err("malformed").kind(),
            ErrorKind::InvalidRequest
        );
    }
}
