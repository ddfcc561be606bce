//! Compacts the oldest turns with `llm:summarize` and `llm:fact-extract`. Their calls run through the executor in
//! the background, and the run's journal records them.

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
use toolwright_runtime::executor::{LlmTerms, Promotion};
use toolwright_runtime::{Priority, RunContext};

use super::context::{Done, EvictedCounts};
use super::meter::{Meter, used_by};
use super::resume::Journal;
use super::{Driver, DriverError, RunOptions};
use crate::run::{Compacted, MemoryTools, RunState};

/// The tools that turns are put together with.
const SUMMARIZE: &str = "llm:summarize@1.0.0";
const EXTRACT: &str = "llm:fact-extract@1.0.0";

/// The shipped tools, used if the catalogue does not list them. They are then not offered to models.
#[derive(Default)]
pub(super) struct ShippedTools(OnceLock<Arc<Snapshot>>);

impl ShippedTools {
    fn snapshot(&self) -> &Arc<Snapshot> {
        self.0.get_or_init(|| {
            let tools = shipped().into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
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
}

impl Driver {
    /// Where the two tools are: those of the catalogue, which may be tuned, else the shipped ones. What has taken the
    /// place of one of them under its name, and takes or gives something else, is none.
    fn memory_tools(&self) -> Arc<Snapshot> {
        let (whole, shipped) = (self.catalogue.snapshot(), self.shipped.snapshot());
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

    /// The tools, by the names that calls of [`Driver::compact`] know them under.
    pub(super) fn with(&self, state: &RunState) -> Option<MemoryTools> {
        let snapshot = self.memory_tools();
        let name = |id| snapshot.get(id).map(|entry| entry.wire_name.clone());
        let other = state.spec().context.model.as_deref().filter(|model| *model != state.spec().model);
        let window = other.and_then(|model| self.executor.services().model.card(model).window);
        Some(MemoryTools { summarize: name(SUMMARIZE)?, extract: name(EXTRACT)?, window })
    }

    /// Makes the calls, and tells the state how they ended; cancelled ones it takes up again.
    pub(super) async fn compact(
        &self,
        state: &mut RunState,
        calls: Vec<ToolCall>,
        options: &RunOptions,
        cancel: &Cancel,
    ) -> Result<(), DriverError> {
        let meter = Arc::new(Meter::default());
        let run = RunContext {
            cancel: cancel.clone(),
            // Nobody asked for these calls, so nobody is asked about them.
            approver: Arc::new(NoApprover { remedy: "what makes room in a conversation asks nobody".into() }),
            priority: Priority::Background,
            // A person who sends what runs to the background means the model's own calls.
            promotion: Promotion::Never,
            llm: LlmTerms { model: Some(memory_model(state).into()), ..LlmTerms::default() },
            usage: Some(Arc::clone(&meter) as _),
            journal: self.store.as_ref().map(|store| (Arc::clone(store), Arc::clone(&options.run_id))),
            ..self.terms(state, &self.memory_tools(), options)
        };
        // One by one: the limit of calls is that of the model's turns.
        let each = calls.into_iter().map(|call| self.executor.run_calls(vec![call], &run));
        let outcomes: Vec<Outcome> = join_all(each).await.into_iter().flatten().collect();
        let outcomes = if cancel.cause().is_some() { Vec::new() } else { outcomes };
        self.compacted(state, outcomes, meter.take(), options)
    }

    /// What the journal of a run that was interrupted knows of the calls that were under way.
    pub(super) fn take_up_compaction(
        &self,
        state: &mut RunState,
        journal: &Journal,
        options: &RunOptions,
    ) -> Result<(), DriverError> {
        let calls = state.compaction_calls();
        let outcomes: Vec<Outcome> = calls.iter().filter_map(|call| ended(call, journal)).collect();
        // One that was cancelled is made again, and was paid for all the same.
        let is_ours = |id: &CallId| calls.iter().any(|call| call.id == *id);
        let usage = used_by(journal.iter().filter(|(id, _)| is_ours(id)).filter_map(|(_, outcome)| outcome.as_ref()));
        if outcomes.is_empty() && usage == Usage::default() {
            return Ok(());
        }
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
            Compacted::Open => {}
            Compacted::Done { messages, tokens, handle, missing, usage, .. } => {
                for why in missing {
                    let message = format!("facts of some earlier turns are only in what was stored of them: {why}");
                    self.warn("compaction_incomplete", message);
                }
                let layer = CompactionLayer::Summarize;
                self.tell(
                    state,
                    Done { layer, tokens, results: EvictedCounts::default(), messages, handle, usage },
                    options,
                );
            }
            Compacted::Failed(why) => {
                let message =
                    format!("earlier turns could not be put together to make room in the conversation: {why}");
                self.warn("compaction_failed", message);
            }
        }
        Ok(())
    }
}

/// The model that a run's turns are put together by: its own, unless another is named. The conversation goes to nobody
/// that its user has not chosen.
fn memory_model(state: &RunState) -> &str {
    let spec = state.spec();
    spec.context.model.as_deref().unwrap_or(&spec.model)
}

/// How a call ended, by the journal. One that was cancelled says nothing of the turns: it is made again.
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
    fn a_journalled_cancel_is_no_failure() {
        let id = CallId::new("compaction-1-summary");
        let arguments = RawArguments::Text("{}".into());
        let call = ToolCall { id: id.clone(), name: "s".into(), arguments };
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
