//! Limits and counts the cost of a run: estimates its calls in advance, reads their actual cost from events, and
//! reserves room within the run's limits.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use toolwright_core::catalogue::{PromptSize, PromptSizeQuery};
use toolwright_core::model::{ModelErrorKind, Prices, Usage};
use toolwright_core::operation::Op;
use toolwright_core::{Entry, Event, Services, TraceId};

use super::check::Kind;
use super::measure::PreparedBench;
use super::plan::Cell;

/// Assumed tokens of an answer without a known limit.
const ANSWER_TOKENS: u32 = 4096;
/// The most tokens of the message about an invalid answer.
const RETRY_MESSAGE_TOKENS: usize = 400;

/// The price of a model, if known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Price {
    /// Known prices.
    Known(Prices),
    /// Free: a server on this machine that needs no key.
    Free,
    /// Unknown, and so unlimited.
    Unknown,
}

/// The price and the retries of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelPrice {
    /// Its price.
    pub price: Price,
    /// The most attempts of one request.
    pub attempts: u32,
}

/// The prices of all models, including the judge's.
pub struct Pricing<'a> {
    prepared: &'a PreparedBench,
    services: &'a Services,
    models: HashMap<String, ModelPrice>,
}

/// The highest cost of a call.
pub(super) struct Estimate {
    /// US dollars.
    pub(super) cost: f64,
    /// US dollars of one request to its model.
    pub(super) each: f64,
    /// US dollars of one request to its judge.
    pub(super) each_of_judge: f64,
    /// The number of attempts at requests.
    pub(super) requests: u64,
    /// The least number: one, and one for each judge.
    pub(super) least: u64,
}

impl<'a> Pricing<'a> {
    /// Creates it for the calls of a plan, by these prices.
    #[must_use]
    pub fn new(prepared: &'a PreparedBench, services: &'a Services, models: HashMap<String, ModelPrice>) -> Self {
        Self { prepared, services, models }
    }

