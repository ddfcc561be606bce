//! The stages of one call, in the order of SPEC section 8:
//! guards, policy, approval, cache, slot, lock, timeout, run, cap, budget, ledger, result.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use tokio::task::AbortHandle;
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, SKIPPED_TEXT};
use toolwright_core::arguments::Provenance;
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::{CallScope, Entry, ProviderCall};
use toolwright_core::content::ContentBlock;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::Concurrency;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::{Event, Refused};
use toolwright_core::outcome::{Outcome, ToolOutput, Validated};
use toolwright_core::output::{countable_text, head_and_tail, stored_message, stored_note, text_bytes};
use toolwright_core::policy::{Decision, Effect, PolicyQuery};
use toolwright_core::session::CallId;

use super::account::Account;
use super::partials::Partials;
use super::seams::cache_key;
use super::{Executor, RunContext};

/// One lock per workspace root, so that file and shell changes never race (SPEC section 8).
#[derive(Debug, Default)]
pub(super) struct RootLocks {
    locks: Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

/// How long a call waits for an exclusive lock.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// Whether an earlier `always` answers the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Counts,
    /// A guard asks about this very call.
    Ignored,
}

/// How a call ended before it had an output.
enum Stop {
    /// An error is its result.
    Failed(ToolError),
    /// A person said to leave it out: a neutral result.
    Skipped,
    /// A person must decide, later.
    Pending(Box<ApprovalRequest>),
}

impl From<ToolError> for Stop {
    fn from(error: ToolError) -> Self {
        Self::Failed(error)
    }
}

impl Executor {
    pub(super) async fn run_one(self: &Arc<Self>, call: ValidCall, run: &RunContext) -> Outcome {
        let started = self.options.services.clock.now();
        let entry = Arc::clone(&call.entry);
        let _in_flight = self.in_flight.enter(&entry.provider);
        let id = call.id.clone();
        let validated = Validated(call.unvalidated.is_none());
        let mut account = Account {
            characters_in: argument_length(&call),
            provenance: call.provenance.redacted(&*self.options.services.redactor),
            ..Account::default()
        };
        let result = self.stages(call, run, &mut account).await;
        let mut outcome = match result {
            Ok(output) => self.cap(id, output, &entry, run).await,
            Err(Stop::Failed(error)) => Outcome::failed(id, error),
            Err(Stop::Skipped) => neutral(id),
            Err(Stop::Pending(request)) => Outcome {
                pending: Some(*request),
                ..Outcome::failed(id, ToolError::new(ErrorKind::Denied, "a person has not decided yet"))
            },
        };
        outcome.validated = validated;
        if let Some(budget) = &self.options.budget {
            outcome = budget.admit(outcome).await;
        }
        self.finish(outcome, Some(&entry), account, started, run).await
    }

    /// Everything between a checked call and the tool's own output.
    async fn stages(
        self: &Arc<Self>,
        mut call: ValidCall,
        run: &RunContext,
        account: &mut Account,
    ) -> Result<ToolOutput, Stop> {
        if let Some(cause) = run.cancel.cause() {
            return Err(ToolError::canceled(cause).into());
        }
        if call.entry.definition().provider_native.is_some() {
            let message = format!("{} is run by the model's own provider, not here", call.entry.id());
            return Err(ToolError::new(ErrorKind::NotPermitted, message).into());
        }
        if let Some(hole) = call.pending.first() {
            let message = format!("the value of {} at {} is not there yet", hole.reference, hole.path);
            return Err(ToolError::new(ErrorKind::InvalidParameters, message).into());
        }
        let guard_asks = self.guards(&mut call, run).await?;
        if call.provenance.rewritten {
            account.provenance = call.provenance.redacted(&*self.options.services.redactor);
        }
        let scope = call.entry.provider.scope(call.entry.id(), &call.arguments, &run.session);
        let mut decision = policy(&call, scope, run);
        let mut standing = Standing::Counts;
        if let (Effect::Allow, Some(reason)) = (decision.effect, guard_asks) {
            decision = Decision { effect: Effect::Ask, rule: "guard".into(), reason };
            standing = Standing::Ignored;
        }
        account.decided_by.clone_from(&decision.rule);
        match decision.effect {
            Effect::Allow => {}
            Effect::Deny => {
                account.refused = Some(self.refused(&call));
                return Err(denied(&call.entry, &decision.reason).into());
            }
            Effect::Ask => {
                let answer = self.approval(&call, scope, &decision, standing, run).await;
                if answer.is_err() {
                    account.refused = Some(self.refused(&call));
                }
                answer?;
            }
        }
        if !call.provenance.is_plain() {
            account.ran_with = Some(self.options.services.redactor.redact_value(&call.arguments));
        }
        let Some(cache) = &self.options.cache else { return self.in_turn(call, run).await };
        let Some((key, ttl)) = cache_key(&call, run, decision.effect == Effect::Ask) else {
            return self.in_turn(call, run).await;
        };
        if let Some(output) = cache.get(&key).await {
            return Ok(output.with_extra("cached", true));
        }
        let output = self.in_turn(call, run).await?;
        if !output.is_error {
            cache.put(&key, ttl, &output).await;
        }
        Ok(output)
    }

