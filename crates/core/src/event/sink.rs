//! Who takes events.

use super::Event;

/// Where events go. `emit` never blocks and never fails: a full sink drops and counts.
pub trait EventSink: Send + Sync {
    /// Takes one event.
    fn emit(&self, event: Event);

    /// Whether anybody would see an event now; nobody need make one otherwise. What is of a provider
    /// ([`Event::is_of_provider`]) may be seen all the same, and is always emitted.
    fn is_observed(&self) -> bool {
        true
    }

    /// How many events were dropped because the sink was full.
    fn dropped(&self) -> u64 {
        0
    }
}

impl dyn EventSink + '_ {
    /// Takes the event that `make` makes, which is not called where nobody observes.
    pub fn tell(&self, make: impl FnOnce() -> Event) {
        if self.is_observed() {
            self.emit(make());
        }
    }
}

impl Event {
    /// Whether a provider tells it of itself: rare, and not of any call.
    #[must_use]
    pub fn is_of_provider(&self) -> bool {
        matches!(self, Self::ProviderChanged { .. } | Self::PinNotice { .. })
    }
}

/// Drops everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn emit(&self, _event: Event) {}

    fn is_observed(&self) -> bool {
        false
    }
}
