//! The context of a running tool: its progress, client, inner calls and requests to models.

use std::any::Any;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::time::Instant;
use toolwright_core::agents::Rights;
use toolwright_core::call::{Rejection, ToolCall, ValidCall};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::{Entry, Snapshot};
use toolwright_core::client::{AskingCall, CallClient, ClientRequest};
use toolwright_core::context::{InnerCalls, NoCalls, PartialSink, ToolContext};
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError, Unsupported};
use toolwright_core::event::{Attention, Event, Partial};
use toolwright_core::job::NoTurns;
use toolwright_core::model::{ModelError, ModelRequest, ModelResponse};
use toolwright_core::operation::Op;
use toolwright_core::outcome::Outcome;
use toolwright_core::redact::StreamRedactor;
use toolwright_core::session::CallId;
use toolwright_core::taint::{Taint, of_all};
use toolwright_core::{Services, ToolId, duration};

use super::background::PromotedTo;
use super::call_record::CallRecord;
use super::checking::mark;
use super::run::{HeldSlots, Limits, Reached};
use super::{Executor, RunContext};
use crate::queue::{PausableSlot, Priority, WorkspaceTurn};

/// The shortest pause between two checks of the limits of a call that waits for its client.
const ASKING_STEP: Duration = Duration::from_millis(50);

/// Progress of one call: for the events, and for its caller.
pub(super) struct Partials {
    services: Arc<Services>,
    op: Op,
    call: CallId,
    entry: Arc<Entry>,
    also: Progress,
    /// The call's text, streamed through redaction because a secret may span several pieces.
    text: Mutex<StreamRedactor>,
    began: Instant,
    asking: Mutex<Questions>,
    /// Milliseconds from the start to the last activity.
    last_sign: AtomicU64,
    attempts: AtomicU32,
}

/// How long questions were open.
#[derive(Debug, Default)]
struct Asking {
    /// The number of open questions.
    open: usize,
    /// When the first of them was opened.
    since: Option<Instant>,
    /// The sum of finished waits.
    waited: Duration,
}

impl Asking {
    fn opens(&mut self) {
        self.open += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    fn closes(&mut self) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0
            && let Some(since) = self.since.take()
        {
            self.waited += since.elapsed();
        }
    }

    fn total(&self) -> Duration {
        self.waited + self.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

/// The questions of a call.
#[derive(Debug, Default)]
struct Questions {
    /// Questions to its client: a person, a model or a program.
    all: Asking,
    /// Questions to a person.
    person: Asking,
}

impl Partials {
    pub(super) fn new(
        services: &Arc<Services>,
        op: &Op,
        call: &CallId,
        entry: &Arc<Entry>,
        also: Progress,
    ) -> Arc<Self> {
        Arc::new(Self {
            services: Arc::clone(services),
            op: op.clone(),
            call: call.clone(),
            entry: Arc::clone(entry),
            also,
            text: Mutex::new(StreamRedactor::new(Arc::clone(&services.redactor))),
            began: Instant::now(),
            asking: Mutex::default(),
            last_sign: AtomicU64::new(0),
            attempts: AtomicU32::new(0),
        })
    }

    /// Records a new attempt, which counts as activity.
    pub(super) fn note_attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.note_sign();
    }

    /// Returns how often the call was dispatched.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    fn emit(&self, partial: Partial) {
        let (op, call, tool) = (self.op.clone(), self.call.clone(), self.entry.id().clone());
        self.services.events.emit(Event::ToolPartial { op, call, tool, partial });
    }

    fn is_watched(&self) -> bool {
        self.services.events.attention() >= Attention::Brief
    }

