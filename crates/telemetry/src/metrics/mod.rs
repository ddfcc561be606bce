//! The one registry of metrics, kept by events.

mod family;
mod instruments;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use toolwright_core::event::Event;
use toolwright_core::operation::OpId;

pub use family::{Family, Histogram, Instrument, Kind, Point};

use crate::semconv::{self, provider_and_model};
use crate::spans::tool_name;
use family::Names;
use instruments::Families;

/// Different names of tools; the calls of all others are counted as those of `other`. So it is with the rest.
const MAX_TOOLS: usize = 200;
/// Different providers, models, agents and queues.
const MAX_OTHERS: usize = 50;
/// Operations under way that are known at once. More are not counted as running or waiting.
const MAX_UNDER_WAY: usize = 16_384;

/// What was counted since the start. Cheap to share; never larger than its bounds on different names allow.
#[derive(Debug)]
pub struct Metrics {
    since: SystemTime,
    state: Mutex<State>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { since: SystemTime::now(), state: Mutex::default() }
    }
}

#[derive(Debug)]
struct State {
    families: Families,
    tools: Names,
    providers: Names,
    models: Names,
    queues: Names,
    running: HashSet<OpId>,
    waiting: HashMap<String, (Arc<str>, Instant)>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            families: Families::default(),
            tools: Names::new(MAX_TOOLS),
            providers: Names::new(MAX_OTHERS),
            models: Names::new(MAX_OTHERS),
            queues: Names::new(MAX_OTHERS),
            running: HashSet::new(),
            waiting: HashMap::new(),
        }
    }
}

impl Metrics {
    /// Counts an event that came at `now`.
    pub fn observe(&self, event: &Event, now: Instant) {
        self.state().observe(event, now);
    }

    /// Counts events that were lost. What was under way may have ended among them, so it counts no longer.
    pub fn lost(&self, events: u64) {
        let mut state = self.state();
        state.families.events_lost.add(&[], events);
        state.families.running.clear();
        state.families.waiting.clear();
        state.running.clear();
        state.waiting.clear();
    }

    /// Counts spans that were not sent to a receiver: `dropped` for want of room, or `failed` after every attempt.
    pub fn spans_lost(&self, how: &'static str, spans: u64) {
        self.state().families.spans_lost.add(&[how], spans);
    }

    /// When counting began.
    #[must_use]
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// What every instrument has counted so far, those with nothing left out.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        self.state().families.all().into_iter().filter(|family| !family.is_empty()).cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn observe(&mut self, event: &Event, now: Instant) {
        match event {
            Event::ToolWait { call, queue, .. } => {
                self.end_wait(call.as_str(), now);
                if self.waiting.len() < MAX_UNDER_WAY {
                    let queue = self.queues.bounded(queue);
                    self.families.waiting.change(&[&queue], 1);
                    self.waiting.insert(call.as_str().to_owned(), (queue, now));
                }
            }
            Event::ToolStarted { op, call, .. } => {
                self.end_wait(call.as_str(), now);
                if self.running.len() < MAX_UNDER_WAY && self.running.insert(op.id) {
                    self.families.running.change(&[], 1);
                }
            }
            Event::ToolFinished { op, call, tool, namespace, ok, error, latency_ms, .. } => {
                self.end_wait(call.as_str(), now);
                if self.running.remove(&op.id) {
                    self.families.running.change(&[], -1);
                }
                let tool = self.tools.bounded(&tool_name(tool.as_ref()));
                let provider = self.providers.bounded(namespace);
                let error = if *ok { "" } else { semconv::error_type(*error, false) };
                let status = if *ok { "ok" } else { error };
                let seconds = Duration::from_millis(*latency_ms).as_secs_f64();
                let families = &mut self.families;
                families.calls.add(&[&tool, &provider, status], 1);
                families.tool_seconds.record(&[&tool, &provider], seconds);
                families.execute_tool.record(&[semconv::EXECUTE_TOOL, &tool, semconv::FUNCTION, error], seconds);
            }
            Event::ApprovalDecided { decision, .. } => {
                // One of five words.
                self.families.approvals.add(&[decision], 1);
            }
            Event::ModelFinished { model, ok, latency_ms, usage, .. } => {
                let (provider, model) = provider_and_model(model);
                let (provider, model) = (self.providers.bounded(provider), self.models.bounded(model));
                let error = if *ok { "" } else { semconv::OTHER };
                let seconds = Duration::from_millis(*latency_ms).as_secs_f64();
                let families = &mut self.families;
                families.model_seconds.record(&[semconv::CHAT, &provider, &model, error], seconds);
                for (kind, tokens) in [("input", usage.input_tokens), ("output", usage.output_tokens)] {
                    if tokens > 0 {
                        families.tokens.record(&[semconv::CHAT, &provider, &model, kind], tokens as f64);
                    }
                }
            }
            _ => {}
        }
    }

    /// The call waits no longer, if it did.
    fn end_wait(&mut self, call: &str, now: Instant) {
        if let Some((queue, since)) = self.waiting.remove(call) {
            self.families.waiting.change(&[&queue], -1);
            self.families.queue_wait.record(&[&queue], now.saturating_duration_since(since).as_secs_f64());
        }
    }
}
