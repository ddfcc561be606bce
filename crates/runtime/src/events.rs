//! Delivers events to any number of observers. No observer can slow down or break a call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;
use toolwright_core::event::{Event, EventDetail, EventSink};

/// How many events an observer may lag behind before it loses the oldest.
const CAPACITY: usize = 4096;
/// The same for an observer of providers only.
const PROVIDERS_CAPACITY: usize = 256;
/// How long an observer rests after it has caught up, so that one wake-up serves several events.
const REST: Duration = Duration::from_millis(5);
/// How long the end of an observation waits for the observer to catch up.
const LAST: Duration = Duration::from_secs(2);

/// The event hub. An observer that lags loses events and learns how many; emitters never wait.
#[derive(Debug)]
pub struct EventHub {
    whole: Channel,
    /// Events for observers that do not read call arguments.
    brief: Channel,
    /// Events that are not routine.
    notable: Channel,
    /// Provider events only, so that observers of providers are not woken for calls, and no call events are created for
    /// them.
    providers: Channel,
    dropped: Arc<AtomicU64>,
}

/// The events of one group of observers.
#[derive(Debug)]
struct Channel {
    sender: broadcast::Sender<Arc<Event>>,
    /// Whether there may be observers. A flag, because each call checks it several times, and the sender would take its
    /// lock.
    has_observers: AtomicBool,
    /// Held while the flag or the observers change.
    changes: Mutex<()>,
}

impl Channel {
    fn new(capacity: usize) -> Self {
        Self {
            sender: broadcast::channel(capacity).0,
            has_observers: AtomicBool::new(false),
            changes: Mutex::default(),
        }
    }

    fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = self.sender.subscribe();
        self.has_observers.store(true, Ordering::SeqCst);
        receiver
    }

    fn has_observers(&self) -> bool {
        self.has_observers.load(Ordering::SeqCst)
    }

    fn send(&self, event: &Arc<Event>) {
        if self.has_observers() && self.sender.send(Arc::clone(event)).is_err() {
            // There is no observer, so no event is lost.
            let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            if self.sender.receiver_count() == 0 {
                self.has_observers.store(false, Ordering::SeqCst);
            }
        }
    }
}

impl Default for EventHub {
    fn default() -> Self {
        Self {
            whole: Channel::new(CAPACITY),
            brief: Channel::new(CAPACITY),
            notable: Channel::new(CAPACITY),
            providers: Channel::new(PROVIDERS_CAPACITY),
            dropped: Arc::default(),
        }
    }
}

impl EventHub {
    /// Observes all events from now on. Observers share each event object. An event in creation during this call may
    /// lack the call arguments, which are included only if an observer reads them.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        self.whole.subscribe()
    }

    /// Observes from now on, without call arguments and possibly with late call starts ([`EventDetail::Brief`]).
    #[must_use]
    pub fn subscribe_brief(&self) -> broadcast::Receiver<Arc<Event>> {
        self.brief.subscribe()
    }

    /// Observes events about providers from now on: [`Event::is_of_provider`].
    #[must_use]
    pub fn subscribe_providers(&self) -> broadcast::Receiver<Arc<Event>> {
        self.providers.subscribe()
    }

    /// Calls `see` with each event from now on, on its own task and a few milliseconds late. If `see` panics, that
    /// event is skipped. Events that `see` is too slow for are counted in [`EventSink::dropped`].
    pub fn observe(&self, see: impl FnMut(&Event) + Send + 'static) -> ObserverHandle {
        self.observing(self.subscribe(), see)
    }

    /// Like [`EventHub::observe`], for events that are not routine ([`Event::is_routine`]): successful calls cause no
    /// wake-up.
    pub fn observe_notable(&self, see: impl FnMut(&Event) + Send + 'static) -> ObserverHandle {
        self.observing(self.notable.subscribe(), see)
    }

    fn observing(
        &self,
        mut events: broadcast::Receiver<Arc<Event>>,
        mut see: impl FnMut(&Event) + Send + 'static,
    ) -> ObserverHandle {
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
                    // All events emitted before the end have been seen.
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
        ObserverHandle { stop, task }
    }
}

impl EventSink for EventHub {
    fn emit(&self, event: Event) {
        self.emit_shared(Arc::new(event));
    }

    fn emit_shared(&self, event: Arc<Event>) {
        if event.is_of_provider() {
            self.providers.send(&event);
        }
        if !event.is_routine() {
            self.notable.send(&event);
        }
        self.brief.send(&event);
        self.whole.send(&event);
    }

