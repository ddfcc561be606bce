//! What is counted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use toolwright_core::error::ErrorKind;
use toolwright_core::event::Event;
use toolwright_telemetry::{Metrics, Point};

use crate::support::{answered, decided, finished, op, started, waits};

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

fn check(events: &[(u64, Event)], expect: &[(&str, &str)]) {
    let (metrics, start) = (Metrics::default(), Instant::now());
    for (ms, event) in events {
        metrics.observe(event, start + Duration::from_millis(*ms));
    }
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
        (0, started(&op(1, 0), a)),
        (0, started(&op(2, 0), a)),
        (0, started(&op(3, 0), b)),
        (9, finished(&op(1, 0), a, None, 500)),
        (9, finished(&op(2, 0), a, None, 250)),
        (9, finished(&op(3, 0), b, Some(ErrorKind::Timeout), 2000)),
        (9, finished(&op(4, 0), "", Some(ErrorKind::UnknownTool), 0)),
        (9, decided(&op(5, 0), b, "deny")),
    ];
    check(
        &events,
        &[
            ("toolwright.tool.calls{x__echo,x,ok}", "2"),
            ("toolwright.tool.calls{y__fetch,y,timeout}", "1"),
            ("toolwright.tool.calls{unknown,unknown_tool}", "1"),
            ("toolwright.tool.duration{x__echo,x}", "2 of 0.750"),
            ("gen_ai.execute_tool.duration{execute_tool,x__echo,function}", "2 of 0.750"),
            ("gen_ai.execute_tool.duration{execute_tool,y__fetch,function,timeout}", "1 of 2.000"),
            ("toolwright.tool.running{}", "0"),
            ("toolwright.approvals{deny}", "1"),
        ],
    );
}

#[test]
fn what_runs_and_what_waits() {
    let id = "x:echo@1.0.0";
    let events = [
        (0, waits(&op(1, 0), id, "slow")),
        (0, waits(&op(2, 0), id, "slow")),
        (0, waits(&op(3, 0), id, "slow")),
        (250, started(&op(1, 0), id)),
        (500, finished(&op(2, 0), id, Some(ErrorKind::LimitExceeded), 500)),
    ];
    check(
        &events,
        &[
            ("toolwright.queue.waiting{slow}", "1"),
            ("toolwright.queue.wait{slow}", "2 of 0.750"),
            ("toolwright.tool.running{}", "1"),
        ],
    );
}

#[test]
fn requests_to_models_and_their_tokens() {
    let events =
        [(0, answered(&op(1, 0), "openai/gpt-6", true, 1500)), (0, answered(&op(2, 0), "openai/gpt-6", false, 100))];
    check(
        &events,
        &[
            ("gen_ai.client.operation.duration{chat,openai,gpt-6}", "1 of 1.500"),
            ("gen_ai.client.operation.duration{chat,openai,gpt-6,_OTHER}", "1 of 0.100"),
            ("gen_ai.client.token.usage{chat,openai,gpt-6,input}", "1 of 1000.000"),
            ("gen_ai.client.token.usage{chat,openai,gpt-6,output}", "1 of 50.000"),
        ],
    );
}

#[test]
fn lost_events_are_counted_and_leave_nothing_running_for_ever() {
    let (metrics, now) = (Metrics::default(), Instant::now());
    metrics.observe(&started(&op(1, 0), "x:echo@1.0.0"), now);
    metrics.observe(&waits(&op(2, 0), "x:echo@1.0.0", "slow"), now);
    metrics.lost(7);
    metrics.observe(&finished(&op(1, 0), "x:echo@1.0.0", None, 1), now);
    let counted = counted(&metrics);
    assert_eq!(counted.get("toolwright.events.lost{}").map(String::as_str), Some("7"));
    let under_way = |name: &str| counted.iter().find(|(series, _)| series.starts_with(name)).map(|(_, value)| &**value);
    assert!(matches!(under_way("toolwright.tool.running"), None | Some("0")), "{counted:#?}");
    assert!(matches!(under_way("toolwright.queue.waiting"), None | Some("0")), "{counted:#?}");
}

#[test]
fn names_are_told_apart_up_to_a_bound() {
    let (metrics, now) = (Metrics::default(), Instant::now());
    for n in 1..=5000 {
        let (op, id) = (op(n, 0), format!("server-{n}:tool-{n}@1.0.0"));
        metrics.observe(&waits(&op, &id, &format!("queue-{n}")), now);
        metrics.observe(&finished(&op, &id, None, 10), now);
        metrics.observe(&answered(&op, &format!("provider-{n}/model-{n}"), true, 10), now);
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
