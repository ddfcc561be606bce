//! The calls that a call makes while it runs, with their bounds, and its requests to models. Among these are those that
//! score tools for a task.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use toolwright_core::agents::Rights;
use toolwright_core::call::{Rejection, ToolCall, ValidCall};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::{Entry, Snapshot};
use toolwright_core::context::{NestedCalls, NoCalls, PartialSink, ToolContext};
use toolwright_core::error::{ErrorKind, ToolError, Unsupported};
use toolwright_core::model::{ModelError, ModelRequest, ModelResponse};
use toolwright_core::operation::{Lineage, Op};
use toolwright_core::outcome::Outcome;
use toolwright_core::session::Session;
use toolwright_core::taint::{Taint, TaintedArgument, of_all};
use toolwright_search::{Score, Scorer, ScorerError, judge};

use super::progress::Progress;
use super::run_context::RunContext;
use crate::executor::Executor;
use crate::queue::Priority;

/// The deepest nesting of calls.
const MAX_DEPTH: usize = 5;

/// Limits the calls that one call makes. They do not count towards the turn's limit.
#[derive(Debug)]
pub struct NestedCallLimits {
    count: AtomicUsize,
    max: usize,
    /// 1 for calls made by a call of a turn.
    depth: usize,
    /// The untrusted tools from which the call's own arguments derive.
    argument_taint: Taint,
    /// The untrusted tools from which the outputs of its inner calls derive.
    made: InnerTaint,
}

/// The untrusted tools from which the outputs of one call's inner calls derive. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct InnerTaint(Arc<Mutex<Taint>>);

impl InnerTaint {
    /// Those until now.
    pub(in crate::executor) fn so_far(&self) -> Taint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, taint: &Taint) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(taint);
    }
}

impl NestedCallLimits {
    /// Records the taint of an inner call's output.
    pub(in crate::executor) fn note_taint(&self, taint: &Taint) {
        self.made.add(taint);
    }

    /// Marks the arguments of an inner call, which the outer call may have derived from its own.
    pub(in crate::executor) fn mark(&self, call: &mut ValidCall) {
        mark(call, &self.argument_taint);
    }

    /// Counts one call.
    ///
    /// # Errors
    /// `limit_exceeded` for too many calls, or too deep nesting.
    fn count(&self) -> Result<(), ToolError> {
        let refused = |message: String| Err(ToolError::new(ErrorKind::LimitExceeded, message));
        if self.depth > MAX_DEPTH {
            return refused(format!("a call may be made inside at most {MAX_DEPTH} others"));
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.max {
            return refused(format!("one call may make {} calls of its own, and no more", self.max));
        }
        Ok(())
    }

    /// Rejects calls beyond the limit, in call order. Calls that the check rejected do not count.
    pub(in crate::executor) fn apply(
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
                meta: call.meta,
                violations: Vec::new(),
                provenance: call.provenance,
                pending: call.pending,
            })),
        };
        checked.into_iter().map(|checked| checked.and_then(bounded)).collect()
    }
}

/// Runs the inner calls of a call, under its cancel token and as operations inside its own. They are not in a journal,
/// because the outer call is.
struct NestedCaller {
    executor: Arc<Executor>,
    run: RunContext,
}

/// The context of a call that makes others.
#[derive(Clone, Copy)]
pub struct NestedContext<'c> {
    /// The executor of the call.
    pub executor: &'c Arc<Executor>,
    /// The context of its inner calls.
    pub run: &'c RunContext,
}

impl std::fmt::Debug for NestedContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nested").finish_non_exhaustive()
    }
}

impl<'c> NestedContext<'c> {
    /// Returns the nested context of a running call; `None` if it makes no calls, or no executor runs it.
    #[must_use]
    pub fn of(context: &'c ToolContext) -> Option<Self> {
        let calls: &dyn Any = &*context.calls;
        calls.downcast_ref().map(|caller: &NestedCaller| Self { executor: &caller.executor, run: &caller.run })
    }
}

impl NestedContext<'_> {
    /// Records that the call's output derives from these untrusted tools too.
    pub fn note_taint(&self, taint: &Taint) {
        if let Some(inner) = &self.run.inner {
            inner.note_taint(taint);
        }
    }
}

#[async_trait]
impl NestedCalls for NestedCaller {
    fn snapshot(&self) -> Option<&Snapshot> {
        Some(&self.run.snapshot)
    }

    async fn run(&self, calls: Vec<ToolCall>) -> Result<Vec<Outcome>, Unsupported> {
        // Batches of calls have lower priority than single calls.
        let priority = if calls.len() < 2 { self.run.priority } else { Priority::Background };
        let run = RunContext { priority, ..self.run.clone() };
        Ok(self.executor.run_calls(calls, &run).await)
    }

