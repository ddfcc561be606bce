//! Selection as the configuration has it.

use std::sync::Arc;

use toolwright_core::select::{Hybrid, Method, PickOptions};
use toolwright_models::HttpModelClient;
use toolwright_runtime::select::{ModelJudge, Selector};

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

/// The selector that the section describes.
pub(super) fn selector(section: &SelectionSection, models: &Arc<HttpModelClient>) -> Selector {
    match &section.judge_model {
        Some(model) => Selector::new().with_judge(Arc::new(ModelJudge::new(Arc::clone(models) as _, model.as_str()))),
        None => Selector::new(),
    }
}
