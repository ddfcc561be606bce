//! Sentence embeddings over HTTP: `POST /embeddings` of OpenAI (platform.openai.com/docs/api-reference/embeddings)
//! and compatible servers, and `POST /api/embed` of Ollama (github.com/ollama/ollama, docs/api.md).

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use toolwright_core::Secret;
use toolwright_core::embedding::{Embedder, EmbeddingError, TextRole};
use toolwright_core::model::{
    AuxiliaryRequest, AuxiliarySender, ModelError, ModelErrorKind, ModelEvents, ModelPriority, Usage,
};

use super::endpoint::{Endpoint, Endpoints};
use super::{HttpModelClient, Timeouts, describe};
use crate::api::{Api, EncodedRequest};

/// Bounds on the texts of one request, and on their bytes. OpenAI allows 2048 texts and 300,000 tokens, and there are
/// never more tokens than bytes; local servers answer small requests sooner.
const MAX_TEXTS: usize = 64;
const MAX_BYTES: usize = 256 << 10;
/// Maximal bytes of a text: never more than OpenAI's limit of 8192 tokens.
const MAX_TEXT: usize = 8000;
/// Maximal dimension of a vector.
const MAX_DIMENSIONS: usize = toolwright_core::embedding::MAX_DIMENSIONS;

/// An API that makes vectors of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EmbeddingsApi {
    /// `POST /embeddings` as `OpenAI` has it, and whatever is compatible with it.
    #[default]
    OpenAi,
    /// `POST /api/embed` as Ollama has it.
    Ollama,
}

/// The provider of models of embeddings that no other provider has, in their ids.
const PROVIDER: &str = "embeddings";

/// Requests embeddings from an API, through an [`AuxiliarySender`]: like other model requests they are queued,
/// retried if that is safe and may help, and recorded in the ledger.
pub struct HttpEmbedder {
    id: String,
    /// The model's id, `provider/model`.
    called: String,
    sender: Arc<dyn AuxiliarySender>,
    api: EmbeddingsApi,
    endpoint: Endpoint,
    model: String,
    client: HttpModelClient,
}

impl std::fmt::Debug for HttpEmbedder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpEmbedder").field("id", &self.id).finish_non_exhaustive()
    }
}

impl HttpEmbedder {
    /// The `model` of an API at a base URL, like `https://api.openai.com/v1` or `http://localhost:11434`, with the id
    /// `embeddings/model`. Sends nothing yet.
    #[must_use]
    pub fn new(
        api: EmbeddingsApi,
        base_url: &str,
        key: Option<Secret>,
        model: &str,
        sender: Arc<dyn AuxiliarySender>,
    ) -> Self {
        let wire = match api {
            EmbeddingsApi::OpenAi => Api::OpenAiChat,
            EmbeddingsApi::Ollama => Api::Ollama,
        };
        let endpoint = Endpoint { key, ..Endpoint::new("embeddings", wire, base_url) };
        let path = url::Url::parse(base_url).map(|url| url.path().trim_end_matches('/').to_owned()).unwrap_or_default();
        Self {
            id: format!("{model} of {}{path}", describe(&endpoint)),
            called: format!("{PROVIDER}/{model}"),
            sender,
            api,
            endpoint,
            model: model.to_owned(),
            client: HttpModelClient::new(Endpoints::default()),
        }
    }

    /// Uses the name of the provider with this address, if there is one, and so its queue, prices
    /// and time limits.
    #[must_use]
    pub fn of_provider(self, endpoints: &Endpoints) -> Self {
        let place = |url: &str| url::Url::parse(url.trim_end_matches('/')).ok();
        let here = place(&self.endpoint.base_url);
        let provider = endpoints.iter().find(|endpoint| here.is_some() && place(&endpoint.base_url) == here);
        let provider = provider.map_or(PROVIDER, |endpoint| &endpoint.provider);
        let called = format!("{provider}/{}", self.model);
        let timeouts = endpoints.overrides(&called).timeouts.over(self.client.timeouts);
        Self { called, ..self }.with_timeouts(timeouts)
    }