    fn model(&self) -> Option<&str> {
        self.run.model.as_deref()
    }

    fn rights(&self) -> Option<Rights> {
        let RunContext { session, policy, snapshot, agent_budget, limits, .. } = &self.run;
        let of_tree = agent_budget.as_ref().map(|agent_budget| agent_budget.limits().clone()).unwrap_or_default();
        Some(Rights {
            principal: session.principal.clone(),
            policies: policy.chain(),
            // Any version of a tool counts as the same tool.
            tools: Some(snapshot.list().iter().map(|entry| entry.id().without_version().to_owned()).collect()),
            limits: limits.within(&of_tree),
            root: session.root.clone(),
        })
    }

    fn reads_mailbox(&self) -> bool {
        self.run.reads_mailbox
    }

    async fn ask(&self, model: &str, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        self.executor.ask_model(model, request, None, &self.run).await
    }
}

impl Executor {
    /// Makes calls and requests to models as parts of `run`.
    #[must_use]
    pub fn inner_caller(self: &Arc<Self>, run: RunContext) -> impl NestedCalls + use<> {
        NestedCaller { executor: Arc::clone(self), run }
    }

    pub(super) fn inner_calls(self: &Arc<Self>, call: &ValidCall, run: &RunContext, op: &Op) -> Arc<dyn NestedCalls> {
        if !call.awaits_others() {
            return NoCalls::shared();
        }
        let depth = run.inner.as_ref().map_or(0, |outer| outer.depth) + 1;
        let bound = NestedCallLimits {
            count: AtomicUsize::new(0),
            max: self.options.inner_calls,
            depth,
            argument_taint: of_all(&call.provenance.tainted),
            made: run.inner_taint.clone(),
        };
        // Their progress goes to the call's own sink.
        let progress: Arc<dyn PartialSink> = Arc::new(Progress::of(&call.id, run));
        let run = RunContext {
            lineage: op.inside(),
            partials: Some(Arc::new(move |_| Arc::clone(&progress))),
            started_before: 0,
            excluded: Arc::default(),
            granted: Arc::default(),
            journal: None,
            job: None,
            timeout: None,
            background_after: None,
            inner: Some(Arc::new(bound)),
            // Their results go to the call, not into the conversation.
            budget: None,
            order: None,
            turn: None,
            ..run.clone()
        };
        Arc::new(NestedCaller { executor: Arc::clone(self), run })
    }
}

/// Marks the arguments of a call as possibly derived from these tools.
pub(in crate::executor) fn mark(call: &mut ValidCall, taint: &Taint) {
    if !taint.is_empty() {
        call.provenance.tainted.push(TaintedArgument { path: String::new(), from: taint.clone() });
    }
}

/// A model that scores how well tools fit a task, all in one request of at most [`judge::MAX_JUDGED`] tools. Larger
/// sets use it as the second pass of a cascade.
pub struct ModelJudge {
    executor: Arc<Executor>,
    session: Arc<Session>,
    model: String,
    name: String,
}

impl ModelJudge {
    /// Creates a judge that asks `model` (`provider/model`). Each request is recorded in the ledger, also if it is
    /// abandoned: as part of the run or call that it serves, or else as a request of `session`, through the client of
    /// `executor`.
    pub fn new(executor: Arc<Executor>, session: Arc<Session>, model: impl Into<String>) -> Self {
        let model = model.into();
        Self { executor, session, name: format!("judge {model}"), model }
    }
}

impl fmt::Debug for ModelJudge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelJudge({})", self.model)
    }
}

#[async_trait]
impl Scorer for ModelJudge {
    fn name(&self) -> &str {
        &self.name
    }

    async fn score(
        &self,
        query: &str,
        tools: &[&Entry],
        calls: Option<&dyn NestedCalls>,
    ) -> Result<Vec<Score>, ScorerError> {
        if tools.len() > judge::MAX_JUDGED {
            let (most, count) = (judge::MAX_JUDGED, tools.len());
            return Err(ScorerError(format!("a model judges {most} tools at most, not {count}: put it in a cascade")));
        }
        let request = judge::request(query, tools);
        let answer = match calls {
            Some(calls) => calls.ask(&self.model, &request).await,
            None => {
                let lineage = Lineage::named(self.session.id.as_str());
                // Dropping the future ends the request, so no other cancel is needed.
                let cancel = Cancel::new();
                self.executor.ask_as(&lineage, &self.session, &self.model, &request, None, &cancel).await
            }
        };
        let answer = answer.map_err(|error| ScorerError(error.message))?;
        let values = judge::read(&answer, tools.len()).map_err(ScorerError)?;
        let score = |value: f32| Score {
            reason: Some(format!("{} finds it fit by {value:.2}", self.model)),
            ..Score::from(value)
        };
        Ok(values.into_iter().map(score).collect())
    }
}
