//! Spans out of events.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use toolwright_core::event::Event;
use toolwright_core::name::{ToolId, wire_candidate};
use toolwright_core::operation::{Op, OpId, TraceId};
use toolwright_core::session::{CallId, SessionId};

use crate::semconv::{self, provider_and_model};

/// The longest text of an attribute, in bytes; longer ones are cut.
const MAX_TEXT: usize = 16 << 10;

/// One operation from beginning to end.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Its id: that of the operation, which is also what `traceparent` tells peers.
    pub id: OpId,
    /// The span that it is part of, perhaps a peer's.
    pub parent: Option<OpId>,
    /// Its name, of few different ones: `execute_tool {tool}`, `chat {model}`, `invoke_agent {agent}`.
    pub name: String,
    /// Which side of a request it is.
    pub kind: SpanKind,
    /// When it began.
    pub start: SystemTime,
    /// When it ended; not before `start`.
    pub end: SystemTime,
    /// What is known of it.
    pub attributes: Vec<Attribute>,
    /// Whether it failed, and with [`Content::Recorded`] what was said of it.
    pub failure: Option<String>,
}

/// Which side of a request a span is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// It asks another process.
    Client,
    /// Neither side.
    Internal,
}

/// One thing that is known of a span.
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
    Text(String),
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

/// Whether spans carry what was said, as far as events do: arguments and error messages, redacted. Without it
/// they tell of names, times, sizes and kinds of errors alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// They do not.
    #[default]
    Omitted,
    /// They do.
    Recorded,
}

/// What spans are made of which events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpanOptions {
    /// Whether they carry what was said.
    pub content: Content,
    /// The share of traces that is recorded, from 0 to 1. Whether one is depends on its id alone, as with
    /// OpenTelemetry's `TraceIdRatioBased`: a trace is whole or not there, across processes.
    pub sample_ratio: f64,
    /// Operations that are open at once. When there are more, the oldest ends unfinished.
    pub max_open: usize,
}

impl Default for SpanOptions {
    fn default() -> Self {
        Self { content: Content::Omitted, sample_ratio: 1.0, max_open: 4096 }
    }
}

/// The operations that are under way. Pure: what it gives depends on the events and times it is told alone.
#[derive(Debug, Default)]
pub struct Spans {
    options: SpanOptions,
    open: HashMap<OpId, Span>,
}

impl Spans {
    /// Nothing under way.
    #[must_use]
    pub fn new(options: SpanOptions) -> Self {
        Self { options, open: HashMap::new() }
    }

    /// Takes an event that came at `now`, and adds the spans that it ends to `ended`.
    pub fn observe(&mut self, event: &Event, now: SystemTime, ended: &mut Vec<Span>) {
        match event {
            Event::ToolStarted { op, session, call, tool, arguments, .. } if self.samples(op) => {
                let mut span = tool_span(op, session, call, Some(tool), now);
                if self.options.content == Content::Recorded {
                    span.text(semconv::TOOL_ARGUMENTS, &arguments.to_string());
                }
                self.begin(span, now, ended);
            }
            Event::ToolFinished { op, session, call, tool, ok, error, message, latency_ms, .. } if self.samples(op) => {
                // What was refused, or answered from the cache, never started.
                let begun = || tool_span(op, session, call, tool.as_ref(), before(now, *latency_ms));
                let mut span = self.open.remove(&op.id).unwrap_or_else(begun);
                if !ok {
                    span.fail(semconv::error_type(*error, false), self.told(message.as_deref()));
                }
                ended.push(span.ended(now));
            }
            Event::ModelStarted { op, session, model, .. } if self.samples(op) => {
                self.begin(model_span(op, session, model, now), now, ended);
            }
            Event::ModelFinished { op, session, model, ok, message, latency_ms, usage } if self.samples(op) => {
                let begun = || model_span(op, session, model, before(now, *latency_ms));
                let mut span = self.open.remove(&op.id).unwrap_or_else(begun);
                span.number(semconv::INPUT_TOKENS, usage.input_tokens);
                span.number(semconv::OUTPUT_TOKENS, usage.output_tokens);
                if usage.cached_tokens > 0 {
                    span.number(semconv::CACHE_READ_TOKENS, usage.cached_tokens);
                }
                if !ok {
                    span.fail(semconv::OTHER, self.told(message.as_deref()));
                }
                ended.push(span.ended(now));
            }
            _ => {}
        }
    }

    /// Ends what is under way, unfinished: nobody will tell of its end any more.
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

    fn told<'m>(&self, message: Option<&'m str>) -> &'m str {
        message.filter(|_| self.options.content == Content::Recorded).unwrap_or_default()
    }

    fn begin(&mut self, span: Span, now: SystemTime, ended: &mut Vec<Span>) {
        if self.open.len() >= self.options.max_open {
            let oldest = self.open.values().min_by_key(|span| (span.start, span.id)).map(|span| span.id);
            ended.extend(oldest.and_then(|id| self.open.remove(&id)).map(|span| span.unfinished(now)));
        }
        self.open.insert(span.id, span);
    }
}

fn before(now: SystemTime, latency_ms: u64) -> SystemTime {
    now.checked_sub(Duration::from_millis(latency_ms)).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn tool_span(op: &Op, session: &SessionId, call: &CallId, tool: Option<&ToolId>, start: SystemTime) -> Span {
    let name = tool_name(tool);
    let mut span = Span::begun(op, format!("{} {name}", semconv::EXECUTE_TOOL), SpanKind::Internal, start);
    span.text(semconv::OPERATION, semconv::EXECUTE_TOOL);
    span.text(semconv::TOOL_NAME, &name);
    span.text(semconv::TOOL_CALL, call.as_str());
    span.text(semconv::TOOL_TYPE, semconv::FUNCTION);
    span.text(semconv::CONVERSATION, session.as_str());
    if let Some(tool) = tool {
        span.text("toolwright.tool.id", tool.as_str());
    }
    span
}

fn model_span(op: &Op, session: &SessionId, id: &str, start: SystemTime) -> Span {
    let (provider, model) = provider_and_model(id);
    let mut span = Span::begun(op, format!("{} {model}", semconv::CHAT), SpanKind::Client, start);
    span.text(semconv::OPERATION, semconv::CHAT);
    span.text(semconv::PROVIDER, provider);
    span.text(semconv::REQUEST_MODEL, model);
    span.text(semconv::CONVERSATION, session.as_str());
    span
}

/// The tool's wire name. A name that no tool has is not told: it is whatever a model wrote.
pub(crate) fn tool_name(tool: Option<&ToolId>) -> String {
    tool.map_or_else(|| "unknown".to_owned(), |tool| wire_candidate(tool.namespace(), tool.name()))
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
            attributes: Vec::with_capacity(10),
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
        self.attributes.push(Attribute { key: "toolwright.unfinished", value: Value::Flag(true) });
        self.ended(now)
    }

    fn fail(&mut self, error: &str, told: &str) {
        self.text(semconv::ERROR_TYPE, error);
        self.failure = Some(cut(told).to_owned());
    }

    fn text(&mut self, key: &'static str, text: &str) {
        self.attributes.push(Attribute { key, value: Value::Text(cut(text).to_owned()) });
    }

    fn number(&mut self, key: &'static str, number: u64) {
        self.attributes.push(Attribute { key, value: Value::Number(i64::try_from(number).unwrap_or(i64::MAX)) });
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}
