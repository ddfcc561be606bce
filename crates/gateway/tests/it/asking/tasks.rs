//! Calls that go on as tasks: on request up to 2025-11-25, and after a moment with the extension of 2026-07-28.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{ProviderCall, ProviderKind, RegisteredTool, foreign_ids};
use toolwright_core::client::ClientRequest;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_testkit::FakeProvider;

use crate::support::{Events, Fixture, Http, body, call, rpc, soon};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
const RELATED: &str = "io.modelcontextprotocol/related-task";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// A source whose tools take their time.
fn slow() -> FakeProvider {
    let names = ["work", "short"];
    let tool = |(id, raw): (_, &&str)| {
        let mut definition = ToolDefinition::new(id, (*raw).to_owned(), Some(json!({"type": "object"})));
        definition.effects = Effects::READ;
        if *raw == "work" {
            definition.meta.insert("mcp".into(), json!({"execution": {"taskSupport": "required"}}));
        }
        RegisteredTool::foreign(definition, *raw)
    };
    let tools = foreign_ids("slow", &names).expect("ids").into_iter().zip(&names).map(tool).collect();
    FakeProvider::new("slow", ProviderKind::Mcp, tools).with_future(|call, context| Box::pin(run_slowly(call, context)))
}

/// Sleeps for `ms`, then asks what `ask` says, then fails if `fail`.
async fn run_slowly(call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let arguments = call.arguments;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0))) => {}
        cause = context.cancel.cancelled() => return Err(ToolError::canceled(cause)),
    }
    let questions = arguments["ask"].as_array().into_iter().flatten();
    let questions: Vec<_> = questions
        .map(|params| ClientRequest { key: None, method: "elicitation/create".into(), params: params.clone() })
        .collect();
    if !questions.is_empty() {
        let answers = context.client.ask(questions).await?;
        let answers: Vec<Value> = answers.into_iter().map(|answer| answer.expect("an answer")).collect();
        return Ok(ToolOutput::text(Value::Array(answers).to_string()));
    }
    Ok(if arguments["fail"] == true { ToolOutput::failure("no luck") } else { ToolOutput::text("done") })
}

async fn fixture() -> (Fixture, Http) {
    let fixture = Fixture::new().await;
    fixture.add(Arc::new(slow())).await;
    let http = fixture.http().await;
    (fixture, http)
}

/// A session whose client has forms.
async fn session(http: &Http) -> String {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}});
    let response = http.post("/mcp", &rpc(0, "initialize", params)).send().await.expect("response");
    response.headers()["mcp-session-id"].to_str().expect("text").to_owned()
}

async fn legacy(http: &Http, session: &str, method: &str, params: Value) -> Value {
    body(http.in_session(session, "/mcp", &rpc(1, method, params)), 200).await
}

fn work(arguments: Value, task: Value) -> Value {
    json!({"name": "slow__work", "arguments": arguments, "task": task})
}

