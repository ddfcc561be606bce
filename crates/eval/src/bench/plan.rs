//! Lists the calls of a run.

use std::collections::{BTreeMap, HashSet};

use serde_json::json;

use toolwright_core::canonical::ContentHash;
use toolwright_core::tool_id::ToolId;

use super::case::Case;
use super::check::Kind;

/// The most calls of a run.
pub const MAX_CELLS: usize = 100_000;

/// The cases of one tool of the catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCases {
    /// The tool.
    pub tool: ToolId,
    /// The hash of its contract. It includes prompts, so changed prompts are measured again.
    pub contract: ContentHash,
    /// The score, 0 to 100, from which a model is recommended for it.
    pub threshold: u8,
    /// The mode of its requests to models.
    pub mode: Option<String>,
    /// How often each case is measured.
    pub repeat: u32,
    /// Its cases.
    pub cases: Vec<Case>,
}

/// A call: a case of a tool, with one model, for the n-th time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Equal for calls of any run that measure the same.
    pub key: String,
    /// Index in [`Plan::tools`].
    pub tool: usize,
    /// Index among its cases.
    pub case: usize,
    /// Index in [`Plan::models`].
    pub model: usize,
    /// From 1.
    pub repeat: u32,
}

/// Further inputs, besides names, that affect how models answer and are judged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlanOptions {
    /// By model, including the judge: a hash of the settings and the endpoint that affect its answers.
    pub of_models: BTreeMap<String, ContentHash>,
    /// The hash of the contract of the judging tool, if there is one.
    pub judge_contract: Option<ContentHash>,
}

/// All calls of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The tools.
    pub tools: Vec<PlannedCases>,
    /// The models, `provider/model`, each once.
    pub models: Vec<String>,
    /// The judge of rubrics, if there are any.
    pub judge: Option<String>,
    /// The calls. Those of different models for the same case are adjacent, so that an interrupted run has measured all
    /// models equally.
    pub cells: Vec<Cell>,
}

/// A run has too many calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it would be {0} calls, and a run may have {MAX_CELLS}: measure fewer models, tools or repeats at a time")]
pub struct TooManyCalls(pub usize);

impl Plan {
    /// Creates the calls. With different options they measure something else.
    ///
    /// # Errors
    /// [`TooManyCalls`].
    pub fn new(
        tools: Vec<PlannedCases>,
        models: Vec<String>,
        judge: Option<String>,
        options: &PlanOptions,
    ) -> Result<Self, TooManyCalls> {
        let of_tool = |tool: &PlannedCases| tool.cases.len().saturating_mul(tool.repeat as usize);
        let count = tools.iter().map(of_tool).fold(0, usize::saturating_add).saturating_mul(models.len());
        if count > MAX_CELLS {
            return Err(TooManyCalls(count));
        }
        // A case that occurs twice is measured once.
        let mut known = HashSet::new();
        let mut cells = Vec::with_capacity(count);
        for (tool_at, tool) in tools.iter().enumerate() {
            for (case_at, case) in tool.cases.iter().enumerate() {
                for repeat in 1..=tool.repeat {
                    for (model_at, model) in models.iter().enumerate() {
                        let key = key(tool, case, model, repeat, judge.as_deref(), options);
                        if !known.insert(key.clone()) {
                            continue;
                        }
                        cells.push(Cell { key, tool: tool_at, case: case_at, model: model_at, repeat });
                    }
                }
            }
        }
        Ok(Self { tools, models, judge, cells })
    }
}

/// Removes rubrics, for all models alike, and cases with rubrics only, which would pass with any answer. Returns how
/// many rubrics and cases.
pub fn drop_rubrics<'p>(tools: impl Iterator<Item = &'p mut PlannedCases>) -> (usize, usize) {
    let (mut rubrics, mut cases) = (0, 0);
    for planned in tools {
        let before = planned.cases.len();
        planned.cases.retain_mut(|case| {
            let had = case.checks.len();
            case.checks.retain(|check| !matches!(check.kind, Kind::Rubric { .. }));
            rubrics += had - case.checks.len();
            had == 0 || !case.checks.is_empty()
        });
        cases += before - planned.cases.len();
    }
    (rubrics, cases)
}

