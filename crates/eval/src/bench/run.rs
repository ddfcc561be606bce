//! The run: calls side by side, within what they may cost, until all are made or the run is stopped.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::broadcast::Receiver;
use toolwright_core::model::RequestAllowance;
use toolwright_core::{Cancel, Event};

use super::cost::{Cap, Estimate, Meter, Pricing, Refusal, Reservation, Spent};
use super::measure::{Bencher, Fault, FaultOrigin, FinishedCall};
use super::plan::{Cell, Plan};
use super::report::summary::{Measured, Row, summarize};
use super::results_file::ResultsFile;

/// US dollars that a run may cost where nobody says.
const DEFAULT_COST: f64 = 5.0;
/// How often in a row the way to a model may fail before it is not tried any more.
const FAILURES: u32 = 5;

/// How a run ended.
pub struct BenchOutcome {
    /// What was measured, now and before.
    pub measured: Vec<Measured>,
    /// The figures of that.
    pub rows: Vec<Row>,
    /// Why it is not whole.
    pub partial: Option<String>,
    /// Whether somebody stopped it.
    pub cancelled: bool,
}

/// The bounds of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// US dollars that the whole may cost, what was measured before included; 5 where a price is known and nobody says.
    pub max_cost: Option<f64>,
    /// Requests to models that the whole may take.
    pub max_requests: Option<u64>,
    /// Calls at once.
    pub concurrency: usize,
    /// Nothing more is begun once this is cancelled.
    pub stop: Cancel,
}

/// How far a run is.
pub enum Progress<'a> {
    /// It begins.
    Begun {
        /// Calls of the plan.
        total: usize,
        /// Those that were measured before.
        before: usize,
        /// US dollars that are spent.
        spent: f64,
    },
    /// A call ended.
    Ended {
        /// What it came to.
        measured: &'a Measured,
        /// US dollars that are spent in all.
        spent: f64,
    },
    /// A model is not asked any more, for this reason.
    GivenUp(&'a str),
}

/// Makes the calls of the plan that no line of the file has yet, side by side, and adds a line for each. `events` are those of
/// the executor, `on` is told how far it is.
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
    // A sum of nothing would be a negative zero.
    let spent = measured.iter().map(Measured::charged).fold(0.0, |sum, cost| sum + cost);
    let max_cost = options.max_cost.or_else(|| pricing.has_price().then_some(DEFAULT_COST));
    let asked = measured.iter().map(|line| line.requests).fold(0, u64::saturating_add);
    on(Progress::Begun { total: plan.cells.len(), before: known.len(), spent });
    let mut state = State {
        plan,
        pricing,
        cap: Cap::new(max_cost, options.max_requests, spent, asked),
        meter: Meter::new(events),
        on,
        measured,
        lines,
        abandoned: BTreeMap::new(),
        in_a_row: HashMap::new(),
        over: None,
        unfit: None,
        unwritten: None,
    };
    state.run_all(bencher, todo, options).await;
    let State { measured, abandoned, over, unfit, unwritten, .. } = state;
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
    cap: Cap,
    meter: Meter,
    on: &'a mut (dyn FnMut(Progress<'_>) + Send),
    measured: Vec<Measured>,
    lines: &'a mut ResultsFile,
    /// Models, by their place, that are not asked any more, and why.
    abandoned: BTreeMap<usize, String>,
    /// How often in a row the way to a model failed, or that to the judge, who has no place.
    in_a_row: HashMap<Option<usize>, u32>,
    /// Why nothing more is begun.
    over: Option<String>,
    /// How many calls did not fit within the bounds, and why the last did not.
    unfit: Option<(usize, String)>,
    /// Why the file of measurements does not have what was measured.
    unwritten: Option<String>,
}

