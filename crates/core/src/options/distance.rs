//! Edit distance between two words, for "did you mean" hints. Pure.

/// Returns the number of letters to insert, delete or substitute to turn one word into the other
/// (Levenshtein).
pub(crate) fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (left_out, letter) in from.chars().enumerate() {
        let mut diagonal = row.first().copied().unwrap_or_default();
        let mut left = left_out + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, other) in row.iter_mut().skip(1).zip(&to) {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = *cell;
            left = changed.min(left + 1).min(*cell + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_levenshtein() {
        for (from, to, wanted) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(from, to), wanted, "{from} {to}");
        }
    }
}
