//! The calls of a plan as they end: which start, with which values, and which never will.

use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;
use toolwright_core::call::{CallMeta, PendingCall};
use toolwright_core::outcome::{Outcome, STANDS_IN};
use toolwright_core::plan::{FailedCall, Graph, Plan, Planned, Schedule, land};
use toolwright_core::session::CallId;
use toolwright_core::store::{Written, fold};
use toolwright_core::variables::{Kind, Outlook, Variables};

use super::RunContext;

/// A call of a plan that has ended.
#[derive(Debug, Clone)]
pub struct EndedCall {
    /// What it came to.
    pub outcome: Outcome,
    /// When it started.
    pub started: Instant,
    /// When it ended.
    pub ended: Instant,
}

/// What a call leaves under its path; `None` if it keeps nothing, or has nothing whole.
#[must_use]
pub fn kept_value(meta: &CallMeta, outcome: &Outcome) -> Option<Written> {
    let path = meta.output_path.as_deref()?;
    if !outcome.ok || outcome.extras.contains_key(STANDS_IN) {
        return None;
    }
    let data = match &outcome.structured {
        Some(structured) => structured.clone(),
        None if outcome.is_truncated() => return None,
        None => value_of(outcome.text()),
    };
    Some(Written { method: meta.output_method, ..Written::set(path, data) })
}

/// A text as a value: JSON if it is an object or an array, else the text.
fn value_of(text: String) -> Value {
    let is_container = text.trim_start().starts_with(['{', '[']);
    let read = if is_container { serde_json::from_str(&text).ok() } else { None };
    read.unwrap_or(Value::String(text))
}

/// What the calls of a plan wrote, behind what their caller has.
struct OwnValues<'a> {
    caller: Option<&'a Arc<dyn Variables>>,
    written: &'a [Written],
}

impl Variables for OwnValues<'_> {
    fn get(&self, kind: Kind, path: &[&str]) -> Option<Value> {
        let known = self.caller.and_then(|caller| caller.get(kind, path));
        known.or_else(|| {
            // A fold knows members of objects; the items of an array are steps of what stands above.
            let own = |to: usize| {
                let value = fold(self.written.iter(), &path[..to].join("."), None)?;
                path[to..]
                    .iter()
                    .try_fold(value, |value, step| toolwright_core::variables::step_into(&value, step).cloned())
            };
            (1..=path.len()).rev().filter(|_| kind == Kind::State).find_map(own)
        })
    }
}

/// A plan under way.
pub(super) struct Flow {
    /// What became of the calls, in call order.
    pub(super) outcomes: Vec<Option<EndedCall>>,
    started: Vec<Option<Instant>>,
    /// What the calls wrote for each other.
    written: Vec<Written>,
    graph: Graph,
    schedule: Schedule,
    /// The calls that have not started.
    calls: Vec<Option<Planned>>,
    names: Vec<Name>,
    /// The calls that may start, the next one last.
    ready: Vec<usize>,
    /// Calls that wait for a value that no call of the plan is known to write.
    stuck: Vec<usize>,
    /// Whether a person must decide about one of the calls first.
    is_held: bool,
}

/// What is said of a call whose value others wait for.
struct Name {
    id: CallId,
    tool: String,
    meta: CallMeta,
}

impl Flow {
    /// A plan of which nothing has started.
    pub(super) fn of(plan: Plan) -> Self {
        let Plan { calls, graph } = plan;
        let schedule = Schedule::of(&graph);
        let mut ready = schedule.ready();
        ready.reverse();
        // Only calls that write can keep others waiting.
        let name = |planned: &Planned| Name {
            id: planned.call_id().clone(),
            tool: planned.tool().to_owned(),
            meta: planned.meta().clone(),
        };
        let names = if graph.edges().is_empty() { Vec::new() } else { calls.iter().map(name).collect() };
        Self {
            outcomes: vec![None; calls.len()],
            started: vec![None; calls.len()],
            written: Vec::new(),
            graph,
            schedule,
            calls: calls.into_iter().map(Some).collect(),
            names,
            ready,
            stuck: Vec::new(),
            is_held: false,
        }
    }

    /// The next call to start, with its values in their places. With none running (`is_idle`) and none ready, nothing more
    /// is written: then calls that still wait fall back, or are rejected.
    pub(super) fn next(&mut self, is_idle: bool, run: &RunContext) -> Option<(usize, Planned)> {
        while let Some(index) = self.ready.pop() {
            if let Some(started) = self.start(index, Outlook::Open, run) {
                self.started[index] = Some(Instant::now());
                return Some((index, started));
            }
        }
        if !is_idle || self.is_held {
            return None;
        }
        let index = self.stuck.pop().or_else(|| self.calls.iter().position(Option::is_some))?;
        self.started[index] = Some(Instant::now());
        Some((index, self.start(index, Outlook::Closed, run)?))
    }

    fn start(&mut self, index: usize, outlook: Outlook, run: &RunContext) -> Option<Planned> {
        let call = match self.calls.get_mut(index)?.take()? {
            Planned::Run(call) if !call.pending.is_empty() => *call,
            planned => return Some(planned),
        };
        let failed: Vec<FailedCall> =
            self.graph.producers(index).filter_map(|producer| self.failed(producer)).collect();
        let is_known = !self.graph.is_open(index) && self.graph.producers(index).next().is_some();
        let outlook = if is_known { Outlook::Closed } else { outlook };
        let own = OwnValues { caller: run.variables.as_ref(), written: &self.written };
        let variables = run.variables.is_some().then_some(&own as &dyn Variables);
        match land(call, variables, outlook, &failed) {
            Ok(PendingCall::Ready(call)) => Some(Planned::Run(Box::new(call))),
            Ok(PendingCall::Waits(call)) => {
                self.calls[index] = Some(Planned::Run(Box::new(call)));
                self.stuck.insert(0, index);
                None
            }
            Err(rejection) => Some(Planned::Reject(rejection)),
        }
    }

    /// The call, if it has ended without a value for others.
    fn failed(&self, index: usize) -> Option<FailedCall> {
        let has_failed = self.outcomes.get(index)?.as_ref().is_some_and(|call| !call.outcome.ok);
        let Name { id, tool, meta } = self.names.get(index).filter(|_| has_failed)?;
        Some(FailedCall { id: id.clone(), tool: tool.clone(), path: meta.output_path.clone() })
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, index: usize, outcome: Outcome) {
        let waits = outcome.pending.is_some();
        self.written.extend(self.names.get(index).and_then(|name| kept_value(&name.meta, &outcome)));
        let ended = Instant::now();
        let started = self.started[index].unwrap_or(ended);
        self.outcomes[index] = Some(EndedCall { outcome, started, ended });
        if waits {
            // Those that wait for it run once a person has decided.
            self.is_held |= self.graph.edges().iter().any(|edge| edge.from == index);
            return;
        }
        // What it wrote may be what others wait for.
        self.ready.append(&mut self.stuck);
        let mut next = self.schedule.ended(index);
        next.reverse();
        self.ready.append(&mut next);
    }
}
