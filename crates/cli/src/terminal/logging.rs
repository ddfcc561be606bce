//! Logs: on standard error, never on standard output, with secrets redacted.

use std::fmt;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use clap::ValueEnum;
use serde_json::{Map, Value};
use toolwright::core::{Event as Happened, duration};
use toolwright::runtime::{EventHub, ObserverHandle};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

use crate::terminal::screen::{one_line, redacted, size};

/// The most characters of arguments and messages in a line.
const WIDTH: usize = 2000;

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// `12:00:00.000 [WRN] message field=value`
    #[default]
    Text,
    /// One JSON object a line: `{time, level, target, message, fields}`.
    Json,
}

/// How failures are treated, in addition to `-v`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureLog {
    /// No change.
    Nothing,
    /// Warnings are kept for [`warnings`].
    Warnings,
    /// Calls and requests that fail are logged.
    Failures,
}

/// The most warnings that are kept.
const MAX_KEPT: usize = 200;

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns the kept warnings, each once, in their order.
pub(crate) fn warnings() -> Vec<String> {
    std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Keeps Toolwright's own warnings, except the log of calls.
struct KeepWarnings;

impl<S: Subscriber> Layer<S> for KeepWarnings {
    fn on_event(&self, event: &Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let attributes = fields.fields.iter().map(|(key, value)| match value.as_str() {
            Some(text) => format!("{key} {text}: "),
            None => format!("{key} {value}: "),
        });
        let line = format!("{}{}", attributes.collect::<String>(), fields.message);
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_KEPT && !kept.contains(&line) {
            kept.push(line);
        }
    }
}

/// Starts logging. `RUST_LOG` overrides `-v`.
pub(crate) fn start(verbose: u8, format: LogFormat, keep: FailureLog) {
    let ours = |level: &str, ours: &str| {
        let crates = ["", "_core", "_runtime", "_providers", "_server", "_agent", "_models", "_telemetry"];
        let crates = crates.map(|name| format!(",toolwright{name}={ours}")).concat();
        format!("{level}{crates}")
    };
    let default = match verbose {
        // Toolwright reports the MCP library's complaints itself.
        0 if keep == FailureLog::Failures => "error,rmcp=off,toolwright::calls=warn".to_owned(),
        0 => "error,rmcp=off,toolwright::calls=off".to_owned(),
        1 => ours("warn", "info") + ",toolwright::calls=debug",
        2 => ours("info", "debug"),
        _ => "trace".to_owned(),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // A subscriber that an embedding program has installed stays.
    if keep == FailureLog::Warnings {
        let ours = filter_fn(|event| {
            let target = event.target();
            *event.level() <= Level::WARN && target.starts_with("toolwright") && target != "toolwright::calls"
        });
        let lines = tracing_subscriber::fmt::layer().with_writer(|| Log).with_ansi(false).event_format(Lines(format));
        let layers = lines.with_filter(filter).and_then(KeepWarnings.with_filter(ours));
        let _ = tracing_subscriber::registry().with(layers).try_init();
        return;
    }
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Log)
        .with_ansi(false)
        .event_format(Lines(format))
        .try_init();
}

/// From now on logs calls and requests: all, or those that are not routine, by the log level.
pub(crate) fn observe(events: &EventHub) -> Option<ObserverHandle> {
    if tracing::enabled!(target: "toolwright::calls", Level::DEBUG) {
        return Some(events.observe(log));
    }
    tracing::enabled!(target: "toolwright::calls", Level::WARN).then(|| events.observe_notable(log))
}

/// Logs an operation.
macro_rules! log_call {
    ($level:ident, $op:expr, $($what:tt)*) => {
        tracing::$level!(
            target: "toolwright::calls", trace = %$op.lineage.trace, op = %$op.id, $($what)*
        )
    };
}

/// One event as a log line. Events are redacted.
fn log(event: &Happened) {
    match event {
        Happened::ToolStarted { op, wire_name, arguments, model, attempt, .. } => log_call!(
            debug,
            op,
            model,
            attempt,
            parameters = one_line(&arguments.to_string(), WIDTH),
            "tool request -> {wire_name}"
        ),
        Happened::ToolFinished { op, wire_name, ok: true, latency_us, wait_us, characters_out, cached, .. } => {
            log_call!(
                debug,
                op,
                latency = latency(*latency_us),
                wait = latency(*wait_us),
                cached,
                output = size(*characters_out),
                status = "ok",
                "tool response <- {wire_name}"
            );
        }
        Happened::ToolFinished { op, wire_name, latency_us, characters_out, error, message, .. } => log_call!(
            warn,
            op,
            latency = latency(*latency_us),
            output = size(*characters_out),
            status = "failed",
            kind = error.map(|kind| kind.as_str()).unwrap_or_default(),
            error = one_line(message.as_deref().unwrap_or_default(), WIDTH),
            "tool response <- {wire_name}"
        ),
        Happened::LlmAttemptStarted { op, tool, model, attempt, .. } => {
            log_call!(debug, op, attempt, "{tool} asks {model}")
        }
        Happened::LlmAttemptFinished { op, tool, model, attempt, variant, latency_us, usage, .. } => log_call!(
            debug,
            op,
            attempt,
            variant,
            latency = latency(*latency_us),
            input_tokens = usage.input_tokens,
            output_tokens = usage.output_tokens,
            status = "ok",
            "{tool} has its result of {model}"
        ),
        Happened::LlmAttemptFailed { op, tool, model, attempt, variant, kind, message, latency_us, .. } => log_call!(
            warn,
            op,
            attempt,
            variant,
            latency = latency(*latency_us),
            status = "failed",
            kind = kind.as_str(),
            error = one_line(message, WIDTH),
            "{tool} has no result of {model}"
        ),
        Happened::ModelStarted { op, model, turn, shown, deferred, .. } => {
            log_call!(debug, op, turn, shown = shown.len(), deferred, "llm request -> {model}")
        }
        Happened::ModelFinished { op, model, ok: true, latency_us, usage, cost_usd, .. } => log_call!(
            debug,
            op,
            latency = latency(*latency_us),
            input_tokens = usage.input_tokens,
            output_tokens = usage.output_tokens,
            cost_usd,
            status = "ok",
            "llm response <- {model}"
        ),
        Happened::ModelFinished { op, model, latency_us, error, message, .. } => log_call!(
            warn,
            op,
            latency = latency(*latency_us),
            status = "failed",
            kind = error.map(|kind| kind.as_str()).unwrap_or_default(),
            error = one_line(message.as_deref().unwrap_or_default(), WIDTH),
            "llm response <- {model}"
        ),
        Happened::ModelRetried { op, model, attempt, latency_us, error, message, again_in_ms, .. } => log_call!(
            warn,
            op,
            attempt,
            latency = latency(*latency_us),
            status = "failed",
            kind = error.as_str(),
            again_in_ms,
            error = one_line(message, WIDTH),
            "llm response <- {model}"
        ),
        Happened::ModelWait { op, model, queue } => log_call!(debug, op, "{model} waits for {queue}"),
        Happened::ToolWait { op, tool, queue, .. } => log_call!(debug, op, "{tool} waits for {queue}"),
        Happened::ApprovalDecided { op, tool, decision, .. } => log_call!(debug, op, decision, "approval of {tool}"),
        Happened::JobFinished { op, job, tool, state, .. } => log_call!(debug, op, ?state, "job {job} of {tool} ended"),
        Happened::Fallback { what, from, to, reason } => tracing::warn!(
            target: "toolwright::calls",
            reason = one_line(reason, WIDTH), "{what}: {to} in place of {from}"
        ),
        Happened::Compacted { op, layer, before, after, limit, results, messages, .. } => log_call!(
            info,
            op,
            layer = layer.as_str(),
            before,
            after,
            limit,
            results,
            messages,
            "room was made in a conversation"
        ),
        Happened::Warning { code, message } => {
            tracing::warn!(target: "toolwright::calls", code, "{}", one_line(message, WIDTH));
        }
        _ => {}
    }
}

fn latency(us: u64) -> String {
    if us < 10_000 { format!("{}.{}ms", us / 1000, us % 1000 / 100) } else { format!("{}ms", us / 1000) }
}

/// Writes events of any level as one line each.
struct Lines(LogFormat);

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N> for Lines {
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut found = Fields::default();
        event.record(&mut found);
        let (level, target) = (event.metadata().level(), event.metadata().target());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        if self.0 == LogFormat::Json {
            let mut line = Map::new();
            line.insert("time".into(), format!("{}Z", time.replace(' ', "T")).into());
            line.insert("level".into(), level.as_str().to_ascii_lowercase().into());
            line.insert("target".into(), target.into());
            line.insert("message".into(), found.message.into());
            line.insert("fields".into(), Value::Object(found.fields));
            return writeln!(writer, "{}", Value::Object(line));
        }
        write!(writer, "{time} [{}] ", label(*level))?;
        if !target.starts_with("toolwright") {
            write!(writer, "{target}: ")?;
        }
        writer.write_str(&found.message)?;
        for (name, value) in found.fields {
            match value {
                Value::String(text) => write!(writer, " {name}={text}")?,
                other => write!(writer, " {name}={other}")?,
            }
        }
        writeln!(writer)
    }
}

fn label(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERR",
        Level::WARN => "WRN",
        Level::INFO => "INF",
        Level::DEBUG => "VRB",
        Level::TRACE => "TRC",
    }
}

/// Formats the fields of an event. Text of other programs cannot begin a new line.
#[derive(Default)]
struct Fields {
    message: String,
    fields: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = one_line(&format!("{value:?}"), 2 * WIDTH);
        if field.name() == "message" {
            self.message = text;
        } else {
            self.put(field, text);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let text = one_line(value, 2 * WIDTH);
        if field.name() == "message" {
            self.message = text;
        } else {
            self.put(field, text);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}

/// Formats a time as `2026-01-31 23:59:59`, UTC.
pub(crate) fn timestamp(ms: u64) -> String {
    let mut text = duration::iso(ms).replace('T', " ");
    text.truncate("2026-01-31 23:59:59".len());
    text
}

/// Standard error with redaction. The subscriber writes one event at a time.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        std::io::stderr().lock().write_all(redacted(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().lock().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_seconds_exact() {
        assert_eq!(timestamp(1_767_225_599_999), "2025-12-31 23:59:59");
        assert_eq!((latency(1234), latency(98_765)), ("1.2ms".to_owned(), "98ms".to_owned()));
    }
}
