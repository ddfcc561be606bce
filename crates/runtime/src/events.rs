//! Events to any number of observers, none of which can slow a call down or break it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;
use toolwright_core::event::{Event, EventSink};

/// How many events an observer may lag behind before it loses the oldest.
const CAPACITY: usize = 4096;
/// The same of one who observes providers only.
const PROVIDERS_CAPACITY: usize = 256;
/// How long an observer that has seen all rests: it is woken for what came meanwhile together, not for every event.
const REST: Duration = Duration::from_millis(5);
/// How long the end of an observation waits for the observer to see what is left.
const LAST: Duration = Duration::from_secs(2);

/// The hub. An observer that lags loses events and is told how many; nobody waits for it.
#[derive(Debug)]
pub struct EventHub {
    sender: broadcast::Sender<Arc<Event>>,
    /// Those of providers once more: who wants no others is not woken for each call, and none are made for it.
    providers: broadcast::Sender<Arc<Event>>,
    dropped: Arc<AtomicU64>,
}

impl Default for EventHub {
    fn default() -> Self {
        Self {
            sender: broadcast::channel(CAPACITY).0,
            providers: broadcast::channel(PROVIDERS_CAPACITY).0,
            dropped: Arc::default(),
        }
    }
}

impl EventHub {
    /// Observes from now on. An event is made once, however many see it.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        self.sender.subscribe()
    }

    /// Observes from now on what providers tell of themselves: [`Event::is_of_provider`].
    #[must_use]
    pub fn subscribe_providers(&self) -> broadcast::Receiver<Arc<Event>> {
        self.providers.subscribe()
    }

    /// Calls `see` with each event from now on, some milliseconds late, on a task of its own. A panic of `see` costs
    /// it that event. What it is too slow for is counted in [`EventSink::dropped`].
    pub fn observe(&self, mut see: impl FnMut(&Event) + Send + 'static) -> Observation {
        let mut events = self.subscribe();
        let dropped = Arc::clone(&self.dropped);
        let (stop, mut stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let (mut may_end, mut ends) = (true, false);
            loop {
                if events.is_empty() && !ends {
                    tokio::select! {
                        said = &mut stopped, if may_end => (may_end, ends) = (false, said.is_ok()),
                        () = tokio::time::sleep(REST) => {}
                    }
                }
                let event = tokio::select! {
                    biased;
                    event = events.recv() => event,
                    said = &mut stopped, if may_end => {
                        (may_end, ends) = (false, said.is_ok());
                        continue;
                    }
                    // All events that were emitted before the end have been seen.
                    () = std::future::ready(()), if ends => break,
                };
                match event {
                    Ok(event) => {
                        if catch_unwind(AssertUnwindSafe(|| see(&event))).is_err() {
                            dropped.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Err(RecvError::Lagged(missed)) => {
                        dropped.fetch_add(missed, Ordering::Relaxed);
                    }
                    Err(RecvError::Closed) => break,
                }
            }
        });
        Observation { stop, task }
    }
}

impl EventSink for EventHub {
    fn emit(&self, event: Event) {
        let event = Arc::new(event);
        // Nobody is there to see it: nothing is lost.
        if event.is_of_provider() {
            let _ = self.providers.send(Arc::clone(&event));
        }
        let _ = self.sender.send(event);
    }

    fn is_observed(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// An observer at work; it goes on when this is dropped.
#[derive(Debug)]
pub struct Observation {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Observation {
    /// Lets the observer see what has been emitted, for two seconds at most, and ends it.
    pub async fn end(mut self) {
        let _ = self.stop.send(());
        if tokio::time::timeout(LAST, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn warning(code: usize) -> Event {
        Event::Warning { code: code.to_string(), message: String::new() }
    }

    #[tokio::test]
    async fn who_observes_providers_has_no_event_of_calls_made() {
        let hub = EventHub::default();
        let mut providers = hub.subscribe_providers();
        let sink: &dyn EventSink = &hub;
        sink.tell(|| unreachable!("nobody observes calls"));
        let changed = Event::ProviderChanged { provider: "p".to_owned(), tools: 1, error: None };
        hub.emit(warning(1));
        hub.emit(changed.clone());
        assert_eq!(providers.recv().await.as_deref(), Ok(&changed));
        assert!(providers.is_empty());
    }

    #[tokio::test]
    async fn a_panicking_observer_loses_its_event_and_no_more() {
        let hub = EventHub::default();
        let made = AtomicU64::new(0);
        let tell = |code| {
            let sink: &dyn EventSink = &hub;
            sink.tell(|| {
                made.fetch_add(1, Ordering::Relaxed);
                warning(code)
            });
        };
        tell(0);
        assert_eq!(made.load(Ordering::Relaxed), 0, "nobody observes: no event is made");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&seen);
        let observation = hub.observe(move |event| {
            let Event::Warning { code, .. } = event else { return };
            assert_ne!(code, "2", "this panic is meant");
            into.lock().expect("seen").push(code.clone());
        });
        (1..=3).for_each(tell);
        observation.end().await;
        assert_eq!(*seen.lock().expect("seen"), ["1", "3"]);
        assert_eq!((hub.dropped(), hub.is_observed()), (1, false));
    }

    #[tokio::test]
    async fn a_slow_observer_loses_the_oldest_and_holds_nobody_up() {
        let hub = EventHub::default();
        let seen = Arc::new(AtomicU64::new(0));
        let into = Arc::clone(&seen);
        let observation = hub.observe(move |_| {
            into.fetch_add(1, Ordering::Relaxed);
        });
        // The observer's task does not run before this one yields.
        (0..2 * CAPACITY).for_each(|code| hub.emit(warning(code)));
        observation.end().await;
        assert_eq!(seen.load(Ordering::Relaxed), CAPACITY as u64);
        assert_eq!(hub.dropped(), CAPACITY as u64);
    }
}
