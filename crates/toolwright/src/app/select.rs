//! Builds tool selection from the configuration.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use toolwright_core::embedding::EmbeddingError;
use toolwright_core::select::{Hybrid, Method, PickOptions};
use toolwright_runtime::select::{ModelJudge, Selector, ToolVectors, VectorSource};

use super::Toolwright;
use crate::config::typed::{ScorerSetting, SelectionSection};

impl From<ScorerSetting> for Method {
    fn from(setting: ScorerSetting) -> Self {
        match setting {
            ScorerSetting::Auto => Self::Auto,
            ScorerSetting::Keyword => Self::Keyword,
            ScorerSetting::Bm25 => Self::Bm25,
            ScorerSetting::Embedding => Self::Embedding,
            ScorerSetting::Hybrid => Self::Hybrid(Hybrid::default()),
            ScorerSetting::Judge => Self::Judge,
        }
    }
}

impl SelectionSection {
    /// What a pick by this configuration begins with.
    #[must_use]
    pub fn pick_options(&self) -> PickOptions {
        PickOptions {
            max_candidates: self.max_candidates,
            min_score: self.min_score,
            scorer: self.scorer.into(),
            timeout: Some(self.timeout.0),
            ..PickOptions::default()
        }
    }
}

/// The embeddings of an instance, as long as it stands.
struct EmbeddingsOf(Weak<Toolwright>);

#[async_trait]
impl VectorSource for EmbeddingsOf {
    async fn tool_vectors(&self) -> Result<Option<Arc<ToolVectors>>, EmbeddingError> {
        match self.0.upgrade() {
            Some(app) => app.tool_vectors().await,
            None => Ok(None),
        }
    }
}

/// The selector that the configuration of `app` describes.
pub(super) fn selector(app: &Arc<Toolwright>) -> Selector {
    let selector = Selector::new().with_vectors(Arc::new(EmbeddingsOf(Arc::downgrade(app))));
    match &app.config().written.selection.judge_model {
        Some(model) => {
            let judge = ModelJudge::new(Arc::clone(&app.executor), app.session("selection"), model.as_str());
            selector.with_judge(Arc::new(judge))
        }
        None => selector,
    }
}
