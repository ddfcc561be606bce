//! A published model, where `TOOLWRIGHT_EMBEDDING_MODEL` names its directory.

use std::path::PathBuf;

use toolwright_core::embedding::{Embedder as _, TextRole};
use toolwright_search::embed::SentenceTransformer;

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

#[tokio::test]
async fn like_texts_are_nearer_than_others() {
    let Some(dir) = variable("TOOLWRIGHT_EMBEDDING_MODEL") else { return };
    let model = SentenceTransformer::load(&dir).unwrap();
    let texts = ["send an e-mail", "write a message to a colleague", "current temperature in a city"];
    let vectors = model.embed(&texts, TextRole::Tool).await.unwrap();
    let cosine = |a: usize, b: usize| vectors[a].iter().zip(&vectors[b]).map(|(a, b)| a * b).sum::<f32>();
    assert!(cosine(0, 1) > cosine(0, 2) + 0.1, "{} {}", cosine(0, 1), cosine(0, 2));
}

/// `TOOLWRIGHT_EMBEDDING_REFERENCE` names a JSON array of `{"text", "vector"}` that another implementation
/// made with the same model.
#[tokio::test]
async fn vectors_are_those_of_another_implementation() {
    let Some(dir) = variable("TOOLWRIGHT_EMBEDDING_MODEL") else { return };
    let Some(reference) = variable("TOOLWRIGHT_EMBEDDING_REFERENCE") else { return };
    let model = SentenceTransformer::load(&dir).unwrap();
    let pairs: Vec<serde_json::Value> = serde_json::from_slice(&std::fs::read(reference).unwrap()).unwrap();
    let texts: Vec<&str> = pairs.iter().map(|pair| pair["text"].as_str().unwrap()).collect();
    let vectors = model.embed(&texts, TextRole::Tool).await.unwrap();
    for (pair, vector) in pairs.iter().zip(&vectors) {
        let expect: Vec<f32> = serde_json::from_value(pair["vector"].clone()).unwrap();
        let off = vector.iter().zip(&expect).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(vector.len() == expect.len() && off < 1e-5, "{}: off by {off}", pair["text"]);
    }
}