    /// Passes on text without secrets.
    fn pass_text(&self, to_caller: bool, take: impl FnOnce(&mut StreamRedactor) -> String) {
        let text = take(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
        if text.is_empty() {
            return;
        }
        if to_caller {
            self.also.send(Partial::Text(text.clone()));
        }
        if self.is_watched() {
            self.emit(Partial::Text(text));
        }
    }

    fn note_sign(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_sign.fetch_max(since, Ordering::Relaxed);
    }

    fn asking(&self) -> MutexGuard<'_, Questions> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a question to the call's client is open. The call's limits are paused.
    pub(super) fn asks(&self, person: bool) {
        let mut asking = self.asking();
        asking.all.opens();
        if person {
            asking.person.opens();
        }
    }

    /// Records that a question was answered or given up, which counts as activity.
    fn is_answered(&self, person: bool) {
        let mut asking = self.asking();
        asking.all.closes();
        if person {
            asking.person.closes();
        }
        drop(asking);
        self.note_sign();
    }

    /// Returns how long it waited for a person.
    pub(super) fn person_took(&self) -> Duration {
        self.asking().person.total()
    }

    /// Returns how long the call has only waited for its client, and whether it does so now.
    fn waited(&self) -> (Duration, bool) {
        let asking = &self.asking().all;
        (asking.total(), asking.since.is_some())
    }

    /// Returns how long the call has been running, including waits for its client.
    pub(super) fn running_for(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the time until the call reaches a limit, and which one; `None` if it has no limit. Waits for the call's
    /// client do not count; during one, call this again after the returned time.
    pub(super) fn left(&self, limits: &Limits) -> Option<(Duration, Reached)> {
        let ((waited, asks), ran) = (self.waited(), self.began.elapsed());
        let absolute = limits.absolute.map(|limit| (limit + waited).saturating_sub(ran));
        let absolute = absolute.map(|left| if asks && !left.is_zero() { left.max(ASKING_STEP) } else { left });
        let last_sign = Duration::from_millis(self.last_sign.load(Ordering::Relaxed));
        let idle = limits.idle.map(|limit| match asks {
            true => limit.max(ASKING_STEP),
            false => (last_sign + limit).saturating_sub(ran),
        });
        let both = [(absolute, Reached::Absolute), (idle, Reached::Idle)];
        both.into_iter().filter_map(|(left, reached)| Some((left?, reached))).min_by_key(|(left, _)| *left)
    }
}

impl PartialSink for Partials {
    fn send(&self, partial: Partial) {
        self.note_sign();
        match partial {
            Partial::Text(text) => {
                let to_log = self.also.takes_unredacted();
                let to_caller = !to_log && self.also.is_anybody();
                if to_caller || self.is_watched() {
                    self.pass_text(to_caller, |stream| stream.push(&text));
                }
                if to_log {
                    self.also.send(Partial::Text(text));
                }
            }
            Partial::Progress { progress, total, message, more } => {
                let shown = self.is_watched().then(|| {
                    let message = message.as_ref().map(|message| self.services.redactor.redact(message).into_owned());
                    Partial::Progress { progress, total, message, more: Map::new() }
                });
                self.also.send(Partial::Progress { progress, total, message, more });
                if let Some(shown) = shown {
                    self.emit(shown);
                }
            }
        }
    }

    fn takes_unredacted(&self) -> bool {
        true
    }
}

impl Drop for Partials {
    /// Passes on the text that was held back.
    fn drop(&mut self) {
        self.pass_text(!self.also.takes_unredacted(), StreamRedactor::finish);
    }
}

/// The target of a call's progress: its caller, or the log of the job that it has become.
pub(super) struct Progress {
    became: Option<PromotedTo>,
    caller: Option<Arc<dyn PartialSink>>,
}

impl Progress {
    /// Returns the target for the call `id` under these terms.
    pub(super) fn of(id: &CallId, run: &RunContext) -> Self {
        Self { became: run.became.clone(), caller: run.partials.as_ref().map(|make| make(id)) }
    }

    fn sink(&self) -> Option<Arc<dyn PartialSink>> {
        let log = self.became.as_ref().and_then(|became| became.job()).map(|job| Arc::clone(&job.log));
        log.or_else(|| self.caller.clone())
    }

    fn is_anybody(&self) -> bool {
        self.sink().is_some()
    }
}

impl PartialSink for Progress {
    fn send(&self, partial: Partial) {
        if let Some(sink) = self.sink() {
            sink.send(partial);
        }
    }

    fn takes_unredacted(&self) -> bool {
        self.sink().is_some_and(|sink| sink.takes_unredacted())
    }
}

/// How long one question may stay open. The limits of the call are paused meanwhile.
const LONGEST: Duration = Duration::from_secs(900);

/// A question in progress.
struct PausedCall {
    place: Option<Arc<PausableSlot>>,
    progress: Arc<Partials>,
    person: bool,
}

impl Drop for PausedCall {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            place.answered();
        }
        self.progress.is_answered(self.person);
    }
}

