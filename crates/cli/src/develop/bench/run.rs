//! The run: calls side by side, within what they may cost, until all are made or the run is stopped.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use toolwright::Toolwright;
use toolwright::core::Cancel;
use toolwright::core::model::RequestAllowance;
use toolwright_eval::{Cap, Cell, Measured, Refusal, Reservation, Row, summarize};

use super::measure::{Bencher, Fault, FaultOrigin, FinishedCall};
use super::prepare::Prepared;
use super::price::{Estimate, Pricing};
use super::progress::Progress;
use super::results_file::ResultsFile;
use super::usage::{Meter, Spent};
use super::{Bench, CONCURRENCY};
use crate::terminal::console::{First, watch};
use crate::terminal::screen::{DIM, WARN, harmless, say, styled};

/// US dollars that a run may cost where nobody says.
const DEFAULT_COST: f64 = 5.0;
/// How often in a row the way to a model may fail before it is not tried any more.
const FAILURES: u32 = 5;

/// How a run ended.
pub(super) struct Ended {
    /// What was measured, now and before.
    pub(super) measured: Vec<Measured>,
    /// Why it is not whole.
    pub(super) partial: Option<String>,
    /// Whether somebody stopped it.
    pub(super) cancelled: bool,
}

pub(super) async fn run(
    app: &Arc<Toolwright>,
    args: &Bench,
    prepared: &Prepared,
    pricing: &Pricing<'_>,
    lines: &mut ResultsFile,
) -> Ended {
    let plan = &prepared.plan;
    let measured = std::mem::take(&mut lines.measured);
    let known: HashSet<String> = measured.iter().filter(|line| line.done).map(|line| line.key.clone()).collect();
    let todo: Vec<&Cell> = plan.cells.iter().filter(|cell| !known.contains(&cell.key)).collect();
    if !known.is_empty() {
        let (known, all) = (known.len(), plan.cells.len());
        say(styled(DIM, format_args!("{known} of {all} calls were measured before; --fresh measures all anew")));
    }
    // A sum of nothing would be a negative zero.
    let spent = measured.iter().map(Measured::charged).fold(0.0, |sum, cost| sum + cost);
    let max_cost = args.max_cost.or_else(|| pricing.has_price().then_some(DEFAULT_COST));
    let asked = measured.iter().map(|line| line.requests).fold(0, u64::saturating_add);
    let stop = Cancel::new();
    let signals = watch(stop.clone(), First::Finishes);
    let bencher = Bencher::new(app, prepared, &format!("bench-{}", uuid::Uuid::new_v4().simple()));
    let mut state = State {
        prepared,
        pricing,
        cap: Cap::new(max_cost, args.max_requests, spent, asked),
        meter: Meter::new(app.events().subscribe()),
        progress: Progress::new(plan.cells.len(), known.len()),
        measured,
        lines,
        given_up: BTreeMap::new(),
        in_a_row: HashMap::new(),
        over: None,
        unfit: None,
        unwritten: None,
    };
    state.go(&bencher, todo.into(), args.concurrency.unwrap_or(CONCURRENCY), &stop).await;
    signals.abort();
    let State { measured, given_up, over, unfit, unwritten, .. } = state;
    let unfit =
        unfit.map(|(count, why)| format!("the bound is reached; calls that do not fit within it: {count}; {why}"));
    let rows = summarize(plan, &measured);
    let is_whole = rows.iter().all(Row::is_whole);
    let cancelled = stop.is_cancelled() && !is_whole;
    let partial = (!is_whole || unwritten.is_some()).then(|| {
        if cancelled {
            return "it was stopped".to_owned();
        }
        let said: Vec<String> = given_up.into_values().chain(over).chain(unfit).chain(unwritten).collect();
        let missing = || rows.iter().find_map(|row| row.missing.clone()).unwrap_or_default();
        if said.is_empty() { format!("not every call was measured: {}", missing()) } else { said.join("; ") }
    });
    Ended { measured, partial, cancelled }
}

struct State<'a> {
    prepared: &'a Prepared,
    pricing: &'a Pricing<'a>,
    cap: Cap,
    meter: Meter,
    progress: Progress,
    measured: Vec<Measured>,
    lines: &'a mut ResultsFile,
    /// Models, by their place, that are not asked any more, and why.
    given_up: BTreeMap<usize, String>,
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

async fn measure<'c>(bencher: &Bencher<'_>, underway: InFlightCall<'c>) -> (FinishedCall, InFlightCall<'c>) {
    (bencher.measure(underway.cell, &underway.requests).await, underway)
}

