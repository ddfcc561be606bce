//! Calls that a running call makes, by the same way as all others.

use std::sync::Arc;

use async_trait::async_trait;
use toolwright_core::call::{ToolCall, ValidCall};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::context::{InnerCalls, NoCalls};
use toolwright_core::error::Unsupported;
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
            turns: None,
            timeout: None,
            background_after: None,
            ..run.clone()
        };
        Arc::new(Inner { executor: Arc::clone(self), run })
    }
}
