//! The end of every call: its outcome is noted, told and entered in the account, whatever it is.

use std::time::{Duration, Instant};

use serde_json::Value;
use toolwright_core::arguments::Provenance;
use toolwright_core::call::{Rejection, ValidCall};
use toolwright_core::catalogue::Entry;
use toolwright_core::content::joined_text;
use toolwright_core::event::{Event, Refused};
use toolwright_core::model::{Message, ModelError, ModelRequest, ModelResponse, Usage, WrittenCall};
use toolwright_core::operation::Op;
use toolwright_core::outcome::{Outcome, Validated};
use toolwright_core::select::Showing;
use toolwright_core::session::Session;
use toolwright_core::store::LedgerEntry;

use super::in_flight::Entered;
use super::stage::Stage;
use super::{Executor, RunContext};

/// A request to a model that has ended.
#[derive(Debug)]
pub struct ModelAttempt<'a> {
    /// The operation; see [`Executor::begin`].
    pub op: Op,
    /// On whose behalf.
    pub session: &'a Session,
    /// `provider/model`.
    pub model: &'a str,
    /// What was asked.
    pub request: &'a ModelRequest,
    /// What it showed of the catalogue, where tools were shown.
    pub tools: Option<Showing>,
    /// When it began.
    pub started: Instant,
}

/// What the account says of a call besides its outcome.
#[derive(Debug)]
pub(super) struct Account {
    /// `tool`, or `job` for what goes on of a call that was answered.
    pub(super) kind: &'static str,
    /// The operation.
    pub(super) op: Op,
    /// The call is under way for as long as its account is open.
    _entered: Option<Entered>,
    /// Where the call is.
    pub(super) stage: Stage,
    /// How long it waited for slot and lock.
    pub(super) waited: Duration,
    /// How often it was dispatched.
    pub(super) attempts: u32,
    /// When it began.
    started: Instant,
    /// Characters of arguments.
    pub(super) characters_in: usize,
    /// What decided that it may, or may not, run.
    pub(super) decided_by: String,
    /// What was asked for, when it never started.
    pub(super) refused: Option<Refused>,
    /// What was done to name and arguments, redacted.
    pub(super) provenance: Provenance,
    /// The arguments that it ran with, redacted, if something was done to them.
    pub(super) ran_with: Option<Value>,
}

impl Executor {
    /// Begins the account of a call.
    pub(super) fn open_account(&self, call: &ValidCall, run: &RunContext) -> Account {
        let op = self.begin(&run.lineage);
        Account {
            kind: "tool",
            _entered: Some(self.in_flight.enter(op.id, &call.entry.provider, &run.cancel)),
            op,
            stage: Stage::default(),
            waited: Duration::ZERO,
            attempts: 0,
            started: self.options.services.clock.now(),
            characters_in: argument_length(call),
            decided_by: String::new(),
            refused: None,
            provenance: call.provenance.redacted(&*self.options.services.redactor),
            ran_with: None,
        }
    }

    /// The end of a call that never came to run.
    pub(super) async fn reject(&self, rejection: Rejection, run: &RunContext) -> Outcome {
        let outcome = Outcome::failed(rejection.call_id, rejection.error);
        let redactor = &*self.options.services.redactor;
        let refused = Refused { name: rejection.name, arguments: redactor.redact_value(&rejection.arguments) };
        let account = Account {
            kind: "tool",
            op: self.begin(&run.lineage),
            _entered: None,
            stage: Stage::default(),
            waited: Duration::ZERO,
            attempts: 0,
            started: self.options.services.clock.now(),
            characters_in: 0,
            decided_by: "check".into(),
            refused: Some(refused),
            provenance: rejection.provenance.redacted(redactor),
            ran_with: None,
        };
        self.finish(outcome, rejection.entry.as_deref(), account, run).await
    }