    /// Sets other time limits.
    #[must_use]
    pub fn with_timeouts(self, timeouts: Timeouts) -> Self {
        Self { client: HttpModelClient::with_timeouts(Endpoints::default(), timeouts), ..self }
    }

    async fn ask(&self, texts: &[&str], priority: ModelPriority) -> Result<Vec<Vec<f32>>, EmbeddingError> {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        body.insert("input".into(), json!(texts));
        let path = match self.api {
            EmbeddingsApi::OpenAi => {
                body.insert("encoding_format".into(), json!("float"));
                "/embeddings"
            }
            EmbeddingsApi::Ollama => "/api/embed",
        };
        let request = EncodedRequest::new(path, body);
        let characters = texts.iter().map(|text| text.chars().count() as u64).sum();
        let batch = Batch { of: self, request, characters, answer: Mutex::default() };
        self.sender.send(&self.called, &batch, priority).await.map_err(|error| self.unanswered(error))?;
        let answer = batch.answer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut vectors = answer.ok_or_else(|| self.unfit("its request was not sent"))?;
        if vectors.len() != texts.len() {
            return Err(self.unfit(&format!("it has {} vectors for {} texts", vectors.len(), texts.len())));
        }
        for vector in &mut vectors {
            if vector.is_empty() || vector.len() > MAX_DIMENSIONS {
                return Err(self.unfit(&format!("a vector has {} numbers, not 1 to {MAX_DIMENSIONS}", vector.len())));
            }
            if !normalise(vector) {
                return Err(self.unfit("a vector has no direction: all zero, or not numbers"));
            }
        }
        Ok(vectors)
    }

    fn unanswered(&self, error: ModelError) -> EmbeddingError {
        if error.source.as_ref().is_some_and(|source| source.is::<UnreadableResponse>()) {
            return self.unfit(&error.message);
        }
        let message = format!(
            "no embeddings by {}: {}; check `url`, `api`, `model` and `api_key` of selection.embeddings",
            self.model, error.message
        );
        EmbeddingError { message, source: Some(Box::new(error)) }
    }

    fn unfit(&self, problem: &str) -> EmbeddingError {
        let (model, place) = (&self.model, describe(&self.endpoint));
        EmbeddingError::new(format!(
            "the embeddings by {model} of {place} cannot be used: {problem}; check `api` and `model` of \
             selection.embeddings"
        ))
    }
}

/// A response that does not conform to the API, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("the answer is none of the API")]
struct UnreadableResponse(#[source] serde_json::Error);

/// The texts of one request, and its response.
struct Batch<'a> {
    of: &'a HttpEmbedder,
    request: EncodedRequest,
    characters: u64,
    answer: Mutex<Option<Vec<Vec<f32>>>>,
}

#[async_trait]
impl AuxiliaryRequest for Batch<'_> {
    async fn send(&self, events: &dyn ModelEvents) -> Result<Usage, ModelError> {
        let HttpEmbedder { api, endpoint, client, .. } = self.of;
        let bytes = client.post(endpoint, &self.request, events).await?;
        let read = match api {
            EmbeddingsApi::OpenAi => serde_json::from_slice(&bytes).map(|listed: OpenAiEmbeddings| {
                (listed.usage.as_ref().and_then(|used| used.prompt_tokens), listed.in_order())
            }),
            EmbeddingsApi::Ollama => {
                serde_json::from_slice(&bytes).map(|bare: OllamaEmbeddings| (bare.prompt_eval_count, bare.embeddings))
            }
        };
        let (input_tokens, vectors) = read.map_err(|error| {
            let message = format!("it is not what the API gives ({error})");
            let source = Some(Box::new(UnreadableResponse(error)) as _);
            ModelError { source, ..ModelError::new(ModelErrorKind::BadResponse, message) }
        })?;
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(vectors);
        Ok(Usage { input_tokens: input_tokens.unwrap_or_default(), ..Usage::default() }.bounded())
    }

    fn characters(&self) -> u64 {
        self.characters
    }
}

