//! Inputs of the measurements: tensors of typical models, without their bytes.

use tload::internal::plan::{Layout, Wanted};

/// Read hints of files on disks (`ReadFile::hints`), at the time of writing.
pub const LAYOUT: Layout = Layout {
    extent_bytes: 4 << 20,
    alignment: 4096,
    gap_bytes: 64 << 10,
};

/// Bytes of one tensor of a header: few, so that a file of 20,000 tensors fits into memory.
const HEADER_TENSOR_BYTES: usize = 64;

/// Returns a dense model of 8·10⁹ parameters in BF16 and four shards: few tensors, large ones among
/// them (15 GB).
pub fn dense() -> Vec<Wanted> {
    const LAYERS: usize = 32;
    const SHARDS: usize = 4;
    // Norms, q, k, v, o, gate, up, down: as in Llama 3.
    let layer = [
        4096,
        4096,
        4096 * 4096,
        1024 * 4096,
        1024 * 4096,
        4096 * 4096,
        14_336 * 4096,
        14_336 * 4096,
        4096 * 14_336,
    ];
    let embedding = [128_256 * 4096];
    let elements = embedding
        .into_iter()
        .chain((0..LAYERS).flat_map(|_| layer))
        .chain(embedding);
    let bytes: Vec<_> = elements.map(|elements| elements * 2).collect();
    shards(SHARDS, &bytes)
}

/// Returns a mixture of experts in FP8 with scales, in 64 shards: 20,000 tensors, half of them
/// tiny.
pub fn experts() -> Vec<Wanted> {
    const TENSORS: usize = 20_000;
    const SHARDS: usize = 64;
    let bytes = [2048 * 768, 16 * 6 * 4].repeat(TENSORS / 2);
    shards(SHARDS, &bytes)
}

/// Returns tensors of these lengths, one behind the other, over `shards` files with about equally
/// many.
fn shards(shards: usize, bytes: &[u64]) -> Vec<Wanted> {
    let per_shard = bytes.len().div_ceil(shards);
    let mut wanted = Vec::with_capacity(bytes.len());
    for (source, bytes) in bytes.chunks(per_shard).enumerate() {
        // Tensors follow a header, so they do not begin on a page, as in real files.
        let mut start = 8 + 120 * bytes.len() as u64;
        for bytes in bytes {
            wanted.push(Wanted {
                source,
                range: start..start + bytes,
                strides: None,
                alignment: 2,
                destination: 0,
            });
            start += bytes;
        }
    }
    wanted
}

/// Returns the header, without the length before it, of a file with `tensors` tensors named like
/// experts, and the file's length.
pub fn header(tensors: usize) -> (Vec<u8>, u64) {
    let entries: Vec<_> = (0..tensors)
        .map(|index| {
            let (layer, expert) = (index / 384, index / 3 % 128);
            let projection = ["gate_proj", "up_proj", "down_proj"][index % 3];
            let begin = index * HEADER_TENSOR_BYTES;
            let end = begin + HEADER_TENSOR_BYTES;
            format!(
                r#""model.layers.{layer}.mlp.experts.{expert}.{projection}.weight":{{"dtype":"BF16","shape":[4,8],"data_offsets":[{begin},{end}]}}"#
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(",")).into_bytes();
    let bytes = 8 + header.len() + tensors * HEADER_TENSOR_BYTES;
    (header, bytes as u64)
}
