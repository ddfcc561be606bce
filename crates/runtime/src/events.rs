//! Events to any number of observers, none of which can slow a call down.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::broadcast;
use toolwright_core::event::{Event, EventSink};

/// How many events an observer may lag behind before it loses the oldest.
const CAPACITY: usize = 4096;

/// The hub. An observer that lags loses events and is told how many; nobody waits for it.
#[derive(Debug)]
pub struct EventHub {
    sender: broadcast::Sender<Event>,
    unobserved: AtomicU64,
}

impl Default for EventHub {
    fn default() -> Self {
        Self { sender: broadcast::channel(CAPACITY).0, unobserved: AtomicU64::new(0) }
    }
}

impl EventHub {
    /// Observes from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }
}

impl EventSink for EventHub {
    fn emit(&self, event: Event) {
        if self.sender.send(event).is_err() {
            self.unobserved.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_observed(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    fn dropped(&self) -> u64 {
        self.unobserved.load(Ordering::Relaxed)
    }
}