#[async_trait]
impl Embedder for HttpEmbedder {
    /// Model, host and path. Changed weights behind the same name go unnoticed.
    fn id(&self) -> &str {
        &self.id
    }

    async fn embed(&self, texts: &[&str], role: TextRole) -> Result<Vec<Vec<f32>>, EmbeddingError> {
        // A query blocks somebody; tools may be thousands.
        let priority = match role {
            TextRole::Query => ModelPriority::Interactive,
            TextRole::Tool => ModelPriority::Background,
        };
        let texts: Vec<&str> = texts.iter().map(|text| &text[..text.floor_char_boundary(MAX_TEXT)]).collect();
        let mut vectors: Vec<Vec<f32>> = Vec::with_capacity(texts.len());
        while vectors.len() < texts.len() {
            let rest = &texts[vectors.len()..];
            vectors.extend(self.ask(&rest[..batch(rest)], priority).await?);
        }
        let lengths = |pair: &[Vec<f32>]| pair[0].len() != pair[1].len();
        if vectors.windows(2).any(lengths) {
            return Err(self.unfit("its vectors differ in length"));
        }
        Ok(vectors)
    }
}

/// Returns the number of texts for one request: at least one.
fn batch(texts: &[&str]) -> usize {
    let mut bytes = 0;
    let fits = |text: &&&str| {
        bytes += text.len();
        bytes <= MAX_BYTES
    };
    texts.iter().take(MAX_TEXTS).take_while(fits).count().max(1)
}

/// Normalises a vector to length 1; `false` for the zero vector.
fn normalise(vector: &mut [f32]) -> bool {
    let length = vector.iter().map(|&number| f64::from(number) * f64::from(number)).sum::<f64>().sqrt();
    if !length.is_finite() || length == 0.0 {
        return false;
    }
    #[expect(clippy::cast_possible_truncation, reason = "a part of a vector of length 1 is at most 1")]
    vector.iter_mut().for_each(|number| *number = (f64::from(*number) / length) as f32);
    true
}

/// OpenAI's response. Vectors are in any order, each with the index of its text.
#[derive(Deserialize)]
struct OpenAiEmbeddings {
    data: Vec<Item>,
    usage: Option<OpenAiUsage>,
}

#[derive(Deserialize)]
struct OpenAiUsage {
    prompt_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Item {
    index: usize,
    embedding: Vec<f32>,
}

impl OpenAiEmbeddings {
    /// The vectors by position; a position that is missing or named twice shortens the list.
    fn in_order(mut self) -> Vec<Vec<f32>> {
        self.data.sort_by_key(|item| item.index);
        self.data.dedup_by_key(|item| item.index);
        let in_place = self.data.into_iter().enumerate().take_while(|(place, item)| *place == item.index);
        in_place.map(|(_, item)| item.embedding).collect()
    }
}

/// Ollama's answer.
#[derive(Deserialize)]
struct OllamaEmbeddings {
    embeddings: Vec<Vec<f32>>,
    prompt_eval_count: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_by_texts_and_bytes() {
        let long = "x".repeat(MAX_TEXT);
        for (texts, expect) in [(vec!["a"; 3], 3), (vec!["a"; 100], 64), (vec![long.as_str(); 100], 32)] {
            assert_eq!(batch(&texts), expect);
        }
    }

    #[test]
    fn vectors_get_the_length_one() {
        let mut vector = [3.0, 4.0];
        assert!(normalise(&mut vector));
        assert_eq!(vector, [0.6, 0.8]);
        for mut hopeless in [[0.0, 0.0], [f32::INFINITY, 1.0], [f32::NAN, 1.0]] {
            assert!(!normalise(&mut hopeless));
        }
    }
}
