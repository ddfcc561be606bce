//! Compacts the oldest turns with `llm:summarize` and `llm:fact-extract`. Their calls run through the executor at
//! background priority, and the run's journal records them.

use std::sync::{Arc, OnceLock};

use futures_util::future::join_all;
use toolwright_core::approval::NoApprover;
use toolwright_core::call::ToolCall;
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::{Entry, Provider, ProviderKind, Snapshot};
use toolwright_core::event::CompactionLayer;
use toolwright_core::llm::shipped;
use toolwright_core::model::Usage;
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;
use toolwright_core::tool::{StaticProvider, Tool};
use toolwright_runtime::executor::{LlmOptions, Promotion};
use toolwright_runtime::{Priority, RunContext};

use super::eviction::{CompactionRecord, EvictionCounts};
use super::resume::Journal;
use super::run_calls::{UsageMeter, usage_of};
use super::{Driver, DriverError, RunOptions};
use crate::run::{CompactionState, MemoryTools, RunState};

/// Ids of the tools that compact turns.
const SUMMARIZE: &str = "llm:summarize@1.0.0";
const EXTRACT: &str = "llm:fact-extract@1.0.0";

/// The shipped tools, used if the catalogue does not list them. Models are not shown them.
fn shipped_tools() -> &'static Arc<Snapshot> {
    static SHIPPED: OnceLock<Arc<Snapshot>> = OnceLock::new();
    SHIPPED.get_or_init(|| {
        let tools = shipped().iter().map(|tool| Arc::new(tool.clone()) as Arc<dyn Tool>).collect();
        let empty = Snapshot::default();
        match StaticProvider::new("llm", ProviderKind::Llm, tools) {
            Ok(provider) => {
                let tools = provider.tools().to_vec();
                let provider: Arc<dyn Provider> = Arc::new(provider);
                Arc::new(empty.with(&provider, &tools))
            }
            Err(error) => {
                tracing::error!("the shipped LLM-backed tools cannot be registered: {error}");
                Arc::new(empty)
            }
        }
    })
}

impl Driver {
    /// Returns the catalogue if it has the two tools, which may be tuned there; else the shipped ones. A tool of the
    /// same name with other schemas does not count.
    fn memory_snapshot(&self) -> Arc<Snapshot> {
        let (whole, shipped) = (self.catalogue.snapshot(), shipped_tools());
        let is_one = |entry: &Arc<Entry>| {
            entry.provider.llm(entry.id()).is_some()
                && shipped.get(&entry.id().to_string()).is_some_and(|shipped| {
                    let (tool, shipped) = (entry.definition(), shipped.definition());
                    (&tool.parameters, &tool.output_schema) == (&shipped.parameters, &shipped.output_schema)
                })
        };
        if [SUMMARIZE, EXTRACT].iter().all(|id| whole.get(id).is_some_and(is_one)) {
            whole
        } else {
            Arc::clone(shipped)
        }
    }

    /// Returns the wire names of the two tools.
    pub(super) fn memory_tools(&self, state: &RunState) -> Option<MemoryTools> {
        let snapshot = self.memory_snapshot();
        let name = |id| snapshot.get(id).map(|entry| entry.wire_name.clone());
        let other = state.config().context.model.as_deref().filter(|model| *model != state.config().model);
        let window = other.and_then(|model| self.executor.services().model.card(model).window);
        Some(MemoryTools { summarize: name(SUMMARIZE)?, extract: name(EXTRACT)?, window })
    }

