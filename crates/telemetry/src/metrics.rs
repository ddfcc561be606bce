//! The metrics registry, which events update.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use hashbrown::{HashMap, HashSet};
use toolwright_core::event::Event;
use toolwright_core::job::JobState;
use toolwright_core::operation::{CallOrigin, OpId};
use toolwright_core::store::{LedgerHealth, LedgerStore};
use toolwright_core::tool_id::wire_candidate;

use crate::instruments::{Families, Family};
use crate::semconv::{self, provider_and_model};
use crate::spans::tool_name;

/// Number of distinct tool names; further ones count as `other`. The same for the other limits.
const MAX_TOOLS: usize = 200;
/// Different providers, methods of MCP, models, agents, queues and kinds of errors.
const MAX_OTHERS: usize = 50;
/// Open operations. Further ones are not counted as running or waiting.
const MAX_OPEN_OPERATIONS: usize = 16_384;

/// The metrics since the start. Its size is bounded by the number of different names.
pub struct Metrics {
    since: SystemTime,
    state: Mutex<State>,
    ledger: OnceLock<Arc<dyn LedgerStore>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { since: SystemTime::now(), state: Mutex::default(), ledger: OnceLock::new() }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("since", &self.since).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    families: Families,
    tools: BoundedNames,
    providers: BoundedNames,
    methods: BoundedNames,
    models: BoundedNames,
    queues: BoundedNames,
    agents: BoundedNames,
    errors: BoundedNames,
    running: HashSet<OpId>,
    waiting: HashMap<OpId, Arc<str>>,
    jobs: HashMap<String, JobState>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            families: Families::default(),
            tools: BoundedNames::new(MAX_TOOLS),
            providers: BoundedNames::new(MAX_OTHERS),
            methods: BoundedNames::new(MAX_OTHERS),
            models: BoundedNames::new(MAX_OTHERS),
            queues: BoundedNames::new(MAX_OTHERS),
            agents: BoundedNames::new(MAX_OTHERS),
            errors: BoundedNames::new(MAX_OTHERS),
            running: HashSet::new(),
            waiting: HashMap::new(),
            jobs: HashMap::new(),
        }
    }
}

impl Metrics {
    /// Counts an event.
    pub fn observe(&self, event: &Event) {
        self.state().observe(event);
    }

    /// Counts lost events. Open operations may have ended among them, so they are dropped.
    pub fn lost(&self, events: u64) {
        let mut state = self.state();
        state.families.events_lost.add(&[], events);
        state.families.running.clear();
        state.families.waiting.clear();
        state.families.jobs.clear();
        state.running.clear();
        state.waiting.clear();
        state.jobs.clear();
    }

    /// Counts spans that were not sent to a receiver: `dropped` for want of room, or `failed` after every attempt.
    pub fn spans_lost(&self, how: &'static str, spans: u64) {
        self.state().families.spans_lost.add(&[how], spans);
    }

    /// Also reports whether this ledger can be written. Only the first ledger counts.
    pub fn watch_ledger(&self, ledger: Arc<dyn LedgerStore>) {
        let _ = self.ledger.set(ledger);
    }

