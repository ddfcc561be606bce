//! The run: makes concurrent calls within the cost limits, until all are made or the run is stopped.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::broadcast::Receiver;
use toolwright_core::model::RequestAllowance;
use toolwright_core::{Cancel, Event};

use super::cost::{Estimate, Pricing, Refusal, Reservation, RunCap, TraceUsage, UsageMeter};
use super::measure::{Bencher, CallFault, FaultOrigin, FinishedCall};
use super::plan::{Cell, Plan};
use super::results_file::ResultsFile;
use super::summary::{Measurement, Row, summarize};

/// The default cost limit of a run, in US dollars.
const DEFAULT_COST: f64 = 5.0;
/// The number of consecutive failures to reach a model after which it is given up.
const FAILURES: u32 = 5;

/// How a run ended.
pub struct BenchOutcome {
    /// All measurements, new and earlier.
    pub measured: Vec<Measurement>,
    /// The results.
    pub rows: Vec<Row>,
    /// The reason why it is incomplete.
    pub partial: Option<String>,
    /// Whether it was stopped.
    pub cancelled: bool,
}

/// The limits of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The cost limit in US dollars, including earlier measurements. Default: 5 if a price is known.
    pub max_cost: Option<f64>,
    /// The limit on requests to models.
    pub max_requests: Option<u64>,
    /// Concurrent calls.
    pub concurrency: usize,
    /// Stops starting calls once this is cancelled.
    pub stop: Cancel,
}

/// The progress of a run.
pub enum Progress<'a> {
    /// The run begins.
    Begun {
        /// The number of calls of the plan.
        total: usize,
        /// The number of earlier measurements.
        before: usize,
        /// US dollars spent.
        spent: f64,
    },
    /// A call ended.
    Ended {
        /// Its measurement.
        measured: &'a Measurement,
        /// Total US dollars spent.
        spent: f64,
    },
    /// A model was given up, for this reason.
    GivenUp(&'a str),
}

/// Makes the calls of the plan that have no line in the file, concurrently, and adds a line for each. `events` are
/// those of the executor; `on` gets the progress.
pub async fn run(
    bencher: &Bencher<'_>,
    pricing: &Pricing<'_>,
    lines: &mut ResultsFile,
    events: Receiver<Arc<Event>>,
    options: &RunOptions,
    on: &mut (dyn FnMut(Progress<'_>) + Send),
) -> BenchOutcome {
    let plan = &bencher.prepared.plan;
    let measured = std::mem::take(&mut lines.measured);
    let known: HashSet<String> = measured.iter().filter(|line| line.done).map(|line| line.key.clone()).collect();
    let todo: VecDeque<&Cell> = plan.cells.iter().filter(|cell| !known.contains(&cell.key)).collect();
    // An empty sum would be a negative zero.
    let spent = measured.iter().map(Measurement::charged).fold(0.0, |sum, cost| sum + cost);
    let max_cost = options.max_cost.or_else(|| pricing.has_price().then_some(DEFAULT_COST));
    let asked = measured.iter().map(|line| line.requests).fold(0, u64::saturating_add);
    on(Progress::Begun { total: plan.cells.len(), before: known.len(), spent });
    let mut state = State {
        plan,
        pricing,
        cap: RunCap::new(max_cost, options.max_requests, spent, asked),
        meter: UsageMeter::new(events),
        on,
        measured,
        lines,
        abandoned: BTreeMap::new(),
        in_a_row: HashMap::new(),
        stop_reason: None,
        unfit: None,
        unwritten: None,
    };
    state.run_all(bencher, todo, options).await;
    let State { measured, abandoned, stop_reason: over, unfit, unwritten, .. } = state;
    let unfit =
        unfit.map(|(count, why)| format!("the bound is reached; calls that do not fit within it: {count}; {why}"));
    let rows = summarize(plan, &measured);
    let is_whole = rows.iter().all(Row::is_whole);
    let cancelled = options.stop.is_cancelled() && !is_whole;
    let partial = (!is_whole || unwritten.is_some()).then(|| {
        if cancelled {
            return "it was stopped".to_owned();
        }
        let said: Vec<String> = abandoned.into_values().chain(over).chain(unfit).chain(unwritten).collect();
        let missing = || rows.iter().find_map(|row| row.missing.clone()).unwrap_or_default();
        if said.is_empty() { format!("not every call was measured: {}", missing()) } else { said.join("; ") }
    });
    BenchOutcome { measured, rows, partial, cancelled }
}

struct State<'a> {
    plan: &'a Plan,
    pricing: &'a Pricing<'a>,
    cap: RunCap,
    meter: UsageMeter,
    on: &'a mut (dyn FnMut(Progress<'_>) + Send),
    measured: Vec<Measurement>,
    lines: &'a mut ResultsFile,
    /// Models that were given up, by index, with the reasons.
    abandoned: BTreeMap<usize, String>,
    /// The number of consecutive failures to reach each model; the judge has no index.
    in_a_row: HashMap<Option<usize>, u32>,
    /// The reason why no more calls are started.
    stop_reason: Option<String>,
    /// The number of calls that did not fit within the limits, and the reason of the last.
    unfit: Option<(usize, String)>,
    /// The reason why a measurement is missing in the file.
    unwritten: Option<String>,
}

/// A call in progress, and its reserved room.
struct InFlightCall<'c> {
    cell: &'c Cell,
    room: Reservation,
    estimate: Estimate,
    /// The allowance of its requests, if they are limited.
    requests: RequestAllowance,
    /// The number of lost events before it.
    lags: u64,
}