/// Returns the key of a call. The weight of the case is not part of it, because it changes no measurement. The judge
/// is, if there is one.
fn key(
    tool: &PlannedCases,
    case: &Case,
    model: &str,
    repeat: u32,
    judge: Option<&str>,
    options: &PlanOptions,
) -> String {
    let asked = |model: &str| options.of_models.get(model).map(ContentHash::to_hex);
    let judge = judge.filter(|_| case.is_judged()).map(|judge| {
        let contract = options.judge_contract.as_ref().map(ContentHash::to_hex);
        json!({"model": judge, "asked": asked(judge), "contract": contract})
    });
    short(&ContentHash::of_value(&json!({
        "tool": tool.tool,
        "contract": tool.contract.to_hex(),
        "mode": tool.mode,
        "case": case.id,
        "input": case.input,
        "checks": case.checks,
        "model": model,
        "asked": asked(model),
        "repeat": repeat,
        "judge": judge,
    })))
}

/// Returns 128 bits of a hash.
fn short(hash: &ContentHash) -> String {
    let mut hex = hash.to_hex();
    hex.truncate(32);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::check::Check;

    fn case(id: &str, judged: bool) -> Case {
        let kind = Kind::Rubric { path: String::new(), task: "t".into(), criteria: Vec::new(), min: 0.0 };
        let checks = if judged { vec![Check { weight: 1.0, kind }] } else { Vec::new() };
        Case { id: id.into(), input: json!({"a": id}), weight: 1.0, checks, line: 1, key: String::new() }
    }

    fn create_plan(
        options: &PlanOptions,
        cases: Vec<Case>,
        repeat: u32,
        models: &[&str],
        judge: Option<&str>,
    ) -> Result<Plan, TooManyCalls> {
        let tool = PlannedCases {
            tool: ToolId::parse("x:t@1.0.0").expect("an id"),
            contract: ContentHash::of_bytes(b"1"),
            threshold: 90,
            mode: None,
            repeat,
            cases,
        };
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        Plan::new(vec![tool], models, judge.map(str::to_owned), options)
    }

    fn plan(cases: Vec<Case>, repeat: u32, models: &[&str], judge: Option<&str>) -> Result<Plan, TooManyCalls> {
        create_plan(&PlanOptions::default(), cases, repeat, models, judge)
    }

    #[test]
    fn other_settings_make_other_measurements() {
        let hash = |text: &str| ContentHash::of_bytes(text.as_bytes());
        let options = |one: &str, judge: &str, contract: &str| PlanOptions {
            of_models: [("p/1".to_owned(), hash(one)), ("j/1".to_owned(), hash(judge))].into(),
            judge_contract: Some(hash(contract)),
        };
        let keys = |options: PlanOptions| -> Vec<String> {
            let cases = vec![case("a", false), case("b", true)];
            let plan = create_plan(&options, cases, 1, &["p/1", "p/2"], Some("j/1")).expect("a plan");
            plan.cells.into_iter().map(|cell| cell.key).collect()
        };
        let before = keys(options("1", "1", "1"));
        // Without and with a judge, by each model.
        for (options, same) in [
            (options("1", "1", "1"), [true, true, true, true]),
            (options("2", "1", "1"), [false, true, false, true]),
            (options("1", "2", "1"), [true, true, false, false]),
            (options("1", "1", "2"), [true, true, false, false]),
        ] {
            let now: Vec<bool> = before.iter().zip(keys(options)).map(|(a, b)| *a == b).collect();
            assert_eq!(now, same);
        }
    }

    #[test]
    fn measurement_keys_depend_on_what_is_measured() {
        let plan_of = |judge| plan(vec![case("a", false), case("b", true)], 2, &["p/1", "p/2"], judge).expect("a plan");
        let (one, other) = (plan_of(Some("j/1")), plan_of(Some("j/2")));
        let order: Vec<_> = one.cells.iter().map(|cell| (cell.case, cell.repeat, cell.model)).collect();
        assert_eq!(order, [(0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 1, 0), (1, 1, 1), (1, 2, 0), (1, 2, 1)]);
        let same: Vec<bool> = one.cells.iter().zip(&other.cells).map(|(a, b)| a.key == b.key).collect();
        assert_eq!(same, [true, true, true, true, false, false, false, false], "the judge matters where it is asked");
        let mut keys: Vec<&String> = one.cells.iter().map(|cell| &cell.key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 8);
        let twice = plan(vec![case("a", false), case("a", false)], 1, &["p/1"], None).expect("a plan");
        assert_eq!(twice.cells.len(), 1, "a case that stands in two places is measured once");
    }

    #[test]
    fn every_run_has_an_end_event() {
        let cases: Vec<Case> = (0..=MAX_CELLS).map(|index| case(&index.to_string(), false)).collect();
        assert_eq!(plan(cases, 1, &["p/1"], None), Err(TooManyCalls(MAX_CELLS + 1)));
    }
}
