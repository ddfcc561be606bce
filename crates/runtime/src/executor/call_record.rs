//! The record of a call. When the call ends, its outcome is reported to observers and written to the ledger.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use toolwright_core::arguments::Provenance;
use toolwright_core::call::{Rejection, ValidCall};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{CallScope, Entry, ProviderKind};
use toolwright_core::content::json_characters;
use toolwright_core::context::{Redactor, UsageRecorder};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::{Event, RefusedCall};
use toolwright_core::model::{Cost, PriceTable, Usage};
use toolwright_core::operation::{Op, OpKind};
use toolwright_core::outcome::{Outcome, Validated};
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_core::redact::{learn_secrets, shown_arguments, shown_arguments_text};
use toolwright_core::store::{AppendStatus, LedgerEntry, LedgerMode, MAX_KEPT, RUNNING, note};

use super::context::CallProgress;
use super::llm_call::{FAILED_MODELS, asks_by_model};
use super::pipeline::Stage;
use super::{CallInFlight, Executor, InFlightGuard, RunContext};
use crate::models::micros;

/// The ledger's data about a call, except its outcome.
#[derive(Debug)]
pub(super) struct CallRecord {
    /// `tool`, or `job` for a call that continues after its caller was answered.
    pub(super) kind: OpKind,
    /// The operation.
    pub(super) op: Op,
    /// Counts the call as in flight while its record is open.
    entered: Option<InFlightGuard>,
    /// The stage of the call.
    pub(super) stage: Stage,
    /// How long it waited for slot and lock.
    pub(super) waited: Duration,
    /// How long after the start of the call its tool began.
    ran_after: Option<Duration>,
    /// How often its tool was dispatched.
    pub(super) attempts: u32,
    /// When it began.
    started: Instant,
    /// Characters of its arguments.
    pub(super) characters_in: usize,
    /// The arguments as the ledger keeps them.
    arguments: Option<Box<str>>,
    /// The scope of the call that policy was given, once the call is admitted.
    pub(super) scope: CallScope,
    /// The rule or other cause of the decision.
    pub(super) decided_by: Cow<'static, str>,
    /// A person's answer, if one was asked.
    pub(super) approval: ApprovalAnswer,
    /// How long its tool waited for people's answers while it ran.
    person: Duration,
    /// The usage of its requests to models, if the run records it.
    pub(super) used: Option<Arc<CallUsage>>,
    /// Whether its result came from the response cache.
    pub(super) cached: bool,
    /// The refused request, if the call never started.
    pub(super) refused: Option<RefusedCall>,
    /// The changes to its name and arguments, redacted.
    pub(super) provenance: Provenance,
    /// The arguments that it ran with, redacted, if they were changed.
    pub(super) ran_with: Option<Value>,
}

/// A person's answer about a call, and how long it took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ApprovalAnswer {
    pub(super) word: Option<&'static str>,
    pub(super) took: Duration,
}

impl CallRecord {
    /// Copies the attempts and waits of a tool that has ended.
    pub(super) fn copy_attempts(&mut self, progress: &CallProgress) {
        (self.attempts, self.person) = (progress.attempts(), progress.person_wait());
    }

    /// Returns the call in flight.
    pub(super) fn in_flight(&self) -> Option<Arc<CallInFlight>> {
        self.entered.as_ref().map(|entered| Arc::clone(&entered.call))
    }

    /// Returns how long people took to answer.
    fn person_wait(&self) -> Duration {
        self.approval.took + self.person
    }

    fn begin(op: Op, started: Instant) -> Self {
        Self {
            kind: OpKind::Tool,
            op,
            started,
            characters_in: 0,
            arguments: None,
            scope: CallScope::Workspace,
            decided_by: Cow::Borrowed(""),
            approval: ApprovalAnswer::default(),
            person: Duration::ZERO,
            waited: Duration::ZERO,
            ran_after: None,
            entered: None,
            stage: Stage::default(),
            attempts: 0,
            used: None,
            cached: false,
            refused: None,
            provenance: Provenance::default(),
            ran_with: None,
        }
    }
}

