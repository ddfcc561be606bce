//! Counts tokens: exactly for models with a configured tokenizer, else by an estimate.

use std::collections::BTreeMap;
use std::sync::Arc;

use toolwright_core::context::{EstimatedTokens, Exactness, TokenCounter};

use crate::config::Config;

/// The tokenizers that are configured, by model id or provider. None of their files is read before it counts.
pub(super) struct Tokenizers(BTreeMap<String, Arc<dyn TokenCounter>>);

impl Tokenizers {
    #[cfg(feature = "embeddings")]
    pub(super) fn of(config: &Config) -> Self {
        // Models that share a file share its table.
        let mut tables: BTreeMap<_, Arc<dyn TokenCounter>> = BTreeMap::new();
        let mut table = |(name, path): &(String, std::path::PathBuf)| {
            let table = tables.entry(path.clone()).or_insert_with(|| toolwright_embed::TokenTable::new(path) as _);
            (name.clone(), Arc::clone(table))
        };
        Self(config.tokenizers.iter().map(&mut table).collect())
    }

    #[cfg(not(feature = "embeddings"))]
    pub(super) fn of(config: &Config) -> Self {
        if !config.tokenizers.is_empty() {
            tracing::warn!("this program was built without the feature `embeddings`: tokens are estimated");
        }
        Self(BTreeMap::new())
    }
}

impl TokenCounter for Tokenizers {
    fn count(&self, text: &str) -> (usize, Exactness) {
        EstimatedTokens.count(text)
    }

    fn of_model(&self, model: &str) -> Option<Arc<dyn TokenCounter>> {
        let provider = || self.0.get(model.split_once('/')?.0);
        self.0.get(model).or_else(provider).cloned()
    }
}
