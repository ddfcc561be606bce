//! What calls cost, from the events of their requests to models.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use toolwright::core::model::Usage;
use toolwright::core::{Event, TraceId};

/// What the operations of one trace came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Spent {
    /// US dollars, as far as they are known.
    pub(super) cost: f64,
    /// Whether something was used whose price is not known.
    pub(super) is_unknown: bool,
    /// Tokens.
    pub(super) usage: Usage,
    /// Attempts at requests.
    pub(super) requests: u64,
    /// Microseconds in queues.
    pub(super) waited_us: u64,
}

impl Spent {
    /// US dollars, where all of them are known.
    pub(super) fn known_cost(&self) -> Option<f64> {
        (!self.is_unknown).then_some(self.cost)
    }

    /// Adds what another trace came to.
    pub(super) fn add(&mut self, other: &Self) {
        self.cost += other.cost;
        self.is_unknown |= other.is_unknown;
        self.usage.add(other.usage);
        self.requests += other.requests;
        self.waited_us += other.waited_us;
    }

    fn request(&mut self, usage: Usage, cost: Option<f64>) {
        self.requests += 1;
        self.usage.add(usage);
        match cost {
            Some(cost) => self.cost += cost,
            None => self.is_unknown |= usage != Usage::default(),
        }
    }
}

/// Watches the events of the house.
pub(super) struct Meter {
    events: Receiver<Arc<Event>>,
    by_trace: HashMap<TraceId, Spent>,
}

impl Meter {
    pub(super) fn new(events: Receiver<Arc<Event>>) -> Self {
        Self { events, by_trace: HashMap::new() }
    }

    /// Takes events in for as long as it is polled.
    pub(super) async fn watch(&mut self) -> Infallible {
        loop {
            match self.events.recv().await {
                Ok(event) => self.see(&event),
                Err(RecvError::Lagged(_)) => self.missed(),
                Err(RecvError::Closed) => return std::future::pending().await,
            }
        }
    }

    /// What a trace that has ended came to: its events have been sent by now.
    pub(super) fn take(&mut self, trace: TraceId) -> Spent {
        loop {
            match self.events.try_recv() {
                Ok(event) => self.see(&event),
                Err(TryRecvError::Lagged(_)) => self.missed(),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        self.by_trace.remove(&trace).unwrap_or_default()
    }

    /// Of what was under way nothing is known for sure any more.
    fn missed(&mut self) {
        self.by_trace.values_mut().for_each(|spent| spent.is_unknown = true);
    }

    fn see(&mut self, event: &Event) {
        match event {
            Event::ModelStarted { op, .. } => {
                self.by_trace.entry(op.lineage.trace).or_default();
            }
            Event::ModelRetried { op, usage, cost_usd, .. } | Event::ModelFinished { op, usage, cost_usd, .. } => {
                self.by_trace.entry(op.lineage.trace).or_default().request(*usage, *cost_usd);
            }
            Event::ModelWaited { op, wait_us, .. } => {
                self.by_trace.entry(op.lineage.trace).or_default().waited_us += wait_us;
            }
            _ => {}
        }
    }
}
