//! Forwards the progress of a call.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Map;
use tokio::time::Instant;
use toolwright_core::Services;
use toolwright_core::catalogue::Entry;
use toolwright_core::context::PartialSink;
use toolwright_core::event::{Attention, Event, Partial};
use toolwright_core::operation::Op;
use toolwright_core::redact::StreamRedactor;
use toolwright_core::session::CallId;

use super::background::Progress;

/// How often a call that waits for its client is looked at, at the most.
const ASKING_STEP: Duration = Duration::from_millis(50);

/// Progress of one call: to the events, and to whoever asked for it.
pub(super) struct Partials {
    services: Arc<Services>,
    op: Op,
    call: CallId,
    entry: Arc<Entry>,
    also: Progress,
    /// Its text on the way to the events: a secret may come in several pieces.
    text: Mutex<StreamRedactor>,
    began: Instant,
    asking: Mutex<Questions>,
    /// Milliseconds from the beginning to the last sign of life.
    last_sign: AtomicU64,
    attempts: AtomicU32,
}

/// How long there were open questions.
#[derive(Debug, Default)]
struct Asking {
    /// Questions that are open.
    open: usize,
    /// Since when there are any.
    since: Option<Instant>,
    /// Waits that are over.
    waited: Duration,
}

impl Asking {
    fn opens(&mut self) {
        self.open += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    fn closes(&mut self) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0
            && let Some(since) = self.since.take()
        {
            self.waited += since.elapsed();
        }
    }

    fn total(&self) -> Duration {
        self.waited + self.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

/// The questions of a call.
#[derive(Debug, Default)]
struct Questions {
    /// To its client, a person or a model or a program.
    all: Asking,
    /// Of these, to a person.
    person: Asking,
}

impl Partials {
    pub(super) fn new(
        services: &Arc<Services>,
        op: &Op,
        call: &CallId,
        entry: &Arc<Entry>,
        also: Progress,
    ) -> Arc<Self> {
        Arc::new(Self {
            services: Arc::clone(services),
            op: op.clone(),
            call: call.clone(),
            entry: Arc::clone(entry),
            also,
            text: Mutex::new(StreamRedactor::new(Arc::clone(&services.redactor))),
            began: Instant::now(),
            asking: Mutex::default(),
            last_sign: AtomicU64::new(0),
            attempts: AtomicU32::new(0),
        })
    }

    /// A new attempt begins: a sign of life too.
    pub(super) fn note_attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.note_sign();
    }

    /// How often the call was dispatched.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    fn emit(&self, partial: Partial) {
        let (op, call, tool) = (self.op.clone(), self.call.clone(), self.entry.id().clone());
        self.services.events.emit(Event::ToolPartial { op, call, tool, partial });
    }

    fn emit_text(&self, take: impl FnOnce(&mut StreamRedactor) -> String) {
        let text = take(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
        if !text.is_empty() {
            self.emit(Partial::Text(text));
        }
    }

    fn note_sign(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_sign.fetch_max(since, Ordering::Relaxed);
    }

    fn asking(&self) -> MutexGuard<'_, Questions> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A question to the call's client is open from now on, to a person or not: its limits wait.
    pub(super) fn asks(&self, person: bool) {
        let mut asking = self.asking();
        asking.all.opens();
        if person {
            asking.person.opens();
        }
    }

    /// A question is answered, or given up: a sign of life too.
    pub(super) fn is_answered(&self, person: bool) {
        let mut asking = self.asking();
        asking.all.closes();
        if person {
            asking.person.closes();
        }
        drop(asking);
        self.note_sign();
    }

    /// How long it waited for a person.
    pub(super) fn person_took(&self) -> Duration {
        self.asking().person.total()
    }

    /// How long the call has only waited for its client, and whether it does now.
    fn waited(&self) -> (Duration, bool) {
        let asking = &self.asking().all;
        (asking.total(), asking.since.is_some())
    }

    /// How long the call has been running, waits for its client included.
    pub(super) fn running_for(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until the call has run for `limit`, waits for its client not counted.
    pub(super) async fn run_for(&self, limit: Duration) {
        loop {
            let (waited, asks) = self.waited();
            let left = (limit + waited).saturating_sub(self.began.elapsed());
            match (left, asks) {
                (Duration::ZERO, _) => return,
                (left, false) => tokio::time::sleep(left).await,
                // What is left does not get less meanwhile.
                (left, true) => tokio::time::sleep(left.max(ASKING_STEP)).await,
            }
        }
    }

    /// Waits until there was no sign of life for `limit`; a wait for its client is one.
    pub(super) async fn silent_for(&self, limit: Duration) {
        loop {
            if self.waited().1 {
                tokio::time::sleep(limit.max(ASKING_STEP)).await;
                continue;
            }
            let until = self.began + Duration::from_millis(self.last_sign.load(Ordering::Relaxed)) + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

impl PartialSink for Partials {
    fn send(&self, partial: Partial) {
        self.note_sign();
        if self.services.events.attention() < Attention::Brief {
            return self.also.send(partial);
        }
        self.also.send(partial.clone());
        match partial {
            Partial::Text(text) => self.emit_text(|stream| stream.push(&text)),
            Partial::Progress { progress, total, message, .. } => {
                let message = message.map(|message| self.services.redactor.redact(&message).into_owned());
                self.emit(Partial::Progress { progress, total, message, more: Map::new() });
            }
        }
    }
}

impl Drop for Partials {
    /// Ends the call: emits the text that was held back.
    fn drop(&mut self) {
        self.emit_text(StreamRedactor::finish);
    }
}
