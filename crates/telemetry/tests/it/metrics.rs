//! What is counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use toolwright_core::error::ErrorKind;
use toolwright_core::event::Event;
use toolwright_core::job::JobState;
use toolwright_core::operation::CallOrigin;
use toolwright_core::store::LedgerHealth;
use toolwright_telemetry::{Metrics, Point};
use toolwright_testkit::FakeLedger;

use crate::support::{
    CallTraits, answered, cache_hit, decided, finished, job_changed, job_finished, job_started, op, run_finished,
    started, waited, waits,
};

/// Every series by name and labels: `name{a,b}`; of a histogram its count and sum.
fn counted(metrics: &Metrics) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for family in metrics.families() {
        for (labels, point) in family.series() {
            let labels: Vec<_> = labels.iter().map(|(_, value)| *value).collect();
            let value = match point {
                Point::Number(number) => number.to_string(),
                Point::Histogram(histogram) => format!("{} of {:.3}", histogram.count, histogram.sum),
            };
            all.insert(format!("{}{{{}}}", family.instrument().name, labels.join(",")), value);
        }
    }
    all
}

fn check(events: &[Event], expect: &[(&str, &str)]) {
    let metrics = Metrics::default();
    events.iter().for_each(|event| metrics.observe(event));
    let counted = counted(&metrics);
    for (series, value) in expect {
        let is = counted.get(*series).map_or("(nothing)", String::as_str);
        assert_eq!(is, *value, "{series} among {counted:#?}");
    }
}

#[test]
fn calls_by_tool_provider_and_status() {
    let (a, b) = ("x:echo@1.0.0", "y:fetch@2.0.0");
    let events = [
        started(&op(1, 0), a),
        started(&op(2, 0), a),
        started(&op(3, 0), b),
        // Tried again.
        started(&op(3, 0), b),
        finished(&op(1, 0), a, None, 500),
        finished(&op(2, 0), a, None, 250),
        finished(&op(3, 0), b, Some(ErrorKind::Timeout), 2000),
        finished(&op(4, 0), "", Some(ErrorKind::UnknownTool), 0),
        decided(&op(5, 0), b, "deny"),
        cache_hit(&op(6, 0), a),
    ];
    check(
        &events,
        &[
            ("toolwright.tool.calls{x__echo,x,ok}", "2"),
            ("toolwright.tool.calls{y__fetch,y,timeout}", "1"),
            ("toolwright.tool.calls{unknown,unknown_tool}", "1"),
            ("toolwright.cache.hits{x__echo}", "1"),
            ("toolwright.tool.duration{x__echo,x}", "2 of 0.750"),
            ("gen_ai.execute_tool.duration{x__echo,function}", "2 of 0.750"),
            ("gen_ai.execute_tool.duration{y__fetch,function,timeout}", "1 of 2.000"),
            ("toolwright.tool.running{}", "0"),
            ("toolwright.approvals{deny}", "1"),
        ],
    );
}

#[test]
fn metrics_count_running_and_waiting_calls() {
    let id = "x:echo@1.0.0";
    let mut end = finished(&op(2, 0), id, None, 800);
    if let Event::ToolFinished { wait_us, .. } = &mut end {
        *wait_us = 500_000;
    }
    let events = [
        waits(&op(1, 0), id, "slow"),
        waits(&op(2, 0), id, "slow"),
        waits(&op(3, 0), id, "slow"),
        waited(&op(1, 0), id, "slow", 250),
        started(&op(1, 0), id),
        waited(&op(2, 0), id, "slow", 500),
        started(&op(2, 0), id),
        end,
    ];
    check(
        &events,
        &[
            ("toolwright.queue.waiting{slow}", "1"),
            ("toolwright.queue.wait{slow}", "2 of 0.750"),
            ("toolwright.tool.running{}", "1"),
            ("toolwright.tool.duration{x__echo,x}", "1 of 0.800"),
            ("gen_ai.execute_tool.duration{x__echo,function}", "1 of 0.300"),
        ],
    );
}

#[test]
fn time_waiting_for_people_is_counted_separately() {
    let id = "x:echo@1.0.0";
    let mut end = finished(&op(1, 0), id, None, 250);
    if let Event::ToolFinished { person_us, .. } = &mut end {
        *person_us = 90_000_000;
    }
    check(
        &[end, finished(&op(2, 0), id, None, 250)],
        &[
            ("toolwright.tool.duration{x__echo,x}", "2 of 0.500"),
            ("gen_ai.execute_tool.duration{x__echo,function}", "2 of 0.500"),
            ("toolwright.person.wait{x__echo,x}", "1 of 90.000"),
        ],
    );
}