    /// Returns the models with an unknown price, in order.
    #[must_use]
    pub fn unknown(&self) -> Vec<&str> {
        let unknown = self.models.iter().filter(|(_, model)| model.price == Price::Unknown);
        let mut names: Vec<&str> = unknown.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    fn is_free(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(|model| model.price == Price::Free)
    }

    /// Returns whether any price is known.
    pub fn has_price(&self) -> bool {
        self.models.values().any(|model| matches!(model.price, Price::Known(_)))
    }

    /// Returns the cost of a model's usage in US dollars, if known.
    pub(super) fn cost(&self, model: &str, spent: &TraceUsage) -> Option<f64> {
        if self.is_free(model) { Some(0.0) } else { spent.known_cost() }
    }

    /// Returns the known part of the cost of a model's usage in US dollars.
    pub(super) fn known(&self, model: &str, spent: &TraceUsage) -> f64 {
        if self.is_free(model) { 0.0 } else { spent.cost }
    }

    /// Estimates the highest cost of a call: its prompt and the longest answer, for the most requests, and the same for
    /// its judge.
    pub(super) fn estimate(&self, cell: &Cell) -> Estimate {
        let plan = &self.prepared.plan;
        let (planned, model) = (&plan.tools[cell.tool], &plan.models[cell.model]);
        let (case, entry) = (&planned.cases[cell.case], &self.prepared.entries[cell.tool]);
        let tokens = &*self.services.tokens;
        let asked = PromptSizeQuery { arguments: &case.input, model, mode: planned.mode.as_deref(), tokens };
        let size = entry.provider.prompt_size(entry.id(), asked);
        let mut estimate = self.asked(model, &size);
        let answer = self.longest_answer(model, &size);
        let (Some(judge), Some(tool)) = (&plan.judge, &self.prepared.judge) else { return estimate };
        for check in &case.checks {
            let Kind::Rubric { task, criteria, .. } = &check.kind else { continue };
            let arguments = json!({"task": task, "answer": "…", "criteria": criteria});
            let judged = self.judged(tool, judge, &arguments, answer);
            estimate.cost += judged.cost;
            estimate.each_of_judge = estimate.each_of_judge.max(judged.each);
            estimate.requests = estimate.requests.saturating_add(judged.requests);
            estimate.least += judged.least;
        }
        estimate
    }

    /// Estimates the highest cost of a judge that is shown an answer of this many tokens.
    fn judged(&self, tool: &Entry, judge: &str, arguments: &Value, answer: u32) -> Estimate {
        let tokens = &*self.services.tokens;
        let asked = PromptSizeQuery { arguments, model: judge, mode: None, tokens };
        let size = tool.provider.prompt_size(tool.id(), asked);
        self.asked(judge, &PromptSize { input: size.input.saturating_add(answer as usize), ..size })
    }

    fn asked(&self, model: &str, size: &PromptSize) -> Estimate {
        let answer = self.longest_answer(model, size);
        let asks = 1.0 + f64::from(size.asks_again);
        // Each further request also contains the earlier answers.
        let more = (answer as usize + RETRY_MESSAGE_TOKENS).saturating_mul(size.asks_again as usize);
        let asked_model = self.models.get(model);
        let each = match asked_model.map(|model| model.price) {
            Some(Price::Known(prices)) => {
                // Cheaper reads from a cache are not assumed; dearer writes to it are.
                let input = prices.input.max(prices.cache_written.unwrap_or(0.0));
                let prompt = size.input.saturating_add(more) as f64;
                (prompt * input + f64::from(answer) * prices.output) / 1e6
            }
            _ => 0.0,
        };
        // A request that is refused for its form is free, but counts as a request.
        let most = asked_model.map_or(1, |model| model.attempts);
        let asked = 1 + u64::from(size.asks_again);
        let requests = asked.saturating_mul(u64::from(most));
        Estimate { cost: asks * each, each, each_of_judge: 0.0, requests, least: 1 }
    }

    fn longest_answer(&self, model: &str, size: &PromptSize) -> u32 {
        self.services.model.longest_answer(model, size.max_answer, &size.settings, ANSWER_TOKENS)
    }
}

/// The sum of one trace's operations.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TraceUsage {
    /// The known cost in US dollars.
    pub(super) cost: f64,
    /// Whether usage had an unknown price, or was not reported.
    pub(super) is_unknown: bool,
    /// The number of attempts with unknown usage that may be charged: answers without usage, and failures after the
    /// request was sent.
    pub(super) unseen: u64,
    /// Token usage.
    pub(super) usage: Usage,
    /// The number of attempts at requests.
    pub(super) requests: u64,
    /// Microseconds in queues and between attempts.
    pub(super) waited_us: u64,
}

impl TraceUsage {
    /// Returns the cost in US dollars, if completely known.
    pub(super) fn known_cost(&self) -> Option<f64> {
        (!self.is_unknown).then_some(self.cost)
    }

    /// Adds the sum of another trace.
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
            // A model without a price.
            (None, _) if usage != Usage::default() => self.is_unknown = true,
            (None, None) => {
                self.is_unknown = true;
                self.unseen += 1;
            }
            (None, Some(kind)) => self.unseen += u64::from(kind.may_be_charged()),
        }
    }
}

/// Sums costs from Toolwright's events.
pub(super) struct UsageMeter {
    events: Receiver<Arc<Event>>,
    by_trace: HashMap<TraceId, TraceUsage>,
    lags: u64,
}

impl UsageMeter {
    pub(super) fn new(events: Receiver<Arc<Event>>) -> Self {
        Self { events, by_trace: HashMap::new(), lags: 0 }
    }

    /// Reads events while it is polled.
    pub(super) async fn watch(&mut self) -> Infallible {
        loop {
            match self.events.recv().await {
                Ok(event) => self.observe(&event),
                Err(RecvError::Lagged(_)) => self.lags += 1,
                Err(RecvError::Closed) => return std::future::pending().await,
            }
        }
    }

