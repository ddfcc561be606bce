//! What whole models give.

use std::collections::HashSet;
use std::fs;

use serde::Deserialize;
use toolwright_core::embedding::{Embedder as _, TextRole};
use toolwright_search::embed::SentenceTransformer;

use super::tiny::{self, MAX_TOKENS, PLAIN, Variant, WORDS};

const TEXTS: [&str; 3] = ["Read a file", "please send mail to the team about our meeting today", "Zyzzyva"];

#[derive(Deserialize)]
struct Reference {
    model_type: String,
    hidden_act: String,
    pooling: String,
    vectors: Vec<Vec<f32>>,
}

fn assert_near(got: &[f32], expect: &[f32], what: &str) {
    assert_eq!(got.len(), expect.len(), "{what}");
    let off = got.iter().zip(expect).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 2e-6, "{what}: off by {off}");
}

async fn one(model: &SentenceTransformer, text: &str) -> Vec<f32> {
    model.embed(&[text], TextRole::Tool).await.unwrap().pop().unwrap()
}

#[tokio::test]
async fn vectors_are_those_of_the_reference() {
    let references: Vec<Reference> = serde_json::from_str(include_str!("../../fixtures/reference.json")).unwrap();
    for Reference { model_type, hidden_act, pooling, vectors } in references {
        let dir = tiny::directory(&Variant { model_type: &model_type, hidden_act: &hidden_act, pooling: &pooling });
        let model = SentenceTransformer::load(dir.path()).unwrap();
        let got = model.embed(&TEXTS, TextRole::Tool).await.unwrap();
        for ((got, expect), text) in got.iter().zip(&vectors).zip(TEXTS) {
            assert_near(got, expect, &format!("{model_type} {hidden_act} {pooling} {text:?}"));
        }
    }
}

#[tokio::test]
async fn text_vectors_are_stable_and_normalised() {
    let dir = tiny::directory(&PLAIN);
    let model = SentenceTransformer::load(dir.path()).unwrap();
    let texts: Vec<String> =
        (0..700).map(|n| WORDS[4..][..n * 7 % 20].join(if n % 3 == 0 { " " } else { " a " })).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let together = model.embed(&texts, TextRole::Query).await.unwrap();
    assert_eq!(together.len(), texts.len());
    for (text, vector) in texts.iter().zip(&together).step_by(13) {
        assert_near(vector, &one(&model, text).await, text);
        let length: f32 = vector.iter().map(|number| number * number).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    assert!(model.embed(&[], TextRole::Tool).await.unwrap().is_empty());
    assert_eq!(model.dimensions(), together[0].len());
}

#[tokio::test]
async fn long_texts_are_cut() {
    let dir = tiny::directory(&PLAIN);
    let model = SentenceTransformer::load(dir.path()).unwrap();
    let cut = one(&model, &"file ".repeat(MAX_TOKENS - 2)).await;
    assert_near(&one(&model, &"file ".repeat(100_000)).await, &cut, "many words");
    // One word that is longer than what is looked at, in characters of three bytes.
    assert_near(&one(&model, &"語".repeat(100_000)).await, &one(&model, &"語".repeat(400)).await, "a long word");
}

#[tokio::test]
async fn prompts_precede_their_input() {
    let dir = tiny::directory(&PLAIN);
    let plain = SentenceTransformer::load(dir.path()).unwrap();
    let prompts = r#"{"prompts": {"query": "find ", "passage": "list "}, "default_prompt_name": null}"#;
    fs::write(dir.path().join("config_sentence_transformers.json"), prompts).unwrap();
    let prompted = SentenceTransformer::load(dir.path()).unwrap();
    assert_ne!(plain.id(), prompted.id());
    for (role, text) in [(TextRole::Query, "find a file"), (TextRole::Tool, "list a file")] {
        let vector = prompted.embed(&["a file"], role).await.unwrap().pop().unwrap();
        assert_near(&vector, &one(&plain, text).await, text);
    }
}

#[tokio::test]
async fn models_load_with_and_without_head() {
    let dir = tiny::directory(&PLAIN);
    let expect = one(&SentenceTransformer::load(dir.path()).unwrap(), TEXTS[0]).await;
    let tensors = tiny::tensors().into_iter().map(|(name, tensor)| (format!("bert.{name}"), tensor)).collect();
    fs::write(dir.path().join("model.safetensors"), tiny::safetensors(&tensors)).unwrap();
    for optional in ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"] {
        fs::remove_file(dir.path().join(optional)).unwrap();
    }
    assert_near(&one(&SentenceTransformer::load(dir.path()).unwrap(), TEXTS[0]).await, &expect, "bare");
}

#[test]
fn model_identity_covers_weights_settings_tokenizers() {
    let dir = tiny::directory(&PLAIN);
    let id = || SentenceTransformer::load(dir.path()).unwrap().id().to_owned();
    let first = id();
    assert_eq!(first, id());
    let mut tensors = tiny::tensors();
    tensors.get_mut("embeddings.LayerNorm.bias").unwrap().1[0] += 0.125;
    fs::write(dir.path().join("model.safetensors"), tiny::safetensors(&tensors)).unwrap();
    let other_weights = id();
    fs::write(dir.path().join("1_Pooling/config.json"), r#"{"pooling_mode": "cls"}"#).unwrap();
    let other_pooling = id();
    let tokenizer = fs::read_to_string(dir.path().join("tokenizer.json")).unwrap();
    fs::write(dir.path().join("tokenizer.json"), tokenizer + "\n").unwrap();
    let ids = HashSet::from([first, other_weights, other_pooling, id()]);
    assert_eq!(ids.len(), 4, "{ids:?}");
}
