//! The text for Prometheus, read by a strict reader of its grammar.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use toolwright_core::error::ErrorKind;
use toolwright_telemetry::{Metrics, TextFormat};

use crate::support::{answered, decided, finished, op, started, waited, waits};

type Labels = BTreeMap<String, String>;
/// Buckets by bound, sum and count of a histogram.
type Series = (Vec<(f64, f64)>, Option<f64>, Option<f64>);

/// One family as it was read.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    unit: String,
    samples: Vec<(String, Labels, f64)>,
}

/// Reads a text of that format; whatever breaks a rule panics.
fn read(text: &str, format: TextFormat) -> BTreeMap<String, Family> {
    let open = format == TextFormat::OpenMetrics;
    let body = if open { text.strip_suffix("# EOF\n").expect("ends with EOF") } else { text };
    assert!(body.ends_with('\n') && !body.contains("# EOF"));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').expect("a keyword");
            let (name, value) = rest.split_once(' ').expect("a name");
            assert!(legal_name(name), "{line}");
            match word {
                "HELP" => {
                    assert!(families.insert(name.to_owned(), Family::default()).is_none(), "twice: {line}");
                    current = name.to_owned();
                }
                "TYPE" => {
                    assert_eq!(name, current, "HELP comes first: {line}");
                    families.get_mut(name).expect("there").kind = value.to_owned();
                }
                "UNIT" if open => {
                    assert!(name == current && name.ends_with(&format!("_{value}")), "{line}");
                    families.get_mut(name).expect("there").unit = value.to_owned();
                }
                _ => panic!("unknown keyword: {line}"),
            }
            continue;
        }
        let (name, labels, value) = sample(line);
        let family = families.get_mut(&current).expect("a family before its samples");
        let allowed: &[&str] = match (family.kind.as_str(), open) {
            ("counter", true) => &["_total"],
            ("counter" | "gauge", _) => &[""],
            ("histogram", _) => &["_bucket", "_sum", "_count"],
            ("info", true) => &["_info"],
            (kind, _) => panic!("unknown type {kind} of {current}"),
        };
        let suffix = name.strip_prefix(&current).unwrap_or_else(|| panic!("{line} stands among {current}"));
        assert!(allowed.contains(&suffix), "{line} in a {}", family.kind);
        assert!(family.kind != "counter" || name.ends_with("_total"), "{line}");
        assert!(family.kind == "gauge" || value >= 0.0, "{line}");
        assert!(seen.insert((name.clone(), labels.clone())), "twice: {line}");
        family.samples.push((suffix.to_owned(), labels, value));
    }
    for (name, family) in &families {
        if family.kind == "histogram" {
            histograms(name, family);
        }
    }
    families
}

fn legal_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

/// `name{key="value",…} number`
fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).expect("an end of the name");
    let (name, mut rest) = line.split_at(end);
    assert!(legal_name(name), "{line}");
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (key, after) = rest.split_once("=\"").expect("a label");
            assert!(legal_name(key) && !key.contains(':') && !key.starts_with("__"), "{line}");
            let (value, after) = quoted(after);
            assert!(labels.insert(key.to_owned(), value).is_none(), "twice {key}: {line}");
            match after.split_at(1) {
                (",", after) => rest = after,
                ("}", after) => break rest = after,
                _ => panic!("what follows a label: {line}"),
            }
        }
    }
    let number = rest.strip_prefix(' ').expect("one space before the number");
    (name.to_owned(), labels, number.parse().unwrap_or_else(|_| panic!("no number: {line}")))
}

/// The value up to its closing quote, and what follows.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match chars.next().expect("what is escaped").1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                c => panic!("`\\{c}` is no escape"),
            }),
            c => value.push(c),
        }
    }
    panic!("no closing quote: {text}")
}

/// Buckets ascend and hold all that lower ones do; the last has no bound and holds all; a sum and a count are there.
fn histograms(name: &str, family: &Family) {
    let mut all: BTreeMap<Labels, Series> = BTreeMap::new();
    for (suffix, labels, value) in &family.samples {
        let mut labels = labels.clone();
        let bound = labels.remove("le");
        let series = all.entry(labels).or_default();
        match suffix.as_str() {
            "_bucket" => {
                let bound = bound.expect("a bound");
                assert!(bound == "+Inf" || bound.contains('.'), "{name}: le={bound}");
                series.0.push((bound.parse().expect("a number"), *value));
            }
            "_sum" => series.1 = Some(*value),
            _ => series.2 = Some(*value),
        }
    }
    for (labels, (buckets, sum, count)) in all {
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} {labels:?}: {buckets:?}");
        assert_eq!(buckets.last().copied(), count.map(|count| (f64::INFINITY, count)), "{name} {labels:?}");
        assert!(sum.is_some(), "{name} {labels:?}");
    }
}

