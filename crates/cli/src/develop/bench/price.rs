//! What calls may cost, before they are made.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use toolwright::Toolwright;
use toolwright::core::Entry;
use toolwright::core::catalogue::{PromptQuestion, PromptSize};
use toolwright::core::model::{PriceTable, Prices};
use toolwright::models::Endpoint;
use toolwright::runtime::TrafficTerms;
use toolwright_eval::{Cell, Kind};
use url::{Host, Url};

use super::Bench;
use super::prepare::Prepared;
use super::usage::Spent;
use crate::exit::Failure;
use crate::terminal::screen::{WARN, say, styled};

/// Tokens of an answer whose limit is not known.
const ANSWER_TOKENS: u32 = 4096;
/// Tokens that say what is wrong with an answer, at most.
const AGAIN_TOKENS: usize = 400;

/// What is known of a model's price.
#[derive(Clone, Copy)]
enum Price {
    Known(Prices),
    /// A server on this machine that wants no key.
    Free,
    Unknown,
}

/// The prices of all models that are asked, judge included.
pub(super) struct Pricing<'a> {
    app: &'a Arc<Toolwright>,
    prepared: &'a Prepared,
    prices: HashMap<String, Price>,
}

/// What a call may come to.
pub(super) struct Estimate {
    /// US dollars.
    pub(super) cost: f64,
    /// US dollars of one request to its model.
    pub(super) each: f64,
    /// US dollars of one request to its judge.
    pub(super) each_of_judge: f64,
    /// Attempts at requests.
    pub(super) requests: u64,
    /// Those that it makes at least: one, and one of each judge.
    pub(super) least: u64,
}

impl<'a> Pricing<'a> {
    /// Looks the prices up.
    ///
    /// # Errors
    /// Where a bound is wanted that cannot be held.
    pub(super) fn new(app: &'a Arc<Toolwright>, args: &Bench, prepared: &'a Prepared) -> Result<Self, Failure> {
        let table: PriceTable = app.config().prices();
        let models = prepared.plan.models.iter().chain(&prepared.plan.judge);
        let prices: HashMap<String, Price> = models
            .map(|model| {
                let price = match table.of(model) {
                    Some(prices) => Price::Known(prices),
                    None if is_free(app, model) => Price::Free,
                    None => Price::Unknown,
                };
                (model.clone(), price)
            })
            .collect();
        let unknown = prices.iter().filter(|(_, price)| matches!(price, Price::Unknown));
        let mut unknown: Vec<&str> = unknown.map(|(model, _)| model.as_str()).collect();
        unknown.sort_unstable();
        let names = unknown.join(", ");
        match (unknown.is_empty(), args.max_cost, args.max_requests) {
            (true, ..) | (false, _, Some(_)) => {}
            (false, Some(_), None) => {
                return Err(Failure::usage(format!(
                    "--max-cost cannot be held: the price of {names} is not known; write models.\"<model>\".prices, or \
                     bound the requests with --max-requests"
                )));
            }
            (false, None, None) => {
                say(styled(
                    WARN,
                    format_args!("the price of {names} is not known: no cost is counted, and none is bounded"),
                ));
            }
        }
        Ok(Self { app, prepared, prices })
    }

    /// Whether a price is known of any of them.
    pub(super) fn has_price(&self) -> bool {
        self.prices.values().any(|price| matches!(price, Price::Known(_)))
    }

    /// US dollars of what a model did, where they are known.
    pub(super) fn cost(&self, model: &str, spent: &Spent) -> Option<f64> {
        match self.prices.get(model) {
            Some(Price::Free) => Some(0.0),
            _ => spent.known_cost(),
        }
    }

    /// US dollars of what a model did, as far as they are known.
    pub(super) fn known(&self, model: &str, spent: &Spent) -> f64 {
        match self.prices.get(model) {
            Some(Price::Free) => 0.0,
            _ => spent.cost,
        }
    }

    /// What a call may come to: its prompt, the longest answer, as often as it may be asked, and the same of its judge.
    pub(super) fn estimate(&self, cell: &Cell) -> Estimate {
        let plan = &self.prepared.plan;
        let (planned, model) = (&plan.tools[cell.tool], &plan.models[cell.model]);
        let (case, entry) = (&planned.cases[cell.case], &self.prepared.entries[cell.tool]);
        let tokens = &*self.app.executor().services().tokens;
        let asked = PromptQuestion { arguments: &case.input, model, mode: planned.mode.as_deref(), tokens };
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

    /// What a judge may come to, for itself, that is shown an answer of so many tokens.
    fn judged(&self, tool: &Entry, judge: &str, arguments: &serde_json::Value, answer: u32) -> Estimate {
        let tokens = &*self.app.executor().services().tokens;
        let asked = PromptQuestion { arguments, model: judge, mode: None, tokens };
        let size = tool.provider.prompt_size(tool.id(), asked);
        self.asked(judge, &PromptSize { input: size.input.saturating_add(answer as usize), ..size })
    }

    fn asked(&self, model: &str, size: &PromptSize) -> Estimate {
        let answer = self.longest_answer(model, size);
        let asks = 1.0 + f64::from(size.asks_again);
        // Each time more, it is shown what it said before.
        let more = (answer as usize + AGAIN_TOKENS).saturating_mul(size.asks_again as usize);
        let each = match self.prices.get(model) {
            Some(Price::Known(prices)) => {
                // Cheaper reads from a cache are not counted on; dearer writes to it are.
                let input = prices.input.max(prices.cache_written.unwrap_or(0.0));
                let prompt = size.input.saturating_add(more) as f64;
                (prompt * input + f64::from(answer) * prices.output) / 1e6
            }
            _ => 0.0,
        };
        // What is refused for its form costs nothing, and is a request.
        let most = TrafficTerms::retry_of(&self.app.config().model_traffic, model).most_requests();
        let asked = 1 + u64::from(size.asks_again);
        let requests = asked.saturating_mul(u64::from(most));
        Estimate { cost: asks * each, each, each_of_judge: 0.0, requests, least: 1 }
    }

    fn longest_answer(&self, model: &str, size: &PromptSize) -> u32 {
        let client = &self.app.executor().services().model;
        client.longest_answer(model, size.max_answer, &size.settings, ANSWER_TOKENS)
    }
}

/// Whether a model's server is on this machine and wants no key.
fn is_free(app: &Toolwright, model: &str) -> bool {
    let provider = model.split_once('/').map(|(provider, _)| provider).unwrap_or_default();
    // Headers may hold a key.
    let keyless = |endpoint: &&Endpoint| endpoint.key.is_none() && endpoint.headers.is_empty();
    let Some(endpoint) = app.models().endpoints().get(provider).filter(keyless) else { return false };
    match Url::parse(&endpoint.base_url).ok().as_ref().and_then(Url::host) {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
