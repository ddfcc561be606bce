//! Calls that a running call makes, by the same way as all others.

use std::sync::Arc;

use async_trait::async_trait;
use toolwright_core::call::{ToolCall, ValidCall};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::context::{InnerCalls, NoCalls};
use toolwright_core::error::Unsupported;
use toolwright_core::model::{ModelError, ModelRequest, ModelResponse};
use toolwright_core::operation::Op;
use toolwright_core::outcome::Outcome;

use super::{Executor, RunContext};

/// The calls of one call: under its token, as operations inside its own. They are not the turn's, so the
/// turn's limit does not count them, and no journal notes them: who made them answers for them.
struct Inner {
    executor: Arc<Executor>,
    run: RunContext,
}

#[async_trait]
impl InnerCalls for Inner {
    fn snapshot(&self) -> Option<&Snapshot> {
        Some(&self.run.snapshot)
    }

    async fn run(&self, calls: Vec<ToolCall>) -> Result<Vec<Outcome>, Unsupported> {
        Ok(self.executor.run_calls(calls, &self.run).await)
    }

    fn model(&self) -> Option<&str> {
        self.run.model.as_deref()
    }

    async fn ask(&self, model: &str, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        self.executor.ask_inside(model, request, &self.run).await
    }
}

impl Executor {
    pub(super) fn inner_calls(
        self: &Arc<Self>,
        call: &ValidCall,
        run: &RunContext,
        cancel: &Cancel,
        op: &Op,
    ) -> Arc<dyn InnerCalls> {
        if !call.entry.provider.awaits_others(call.entry.id()) {
            return Arc::new(NoCalls);
        }
        let run = RunContext {
            cancel: cancel.clone(),
            lineage: op.inside(),
            started_before: 0,
            journal: None,
            timeout: None,
            // What they come to goes to the call, not into the conversation.
            budget: None,
            ..run.clone()
        };
        Arc::new(Inner { executor: Arc::clone(self), run })
    }
}