impl Executor {
    /// Records that the tool begins now.
    pub(super) fn note_start(&self, record: &mut CallRecord) {
        record.ran_after = Some(self.options.services.clock.now().saturating_duration_since(record.started));
    }

    /// Opens the record of a call.
    pub(super) fn open_record(&self, call: &ValidCall, run: &RunContext) -> CallRecord {
        let services = &self.options.services;
        learn_secrets(&call.entry, &call.arguments, &*services.redactor);
        let op = self.begin(&run.lineage);
        let characters_in = json_characters(&call.arguments);
        CallRecord {
            entered: Some(self.in_flight.enter(op.id, call, run)),
            characters_in,
            arguments: kept_arguments(characters_in, || {
                shown_arguments_text(&call.entry, &call.arguments, &*services.redactor)
            }),
            provenance: call.provenance.redacted(&*services.redactor),
            ..CallRecord::begin(op, services.clock.now())
        }
    }

    /// Ends a call that the check rejected.
    pub(super) async fn reject(&self, rejection: Rejection, run: &RunContext) -> Outcome {
        let mut outcome = Outcome::failed(rejection.call_id, rejection.error);
        let services = &self.options.services;
        let redactor = &*services.redactor;
        let entry = rejection.entry.as_deref();
        if let Some(entry) = entry {
            learn_secrets(entry, &rejection.arguments, redactor);
        }
        let arguments = match entry {
            Some(entry) => shown_arguments(entry, &rejection.arguments, redactor),
            None => redactor.redact_value(&rejection.arguments),
        };
        let characters_in = json_characters(&rejection.arguments);
        let mut record = CallRecord {
            characters_in,
            arguments: kept_arguments(characters_in, || arguments.to_string()),
            decided_by: Cow::Borrowed("check"),
            refused: Some(RefusedCall { name: redactor.redact(&rejection.name).into_owned(), arguments }),
            provenance: rejection.provenance.redacted(redactor),
            ..CallRecord::begin(self.begin(&run.lineage), services.clock.now())
        };
        self.finish(&mut outcome, entry, &mut record, run).await;
        outcome
    }