#[test]
fn ledger_failures_are_metrics() {
    let metrics = Metrics::default();
    let condition = LedgerHealth { failures: 3, lost: 2, waiting: 5, failing: Some("full".into()) };
    let ledger = Arc::new(FakeLedger::default());
    metrics.watch_ledger(Arc::clone(&ledger) as _);
    assert!(metrics.families().is_empty(), "nothing is wrong");
    *ledger.health() = condition;
    let text = metrics.text(toolwright_telemetry::TextFormat::Prometheus, &[]);
    for line in ["toolwright_ledger_failures_total 3", "toolwright_ledger_lost_total 2", "toolwright_ledger_waiting 5"]
    {
        assert!(text.contains(line), "{text}");
    }
    *ledger.health() = LedgerHealth { failures: 3, lost: 2, ..LedgerHealth::default() };
    assert_eq!(counted(&metrics)["toolwright.ledger.waiting{}"], "0");
}

#[test]
fn mcp_requests_in_both_directions() {
    let id = "git:log@1.0.0";
    let both = CallTraits { mcp: true, origin: CallOrigin::Gateway, method: None };
    let mut coded = both.finished(&op(3, 0), id, Some(ErrorKind::TransportError), 100);
    if let Event::ToolFinished { code, .. } = &mut coded {
        *code = Some(-32000);
    }
    let mut denied = both.finished(&op(4, 0), id, Some(ErrorKind::Denied), 1);
    if let Event::ToolFinished { attempts, .. } = &mut denied {
        *attempts = 0;
    }
    let events = [
        both.finished(&op(1, 0), id, None, 500),
        both.finished(&op(2, 0), id, Some(ErrorKind::ExecutionError), 100),
        coded,
        denied,
        finished(&op(5, 0), id, None, 500),
    ];
    check(
        &events,
        &[
            ("mcp.client.operation.duration{tools/call,execute_tool,git__log}", "1 of 0.500"),
            ("mcp.client.operation.duration{tools/call,execute_tool,git__log,tool_error}", "1 of 0.100"),
            ("mcp.client.operation.duration{tools/call,execute_tool,git__log,-32000}", "1 of 0.100"),
            ("mcp.client.operation.duration{tools/call,execute_tool,git__log,denied}", "(nothing)"),
            ("mcp.server.operation.duration{tools/call,execute_tool,git__log,denied}", "1 of 0.001"),
            ("mcp.server.operation.duration{tools/call,execute_tool,git__log}", "1 of 0.500"),
            ("toolwright.tool.calls{git__log,git,execution_error}", "1"),
        ],
    );
}

#[test]
fn mcp_methods_are_requests_not_tools() {
    let id = "git:resources-read@0.0.0";
    let read = CallTraits { mcp: true, origin: CallOrigin::Gateway, method: Some("resources/read") };
    let events =
        [read.finished(&op(1, 0), id, None, 500), read.finished(&op(2, 0), id, Some(ErrorKind::ExecutionError), 100)];
    check(
        &events,
        &[
            ("mcp.server.operation.duration{resources/read}", "1 of 0.500"),
            ("mcp.client.operation.duration{resources/read}", "1 of 0.500"),
            ("mcp.client.operation.duration{resources/read,tool_error}", "1 of 0.100"),
            ("mcp.server.operation.duration{tools/call,execute_tool,git__resources-read}", "(nothing)"),
            ("gen_ai.execute_tool.duration{git__resources-read,function}", "(nothing)"),
            ("toolwright.tool.calls{git__resources-read,git,ok}", "1"),
        ],
    );
}

#[test]
fn repeated_calls_count_in_one_series() {
    let id = "git:log@1.0.0";
    let [ours, served, asked, both] = [
        (false, CallOrigin::Agent),
        (false, CallOrigin::Gateway),
        (true, CallOrigin::Job),
        (true, CallOrigin::Gateway),
    ]
    .map(|(mcp, origin)| CallTraits { mcp, origin, method: None });
    let coded = |n: u64, of: CallTraits, number: i64| {
        let mut event = of.finished(&op(n, 0), id, Some(ErrorKind::ExecutionError), 1000);
        if let Event::ToolFinished { code, .. } = &mut event {
            *code = Some(number);
        }
        event
    };
    let round = |n: u64| {
        let ok = [ours, served, asked, both].map(|of| of.finished(&op(n, 0), id, None, 1000));
        let failed =
            [ours, served, asked, both].map(|of| of.finished(&op(n, 0), id, Some(ErrorKind::ExecutionError), 1000));
        let reported = [coded(n, ours, -1), coded(n, served, -1), coded(n, asked, -1), coded(n, both, -2)];
        [ok, failed, reported].concat()
    };
    check(
        &[round(1), round(2), round(3)].concat(),
        &[
            ("toolwright.tool.calls{git__log,git,ok}", "12"),
            ("toolwright.tool.calls{git__log,git,execution_error}", "24"),
            ("toolwright.tool.duration{git__log,git}", "36 of 36.000"),
            ("gen_ai.execute_tool.duration{git__log,function}", "12 of 12.000"),
            ("gen_ai.execute_tool.duration{git__log,function,execution_error}", "24 of 24.000"),
            ("mcp.server.operation.duration{tools/call,execute_tool,git__log}", "6 of 6.000"),
            ("mcp.server.operation.duration{tools/call,execute_tool,git__log,tool_error}", "6 of 6.000"),
            ("mcp.server.operation.duration{tools/call,execute_tool,git__log,-1}", "3 of 3.000"),
            ("mcp.server.operation.duration{tools/call,execute_tool,git__log,-2}", "3 of 3.000"),
            ("mcp.client.operation.duration{tools/call,execute_tool,git__log}", "6 of 6.000"),
            ("mcp.client.operation.duration{tools/call,execute_tool,git__log,tool_error}", "6 of 6.000"),
            ("mcp.client.operation.duration{tools/call,execute_tool,git__log,-1}", "3 of 3.000"),
            ("mcp.client.operation.duration{tools/call,execute_tool,git__log,-2}", "3 of 3.000"),
        ],
    );
}

