//! Builds spans from events.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use hashbrown::HashMap;
use serde_json::Value as Json;
use toolwright_core::event::{Event, McpPeer};
use toolwright_core::job::JobState;
use toolwright_core::model::Usage;
use toolwright_core::operation::{CallOrigin, Op, OpId, TraceId};
use toolwright_core::session::{CallId, SessionId};
use toolwright_core::tool_id::{ToolId, wire_candidate};

use crate::semconv::{self, provider_and_model};

/// Maximal bytes of an attribute's text; longer ones are cut.
const MAX_TEXT: usize = 16 << 10;
/// How long events are collected before they are observed, so that the observer is not woken for each. An event is observed up
/// to this long after it happened.
pub(crate) const BATCH_WINDOW: Duration = Duration::from_millis(5);
/// Usual number of attributes, so that the list seldom grows.
const USUAL_ATTRIBUTES: usize = 14;

/// A finished operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// The operation's id, which `traceparent` carries to peers.
    pub id: OpId,
    /// The span that it is part of, perhaps a peer's.
    pub parent: Option<OpId>,
    /// Its name, of low cardinality: `execute_tool {tool}`, `resources/read`, `chat {model}`,
    /// `invoke_agent {agent}`.
    pub name: String,
    /// Side of a request.
    pub kind: SpanKind,
    /// Start time.
    pub start: SystemTime,
    /// End time, not before `start`.
    pub end: SystemTime,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
    /// The failure, if any; with [`Content::Recorded`] the error message.
    pub failure: Option<String>,
}

/// Side of a request that a span describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A request to another process.
    Client,
    /// Neither side.
    Internal,
}

/// An attribute of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub key: &'static str,
    /// Its value.
    pub value: Value,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text of at most 16 KiB.
    Text(Cow<'static, str>),
    /// Several of them.
    Texts(Vec<String>),
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

/// Whether spans carry content: arguments and error messages, redacted. Without it they carry only names, times, sizes and kinds
/// of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// They do not.
    #[default]
    Omitted,
    /// They do.
    Recorded,
}

/// Options for spans.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpanOptions {
    /// Whether they carry content.
    pub content: Content,
    /// The share of traces that is recorded, from 0 to 1. It depends on the trace id alone, as with OpenTelemetry's
    /// `TraceIdRatioBased`: a trace is recorded whole or not at all, across processes.
    pub sample_ratio: f64,
    /// The most open operations. If there are more, the oldest ends unfinished.
    pub max_open: usize,
}

impl Default for SpanOptions {
    fn default() -> Self {
        Self { content: Content::Omitted, sample_ratio: 1.0, max_open: 4096 }
    }
}

/// The open operations. Pure: the output depends only on the given events and times.
#[derive(Debug, Default)]
pub struct Spans {
    options: SpanOptions,
    open: HashMap<OpId, Span>,
}

impl Spans {
    /// A builder without open operations.
    #[must_use]
    pub fn new(options: SpanOptions) -> Self {
        Self { options, open: HashMap::new() }
    }

    /// Processes an event at `now`, and adds the spans that it ends to `ended`.
    pub fn observe(&mut self, event: &Event, now: SystemTime, ended: &mut Vec<Span>) {
        match event {
            Event::RunStarted { op, .. }
            | Event::ToolStarted { op, .. }
            | Event::JobStarted { op, .. }
            | Event::ModelStarted { op, .. }
                // A retried call starts again.
                if self.samples(op) && !self.open.contains_key(&op.id) =>
            {
                self.begin(event, since(event, now), ended);
            }
            Event::RunFinished { op, .. }
            | Event::ToolFinished { op, .. }
            | Event::JobFinished { op, .. }
            | Event::ModelFinished { op, .. }
                if self.samples(op) =>
            {
                let span = self.open.remove(&op.id).or_else(|| {
                    // A call that was refused, cached or short has no start event.
                    begun(event, self.options.content, since(event, now))
                });
                if let Some(mut span) = span {
                    let within = span.parent.and_then(|parent| self.open.get(&parent)).map(|parent| parent.start);
                    // A child does not start before its parent.
                    let earliest = within.map_or(SystemTime::UNIX_EPOCH, |start| start.min(span.start));
                    span.start = on_time(span.start, event, now).max(earliest);
                    finish(&mut span, event, self.options.content);
                    ended.push(span.ended(now));
                }
            }
            _ => {}
        }
    }

