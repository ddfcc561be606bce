//! From written settings of selection to ones that can be used.

use toolwright_core::Secret;
use toolwright_models::EmbeddingsApi;

use super::fill::{Holds, Scope};
use super::problem::At;
use super::resolved::EmbeddingSource;
use super::typed::{EmbeddingApi, Embeddings};

const SECTION: &str = "selection.embeddings";

/// Resolves where embeddings come from; `None`, with the reason among the problems, when it cannot be told.
pub(crate) fn embeddings(written: &Embeddings, at: &At, scope: &mut Scope<'_>) -> Option<EmbeddingSource> {
    let before = scope.problems.len();
    let mut filled = written.clone();
    let Embeddings { path, url, model, api_key, api: _ } = &mut filled;
    for (key, text, holds) in [
        ("path", path, Holds::Setting),
        ("url", url, Holds::Setting),
        ("model", model, Holds::Setting),
        ("api_key", api_key, Holds::OwnKey("api_key")),
    ] {
        // An empty text is what an unset variable with an empty default leaves.
        if let Some(given) = text {
            scope.fill(at, &format!("{SECTION}.{key}"), given, holds);
            text.take_if(|given| given.is_empty());
        }
    }
    let mut fault = |key: &str, message: String, remedy: &str| {
        scope.leave_out(at, &format!("{SECTION}.{key}"), message, remedy);
    };
    let source = match (filled.path, filled.url) {
        (Some(_), Some(_)) => {
            fault("url", "embeddings come from `path` or from `url`, not from both".into(), "remove one of them");
            None
        }
        (None, None) => {
            fault("path", "no model is named".into(), "give the `path` of a directory, or `url` and `model` of an API");
            None
        }
        (Some(path), None) => Some(EmbeddingSource::Directory(scope.root.join(path))),
        (None, Some(base_url)) => {
            if let Err(error) = url::Url::parse(&base_url) {
                fault("url", format!("it is not an address: {error}"), "write it like https://host/v1");
            }
            if filled.model.is_none() {
                fault("model", "the API is asked for no model".into(), "name one, like text-embedding-3-small");
            }
            let api = match filled.api {
                EmbeddingApi::Openai => EmbeddingsApi::OpenAi,
                EmbeddingApi::Ollama => EmbeddingsApi::Ollama,
            };
            let key = filled.api_key.map(Secret::new);
            filled.model.map(|model| EmbeddingSource::Api { api, base_url, key, model })
        }
    };
    source.filter(|_| scope.problems.len() == before)
}