    /// Start of counting.
    #[must_use]
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// The counts of every instrument that has some.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let mut state = self.state();
        if let Some(ledger) = self.ledger.get() {
            let LedgerHealth { failures, lost, waiting, .. } = ledger.condition();
            state.families.ledger_failures.set(failures);
            state.families.ledger_lost.set(lost);
            state.families.ledger_waiting.set(waiting);
        }
        state.families.all().into_iter().filter(|family| !family.is_empty()).cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn observe(&mut self, event: &Event) {
        let families = &mut self.families;
        match event {
            Event::ToolWait { op, queue, .. } | Event::ModelWait { op, queue, .. }
                if self.waiting.len() < MAX_OPEN_OPERATIONS =>
            {
                let queue = self.queues.bounded(queue);
                families.waiting.change(&[&queue], 1);
                if let Some(before) = self.waiting.insert(op.id, queue) {
                    families.waiting.change(&[&before], -1);
                }
            }
            Event::ToolWaited { op, queue, wait_us, .. } | Event::ModelWaited { op, queue, wait_us, .. } => {
                if let Some(queue) = self.waiting.remove(&op.id) {
                    families.waiting.change(&[&queue], -1);
                }
                families.queue_wait.record(&[&self.queues.bounded(queue)], seconds(*wait_us));
            }
            // Once per call, also if it is retried.
            Event::ToolStarted { op, .. } if self.running.len() < MAX_OPEN_OPERATIONS && self.running.insert(op.id) => {
                families.running.change(&[], 1);
            }
            Event::ToolFinished { op, .. } => {
                if self.running.remove(&op.id) {
                    families.running.change(&[], -1);
                }
                self.call_finished(event);
            }
            Event::CacheHit { tool, .. } => {
                let name = wire_candidate(tool.namespace(), tool.name());
                families.cache_hits.add(&[&self.tools.bounded(&name)], 1);
            }
            // The label has five possible values.
            Event::ApprovalDecided { decision, .. } => families.approvals.add(&[decision], 1),
            Event::Compacted { layer, .. } => families.compactions.add(&[layer.as_str()], 1),
            Event::JobStarted { job, .. } => self.job(job, Some(JobState::Pending)),
            Event::JobChanged { job, state, .. } => {
                use JobState::{Pending, Running, WaitingInput};
                self.job(job, matches!(state, Pending | Running | WaitingInput).then_some(*state));
            }
            Event::JobFinished { job, state, .. } => {
                families.jobs_finished.add(&[state.as_str()], 1);
                self.job(job, None);
            }
            Event::RunFinished { agent, ok, status, latency_us, .. } => {
                let agent = self.agents.bounded(agent.as_deref().unwrap_or_default());
                let error = if *ok { Arc::default() } else { self.errors.bounded(status) };
                families.invoke_agent.record(&[&agent, &error], seconds(*latency_us));
            }
            Event::ModelFinished { model, ok, error, latency_us, usage, .. } => {
                let (provider, model) = provider_and_model(model);
                let (provider, model) = (self.providers.bounded(provider), self.models.bounded(model));
                let error = if *ok { "" } else { semconv::model_error(*error) };
                let of = |last| [semconv::CHAT, &*provider, &*model, last];
                families.model_seconds.record(&of(error), seconds(*latency_us));
                for (kind, tokens) in [("input", usage.input_tokens), ("output", usage.output_tokens)] {
                    // A failed request may report none.
                    if tokens > 0 {
                        families.tokens.record(&of(kind), tokens as f64);
                    }
                }
            }
            _ => {}
        }
    }

    fn call_finished(&mut self, event: &Event) {
        let Event::ToolFinished { tool, wire_name, provider, mcp, method, origin, attempts, .. } = event else {
            return;
        };
        let Event::ToolFinished { ok, error, code, latency_us, wait_us, person_us, .. } = event else { return };
        let families = &mut self.families;
        let tool = self.tools.bounded(tool_name(tool.as_ref(), wire_name));
        let provider = self.providers.bounded(provider);
        let method = method.as_deref().map(|method| self.methods.bounded(method));
        // The peer's error code, if any.
        let code = code.filter(|_| !ok).map(|code| self.errors.bounded(&code.to_string()));
        let (error, request_error) = match ok {
            true => ("", ""),
            false => (semconv::tool_error(*error), code.as_deref().unwrap_or(semconv::request_error(*error))),
        };
        // The method says what a request is that calls no tool.
        let request = match &method {
            None => [semconv::TOOLS_CALL, semconv::EXECUTE_TOOL, &tool, request_error],
            Some(method) => [&**method, "", "", request_error],
        };
        let (whole, run) = (seconds(*latency_us), seconds(latency_us.saturating_sub(*wait_us)));
        families.calls.add(&[&tool, &provider, if *ok { "ok" } else { error }], 1);
        families.tool_seconds.record(&[&tool, &provider], whole);
        if *person_us > 0 {
            families.person_seconds.record(&[&tool, &provider], seconds(*person_us));
        }
        if method.is_none() {
            families.execute_tool.record(&[&tool, semconv::FUNCTION, error], run);
        }
        if *origin == CallOrigin::Gateway {
            families.mcp_server.record(&request, whole);
        }
        if mcp.is_some() && *attempts > 0 {
            families.mcp_client.record(&request, run);
        }
    }

    /// Sets the state of a job; `None` removes an ended job.
    fn job(&mut self, job: &str, state: Option<JobState>) {
        if let Some(before) = self.jobs.remove(job) {
            self.families.jobs.change(&[before.as_str()], -1);
        }
        if let Some(state) = state
            && self.jobs.len() < MAX_OPEN_OPERATIONS
        {
            self.families.jobs.change(&[state.as_str()], 1);
            self.jobs.insert(job.to_owned(), state);
        }
    }
}

fn seconds(us: u64) -> f64 {
    Duration::from_micros(us).as_secs_f64()
}

/// Bounded set of label values of at most 128 bytes each. Further values become `other`.
#[derive(Debug)]
struct BoundedNames {
    known: HashSet<Arc<str>>,
    max: usize,
}

impl BoundedNames {
    const MAX_LENGTH: usize = 128;

    fn new(max: usize) -> Self {
        Self { known: HashSet::new(), max }
    }

    /// Returns the label value for this text: itself, cut, or `other`.
    fn bounded(&mut self, text: &str) -> Arc<str> {
        let text = &text[..text.floor_char_boundary(Self::MAX_LENGTH)];
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.max {
            return "other".into();
        }
        let text: Arc<str> = text.into();
        self.known.insert(Arc::clone(&text));
        text
    }
}