    /// Ends open spans as unfinished.
    pub fn close(&mut self, now: SystemTime, ended: &mut Vec<Span>) {
        let from = ended.len();
        ended.extend(self.open.drain().map(|(_, span)| span.unfinished(now)));
        ended[from..].sort_by_key(|span| (span.start, span.id));
    }

    fn samples(&self, op: &Op) -> bool {
        // The lower 63 bits of the id as a fraction of one.
        let place = (op.lineage.trace.get() as u64 >> 1) as f64;
        self.options.sample_ratio >= 1.0 || place < self.options.sample_ratio * (1_u64 << 63) as f64
    }

    fn begin(&mut self, event: &Event, now: SystemTime, ended: &mut Vec<Span>) {
        if self.open.len() >= self.options.max_open {
            let oldest = self.open.values().min_by_key(|span| (span.start, span.id)).map(|span| span.id);
            ended.extend(oldest.and_then(|id| self.open.remove(&id)).map(|span| span.unfinished(now)));
        }
        self.open.extend(begun(event, self.options.content, now).map(|span| (span.id, span)));
    }
}

/// The start time of an operation by an event at `now`.
fn since(event: &Event, now: SystemTime) -> SystemTime {
    let ago = match event {
        Event::ToolStarted { after_us, .. } => *after_us,
        Event::ToolFinished { run_us, .. } if *run_us > 0 => *run_us,
        Event::RunFinished { latency_us, .. }
        | Event::ToolFinished { latency_us, .. }
        | Event::JobFinished { latency_us, .. }
        | Event::ModelFinished { latency_us, .. } => *latency_us,
        _ => 0,
    };
    now.checked_sub(Duration::from_micros(ago)).unwrap_or(now)
}

/// The start time of an operation whose start event was observed at `start` and whose end event at `now`. Both may have been
/// observed up to [`BATCH_WINDOW`] late; the end event has the duration.
fn on_time(start: SystemTime, event: &Event, now: SystemTime) -> SystemTime {
    let took = match event {
        Event::ToolFinished { run_us, .. } => *run_us,
        Event::ModelFinished { latency_us, .. } => *latency_us,
        _ => return start,
    };
    // For longer operations the delay does not matter.
    if now.duration_since(start).is_ok_and(|heard| heard >= 2 * BATCH_WINDOW) || now < start {
        return start;
    }
    let began = now.checked_sub(Duration::from_micros(took)).unwrap_or(start);
    // A longer duration includes time before the start.
    let earliest = start.checked_sub(BATCH_WINDOW).unwrap_or(start);
    began.max(earliest).min(start)
}

/// The span of an event, at its start.
fn begun(event: &Event, content: Content, start: SystemTime) -> Option<Span> {
    let span = match event {
        Event::RunStarted { op, session, agent, .. } | Event::RunFinished { op, session, agent, .. } => {
            let name = match agent {
                Some(agent) => [semconv::INVOKE_AGENT, " ", agent].concat(),
                None => semconv::INVOKE_AGENT.to_owned(),
            };
            let mut span = Span::begun(op, name, SpanKind::Internal, start);
            span.word(semconv::OPERATION, semconv::INVOKE_AGENT);
            if let Some(agent) = agent {
                span.text(semconv::AGENT_NAME, agent);
            }
            if let Event::RunStarted { model, .. } = event {
                span.model(model);
            }
            span.session(session)
        }
        Event::ToolStarted { op, session, call, tool, wire_name, mcp, method, origin, arguments, .. } => {
            let method = method.as_deref();
            let span = call_span(op, Some(tool), wire_name, method, start);
            let mut span = span.call(call, session, mcp.as_ref(), method, *origin);
            if content == Content::Recorded {
                span.content(method, arguments);
            }
            span
        }
        Event::ToolFinished { op, session, call, tool, wire_name, mcp, method, origin, .. } => {
            let method = method.as_deref();
            let span = call_span(op, tool.as_ref(), wire_name, method, start);
            span.call(call, session, mcp.as_ref(), method, *origin)
        }
        Event::JobStarted { op, session, job, tool, .. } | Event::JobFinished { op, session, job, tool, .. } => {
            let name = wire_candidate(tool.namespace(), tool.name());
            let mut span = Span::begun(op, format!("job {name}"), SpanKind::Internal, start);
            span.own(semconv::TOOL_NAME, name);
            span.text("toolwright.job.id", job);
            span.session(session)
        }
        Event::ModelStarted { op, session, model, .. } | Event::ModelFinished { op, session, model, .. } => {
            let name = format!("{} {}", semconv::CHAT, provider_and_model(model).1);
            let mut span = Span::begun(op, name, SpanKind::Client, start);
            span.word(semconv::OPERATION, semconv::CHAT);
            span.model(model);
            span.session(session)
        }
        _ => return None,
    };
    Some(span)
}