async fn measure<'c>(bencher: &Bencher<'_>, in_flight: InFlightCall<'c>) -> (FinishedCall, InFlightCall<'c>) {
    (bencher.measure(in_flight.cell, &in_flight.requests).await, in_flight)
}

impl State<'_> {
    async fn run_all(&mut self, bencher: &Bencher<'_>, mut queue: VecDeque<&Cell>, options: &RunOptions) {
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < options.concurrency && !self.is_over() && !options.stop.is_cancelled() {
                let Some(cell) = queue.pop_front() else { break };
                if self.abandoned.contains_key(&cell.model) {
                    continue;
                }
                let estimate = self.pricing.estimate(cell);
                match self.cap.reserve(estimate.cost, estimate.requests, estimate.least) {
                    Ok(room) => {
                        let is_bounded = self.cap.bounds_requests();
                        let requests = if is_bounded {
                            RequestAllowance::of(room.requests())
                        } else {
                            RequestAllowance::default()
                        };
                        let lags = self.meter.lost_event_count();
                        running.push(measure(bencher, InFlightCall { cell, room, estimate, requests, lags }));
                    }
                    Err(Refusal::Later) => {
                        // It may fit once a running call has settled.
                        queue.push_front(cell);
                        break;
                    }
                    // Another call may fit.
                    Err(Refusal::Never(why)) => self.mark_over_budget(why),
                }
            }
            let ended = tokio::select! {
                biased;
                ended = running.next() => ended,
                never = self.meter.watch() => match never {},
            };
            match ended {
                Some((took, in_flight)) => self.record_call(took, in_flight),
                None => break,
            }
        }
    }

    /// Records that a call was skipped or ended by a limit.
    fn mark_over_budget(&mut self, why: String) {
        let count = self.unfit.take().map_or(0, |(count, _)| count);
        self.unfit = Some((count + 1, why));
    }

    /// Returns whether no more calls are started.
    fn is_over(&self) -> bool {
        self.stop_reason.is_some() || self.unwritten.is_some()
    }

    /// Records the result of a call.
    fn record_call(&mut self, took: FinishedCall, in_flight: InFlightCall<'_>) {
        let FinishedCall { mut measured, trace, judge_traces: judged, fault, by_judge } = took;
        let InFlightCall { cell, room, estimate, requests: allowed, lags } = in_flight;
        let mut spent = self.meter.take(trace);
        let mut of_judge = TraceUsage::default();
        for trace in &judged {
            of_judge.add(&self.meter.take(*trace));
        }
        let was_missed = self.meter.lost_event_count() != lags;
        spent.is_unknown |= was_missed;
        of_judge.is_unknown |= was_missed;
        let judge = self.plan.judge.as_deref().unwrap_or_default();
        measured.cost_usd = self.pricing.cost(&measured.model, &spent);
        measured.judge_cost_usd = (!judged.is_empty()).then(|| self.pricing.cost(judge, &of_judge)).flatten();
        let used = spent.usage.bounded();
        (measured.input_tokens, measured.output_tokens) = (used.input_tokens, used.output_tokens);
        measured.requests = spent.requests.saturating_add(of_judge.requests);
        measured.latency_ms = (measured.latency_ms - spent.waited_us as f64 / 1e3).max(0.0);
        // Unknown costs are assumed to be the highest possible: for each attempt without usage, and for all possible
        // attempts if events were lost.
        let known = self.pricing.known(&measured.model, &spent) + self.pricing.known(judge, &of_judge);
        let guessed = spent.unseen as f64 * estimate.each + of_judge.unseen as f64 * estimate.each_of_judge;
        let charged = if was_missed { estimate.cost.max(known + guessed) } else { known + guessed };
        // If requests are limited, they were counted when they were made.
        let unseen = if was_missed { estimate.requests.max(measured.requests) } else { measured.requests };
        let requests = allowed.used().unwrap_or(unseen);
        (measured.charged_usd, measured.requests) = (Some(charged), requests);
        self.cap.settle(room, charged, requests);
        if let Err(why) = tokio::task::block_in_place(|| self.lines.add(&measured)) {
            // The measurement is reported anyway.
            self.unwritten = Some(why);
        }
        (self.on)(Progress::Ended { measured: &measured, spent: self.cap.spent() });
        let is_cut = allowed.has_refused_attempt() && !measured.done;
        self.measured.push(measured);
        if is_cut {
            // Neither the model nor its judge is to blame for a request that was not allowed.
            return self.mark_over_budget("a call needed more requests than were left; see --max-requests".to_owned());
        }
        if fault.is_none() || by_judge {
            self.in_a_row.insert(Some(cell.model), 0);
        }
        if !judged.is_empty() && !by_judge {
            self.in_a_row.insert(None, 0);
        }
        if let Some(fault) = fault {
            self.failed((!by_judge).then_some(cell.model), fault);
        }
    }

    /// Gives up a model whose requests fail repeatedly, or the whole run if it is the judge.
    fn failed(&mut self, place: Option<usize>, fault: CallFault) {
        let count = self.in_a_row.entry(place).or_insert(0);
        *count += 1;
        if fault.origin != FaultOrigin::Setup && *count < FAILURES {
            return;
        }
        match place {
            None => self.stop_reason = Some(fault.message),
            Some(model) => {
                let name = &self.plan.models[model];
                let why = format!("{name} is not asked any more: {}", fault.message);
                if self.abandoned.insert(model, why.clone()).is_none() {
                    (self.on)(Progress::GivenUp(&why));
                }
            }
        }
    }
}
