//! The agent's own tools, through the one executor.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_agent::{AgentTools, Dispatch, Format, Limits, ReportConfig, RunConfig, RunOptions, RunState, Status};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::model::Message;
use toolwright_core::store::LedgerStore as _;
use toolwright_core::{Effects, Event, Tool};
use toolwright_testkit::FakeApprover;

use crate::fixture::{Counter, Fixture, Reply, asking, begin, begin_with, options, run_config};

fn items(items: &[(&str, &str)]) -> Value {
    let item = |(id, tool): &(&str, &str)| json!({"id": id, "tool": tool, "parameters": {"n": 1}});
    json!({"items": items.iter().map(item).collect::<Vec<_>>()})
}

/// The text of the only result of the call `id`.
fn result(state: &RunState, id: &str) -> String {
    let results = state.messages().iter().filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    let found: Vec<_> = results.flatten().filter(|result| result.call_id == id).collect();
    assert_eq!(found.len(), 1, "{id}");
    toolwright_core::content::joined_text(&found[0].content)
}

/// `(id, ok)` of the items, and the whole.
fn outcomes(text: &str) -> (Vec<(String, bool)>, Value) {
    let parsed: Value = serde_json::from_str(text).unwrap();
    let results = |item: &Value| (item["id"].as_str().unwrap().to_owned(), item["ok"].as_bool().unwrap());
    (parsed.as_array().unwrap().iter().map(results).collect(), parsed)
}

#[tokio::test]
async fn batch_items_are_calls_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let (read, write) = (Counter::new("t:read@1.0.0", Effects::READ), Counter::new("t:write@1.0.0", Effects::WRITE));
    let batch = json!({"items": [
        {"id": "a", "tool": "t__read", "parameters": {"n": 1}},
        {"id": "a", "tool": "t__write", "parameters": {}},
        {"tool": "t__write", "parameters": {}},
        {"id": "j", "tool": "t__read", "parameters": "{\"n\": 2}"},
    ]});
    let script = vec![Reply::Calls(vec![("b", "agent__batch", batch)]), Reply::Text("done")];
    let fixture = Fixture::new(dir.path(), script, vec![read.clone(), write.clone()]).await;
    let approver = Arc::new(FakeApprover::by_call(&[
        ("b.2", ApprovalDecision::Approve),
        ("b.3", ApprovalDecision::Deny { reason: "not this one".into() }),
    ]));
    let mut state = begin(Limits::default());
    let report = fixture.driver.run(&mut state, &asking(approver)).await.unwrap();
    assert_eq!((report.status, report.calls.len(), report.calls[0].ok), (Status::Success, 1, true));
    assert_eq!((read.count(), write.count()), (2, 1));
    let (results, all) = outcomes(&result(&state, "b"));
    let expect = [("a", true), ("a_2", true), ("3", false), ("j", true)];
    assert_eq!(results, expect.map(|(id, ok)| (id.to_owned(), ok)));
    assert_eq!(all[0], json!({"id": "a", "tool": "t__read", "ok": true, "output": "counted"}));
    assert!(all[2]["error"].as_str().unwrap().contains("not this one"), "{}", all[2]);

    let events = fixture.log.seen().clone();
    let ops = events.iter().filter_map(|event| match event {
        Event::ToolFinished { op, call, .. } => Some((call.to_string(), op.clone())),
        _ => None,
    });
    let (batches, inner): (Vec<_>, Vec<_>) = ops.partition(|(call, _)| call == "b");
    assert_eq!((batches.len(), inner.len()), (1, 4));
    assert!(inner.iter().all(|(_, op)| op.lineage.parent == Some(batches[0].1.id)), "they are part of the batch");
    fixture.executor.ledger().flush().await.unwrap();
    assert_eq!(fixture.store.totals().await.unwrap().tool_calls, 5);
}

