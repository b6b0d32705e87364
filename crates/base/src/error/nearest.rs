//! Search for the name that a misspelt one stands for, for "did you mean" hints. Pure.
//!
//! A checkpoint may have 500,000 names, and a hostile one names of any length: each name costs at
//! most a band of the edit distance's table, which narrows with every better name, and the sum is
//! limited too. The crate strsim has distances without limits only.

/// Maximum number of edits between a misspelt name and the one that is suggested.
const EDITS_MAX: usize = 5;
/// Maximum number of cells of edit distances that one search computes: some 0.1 s.
const CELLS_MAX: usize = 1 << 25;
/// Rank of a name that contains the wanted one or is contained in it: between two edits, which are
/// ranked 4, and three.
const RANK_OF_CONTAINED: usize = 5;

/// Returns the name in `names` that `wanted` most likely stands for, if one is near enough: one
/// with few letters inserted, deleted, substituted or swapped, or else one that begins or ends with
/// `wanted`, or that `wanted` begins or ends with, at a `.`, `_` or the like. ASCII case is
/// ignored.
///
/// Takes bounded time, whatever the number and the length of the names; where they exceed it, the
/// best name so far is returned.
///
/// ```
/// let names = ["model.embed_tokens.weight", "lm_head.weight"];
/// # use tload_base::error as tload;
/// assert_eq!(tload::nearest_name("lm_head.wieght", names), Some("lm_head.weight"));
/// assert_eq!(tload::nearest_name("embed_tokens.weight", names), Some(names[0]));
/// assert_eq!(tload::nearest_name("optimizer", names), None);
/// ```
pub fn nearest_name<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    search(wanted, names, &mut EditDistance::default())
}

fn search<'a>(
    wanted: &str,
    names: impl IntoIterator<Item = &'a str>,
    distance: &mut EditDistance,
) -> Option<&'a str> {
    if wanted.is_empty() {
        return None;
    }
    // The key is the rank, then the difference in length. Lower is better.
    let mut best = (usize::MAX, 0);
    let mut nearest = None;
    for name in names {
        if distance.cells > CELLS_MAX {
            break;
        }
        let rank = rank(wanted, name, best.0, distance);
        let longer_by = name.len().abs_diff(wanted.len());
        if let Some(rank) = rank.filter(|rank| (*rank, longer_by) < best) {
            best = (rank, longer_by);
            nearest = Some(name);
        }
    }
    nearest
}

/// Returns the rank of `name`, unless it is worse than `best` or too far away.
fn rank(wanted: &str, name: &str, best: usize, distance: &mut EditDistance) -> Option<usize> {
    let (wanted, name) = (wanted.as_bytes(), name.as_bytes());
    let edits_max = EDITS_MAX
        .min(name.len() / 3)
        .min(best.saturating_sub(1) / 2);
    let edits = distance.within(wanted, name, edits_max);
    let contained = || {
        let is_contained = contains_at_boundary(name, wanted) || contains_at_boundary(wanted, name);
        (is_contained && RANK_OF_CONTAINED <= best).then_some(RANK_OF_CONTAINED)
    };
    let by_edits = edits.map(|edits| edits * 2);
    by_edits
        .filter(|rank| *rank < RANK_OF_CONTAINED)
        .or_else(contained)
        .or(by_edits)
}

/// Returns whether `long` begins or ends with all of `short`, at the end of a word.
fn contains_at_boundary(long: &[u8], short: &[u8]) -> bool {
    let Some(rest) = long.len().checked_sub(short.len()).filter(|rest| *rest > 0) else {
        return false;
    };
    let ends_word = |letter: u8| !letter.is_ascii_alphanumeric();
    !short.is_empty()
        && ((ends_word(long[rest - 1]) && long[rest..].eq_ignore_ascii_case(short))
            || (ends_word(long[short.len()]) && long[..short.len()].eq_ignore_ascii_case(short)))
}

/// Edit distances, with the memory for their tables.
#[derive(Default)]
struct EditDistance {
    /// The last three rows of the table.
    rows: [Vec<usize>; 3],
    /// Number of cells computed so far.
    cells: usize,
}

impl EditDistance {
    /// Returns the number of bytes to insert, delete, substitute, or swap with their neighbour to
    /// turn `from` into `to` (optimal string alignment), if it is at most `edits_max`. ASCII case
    /// is ignored.
    fn within(&mut self, from: &[u8], to: &[u8], edits_max: usize) -> Option<usize> {
        if from.len().abs_diff(to.len()) > edits_max {
            return None;
        }
        let (from, to) = without_shared_ends(from, to);
        let far = edits_max + 1;
        self.cells += to.len();
        for row in &mut self.rows {
            row.clear();
            row.resize(to.len() + 1, far);
        }
        let [before_last, last, current] = &mut self.rows;
        last.iter_mut()
            .zip(0..far)
            .for_each(|(cell, at)| *cell = at);
        for row in 1..=from.len() {
            // Cells further from the diagonal are more than `edits_max`.
            let band = row.saturating_sub(edits_max)..=(row + edits_max).min(to.len());
            self.cells += band.end() + 1 - band.start();
            if let Some(outside) = band.start().checked_sub(1) {
                current[outside] = far;
            }
            let mut row_minimum = far;
            for column in band {
                let deleted = last[column] + 1;
                current[column] = match column.checked_sub(1) {
                    None => row,
                    Some(left) => {
                        let letter = from[row - 1].to_ascii_lowercase();
                        let is_equal = letter == to[left].to_ascii_lowercase();
                        let substituted = last[left] + usize::from(!is_equal);
                        let is_swapped = row > 1
                            && left > 0
                            && letter == to[left - 1].to_ascii_lowercase()
                            && from[row - 2].eq_ignore_ascii_case(&to[left]);
                        let swapped = if is_swapped {
                            before_last[left - 1] + 1
                        } else {
                            far
                        };
                        let edits = substituted.min(current[left] + 1);
                        edits.min(deleted).min(swapped)
                    }
                };
                row_minimum = row_minimum.min(current[column]);
            }
            if row_minimum > edits_max {
                return None;
            }
            std::mem::swap(before_last, last);
            std::mem::swap(last, current);
        }
        last.last().copied().filter(|edits| *edits <= edits_max)
    }
}

