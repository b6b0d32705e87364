//! Distribution of tensors over files, as `huggingface_hub` does it. Pure.

use crate::tensor_spec::TensorSpec;

/// Returns the tensors of each file: in their order, as many as fit into `bytes_max`. One that is
/// larger has a file of its own, which precedes the file that is not full yet.
pub(crate) fn split(specs: Vec<TensorSpec>, bytes_max: u64) -> Vec<Vec<TensorSpec>> {
    let mut files = Vec::new();
    let (mut current, mut bytes) = (Vec::new(), 0_u64);
    for spec in specs {
        let len = spec.byte_len();
        if len > bytes_max {
            files.push(vec![spec]);
            continue;
        }
        if bytes.saturating_add(len) > bytes_max {
            files.push(std::mem::take(&mut current));
            bytes = 0;
        }
        bytes += len;
        current.push(spec);
    }
    // A model without tensors is one empty file.
    if !current.is_empty() || files.is_empty() {
        files.push(current);
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Dtype;

    #[test]
    fn tensors_are_split_as_huggingface_hub_does() {
        // Lengths, maximum, and the files of `split_torch_state_dict_into_shards` (2.4.0).
        type Files = &'static [&'static [u64]];
        let cases: [(&[u64], u64, Files); 6] = [
            (&[], 10, &[&[]]),
            (&[6, 6, 2, 6, 2, 2], 10, &[&[6], &[6, 2], &[6, 2, 2]]),
            (&[3, 30, 4], 10, &[&[30], &[3, 4]]),
            (&[10, 10], 10, &[&[10], &[10]]),
            (&[0, 30], 10, &[&[30], &[0]]),
            (&[30], 10, &[&[30]]),
        ];
        for (lens, bytes_max, wanted) in cases {
            let spec = |&len: &u64| TensorSpec::new("a", Dtype::U8, [len]).expect("good");
            let files = split(lens.iter().map(spec).collect(), bytes_max);
            let found: Vec<Vec<u64>> = files
                .iter()
                .map(|file| file.iter().map(TensorSpec::byte_len).collect())
                .collect();
            assert_eq!(found, wanted, "{lens:?}");
        }
    }
}