async fn begin(http: &Http, session: &str, arguments: Value) -> String {
    let created = legacy(http, session, "tools/call", work(arguments, json!({"ttl": 60000}))).await;
    let task = &created["result"]["task"];
    assert_eq!((&task["status"], &task["ttl"]), (&json!("working"), &json!(60000)), "{created}");
    task["taskId"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn a_session_may_request_a_task() {
    let (_fixture, http) = fixture().await;
    let session = session(&http).await;
    let id = begin(&http, &session, json!({"ms": 300})).await;
    let named = json!({"taskId": id});
    let got = legacy(&http, &session, "tasks/get", named.clone()).await;
    assert_eq!((&got["result"]["taskId"], &got["result"]["status"]), (&json!(id), &json!("working")));
    // Waits until it has ended; asked again, it is there again.
    for _ in 0..2 {
        let result = legacy(&http, &session, "tasks/result", named.clone()).await;
        assert_eq!(result["result"]["content"][0]["text"], "done", "{result}");
        assert_eq!(result["result"]["_meta"][RELATED], named);
    }
    assert_eq!(legacy(&http, &session, "tasks/get", named.clone()).await["result"]["status"], "completed");
    let failing = begin(&http, &session, json!({"fail": true})).await;
    let result = legacy(&http, &session, "tasks/result", json!({"taskId": failing})).await;
    assert_eq!(result["result"]["isError"], true);
    let listed = legacy(&http, &session, "tasks/list", json!({})).await;
    let all: Vec<_> = listed["result"]["tasks"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|task| (&task["taskId"], &task["status"]))
        .collect();
    assert_eq!(all, [(&json!(id), &json!("completed")), (&json!(failing), &json!("failed"))]);
    let ended = legacy(&http, &session, "tasks/cancel", named.clone()).await;
    assert_eq!(ended["error"]["code"], -32602, "{ended}");
    // It is this session's.
    let other = self::session(&http).await;
    assert_eq!(legacy(&http, &other, "tasks/get", named).await["error"]["code"], -32602);
    assert_eq!(legacy(&http, &other, "tasks/list", json!({})).await["result"]["tasks"], json!([]));
}

#[tokio::test]
async fn a_task_ends_with_its_session() {
    let (fixture, http) = fixture().await;
    let session = session(&http).await;
    let id = begin(&http, &session, json!({"ms": 60000})).await;
    let named = json!({"taskId": id});
    let (waiting, cancelled) = tokio::join!(legacy(&http, &session, "tasks/result", named.clone()), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        legacy(&http, &session, "tasks/cancel", named.clone()).await
    });
    assert_eq!(cancelled["result"]["status"], "cancelled", "{cancelled}");
    assert_eq!(waiting["error"]["code"], -32602, "{waiting}");
    assert_eq!(legacy(&http, &session, "tasks/get", named).await["result"]["status"], "cancelled");
    // With the extension a call is a task without being asked for; over a pipe it ends with its session.
    let mut client = crate::protocol::stdio::Client::of(&fixture);
    let meta =
        json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", CAPABILITIES: {"extensions": {EXTENSION: {}}}});
    let created =
        client.ask(&rpc(1, "tools/call", json!({"name": "test__wait", "arguments": {}, "_meta": meta}))).await;
    assert_eq!(created["result"]["resultType"], "task", "{created}");
    client.end().await;
    soon(&fixture.watch.cancelled).await;
    assert_eq!(*fixture.watch.cause.lock().expect("lock"), Some(CancelCause::User));
}

#[tokio::test]
async fn a_tasks_questions_use_the_result_stream() {
    let (_fixture, http) = fixture().await;
    let session = session(&http).await;
    let id = begin(&http, &session, json!({"ask": [{"message": "m"}]})).await;
    let named = json!({"taskId": id});
    let mut got = json!(null);
    for _ in 0..100 {
        got = legacy(&http, &session, "tasks/get", named.clone()).await["result"]["status"].take();
        if got == "input_required" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(got, "input_required");
    let mut events = Events::of(http.in_session(&session, "/mcp", &rpc(2, "tasks/result", named.clone()))).await;
    let asked = events.next().await.expect("a question");
    assert_eq!((&asked["method"], &asked["params"]["_meta"][RELATED]), (&json!("elicitation/create"), &named));
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}});
    assert_eq!(http.in_session(&session, "/mcp", &answer).send().await.expect("response").status(), 202);
    let result = events.next().await.expect("the result");
    assert_eq!(result["result"]["content"][0]["text"], r#"[{"action":"decline"}]"#, "{result}");
}

