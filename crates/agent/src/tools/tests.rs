//! Tests: the definitions register, and reports take the requested form.

use serde_json::{Value, json};

use super::*;
use crate::report::Status;

fn spec(format: &str) -> Option<ReportSpec> {
    match format {
        "" => None,
        "schema" => {
            let schema = json!({
                "type": "object",
                "properties": {"n": {"type": "integer"}, "s": {"$ref": "#/$defs/s"}},
                "required": ["n"],
                "$defs": {"s": {"type": "string"}},
            });
            Some(ReportSpec::by_schema(schema).expect("schema"))
        }
        "text schema" => Some(ReportSpec::by_schema(json!({"type": "string"})).expect("schema")),
        other => serde_json::from_value(json!({"format": other})).expect("format"),
    }
}

#[test]
fn the_definitions_register_whatever_is_asked_for() {
    for format in ["", "text", "markdown", "json", "tty", "slack", "schema"] {
        let provider = of_run(spec(format).as_ref());
        let ids: Vec<_> = provider.tools().iter().map(|tool| tool.definition().id.as_str()).collect();
        assert_eq!(ids, [BATCH_ID, TASK_STATUS_ID, FINAL_REPORT_ID]);
    }
    assert!(batch_provider().is_ok());
    let shown = of_run(spec("schema").as_ref()).tools()[2].definition().shown_schema();
    assert_eq!(shown["properties"]["content_json"]["properties"]["s"]["$ref"], "#/$defs/s");
    assert_eq!(shown["$defs"]["s"]["type"], "string");
    let inward = ReportSpec::by_schema(json!({"properties": {"a": {"$ref": "#"}}})).expect("schema");
    let shown = of_run(Some(&inward)).tools()[2].definition().shown_schema();
    assert!(shown["properties"]["content_json"]["description"].is_string(), "{shown}");
    assert!(ReportSpec::by_schema(json!({"type": "nonsense"})).is_err());
}

/// `expect`: the content and the number of warnings, or a part of the refusal.
fn check(asked: &str, arguments: Value, expect: Result<(Value, usize), &str>) {
    let spec = spec(asked);
    match (FinalReport::accept(&arguments, spec.as_ref()), expect) {
        (Ok(report), Ok((content, warnings))) => {
            let is_json = report.format == Format::Json;
            assert_eq!((report.content.is_none(), report.content_json.is_some()), (is_json, is_json), "{arguments}");
            assert_eq!(report.content_json.unwrap_or_else(|| json!(report.content)), content, "{arguments}");
            assert_eq!(report.warnings.len(), warnings, "{arguments}: {:?}", report.warnings);
        }
        (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
        (found, expect) => panic!("{asked} {arguments}: {found:?}, not {expect:?}"),
    }
}

#[test]
fn a_report_is_brought_into_the_form_that_was_asked_for() {
    check("", json!({"content": "x"}), Ok((json!("x"), 0)));
    check("", json!({"format": "json", "content_json": [1]}), Ok((json!([1]), 0)));
    check("", json!({"format": "poem", "content": "x"}), Ok((json!("x"), 1)));
    check("markdown", json!({"format": "markdown", "content": "x"}), Ok((json!("x"), 0)));
    check("markdown", json!({"format": "json", "content_json": {"a": 1}}), Ok((json!("{\n  \"a\": 1\n}"), 2)));
    check("slack", json!({"format": "Slack", "content": 7}), Ok((json!("7"), 1)));
    check("tty", json!({"content": " "}), Err("needs `content`"));
    check("json", json!({"format": "json", "content_json": {"a": 1}}), Ok((json!({"a": 1}), 0)));
    check("json", json!({"format": "text", "content": "{\"a\": 1}"}), Ok((json!({"a": 1}), 3)));
    check("json", json!({"content": "just words"}), Err("not whole JSON"));
    check("json", json!({"content_json": "{\"a\": [1"}), Err("not whole JSON"));
    check("json", json!({"content_json": null}), Err("needs `content_json`"));
    check("schema", json!({"content_json": {"n": 1}}), Ok((json!({"n": 1}), 0)));
    check("schema", json!({"content_json": {"n": "1"}}), Ok((json!({"n": 1}), 0)));
    check("schema", json!({"content_json": {"n": "one"}}), Err("/n"));
    check("schema", json!({"content_json": {}}), Err("n"));
    check("text schema", json!({"content_json": "{1"}), Ok((json!("{1"), 0)));
}

#[test]
fn a_report_has_its_status() {
    for (written, status) in [("success", Status::Success), ("failure", Status::Failure), ("partial", Status::Partial)]
    {
        let report = FinalReport::accept(&json!({"status": written, "content": "x"}), None).expect("report");
        assert_eq!((report.status, json!(report.status)), (status, json!(written)));
    }
}
