//! Defines the receiver of events, and the types of their parts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Event;

/// Code of the warning that a catalogue keeps its old content because the published one cannot be used.
pub const CATALOGUE_KEPT: &str = "catalogue_kept";

/// Receives events. `emit` never blocks and never fails: a full sink drops events and counts them.
pub trait EventSink: Send + Sync {
    /// Emits an event.
    fn emit(&self, event: Event);

    /// Emits an event that may be shared, so that forwarding does not copy it.
    fn emit_shared(&self, event: Arc<Event>) {
        self.emit(Arc::unwrap_or_clone(event));
    }

    /// Returns what observers currently see, so that unobserved events need not be built. Events of a provider
    /// ([`Event::is_of_provider`]) are always emitted.
    fn event_detail(&self) -> EventDetail {
        EventDetail::Whole
    }

    /// Number of events dropped because the sink was full.
    fn dropped(&self) -> u64 {
        0
    }
}

/// How much observers see of events, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventDetail {
    /// No observers.
    Nothing,
    /// Only events that are not routine ([`Event::is_routine`]).
    Notable,
    /// All events, in brief. A call that only waits for its source and ends within milliseconds has no start event
    /// ([`Event::ToolStarted`]), because its end event holds everything; other waiting calls send it later. Arguments
    /// are `null`: redacting them costs more than the rest of the event.
    Brief,
    /// All events with all their fields.
    Whole,
}

impl dyn EventSink + '_ {
    /// Emits the event that `make` returns. Does not call it if nobody observes.
    pub fn emit_with(&self, make: impl FnOnce() -> Event) {
        if self.event_detail() > EventDetail::Nothing {
            self.emit_shared(Arc::new(make()));
        }
    }

    /// Like `emit_with`, for a routine event: only if somebody observes those.
    pub fn emit_routine(&self, make: impl FnOnce() -> Event) {
        if self.event_detail() > EventDetail::Notable {
            self.emit_shared(Arc::new(make()));
        }
    }

    /// Like `emit_with`, for an end, which is routine if it succeeded.
    pub fn emit_end(&self, ok: bool, make: impl FnOnce() -> Event) {
        if ok { self.emit_routine(make) } else { self.emit_with(make) }
    }
}

impl Event {
    /// Whether it is a notice of a provider: rare, and not about a call.
    #[must_use]
    pub fn is_of_provider(&self) -> bool {
        match self {
            Self::ProviderChanged { .. } | Self::PinNotice { .. } => true,
            Self::Warning { code, .. } => code == CATALOGUE_KEPT,
            _ => false,
        }
    }

    /// Whether it is routine: a call or model request began, waited, or ended well.
    #[must_use]
    pub fn is_routine(&self) -> bool {
        matches!(
            self,
            Self::ToolStarted { .. }
                | Self::ToolWait { .. }
                | Self::ToolWaited { ok: true, .. }
                | Self::ToolPartial { .. }
                | Self::CacheHit { .. }
                | Self::ToolFinished { ok: true, .. }
                | Self::LlmAttemptStarted { .. }
                | Self::LlmAttemptFinished { .. }
                | Self::ModelStarted { .. }
                | Self::ModelWait { .. }
                | Self::ModelWaited { ok: true, .. }
                | Self::ModelText { .. }
                | Self::ModelFinished { ok: true, .. }
        )
    }
}

/// Drops everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn emit(&self, _event: Event) {}

    fn event_detail(&self) -> EventDetail {
        EventDetail::Nothing
    }
}

/// How room was made in a conversation, mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionLayer {
    /// Old results were replaced with handles.
    Truncate,
    /// A model summarised the oldest turns.
    Summarize,
    /// No other measure helped: the next turn is the last.
    ForceFinal,
}

impl CompactionLayer {
    /// Returns its wire form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Truncate => "truncate",
            Self::Summarize => "summarize",
            Self::ForceFinal => "force_final",
        }
    }
}

/// A call that never started, as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RefusedCall {
    /// The tool's name.
    pub name: String,
    /// Redacted arguments; null if they could not be read.
    pub arguments: Value,
}

/// A progress report or a piece of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partial {
    /// Progress, as in MCP's `notifications/progress`.
    Progress {
        /// Current progress.
        progress: f64,
        /// Total, if known.
        total: Option<f64>,
        /// Message, if any.
        message: Option<String>,
        /// Other members of the source's report, including `_meta`: for the call's client only, in no event.
        #[serde(skip)]
        more: Map<String, Value>,
    },
    /// A piece of text.
    Text(String),
}
