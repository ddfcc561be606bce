//! Records each request to a model: every attempt, failures included, is written to the ledger and reported to
//! observers.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;
use toolwright_core::cancel::Cancel;
use toolwright_core::content::joined_text;
use toolwright_core::error::ErrorKind;
use toolwright_core::event::Event;
use toolwright_core::exposure::ExposureRecord;
use toolwright_core::model::{
    Message, ModelClient, ModelError, ModelErrorKind, ModelEvent, ModelEvents, ModelRequest, ModelResponse,
    NativeOutput, RawToolCall, RequestProgress, Usage,
};
use toolwright_core::operation::{Op, OpKind};
use toolwright_core::session::{CallId, Session};
use toolwright_core::store::{LedgerEntry, note};

use super::micros;
use super::requests::ModelRequests;

/// A request to a model whose start was reported to observers.
#[derive(Debug)]
pub struct ModelAsk<'a> {
    /// The operation.
    pub op: Op,
    /// The session on whose behalf it is made.
    pub session: &'a Session,
    /// `provider/model`.
    pub model: &'a str,
    /// The content of the request.
    pub question: ModelQuestion<'a>,
    /// The shown part of the catalogue, if tools are shown.
    pub tools: Option<ExposureRecord>,
    /// What the answer goes without, whatever the model is sent. The parts that are not sent are added.
    pub lost: Vec<&'static str>,
    /// The reason for showing these tools.
    pub note: Option<String>,
}

/// The kind of request to a model.
#[derive(Debug, Clone, Copy)]
pub enum ModelQuestion<'a> {
    /// A request for an answer.
    Answer(&'a ModelRequest),
    /// Another request, of this many characters. It is not recorded.
    Other {
        /// The characters.
        characters: u64,
    },
}

impl ModelQuestion<'_> {
    fn characters(self) -> u64 {
        match self {
            Self::Answer(request) => request_characters(request),
            Self::Other { characters } => characters,
        }
    }
}

/// A request to a model in flight. [`ModelCallRecord::end`] reports and records its end. If dropped earlier, it is
/// recorded as cancelled.
pub struct ModelCallRecord<'a> {
    requests: &'a ModelRequests,
    ask: ModelAsk<'a>,
    state: Mutex<State>,
}

impl std::fmt::Debug for ModelCallRecord<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelCallRecord").field("ask", &self.ask).finish_non_exhaustive()
    }
}

/// The progress of a request.
struct State {
    started: Instant,
    /// The start of this attempt, including its wait.
    since: Instant,
    /// The number of the current or last attempt, from 1; 0 while the first waits.
    attempt: u32,
    /// The number of failed attempts.
    failed: u32,
    waited_us: u64,
    /// The queue in which it waits.
    waits: Option<Arc<str>>,
    /// Whether its attempt may have been sent. Always, if its client does not report waits.
    in_flight: bool,
    /// The parts that this attempt is sent without.
    lost: Vec<&'static str>,
    /// The request for the recording, if it is recorded.
    recorded: Option<Value>,
    ended: bool,
}

/// An attempt's row in the ledger.
struct Row {
    op: Op,
    attempt: u32,
    failed: Option<ModelErrorKind>,
    /// The reason.
    why: Option<String>,
    usage: Usage,
    cost_usd: Option<f64>,
    latency_us: u64,
    wait_us: u64,
    characters_in: u64,
    characters_out: u64,
    lost: Vec<&'static str>,
}

impl<'a> ModelCallRecord<'a> {
    /// Opens the record of a request that begins now.
    pub(super) fn open(requests: &'a ModelRequests, ask: ModelAsk<'a>) -> Self {
        let now = requests.services.clock.now();
        let recorded = match ask.question {
            ModelQuestion::Answer(request) => requests.recorder.recorded_request(request, &*requests.services.redactor),
            ModelQuestion::Other { .. } => None,
        };
        let state = State {
            started: now,
            since: now,
            attempt: 1,
            failed: 0,
            waited_us: 0,
            waits: None,
            in_flight: true,
            lost: Vec::new(),
            recorded,
            ended: false,
        };
        Self { requests, ask, state: Mutex::new(state) }
    }
}

