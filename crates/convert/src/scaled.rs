//! Which 8-bit floats of a checkpoint are quantised: their values mean nothing without a scale, so
//! that they are not converted.

use std::collections::HashSet;

use tload_format::Dtype;

/// Tensor that marks all 8-bit floats of a checkpoint as scaled, in some formats.
const MARK: &str = "scaled_fp8";

/// Returns the names of the 8-bit floats that have a scale. A tensor of the same module says so by
/// its name. `tensors` are all of the checkpoint.
pub fn scaled<'a>(tensors: impl Iterator<Item = (&'a str, Dtype)> + Clone) -> HashSet<&'a str> {
    let eight = (tensors.clone()).filter(|(_, dtype)| crate::is_float(*dtype) && dtype.bits() == 8);
    let mut eight = eight.map(|(name, _)| name).peekable();
    if eight.peek().is_none() {
        return HashSet::new();
    }
    let is_marked = tensors.clone().any(|(name, _)| name == MARK);
    let with_scales: HashSet<&str> = tensors
        .map(|(name, _)| split(name))
        .filter(|(_, last)| last.to_lowercase().contains("scale"))
        .map(|(module, _)| module)
        .collect();
    eight
        .filter(|name| is_marked || with_scales.contains(split(name).0))
        .collect()
}

/// Splits a name at its last dot.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(tensors: &[(&'a str, Dtype)]) -> Vec<&'a str> {
        let mut found: Vec<_> = scaled(tensors.iter().copied()).into_iter().collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn a_scale_in_the_same_module_makes_8_bit_floats_quantised() {
        let mut tensors = vec![
            ("a.weight", Dtype::F8E4M3),
            ("a.weight_Scale_inv", Dtype::F32),
            ("b.weight", Dtype::F8E5M2Fnuz),
            ("b.deeper.scale", Dtype::F32),
            ("c.weight", Dtype::Bf16),
            ("c.scale", Dtype::F32),
            ("top", Dtype::F8E5M2),
        ];
        assert_eq!(of(&tensors), ["a.weight"]);
        tensors.push(("scale", Dtype::F32));
        assert_eq!(of(&tensors), ["a.weight", "top"]);
        tensors.push((MARK, Dtype::F8E4M3));
        assert_eq!(of(&tensors), ["a.weight", "b.weight", MARK, "top"]);
    }
}
