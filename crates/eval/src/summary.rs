//! From measurements to figures.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::case::Case;
use super::check::Verdict;
use super::plan::Plan;
use toolwright_core::model::MAX_TOKENS;
use toolwright_core::select::metrics::percentile;

/// What one call came to: a line of the file of measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The call's key in the plan.
    pub key: String,
    /// The tool's id.
    pub tool: String,
    /// The case.
    pub case: String,
    /// `provider/model`.
    pub model: String,
    /// From 1.
    pub repeat: u32,
    /// Whether it says something of the model. A call that did not reach its model, or whose judge did not answer, does
    /// not: it is made again by the next run, and only what it cost counts.
    pub done: bool,
    /// 0 to 100; 0 where the tool gave no valid result.
    pub score: f64,
    /// What each check said, in order.
    #[serde(default)]
    pub checks: Vec<Scored>,
    /// Why there is no result, redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The beginning of the output, redacted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Tokens in, of the model that is measured.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens out.
    #[serde(default)]
    pub output_tokens: u64,
    /// Requests to models, the judge's among them.
    #[serde(default)]
    pub requests: u64,
    /// US dollars, without the judge; absent where the price is not known.
    #[serde(default)]
    pub cost_usd: Option<f64>,
    /// US dollars of the judge; absent where it was not asked or its price is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge_cost_usd: Option<f64>,
    /// US dollars that were counted against the bound, the judge included: what it cost, or where that is not known what
    /// it may have cost. Absent in lines that know nothing but the costs above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_usd: Option<f64>,
    /// Milliseconds of the call, without its waits in queues and without the judge.
    pub latency_ms: f64,
    /// Milliseconds since the epoch at its end.
    pub at_ms: u64,
}

/// US dollars that a call may be said to have cost, and milliseconds that it may have taken. Of tokens and requests,
/// [`MAX_TOKENS`] are believed.
const MAX_FIGURE: f64 = 1e12;

impl Measured {
    /// US dollars that count against the bound of a run.
    #[must_use]
    pub fn charged(&self) -> f64 {
        let known = || self.cost_usd.unwrap_or(0.0) + self.judge_cost_usd.unwrap_or(0.0);
        self.charged_usd.unwrap_or_else(known)
    }

    /// Whether its figures can be those of a call.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let costs = [self.cost_usd, self.judge_cost_usd, self.charged_usd, Some(self.latency_ms)];
        share(self.score / 100.0)
            && costs.into_iter().flatten().all(|figure| (0.0..=MAX_FIGURE).contains(&figure))
            && [self.input_tokens, self.output_tokens, self.requests].into_iter().all(|count| count <= MAX_TOKENS)
            && self.checks.iter().all(|check| share(check.value) && (0.0..=MAX_FIGURE).contains(&check.weight))
    }
}

/// A figure to its millionth part: sums that ought to be 100 are 99.999… in binary.
#[must_use]
pub(crate) fn steady(figure: f64) -> f64 {
    (figure * 1e6).round() / 1e6
}

/// What one check said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// Its kind.
    pub check: String,
    /// Its share in the case.
    pub weight: f64,
    /// 0 to 1.
    pub value: f64,
    /// What is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Scored {
    /// What a check of this kind and weight said.
    #[must_use]
    pub fn new(check: &str, weight: f64, verdict: Verdict) -> Self {
        Self { check: check.to_owned(), weight, value: verdict.value, note: verdict.note }
    }

    /// The score of a call whose result was valid: the weighted mean of its checks, 100 where there are none.
    #[must_use]
    pub fn mean(checks: &[Self]) -> f64 {
        let weights: f64 = checks.iter().map(|check| check.weight).sum();
        if weights > 0.0 {
            100.0 * checks.iter().map(|check| check.weight * check.value).sum::<f64>() / weights
        } else {
            100.0
        }
    }
}

/// How one model does with one tool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The tool's id.
    pub tool: String,
    /// `provider/model`.
    pub model: String,
    /// The mean score, 0 to 100, each case with its weight; absent where nothing was measured.
    pub score: Option<f64>,
    /// US dollars of all measured calls, without the judge; absent where a price is not known.
    pub cost: Option<f64>,
    /// Mean milliseconds of a call.
    pub latency_ms: Option<f64>,
    /// Calls of the plan.
    pub calls: usize,
    /// Those that were measured.
    pub done: usize,
    /// Those of them that gave no valid result, where it is known: a compat file does not say.
    pub failed: Option<usize>,
    /// Standard deviation of the scores of calls.
    pub sd: Option<f64>,
    /// The least score of a call.
    pub min: Option<f64>,
    /// Milliseconds that half of the calls do not exceed.
    pub p50_ms: Option<f64>,
    /// Milliseconds that 95 of 100 calls do not exceed.
    pub p95_ms: Option<f64>,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// US dollars of the judge.
    pub judge_cost: Option<f64>,
    /// The score from which a model is recommended for the tool, where it is known.
    pub threshold: Option<u8>,
    /// Whether the model is recommended for it: measured wholly, at or over the threshold.
    pub recommended: bool,
    /// The hash of the tool's contract.
    pub contract: String,
    /// Why calls were not measured, the last of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// Case by case.
    pub cases: Vec<CaseRow>,
}