    /// Waits for the call's slot and lock, then runs it. Both go with the running tool and are given back
    /// when it has ended, even if its caller is gone before.
    async fn in_turn(self: &Arc<Self>, call: ValidCall, run: &RunContext) -> Result<ToolOutput, Stop> {
        let slot = self.slot(&call, run).await?;
        let lock = self.lock(&call, run).await?;
        Ok(self.run_tool(call, Held { _slot: slot, _lock: lock }, run).await?)
    }

    fn refused(&self, call: &ValidCall) -> Refused {
        let arguments = self.options.services.redactor.redact_value(&call.arguments);
        Refused { name: call.entry.wire_name.clone(), arguments }
    }

    async fn approval(
        &self,
        call: &ValidCall,
        scope: CallScope,
        decision: &Decision,
        standing: Standing,
        run: &RunContext,
    ) -> Result<(), Stop> {
        let (id, session) = (call.entry.id(), run.session.id.as_str());
        let request = ApprovalRequest {
            call_id: call.id.clone(),
            session: run.session.id.clone(),
            tool: id.clone(),
            definition: call.entry.tool.hash(),
            arguments: call.arguments.clone(),
            effects: call.entry.definition().effects,
            scope,
            reason: decision.reason.clone(),
        };
        let key = request.standing_key();
        // A store that cannot answer has approved nothing: the person is asked again.
        if standing == Standing::Counts && self.options.approvals.is_approved(session, id, key).await.unwrap_or(false) {
            return Ok(());
        }
        let events = &self.options.services.events;
        events.emit(Event::ApprovalRequested {
            call: call.id.clone(),
            tool: id.clone(),
            reason: decision.reason.clone(),
        });
        let answer = tokio::select! {
            answer = run.approver.ask(&request) => answer,
            cause = run.cancel.cancelled() => return Err(ToolError::canceled(cause).into()),
        };
        let word = match &answer {
            ApprovalDecision::Approve => "approve",
            ApprovalDecision::Always => "always",
            ApprovalDecision::Deny { .. } => "deny",
            ApprovalDecision::Skip => "skip",
            ApprovalDecision::Later => "later",
        };
        events.emit(Event::ApprovalDecided { call: call.id.clone(), tool: id.clone(), decision: word.into() });
        match answer {
            ApprovalDecision::Approve => Ok(()),
            ApprovalDecision::Always => {
                if let Err(error) = self.options.approvals.approve_always(session, id, key).await {
                    tracing::warn!(tool = %id, "`always` was not kept: {error}");
                }
                Ok(())
            }
            ApprovalDecision::Deny { reason } => Err(denied(&call.entry, &reason).into()),
            ApprovalDecision::Skip => Err(Stop::Skipped),
            ApprovalDecision::Later => Err(Stop::Pending(Box::new(request))),
        }
    }

    async fn slot(&self, call: &ValidCall, run: &RunContext) -> Result<crate::queue::Slot, ToolError> {
        let definition = call.entry.definition();
        let on_wait = |queue: &str| self.waits(call, queue);
        let provider = call.entry.provider.name();
        self.options.queues.acquire(definition.queue.as_deref(), provider, &definition.id, &run.cancel, on_wait).await
    }