    fn event_detail(&self) -> EventDetail {
        if self.whole.has_observers() {
            EventDetail::Whole
        } else if self.brief.has_observers() {
            EventDetail::Brief
        } else if self.notable.has_observers() {
            EventDetail::Notable
        } else {
            EventDetail::Nothing
        }
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A running observer. It continues when this is dropped.
#[derive(Debug)]
pub struct ObserverHandle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl ObserverHandle {
    /// Lets the observer see the events emitted so far, for at most two seconds, and ends it.
    pub async fn end(mut self) {
        let _ = self.stop.send(());
        if tokio::time::timeout(LAST, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use toolwright_core::ToolId;
    use toolwright_core::event::CATALOGUE_KEPT;
    use toolwright_core::operation::{Lineage, OpId};
    use toolwright_core::session::CallId;

    use super::*;

    fn warning(code: usize) -> Event {
        Event::Warning { code: code.to_string(), message: String::new() }
    }

    #[tokio::test]
    async fn provider_observers_get_no_events_of_calls() {
        let hub = EventHub::default();
        let mut providers = hub.subscribe_providers();
        let sink: &dyn EventSink = &hub;
        sink.emit_with(|| unreachable!("nobody observes calls"));
        let changed = Event::ProviderChanged { provider: "p".to_owned(), tools: 1, error: None };
        hub.emit(warning(1));
        hub.emit(changed.clone());
        let kept = Event::Warning { code: CATALOGUE_KEPT.to_owned(), message: "serves on".to_owned() };
        hub.emit(kept.clone());
        assert_eq!(providers.recv().await.as_deref(), Ok(&changed));
        assert_eq!(providers.recv().await.as_deref(), Ok(&kept));
        assert!(providers.is_empty());
    }

    #[tokio::test]
    async fn observers_can_be_added_and_removed() {
        let hub = EventHub::default();
        let sink: &dyn EventSink = &hub;
        let (brief, whole) = (hub.subscribe_brief(), hub.subscribe());
        assert_eq!(hub.event_detail(), EventDetail::Whole);
        drop(whole);
        sink.emit_with(|| warning(1));
        assert_eq!((hub.event_detail(), brief.len()), (EventDetail::Brief, 1));
        drop(brief);
        sink.emit_with(|| warning(2));
        assert_eq!(hub.event_detail(), EventDetail::Nothing);
        let mut whole = hub.subscribe();
        sink.emit_with(|| warning(3));
        assert_eq!(whole.recv().await.as_deref(), Ok(&warning(3)));
        assert!(whole.is_empty());
    }

    #[tokio::test]
    async fn observers_of_notable_events_get_no_routine_ones() {
        let hub = EventHub::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&seen);
        let observation = hub.observe_notable(move |event| into.lock().expect("seen").push(event.clone()));
        let sink: &dyn EventSink = &hub;
        sink.emit_routine(|| unreachable!("nobody wants to see it"));
        let (op, id) = (Lineage::named("t").begin(OpId::new(1)), || ToolId::parse("x:y@1.0.0").expect("id"));
        let waited = |ok| {
            let (op, call, queue) = (op.clone(), CallId::new("c"), "q".to_owned());
            Event::ToolWaited { op, call, tool: id(), queue, ok, wait_us: 1 }
        };
        [waited(true), waited(false), warning(1)].into_iter().for_each(|event| hub.emit(event));
        observation.end().await;
        assert_eq!(*seen.lock().expect("seen"), [waited(false), warning(1)]);
    }

    #[tokio::test]
    async fn a_panicking_observer_loses_one_event() {
        let hub = EventHub::default();
        let made = AtomicU64::new(0);
        let emit_code = |code| {
            let sink: &dyn EventSink = &hub;
            sink.emit_with(|| {
                made.fetch_add(1, Ordering::Relaxed);
                warning(code)
            });
        };
        emit_code(0);
        assert_eq!(made.load(Ordering::Relaxed), 0, "nobody observes: no event is made");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&seen);
        let observation = hub.observe(move |event| {
            let Event::Warning { code, .. } = event else { return };
            assert_ne!(code, "2", "this panic is meant");
            into.lock().expect("seen").push(code.clone());
        });
        (1..=3).for_each(emit_code);
        observation.end().await;
        assert_eq!(*seen.lock().expect("seen"), ["1", "3"]);
        assert_eq!(hub.dropped(), 1);
        emit_code(4);
        assert_eq!(hub.event_detail(), EventDetail::Nothing);
    }

    #[tokio::test]
    async fn a_slow_observer_loses_the_oldest_events() {
        let hub = EventHub::default();
        let seen = Arc::new(AtomicU64::new(0));
        let into = Arc::clone(&seen);
        let observation = hub.observe(move |_| {
            into.fetch_add(1, Ordering::Relaxed);
        });
        // The observer's task does not run before this task yields.
        (0..2 * CAPACITY).for_each(|code| hub.emit(warning(code)));
        observation.end().await;
        assert_eq!(seen.load(Ordering::Relaxed), CAPACITY as u64);
        assert_eq!(hub.dropped(), CAPACITY as u64);
    }
}