/// Returns both without the bytes that they begin and end with alike.
fn without_shared_ends<'a>(one: &'a [u8], other: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    let is_equal = |(one, other): &(&u8, &u8)| one.eq_ignore_ascii_case(other);
    let start = one.iter().zip(other).take_while(is_equal).count();
    let (one, other) = (&one[start..], &other[start..]);
    let from_end = one.iter().rev().zip(other.iter().rev());
    let end = from_end.take_while(is_equal).count();
    (&one[..one.len() - end], &other[..other.len() - end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_the_one_with_fewest_edits() {
        const NAMES: [&str; 6] = [
            "model.embed_tokens.weight",
            "model.layers.1.mlp.up_proj.weight",
            "model.layers.11.mlp.up_proj.weight",
            "model.layers.11.mlp.down_proj.weight",
            "model.norm.weight",
            "lm_head.weight",
        ];
        for (wanted, nearest) in [
            ("lm_head.wieght", Some("lm_head.weight")),
            ("LM_HEAD.weight", Some("lm_head.weight")),
            ("model.layer.11.mlp.up_porj.weight", Some(NAMES[2])),
            ("model.layers.1.mlp.upproj.weights", Some(NAMES[1])),
            ("mdoel.norm.weight", Some("model.norm.weight")),
            // A prefix that is forgotten, one too many, and a module.
            ("layers.11.mlp.down_proj.weight", Some(NAMES[3])),
            ("transformer.lm_head.weight", Some("lm_head.weight")),
            ("model.norm", Some("model.norm.weight")),
            ("lm_hea", None),
            ("vision.patch", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest_name(wanted, NAMES), nearest, "{wanted:?}");
        }
    }

    #[test]
    fn nearest_name_of_short_words() {
        let names = [
            "auto",
            "uring",
            "pread",
            "tokio-uring",
            "map",
            "cpu",
            "device",
            "device_map",
        ];
        for (wanted, nearest) in [
            ("io_uring", Some("uring")),
            ("mmap", Some("map")),
            ("cup", Some("cpu")),
            ("device_mapp", Some("device_map")),
            ("tokio_uring", Some("tokio-uring")),
            ("map", Some("map")),
            ("tpu2", None),
            ("é", None),
        ] {
            assert_eq!(nearest_name(wanted, names), nearest, "{wanted:?}");
        }
        assert_eq!(nearest_name("a", []), None);
        assert_eq!(nearest_name("a", ["", "."]), None);
    }

    /// The definition of optimal string alignment, without limits.
    fn edits(from: &[u8], to: &[u8]) -> usize {
        let ([from_rest @ .., from_last], [to_rest @ .., to_last]) = (from, to) else {
            return from.len().max(to.len());
        };
        let mut least = (edits(from_rest, to) + 1).min(edits(from, to_rest) + 1);
        least = least.min(edits(from_rest, to_rest) + usize::from(from_last != to_last));
        if let ([from_rest @ .., from_first], [to_rest @ .., to_first]) = (from_rest, to_rest)
            && (from_first, from_last) == (to_last, to_first)
        {
            least = least.min(edits(from_rest, to_rest) + 1);
        }
        least
    }

    #[test]
    fn distance_within_limit_is_exact() {
        let words = |letters: u32| {
            let word = move |number: u32| -> Vec<u8> {
                let letter = |at| b"abc"[(number / 3_u32.pow(at) % 3) as usize];
                (0..letters).map(letter).collect()
            };
            (0..3_u32.pow(letters)).map(word)
        };
        let mut distance = EditDistance::default();
        for from in words(4) {
            for to in words(3).chain(words(4)) {
                let exact = edits(&from, &to);
                for max in 0..=4 {
                    let wanted = (exact <= max).then_some(exact);
                    assert_eq!(
                        distance.within(&from, &to, max),
                        wanted,
                        "{from:?} {to:?} {max}"
                    );
                }
            }
        }
    }

    #[test]
    fn search_among_many_or_long_names_is_bounded() {
        let many: Vec<String> = (0..500_000)
            .map(|at| {
                format!(
                    "model.layers.{}.experts.{}.down_proj.weight",
                    at / 256,
                    at % 256
                )
            })
            .collect();
        let mut distance = EditDistance::default();
        let wanted = "model.layers.61.experts.255.down_proj.wieght";
        let nearest = search(wanted, many.iter().map(String::as_str), &mut distance);
        assert_eq!(
            nearest,
            Some("model.layers.61.experts.255.down_proj.weight")
        );
        assert!(distance.cells < CELLS_MAX, "{}", distance.cells);

        // Equal but for more edits than are allowed, which are found last.
        let long = |letter: &str| format!("{}{}{letter}", letter, "a".repeat(64 << 10));
        let (wanted, other) = (long("bcdefg"), long("uvwxyz"));
        let mut distance = EditDistance::default();
        let names = std::iter::repeat_n(other.as_str(), 500_000);
        assert_eq!(search(&wanted, names, &mut distance), None);
        let one_name = 12 * wanted.len();
        assert!(distance.cells <= CELLS_MAX + one_name, "{}", distance.cells);
    }
}
