//! A sentence-transformer directory with two layers, 24 words and made-up weights.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

const HIDDEN: usize = 32;
const BETWEEN: usize = 64;
pub(crate) const WORDS: [&str; 24] = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "read", "send", "a", "file", "mail", "please", "to", "the", "team", "about",
    "our", "meet", "##ing", "today", "list", "open", "issue", "find", "##s", "weather",
];

/// How many tokens of a text the model takes.
pub(crate) const MAX_TOKENS: usize = 16;

/// What differs from model to model.
pub(crate) struct Variant<'a> {
    pub(crate) model_type: &'a str,
    pub(crate) hidden_act: &'a str,
    pub(crate) pooling: &'a str,
}

pub(crate) const PLAIN: Variant<'static> = Variant { model_type: "bert", hidden_act: "gelu", pooling: "mean_tokens" };

/// Writes the directory.
pub(crate) fn directory(variant: &Variant<'_>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| fs::write(dir.path().join(name), value.to_string()).unwrap();
    fs::create_dir(dir.path().join("1_Pooling")).unwrap();
    write("config.json", &config(variant));
    write("tokenizer.json", &tokenizer());
    let modules = ["", "1_Pooling", "2_Normalize"].into_iter().zip(["Transformer", "Pooling", "Normalize"]);
    let modules =
        modules.map(|(path, kind)| json!({"path": path, "type": format!("sentence_transformers.models.{kind}")}));
    write("modules.json", &modules.collect());
    let mut pooling = json!({"word_embedding_dimension": HIDDEN, "pooling_mode_max_tokens": false});
    pooling[format!("pooling_mode_{}", variant.pooling)] = json!(true);
    write("1_Pooling/config.json", &pooling);
    write("sentence_bert_config.json", &json!({"max_seq_length": MAX_TOKENS, "do_lower_case": false}));
    fs::write(dir.path().join("model.safetensors"), safetensors(&tensors())).unwrap();
    dir
}

fn config(variant: &Variant<'_>) -> Value {
    json!({
        "model_type": variant.model_type,
        "hidden_act": variant.hidden_act,
        "hidden_size": HIDDEN,
        "intermediate_size": BETWEEN,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 20,
        "pad_token_id": u8::from(variant.model_type == "roberta"),
        "type_vocab_size": 2,
        "vocab_size": WORDS.len(),
    })
}

/// With a padding and a length of its own, as published ones have.
fn tokenizer() -> Value {
    let vocabulary: Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).into(), json!(id))).collect();
    let special = |token: &str| json!({"SpecialToken": {"id": token, "type_id": 0}});
    let id = |token: &str, id: u32| json!({"id": token, "ids": [id], "tokens": [token]});
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
        },
        "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, special("[SEP]")],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": id("[CLS]", 2), "[SEP]": id("[SEP]", 3)},
        },
        "decoder": null,
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary,
        },
    })
}

pub(crate) type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The weights, as `fixtures/reference.py` makes them.
pub(crate) fn tensors() -> Tensors {
    let mut tensors = Tensors::new();
    let mut add = |name: &str, shape: &[usize]| {
        let values = (0..shape.iter().product::<usize>()).map(|index| {
            let value = number(name, index) - 0.5;
            match shape {
                [_] if name.ends_with("LayerNorm.weight") => 1.0 + value * 0.25,
                [_] => value * 0.25,
                _ => value,
            }
        });
        tensors.insert(name.to_owned(), (shape.to_vec(), values.collect()));
    };
    let mut linear = |name: String, out: usize, size: usize| {
        add(&format!("{name}.weight"), &[out, size]);
        add(&format!("{name}.bias"), &[out]);
    };
    for layer in ["encoder.layer.0", "encoder.layer.1"] {
        for part in ["self.query", "self.key", "self.value", "output.dense"] {
            linear(format!("{layer}.attention.{part}"), HIDDEN, HIDDEN);
        }
        linear(format!("{layer}.intermediate.dense"), BETWEEN, HIDDEN);
        linear(format!("{layer}.output.dense"), HIDDEN, BETWEEN);
    }
    for norm in ["embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"]
        .into_iter()
        .chain(["encoder.layer.1.attention.output", "encoder.layer.1.output"])
    {
        add(&format!("{norm}.LayerNorm.weight"), &[HIDDEN]);
        add(&format!("{norm}.LayerNorm.bias"), &[HIDDEN]);
    }
    for (name, rows) in [("word", WORDS.len()), ("position", 20), ("token_type", 2)] {
        add(&format!("embeddings.{name}_embeddings.weight"), &[rows, HIDDEN]);
    }
    tensors
}

/// From 0 to 1: FNV-1a of the name, SplitMix64 of that and the index.
fn number(name: &str, index: usize) -> f32 {
    let step = |seed: u64, byte: u8| (seed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let mut z = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let top = u32::try_from((z ^ (z >> 31)) >> 40).unwrap();
    #[expect(clippy::cast_precision_loss, reason = "24 bits")]
    let top = top as f32;
    top / 16_777_216.0
}

/// The bytes of a safetensors file: the length of a JSON header, the header, the numbers.
pub(crate) fn safetensors(tensors: &Tensors) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, (shape, values)) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        header.insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}));
    }
    let header = Value::from(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}
