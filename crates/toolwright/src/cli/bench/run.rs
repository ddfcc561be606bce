//! The run: calls side by side, within what they may cost, until all are made or the run is stopped.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use toolwright::House;
use toolwright::core::bench::{Cap, Cell, Kind, Measured, Refusal, Reservation, Row, summarize};
use toolwright::core::catalogue::PromptQuestion;
use toolwright::core::llm::llm_definition;
use toolwright::core::model::{PriceTable, Prices};
use toolwright::core::{Cancel, Entry};
use url::{Host, Url};

use super::Bench;
use super::lines::Lines;
use super::measure::{Bencher, Blame, Took, Whose};
use super::prepare::Prepared;
use super::progress::Progress;
use super::spent::{Meter, Spent};
use crate::cli::exit::Failure;
use crate::cli::screen::{DIM, WARN, harmless, say, styled};
use crate::cli::signals::{First, watch};

/// US dollars that a run may cost where nobody says.
const DEFAULT_COST: f64 = 5.0;
/// Tokens of an answer whose limit is not known.
const ANSWER_TOKENS: u32 = 4096;
/// Tokens of what a judge is told besides task and answer, and of what it says.
const JUDGE_PROMPT: usize = 1200;
const JUDGE_ANSWER: u32 = 1000;
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

/// What is known of a model's price.
#[derive(Clone, Copy)]
enum Price {
    Known(Prices),
    /// A server on this machine that wants no key.
    Free,
    Unknown,
}

/// What a call may come to.
struct Estimate {
    cost: f64,
    requests: u64,
}

pub(super) async fn run(
    house: &Arc<House>,
    args: &Bench,
    prepared: &Prepared,
    lines: &mut Lines,
) -> Result<Ended, Failure> {
    let plan = &prepared.plan;
    let before = std::mem::take(&mut lines.measured);
    let keys: HashSet<&str> = plan.cells.iter().map(|cell| cell.key.as_str()).collect();
    let measured: Vec<Measured> = before.into_iter().filter(|line| keys.contains(line.key.as_str())).collect();
    let known: HashSet<String> = measured.iter().filter(|line| line.done).map(|line| line.key.clone()).collect();
    let todo: Vec<&Cell> = plan.cells.iter().filter(|cell| !known.contains(&cell.key)).collect();
    if !known.is_empty() {
        let (known, all) = (known.len(), plan.cells.len());
        say(styled(DIM, format_args!("{known} of {all} calls were measured before; --fresh measures all anew")));
    }
    let prices = prices(house, args, prepared)?;
    // A sum of nothing would be a negative zero.
    let spent = measured.iter().map(cost_of).fold(0.0, |sum, cost| sum + cost);
    let has_price = prices.values().any(|price| matches!(price, Price::Known(_)));
    let max_cost = args.max_cost.or_else(|| has_price.then_some(DEFAULT_COST));
    let asked: u64 = measured.iter().map(|line| line.requests).sum();
    let stop = Cancel::new();
    let signals = watch(stop.clone(), First::Finishes);
    let bencher = Bencher::new(house, prepared, &format!("bench-{}", uuid::Uuid::new_v4().simple()));
    let mut state = State {
        house,
        prepared,
        prices,
        cap: Cap::new(max_cost, args.max_requests, spent, asked),
        meter: Meter::new(house.events().subscribe()),
        progress: Progress::new(plan.cells.len(), known.len()),
        measured,
        lines,
        given_up: BTreeMap::new(),
        in_a_row: HashMap::new(),
        over: None,
    };
    let gone = state.go(&bencher, todo.into(), args.concurrency, &stop).await;
    signals.abort();
    gone?;
    let State { measured, given_up, over, .. } = state;
    let rows = summarize(plan, &measured);
    let is_whole = rows.iter().all(Row::is_whole);
    let cancelled = stop.is_cancelled() && !is_whole;
    let partial = (!is_whole).then(|| {
        if cancelled {
            return "it was stopped".to_owned();
        }
        let said: Vec<String> = given_up.into_values().chain(over).collect();
        let missing = || rows.iter().find_map(|row| row.missing.clone()).unwrap_or_default();
        if said.is_empty() { format!("not every call was measured: {}", missing()) } else { said.join("; ") }
    });
    Ok(Ended { measured, partial, cancelled })
}