/// The client of one call. During a question the call gives its slot back and its timeouts stop, so that calls that
/// wait for people do not fill a queue.
struct PausingClient {
    /// The client that is asked.
    client: Arc<dyn CallClient>,
    /// The slot that is released meanwhile, if any.
    place: Option<Arc<PausableSlot>>,
    /// The turn, which lets later calls pass during the question.
    turn: Option<Arc<WorkspaceTurn>>,
    /// The progress whose time limits are paused meanwhile.
    progress: Arc<Partials>,
    tool: ToolId,
    /// The call's priority in its queue.
    priority: Priority,
    /// The call's cancel token.
    cancel: Cancel,
}

impl PausingClient {
    /// Releases the slot, waits until the question has ended, and takes a slot again.
    async fn without_slot<T: Send>(
        &self,
        person: bool,
        asking: impl Future<Output = T> + Send,
    ) -> Result<T, ToolError> {
        if let Some(place) = &self.place {
            place.asks();
        }
        if let Some(turn) = &self.turn {
            turn.leave_order();
        }
        self.progress.asks(person);
        let paused = PausedCall { place: self.place.clone(), progress: Arc::clone(&self.progress), person };
        let ended = tokio::time::timeout(LONGEST, asking).await.map_err(|_| {
            let text = format!("nobody answered what the tool asks within {}", duration::format(LONGEST));
            ToolError::new(ErrorKind::Timeout, text)
        });
        drop(paused);
        if let Some(place) = &self.place {
            place.take_again(&self.tool, self.priority, &self.cancel).await?;
        }
        ended
    }
}

#[async_trait]
impl CallClient for PausingClient {
    fn inner(&self) -> Option<&dyn CallClient> {
        Some(&*self.client)
    }

    fn for_call(&self, asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        self.client.for_call(asking)
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        let person = requests.iter().any(ClientRequest::asks_person);
        self.without_slot(person, self.client.ask(requests)).await?
    }

    async fn ask_until(
        &self,
        requests: Vec<ClientRequest>,
        over: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Option<Result<Vec<Result<Value, ProtocolError>>, ToolError>> {
        // Dropping cancels only the question: the call continues and needs its slot.
        let person = requests.iter().any(ClientRequest::asks_person);
        self.without_slot(person, self.client.ask_until(requests, over)).await.unwrap_or_else(|error| Some(Err(error)))
    }
}

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
    given: Taint,
    /// The untrusted tools from which the outputs of its inner calls derive.
    made: InnerTaint,
}

/// The untrusted tools from which the outputs of one call's inner calls derive. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct InnerTaint(Arc<Mutex<Taint>>);

impl InnerTaint {
    /// Returns the taint so far.
    pub(super) fn so_far(&self) -> Taint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, taint: &Taint) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(taint);
    }
}

impl NestedCallLimits {
    /// Records the taint of an inner call's output.
    pub(super) fn note_taint(&self, taint: &Taint) {
        self.made.add(taint);
    }

    /// Marks the arguments of an inner call, which the outer call may have derived from its own.
    pub(super) fn mark(&self, call: &mut ValidCall) {
        mark(call, &self.given);
    }