/// A call under way, and the room that is taken for it.
struct InFlightCall<'c> {
    cell: &'c Cell,
    room: Reservation,
    estimate: Estimate,
    /// What its requests are taken of, where they are bounded.
    requests: RequestAllowance,
    /// How often events were lost before it.
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
                        let lags = self.meter.lags();
                        running.push(measure(bencher, InFlightCall { cell, room, estimate, requests, lags }));
                    }
                    Err(Refusal::Later) => {
                        // It fits once something of what runs has settled.
                        queue.push_front(cell);
                        break;
                    }
                    // Another one may fit.
                    Err(Refusal::Never(why)) => self.does_not_fit(why),
                }
            }
            let ended = tokio::select! {
                biased;
                ended = running.next() => ended,
                never = self.meter.watch() => match never {},
            };
            match ended {
                Some((took, in_flight)) => self.settle(took, in_flight),
                None => break,
            }
        }
    }

    /// A call is left out, or was ended, by a bound.
    fn does_not_fit(&mut self, why: String) {
        let count = self.unfit.take().map_or(0, |(count, _)| count);
        self.unfit = Some((count + 1, why));
    }

    /// Whether nothing more is begun.
    fn is_over(&self) -> bool {
        self.over.is_some() || self.unwritten.is_some()
    }

    /// Enters what a call came to.
    fn settle(&mut self, took: FinishedCall, in_flight: InFlightCall<'_>) {
        let FinishedCall { mut measured, trace, judged, fault, by_judge } = took;
        let InFlightCall { cell, room, estimate, requests: allowed, lags } = in_flight;
        let mut spent = self.meter.take(trace);
        let mut of_judge = Spent::default();
        for trace in &judged {
            of_judge.add(&self.meter.take(*trace));
        }
        let was_missed = self.meter.lags() != lags;
        spent.is_unknown |= was_missed;
        of_judge.is_unknown |= was_missed;
        let judge = self.plan.judge.as_deref().unwrap_or_default();
        measured.cost_usd = self.pricing.cost(&measured.model, &spent);
        measured.judge_cost_usd = (!judged.is_empty()).then(|| self.pricing.cost(judge, &of_judge)).flatten();
        let used = spent.usage.bounded();
        (measured.input_tokens, measured.output_tokens) = (used.input_tokens, used.output_tokens);
        measured.requests = spent.requests.saturating_add(of_judge.requests);
        measured.latency_ms = (measured.latency_ms - spent.waited_us as f64 / 1e3).max(0.0);
        // What is not known is taken to have cost what it could: each attempt of which nobody said it, and all that may
        // have been made where events were lost.
        let known = self.pricing.known(&measured.model, &spent) + self.pricing.known(judge, &of_judge);
        let guessed = spent.unseen as f64 * estimate.each + of_judge.unseen as f64 * estimate.each_of_judge;
        let charged = if was_missed { estimate.cost.max(known + guessed) } else { known + guessed };
        // Where they are bounded, they were counted when they were made.
        let unseen = if was_missed { estimate.requests.max(measured.requests) } else { measured.requests };
        let requests = allowed.used().unwrap_or(unseen);
        (measured.charged_usd, measured.requests) = (Some(charged), requests);
        self.cap.settle(room, charged, requests);
        if let Err(why) = tokio::task::block_in_place(|| self.lines.add(&measured)) {
            // What it came to is reported all the same.
            self.unwritten = Some(why);
        }
        (self.on)(Progress::Ended { measured: &measured, spent: self.cap.spent() });
        let is_cut = allowed.is_overdrawn() && !measured.done;
        self.measured.push(measured);
        if is_cut {
            // Neither the model nor its judge is to blame that it was not asked once more.
            return self.does_not_fit("a call needed more requests than were left; see --max-requests".to_owned());
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

    /// Gives a model up whose requests come to nothing, or the whole run where it is the judge.
    fn failed(&mut self, place: Option<usize>, fault: Fault) {
        let count = self.in_a_row.entry(place).or_insert(0);
        *count += 1;
        if fault.whose != FaultOrigin::Setup && *count < FAILURES {
            return;
        }
        match place {
            None => self.over = Some(fault.what),
            Some(model) => {
                let name = &self.plan.models[model];
                let why = format!("{name} is not asked any more: {}", fault.what);
                if self.abandoned.insert(model, why.clone()).is_none() {
                    (self.on)(Progress::GivenUp(&why));
                }
            }
        }
    }
}