/// Adds the data of the end event to a span.
fn finish(span: &mut Span, event: &Event, content: Content) {
    let (failure, message) = match event {
        Event::RunFinished { ok, status, usage, .. } => {
            span.usage(*usage);
            span.text("toolwright.run.status", status);
            ((!ok).then(|| status.clone().into()), None)
        }
        Event::ToolFinished { mcp, ok, error, code, message, attempts, wait_us, person_us, queue, cached, .. } => {
            if let Some(code) = code {
                span.own(semconv::RPC_STATUS, code.to_string());
            }
            if *attempts > 1 {
                span.number("toolwright.attempts", u64::from(*attempts));
            }
            if let Some(queue) = queue.as_deref().filter(|_| *wait_us > 0) {
                span.text("toolwright.queue", queue);
                span.number("toolwright.wait_us", *wait_us);
            }
            if *person_us > 0 {
                span.number("toolwright.person_us", *person_us);
            }
            if *cached {
                span.set("toolwright.cached", Value::Flag(true));
            }
            let failure = || match (mcp.is_some(), code) {
                (true, Some(code)) => code.to_string().into(),
                (true, None) => semconv::request_error(*error).into(),
                (false, _) => semconv::tool_error(*error).into(),
            };
            ((!ok).then(failure), message.as_deref())
        }
        Event::JobFinished { state, error, message, .. } => {
            span.word("toolwright.job.state", state.as_str());
            let failure = match error {
                Some(kind) => Some(kind.as_str()),
                None => (*state != JobState::Done).then(|| state.as_str()),
            };
            (failure.map(Cow::Borrowed), message.as_deref())
        }
        Event::ModelFinished { ok, error, message, stop, usage, .. } => {
            span.usage(*usage);
            if let Some(stop) = stop {
                span.set(semconv::FINISH_REASONS, Value::Texts(vec![cut(semconv::finish_reason(stop)).to_owned()]));
            }
            ((!ok).then(|| semconv::model_error(*error).into()), message.as_deref())
        }
        _ => (None, None),
    };
    if let Some(failure) = failure {
        match failure {
            Cow::Borrowed(word) => span.word(semconv::ERROR_TYPE, word),
            Cow::Owned(text) => span.own(semconv::ERROR_TYPE, text),
        }
        let message = message.filter(|_| content == Content::Recorded).unwrap_or_default();
        span.failure = Some(cut(message).to_owned());
    }
}

/// The span of a call: of a tool, or of a method of MCP, which is named by that alone.
fn call_span(op: &Op, tool: Option<&ToolId>, wire_name: &str, method: Option<&str>, start: SystemTime) -> Span {
    let mut span = if let Some(method) = method {
        Span::begun(op, method.to_owned(), SpanKind::Internal, start)
    } else {
        let name = tool_name(tool, wire_name);
        let mut span = Span::begun(op, [semconv::EXECUTE_TOOL, " ", name].concat(), SpanKind::Internal, start);
        span.word(semconv::OPERATION, semconv::EXECUTE_TOOL);
        span.text(semconv::TOOL_NAME, name);
        span.word(semconv::TOOL_TYPE, semconv::FUNCTION);
        span
    };
    if let Some(tool) = tool {
        span.text("toolwright.tool.id", tool.as_str());
    }
    span
}

/// The tool's name on the wire, `unknown` for a name that no tool has: a model may have written anything.
pub(crate) fn tool_name<'w>(tool: Option<&ToolId>, wire_name: &'w str) -> &'w str {
    if tool.is_some() { wire_name } else { "unknown" }
}