impl State<'_> {
    async fn go(&mut self, bencher: &Bencher<'_>, mut queue: VecDeque<&Cell>, concurrency: usize, stop: &Cancel) {
        let mut running = FuturesUnordered::new();
        self.progress.show(self.cap.spent());
        loop {
            while running.len() < concurrency && !self.is_over() && !stop.is_cancelled() {
                let Some(cell) = queue.pop_front() else { break };
                if self.given_up.contains_key(&cell.model) {
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
                    Err(Refusal::Never(why)) => self.does_not_fit(why.to_string()),
                }
            }
            let ended = tokio::select! {
                biased;
                ended = running.next() => ended,
                never = self.meter.watch() => match never {},
            };
            match ended {
                Some((took, underway)) => self.settle(took, underway),
                None => break,
            }
        }
        self.progress.end();
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
    fn settle(&mut self, took: FinishedCall, underway: InFlightCall<'_>) {
        let FinishedCall { mut measured, trace, judged, fault, by_judge } = took;
        let InFlightCall { cell, room, estimate, requests: allowed, lags } = underway;
        let mut spent = self.meter.take(trace);
        let mut of_judge = Spent::default();
        for trace in &judged {
            of_judge.add(&self.meter.take(*trace));
        }
        let was_missed = self.meter.lags() != lags;
        spent.is_unknown |= was_missed;
        of_judge.is_unknown |= was_missed;
        let judge = self.prepared.plan.judge.as_deref().unwrap_or_default();
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
        if let Err(failure) = tokio::task::block_in_place(|| self.lines.add(&measured)) {
            // What it came to is reported all the same.
            self.unwritten = Some(failure.message);
        }
        self.progress.ended(&measured, self.cap.spent());
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
        if fault.whose != FaultOrigin::Setting && *count < FAILURES {
            return;
        }
        match place {
            None => self.over = Some(fault.what),
            Some(model) => {
                let name = &self.prepared.plan.models[model];
                let why = format!("{name} is not asked any more: {}", fault.what);
                if self.given_up.insert(model, why.clone()).is_none() {
                    self.progress.say(styled(WARN, harmless(&why)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use std::collections::BTreeSet;
    use std::time::Duration;
    use toolwright::config::{LoadOptions, load};
    use toolwright::core::Event;
    use toolwright::core::event::EventSink as _;
    use toolwright_testkit::model_server::{Reply, Script, ScriptedModel, Turn, WireApi};

    use super::super::prepare::prepare;
    use super::super::results_file::ResultsQuery;
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    const CASES: &str =
        "tool: llm:classify\ncases:\n  - id: c\n    input: {request: r, suggestions: [a, b]}\n    checks: []\n";
    const PRICED: &str = "models: {openai: {prices: {input: 100000, output: 0}}}\n";

    /// What one call comes to while so many other events come at once.
    async fn measured(others: usize) -> Measured {
        let answer = || Reply::text(r#"{"reasoning": "r", "selected_index": 0, "confidence": 1}"#);
        let turn = Turn::computed(move |_| answer()).with_delay(Duration::from_millis(100));
        let server = ScriptedModel::start(Script::from(vec![turn])).await.expect("a port");
        let place = tempfile::tempdir().expect("folder");
        let file = |name: &str, text: &str| {
            let path = place.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let (cases, written) = (file("cases.yaml", CASES), file("toolwright.yaml", PRICED));
        let (home, url) = (place.path().display().to_string(), server.base_url(WireApi::OpenAi));
        let variable = move |name: &str| match name {
            "HOME" => Some(home.clone()),
            "OPENAI_BASE_URL" => Some(url.clone()),
            "OPENAI_API_KEY" => Some("sk-test-0123456789".to_owned()),
            _ => None,
        };
        let cwd = place.path().to_owned();
        let options = LoadOptions { cwd, config: Some(written.into()), ..LoadOptions::default() };
        let config = load(&options, &variable);
        let app = Toolwright::open(options, config, Box::new(variable)).await.expect("opens");
        let line = ["bench", "--cases", &cases, "--models", "openai/good", "--max-cost", "1000"];
        let args = Line::parse_from(line).bench;
        let prepared = prepare(&app, &args).await.map_err(|failure| failure.message).expect("prepared");
        let pricing = Pricing::new(&app, &args, &prepared).map_err(|failure| failure.message).expect("priced");
        let keys: BTreeSet<String> = prepared.plan.cells.iter().map(|cell| cell.key.clone()).collect();
        let wanted = ResultsQuery { keys: &keys, fresh: false };
        let opened = ResultsFile::open(&place.path().join("m.jsonl"), wanted).map_err(|failure| failure.message);
        let flood = async {
            while server.requests().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Within the task of the run, which sees none of them before the last.
            for number in 0..others {
                app.events().emit(Event::Warning { code: "other".to_owned(), message: number.to_string() });
            }
        };
        let mut lines = opened.expect("opens");
        let (ended, ()) = tokio::join!(run(&app, &args, &prepared, &pricing, &mut lines), flood);
        app.shut_down().await;
        ended.measured.into_iter().next().expect("measured")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_whose_events_were_lost_is_charged_by_its_estimate() {
        let known = measured(100).await;
        let cost = known.cost_usd.expect("a cost");
        assert_eq!((known.charged_usd, known.requests, known.done), (Some(cost), 1, true));
        let lost = measured(20_000).await;
        assert_eq!((lost.cost_usd, lost.done, lost.score.to_bits()), (None, true, known.score.to_bits()));
        assert!(lost.charged_usd > Some(cost) && lost.requests >= 4, "{lost:?}");
    }
}
