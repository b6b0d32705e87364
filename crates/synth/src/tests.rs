//! Tests of the presets: sizes, names and shapes.

use std::collections::HashSet;

use super::*;

const SIZES: [u64; 14] = [
    256 << 10,
    1 << 20,
    3 << 20,
    4 << 20,
    17 << 20,
    64 << 20,
    100_000_000,
    512 << 20,
    1 << 30,
    2 << 30,
    4 << 30,
    16 << 30,
    75_000_000_000,
    140_000_000_000,
];

fn models() -> impl Iterator<Item = (Preset, u64, Model)> {
    [Preset::Llama, Preset::Moe, Preset::Tiny]
        .into_iter()
        .flat_map(|preset| {
            SIZES
                .into_iter()
                .filter(move |size| *size >= preset.smallest_bytes())
                .map(move |size| (preset, size, Model::new(preset, size).unwrap()))
        })
}

#[test]
fn sizes_are_met_within_two_percent() {
    for (preset, size, model) in models() {
        let bytes = model.bytes();
        assert!(
            bytes.abs_diff(size) <= size / 50,
            "{} {size}: {bytes}",
            preset.name()
        );
    }
}

#[test]
fn names_are_unique_and_no_tensor_is_negligible_by_accident() {
    for (preset, size, model) in models() {
        let names: HashSet<_> = model.entries.iter().map(|entry| &entry.name).collect();
        assert_eq!(names.len(), model.entries.len(), "{} {size}", preset.name());
        if preset != Preset::Tiny {
            assert!(model.entries.iter().all(|entry| entry.byte_len() > 0));
        }
    }
}

#[test]
fn four_gibibytes_of_llama_look_like_a_model_of_two_billion() {
    let model = Model::new(Preset::Llama, 4 << 30).unwrap();
    let shape = |name: &str| {
        model
            .entries
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| entry.shape.clone())
    };
    assert_eq!(
        shape("model.layers.0.self_attn.q_proj.weight"),
        Some(vec![2048, 2048])
    );
    assert_eq!(
        shape("model.layers.0.self_attn.k_proj.weight"),
        Some(vec![512, 2048])
    );
    assert_eq!(shape("lm_head.weight"), shape("model.embed_tokens.weight"));
    let largest = model.entries.iter().map(Entry::byte_len).max().unwrap();
    assert!((256 << 20..=1 << 30).contains(&largest), "{largest}");
    assert!(model.entries.iter().all(|entry| entry.dtype == Dtype::Bf16));
}

#[test]
fn two_gibibytes_of_moe_are_about_six_thousand_tensors() {
    let model = Model::new(Preset::Moe, 2 << 30).unwrap();
    assert!(
        (5_500..=6_500).contains(&model.entries.len()),
        "{}",
        model.entries.len()
    );
    let dtypes: HashSet<_> = model.entries.iter().map(|entry| entry.dtype).collect();
    assert_eq!(
        dtypes,
        HashSet::from([Dtype::Bf16, Dtype::F32, Dtype::F8E4M3])
    );
}

#[test]
fn tiny_has_every_dtype_of_whole_bytes_with_scalar_and_empty() {
    let model = Model::new(Preset::Tiny, 4 << 20).unwrap();
    for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.bits() >= 8) {
        let mut of_dtype = model.entries.iter().filter(|entry| entry.dtype == dtype);
        assert!(
            of_dtype.clone().any(|entry| entry.shape.is_empty()),
            "{dtype}: scalar"
        );
        assert!(
            of_dtype.any(|entry| entry.byte_len() == 0),
            "{dtype}: empty"
        );
    }
}

#[test]
fn too_small_is_a_wrong_request() {
    let error = Model::new(Preset::Moe, 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert!(error.message().contains("at least 1.0 MiB"), "{error}");
}

#[test]
fn largest_returns_last_fitting_size() {
    assert_eq!(largest(16, 16, |n| n <= 100), 96);
    assert_eq!(largest(16, 16, |n| n <= 96), 96);
    assert_eq!(largest(16, 16, |_| false), 16);
}