impl Span {
    fn begun(op: &Op, name: String, kind: SpanKind, start: SystemTime) -> Self {
        let lineage = &op.lineage;
        let mut span = Self {
            trace: lineage.trace,
            id: op.id,
            parent: lineage.parent,
            name,
            kind,
            start,
            end: start,
            attributes: Vec::with_capacity(USUAL_ATTRIBUTES),
            failure: None,
        };
        if let Some(run) = &lineage.run {
            span.text("toolwright.run.id", run);
            span.number("toolwright.run.turn", u64::from(lineage.turn));
        }
        span
    }

    fn ended(mut self, now: SystemTime) -> Self {
        self.end = now.max(self.start);
        self
    }

    fn unfinished(mut self, now: SystemTime) -> Self {
        self.set("toolwright.unfinished", Value::Flag(true));
        self.ended(now)
    }

    fn model(&mut self, id: &str) {
        let (provider, model) = provider_and_model(id);
        self.text(semconv::PROVIDER, provider);
        self.text(semconv::REQUEST_MODEL, model);
    }

    fn session(mut self, session: &SessionId) -> Self {
        self.text(semconv::CONVERSATION, session.as_str());
        self
    }

    /// The attributes of a call. A call to an MCP server, or from an MCP client, is also that request: the conventions want no
    /// separate span for it.
    fn call(
        mut self,
        call: &CallId,
        session: &SessionId,
        mcp: Option<&McpPeer>,
        method: Option<&str>,
        origin: CallOrigin,
    ) -> Self {
        if method.is_none() {
            self.text(semconv::TOOL_CALL, call.as_str());
        }
        self.text(semconv::CONVERSATION, session.as_str());
        self.word("toolwright.origin", semconv::origin(origin));
        if let Some(method) = method {
            self.text(semconv::MCP_METHOD, method);
        } else if mcp.is_some() || origin == CallOrigin::Gateway {
            self.word(semconv::MCP_METHOD, semconv::TOOLS_CALL);
        }
        let Some(peer) = mcp else { return self };
        self.text("toolwright.mcp.server", &peer.server);
        if let Some(version) = &peer.protocol_version {
            self.text(semconv::MCP_VERSION, version);
        }
        if let Some(session) = &peer.session {
            self.text(semconv::MCP_SESSION, session);
        }
        self
    }

    /// The content of a call: the arguments of a tool, or the subject of an MCP method.
    fn content(&mut self, method: Option<&str>, arguments: &Json) {
        let (key, parameter) = match method {
            None => return self.own(semconv::TOOL_ARGUMENTS, arguments.to_string()),
            Some("prompts/get") => (semconv::PROMPT_NAME, "name"),
            Some("resources/read" | "resources/subscribe" | "resources/unsubscribe") => (semconv::RESOURCE_URI, "uri"),
            Some(_) => return,
        };
        if let Some(text) = arguments.get(parameter).and_then(Json::as_str) {
            self.text(key, text);
        }
    }

    fn usage(&mut self, usage: Usage) {
        self.number(semconv::INPUT_TOKENS, usage.input_tokens);
        self.number(semconv::OUTPUT_TOKENS, usage.output_tokens);
        if usage.cached_tokens > 0 {
            self.number(semconv::CACHE_READ_TOKENS, usage.cached_tokens);
        }
        if usage.cache_written_tokens > 0 {
            self.number(semconv::CACHE_WRITTEN_TOKENS, usage.cache_written_tokens);
        }
    }

    /// Adds a static text.
    fn word(&mut self, key: &'static str, word: &'static str) {
        self.set(key, Value::Text(Cow::Borrowed(word)));
    }

    fn text(&mut self, key: &'static str, text: &str) {
        self.set(key, Value::Text(Cow::Owned(cut(text).to_owned())));
    }

    fn own(&mut self, key: &'static str, mut text: String) {
        text.truncate(cut(&text).len());
        self.set(key, Value::Text(Cow::Owned(text)));
    }

    fn number(&mut self, key: &'static str, number: u64) {
        self.set(key, Value::Number(i64::try_from(number).unwrap_or(i64::MAX)));
    }

    fn set(&mut self, key: &'static str, value: Value) {
        self.attributes.push(Attribute { key, value });
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}