impl ModelCallRecord<'_> {
    /// Returns the event sink for the request's client. It passes events on to `events`, and records attempts and waits
    /// here.
    pub fn watch<'e>(&'e self, events: &'e dyn ModelEvents) -> impl ModelEvents + 'e {
        WatchedEvents { record: self, events }
    }

    /// Sends the request by `client`, within the budget of its principal, until it is cancelled. `events` gets its
    /// events as by [`ModelCallRecord::watch`]. Call [`ModelCallRecord::end`] afterwards.
    ///
    /// # Errors
    /// [`ModelError`] of the client; `Canceled` once it is cancelled, `Quota` for the budget.
    pub async fn complete(
        &self,
        client: &dyn ModelClient,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let (model, requests) = (self.ask.model, self.requests);
        let room = match &requests.budgets {
            Some(budgets) => {
                let (principal, now) = (&self.ask.session.principal, requests.services.clock.wall_ms());
                budgets.reserve(principal, (model, request), client, &requests.prices, now).await?
            }
            None => None,
        };
        let events = self.watch(events);
        let answer = tokio::select! {
            biased;
            cause = cancel.cancelled() => {
                Err(ModelError::new(ModelErrorKind::Canceled, format!("cancelled {}", cause.describe())))
            }
            answer = client.complete(model, request, &events, cancel) => answer,
        };
        if let Some(room) = room {
            room.settle(&requests.prices, model, answer.as_ref()).await;
        }
        answer
    }

    /// Ends the record. Later ends are ignored.
    pub fn end(&self, answer: &Result<ModelResponse, ModelError>) {
        let services = &self.requests.services;
        let now = services.clock.now();
        let mut state = self.state();
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        let began = state.waits.is_none();
        let here = micros(now.saturating_duration_since(state.since));
        self.waited(&mut state, false, here);
        let (usage, characters_out) = match answer {
            Ok(answer) => (answer.usage, answer_characters(answer)),
            Err(error) => (error.usage, 0),
        };
        let error = answer.as_ref().err();
        // A request that the provider never received costs nothing, for example one that was given up in its queue or
        // before a retry.
        let unsent = error.is_some_and(|error| error.unsent || !state.in_flight);
        let row = Row {
            op: self.ask.op.clone(),
            attempt: state.attempt,
            failed: error.map(|error| error.kind),
            why: error.map(|error| error.message.clone()),
            usage,
            cost_usd: if unsent { Some(0.0) } else { self.cost(usage) },
            latency_us: here,
            wait_us: if began { state.waited_us } else { here },
            characters_in: self.ask.question.characters(),
            characters_out,
            lost: std::mem::take(&mut state.lost),
        };
        services.events.emit_end(answer.is_ok(), || Event::ModelFinished {
            op: self.ask.op.clone(),
            session: self.ask.session.id.clone(),
            model: self.ask.model.to_owned(),
            attempt: row.attempt,
            ok: answer.is_ok(),
            error: row.failed,
            message: error.map(|error| services.redactor.redact(&error.message).into_owned()),
            stop: answer.as_ref().ok().map(|answer| answer.stop.clone()),
            latency_us: micros(now.saturating_duration_since(state.started)),
            usage,
            cost_usd: row.cost_usd,
            characters_in: row.characters_in,
            characters_out,
        });
        let recorded = state.recorded.take();
        drop(state);
        self.enter(row);
        if let Ok(answer) = answer {
            self.enter_native(&answer.native);
        }
        if let Some(request) = recorded {
            let recorder = &self.requests.recorder;
            if let Err(message) = recorder.answered(self.ask.model, request, answer, &*services.redactor) {
                services.events.emit_with(|| Event::Warning { code: "not_recorded".to_owned(), message });
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cost(&self, usage: Usage) -> Option<f64> {
        self.requests.prices.of(self.ask.model)?.known_cost(usage)
    }

    fn traffic(&self, traffic: &RequestProgress) {
        let services = &self.requests.services;
        let mut state = self.state();
        match traffic {
            RequestProgress::Waits { queue } => {
                state.waits = Some(Arc::clone(queue));
                state.in_flight = false;
                state.attempt = state.failed;
                state.since = services.clock.now();
                services.events.emit_routine(|| Event::ModelWait {
                    op: self.ask.op.clone(),
                    model: self.ask.model.to_owned(),
                    queue: queue.to_string(),
                });
            }
            RequestProgress::Began { attempt, waited_us } => {
                if state.waits.is_none() {
                    state.since = services.clock.now();
                }
                state.in_flight = true;
                state.attempt = *attempt;
                state.waited_us = *waited_us;
                self.waited(&mut state, true, *waited_us);
            }
            RequestProgress::Failed { attempt, kind, message, unsent, usage, latency_us, again_in_ms } => {
                let row = Row {
                    // An operation separate from that of the request.
                    op: self.requests.ids.begin(&self.ask.op.lineage),
                    attempt: *attempt,
                    failed: Some(*kind),
                    why: Some(message.clone()),
                    usage: *usage,
                    cost_usd: if *unsent { Some(0.0) } else { self.cost(*usage) },
                    latency_us: latency_us.saturating_add(state.waited_us),
                    wait_us: state.waited_us,
                    characters_in: self.ask.question.characters(),
                    characters_out: 0,
                    lost: std::mem::take(&mut state.lost),
                };
                (state.failed, state.waited_us, state.since) = (*attempt, 0, services.clock.now());
                state.in_flight = false;
                drop(state);
                services.events.emit_with(|| Event::ModelRetried {
                    op: self.ask.op.clone(),
                    session: self.ask.session.id.clone(),
                    model: self.ask.model.to_owned(),
                    attempt: row.attempt,
                    error: *kind,
                    message: services.redactor.redact(message).into_owned(),
                    latency_us: row.latency_us,
                    usage: *usage,
                    cost_usd: row.cost_usd,
                    again_in_ms: *again_in_ms,
                });
                self.enter(row);
            }
            RequestProgress::Lost(parts) => state.lost.clone_from(parts),
            RequestProgress::Shortened { sent, read } => services.events.emit_with(|| Event::Warning {
                code: "prompt_truncated".to_owned(),
                message: format!(
                    "{} read {read} tokens of about {sent} that were sent: its server has shortened the conversation, or \
                     counts only what it had not cached; `window` under models sets how much it keeps",
                    self.ask.model
                ),
            }),
            RequestProgress::FirstByte | RequestProgress::Limits(_) => {}
        }
    }

    /// Records the end of a wait, if there was one.
    fn waited(&self, state: &mut State, ok: bool, wait_us: u64) {
        if let Some(queue) = state.waits.take() {
            self.requests.services.events.emit_end(ok, || Event::ModelWaited {
                op: self.ask.op.clone(),
                model: self.ask.model.to_owned(),
                queue: queue.to_string(),
                ok,
                wait_us,
            });
        }
    }

    fn enter(&self, row: Row) {
        let session = self.ask.session;
        let redactor = &*self.requests.services.redactor;
        let words: Vec<&str> = [&row.why, &self.ask.note].into_iter().flatten().map(String::as_str).collect();
        // Waiting for the ledger is acceptable: waits for a model take far longer, and such entries are few.
        let _ = self.requests.ledger.append(LedgerEntry {
            status: Cow::Borrowed(row.failed.map_or("ok", ModelErrorKind::as_str)),
            latency_us: row.latency_us,
            wait_us: row.wait_us,
            attempts: row.attempt,
            characters_in: row.characters_in,
            characters_out: row.characters_out,
            usage: row.usage,
            cost_usd: row.cost_usd,
            tools: self.ask.tools,
            lost: row.lost.iter().chain(&self.ask.lost).copied().map(Cow::Borrowed).collect(),
            note: note(&words.join("; "), redactor),
            ..LedgerEntry::new(
                row.op,
                self.requests.services.clock.wall_ms(),
                session.id.clone(),
                session.principal.id.as_str().into(),
                OpKind::Model,
                self.ask.model.into(),
            )
        });
    }
}

impl ModelCallRecord<'_> {
    /// Writes a row for each use of a tool that the provider ran itself. The first row of each tool has the price, as
    /// the provider counts.
    fn enter_native(&self, output: &NativeOutput) {
        let session = self.ask.session;
        let mut priced = Vec::new();
        for used in &output.uses {
            let is_first = !priced.contains(&used.tool);
            let cost = self.requests.prices.of_uses(self.ask.model, used.tool, output);
            priced.push(used.tool);
            let _ = self.requests.ledger.append(LedgerEntry {
                status: Cow::Borrowed(if used.ok { "ok" } else { ErrorKind::ExecutionError.as_str() }),
                call: Some(CallId::new(used.id.as_str())).filter(|_| !used.id.is_empty()),
                characters_in: u64::try_from(used.input.to_string().chars().count()).unwrap_or(u64::MAX),
                cost_usd: cost.filter(|_| is_first),
                decided_by: Cow::Borrowed("listing"),
                ..LedgerEntry::new(
                    self.requests.ids.begin(&self.ask.op.inside()),
                    self.requests.services.clock.wall_ms(),
                    session.id.clone(),
                    session.principal.id.as_str().into(),
                    OpKind::Tool,
                    used.tool.id().into(),
                )
            });
        }
    }
}

impl Drop for ModelCallRecord<'_> {
    fn drop(&mut self) {
        self.end(&Err(ModelError::new(ModelErrorKind::Canceled, "cancelled because nobody waited for the answer")));
    }
}

struct WatchedEvents<'e> {
    record: &'e ModelCallRecord<'e>,
    events: &'e dyn ModelEvents,
}

impl ModelEvents for WatchedEvents<'_> {
    fn on_event(&self, event: ModelEvent) {
        self.events.on_event(event);
    }

    fn on_traffic(&self, traffic: RequestProgress) {
        self.record.traffic(&traffic);
        self.events.on_traffic(traffic);
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

fn call_characters(calls: &[RawToolCall]) -> u64 {
    calls.iter().map(|call| characters(&call.name) + characters(&call.arguments)).sum()
}