    /// Returns the sum of an ended trace, whose events have all been sent.
    pub(super) fn take(&mut self, trace: TraceId) -> TraceUsage {
        loop {
            match self.events.try_recv() {
                Ok(event) => self.observe(&event),
                Err(TryRecvError::Lagged(_)) => self.lags += 1,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        self.by_trace.remove(&trace).unwrap_or_default()
    }

    /// Returns how often events were lost: the sums of calls in progress then are uncertain.
    pub(super) fn lost_event_count(&self) -> u64 {
        self.lags
    }

    fn observe(&mut self, event: &Event) {
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

    fn of(&mut self, op: &Op) -> &mut TraceUsage {
        self.by_trace.entry(op.lineage.trace).or_default()
    }
}

/// The limits of a run, and what is spent and reserved.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RunCap {
    /// US dollars; `None`: unlimited. With an invalid amount nothing runs.
    max_cost: Option<f64>,
    /// Requests to models; `None`: unlimited.
    max_requests: Option<u64>,
    spent_cost: f64,
    spent_requests: u64,
    taken_cost: f64,
    taken_requests: u64,
}

/// Reserved room, which [`RunCap::settle`] returns.
#[derive(Debug, PartialEq)]
#[must_use = "room that is not given back is lost"]
pub(super) struct Reservation {
    cost: f64,
    requests: u64,
}

impl Reservation {
    /// Returns the number of requests that fit.
    #[must_use]
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }
}

/// The reason why a call does not fit.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Refusal {
    /// It may fit once running calls have settled.
    Later,
    /// It will never fit, for this reason: the limit and its setting, the amount spent, the call's maximum.
    Never(String),
}

impl RunCap {
    /// Creates limits of which this much is already spent.
    #[must_use]
    pub(super) fn new(max_cost: Option<f64>, max_requests: Option<u64>, spent_cost: f64, spent_requests: u64) -> Self {
        Self { max_cost, max_requests, spent_cost, spent_requests, ..Self::default() }
    }

    /// Returns the US dollars spent.
    #[must_use]
    pub(super) fn spent(&self) -> f64 {
        self.spent_cost
    }

    /// Returns whether requests are limited.
    #[must_use]
    pub(super) fn bounds_requests(&self) -> bool {
        self.max_requests.is_some()
    }

    /// Reserves room for a call with at most this cost and this many requests. If fewer requests are left, but at least
    /// `least`, it reserves the rest, so that none is unused.
    ///
    /// # Errors
    /// [`Refusal`] if it does not fit.
    pub(super) fn reserve(&mut self, cost: f64, requests: u64, least: u64) -> Result<Reservation, Refusal> {
        let left = self.max_requests.map_or(u64::MAX, |max| max.saturating_sub(self.spent_requests));
        let requests = if left >= least { requests.min(left) } else { least };
        let alone = (self.spent_cost + cost, self.spent_requests.saturating_add(requests));
        let has = |max: f64, cost: f64| max.is_finite() && cost.is_finite() && cost <= max;
        if let Some(max) = self.max_cost.filter(|max| !has(*max, alone.0)) {
            return Err(Refusal::Never(format!(
                "${:.4} of ${max} are spent, and a call may cost ${cost:.4} by estimate; see --max-cost",
                self.spent_cost
            )));
        }
        if let Some(max) = self.max_requests.filter(|max| alone.1 > *max) {
            return Err(Refusal::Never(format!(
                "{} of {max} requests are made, and a call takes {least} at least; see --max-requests",
                self.spent_requests
            )));
        }
        if self.max_cost.is_some_and(|max| !has(max, alone.0 + self.taken_cost))
            || self.max_requests.is_some_and(|max| alone.1.saturating_add(self.taken_requests) > max)
        {
            return Err(Refusal::Later);
        }
        self.taken_cost += cost;
        self.taken_requests = self.taken_requests.saturating_add(requests);
        Ok(Reservation { cost, requests })
    }

    /// Returns the room of a call with this actual cost and number of requests.
    pub(super) fn settle(&mut self, reservation: Reservation, cost: f64, requests: u64) {
        let Reservation { cost: taken, requests: taken_requests } = reservation;
        self.taken_cost = (self.taken_cost - taken).max(0.0);
        self.taken_requests = self.taken_requests.saturating_sub(taken_requests);
        self.spent_cost += cost;
        self.spent_requests = self.spent_requests.saturating_add(requests);
    }
}

#[cfg(test)]
mod tests {
    use toolwright_core::SessionId;
    use toolwright_core::operation::{Lineage, OpId};

    use super::*;

