//! Mixture of experts in the shape of the published DeepSeek-V3: experts in F8_E4M3 with F32 scales
//! per 128 × 128 tile, an F32 router, everything else in BF16. Thousands of tensors, most of them
//! small: 2 GiB are about 6,000.

use serde_json::{Value, json};
use tload::Dtype;

use super::{Entry, largest, total};

/// Layers and experts by size. Real models have up to 61 × 256; these keep the mean size of a
/// tensor in realistic proportion.
const SHAPES: [(u64, u64, u64); 6] = [
    (64 << 30, 48, 128),
    (8 << 30, 24, 128),
    (1 << 30, 16, 60),
    (128 << 20, 8, 32),
    (16 << 20, 4, 8),
    (0, 2, 4),
];
const VOCABULARY: u64 = 129_280;
/// Side of the tile that one scale covers.
const TILE: u64 = 128;
const HIDDEN_STEP: u64 = 16;
const EXPERT_STEP: u64 = 4;

#[derive(Clone, Copy, Debug)]
struct Dimensions {
    hidden: u64,
    /// Inner width of an expert.
    expert: u64,
    vocabulary: u64,
    layers: u64,
    experts: u64,
}

/// Returns the tensors and the `config.json` of a model of `size` bytes.
pub(super) fn model(size: u64) -> (Vec<Entry>, Value) {
    let dimensions = Dimensions::fit(size);
    (dimensions.entries(), dimensions.config())
}

impl Dimensions {
    fn fit(size: u64) -> Self {
        let [.., smallest] = SHAPES;
        let (_, layers, experts) = SHAPES
            .into_iter()
            .find(|(from, ..)| size >= *from)
            .unwrap_or(smallest);
        let of_width = |hidden: u64| Self {
            hidden,
            expert: (hidden / 3 / EXPERT_STEP * EXPERT_STEP).max(EXPERT_STEP),
            vocabulary: (size / 16 / (2 * hidden) / 64 * 64).clamp(64, VOCABULARY),
            layers,
            experts,
        };
        let hidden = largest(HIDDEN_STEP, HIDDEN_STEP, |hidden| {
            of_width(hidden).bytes() <= size
        });
        let model = of_width(hidden);
        let expert = largest(EXPERT_STEP, EXPERT_STEP, |expert| {
            Self { expert, ..model }.bytes() <= size
        });
        Self { expert, ..model }
    }

    /// Computes the bytes from those of one layer, because all layers are alike and `fit` calls
    /// this often.
    fn bytes(self) -> u64 {
        let none = total(&Self { layers: 0, ..self }.entries());
        let one = total(
            &Self {
                layers: 1,
                experts: 1,
                ..self
            }
            .entries(),
        );
        let two = total(
            &Self {
                layers: 1,
                experts: 2,
                ..self
            }
            .entries(),
        );
        none + self.layers * (one - none + (self.experts - 1) * (two - one))
    }

    fn entries(self) -> Vec<Entry> {
        let Self {
            hidden,
            vocabulary,
            layers,
            ..
        } = self;
        let mut entries = vec![Entry::new(
            "model.embed_tokens.weight",
            Dtype::Bf16,
            [vocabulary, hidden],
        )];
        for layer in 0..layers {
            self.layer(layer, &mut entries);
        }
        entries.push(Entry::new("model.norm.weight", Dtype::Bf16, [hidden]));
        entries.push(Entry::new(
            "lm_head.weight",
            Dtype::Bf16,
            [vocabulary, hidden],
        ));
        entries
    }

    fn layer(self, layer: u64, entries: &mut Vec<Entry>) {
        let Self {
            hidden,
            expert: width,
            experts,
            ..
        } = self;
        let named = |name: &str| format!("model.layers.{layer}.{name}");
        entries.push(Entry::new(
            named("input_layernorm.weight"),
            Dtype::Bf16,
            [hidden],
        ));
        for expert in 0..experts {
            for (projection, rows, columns) in projections(hidden, width) {
                let weight = named(&format!("mlp.experts.{expert}.{projection}.weight"));
                let scales = [rows.div_ceil(TILE), columns.div_ceil(TILE)];
                let scale_name = format!("{weight}_scale_inv");
                entries.push(Entry::new(weight, Dtype::F8E4M3, [rows, columns]));
                entries.push(Entry::new(scale_name, Dtype::F32, scales));
            }
        }
        let router = named("mlp.gate.weight");
        let bias = named("mlp.gate.e_score_correction_bias");
        entries.push(Entry::new(bias, Dtype::F32, [experts]));
        entries.push(Entry::new(router, Dtype::F32, [experts, hidden]));
        for (projection, rows, columns) in projections(hidden, width) {
            let weight = named(&format!("mlp.shared_experts.{projection}.weight"));
            entries.push(Entry::new(weight, Dtype::Bf16, [rows, columns]));
        }
        entries.push(Entry::new(
            named("post_attention_layernorm.weight"),
            Dtype::Bf16,
            [hidden],
        ));
        let keys = self.keys();
        for (projection, rows) in [
            ("k_proj", keys),
            ("o_proj", hidden),
            ("q_proj", hidden),
            ("v_proj", keys),
        ] {
            let weight = named(&format!("self_attn.{projection}.weight"));
            entries.push(Entry::new(weight, Dtype::Bf16, [rows, hidden]));
        }
    }

    fn keys(self) -> u64 {
        (self.hidden / 4).max(1)
    }

    fn config(self) -> Value {
        json!({
            "architectures": ["SyntheticMoeForCausalLM"],
            "hidden_size": self.hidden,
            "model_type": "synthetic_moe",
            "moe_intermediate_size": self.expert,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "num_hidden_layers": self.layers,
            "quantization_config": {
                "fmt": "e4m3",
                "quant_method": "fp8",
                "weight_block_size": [TILE, TILE],
            },
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocabulary,
        })
    }
}

/// Returns name, rows and columns of the three matrices of an expert.
fn projections(hidden: u64, width: u64) -> [(&'static str, u64, u64); 3] {
    [
        ("down_proj", hidden, width),
        ("gate_proj", width, hidden),
        ("up_proj", width, hidden),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_entries() {
        let model = Dimensions::fit(20 << 20);
        assert_eq!(model.bytes(), total(&model.entries()));
    }
}
