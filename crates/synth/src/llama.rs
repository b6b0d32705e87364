//! Dense decoder in the shape of Llama 3: BF16, grouped-query attention, gated feed-forward, an
//! untied output head.
//!
//! The proportions are Llama's (feed-forward about 3.5 × hidden, keys and values a quarter of the
//! queries up to 1024, vocabulary 128,256). Hidden size, layers and vocabulary shrink with the
//! size, and the feed-forward width uses up the remaining bytes.

use serde_json::{Value, json};
use tload::Dtype;

use super::{Entry, total};

const VOCABULARY: u64 = 128_256;
const HIDDEN_SIZES: [u64; 8] = [8192, 4096, 2048, 1024, 512, 256, 128, 64];
/// Maximum share of the embedding, as a divisor of the size. In Llama 3.2 1B it is 17 %, in Llama
/// 3.1 8B 7 %.
const EMBEDDING_SHARE: u64 = 8;
const FEED_FORWARD_STEP: u64 = 4;
/// Bytes of a BF16 element.
const ELEMENT_BYTES: u64 = 2;

#[derive(Clone, Copy, Debug)]
struct Dimensions {
    hidden: u64,
    feed_forward: u64,
    keys: u64,
    vocabulary: u64,
    layers: u64,
}

/// Returns the tensors and the `config.json` of a model of `size` bytes.
pub(super) fn model(size: u64) -> (Vec<Entry>, Value) {
    let dimensions = Dimensions::fit(size);
    (dimensions.entries(), dimensions.config())
}

/// Returns Llama-shaped tensors of `size` bytes, for presets that fill the rest of their size with
/// them.
pub(super) fn entries(size: u64) -> Vec<Entry> {
    Dimensions::fit(size).entries()
}

impl Dimensions {
    /// Returns the widest model that is deep enough for its width.
    fn fit(size: u64) -> Self {
        let candidates = HIDDEN_SIZES.map(|hidden| Self::from_width(hidden, size));
        let deep = candidates
            .iter()
            .find(|model| model.layers >= (model.hidden / 128).max(2));
        let [.., narrowest] = candidates;
        let mut model = *deep.unwrap_or(&narrowest);
        model.layers = model.layers.max(2);
        let rest = size.saturating_sub(
            Self {
                feed_forward: 0,
                ..model
            }
            .bytes(),
        );
        let step_bytes = 3 * model.hidden * ELEMENT_BYTES * model.layers * FEED_FORWARD_STEP;
        // Rounded to the nearest step, so that the total misses the size by at most half a step.
        model.feed_forward = ((rest + step_bytes / 2) / step_bytes).max(1) * FEED_FORWARD_STEP;
        model
    }

    /// Returns a model with the number of layers of the usual shape that fits `size` best.
    fn from_width(hidden: u64, size: u64) -> Self {
        let vocabulary = (size / EMBEDDING_SHARE / (hidden * ELEMENT_BYTES)).min(VOCABULARY);
        let mut model = Self {
            hidden,
            feed_forward: hidden * 7 / 2,
            keys: (hidden / 4).min(1024),
            vocabulary: (vocabulary / 64 * 64).max(64),
            layers: 0,
        };
        let fixed = model.bytes();
        let layer = Self { layers: 1, ..model }.bytes() - fixed;
        model.layers = (size.saturating_sub(fixed) + layer / 2) / layer;
        model
    }

    /// Computes the bytes from those of one layer, because all layers are alike.
    fn bytes(self) -> u64 {
        let none = total(&Self { layers: 0, ..self }.entries());
        let one = total(&Self { layers: 1, ..self }.entries());
        none + self.layers * (one - none)
    }

    fn entries(self) -> Vec<Entry> {
        let Self {
            hidden,
            feed_forward,
            keys,
            vocabulary,
            layers,
        } = self;
        let entry = |name: String, shape: &[u64]| Entry::new(name, Dtype::Bf16, shape);
        let mut entries = vec![entry(
            "model.embed_tokens.weight".into(),
            &[vocabulary, hidden],
        )];
        for layer in 0..layers {
            let named = |name: &str| format!("model.layers.{layer}.{name}.weight");
            entries.extend([
                entry(named("input_layernorm"), &[hidden]),
                entry(named("mlp.down_proj"), &[hidden, feed_forward]),
                entry(named("mlp.gate_proj"), &[feed_forward, hidden]),
                entry(named("mlp.up_proj"), &[feed_forward, hidden]),
                entry(named("post_attention_layernorm"), &[hidden]),
                entry(named("self_attn.k_proj"), &[keys, hidden]),
                entry(named("self_attn.o_proj"), &[hidden, hidden]),
                entry(named("self_attn.q_proj"), &[hidden, hidden]),
                entry(named("self_attn.v_proj"), &[keys, hidden]),
            ]);
        }
        entries.push(entry("model.norm.weight".into(), &[hidden]));
        entries.push(entry("lm_head.weight".into(), &[vocabulary, hidden]));
        entries
    }

    fn config(self) -> Value {
        let head = 128.min(self.keys);
        json!({
            "architectures": ["LlamaForCausalLM"],
            "head_dim": head,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "max_position_embeddings": 8192,
            "model_type": "llama",
            "num_attention_heads": self.hidden / head,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.keys / head,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocabulary,
        })
    }
}
