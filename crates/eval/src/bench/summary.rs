//! Sums up measurements: one line for each call, one row for each tool and model.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use toolwright_core::model::MAX_TOKENS;
use toolwright_search::ranking_metrics::percentile;

use crate::bench::case::Case;
use crate::bench::check::Verdict;
use crate::bench::plan::{Plan, PlannedCases};

/// The measurement of a call: a line of the results file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
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
    /// Whether it is a result about the model. A call that did not reach its model, or that was not judged, is not: the
    /// next run repeats it, and only its cost counts.
    pub done: bool,
    /// 0 to 100; 0 if the tool gave no valid result.
    pub score: f64,
    /// The result of each check, in order.
    #[serde(default)]
    pub checks: Vec<CheckScore>,
    /// The reason why there is no result, redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The beginning of the output, redacted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Input tokens of the measured model.
    #[serde(default)]
    pub input_tokens: u64,
    /// Output tokens.
    #[serde(default)]
    pub output_tokens: u64,
    /// Requests to models, including those to the judge.
    #[serde(default)]
    pub requests: u64,
    /// US dollars, without the judge; absent if the price is unknown.
    #[serde(default)]
    pub cost_usd: Option<f64>,
    /// US dollars of the judge; absent if it was not asked or its price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge_cost_usd: Option<f64>,
    /// US dollars that count against the limit, including the judge: the actual cost, or the highest possible if
    /// unknown. Absent in lines with only the costs above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_usd: Option<f64>,
    /// Milliseconds of the call, without its waits in queues and without the judge.
    pub latency_ms: f64,
    /// The time of its end, in milliseconds since the epoch.
    pub at_ms: u64,
}

/// The highest plausible cost of a call in US dollars, and its highest plausible milliseconds. For tokens and requests
/// it is [`MAX_TOKENS`].
const MAX_FIGURE: f64 = 1e12;

impl Measurement {
    /// Returns the US dollars that count against the limit of a run.
    #[must_use]
    pub fn charged(&self) -> f64 {
        let known = || self.cost_usd.unwrap_or(0.0) + self.judge_cost_usd.unwrap_or(0.0);
        self.charged_usd.unwrap_or_else(known)
    }

    /// Returns whether its figures are plausible for a call.
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

/// Rounds to millionths: sums that should be 100 are 99.999… in binary.
#[must_use]
pub(in crate::bench) fn round_figure(figure: f64) -> f64 {
    (figure * 1e6).round() / 1e6
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckScore {
    /// Its kind.
    pub check: String,
    /// Its weight in the case.
    pub weight: f64,
    /// 0 to 1.
    pub value: f64,
    /// The missing part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl CheckScore {
    /// Creates the result of a check of this kind and weight.
    #[must_use]
    pub fn new(check: &str, weight: f64, verdict: Verdict) -> Self {
        Self { check: check.to_owned(), weight, value: verdict.value, note: verdict.note }
    }

    /// Returns the score of a call with a valid result: the weighted mean of its checks, 100 without checks.
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

/// The results of a model with a tool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The tool's id.
    pub tool: String,
    /// `provider/model`.
    pub model: String,
    /// The mean score, 0 to 100, weighted by case; absent if nothing was measured.
    pub score: Option<f64>,
    /// US dollars of all measured calls, without the judge; absent if a price is unknown.
    pub cost: Option<f64>,
    /// Mean milliseconds of a call.
    pub latency_ms: Option<f64>,
    /// The number of calls in the plan.
    pub calls: usize,
    /// The number of measured calls.
    pub done: usize,
    /// The number of these without a valid result, if known: a compat file does not contain it.
    pub failed: Option<usize>,
    /// Standard deviation of the scores of calls.
    pub sd: Option<f64>,
    /// The lowest score of a call.
    pub min: Option<f64>,
    /// The median of the calls' milliseconds.
    pub p50_ms: Option<f64>,
    /// The 95th percentile of the calls' milliseconds.
    pub p95_ms: Option<f64>,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// US dollars of the judge.
    pub judge_cost: Option<f64>,
    /// The score from which a model is recommended for the tool, if known.
    pub threshold: Option<u8>,
    /// Whether the model is recommended for it: completely measured, and at or above the threshold.
    pub recommended: bool,
    /// The hash of the tool's contract.
    pub contract: String,
    /// The reason why calls were not measured, for the last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The results by case.
    pub cases: Vec<CaseRow>,
}

/// The results of a model with a case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaseRow {
    /// The case.
    pub case: String,
    /// The mean of its measured repeats.
    pub score: Option<f64>,
    /// The missing part in the last repeat, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Row {
    /// Creates a row without measurements.
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

    /// Returns whether all of its calls were measured.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.done == self.calls
    }

