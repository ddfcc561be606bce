//! What calls cost, from the events of their requests to models.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use toolwright::core::model::{ModelErrorKind, Usage};
use toolwright::core::operation::Op;
use toolwright::core::{Event, TraceId};

/// What the operations of one trace came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Spent {
    /// US dollars, as far as they are known.
    pub(super) cost: f64,
    /// Whether something was used whose price is not known, or answered without a word of what it used.
    pub(super) is_unknown: bool,
    /// Attempts of which nobody said what they used, and which may be charged: answers without a word of it, and failures
    /// on their way back.
    pub(super) unseen: u64,
    /// Tokens.
    pub(super) usage: Usage,
    /// Attempts at requests.
    pub(super) requests: u64,
    /// Microseconds in queues and between attempts.
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
        self.unseen = self.unseen.saturating_add(other.unseen);
        self.usage.add(other.usage);
        self.requests += other.requests;
        self.waited_us += other.waited_us;
    }

    fn request(&mut self, failed: Option<ModelErrorKind>, usage: Usage, cost: Option<f64>) {
        self.requests += 1;
        self.usage.add(usage);
        match (cost, failed) {
            (Some(cost), _) => self.cost += cost,
            // Of a model without a price.
            (None, _) if usage != Usage::default() => self.is_unknown = true,
            (None, None) => {
                self.is_unknown = true;
                self.unseen += 1;
            }
            (None, Some(kind)) => self.unseen += u64::from(kind.may_be_charged()),
        }
    }
}

/// Watches the events of Toolwright.
pub(super) struct Meter {
    events: Receiver<Arc<Event>>,
    by_trace: HashMap<TraceId, Spent>,
    lags: u64,
}

impl Meter {
    pub(super) fn new(events: Receiver<Arc<Event>>) -> Self {
        Self { events, by_trace: HashMap::new(), lags: 0 }
    }

    /// Takes events in for as long as it is polled.
    pub(super) async fn watch(&mut self) -> Infallible {
        loop {
            match self.events.recv().await {
                Ok(event) => self.see(&event),
                Err(RecvError::Lagged(_)) => self.lags += 1,
                Err(RecvError::Closed) => return std::future::pending().await,
            }
        }
    }

    /// What a trace that has ended came to: its events have been sent by now.
    pub(super) fn take(&mut self, trace: TraceId) -> Spent {
        loop {
            match self.events.try_recv() {
                Ok(event) => self.see(&event),
                Err(TryRecvError::Lagged(_)) => self.lags += 1,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        self.by_trace.remove(&trace).unwrap_or_default()
    }

    /// How often events were lost: of what was under way then, nothing is known for sure.
    pub(super) fn lags(&self) -> u64 {
        self.lags
    }

    fn see(&mut self, event: &Event) {
        match event {
            Event::ModelRetried { op, error, usage, cost_usd, again_in_ms, .. } => {
                let spent = self.of(op);
                spent.request(Some(*error), *usage, *cost_usd);
                spent.waited_us = spent.waited_us.saturating_add(again_in_ms.saturating_mul(1000));
            }
            Event::ModelFinished { op, error, usage, cost_usd, .. } => self.of(op).request(*error, *usage, *cost_usd),
            Event::ModelWaited { op, wait_us, .. } => {
                let spent = self.of(op);
                spent.waited_us = spent.waited_us.saturating_add(*wait_us);
            }
            _ => {}
        }
    }

    fn of(&mut self, op: &Op) -> &mut Spent {
        self.by_trace.entry(op.lineage.trace).or_default()
    }
}

#[cfg(test)]
mod tests {
    use toolwright::core::SessionId;
    use toolwright::core::operation::{Lineage, OpId};

    use super::*;

    #[test]
    fn what_is_not_known_is_not_free() {
        let used = Usage { input_tokens: 1, ..Usage::default() };
        for (failed, usage, cost, unknown, unseen) in [
            (None, used, Some(1.0), false, 0),
            (None, used, None, true, 0),
            (None, Usage::default(), None, true, 1),
            (Some(ModelErrorKind::Unavailable), used, Some(1.0), false, 0),
            (Some(ModelErrorKind::Unavailable), used, None, true, 0),
            (Some(ModelErrorKind::BadResponse), Usage::default(), None, false, 1),
            (Some(ModelErrorKind::RateLimit), Usage::default(), None, false, 0),
        ] {
            let mut spent = Spent::default();
            spent.request(failed, usage, cost);
            assert_eq!((spent.is_unknown, spent.unseen), (unknown, unseen), "{failed:?} {usage:?} {cost:?}");
            spent.request(failed, usage, cost);
            assert_eq!(spent.unseen, 2 * unseen, "each may be charged");
        }
    }

    #[test]
    fn waits_between_attempts_are_no_latency_of_the_model() {
        let (_sender, receiver) = tokio::sync::broadcast::channel(1);
        let mut meter = Meter::new(receiver);
        let op = Lineage::named("t").begin(OpId::new(1));
        meter.see(&Event::ModelRetried {
            op: op.clone(),
            session: SessionId::new("s"),
            model: "p/m".into(),
            attempt: 1,
            error: ModelErrorKind::RateLimit,
            message: "later".into(),
            latency_us: 70_000,
            usage: Usage::default(),
            cost_usd: None,
            again_in_ms: 2000,
        });
        let spent = meter.take(op.lineage.trace);
        assert_eq!((spent.requests, spent.waited_us), (1, 2_000_000));
    }

    #[test]
    fn lost_events_are_counted() {
        let (sender, receiver) = tokio::sync::broadcast::channel(1);
        let mut meter = Meter::new(receiver);
        let warning = || Arc::new(Event::Warning { code: "c".into(), message: "m".into() });
        let trace = toolwright::core::Lineage::named("t").trace;
        sender.send(warning()).expect("sent");
        assert_eq!((meter.take(trace), meter.lags()), (Spent::default(), 0));
        sender.send(warning()).expect("sent");
        sender.send(warning()).expect("sent");
        assert_eq!((meter.take(trace), meter.lags()), (Spent::default(), 1));
    }
}