    /// Completes an outcome, reports it to observers, and writes it to ledger and journal. A failure of a sink is
    /// logged and does not change the outcome.
    pub(super) async fn finish(
        &self,
        outcome: &mut Outcome,
        entry: Option<&Entry>,
        record: &mut CallRecord,
        run: &RunContext,
    ) {
        let services = &self.options.services;
        let whole = services.clock.now().saturating_duration_since(record.started);
        outcome.latency = whole.saturating_sub(record.person_wait());
        if let Some(entry) = entry {
            name_tool(outcome, entry);
        }
        outcome.provenance = std::mem::take(&mut record.provenance);
        outcome.ran_with = record.ran_with.take();
        if record.attempts > 1 {
            outcome.extras.insert("attempts".into(), record.attempts.into());
        }
        if !record.waited.is_zero() {
            let waited_ms = u64::try_from(record.waited.as_millis()).unwrap_or(u64::MAX);
            outcome.extras.insert("wait_ms".into(), waited_ms.into());
        }
        if !record.person_wait().is_zero() {
            let person_ms = u64::try_from(record.person_wait().as_millis()).unwrap_or(u64::MAX);
            outcome.extras.insert("person_ms".into(), person_ms.into());
        }
        if run.is_plan {
            outcome.extras.insert(ENDED_MS.into(), services.clock.wall_ms().into());
        }
        // A failed call has no other place for its usage, and a resumed run reads it from the journal.
        if let Some(used) = record.used.as_ref().filter(|used| used.total() != Usage::default()) {
            if let Ok(usage) = serde_json::to_value(used.total()) {
                outcome.extras.entry("usage").or_insert(usage);
            }
            if let Some(usd) = used.cost(self.models.prices()).usd() {
                outcome.extras.insert("cost_usd".into(), usd.into());
            }
        }
        if outcome.pending.is_some() {
            return;
        }
        let cause = outcome.error.as_ref().and_then(ToolError::cancel_cause);
        let may_run_again = record.attempts == 0 || entry.is_some_and(Entry::is_resumable);
        outcome.is_left = cause == Some(CancelCause::Shutdown) && may_run_again;
        // If the run's driver has gone, the outcome of a call cancelled with it is unknown, as after a crash: the run
        // may be resumed.
        let abandoned = cause == Some(CancelCause::CallerGone) || outcome.is_left;
        // For a call that became a job, the journal already has the end that its caller got.
        if !abandoned && !run.is_job() {
            journal(outcome, run).await;
        }
        let characters_out = length_of(outcome);
        services.events.emit_end(outcome.ok, || self.finished(outcome, entry, record, run, characters_out));
        let name = entry.map(|entry| entry.id().into()).or_else(|| Some(record.refused.as_ref()?.name.as_str().into()));
        let appended = self.options.ledger.append(LedgerEntry {
            call: Some(outcome.call_id.clone()),
            status: Cow::Borrowed(status(outcome)),
            latency_us: micros(outcome.latency),
            wait_us: micros(record.waited),
            person_us: micros(record.person_wait()),
            attempts: record.attempts,
            cached: record.cached,
            characters_in: record.characters_in as u64,
            characters_out: characters_out as u64,
            validated: outcome.validated == Validated(true),
            decided_by: std::mem::take(&mut record.decided_by),
            approval: record.approval.word.map(Cow::Borrowed),
            provenance: outcome.provenance.clone(),
            arguments: record.arguments.take(),
            // A tool that takes secrets may repeat them, and short ones are recognised only by their place.
            result: entry
                .filter(|entry| entry.tool.secret_schema().is_none())
                .and_then(|_| kept_result(outcome, &*services.redactor)),
            note: failure_note(outcome, record).and_then(|text| note(text, &*services.redactor)),
            ..LedgerEntry::new(
                record.op.clone(),
                services.clock.wall_ms(),
                run.session.id.clone(),
                run.session.principal.id.as_str().into(),
                record.kind,
                name.unwrap_or_else(|| Arc::from("")),
            )
        });
        if appended == AppendStatus::Full {
            self.options.ledger.room().await;
        }
    }

    fn finished(
        &self,
        outcome: &Outcome,
        entry: Option<&Entry>,
        record: &CallRecord,
        run: &RunContext,
        characters_out: usize,
    ) -> Event {
        let redactor = &self.options.services.redactor;
        let refused = record.refused.as_ref();
        let wire_name =
            entry.map(|entry| Arc::clone(entry.shared_wire_name())).or_else(|| Some(refused?.name.as_str().into()));
        Event::ToolFinished {
            op: record.op.clone(),
            session: run.session.id.clone(),
            call: outcome.call_id.clone(),
            tool: outcome.tool.clone(),
            wire_name: wire_name.unwrap_or_else(|| Arc::from("")),
            refused: record.refused.clone(),
            namespace: outcome.namespace.clone(),
            provider: entry.map_or_else(|| Arc::from(""), |entry| Arc::clone(entry.provider_name())),
            mcp: entry.and_then(|entry| entry.provider.mcp_peer()),
            method: entry.and_then(Entry::method).map(Arc::from),
            origin: run.origin,
            model: run.model.as_deref().unwrap_or_default().to_owned(),
            attempts: record.attempts,
            ok: outcome.ok,
            error: outcome.error.as_ref().map(ToolError::kind),
            code: outcome.error.as_ref().and_then(ToolError::protocol).map(|error| error.code),
            message: outcome.error.as_ref().map(|error| redactor.redact(error.message()).into_owned()),
            latency_us: micros(outcome.latency),
            wait_us: micros(record.waited),
            person_us: micros(record.person_wait()),
            // The time before the tool began includes the wait for an approval.
            run_us: record
                .ran_after
                .map_or(0, |after| micros((outcome.latency + record.approval.took).saturating_sub(after))),
            queue: entry.filter(|_| record.attempts > 0 || !record.waited.is_zero()).map(queue),
            cached: record.cached,
            decided_by: record.decided_by.clone(),
            characters_in: record.characters_in,
            characters_out,
        }
    }

