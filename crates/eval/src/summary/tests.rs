use super::*;
use crate::plan::{Planned, Terms};
use serde_json::json;
use toolwright_core::canonical::ContentHash;
use toolwright_core::tool_id::ToolId;

fn planned(tool: &str, cases: &[(&str, f64)], repeat: u32) -> Planned {
    let case = |(id, weight): &(&str, f64)| Case {
        id: (*id).to_owned(),
        input: json!({}),
        weight: *weight,
        checks: Vec::new(),
        line: 1,
        key: String::new(),
    };
    Planned {
        tool: ToolId::parse(tool).expect("an id"),
        contract: ContentHash::of_bytes(b"1"),
        threshold: 80,
        mode: None,
        repeat,
        cases: cases.iter().map(case).collect(),
    }
}

fn plan(tools: Vec<Planned>, models: &[&str]) -> Plan {
    Plan::new(tools, models.iter().map(|model| (*model).to_owned()).collect(), None, &Terms::default()).expect("a plan")
}

/// Measures every call of a plan; `how` changes what came of it.
fn all(plan: &Plan, how: impl Fn(&str, &str, &mut Measured)) -> Vec<Measured> {
    let measure = |cell: &crate::plan::Cell| {
        let tool = &plan.tools[cell.tool];
        let (case, model) = (&tool.cases[cell.case].id, &plan.models[cell.model]);
        let mut measured = Measured {
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
            measured.checks = vec![Scored { check: "exact".into(), weight: 1.0, value: 0.2, note: Some("no".into()) }];
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
    assert_eq!((bad.calls, bad.done, bad.failed, bad.cost, bad.cost_per_call()), (4, 4, Some(0), Some(2.0), Some(0.5)));
    assert_eq!((bad.latency_ms, bad.p50_ms, bad.p95_ms), (Some(200.0), Some(100.0), Some(300.0)));
    assert_eq!((bad.input_tokens, bad.output_tokens), (40, 20));
    assert_eq!(bad.cases[1], CaseRow { case: "2".into(), score: Some(20.0), note: Some("no".into()) });
    assert_eq!((bad.recommended, rows[0].recommended), (false, true));
}

#[test]
fn what_was_not_measured_is_in_no_figure() {
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
    // An earlier attempt that came to nothing, and a line of another plan.
    let mut before = measured[0].clone();
    before.done = false;
    measured.push(before.clone());
    measured.push(Measured { key: "other".into(), score: 1.0, ..before });
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
fn a_case_is_the_weighted_mean_of_its_checks() {
    let check = |weight, value| Scored::new("exact", weight, Verdict { value, note: None });
    for (checks, expect) in
        [(vec![], 100.0), (vec![check(1.0, 0.5)], 50.0), (vec![check(1.0, 0.0), check(3.0, 1.0)], 75.0)]
    {
        assert!((Scored::mean(&checks) - expect).abs() < 1e-9, "{checks:?}");
    }
}

#[test]
fn a_line_from_elsewhere_breaks_nothing() {
    let plan = plan(vec![planned("x:t@1.0.0", &[("a", 1.0), ("b", 0.1), ("c", 0.7)], 1)], &["p/m"]);
    let sums = all(&plan, |_, _, measured| {
        (measured.input_tokens, measured.output_tokens, measured.score) = (u64::MAX, u64::MAX, 99.999_999_999_999_99);
    });
    let row = &summarize(&plan, &sums)[0];
    assert_eq!((row.input_tokens, row.output_tokens, row.score), (u64::MAX, u64::MAX, Some(100.0)));
    let one = all(&plan, |_, _, _| {}).remove(0);
    assert!(one.is_sound());
    let wrong: [fn(&mut Measured); 8] = [
        |line| line.score = 100.5,
        |line| line.score = f64::NAN,
        |line| line.cost_usd = Some(-1.0),
        |line| line.judge_cost_usd = Some(1e300),
        |line| line.charged_usd = Some(f64::INFINITY),
        |line| line.latency_ms = -1.0,
        |line| line.requests = u64::MAX,
        |line| line.checks = vec![Scored { check: "exact".into(), weight: 1.0, value: 1.5, note: None }],
    ];
    for (index, wrong) in wrong.into_iter().enumerate() {
        let mut line = one.clone();
        wrong(&mut line);
        assert!(!line.is_sound(), "{index}");
    }
    let charged = |cost: Option<f64>, charged: Option<f64>| {
        Measured { cost_usd: cost, judge_cost_usd: Some(0.25), charged_usd: charged, ..one.clone() }.charged()
    };
    assert_eq!([charged(None, Some(2.0)), charged(Some(1.0), None), charged(None, None)], [2.0, 1.25, 0.25]);
}
