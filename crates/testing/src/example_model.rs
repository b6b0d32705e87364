//! A tiny model on disk, for the examples in docs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use safetensors::{Dtype, tensor::TensorView};

/// Directory with a `model.safetensors`, removed on drop. Its tensors are `embed.weight` (BF16, 8 ×
/// 4), `layer.0.weight` (F32, 4 × 4) and `layer.0.bias` (F32, 4); element `i` of each F32 tensor is
/// `i`, and its metadata is `format: pt`.
#[derive(Debug)]
pub struct ExampleModel(PathBuf);

impl ExampleModel {
    /// Writes the model into a new directory.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    #[expect(clippy::new_without_default, reason = "creates a directory")]
    pub fn new() -> Self {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let name = format!("tload-example-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("the directory for temporary files is writable");
        let floats: Vec<u8> = (0..16_u8)
            .flat_map(|number| f32::from(number).to_le_bytes())
            .collect();
        let view = |dtype, shape: &[usize], bytes| {
            TensorView::new(dtype, shape.to_vec(), bytes).expect("as many bytes as elements")
        };
        let tensors = [
            ("embed.weight", view(Dtype::BF16, &[8, 4], &floats)),
            ("layer.0.weight", view(Dtype::F32, &[4, 4], &floats)),
            ("layer.0.bias", view(Dtype::F32, &[4], &floats[..16])),
        ];
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let file = folder.join("model.safetensors");
        safetensors::serialize_to_file(tensors, Some(metadata), &file).expect("the disk has room");
        Self(folder)
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ExampleModel {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