struct State<'a> {
    house: &'a Arc<House>,
    prepared: &'a Prepared,
    prices: HashMap<String, Price>,
    cap: Cap,
    meter: Meter,
    progress: Progress,
    measured: Vec<Measured>,
    lines: &'a mut Lines,
    /// Models, by their place, that are not asked any more, and why.
    given_up: BTreeMap<usize, String>,
    /// How often in a row the way to a model failed, or that to the judge, who has no place.
    in_a_row: HashMap<Option<usize>, u32>,
    /// Why nothing more is begun.
    over: Option<String>,
}

/// A call under way, and the room that is taken for it.
struct Underway<'c> {
    cell: &'c Cell,
    room: Reservation,
    estimate: Estimate,
}

async fn measure<'c>(bencher: &Bencher<'_>, underway: Underway<'c>) -> (Took, Underway<'c>) {
    (bencher.measure(underway.cell).await, underway)
}

impl State<'_> {
    async fn go(
        &mut self,
        bencher: &Bencher<'_>,
        mut queue: VecDeque<&Cell>,
        concurrency: usize,
        stop: &Cancel,
    ) -> Result<(), Failure> {
        let mut running = FuturesUnordered::new();
        self.progress.show(self.cap.spent());
        loop {
            while running.len() < concurrency && self.over.is_none() && !stop.is_cancelled() {
                let Some(cell) = queue.pop_front() else { break };
                if self.given_up.contains_key(&cell.model) {
                    continue;
                }
                let estimate = self.estimate(cell);
                match self.cap.reserve(estimate.cost, estimate.requests) {
                    Ok(room) => running.push(measure(bencher, Underway { cell, room, estimate })),
                    Err(Refusal::Later) => {
                        // It fits once something of what runs has settled.
                        queue.push_front(cell);
                        break;
                    }
                    Err(Refusal::Never { spent, wanted }) => {
                        self.over = Some(format!(
                            "the bound is reached: ${spent:.4} are spent, and the next call may cost ${wanted:.4} and {} \
                             requests; see --max-cost and --max-requests",
                            estimate.requests
                        ));
                    }
                }
            }
            let ended = tokio::select! {
                biased;
                ended = running.next() => ended,
                never = self.meter.watch() => match never {},
            };
            match ended {
                Some((took, underway)) => self.settle(took, underway)?,
                None => break,
            }
        }
        self.progress.end();
        Ok(())
    }

    /// Enters what a call came to.
    fn settle(&mut self, took: Took, underway: Underway<'_>) -> Result<(), Failure> {
        let Took { mut measured, trace, judged, blame, by_judge } = took;
        let Underway { cell, room, estimate } = underway;
        let spent = self.meter.take(trace);
        let mut of_judge = Spent::default();
        for trace in &judged {
            of_judge.add(&self.meter.take(*trace));
        }
        let judge = self.prepared.plan.judge.as_deref().unwrap_or_default();
        measured.cost_usd = self.cost(&measured.model, &spent);
        measured.judge_cost_usd = (!judged.is_empty()).then(|| self.cost(judge, &of_judge)).flatten();
        measured.input_tokens = spent.usage.input_tokens;
        measured.output_tokens = spent.usage.output_tokens;
        measured.requests = spent.requests + of_judge.requests;
        measured.latency_ms = (measured.latency_ms - spent.waited_us as f64 / 1e3).max(0.0);
        // What was not seen is taken to have cost what it could.
        let is_known = measured.cost_usd.is_some() && (judged.is_empty() || measured.judge_cost_usd.is_some());
        let cost = if is_known { cost_of(&measured) } else { estimate.cost.max(cost_of(&measured)) };
        self.cap.settle(room, cost, measured.requests);
        tokio::task::block_in_place(|| self.lines.add(&measured))?;
        self.progress.ended(&measured, self.cap.spent());
        self.measured.push(measured);
        let place = (!by_judge).then_some(cell.model);
        match blame {
            None => {
                self.in_a_row.insert(Some(cell.model), 0);
                self.in_a_row.insert(None, 0);
            }
            Some(blame) => self.failed(place, blame),
        }
        Ok(())
    }

    /// Gives a model up whose requests come to nothing, or the whole run where it is the judge.
    fn failed(&mut self, place: Option<usize>, blame: Blame) {
        let count = self.in_a_row.entry(place).or_insert(0);
        *count += 1;
        if blame.whose != Whose::Setting && *count < FAILURES {
            return;
        }
        match place {
            None => self.over = Some(blame.what),
            Some(model) => {
                let name = &self.prepared.plan.models[model];
                let why = format!("{name} is not asked any more: {}", blame.what);
                if self.given_up.insert(model, why.clone()).is_none() {
                    self.progress.say(styled(WARN, harmless(&why)));
                }
            }
        }
    }

    /// US dollars, where they are known.
    fn cost(&self, model: &str, spent: &Spent) -> Option<f64> {
        match self.prices.get(model) {
            Some(Price::Free) => Some(0.0),
            _ => spent.known_cost(),
        }
    }

    /// What a call may come to: its prompt, the longest answer, and the same of its judge.
    fn estimate(&self, cell: &Cell) -> Estimate {
        let plan = &self.prepared.plan;
        let (planned, model) = (&plan.tools[cell.tool], &plan.models[cell.model]);
        let (case, entry) = (&planned.cases[cell.case], &self.prepared.entries[cell.tool]);
        let services = self.house.executor().services();
        let asked =
            PromptQuestion { arguments: &case.input, model, mode: planned.mode.as_deref(), tokens: &*services.tokens };
        let prompt = entry.provider.prompt_tokens(entry.id(), asked);
        let card = services.model.card(model);
        let answer = longest_answer(entry, prompt).min(card.max_output.unwrap_or(u32::MAX));
        let mut estimate = Estimate { cost: self.price(model, prompt, answer), requests: 1 };
        let judge = plan.judge.as_deref().unwrap_or_default();
        for check in &case.checks {
            let Kind::Rubric { task, .. } = &check.kind else { continue };
            let prompt = JUDGE_PROMPT + services.tokens.count(task).0 + answer as usize;
            estimate.cost += self.price(judge, prompt, JUDGE_ANSWER);
            estimate.requests += 1;
        }
        estimate
    }

    fn price(&self, model: &str, prompt: usize, answer: u32) -> f64 {
        match self.prices.get(model) {
            Some(Price::Known(prices)) => {
                // Cheaper reads from a cache are not counted on; dearer writes to it are.
                let input = prices.input.max(prices.cache_written.unwrap_or(0.0));
                (prompt as f64 * input + f64::from(answer) * prices.output) / 1e6
            }
            _ => 0.0,
        }
    }
}