    async fn lock(&self, call: &ValidCall, run: &RunContext) -> Result<Option<OwnedMutexGuard<()>>, ToolError> {
        if call.entry.definition().concurrency != Concurrency::Exclusive {
            return Ok(None);
        }
        let lock = {
            let mut locks = self.locks.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(run.session.root.clone()).or_default())
        };
        if let Ok(guard) = Arc::clone(&lock).try_lock_owned() {
            return Ok(Some(guard));
        }
        self.waits(call, "the workspace lock");
        tokio::select! {
            guard = lock.lock_owned() => Ok(Some(guard)),
            cause = run.cancel.cancelled() => Err(ToolError::canceled(cause)),
            () = tokio::time::sleep(LOCK_WAIT) => {
                let message = format!("another exclusive tool held the lock of {} for {LOCK_WAIT:?}", run.session.root.display());
                Err(ToolError::new(ErrorKind::LimitExceeded, message).retryable())
            }
        }
    }

    fn waits(&self, call: &ValidCall, queue: &str) {
        let (call_id, tool) = (call.id.clone(), call.entry.id().clone());
        self.options.services.events.emit(Event::ToolWait { call: call_id, tool, queue: queue.to_owned() });
    }

    /// Runs the tool on a task of its own, so that a panic stays there and a dropped caller still lets
    /// the tool see its cancellation.
    async fn run_tool(
        self: &Arc<Self>,
        call: ValidCall,
        held: Held,
        run: &RunContext,
    ) -> Result<ToolOutput, ToolError> {
        if let Some((journal, id)) = &run.journal {
            // Without the note a crash could repeat an effect: no note, no dispatch.
            journal.call_dispatched(id, &call.id).await?;
        }
        let services = &self.options.services;
        services.events.emit(Event::ToolStarted {
            session: run.session.id.clone(),
            call: call.id.clone(),
            tool: call.entry.id().clone(),
            arguments: services.redactor.redact_value(&call.arguments),
            provenance: call.provenance.redacted(&*services.redactor),
        });
        let limit = run.timeout.or(call.entry.definition().timeout).unwrap_or(self.options.timeout);
        let cancel = run.cancel.child();
        let context = self.context(&call, run, &cancel, limit);
        let entry = Arc::clone(&call.entry);
        let id = call.id.clone();
        let mut task = tokio::spawn(async move {
            let _held = held;
            dispatch(call, context).await
        });
        let abandon = AbandonOnDrop(Some((cancel.clone(), task.abort_handle(), self.options.grace)));
        let stopped = tokio::select! {
            joined = &mut task => {
                abandon.disarm();
                return joined.unwrap_or_else(|error| Err(panicked(&entry, error)));
            }
            cause = run.cancel.cancelled() => ToolError::canceled(cause),
            () = tokio::time::sleep(limit) => {
                cancel.cancel(CancelCause::Deadline);
                timed_out(&entry, limit)
            }
        };
        abandon.disarm();
        let told_and_ended = async {
            entry.provider.cancel(&id).await;
            (&mut task).await
        };
        match tokio::time::timeout(self.options.grace, told_and_ended).await {
            // What it had to say for itself is worth more than our word, if it stopped for our reason.
            Ok(Ok(Err(own))) if own.kind() == stopped.kind() => Err(own),
            Ok(Ok(Ok(output))) => Ok(output.with_extra("stopped", stopped.kind().as_str())),
            Ok(_) => Err(stopped),
            Err(_) => {
                task.abort();
                Err(stopped)
            }
        }
    }

    fn context(&self, call: &ValidCall, run: &RunContext, cancel: &Cancel, limit: Duration) -> ToolContext {
        let partials = Arc::new(Partials {
            services: Arc::clone(&self.options.services),
            call: call.id.clone(),
            entry: Arc::clone(&call.entry),
            also: run.partials.as_ref().map(|make| make(&call.id)),
        });
        ToolContext {
            call_id: call.id.clone(),
            session: Arc::clone(&run.session),
            cancel: cancel.clone(),
            deadline: Instant::now().checked_add(limit),
            limit: Some(limit),
            partials,
            traceparent: run.traceparent.clone(),
            services: Arc::clone(&self.options.services),
        }
    }

    /// Caps the text of an output: over the limit it goes to the output store and a message with its
    /// handle takes its place; other blocks and the structured result pass.
    async fn cap(&self, id: CallId, output: ToolOutput, entry: &Entry, run: &RunContext) -> Outcome {
        let ToolOutput { mut content, structured, is_error, meta, mut extras } = output;
        let max = entry.definition().max_output.unwrap_or(self.options.max_output);
        if text_bytes(&content) > max {
            let text = countable_text(&content);
            let shown = match self.options.services.outputs.put(&run.session.id, text.as_bytes()).await {
                Ok(stored) => {
                    extras.insert("tool_output".into(), stored_note(&stored));
                    stored_message(&stored, &text, max)
                }
                Err(error) => {
                    tracing::warn!(tool = %entry.id(), "a large output was cut, not stored: {error}");
                    head_and_tail(&text, max)
                }
            };
            content.retain(|block| !matches!(block, ContentBlock::Text { .. } | ContentBlock::Resource { .. }));
            content.insert(0, ContentBlock::text(shown));
        }
        let error = is_error.then(|| ToolError::new(ErrorKind::ExecutionError, failure_text(&content, entry)));
        Outcome {
            call_id: id,
            tool: None,
            kind: None,
            namespace: String::new(),
            ok: error.is_none(),
            content,
            structured,
            error,
            latency: Duration::ZERO,
            validated: Validated(false),
            provenance: Provenance::default(),
            ran_with: None,
            meta,
            extras,
            pending: None,
        }
    }
}