    /// Returns the US dollars of a call.
    #[must_use]
    pub fn cost_per_call(&self) -> Option<f64> {
        self.cost.filter(|_| self.done > 0).map(|cost| cost / self.done as f64)
    }
}

/// Returns the results of a plan, from the measurements so far: by tool in the plan's order, the best model first.
#[must_use]
pub fn summarize(plan: &Plan, measured: &[Measurement]) -> Vec<Row> {
    let mut by_key: HashMap<&str, &Measurement> = HashMap::new();
    for line in measured {
        // Of several lines, the last one with a result about the model counts.
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

/// Returns a sort key of scores, with missing ones last.
fn score_key(score: Option<f64>) -> Option<u64> {
    // Distinguishes millionths of a point; scores are from 0 to 100.
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
    fn new(tool: String, model: String, planned: &PlannedCases) -> Self {
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

    fn add(&mut self, case: &Case, place: (usize, usize), measured: Option<&'a Measurement>) {
        // The calls of a case are adjacent in a plan.
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
        row.score = (self.weights > 0.0).then(|| round_figure(self.weighted / self.weights));
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

/// The deviation of the values themselves, not of a sample.
fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / values.len() as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwright_core::canonical::ContentHash;
    use toolwright_core::tool_id::ToolId;

    use super::*;
    use crate::bench::plan::{Cell, PlanOptions};

    fn planned(tool: &str, cases: &[(&str, f64)], repeat: u32) -> PlannedCases {
        let case = |(id, weight): &(&str, f64)| Case {
            id: (*id).to_owned(),
            input: json!({}),
            weight: *weight,
            checks: Vec::new(),
            line: 1,
            key: String::new(),
        };
        PlannedCases {
            tool: ToolId::parse(tool).expect("an id"),
            contract: ContentHash::of_bytes(b"1"),
            threshold: 80,
            mode: None,
            repeat,
            cases: cases.iter().map(case).collect(),
        }
    }

    fn plan(tools: Vec<PlannedCases>, models: &[&str]) -> Plan {
        Plan::new(tools, models.iter().map(|model| (*model).to_owned()).collect(), None, &PlanOptions::default())
            .expect("a plan")
    }

    /// Measures every call of a plan; `how` changes the result.
    fn all(plan: &Plan, how: impl Fn(&str, &str, &mut Measurement)) -> Vec<Measurement> {
        let measure = |cell: &Cell| {
            let tool = &plan.tools[cell.tool];
            let (case, model) = (&tool.cases[cell.case].id, &plan.models[cell.model]);
            let mut measured = Measurement {
                key: cell.key.clone(),
                tool: tool.tool.to_string(),
                case: case.clone(),
                model: model.clone(),
                repeat: cell.repeat,
                done: true,
                score: 100.0,
                checks: Vec::new(),
                error: None,
                output: String::new(),
                input_tokens: 10,
                output_tokens: 5,
                requests: 1,
                cost_usd: Some(0.5),
                judge_cost_usd: None,
                charged_usd: None,
                latency_ms: 100.0,
                at_ms: 0,
            };
            how(model, case, &mut measured);
            measured
        };
        plan.cells.iter().map(measure).collect()
    }

    #[test]
    fn figures_are_those_of_what_was_measured() {
        let plan = plan(
            vec![planned("x:b@1.0.0", &[("1", 1.0), ("2", 3.0)], 2), planned("x:a@1.0.0", &[("1", 1.0)], 1)],
            &["p/bad", "p/good"],
        );
        let measured = all(&plan, |model, case, measured| {
            if model == "p/bad" && case == "2" {
                measured.score = 20.0;
                measured.latency_ms = 300.0;
                measured.checks =
                    vec![CheckScore { check: "exact".into(), weight: 1.0, value: 0.2, note: Some("no".into()) }];
            }
        });
        let rows = summarize(&plan, &measured);
        let order: Vec<(&str, &str)> = rows.iter().map(|row| (row.tool.as_str(), row.model.as_str())).collect();
        assert_eq!(
            order,
            [("x:b@1.0.0", "p/good"), ("x:b@1.0.0", "p/bad"), ("x:a@1.0.0", "p/bad"), ("x:a@1.0.0", "p/good")]
        );
        let bad = &rows[1];
        assert_eq!((bad.score, bad.sd, bad.min), (Some(40.0), Some(40.0), Some(20.0)));
        assert_eq!(
            (bad.calls, bad.done, bad.failed, bad.cost, bad.cost_per_call()),
            (4, 4, Some(0), Some(2.0), Some(0.5))
        );
        assert_eq!((bad.latency_ms, bad.p50_ms, bad.p95_ms), (Some(200.0), Some(100.0), Some(300.0)));
        assert_eq!((bad.input_tokens, bad.output_tokens), (40, 20));
        assert_eq!(bad.cases[1], CaseRow { case: "2".into(), score: Some(20.0), note: Some("no".into()) });
        assert_eq!((bad.recommended, rows[0].recommended), (false, true));
    }

    #[test]
    fn unmeasured_cases_are_left_out_of_figures() {
        let plan = plan(vec![planned("x:a@1.0.0", &[("1", 1.0), ("2", 1.0)], 1)], &["p/a", "p/b", "p/c"]);
        let mut measured = all(&plan, |model, case, measured| match (model, case) {
            ("p/a", "2") => {
                measured.done = false;
                measured.score = 0.0;
                measured.error = Some("rate limited".to_owned());
            }
            ("p/b", "1") => {
                measured.cost_usd = None;
                measured.score = 0.0;
                measured.error = Some("no JSON".to_owned());
            }
            _ => {}
        });
        measured.retain(|line| line.model != "p/c");
        // An earlier attempt without a result, and a line of another plan.
        let mut before = measured[0].clone();
        before.done = false;
        measured.push(before.clone());
        measured.push(Measurement { key: "other".into(), score: 1.0, ..before });
        let rows = summarize(&plan, &measured);
        let of = |model: &str| rows.iter().find(|row| row.model == model).expect("a row");
        let a = of("p/a");
        assert_eq!((a.score, a.done, a.calls, a.missing.as_deref()), (Some(100.0), 1, 2, Some("rate limited")));
        assert!(!a.is_whole() && !a.recommended);
        let b = of("p/b");
        assert_eq!((b.score, b.failed, b.cost, b.is_whole()), (Some(50.0), Some(1), None, true));
        let c = of("p/c");
        assert_eq!((c.score, c.done, c.cost, c.latency_ms), (None, 0, None, None));
        assert_eq!(rows.last().map(|row| row.model.as_str()), Some("p/c"), "without a score it comes last");
    }

    #[test]
    fn a_score_is_its_checks_weighted_mean() {
        let check = |weight, value| CheckScore::new("exact", weight, Verdict { value, note: None });
        for (checks, expect) in
            [(vec![], 100.0), (vec![check(1.0, 0.5)], 50.0), (vec![check(1.0, 0.0), check(3.0, 1.0)], 75.0)]
        {
            assert!((CheckScore::mean(&checks) - expect).abs() < 1e-9, "{checks:?}");
        }
    }

    #[test]
    fn foreign_output_lines_are_ignored() {
        let plan = plan(vec![planned("x:t@1.0.0", &[("a", 1.0), ("b", 0.1), ("c", 0.7)], 1)], &["p/m"]);
        let sums = all(&plan, |_, _, measured| {
            (measured.input_tokens, measured.output_tokens, measured.score) =
                (u64::MAX, u64::MAX, 99.999_999_999_999_99);
        });
        let row = &summarize(&plan, &sums)[0];
        assert_eq!((row.input_tokens, row.output_tokens, row.score), (u64::MAX, u64::MAX, Some(100.0)));
        let one = all(&plan, |_, _, _| {}).remove(0);
        assert!(one.is_sound());
        let wrong: [fn(&mut Measurement); 8] = [
            |line| line.score = 100.5,
            |line| line.score = f64::NAN,
            |line| line.cost_usd = Some(-1.0),
            |line| line.judge_cost_usd = Some(1e300),
            |line| line.charged_usd = Some(f64::INFINITY),
            |line| line.latency_ms = -1.0,
            |line| line.requests = u64::MAX,
            |line| line.checks = vec![CheckScore { check: "exact".into(), weight: 1.0, value: 1.5, note: None }],
        ];
        for (index, wrong) in wrong.into_iter().enumerate() {
            let mut line = one.clone();
            wrong(&mut line);
            assert!(!line.is_sound(), "{index}");
        }
        let charged = |cost: Option<f64>, charged: Option<f64>| {
            Measurement { cost_usd: cost, judge_cost_usd: Some(0.25), charged_usd: charged, ..one.clone() }.charged()
        };
        assert_eq!([charged(None, Some(2.0)), charged(Some(1.0), None), charged(None, None)], [2.0, 1.25, 0.25]);
    }
}
