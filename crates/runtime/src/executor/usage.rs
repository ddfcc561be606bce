//! Sums the model usage of a call, for its outcome and for the run.

use std::sync::{Arc, Mutex, PoisonError};

use toolwright_core::call::ValidCall;
use toolwright_core::context::UsageRecorder;
use toolwright_core::model::Usage;

use super::RunContext;
use super::llm_call::asks_by_model;

/// Sums what one call used, and passes it on to the recorder of the run.
pub(super) struct CallUsage {
    run: Option<Arc<dyn UsageRecorder>>,
    total: Mutex<Usage>,
}

impl std::fmt::Debug for CallUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallUsage").field("total", &self.total).finish_non_exhaustive()
    }
}

impl CallUsage {
    /// The terms under which the call's requests are made, and what hears them; `None` where nobody wants to know. Where
    /// somebody does, any tool may come to ask, for its source may ask the client for a model's answer. Of an LLM-backed
    /// tool the outcome says it in any case.
    pub(super) fn of(call: &ValidCall, run: &RunContext) -> Option<(Arc<Self>, Box<RunContext>)> {
        if run.usage.is_none() && !asks_by_model(&call.entry) {
            return None;
        }
        let used = Arc::new(Self { run: run.usage.clone(), total: Mutex::default() });
        let run = Box::new(RunContext { usage: Some(Arc::clone(&used) as _), ..run.clone() });
        Some((used, run))
    }

    /// All of it, so far.
    pub(super) fn total(&self) -> Usage {
        *self.total.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UsageRecorder for CallUsage {
    fn record(&self, model: &str, usage: Usage) {
        self.total.lock().unwrap_or_else(PoisonError::into_inner).add(usage);
        if let Some(run) = &self.run {
            run.record(model, usage);
        }
    }
}
