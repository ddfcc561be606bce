//! What a streaming answer says about its request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelEvent, ModelEvents, Traffic, pause};

use super::ModelQueue;

/// Passes on the events of one attempt, notes whether an answer has begun, and holds up its line where the provider
/// says that no more is to come.
pub(super) struct Feedback<'a> {
    events: &'a dyn ModelEvents,
    queue: Arc<ModelQueue>,
    longest: Duration,
    begun: AtomicBool,
}

impl<'a> Feedback<'a> {
    /// No word of a provider holds up the line for more than `longest`.
    pub(super) fn of(events: &'a dyn ModelEvents, queue: Arc<ModelQueue>, longest: Duration) -> Self {
        Self { events, queue, longest, begun: AtomicBool::new(false) }
    }

    /// Whether anything of an answer has come.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// The attempt failed and will be made `again` after that time, if at all.
    pub(super) fn failed(&self, error: &ModelError, again: Option<Duration>) {
        let told = error.retry_after_ms.map(Duration::from_millis);
        match error.kind {
            // Others would only hear the same.
            ModelErrorKind::RateLimit => self.pause(told.or(again)),
            ModelErrorKind::Unavailable => self.pause(told),
            _ => {}
        }
    }

    fn pause(&self, wait: Option<Duration>) {
        if let Some(wait) = wait {
            self.queue.pause(Instant::now() + wait.min(self.longest));
        }
    }
}

impl ModelEvents for Feedback<'_> {
    fn on_event(&self, event: ModelEvent) {
        self.begun.store(true, Ordering::Relaxed);
        self.events.on_event(event);
    }

    fn on_traffic(&self, traffic: Traffic) {
        match &traffic {
            Traffic::FirstByte => self.begun.store(true, Ordering::Relaxed),
            Traffic::Limits(limits) => self.pause(pause(limits)),
            _ => {}
        }
        self.events.on_traffic(traffic);
    }
}