/// The limit of an answer, in whichever way the tool asks.
fn longest_answer(entry: &Entry, prompt: usize) -> u32 {
    let Some(definition) = llm_definition(entry) else { return ANSWER_TOKENS };
    let rules = definition.variants.iter().map(|variant| variant.max_tokens).chain([definition.max_tokens]);
    let by_rule = rules.flatten().map(|rule| rule.of(prompt)).max();
    by_rule.or(definition.model_preference.max_tokens).unwrap_or(ANSWER_TOKENS)
}

fn cost_of(measured: &Measured) -> f64 {
    measured.cost_usd.unwrap_or(0.0) + measured.judge_cost_usd.unwrap_or(0.0)
}

/// The prices of all models that are asked, judge included.
fn prices(house: &House, args: &Bench, prepared: &Prepared) -> Result<HashMap<String, Price>, Failure> {
    let table: PriceTable = house.config().prices();
    let models = prepared.plan.models.iter().chain(&prepared.plan.judge);
    let prices: HashMap<String, Price> = models
        .map(|model| {
            let price = match table.of(model) {
                Some(prices) => Price::Known(prices),
                None if is_free(house, model) => Price::Free,
                None => Price::Unknown,
            };
            (model.clone(), price)
        })
        .collect();
    let mut unknown: Vec<&str> =
        prices.iter().filter(|(_, price)| matches!(price, Price::Unknown)).map(|(model, _)| model.as_str()).collect();
    unknown.sort_unstable();
    if unknown.is_empty() {
        return Ok(prices);
    }
    let unknown = unknown.join(", ");
    if args.max_cost.is_some() && args.max_requests.is_none() {
        return Err(Failure::usage(format!(
            "--max-cost cannot be held: the price of {unknown} is not known; write models.\"<model>\".prices, or bound the \
             requests with --max-requests"
        )));
    }
    if args.max_requests.is_none() {
        say(styled(WARN, format_args!("the price of {unknown} is not known: no cost is counted, and none is bounded")));
    }
    Ok(prices)
}

/// Whether a model's server is on this machine and wants no key.
fn is_free(house: &House, model: &str) -> bool {
    let provider = model.split_once('/').map(|(provider, _)| provider).unwrap_or_default();
    let Some(endpoint) = house.models().endpoints().get(provider).filter(|endpoint| endpoint.key.is_none()) else {
        return false;
    };
    match Url::parse(&endpoint.base_url).ok().as_ref().and_then(Url::host) {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