    #[test]
    fn unknown_costs_are_not_zero() {
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
            let mut spent = TraceUsage::default();
            spent.request(failed, usage, cost);
            assert_eq!((spent.is_unknown, spent.unseen), (unknown, unseen), "{failed:?} {usage:?} {cost:?}");
            spent.request(failed, usage, cost);
            assert_eq!(spent.unseen, 2 * unseen, "each may be charged");
        }
    }

    #[test]
    fn retry_waits_are_not_model_latency() {
        let (_sender, receiver) = tokio::sync::broadcast::channel(1);
        let mut meter = UsageMeter::new(receiver);
        let op = Lineage::named("t").begin(OpId::new(1));
        meter.observe(&Event::ModelRetried {
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
        let mut meter = UsageMeter::new(receiver);
        let warning = || Arc::new(Event::Warning { code: "c".into(), message: "m".into() });
        let trace = toolwright_core::Lineage::named("t").trace;
        sender.send(warning()).expect("sent");
        assert_eq!((meter.take(trace), meter.lost_event_count()), (TraceUsage::default(), 0));
        sender.send(warning()).expect("sent");
        sender.send(warning()).expect("sent");
        assert_eq!((meter.take(trace), meter.lost_event_count()), (TraceUsage::default(), 1));
    }

    fn never(why: &str) -> Result<Reservation, Refusal> {
        Err(Refusal::Never(why.to_owned()))
    }

    #[test]
    fn running_calls_hold_their_estimate() {
        let mut cap = RunCap::new(Some(1.0), Some(10), 0.25, 0);
        let first = cap.reserve(0.5, 1, 1).expect("room");
        assert_eq!(cap.reserve(0.5, 1, 1), Err(Refusal::Later));
        assert_eq!(
            cap.reserve(0.8, 1, 1),
            never("$0.2500 of $1 are spent, and a call may cost $0.8000 by estimate; see --max-cost")
        );
        assert_eq!(cap.reserve(0.1, 10, 1), Err(Refusal::Later));
        cap.settle(first, 0.125, 2);
        assert!((cap.spent() - 0.375).abs() < 1e-9);
        let second = cap.reserve(0.5, 8, 1).expect("room");
        cap.settle(second, 0.7, 8);
        assert_eq!(
            cap.reserve(0.0, 1, 1),
            never("$1.0750 of $1 are spent, and a call may cost $0.0000 by estimate; see --max-cost"),
            "it cost more than expected"
        );
        let mut few = RunCap::new(Some(1.0), Some(10), 0.0, 9);
        let of_requests = "9 of 10 requests are made, and a call takes 2 at least; see --max-requests";
        assert_eq!(few.reserve(0.5, 3, 2), never(of_requests));
        for (max, cost) in [(f64::NAN, 0.0), (f64::INFINITY, 0.0), (-1.0, 0.0), (1.0, f64::NAN)] {
            let refused = RunCap::new(Some(max), None, 0.0, 0).reserve(cost, 1, 1);
            assert!(matches!(refused, Err(Refusal::Never(_))), "{max} {cost}");
        }
        let mut open = RunCap::new(None, None, 0.0, 0);
        assert!(open.reserve(f64::MAX, u64::MAX, 1).is_ok());
    }

    #[test]
    fn the_last_allowed_requests_are_used() {
        let mut cap = RunCap::new(None, Some(10), 0.0, 0);
        let mut granted = Vec::new();
        while let Ok(room) = cap.reserve(0.0, 4, 2) {
            granted.push(room.requests());
            cap.settle(room, 0.0, 2);
        }
        assert_eq!(granted, [4, 4, 4, 4, 2], "each took two");
        let over = "10 of 10 requests are made, and a call takes 2 at least; see --max-requests";
        assert_eq!(cap.reserve(0.0, 4, 2), never(over));
        // Room that a running call may still use is not given twice.
        let mut two = RunCap::new(None, Some(5), 0.0, 0);
        let first = two.reserve(0.0, 4, 1).expect("room");
        assert_eq!(two.reserve(0.0, 4, 1), Err(Refusal::Later));
        two.settle(first, 0.0, 2);
        assert_eq!(two.reserve(0.0, 4, 1).map(|room| room.requests()), Ok(3));
        let mut odd = RunCap::new(None, Some(3), 0.0, 2);
        assert_eq!(
            odd.reserve(0.0, 4, 2),
            never("2 of 3 requests are made, and a call takes 2 at least; see --max-requests")
        );
        assert_eq!(odd.reserve(0.0, 4, 1).map(|room| room.requests()), Ok(1));
    }
}
