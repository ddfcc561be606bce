//! Sentence embeddings: the trait of their sources.

use async_trait::async_trait;

/// The most numbers a vector may have: with it no sum over quantised vectors overflows. Models have 384 to 4096.
pub const MAX_DIMENSIONS: usize = 8192;

/// The role of a text in a search; some models embed the two differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextRole {
    /// A query.
    Query,
    /// A searched document.
    Tool,
}

/// Why there are no vectors.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct EmbeddingError {
    /// Cause and remedy, for the operator.
    pub message: String,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl EmbeddingError {
    /// An error in words.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }
}

/// A source of sentence embeddings.
#[async_trait]
pub trait Embedder: Send + Sync {
    /// Identifies model and weights: vectors of equal ids can be compared, and cached on disk.
    fn id(&self) -> &str;
    /// Returns one vector a text, in order, all of equal dimension and normalised to length 1. Texts longer
    /// than the model's limit are cut. Must not block the caller's thread for long.
    ///
    /// # Errors
    /// [`EmbeddingError`] when the model cannot be used or reached; no vector is returned then.
    async fn embed(&self, texts: &[&str], role: TextRole) -> Result<Vec<Vec<f32>>, EmbeddingError>;
}
