//! Starts the calls of a plan as others end: decides which calls start, with which values, and which never can.

use tokio::time::Instant;
use toolwright_core::call::PendingCall;
use toolwright_core::outcome::Outcome;
use toolwright_core::plan::{CallDisposition, ExclusionReason, FailedCall, Graph, Plan, Schedule, land};
use toolwright_core::variables::Completeness;

use super::RunContext;

/// A call of a plan that has ended.
#[derive(Debug, Clone)]
pub struct EndedCall {
    /// The outcome of the call.
    pub outcome: Outcome,
    /// When it started.
    pub started: Instant,
    /// When it ended.
    pub ended: Instant,
}

/// A plan in progress.
pub(super) struct Flow {
    /// The ended calls, in call order.
    pub(super) outcomes: Vec<Option<EndedCall>>,
    started: Vec<Option<Instant>>,
    graph: Graph,
    schedule: Schedule,
    /// The calls that have not started.
    calls: Vec<Option<CallDisposition>>,
    /// How to name each call that others depend on, if it yields no value.
    names: Vec<FailedCall>,
    /// Whether each ended call yielded no value.
    lost: Vec<bool>,
    /// The calls that may start, the next one last.
    ready: Vec<usize>,
    /// Calls that wait for a value that no call of the plan is known to write.
    stuck: Vec<usize>,
    /// Whether a person must first decide about one of the calls.
    is_held: bool,
}

impl Flow {
    /// Creates the flow of a plan of which nothing has started.
    pub(super) fn of(plan: Plan) -> Self {
        let Plan { calls, excluded, graph } = plan;
        // Other calls can only wait for calls that write.
        let name = |planned: &CallDisposition| {
            let writes = planned.meta().writes();
            FailedCall {
                id: planned.call_id().clone(),
                tool: planned.tool().to_owned(),
                path: writes.map(|(path, _)| path.to_owned()),
                instance: writes.and_then(|(_, instance)| instance.map(str::to_owned)),
                why: String::new(),
            }
        };
        let names = if graph.edges().is_empty() { Vec::new() } else { calls.iter().map(name).collect() };
        let mut flow = Self {
            outcomes: vec![None; calls.len()],
            started: vec![None; calls.len()],
            schedule: Schedule::of(&graph),
            lost: vec![false; calls.len()],
            calls: calls.into_iter().map(Some).collect(),
            names,
            ready: Vec::new(),
            stuck: Vec::new(),
            is_held: false,
            graph,
        };
        for (index, end) in excluded {
            flow.calls[index] = None;
            match end {
                ExclusionReason::Held => flow.hold(index),
                ExclusionReason::Lost(why) => {
                    flow.lost[index] = true;
                    flow.schedule.ended(index);
                    flow.names.get_mut(index).into_iter().for_each(|name| name.why.clone_from(&why));
                }
            }
        }
        flow.ready = flow.schedule.ready();
        flow.ready.retain(|index| flow.calls[*index].is_some());
        flow.ready.reverse();
        flow
    }

    /// Returns the next call to start, with its references resolved. If no call runs (`is_idle`) or is ready, nothing
    /// more will be written: calls that still wait use their defaults or are rejected.
    pub(super) fn next(&mut self, is_idle: bool, run: &RunContext) -> Option<(usize, CallDisposition)> {
        while let Some(index) = self.ready.pop() {
            if let Some(started) = self.start(index, Completeness::Open, run) {
                self.started[index] = Some(Instant::now());
                return Some((index, started));
            }
        }
        if !is_idle || self.is_held {
            return None;
        }
        let index = self.stuck.pop().or_else(|| self.calls.iter().position(Option::is_some))?;
        self.started[index] = Some(Instant::now());
        Some((index, self.start(index, Completeness::Closed, run)?))
    }

    fn start(&mut self, index: usize, completeness: Completeness, run: &RunContext) -> Option<CallDisposition> {
        let call = match self.calls.get_mut(index)?.take()? {
            CallDisposition::Run(call) if !call.pending.is_empty() => *call,
            planned => return Some(planned),
        };
        let failed: Vec<FailedCall> =
            self.graph.producers(index).filter_map(|producer| self.failed(producer)).collect();
        let is_known = !self.graph.is_open(index) && self.graph.producers(index).next().is_some();
        let completeness = if is_known { Completeness::Closed } else { completeness };
        match land(call, run.variables.as_deref(), completeness, &failed) {
            Ok(PendingCall::Ready(call)) => Some(CallDisposition::Run(Box::new(call))),
            Ok(PendingCall::Waits(call)) => {
                self.calls[index] = Some(CallDisposition::Run(Box::new(call)));
                self.stuck.insert(0, index);
                None
            }
            Err(rejection) => Some(CallDisposition::Reject(rejection)),
        }
    }

    /// Returns the call, if it has ended without a value for others.
    fn failed(&self, index: usize) -> Option<FailedCall> {
        let name = self.names.get(index)?;
        if self.lost[index] {
            return Some(name.clone());
        }
        let why = self.outcomes.get(index)?.as_ref()?.outcome.no_value()?;
        Some(FailedCall { why: why.to_owned(), ..name.clone() })
    }

    /// Holds the calls that wait for it until a person has decided.
    fn hold(&mut self, index: usize) {
        self.is_held |= self.graph.edges().iter().any(|edge| edge.from == index);
    }

    /// Records the end of a call.
    pub(super) fn ended(&mut self, index: usize, outcome: Outcome) {
        let waits = outcome.pending.is_some() || outcome.is_left;
        let ended = Instant::now();
        let started = self.started[index].unwrap_or(ended);
        self.outcomes[index] = Some(EndedCall { outcome, started, ended });
        if waits {
            self.hold(index);
            return;
        }
        // Its write may be the value that other calls wait for.
        self.ready.append(&mut self.stuck);
        let mut next = self.schedule.ended(index);
        next.reverse();
        self.ready.append(&mut next);
    }
}
