//! Checkpoint for tests of readers: every dtype of whole bytes as a scalar, an empty tensor, an
//! odd-sized vector and a matrix, then a small Llama that fills up the size. Frameworks disagree on
//! dtypes of less than a byte, so these are left out.

use serde_json::{Value, json};
use tload::Dtype;

use super::{Entry, llama, total};

/// Returns the tensors and the `config.json` of a checkpoint of `size` bytes.
pub(super) fn model(size: u64) -> (Vec<Entry>, Value) {
    let mut entries = Vec::new();
    for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.bits() % 8 == 0) {
        let prefix = format!("dtypes.{}", dtype.name().to_ascii_lowercase());
        for (name, shape) in [
            ("scalar", &[][..]),
            ("empty", &[0, 7]),
            ("vector", &[13]),
            ("matrix", &[17, 3, 5]),
        ] {
            entries.push(Entry::new(format!("{prefix}.{name}"), dtype, shape));
        }
    }
    entries.extend(llama::entries(size - total(&entries)));
    (
        entries,
        json!({"architectures": ["SyntheticTinyModel"], "model_type": "synthetic_tiny"}),
    )
}
