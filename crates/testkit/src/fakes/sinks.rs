//! Fakes that keep what they receive: events, the pieces of a model's answer, ledger entries.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use toolwright_core::event::{Event, EventSink};
use toolwright_core::model::{ModelEvent, ModelEvents, RequestProgress};
use toolwright_core::store::{AppendStatus, LedgerEntry, LedgerHealth, LedgerStore, StoreError};

pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

type Observer = Box<dyn Fn(&Event) + Send + Sync>;

/// A sink that keeps the events.
#[derive(Default)]
pub struct FakeEvents {
    first: Option<Observer>,
    seen: Mutex<Vec<Event>>,
}

impl FakeEvents {
    /// Creates a sink that calls `first` with each event before it keeps the event.
    pub fn with(first: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self { first: Some(Box::new(first)), ..Self::default() }
    }

    /// Locks the events so far.
    pub fn seen(&self) -> MutexGuard<'_, Vec<Event>> {
        lock(&self.seen)
    }
}

impl EventSink for FakeEvents {
    fn emit(&self, event: Event) {
        if let Some(first) = &self.first {
            first(&event);
        }
        self.seen().push(event);
    }
}

/// What a [`FakeModelEvents`] received.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamItem {
    /// A piece of the answer.
    Event(ModelEvent),
    /// A notice about the request's transport.
    Traffic(RequestProgress),
}

/// A receiver that keeps the pieces of answers and the notices.
#[derive(Debug, Default)]
pub struct FakeModelEvents(Mutex<Vec<StreamItem>>);

impl FakeModelEvents {
    /// Locks the pieces and notices so far, in order.
    pub fn seen(&self) -> MutexGuard<'_, Vec<StreamItem>> {
        lock(&self.0)
    }

    /// Returns the pieces so far.
    pub fn events(&self) -> Vec<ModelEvent> {
        let event = |item: &StreamItem| if let StreamItem::Event(event) = item { Some(event.clone()) } else { None };
        self.seen().iter().filter_map(event).collect()
    }

    /// Returns the notices so far.
    pub fn traffic(&self) -> Vec<RequestProgress> {
        let notice =
            |item: &StreamItem| if let StreamItem::Traffic(notice) = item { Some(notice.clone()) } else { None };
        self.seen().iter().filter_map(notice).collect()
    }
}

impl ModelEvents for FakeModelEvents {
    fn on_event(&self, event: ModelEvent) {
        self.seen().push(StreamItem::Event(event));
    }

    fn on_traffic(&self, traffic: RequestProgress) {
        self.seen().push(StreamItem::Traffic(traffic));
    }
}

/// A ledger that keeps its entries.
#[derive(Debug, Default)]
pub struct FakeLedger {
    is_full: bool,
    begun: Mutex<Vec<LedgerEntry>>,
    ended: Mutex<Vec<LedgerEntry>>,
    health: Mutex<LedgerHealth>,
}

impl FakeLedger {
    /// Creates a ledger whose checks and records of starts fail, because its disk is full.
    pub fn full() -> Self {
        Self { is_full: true, ..Self::default() }
    }

    /// Locks the entries of started operations so far.
    pub fn begun(&self) -> MutexGuard<'_, Vec<LedgerEntry>> {
        lock(&self.begun)
    }

    /// Locks the appended entries so far.
    pub fn ended(&self) -> MutexGuard<'_, Vec<LedgerEntry>> {
        lock(&self.ended)
    }

    /// Locks the reported condition, which a test may set.
    pub fn health(&self) -> MutexGuard<'_, LedgerHealth> {
        lock(&self.health)
    }
}

#[async_trait]
impl LedgerStore for FakeLedger {
    async fn begin(&self, entry: LedgerEntry) -> Result<(), StoreError> {
        self.check().await?;
        self.begun().push(entry);
        Ok(())
    }

    fn append(&self, entry: LedgerEntry) -> AppendStatus {
        self.ended().push(entry);
        AppendStatus::Room
    }

    fn condition(&self) -> LedgerHealth {
        self.health().clone()
    }

    async fn check(&self) -> Result<(), StoreError> {
        match self.is_full {
            true => Err(StoreError::failed("write the ledger (/state/x)", std::io::Error::other("the disk is full"))),
            false => Ok(()),
        }
    }
}
