//! `selection.embeddings`: where vectors come from.

use toolwright::config::{EmbeddingSource, Severity};
use toolwright::core::Secret;
use toolwright::house::embedder;
use toolwright::models::EmbeddingsApi;

use crate::config::broken;
use crate::support::Place;

#[test]
fn a_directory_or_an_api_is_found_in_the_configuration() {
    let place = Place::with("selection:\n  embeddings: {path: \"${MODELS}/minilm\"}\n").set("MODELS", "models");
    let config = place.load();
    assert_eq!(config.problems, []);
    assert_eq!(config.embeddings, Some(EmbeddingSource::Directory(config.root.join("models/minilm"))));

    let place = Place::with(
        "selection:\n  embeddings:\n    url: https://h/v1\n    model: ${M:-small}\n    apiKey: ${EMBEDDINGS_KEY}\n",
    )
    .set("EMBEDDINGS_KEY", "k-7");
    let config = place.load();
    assert_eq!(config.problems, []);
    let (base_url, model) = ("https://h/v1".into(), "small".into());
    let source = EmbeddingSource::Api { api: EmbeddingsApi::OpenAi, base_url, key: Some(Secret::new("k-7")), model };
    assert_eq!(config.embeddings, Some(source));
    assert_eq!((&*config.secrets, &*config.key_variables), (&["k-7".into()][..], &["EMBEDDINGS_KEY".into()][..]));
    assert!(!format!("{:?}{}", config.embeddings, config.shown()).contains("k-7"));

    let config = Place::with("selection: {embeddings: {url: \"http://h\", model: m, api: ollama}}\n").load();
    assert!(matches!(config.embeddings, Some(EmbeddingSource::Api { api: EmbeddingsApi::Ollama, key: None, .. })));
    assert_eq!(Place::with("selection: {pick_size: 3}\n").load().embeddings, None);
}

#[test]
fn what_names_no_model_is_left_out_with_the_reason() {
    let check = |settings: &str, key: &str, words: &str| {
        let text = format!("selection:\n  embeddings: {{{settings}}}\n");
        broken(&text, 2, &format!("selection.embeddings.{key}"), Severity::EntryDisabled, &[words]);
        assert_eq!(Place::with(&text).load().embeddings, None);
    };
    check("", "path", "`url` and `model` of an API");
    check("path: \"\"", "path", "no model is named");
    check("path: a, url: \"http://h\", model: m", "url", "not from both");
    check("url: \"http://h\"", "model", "text-embedding-3-small");
    check("url: here, model: m", "url", "not an address");
    check("path: \"${NOWHERE}\"", "path", "NOWHERE");
}

#[tokio::test]
async fn a_directory_that_is_no_model_is_named_with_the_remedy() {
    let place = Place::new();
    let error = embedder(&EmbeddingSource::Directory(place.path("home"))).await.err().expect("no model").to_string();
    assert!(error.contains(&place.path("home").display().to_string()), "{error}");
    let remedy = if cfg!(feature = "embeddings") { "what the authors of a model publish" } else { "--features embeddings" };
    assert!(error.contains(remedy), "{error}");
}