    /// Completes an outcome with what is known of the tool, tells observers, and enters it in ledger
    /// and journal. A sink that fails is logged; it never changes the outcome.
    pub(super) async fn finish(
        &self,
        mut outcome: Outcome,
        entry: Option<&Entry>,
        account: Account,
        run: &RunContext,
    ) -> Outcome {
        let services = &self.options.services;
        outcome.latency = services.clock.now().saturating_duration_since(account.started);
        if let Some(entry) = entry {
            outcome.tool = Some(entry.id().clone());
            outcome.kind = Some(entry.provider.kind());
            outcome.namespace = entry.id().namespace().to_owned();
        }
        outcome.provenance = account.provenance;
        outcome.ran_with = account.ran_with;
        if account.attempts > 1 {
            outcome.extras.insert("attempts".into(), account.attempts.into());
        }
        if !account.waited.is_zero() {
            let waited_ms = u64::try_from(account.waited.as_millis()).unwrap_or(u64::MAX);
            outcome.extras.insert("wait_ms".into(), waited_ms.into());
        }
        if outcome.pending.is_some() {
            return outcome;
        }
        if let Some((journal, id)) = &run.journal
            && let Err(error) = journal.call_finished(id, &outcome).await
        {
            tracing::error!(run = &**id, "an outcome was not journalled: {error}");
        }
        let characters_out =
            outcome.content.iter().filter_map(|block| block.as_text()).map(|text| text.chars().count()).sum();
        let latency_ms = u64::try_from(outcome.latency.as_millis()).unwrap_or(u64::MAX);
        let kind = outcome.error.as_ref().map(toolwright_core::ToolError::kind);
        services.events.emit(Event::ToolFinished {
            op: account.op.clone(),
            session: run.session.id.clone(),
            call: outcome.call_id.clone(),
            tool: outcome.tool.clone(),
            refused: account.refused,
            namespace: outcome.namespace.clone(),
            ok: outcome.ok,
            error: kind,
            message: outcome.error.as_ref().map(|error| services.redactor.redact(error.message()).into_owned()),
            latency_ms,
            characters_in: account.characters_in,
            characters_out,
        });
        self.options.ledger.append(LedgerEntry {
            op: account.op,
            at_ms: services.clock.wall_ms(),
            session: run.session.id.clone(),
            principal: run.session.principal.id.clone(),
            kind: account.kind.into(),
            call: Some(outcome.call_id.clone()),
            name: outcome.tool.as_ref().map(ToString::to_string).unwrap_or_default(),
            status: kind.map_or("ok", toolwright_core::ErrorKind::as_str).to_owned(),
            latency_ms,
            characters_in: account.characters_in as u64,
            characters_out: characters_out as u64,
            usage: Usage::default(),
            cost_usd: None,
            validated: outcome.validated == Validated(true),
            decided_by: account.decided_by,
            provenance: outcome.provenance.clone(),
            tools: None,
        });
        outcome
    }

    /// Enters a guard's judgement in the account, by the guard's name.
    pub(super) fn account_guard(&self, op: Op, name: &str, status: &str, started: Instant, run: &RunContext) {
        let clock = &self.options.services.clock;
        let latency = clock.now().saturating_duration_since(started);
        self.options.ledger.append(LedgerEntry {
            op,
            at_ms: clock.wall_ms(),
            session: run.session.id.clone(),
            principal: run.session.principal.id.clone(),
            kind: "guard".into(),
            call: None,
            name: name.to_owned(),
            status: status.to_owned(),
            latency_ms: u64::try_from(latency.as_millis()).unwrap_or(u64::MAX),
            characters_in: 0,
            characters_out: 0,
            usage: Usage::default(),
            cost_usd: None,
            validated: false,
            decided_by: String::new(),
            provenance: Provenance::default(),
            tools: None,
        });
    }

    /// Enters a request to a model in the account, failures too, with what it showed of the catalogue.
    pub fn account_model(&self, attempt: ModelAttempt<'_>, answer: &Result<ModelResponse, ModelError>) {
        let ModelAttempt { op, session, model, request, tools, started } = attempt;
        let clock = &self.options.services.clock;
        let latency = clock.now().saturating_duration_since(started);
        let status = match answer {
            Ok(_) => "ok".to_owned(),
            Err(error) => match serde_json::to_value(error.kind) {
                Ok(Value::String(name)) => name,
                _ => format!("{:?}", error.kind),
            },
        };
        let (usage, characters_out) =
            answer.as_ref().map(|answer| (answer.usage, answer_characters(answer))).unwrap_or_default();
        self.options.ledger.append(LedgerEntry {
            op,
            at_ms: clock.wall_ms(),
            session: session.id.clone(),
            principal: session.principal.id.clone(),
            kind: "model".into(),
            call: None,
            name: model.to_owned(),
            status,
            latency_ms: u64::try_from(latency.as_millis()).unwrap_or(u64::MAX),
            characters_in: request_characters(request),
            characters_out,
            usage,
            cost_usd: None,
            validated: false,
            decided_by: String::new(),
            provenance: Provenance::default(),
            tools,
        });
    }
}

fn characters(text: &str) -> u64 {
    text.chars().count() as u64
}

fn request_characters(request: &ModelRequest) -> u64 {
    let message = |message: &Message| match message {
        Message::User { content } => characters(&joined_text(content)),
        Message::Assistant { text, calls, .. } => characters(text) + call_characters(calls),
        Message::Tool { results } => results.iter().map(|result| characters(&joined_text(&result.content))).sum(),
    };
    characters(&request.system) + request.messages.iter().map(message).sum::<u64>()
}

fn answer_characters(answer: &ModelResponse) -> u64 {
    characters(&answer.text) + call_characters(&answer.calls)
}

fn call_characters(calls: &[WrittenCall]) -> u64 {
    calls.iter().map(|call| characters(&call.name) + characters(&call.arguments)).sum()
}

/// Characters of a call's arguments as JSON.
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
