//! Defines the receiver of events, and the types of their parts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Event;

/// Code of the warning that a catalogue goes on with what it had, since what is published now cannot be used.
pub const CATALOGUE_KEPT: &str = "catalogue_kept";

/// Where events go. `emit` never blocks and never fails: a full sink drops and counts.
pub trait EventSink: Send + Sync {
    /// Takes one event.
    fn emit(&self, event: Event);

    /// Takes one event that may be shared: whoever passes it on moves it no more.
    fn emit_shared(&self, event: Arc<Event>) {
        self.emit(Arc::unwrap_or_clone(event));
    }

    /// What anybody would see of events now: nobody need make any that nobody sees. What is of a provider
    /// ([`Event::is_of_provider`]) may be seen all the same, and is always emitted.
    fn attention(&self) -> Attention {
        Attention::Whole
    }

    /// How many events were dropped because the sink was full.
    fn dropped(&self) -> u64 {
        0
    }
}

/// What observers see of events: the next always more than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attention {
    /// Nobody observes.
    Nothing,
    /// What is not routine ([`Event::is_routine`]).
    Notable,
    /// All events. Of a call that only waits for its source and has its answer within some milliseconds nobody is told
    /// that it began ([`Event::ToolStarted`]), since its end tells all of it; of others that wait, later. Nobody
    /// reads the arguments there, in whose place is `null`: to redact them costs more than the rest of it.
    Brief,
    /// All events with all that they tell.
    Whole,
}

impl dyn EventSink + '_ {
    /// Emits the event that `make` returns. Does not call it if nobody observes.
    pub fn emit_with(&self, make: impl FnOnce() -> Event) {
        if self.attention() > Attention::Nothing {
            self.emit_shared(Arc::new(make()));
        }
    }

    /// As [`emit_with`](Self::emit_with), for a routine event: only if somebody observes those.
    pub fn emit_routine(&self, make: impl FnOnce() -> Event) {
        if self.attention() > Attention::Notable {
            self.emit_shared(Arc::new(make()));
        }
    }

    /// As [`emit_with`](Self::emit_with), for the end of something, which is routine if it ended well.
    pub fn emit_end(&self, ok: bool, make: impl FnOnce() -> Event) {
        if ok { self.emit_routine(make) } else { self.emit_with(make) }
    }
}

impl Event {
    /// Whether a provider tells it of itself: rare, and not of any call.
    #[must_use]
    pub fn is_of_provider(&self) -> bool {
        match self {
            Self::ProviderChanged { .. } | Self::PinNotice { .. } => true,
            Self::Warning { code, .. } => code == CATALOGUE_KEPT,
            _ => false,
        }
    }

    /// Whether a call or a request to a model tells it of its usual course: that it began, waited, or ended well.
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

    fn attention(&self) -> Attention {
        Attention::Nothing
    }
}

/// How room was made in a conversation, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionLayer {
    /// Old results gave way to handles.
    Truncate,
    /// A model put the oldest turns together.
    Summarize,
    /// Nothing helped: the next turn is the last.
    ForceFinal,
}

impl CompactionLayer {
    /// The layer as it is written on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Truncate => "truncate",
            Self::Summarize => "summarize",
            Self::ForceFinal => "force_final",
        }
    }
}

/// A call that never started, as it was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The tool's name.
    pub name: String,
    /// Redacted arguments; null if they could not be read.
    pub arguments: Value,
}

/// A progress report or a piece of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partial {
    /// Progress, as MCP's `notifications/progress` gives it.
    Progress {
        /// How far.
        progress: f64,
        /// Of how much.
        total: Option<f64>,
        /// In words.
        message: Option<String>,
        /// What else its source says of it, `_meta` among it: for the client of the call alone, and in no event.
        #[serde(skip)]
        more: Map<String, Value>,
    },
    /// A piece of text.
    Text(String),
}