/// How one model does with one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaseRow {
    /// The case.
    pub case: String,
    /// The mean over its measured repeats.
    pub score: Option<f64>,
    /// What was missing the last time, where something was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Row {
    /// A model and a tool of which nothing was measured.
    #[must_use]
    pub fn new(tool: String, model: String) -> Self {
        Self {
            tool,
            model,
            score: None,
            cost: None,
            latency_ms: None,
            calls: 0,
            done: 0,
            failed: None,
            sd: None,
            min: None,
            p50_ms: None,
            p95_ms: None,
            input_tokens: 0,
            output_tokens: 0,
            judge_cost: None,
            threshold: None,
            recommended: false,
            contract: String::new(),
            missing: None,
            cases: Vec::new(),
        }
    }

    /// Whether all of its calls were measured.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.done == self.calls
    }

    /// US dollars of a call.
    #[must_use]
    pub fn cost_per_call(&self) -> Option<f64> {
        self.cost.filter(|_| self.done > 0).map(|cost| cost / self.done as f64)
    }
}

/// The figures of a plan, from what was measured so far: by tool in the plan's order, the best model first.
#[must_use]
pub fn summarize(plan: &Plan, measured: &[Measured]) -> Vec<Row> {
    let mut by_key: HashMap<&str, &Measured> = HashMap::new();
    for line in measured {
        // Of several lines the last counts that says something of the model.
        let known = by_key.entry(&line.key).or_insert(line);
        if line.done || !known.done {
            *known = line;
        }
    }
    let mut tallies: Vec<Tally<'_>> = Vec::new();
    let mut places: HashMap<(String, usize), usize> = HashMap::new();
    for cell in &plan.cells {
        let tool = &plan.tools[cell.tool];
        let place = *places.entry((tool.tool.to_string(), cell.model)).or_insert_with(|| {
            tallies.push(Tally::new(tool.tool.to_string(), plan.models[cell.model].clone(), tool));
            tallies.len() - 1
        });
        tallies[place].add(&tool.cases[cell.case], (cell.tool, cell.case), by_key.get(cell.key.as_str()).copied());
    }
    let mut rows: Vec<Row> = tallies.into_iter().map(Tally::row).collect();
    let order: HashMap<String, usize> =
        plan.tools.iter().enumerate().rev().map(|(at, tool)| (tool.tool.to_string(), at)).collect();
    let rank = |row: &Row| (order.get(&row.tool).copied(), std::cmp::Reverse(score_key(row.score)));
    rows.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.model.cmp(&b.model)));
    rows
}

/// Scores in order, what has none last.
fn score_key(score: Option<f64>) -> Option<u64> {
    // Millionths of a point are told apart; scores are from 0 to 100.
    score.map(|score| (score.max(0.0) * 1e6).round() as u64)
}

struct Tally<'a> {
    row: Row,
    scores: Vec<f64>,
    weighted: f64,
    weights: f64,
    latencies: Vec<f64>,
    cost: Option<f64>,
    by_case: Vec<((usize, usize), Vec<f64>)>,
    last: Option<&'a str>,
}

impl<'a> Tally<'a> {
    fn new(tool: String, model: String, planned: &super::plan::Planned) -> Self {
        let (threshold, contract) = (Some(planned.threshold), planned.contract.to_hex());
        let row = Row { threshold, contract, failed: Some(0), ..Row::new(tool, model) };
        Self {
            row,
            scores: Vec::new(),
            weighted: 0.0,
            weights: 0.0,
            latencies: Vec::new(),
            cost: Some(0.0),
            by_case: Vec::new(),
            last: None,
        }
    }

    fn add(&mut self, case: &Case, place: (usize, usize), measured: Option<&'a Measured>) {
        // The calls of a case stand together in a plan.
        if self.by_case.last().is_none_or(|(known, _)| *known != place) {
            self.by_case.push((place, Vec::new()));
            self.row.cases.push(CaseRow { case: case.id.clone(), score: None, note: None });
        }
        let at = self.by_case.len() - 1;
        self.row.calls += 1;
        let Some(measured) = measured else { return };
        if !measured.done {
            self.last = measured.error.as_deref();
            return;
        }
        let row = &mut self.row;
        row.done += 1;
        *row.failed.get_or_insert(0) += usize::from(measured.error.is_some());
        row.input_tokens = row.input_tokens.saturating_add(measured.input_tokens);
        row.output_tokens = row.output_tokens.saturating_add(measured.output_tokens);
        if let Some(cost) = measured.judge_cost_usd {
            *row.judge_cost.get_or_insert(0.0) += cost;
        }
        self.cost = self.cost.zip(measured.cost_usd).map(|(sum, cost)| sum + cost);
        self.scores.push(measured.score);
        self.weighted += case.weight * measured.score;
        self.weights += case.weight;
        self.latencies.push(measured.latency_ms);
        self.by_case[at].1.push(measured.score);
        let missed = measured.checks.iter().find(|check| check.value < 1.0).and_then(|check| check.note.clone());
        if let Some(note) = measured.error.clone().or(missed) {
            row.cases[at].note = Some(note);
        }
    }

    fn row(mut self) -> Row {
        self.latencies.sort_unstable_by(f64::total_cmp);
        let row = &mut self.row;
        row.missing = self.last.map(str::to_owned).filter(|_| row.done < row.calls);
        for (case, (_, scores)) in row.cases.iter_mut().zip(&self.by_case) {
            case.score = mean(scores);
        }
        if row.done == 0 {
            return self.row;
        }
        row.cost = self.cost;
        row.score = (self.weights > 0.0).then(|| steady(self.weighted / self.weights));
        let reaches = |score: f64| row.threshold.is_some_and(|threshold| score >= f64::from(threshold));
        row.recommended = row.is_whole() && row.score.is_some_and(reaches);
        row.sd = deviation(&self.scores);
        row.min = self.scores.iter().copied().min_by(f64::total_cmp);
        row.latency_ms = mean(&self.latencies);
        row.p50_ms = Some(percentile(&self.latencies, 0.5));
        row.p95_ms = Some(percentile(&self.latencies, 0.95));
        self.row
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Of the values themselves, not of a sample.
fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / values.len() as f64).sqrt())
}

#[cfg(test)]
mod tests;