#[tokio::test]
async fn only_tools_with_task_support_become_tasks() {
    let (_fixture, http) = fixture().await;
    let session = session(&http).await;
    let listed = legacy(&http, &session, "tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().expect("a list");
    let support = |name: &str| tools.iter().find(|tool| tool["name"] == name).expect("listed")["execution"].clone();
    // A task that its server wants is made here for a client that makes none.
    assert_eq!((support("slow__work"), support("slow__short")), (json!({"taskSupport": "optional"}), json!(null)));
    let plain = body(http.in_session(&session, "/mcp", &call(2, "slow__work", json!({}))), 200).await;
    assert_eq!(plain["result"]["content"][0]["text"], "done");
    for (name, task, code) in [("slow__short", json!({}), -32601), ("slow__work", json!({"ttl": "x"}), -32602)] {
        let refused = legacy(&http, &session, "tools/call", json!({"name": name, "arguments": {}, "task": task})).await;
        assert_eq!(refused["error"]["code"], code, "{refused}");
    }
    // A session has so many.
    for _ in 0..64 {
        begin(&http, &session, json!({})).await;
    }
    let many = http.in_session(&session, "/mcp", &rpc(3, "tools/call", work(json!({}), json!({}))));
    assert_eq!(body(many, 503).await["error"]["code"], -32000);
}

#[tokio::test]
async fn a_task_is_kept_for_its_time_only() {
    let (_fixture, http) = fixture().await;
    let session = session(&http).await;
    let created = legacy(&http, &session, "tools/call", work(json!({"ms": 60000}), json!({"ttl": 1}))).await;
    assert_eq!(created["result"]["task"]["ttl"], 1000, "a client must be able to ask for it");
    let named = json!({"taskId": created["result"]["task"]["taskId"]});
    let waited = legacy(&http, &session, "tasks/result", named.clone()).await;
    assert_eq!(waited["error"]["code"], -32602, "{waited}");
    assert_eq!(legacy(&http, &session, "tasks/get", named).await["error"]["code"], -32602);
}

async fn modern(http: &Http, method: &str, mut params: Value, status: u16) -> Value {
    params["_meta"] = json!({CAPABILITIES: {"elicitation": {}, "extensions": {EXTENSION: {}}}});
    body(http.modern("/mcp", json!(1), method, params), status).await
}

/// Looks until the task has this status.
async fn until(http: &Http, named: &Value, status: &str) -> Value {
    for _ in 0..400 {
        let got = modern(http, "tasks/get", named.clone(), 200).await;
        if got["result"]["status"] == status {
            return got["result"].clone();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not {status}");
}

#[tokio::test]
async fn a_modern_slow_call_becomes_a_task() {
    let (_fixture, http) = fixture().await;
    let call =
        |arguments: Value| modern(&http, "tools/call", json!({"name": "slow__short", "arguments": arguments}), 200);
    let at_once = call(json!({})).await;
    assert_eq!((&at_once["result"]["resultType"], &at_once["result"]["taskId"]), (&json!("complete"), &json!(null)));
    let created = call(json!({"ms": 800, "fail": true})).await["result"].clone();
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")), "{created}");
    assert_eq!((&created["ttlMs"], created.get("ttl"), created.get("task")), (&json!(3_600_000), None, None));
    let named = json!({"taskId": created["taskId"]});
    let ended = until(&http, &named, "completed").await;
    assert_eq!((&ended["resultType"], &ended["result"]["isError"]), (&json!("complete"), &json!(true)));
    assert!(ended["result"]["_meta"].get(RELATED).is_none());
    // An end is an end, and the acknowledgement says nothing of it.
    for _ in 0..2 {
        let acknowledged = modern(&http, "tasks/cancel", named.clone(), 200).await["result"].clone();
        assert_eq!((&acknowledged["resultType"], acknowledged.get("status")), (&json!("complete"), None));
    }
    until(&http, &named, "completed").await;
    let running = call(json!({"ms": 60000})).await["result"].clone();
    let named = json!({"taskId": running["taskId"]});
    modern(&http, "tasks/cancel", named.clone(), 200).await;
    until(&http, &named, "cancelled").await;
    let unknown = json!({"taskId": "nobody"});
    for (method, status, code) in
        [("tasks/get", 400, -32602), ("tasks/result", 404, -32601), ("tasks/list", 404, -32601)]
    {
        assert_eq!(modern(&http, method, unknown.clone(), status).await["error"]["code"], code, "{method}");
    }
    // Who does not announce it has no tasks, and waits for the result.
    let refused = body(http.modern("/mcp", json!(1), "tasks/get", named.clone()), 400).await;
    let needed = json!({"requiredCapabilities": {"extensions": {EXTENSION: {}}}});
    assert_eq!((&refused["error"]["code"], &refused["error"]["data"]), (&json!(-32021), &needed));
    let params = json!({"name": "slow__short", "arguments": {"ms": 800}});
    let waited = body(http.modern("/mcp", json!(1), "tools/call", params), 200).await;
    assert_eq!(waited["result"]["resultType"], "complete");
}

#[tokio::test]
async fn a_modern_task_asks_by_its_status() {
    let (_fixture, http) = fixture().await;
    let call = |ms: u64| {
        let arguments = json!({"ms": ms, "ask": [{"message": "a"}, {"message": "b"}]});
        modern(&http, "tools/call", json!({"name": "slow__short", "arguments": arguments}), 200)
    };
    // Before it is one, it asks as any call.
    let asked = call(0).await["result"].clone();
    assert_eq!((&asked["resultType"], asked.get("taskId")), (&json!("input_required"), None), "{asked}");
    let named = json!({"taskId": call(700).await["result"]["taskId"]});
    let open = until(&http, &named, "input_required").await;
    assert_eq!(
        open["inputRequests"]["input-2"],
        json!({"method": "elicitation/create", "params": {"message": "slow asks:\nb"}})
    );
    let update = async |key: &str, n: u64| {
        let answers = json!({key: {"action": "accept", "content": {"n": n}}});
        modern(&http, "tasks/update", json!({"taskId": named["taskId"], "inputResponses": answers}), 200).await
    };
    assert_eq!(update("input-2", 2).await["result"]["resultType"], "complete");
    let rest = until(&http, &named, "input_required").await["inputRequests"].clone();
    assert_eq!(rest.as_object().map(|rest| rest.keys().cloned().collect::<Vec<_>>()), Some(vec!["input-1".to_owned()]));
    update("input-1", 1).await;
    let ended = until(&http, &named, "completed").await;
    let expect = r#"[{"action":"accept","content":{"n":1}},{"action":"accept","content":{"n":2}}]"#;
    assert_eq!(ended["result"]["content"][0]["text"], expect);
}