/// What policy says of a call.
pub(super) fn policy(call: &ValidCall, scope: CallScope, run: &RunContext) -> Decision {
    let entry = &call.entry;
    run.policy.decide(&PolicyQuery {
        definition: entry.definition(),
        trust: entry.provider.trust(),
        roles: &run.session.principal.roles,
        inside_workspace: scope == CallScope::Workspace,
        unvalidated: call.unvalidated,
    })
}

/// The only place that runs a tool.
#[expect(clippy::disallowed_methods, reason = "this is the one executor")]
async fn dispatch(call: ValidCall, context: ToolContext) -> Result<ToolOutput, ToolError> {
    let ValidCall { id, entry, arguments, .. } = call;
    // A call id is unique within its conversation only.
    let idempotency_key = format!("{}:{id}", context.session.id);
    let (tool, raw_name) = (entry.id(), entry.tool.raw_name());
    let request = ProviderCall { tool, raw_name, arguments, idempotency_key: &idempotency_key };
    entry.provider.call(request, &context).await
}

/// What a running call holds until it has ended.
struct Held {
    _slot: crate::queue::Slot,
    _lock: Option<OwnedMutexGuard<()>>,
}

/// Cancels the call when its caller is dropped before it ended, and abandons it after the grace period.
struct AbandonOnDrop(Option<(Cancel, AbortHandle, Duration)>);

impl AbandonOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        let Some((cancel, task, grace)) = self.0.take() else { return };
        cancel.cancel(CancelCause::User);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    tokio::time::sleep(grace).await;
                    task.abort();
                });
            }
            // The runtime itself is ending.
            Err(_) => task.abort(),
        }
    }
}

pub(super) fn denied(entry: &Entry, reason: &str) -> ToolError {
    ToolError::new(ErrorKind::Denied, format!("{} was denied: {reason}", entry.id()))
        .with_model_message(format!("denied: {reason}"))
}

fn timed_out(entry: &Entry, limit: Duration) -> ToolError {
    let limit = toolwright_core::duration::format(limit);
    ToolError::new(ErrorKind::Timeout, format!("{} did not finish within {limit}", entry.id()))
        .with_model_message(format!("timeout after {limit}"))
}

fn panicked(entry: &Entry, error: tokio::task::JoinError) -> ToolError {
    ToolError::new(ErrorKind::InternalError, format!("{} panicked; this is a fault of the tool", entry.id()))
        .with_model_message("internal error of the tool")
        .with_source(error)
}

fn neutral(id: CallId) -> Outcome {
    let mut outcome = Outcome::failed(id, ToolError::new(ErrorKind::Denied, "skipped"));
    outcome.ok = true;
    outcome.error = None;
    outcome.content = vec![ContentBlock::text(SKIPPED_TEXT)];
    outcome
}

fn failure_text(content: &[ContentBlock], entry: &Entry) -> String {
    let text = toolwright_core::content::joined_text(content);
    if text.is_empty() { format!("{} failed without saying why", entry.id()) } else { head_and_tail(&text, 600) }
}

fn argument_length(call: &ValidCall) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Continuation bytes are not characters.
            self.0 += bytes.iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Writing a value to a counter cannot fail.
    let _ = serde_json::to_writer(&mut count, &call.arguments);
    count.0
}
