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
    /// Whether a request failed on its way back: what it used is not known, and it may be charged.
    pub(super) may_cost_more: bool,
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

    /// US dollars that count against a bound, of which `known` are known: what is not known is taken to have cost what it
    /// could.
    pub(super) fn charged(&self, known: Option<f64>, could: f64) -> f64 {
        match known {
            Some(cost) if !self.may_cost_more => cost,
            known => could.max(known.unwrap_or(self.cost)),
        }
    }

    /// Adds what another trace came to.
    pub(super) fn add(&mut self, other: &Self) {
        self.cost += other.cost;
        self.is_unknown |= other.is_unknown;
        self.may_cost_more |= other.may_cost_more;
        self.usage.add(other.usage);
        self.requests += other.requests;
        self.waited_us += other.waited_us;
    }

    fn request(&mut self, failed: Option<ModelErrorKind>, usage: Usage, cost: Option<f64>) {
        self.requests += 1;
        self.usage.add(usage);
        match (cost, failed) {
            (Some(cost), _) => self.cost += cost,
            (None, None) => self.is_unknown = true,
            (None, Some(_)) if usage != Usage::default() => self.is_unknown = true,
            (None, Some(kind)) => self.may_cost_more |= !is_refused(kind),
        }
    }
}

/// Whether a request that failed like this was refused before a model worked on it. Of one that never reached its
/// provider it is known that it cost nothing.
fn is_refused(kind: ModelErrorKind) -> bool {
    match kind {
        ModelErrorKind::RateLimit
        | ModelErrorKind::Auth
        | ModelErrorKind::Quota
        | ModelErrorKind::Invalid
        | ModelErrorKind::Unsupported
        | ModelErrorKind::ContextOverflow => true,
        // An answer may have been cut off, or thrown away.
        ModelErrorKind::Unavailable
        | ModelErrorKind::BadResponse
        | ModelErrorKind::Canceled
        | ModelErrorKind::ContentFilter => false,
    }
}

/// Watches the events of the house.
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
        for (failed, usage, cost, unknown, more) in [
            (None, used, Some(1.0), false, false),
            (None, used, None, true, false),
            (None, Usage::default(), None, true, false),
            (Some(ModelErrorKind::Unavailable), used, Some(1.0), false, false),
            (Some(ModelErrorKind::Unavailable), used, None, true, false),
            (Some(ModelErrorKind::BadResponse), Usage::default(), None, false, true),
            (Some(ModelErrorKind::RateLimit), Usage::default(), None, false, false),
        ] {
            let mut spent = Spent::default();
            spent.request(failed, usage, cost);
            assert_eq!((spent.is_unknown, spent.may_cost_more), (unknown, more), "{failed:?} {usage:?} {cost:?}");
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