    /// Runs the calls, and applies their outcomes to the state. Cancelled calls will run again.
    pub(super) async fn compact(
        &self,
        state: &mut RunState,
        calls: Vec<ToolCall>,
        options: &RunOptions,
        cancel: &Cancel,
    ) -> Result<(), DriverError> {
        let meter = UsageMeter::of(options, self.prices(), &[]);
        let run = RunContext {
            cancel: cancel.clone(),
            // No user or model requested these calls, so nobody is asked to approve them.
            approver: Arc::new(NoApprover { remedy: "what makes room in a conversation asks nobody".into() }),
            priority: Priority::Background,
            // A person who sends running calls to the background means the model's calls.
            promotion: Promotion::Never,
            llm: LlmOptions { model: Some(memory_model(state).into()), ..LlmOptions::default() },
            usage: Some(Arc::clone(&meter) as _),
            journal: self.journal(options),
            ..self.run_context(state, &self.memory_snapshot(), options)
        };
        // One at a time, because the limit of calls per turn applies to the model's turns.
        let each = calls.into_iter().map(|call| self.executor.run_calls(vec![call], &run));
        let outcomes: Vec<Outcome> = join_all(each).await.into_iter().flatten().collect();
        let outcomes = if cancel.cause().is_some() { Vec::new() } else { outcomes };
        let (usage, cost) = meter.take();
        state.on_cost(cost);
        self.compacted(state, outcomes, usage, options)
    }

    /// Applies the compaction calls that an interrupted run's journal has recorded.
    pub(super) fn resume_compaction(
        &self,
        state: &mut RunState,
        journal: &Journal,
        options: &RunOptions,
    ) -> Result<(), DriverError> {
        let calls = state.compaction_calls();
        let outcomes: Vec<Outcome> = calls.iter().filter_map(|call| ended(call, journal)).collect();
        // A cancelled call runs again, but its usage still counts.
        let is_ours = |id: &CallId| calls.iter().any(|call| call.id == *id);
        let (usage, cost) =
            usage_of(journal.iter().filter(|(id, _)| is_ours(id)).filter_map(|(_, outcome)| outcome.as_ref()));
        if outcomes.is_empty() && usage == Usage::default() {
            return Ok(());
        }
        state.on_cost(cost);
        self.compacted(state, outcomes, usage, options)
    }

    fn compacted(
        &self,
        state: &mut RunState,
        outcomes: Vec<Outcome>,
        usage: Usage,
        options: &RunOptions,
    ) -> Result<(), DriverError> {
        match state.on_compacted(outcomes, usage)? {
            CompactionState::Open => {}
            CompactionState::Done { messages, tokens, handle, missing, usage, .. } => {
                for why in missing {
                    let message = format!("facts of some earlier turns are only in what was stored of them: {why}");
                    self.warn("compaction_incomplete", message);
                }
                let layer = CompactionLayer::Summarize;
                let results = EvictionCounts::default();
                self.report_room(state, CompactionRecord { layer, tokens, results, messages, handle, usage }, options);
            }
            CompactionState::Failed(why) => {
                let message =
                    format!("earlier turns could not be put together to make room in the conversation: {why}");
                self.warn("compaction_failed", message);
            }
        }
        Ok(())
    }
}

/// Returns the model that compacts a run's turns: its own, unless the configuration names another. The conversation is
/// sent to no model that the user has not chosen.
fn memory_model(state: &RunState) -> &str {
    let config = state.config();
    config.context.model.as_deref().unwrap_or(&config.model)
}

/// Returns how a call ended, by the journal. A cancelled call runs again.
fn ended(call: &ToolCall, journal: &Journal) -> Option<Outcome> {
    let (_, outcome) = journal.iter().find(|(id, _)| *id == call.id)?;
    let cancelled = |outcome: &Outcome| outcome.error.as_ref().is_some_and(|error| error.cancel_cause().is_some());
    outcome.clone().filter(|outcome| !cancelled(outcome))
}

#[cfg(test)]
mod tests {
    use toolwright_core::call::RawArguments;
    use toolwright_core::cancel::CancelCause;
    use toolwright_core::error::{ErrorKind, ToolError};

    use super::*;

    #[test]
    fn a_cancel_in_the_journal_is_no_failure() {
        let id = CallId::new("compaction-1-summary");
        let arguments = RawArguments::Text("{}".into());
        let call = ToolCall::new(id.clone(), "s", arguments);
        for (error, is_known) in [
            (ToolError::canceled(CancelCause::User), false),
            (ToolError::canceled(CancelCause::RunLimit), false),
            (ToolError::new(ErrorKind::ExecutionError, "no model"), true),
        ] {
            let journal = [(id.clone(), Some(Outcome::failed(id.clone(), error)))];
            assert_eq!(ended(&call, &journal).is_some(), is_known);
        }
        assert!(ended(&call, &[(id, None)]).is_none());
    }
}
