//! Calls that a running call makes. They pass the same stages as all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use toolwright_core::call::{Rejection, ToolCall, ValidCall};
use toolwright_core::catalogue::Snapshot;
use toolwright_core::context::{InnerCalls, NoCalls, PartialSink};
use toolwright_core::error::{ErrorKind, ToolError, Unsupported};
use toolwright_core::model::{ModelError, ModelRequest, ModelResponse};
use toolwright_core::operation::Op;
use toolwright_core::outcome::Outcome;

use super::background::Progress;
use super::{Executor, RunContext};
use crate::queue::Priority;

/// How deep calls may be made inside calls.
const MAX_DEPTH: usize = 5;

/// What bounds the calls that one call makes. They are not the turn's, so the turn's limit does not count them.
#[derive(Debug)]
pub struct NestedCallLimits {
    made: AtomicUsize,
    max: usize,
    /// 1 for the calls of a call of a turn.
    depth: usize,
}

impl NestedCallLimits {
    /// Counts one call.
    ///
    /// # Errors
    /// `limit_exceeded` for one too many, or too deep.
    fn count(&self) -> Result<(), ToolError> {
        let refused = |message: String| Err(ToolError::new(ErrorKind::LimitExceeded, message));
        if self.depth > MAX_DEPTH {
            return refused(format!("calls may be made inside calls {MAX_DEPTH} deep, and no deeper"));
        }
        if self.made.fetch_add(1, Ordering::Relaxed) >= self.max {
            return refused(format!("one call may make {} calls of its own, and no more", self.max));
        }
        Ok(())
    }

    /// Rejects what is beyond the bound, in call order. What the check has rejected does not count.
    pub(super) fn apply(
        &self,
        checked: Vec<Result<ValidCall, Box<Rejection>>>,
    ) -> Vec<Result<ValidCall, Box<Rejection>>> {
        let bounded = |call: ValidCall| match self.count() {
            Ok(()) => Ok(call),
            Err(error) => Err(Box::new(Rejection {
                call_id: call.id,
                name: call.entry.wire_name.clone(),
                arguments: call.arguments,
                entry: Some(call.entry),
                error,
                violations: Vec::new(),
                provenance: call.provenance,
                pending: call.pending,
            })),
        };
        checked.into_iter().map(|checked| checked.and_then(bounded)).collect()
    }
}

/// The calls of one call: under its token, as operations inside its own. No journal notes them: who made them
/// answers for them.
struct NestedCaller {
    executor: Arc<Executor>,
    run: RunContext,
}

#[async_trait]
impl InnerCalls for NestedCaller {
    fn snapshot(&self) -> Option<&Snapshot> {
        Some(&self.run.snapshot)
    }

    async fn run(&self, calls: Vec<ToolCall>) -> Result<Vec<Outcome>, Unsupported> {
        // What is made in bulk lets single calls go first.
        let priority = if calls.len() < 2 { self.run.priority } else { Priority::Background };
        let run = RunContext { priority, ..self.run.clone() };
        Ok(self.executor.run_calls(calls, &run).await)
    }

    fn model(&self) -> Option<&str> {
        self.run.model.as_deref()
    }

    async fn ask(&self, model: &str, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        self.executor.ask_model(model, request, None, &self.run).await
    }
}

impl Executor {
    pub(super) fn inner_calls(self: &Arc<Self>, call: &ValidCall, run: &RunContext, op: &Op) -> Arc<dyn InnerCalls> {
        if !call.entry.provider.awaits_others(call.entry.id()) {
            return NoCalls::shared();
        }
        let depth = run.inner.as_ref().map_or(0, |outer| outer.depth) + 1;
        let bound = NestedCallLimits { made: AtomicUsize::new(0), max: self.options.inner_calls, depth };
        // Theirs is the call's own, wherever that goes.
        let progress: Arc<dyn PartialSink> = Arc::new(Progress::of(&call.id, run));
        let run = RunContext {
            lineage: op.inside(),
            partials: Some(Arc::new(move |_| Arc::clone(&progress))),
            started_before: 0,
            journal: None,
            job: None,
            timeout: None,
            background_after: None,
            inner: Some(Arc::new(bound)),
            // What they come to goes to the call, not into the conversation.
            budget: None,
            ..run.clone()
        };
        Arc::new(NestedCaller { executor: Arc::clone(self), run })
    }
}
