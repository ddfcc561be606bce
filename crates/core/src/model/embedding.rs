//! Text as vectors: what a source of sentence embeddings can do.

use async_trait::async_trait;

/// The most numbers a vector may have: with it no sum over quantised vectors overflows. Models have 384 to 4096.
pub const MAX_DIMENSIONS: usize = 8192;

/// What a text is to the search; some models tell the two apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextRole {
    /// What is searched for.
    Query,
    /// What is found.
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
    /// Names model and weights: vectors of equal ids can be compared, and kept beyond the process.
    fn id(&self) -> &str;
    /// One vector a text, in order, all of one length, each of length 1 in the Euclidean sense. Texts longer
    /// than the model takes are cut. Must not block the caller's thread for long.
    ///
    /// # Errors
    /// [`EmbeddingError`] when the model cannot be used or reached; no vector is given out then.
    async fn embed(&self, texts: &[&str], role: TextRole) -> Result<Vec<Vec<f32>>, EmbeddingError>;
}