    /// Records a guard's decision in the ledger, under the guard's name.
    pub(super) fn record_guard(&self, op: Op, name: &str, status: &'static str, started: Instant, run: &RunContext) {
        let (clock, session) = (&self.options.services.clock, &run.session);
        let principal = session.principal.id.as_str().into();
        // If the ledger is full, the call itself waits for room.
        let _ = self.options.ledger.append(LedgerEntry {
            status: Cow::Borrowed(status),
            latency_us: micros(clock.now().saturating_duration_since(started)),
            ..LedgerEntry::new(op, clock.wall_ms(), session.id.clone(), principal, OpKind::Guard, name.into())
        });
    }
}

/// Returns the queue of this tool's calls.
fn queue(entry: &Entry) -> Arc<str> {
    entry.definition().queue.as_deref().map_or_else(|| Arc::clone(entry.provider_name()), Arc::from)
}

/// Returns why a call failed, or why the first models that it asked gave no result.
fn failure_note<'a>(outcome: &'a Outcome, record: &CallRecord) -> Option<&'a str> {
    let failed_models = || outcome.extras.get(FAILED_MODELS).filter(|_| !record.cached).and_then(Value::as_str);
    outcome.error.as_ref().map(ToolError::message).or_else(failed_models)
}

/// Returns `ok`, or the kind of failure.
fn status(outcome: &Outcome) -> &'static str {
    match (&outcome.error, outcome.ok) {
        (Some(error), _) => error.kind().as_str(),
        (None, true) => "ok",
        (None, false) => ErrorKind::ExecutionError.as_str(),
    }
}

/// Returns the arguments as the ledger keeps them: whole, or nothing if they are too long.
fn kept_arguments(characters: usize, to_text: impl FnOnce() -> String) -> Option<Box<str>> {
    if characters > MAX_KEPT {
        return None;
    }
    Some(to_text()).filter(|text| text.len() <= MAX_KEPT).map(String::into_boxed_str)
}

/// Returns the beginning of a result's text for the ledger. For a failed call, the note has that text.
fn kept_result(outcome: &Outcome, redactor: &dyn Redactor) -> Option<Box<str>> {
    if outcome.error.is_some() {
        return None;
    }
    let text = outcome.content.iter().find_map(|block| block.as_text())?;
    // A secret that the limit cuts in two could not be recognised, so more is redacted first.
    let beginning = &text[..text.floor_char_boundary(2 * MAX_KEPT)];
    let redacted = redactor.redact(beginning);
    Some(redacted[..redacted.floor_char_boundary(MAX_KEPT)].into())
}

/// Returns the characters of an outcome's text, or of the result of a protocol method, which has no text.
fn length_of(outcome: &Outcome) -> usize {
    let texts = outcome.content.iter().filter_map(|block| block.as_text());
    let text: usize = texts.map(|text| text.chars().count()).sum();
    text + outcome.extras.get(METHOD_RESULT).map_or(0, json_characters)
}

/// Writes the tool's name into an outcome.
pub(super) fn name_tool(outcome: &mut Outcome, entry: &Entry) {
    outcome.tool = Some(entry.id().clone());
    outcome.kind = Some(entry.provider.kind());
    outcome.namespace = entry.id().namespace().to_owned();
}

/// Key in the extras of a plan's calls: their end time, in milliseconds since 1970.
pub const ENDED_MS: &str = "ended_ms";

/// Writes an outcome to the journal of its run, if there is one.
pub(super) async fn journal(outcome: &Outcome, run: &RunContext) {
    if let Some((journal, id)) = &run.journal
        && let Err(error) = journal.call_finished(id, outcome).await
    {
        tracing::error!(run = &**id, "an outcome was not journalled: {error}");
    }
}

const REFUSED: &str = "the call was not made: it cannot be recorded, because the ledger of Toolwright cannot be written. \
                       Tell the user that whoever operates Toolwright must fix that; the log says what is wrong.";