#[tokio::test]
async fn an_invalid_item_refuses_its_batch() {
    let dir = tempfile::tempdir().unwrap();
    let write = Counter::new("t:write@1.0.0", Effects::WRITE);
    let batch = json!({"items": [
        {"id": "a", "tool": "t__write", "parameters": {"n": 1}},
        {"id": "b", "tool": "t__write", "parameters": {"n": "many"}},
        {"id": "c", "tool": "t__nope", "parameters": {}},
        {"id": "d", "tool": "agent__batch", "parameters": items(&[("x", "t__write")])},
        {"id": "e", "tool": "agent__final_report", "parameters": {"content": "no"}},
        "not an item",
        {"id": "f", "tool": "t__shut", "parameters": {}},
    ]});
    let script = vec![Reply::Calls(vec![("b", "agent__batch", batch)]), Reply::Text("done")];
    let shut = Counter::new("t:shut@1.0.0", Effects::READ);
    let fixture = Fixture::new(dir.path(), script, vec![write.clone(), shut]).await;
    let mut state = begin(Limits::default());
    let denies = json!({"profile": "trusted", "rules": [{"effect": "deny", "tool": "t:shut"}]});
    let options = RunOptions { policy: Arc::new(serde_json::from_value(denies).unwrap()), ..options() };
    let report = fixture.driver.run(&mut state, &options).await.unwrap();
    assert_eq!((report.calls[0].ok, write.count()), (false, 0));
    let text = result(&state, "b");
    for fault in [
        "/items/1/parameters/n (schema)",
        "/items/2/tool (unknown_tool): ",
        "/items/3 (parse): a batch cannot hold another batch",
        "/items/4 (parse): agent__final_report cannot be part of a batch",
        "/items/5 (parse): the item is not {id, tool, parameters}",
        "/items/6/tool (policy): t__shut is denied",
    ] {
        assert!(text.contains(fault), "{fault}: {text}");
    }
}

#[tokio::test]
async fn a_large_batch_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    let long: &'static str = Box::leak("a \"line\" of text\n".repeat(300).into_boxed_str());
    let (small, large) =
        (Counter::new("t:small@1.0.0", Effects::READ), Counter::saying("t:large@1.0.0", Effects::READ, long));
    let mut names = vec![("", "t__small"); 15];
    names.extend([("", "t__large"); 5]);
    let script = vec![Reply::Calls(vec![("b", "agent__batch", items(&names))]), Reply::Text("done")];
    let fixture = Fixture::new(dir.path(), script, vec![small.clone(), large.clone()]).await;
    let mut state = begin(Limits::default());
    fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!((small.count(), large.count()), (15, 5));
    let text = result(&state, "b");
    assert!(text.len() <= toolwright_core::output::DEFAULT_MAX_BYTES, "{}", text.len());
    let (results, all) = outcomes(&text);
    assert!(results.len() == 20 && results.iter().all(|(_, ok)| *ok));
    assert_eq!(all[3]["output"], "counted");
    assert!(all[19]["output"].as_str().unwrap().contains("toolwright cut"), "{}", all[19]);
}

#[tokio::test]
async fn the_complete_items_of_a_cut_batch_run() {
    let dir = tempfile::tempdir().unwrap();
    let read = Counter::new("t:read@1.0.0", Effects::READ);
    let fixture = Fixture::new(dir.path(), Vec::new(), vec![read.clone()]).await;
    let whole = items(&[("a", "t__read"), ("b", "t__read"), ("c", "t__read")]).to_string();
    // At each place where it may be cut: as many items run as are whole.
    for end in 1..=whole.len() {
        let before = read.count();
        let mut state = begin(Limits::default());
        let call = toolwright_core::model::RawToolCall {
            id: "b".into(),
            name: "agent__batch".into(),
            arguments: whole[..end].to_owned(),
        };
        let response = toolwright_core::model::ModelResponse { calls: vec![call], ..Default::default() };
        state.on_model(response, &|_| None).unwrap();
        fixture.driver.run(&mut state, &options()).await.unwrap();
        let complete = whole[..end].matches("{\"n\":1}}").count();
        assert_eq!(read.count() - before, complete, "{}", &whole[..end]);
        let half = whole[..end].rsplit("{\"n\":1}}").next().is_some_and(|rest| rest.contains('{'));
        assert_eq!(result(&state, "b").contains("did not run"), half && complete > 0, "{}", &whole[..end]);
    }
}

