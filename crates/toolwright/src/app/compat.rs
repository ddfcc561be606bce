//! Which models work well with which tools, as the configuration says.

use std::sync::{Arc, PoisonError, RwLock};

use toolwright_core::select::Compat;
use toolwright_core::tool_id::ToolId;
use toolwright_runtime::executor::Recommends;

use super::Toolwright;
use crate::config::Config;

/// What is in force.
pub(super) type CompatCell = Arc<RwLock<Arc<Compat>>>;

pub(super) fn cell(config: &Config) -> CompatCell {
    Arc::new(RwLock::new(Arc::clone(&config.compat.compat)))
}

/// What the runner asks.
pub(super) fn recommends(cell: &CompatCell) -> Recommends {
    let cell = Arc::clone(cell);
    Arc::new(move |tool: &ToolId| current(&cell).recommended(tool.as_str()).to_vec())
}

fn current(cell: &CompatCell) -> Arc<Compat> {
    Arc::clone(&cell.read().unwrap_or_else(PoisonError::into_inner))
}

impl Toolwright {
    /// Which models do well with which tools, by the compat file and the configuration in force.
    #[must_use]
    pub fn compat(&self) -> Arc<Compat> {
        current(&self.compat)
    }

    /// The models that do at least `min_score` (0 to 1) with the tool of canonical id `tool`, those that are recommended
    /// for it first.
    #[must_use]
    pub fn models_for(&self, tool: &str, min_score: f64) -> Vec<String> {
        let compat = self.compat();
        let fit: Vec<&str> = compat.models_for(tool, min_score).collect();
        let recommended = compat.recommended(tool).iter().map(String::as_str).filter(|model| fit.contains(model));
        let others = fit.iter().copied().filter(|model| !compat.recommended(tool).iter().any(|known| known == model));
        recommended.chain(others).map(str::to_owned).collect()
    }

    pub(super) fn put_compat(&self, config: &Config) {
        *self.compat.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&config.compat.compat);
    }
}