impl Executor {
    /// Records that the call begins, unless a trusted source declares its tool read-only. Without an end of the call, the
    /// record shows that the outcome is unknown.
    pub(super) async fn enter_begun(
        &self,
        call: &ValidCall,
        run: &RunContext,
        record: &CallRecord,
    ) -> Result<(), ToolError> {
        let required = self.options.defaults.ledger == LedgerMode::Required;
        if !required && run.policy.effects_if_trusted(&run.query(call, CallScope::Anywhere)).read_only {
            return Ok(());
        }
        let entry = LedgerEntry {
            call: Some(call.id.clone()),
            status: Cow::Borrowed(RUNNING),
            wait_us: micros(record.waited),
            characters_in: record.characters_in as u64,
            validated: call.unvalidated.is_none(),
            decided_by: record.decided_by.clone(),
            approval: record.approval.word.map(Cow::Borrowed),
            person_us: micros(record.approval.took),
            provenance: record.provenance.clone(),
            arguments: record.arguments.clone(),
            ..LedgerEntry::new(
                record.op.clone(),
                self.options.services.clock.wall_ms(),
                run.session.id.clone(),
                run.session.principal.id.as_str().into(),
                record.kind,
                call.entry.id().into(),
            )
        };
        let entered = tokio::select! {
            biased;
            entered = self.options.ledger.begin(entry) => entered,
            cause = run.cancel.cancelled() => return Err(ToolError::canceled(cause)),
        };
        match entered {
            // The store has logged the error.
            Err(error) if !required => tracing::debug!(tool = %call.entry.id(), "not entered as begun: {error}"),
            Err(error) => {
                let message = format!(
                    "the call was not made, because the ledger cannot be written: {error}; `defaults.ledger: required` \
                     refuses calls until it can"
                );
                let refused = ToolError::new(ErrorKind::LimitExceeded, message).with_model_message(REFUSED);
                return Err(refused.with_source(error).retryable());
            }
            Ok(()) => {}
        }
        Ok(())
    }
}

/// Sums the usage of one call, and passes it on to the run's recorder.
#[derive(Default)]
pub(super) struct CallUsage {
    run: Option<Arc<dyn UsageRecorder>>,
    total: Mutex<BTreeMap<String, Usage>>,
}

impl std::fmt::Debug for CallUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallUsage").field("total", &self.total).finish_non_exhaustive()
    }
}

impl CallUsage {
    /// Returns the context for the call's requests to models, with their sum. `None` if the run records no usage and
    /// the tool asks no model itself. If the run records usage, every tool gets one, because its source may ask the
    /// client for sampling.
    pub(super) fn of(call: &ValidCall, run: &RunContext) -> Option<(Arc<Self>, Box<RunContext>)> {
        let is_agent = call.entry.provider.kind() == ProviderKind::Agent;
        if run.usage.is_none() && !is_agent && !asks_by_model(&call.entry) {
            return None;
        }
        let used = Arc::new(Self { run: run.usage.clone(), total: Mutex::default() });
        let run = Box::new(RunContext { usage: Some(Arc::clone(&used) as _), ..run.clone() });
        Some((used, run))
    }

    /// Returns the usage so far.
    pub(super) fn total(&self) -> Usage {
        let mut total = Usage::default();
        self.total.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(|used| total.add(*used));
        total
    }

    /// Returns its cost.
    pub(super) fn cost(&self, prices: &PriceTable) -> Cost {
        let mut cost = Cost::default();
        let total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        total.iter().for_each(|(model, used)| cost.add(Cost::of_usage(*used, prices.of(model))));
        cost
    }
}

impl UsageRecorder for CallUsage {
    fn record(&self, model: &str, usage: Usage) {
        let mut total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        total.entry(model.to_owned()).or_default().add(usage);
        drop(total);
        if let Some(run) = &self.run {
            run.record(model, usage);
        }
    }

    fn resumed(&self, model: &str, usage: Usage) {
        self.total.lock().unwrap_or_else(PoisonError::into_inner).entry(model.to_owned()).or_default().add(usage);
        if let Some(run) = &self.run {
            run.resumed(model, usage);
        }
    }
}