fn busy() -> Metrics {
    let metrics = Metrics::default();
    let id = "x:echo@1.0.0";
    for (n, latency) in [(1, 0), (2, 1), (3, 10), (4, 700), (5, 3_000_000)] {
        let op = op(n, 0);
        metrics.observe(&waits(&op, id, "slow"));
        metrics.observe(&waited(&op, id, "slow", n));
        metrics.observe(&started(&op, id));
        metrics.observe(&finished(&op, id, (n > 3).then_some(ErrorKind::Timeout), latency));
        metrics.observe(&answered(&op, "openai/gpt-6", n < 4, latency));
        metrics.observe(&decided(&op, id, "approve"));
    }
    metrics.lost(3);
    metrics.spans_lost("dropped", 2);
    metrics
}

fn target() -> Vec<(String, String)> {
    vec![("service.name".into(), "a \"quoted\"\nname\\".into()), ("1st".into(), "x".into())]
}

#[test]
fn both_formats_keep_to_their_grammar() {
    for format in [TextFormat::Prometheus, TextFormat::OpenMetrics] {
        let text = busy().text(format, &target());
        let families = read(&text, format);
        let total = if format == TextFormat::OpenMetrics { "" } else { "_total" };
        for (name, kind) in [
            (format!("toolwright_tool_calls{total}"), "counter"),
            ("toolwright_tool_duration_seconds".into(), "histogram"),
            ("toolwright_queue_wait_seconds".into(), "histogram"),
            (format!("toolwright_approvals{total}"), "counter"),
            (format!("toolwright_events_lost{total}"), "counter"),
            ("gen_ai_client_operation_duration_seconds".into(), "histogram"),
            ("gen_ai_client_token_usage".into(), "histogram"),
            ("gen_ai_execute_tool_duration_seconds".into(), "histogram"),
        ] {
            assert_eq!(families.get(&name).map(|family| family.kind.as_str()), Some(kind), "{name} in\n{text}");
        }
        let info = &families[if format == TextFormat::OpenMetrics { "target" } else { "target_info" }];
        assert_eq!(info.samples[0].1["service_name"], "a \"quoted\"\nname\\");
        assert_eq!(info.samples[0].1["_1st"], "x");
        let duration = &families["toolwright_tool_duration_seconds"];
        assert_eq!(duration.unit, if format == TextFormat::OpenMetrics { "seconds" } else { "" });
        let of =
            |bound: &str| duration.samples.iter().find(|(_, labels, _)| labels.get("le").is_some_and(|le| le == bound));
        assert_eq!(of("0.001").map(|(_, _, value)| *value), Some(2.0), "a value on a bound is below it");
        assert_eq!(of("300.0").map(|(_, _, value)| *value), Some(4.0));
    }
}

#[test]
fn empty_metrics_are_valid_text() {
    for format in [TextFormat::Prometheus, TextFormat::OpenMetrics] {
        read(&Metrics::default().text(format, &[]), format);
    }
}

#[test]
fn the_scraper_chooses_the_format() {
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for (accept, expect) in [
        ("", TextFormat::Prometheus),
        ("*/*", TextFormat::Prometheus),
        ("text/html, text/plain", TextFormat::Prometheus),
        (prometheus, TextFormat::OpenMetrics),
        ("Application/OpenMetrics-Text", TextFormat::OpenMetrics),
        ("application/openmetrics-text;q=0, text/plain", TextFormat::Prometheus),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", TextFormat::Prometheus),
        ("application/openmetrics-text;q=x;;,", TextFormat::OpenMetrics),
    ] {
        assert_eq!(TextFormat::accepted(accept), expect, "{accept}");
    }
    assert_eq!(TextFormat::Prometheus.content_type(), "text/plain; version=0.0.4; charset=utf-8");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn names_from_outside_stay_inside_their_quotes(model in "(?s).{0,200}", queue in "(?s).{0,40}", target in "(?s).{0,40}") {
        let metrics = Metrics::default();
        metrics.observe(&answered(&op(1, 0), &model, true, 5));
        metrics.observe(&waits(&op(2, 0), "x:echo@1.0.0", &queue));
        for format in [TextFormat::Prometheus, TextFormat::OpenMetrics] {
            let families = read(&metrics.text(format, &[("service.name".into(), target.clone())]), format);
            let given = families["toolwright_queue_waiting"].samples[0].1.get("queue").cloned().unwrap_or_default();
            prop_assert_eq!(&given, &queue);
        }
    }
}
