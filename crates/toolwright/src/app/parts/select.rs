//! Builds tool selection from the configuration, and loads the configured sentence embeddings on first use.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use tokio::sync::Mutex;
use toolwright_core::embedding::{Embedder, EmbeddingError};
use toolwright_core::model::AuxiliarySender;
use toolwright_models::HttpEmbedder;
use toolwright_runtime::ModelJudge;
use toolwright_runtime::executor::AuxiliaryRequests;
use toolwright_search::{Selector, ToolVectors, VectorSource};

use crate::app::Toolwright;
use crate::config::{Config, EmbeddingsConfig};

/// The embeddings of an instance, while it exists.
struct InstanceEmbeddings(Weak<Toolwright>);

#[async_trait]
impl VectorSource for InstanceEmbeddings {
    async fn tool_vectors(&self) -> Result<Option<Arc<ToolVectors>>, EmbeddingError> {
        match self.0.upgrade() {
            Some(app) => app.embeddings.of(&app, &app.config()).await,
            None => Ok(None),
        }
    }
}

/// Returns the instance's vectors, by its embeddings at the time of use.
pub(in crate::app) fn vectors(app: &Arc<Toolwright>) -> Arc<dyn VectorSource> {
    Arc::new(InstanceEmbeddings(Arc::downgrade(app)))
}

/// Returns the selector that the configuration of `app` describes.
pub(in crate::app) fn selector(app: &Arc<Toolwright>) -> Selector {
    let selector = Selector::new().with_vectors(vectors(app));
    match &app.config().sections.selection.judge_model {
        Some(model) => {
            let judge = ModelJudge::new(Arc::clone(&app.executor), app.session("selection"), model.as_str());
            selector.with_judge(Arc::new(judge))
        }
        None => selector,
    }
}

/// Prefix of the session for requests of vectors; each instance has its own session.
const SESSION: &str = "embeddings";

/// The last loaded vectors, with their configuration.
#[derive(Default)]
pub(in crate::app) struct Embeddings(Mutex<Option<(EmbeddingsConfig, Arc<ToolVectors>)>>);

impl Embeddings {
    /// Returns the vectors of tools by the configured model; `None` without one.
    pub(in crate::app) async fn of(
        &self,
        app: &Toolwright,
        config: &Config,
    ) -> Result<Option<Arc<ToolVectors>>, EmbeddingError> {
        let Some(source) = &config.sections.selection.embeddings else { return Ok(None) };
        let mut loaded = self.0.lock().await;
        if let Some((from, vectors)) = &*loaded
            && from == source
        {
            return Ok(Some(Arc::clone(vectors)));
        }
        let embedder = match &source.path {
            Some(path) => embedder(path).await?,
            None => {
                // Both are set, because the configuration was checked.
                let (url, model) =
                    (source.url.as_deref().unwrap_or_default(), source.model.as_deref().unwrap_or_default());
                let session = app.session(format!("{SESSION}-{}", uuid::Uuid::new_v4().simple()));
                let sender: Arc<dyn AuxiliarySender> =
                    Arc::new(AuxiliaryRequests::new(Arc::clone(app.executor.models()), session));
                let made = HttpEmbedder::new(source.api, url, source.api_key.clone(), model, sender);
                Arc::new(made.of_provider(app.models.endpoints())) as _
            }
        };
        let vectors = Arc::new(ToolVectors::new(embedder, Some(&config.state_dir.join("vectors"))));
        *loaded = Some((source.clone(), Arc::clone(&vectors)));
        Ok(Some(vectors))
    }
}

/// Loads a model from a directory on a blocking thread, which takes some tenths of a second.
///
/// # Errors
/// The directory is not a sentence-transformer, or the program was built without the feature `embeddings`.
#[cfg(feature = "embeddings")]
pub async fn embedder(path: &std::path::Path) -> Result<Arc<dyn Embedder>, EmbeddingError> {
    let (dir, quoted_path) = (path.to_owned(), path.display());
    let loading = tokio::task::spawn_blocking(move || toolwright_search::embed::SentenceTransformer::load(&dir));
    match loading.await {
        Ok(Ok(model)) => Ok(Arc::new(model)),
        Ok(Err(error)) => Err(EmbeddingError { message: error.to_string(), source: Some(Box::new(error)) }),
        // The libraries panic on some files.
        Err(error) => Err(EmbeddingError {
            message: format!(
                "the embedding model in {quoted_path} cannot be loaded; download the whole directory again"
            ),
            source: Some(Box::new(error)),
        }),
    }
}

/// Always fails.
///
/// # Errors
/// This program was built without the feature `embeddings`.
#[cfg(not(feature = "embeddings"))]
pub async fn embedder(path: &std::path::Path) -> Result<Arc<dyn Embedder>, EmbeddingError> {
    let (message, remedy) = crate::config::cannot_load(path);
    Err(EmbeddingError::new(format!("{message}; {remedy}")))
}