    /// Counts one call.
    ///
    /// # Errors
    /// `limit_exceeded` for too many calls, or too deep nesting.
    fn count(&self) -> Result<(), ToolError> {
        let refused = |message: String| Err(ToolError::new(ErrorKind::LimitExceeded, message));
        if self.depth > MAX_DEPTH {
            return refused(format!("calls may be made inside calls {MAX_DEPTH} deep, and no deeper"));
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.max {
            return refused(format!("one call may make {} calls of its own, and no more", self.max));
        }
        Ok(())
    }

    /// Rejects calls beyond the limit, in call order. Calls that the check rejected do not count.
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
pub struct Nested<'c> {
    /// The executor of the call.
    pub executor: &'c Arc<Executor>,
    /// The context of its inner calls.
    pub run: &'c RunContext,
}

impl std::fmt::Debug for Nested<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nested").finish_non_exhaustive()
    }
}

impl<'c> Nested<'c> {
    /// Returns the nested context of a running call; `None` if it makes no calls, or no executor runs it.
    #[must_use]
    pub fn of(context: &'c ToolContext) -> Option<Self> {
        let calls: &dyn Any = &*context.calls;
        calls.downcast_ref().map(|caller: &NestedCaller| Self { executor: &caller.executor, run: &caller.run })
    }
}

impl Nested<'_> {
    /// Records that the call's output derives from these untrusted tools too.
    pub fn note_taint(&self, taint: &Taint) {
        if let Some(inner) = &self.run.inner {
            inner.note_taint(taint);
        }
    }
}

#[async_trait]
impl InnerCalls for NestedCaller {
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
    pub fn inner_caller(self: &Arc<Self>, run: RunContext) -> impl InnerCalls + use<> {
        NestedCaller { executor: Arc::clone(self), run }
    }

    /// Returns the context of this call's tool.
    pub(super) fn tool_context(
        self: &Arc<Self>,
        call: &ValidCall,
        held: &HeldSlots,
        run: &RunContext,
        limits: &Limits,
        progress: &Arc<Partials>,
        record: &CallRecord,
    ) -> ToolContext {
        let op = &record.op;
        let traceparent = op.traceparent();
        let asking = AskingCall {
            tool: call.entry.id().clone(),
            traceparent: Arc::clone(&traceparent),
            cancel: run.cancel.clone(),
            usage: run.usage.clone(),
        };
        let client = run.client.for_call(&asking).unwrap_or_else(|| Arc::clone(&run.client));
        let client = Arc::new(PausingClient {
            client,
            place: held.place.clone(),
            turn: run.turn.clone(),
            progress: Arc::clone(progress),
            tool: asking.tool,
            priority: run.priority,
            cancel: asking.cancel,
        });
        ToolContext {
            call_id: call.id.clone(),
            session: Arc::clone(&run.session),
            scope: record.scope,
            cancel: run.cancel.clone(),
            deadline: limits.absolute.and_then(|limit| std::time::Instant::now().checked_add(limit)),
            limit: limits.absolute,
            client,
            partials: Arc::clone(progress) as Arc<dyn PartialSink>,
            traceparent: Some(traceparent),
            max_output: self.cap_of(&call.entry, run),
            taint: of_all(&call.provenance.tainted),
            granted: Arc::clone(&run.granted),
            calls: self.inner_calls(call, run, op),
            turns: run.job.clone().unwrap_or_else(NoTurns::shared),
            services: Arc::clone(&self.options.services),
        }
    }

    fn inner_calls(self: &Arc<Self>, call: &ValidCall, run: &RunContext, op: &Op) -> Arc<dyn InnerCalls> {
        if !call.awaits_others() {
            return NoCalls::shared();
        }
        let depth = run.inner.as_ref().map_or(0, |outer| outer.depth) + 1;
        let bound = NestedCallLimits {
            count: AtomicUsize::new(0),
            max: self.options.inner_calls,
            depth,
            given: of_all(&call.provenance.tainted),
            made: run.inner_taint.clone(),
        };
        // Their progress goes to the call's own sink.
        let progress: Arc<dyn PartialSink> = Arc::new(Progress::of(&call.id, run));
        let run = RunContext {
            lineage: op.inside(),
            partials: Some(Arc::new(move |_| Arc::clone(&progress))),
            started_before: 0,
            beside: Arc::default(),
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