#[tokio::test]
async fn the_items_may_come_as_complete_text() {
    for (text, ran) in [
        (r#"[{"id": "a", "tool": "t__read", "parameters": {}}]"#, 1),
        (r#"[{"id": "a", "tool": "t__read", "parameters": {}"#, 0),
        ("[]", 0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let read = Counter::new("t:read@1.0.0", Effects::READ);
        let script = vec![Reply::Calls(vec![("b", "agent__batch", json!({ "items": text }))]), Reply::Text("done")];
        let fixture = Fixture::new(dir.path(), script, vec![read.clone()]).await;
        let mut state = begin(Limits::default());
        fixture.driver.run(&mut state, &options()).await.unwrap();
        assert_eq!(read.count(), ran, "{text}");
    }
}

#[tokio::test]
async fn a_batch_starts_when_its_turn_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let write = Counter::new("t:write@1.0.0", Effects::WRITE);
    let script = vec![Reply::Calls(vec![("b", "agent__batch", items(&[("a", "t__write")]))]), Reply::Text("done")];
    let fixture = Fixture::new(dir.path(), script, vec![write.clone()]).await;
    let mut state = begin_with(RunConfig { dispatch: Dispatch::Streaming, ..run_config(Limits::default()) });
    fixture
        .driver
        .run(&mut state, &asking(Arc::new(FakeApprover::by_call(&[("b.1", ApprovalDecision::Approve)]))))
        .await
        .unwrap();
    assert_eq!(write.count(), 1, "whoever is asked was there");
}

fn shown(fixture: &Fixture) -> Vec<Vec<String>> {
    let requests = fixture.model.shown.lock().unwrap();
    requests.iter().map(|tools| tools.iter().map(|tool| tool.name.clone()).collect()).collect()
}

#[tokio::test]
async fn a_run_ends_with_the_requested_report() {
    let dir = tempfile::tempdir().unwrap();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let report = |content: Value| {
        ("r", "agent__final_report", json!({"status": "success", "format": "json", "content_json": content}))
    };
    let script = vec![
        Reply::Calls(vec![report(json!({"n": "many"}))]),
        Reply::Calls(vec![("a", "t__a", json!({})), report(json!({"n": 3}))]),
    ];
    let tool = Counter::new("t:a@1.0.0", Effects::READ);
    let fixture = Fixture::new(dir.path(), script, vec![tool.clone() as Arc<dyn Tool>]).await;
    let agent_tools = AgentTools { report: Some(ReportConfig::by_schema(schema).unwrap()), ..AgentTools::default() };
    let mut state = begin_with(RunConfig { agent_tools, ..run_config(Limits::default()) });
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!((report.status, report.turns, tool.count()), (Status::Success, 2, 1));
    let value = report.to_json();
    assert_eq!((&value["format"], &value["content_json"]), (&json!("json"), &json!({"n": 3})));
    assert_eq!(shown(&fixture)[0], ["t__a", "agent__final_report"]);
    assert_eq!(report.calls[0].error.as_ref().map(|error| error.message.contains("/n")), Some(true));
}

#[tokio::test]
async fn a_completed_task_is_asked_for_its_report() {
    let dir = tempfile::tempdir().unwrap();
    let status = json!({"status": "completed", "ready_for_final_report": true, "need_to_run_more_tools": false});
    let script = vec![Reply::Calls(vec![("s", "agent__task_status", status)]), Reply::Text("# Done")];
    let fixture = Fixture::new(dir.path(), script, vec![Counter::new("t:a@1.0.0", Effects::READ)]).await;
    let report = Some(ReportConfig::in_format(Format::Markdown));
    let agent_tools = AgentTools { report, task_status: true, batch: true, hands_back_to: None };
    let mut state = begin_with(RunConfig { agent_tools, ..run_config(Limits::default()) });
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!(shown(&fixture)[0], ["t__a", "agent__batch", "agent__task_status", "agent__final_report"]);
    assert_eq!(shown(&fixture)[1], ["agent__final_report"]);
    let adopted = report.final_report.clone().unwrap();
    assert_eq!((report.answer.as_str(), adopted.format), ("# Done", Format::Markdown));
}