#[test]
fn jobs_by_state_and_runs() {
    let id = "x:build@1.0.0";
    let job = |n: u64, states: &[JobState], end: Option<JobState>| {
        let (op, job) = (op(n, 0), format!("build_{n}"));
        let changes = states.iter().map(|state| job_changed(&op, &job, id, *state));
        let end = end.map(|state| job_finished(&op, &job, id, state, 5));
        [job_started(&op, &job, id)].into_iter().chain(changes).chain(end).collect::<Vec<_>>()
    };
    let events = [
        job(1, &[], None),
        job(2, &[JobState::Running], None),
        job(3, &[JobState::Running, JobState::WaitingInput], None),
        job(4, &[JobState::Running], Some(JobState::Done)),
        job(5, &[JobState::Running, JobState::Unknown], None),
        vec![run_finished(&op(5, 0), Some("reviewer"), true, 2000), run_finished(&op(6, 0), None, false, 1000)],
    ]
    .concat();
    check(
        &events,
        &[
            ("toolwright.jobs{pending}", "1"),
            ("toolwright.jobs{running}", "1"),
            ("toolwright.jobs{waiting_input}", "1"),
            ("toolwright.jobs.finished{done}", "1"),
            ("toolwright.jobs{unknown}", "(nothing)"),
            ("gen_ai.invoke_agent.duration{reviewer}", "1 of 2.000"),
            ("gen_ai.invoke_agent.duration{failure}", "1 of 1.000"),
        ],
    );
}

#[test]
fn requests_to_models_and_their_tokens() {
    let events = [answered(&op(1, 0), "openai/gpt-6", true, 1500), answered(&op(2, 0), "openai/gpt-6", false, 100)];
    check(
        &events,
        &[
            ("gen_ai.client.operation.duration{chat,openai,gpt-6}", "1 of 1.500"),
            ("gen_ai.client.operation.duration{chat,openai,gpt-6,rate_limit}", "1 of 0.100"),
            ("gen_ai.client.token.usage{chat,openai,gpt-6,input}", "1 of 1000.000"),
            ("gen_ai.client.token.usage{chat,openai,gpt-6,output}", "1 of 50.000"),
        ],
    );
}

#[test]
fn lost_events_reset_running_calls() {
    let metrics = Metrics::default();
    metrics.observe(&started(&op(1, 0), "x:echo@1.0.0"));
    metrics.observe(&waits(&op(2, 0), "x:echo@1.0.0", "slow"));
    metrics.lost(7);
    metrics.observe(&finished(&op(1, 0), "x:echo@1.0.0", None, 1));
    let counted = counted(&metrics);
    assert_eq!(counted.get("toolwright.events.lost{}").map(String::as_str), Some("7"));
    let under_way = |name: &str| counted.iter().find(|(series, _)| series.starts_with(name)).map(|(_, value)| &**value);
    assert!(matches!(under_way("toolwright.tool.running"), None | Some("0")), "{counted:#?}");
    assert!(matches!(under_way("toolwright.queue.waiting"), None | Some("0")), "{counted:#?}");
}

#[test]
fn names_are_made_distinct_within_a_bound() {
    let metrics = Metrics::default();
    for n in 1..=5000 {
        let (op, id) = (op(n, 0), format!("server-{n}:tool-{n}@1.0.0"));
        metrics.observe(&waits(&op, &id, &format!("queue-{n}")));
        metrics.observe(&finished(&op, &id, None, 10));
        metrics.observe(&answered(&op, &format!("provider-{n}/model-{n}"), true, 10));
    }
    for family in metrics.families() {
        let series = family.series().count();
        assert!(series <= 500, "{} has {series} series", family.instrument().name);
    }
    let counted = counted(&metrics);
    assert_eq!(counted.get("toolwright.tool.calls{other,other,ok}").map(String::as_str), Some("4800"));
    let all: u64 = counted
        .iter()
        .filter(|(series, _)| series.starts_with("toolwright.tool.calls{"))
        .map(|(_, value)| value.parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(all, 5000);
}
