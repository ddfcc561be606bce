//! The context of a running tool: its progress, its client, the calls that it makes, and its use of models.

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

/// The shortest pause between two looks at the limits of a call that waits for its client.
const ASKING_STEP: Duration = Duration::from_millis(50);

/// Progress of one call: to the events, and to whoever asked for it.
pub(super) struct Partials {
    services: Arc<Services>,
    op: Op,
    call: CallId,
    entry: Arc<Entry>,
    also: Progress,
    /// Its text on the way to events and caller: a secret may come in several pieces.
    text: Mutex<StreamRedactor>,
    began: Instant,
    asking: Mutex<Questions>,
    /// Milliseconds from the beginning to the last sign of life.
    last_sign: AtomicU64,
    attempts: AtomicU32,
}

/// How long there were open questions.
#[derive(Debug, Default)]
struct Asking {
    /// Questions that are open.
    open: usize,
    /// Since when there are any.
    since: Option<Instant>,
    /// Waits that are over.
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
    /// To its client, a person or a model or a program.
    all: Asking,
    /// Of these, to a person.
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

    /// A new attempt begins: a sign of life too.
    pub(super) fn note_attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.note_sign();
    }

    /// How often the call was dispatched.
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

    /// A question to the call's client, to a person or not, is open from now on. The call's limits are paused.
    pub(super) fn asks(&self, person: bool) {
        let mut asking = self.asking();
        asking.all.opens();
        if person {
            asking.person.opens();
        }
    }

    /// A question is answered, or given up: a sign of life too.
    fn is_answered(&self, person: bool) {
        let mut asking = self.asking();
        asking.all.closes();
        if person {
            asking.person.closes();
        }
        drop(asking);
        self.note_sign();
    }

    /// How long it waited for a person.
    pub(super) fn person_took(&self) -> Duration {
        self.asking().person.total()
    }

    /// How long the call has only waited for its client, and whether it does now.
    fn waited(&self) -> (Duration, bool) {
        let asking = &self.asking().all;
        (asking.total(), asking.since.is_some())
    }

    /// How long the call has been running, waits for its client included.
    pub(super) fn running_for(&self) -> Duration {
        self.began.elapsed()
    }

    /// How long it is until the call reaches one of its limits, and which one; `None` where it has no limit. A wait for
    /// the call's client does not count: while there is one, the caller asks again after this time.
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
    /// Ends the call: passes on the text that was held back.
    fn drop(&mut self) {
        self.pass_text(!self.also.takes_unredacted(), StreamRedactor::finish);
    }
}

/// Where a call's progress goes: to its caller, or to the log of the job that it has become.
pub(super) struct Progress {
    became: Option<PromotedTo>,
    caller: Option<Arc<dyn PartialSink>>,
}

impl Progress {
    /// That of the call `id` under these terms.
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

/// A question under way.
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

/// The client of one call. While it is asked, the call returns its slot and its timeouts stop, because a queue must not
/// fill with calls that wait for people.
struct PausingClient {
    /// Who is asked.
    client: Arc<dyn CallClient>,
    /// What is given back meanwhile, if there is anything.
    place: Option<Arc<PausableSlot>>,
    /// Calls behind this one do not wait for the answer.
    turn: Option<Arc<WorkspaceTurn>>,
    /// Whose time does not run meanwhile.
    progress: Arc<Partials>,
    tool: ToolId,
    /// How the call waits in its queue.
    priority: Priority,
    /// The call's token.
    cancel: Cancel,
}

impl PausingClient {
    /// Returns the slot, waits until the question has ended, and takes a slot again.
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
        // Only the question is dropped: the call continues and needs its slot.
        let person = requests.iter().any(ClientRequest::asks_person);
        self.without_slot(person, self.client.ask_until(requests, over)).await.unwrap_or_else(|error| Some(Err(error)))
    }
}

/// How deep calls may be made inside calls.
const MAX_DEPTH: usize = 5;

/// Bounds the calls that one call makes. The limit of the turn does not count them.
#[derive(Debug)]
pub struct NestedCallLimits {
    count: AtomicUsize,
    max: usize,
    /// 1 for calls that a call of a turn makes.
    depth: usize,
    /// The untrusted tools that the arguments of the call itself came out of.
    given: Taint,
    /// Those that the outputs of the calls that it makes came out of.
    made: InnerTaint,
}

/// The untrusted tools that the outputs of the calls that one call makes came out of. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct InnerTaint(Arc<Mutex<Taint>>);

impl InnerTaint {
    /// Those until now.
    pub(super) fn so_far(&self) -> Taint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, taint: &Taint) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(taint);
    }
}

impl NestedCallLimits {
    /// Notes where the output of an inner call came from.
    pub(super) fn note_taint(&self, taint: &Taint) {
        self.made.add(taint);
    }

    /// Marks the arguments of a call, which the outer call may have made out of its own.
    pub(super) fn mark(&self, call: &mut ValidCall) {
        mark(call, &self.given);
    }

    /// Counts one call.
    ///
    /// # Errors
    /// `limit_exceeded` for one too many, or too deep.
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
                meta: call.meta,
                violations: Vec::new(),
                provenance: call.provenance,
                pending: call.pending,
            })),
        };
        checked.into_iter().map(|checked| checked.and_then(bounded)).collect()
    }
}

/// Runs the calls that one call makes, under its token and as operations inside its own. No journal has them: the call
/// that made them answers for them.
struct NestedCaller {
    executor: Arc<Executor>,
    run: RunContext,
}

/// What a call that makes others runs under.
#[derive(Clone, Copy)]
pub struct Nested<'c> {
    /// The executor that runs it.
    pub executor: &'c Arc<Executor>,
    /// The context of the calls that it makes.
    pub run: &'c RunContext,
}

impl std::fmt::Debug for Nested<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nested").finish_non_exhaustive()
    }
}

impl<'c> Nested<'c> {
    /// That of a running call; `None` where it makes none, or no executor runs it.
    #[must_use]
    pub fn of(context: &'c ToolContext) -> Option<Self> {
        let calls: &dyn Any = &*context.calls;
        calls.downcast_ref().map(|caller: &NestedCaller| Self { executor: &caller.executor, run: &caller.run })
    }
}

impl Nested<'_> {
    /// Notes that the output of the call comes out of these untrusted tools too.
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
        // Calls made in bulk let single calls go first.
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
            // A later version of a tool is the same tool.
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
    /// Makes calls, and requests to models, as parts of `run`.
    #[must_use]
    pub fn inner_caller(self: &Arc<Self>, run: RunContext) -> impl InnerCalls + use<> {
        NestedCaller { executor: Arc::clone(self), run }
    }

    /// What the tool of this call gets.
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
        // Their progress goes where the call's own goes.
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
