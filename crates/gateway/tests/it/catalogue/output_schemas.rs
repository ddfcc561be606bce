//! Tools with output schemas: results that replace, break or wrap what was promised.

use reqwest::Method;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolwright_core::approval::{AnswerSource, ApprovalDecision};
use toolwright_core::catalogue::{ProviderKind, RegisteredTool, foreign_ids};
use toolwright_core::definition::{Effects, Mode, OnOutputMismatch, ToolDefinition};
use toolwright_core::outcome::ToolOutput;
use toolwright_gateway::ViewConfig;
use toolwright_testkit::{FakeApprover, FakeProvider};

use crate::support::{Events, Fixture, Http, LEGACY, asks_always, body, call, rpc};

/// A tool: raw name, what its definition has, its result.
pub(crate) type ToolCase = (&'static str, fn(&mut ToolDefinition), Option<Value>);

/// A foreign source whose tools are these.
pub(crate) fn promises(promises: Vec<ToolCase>) -> Arc<FakeProvider> {
    let names: Vec<&str> = promises.iter().map(|(name, ..)| *name).collect();
    let tool = |(id, (raw, change, _)): (_, &ToolCase)| {
        let mut definition = ToolDefinition::new(id, "Promises.", Some(json!({"type": "object"})));
        definition.effects = Effects::READ;
        change(&mut definition);
        RegisteredTool::foreign(definition, *raw)
    };
    let tools = foreign_ids("p", &names).expect("ids").into_iter().zip(&promises).map(tool).collect();
    Arc::new(FakeProvider::new("p", ProviderKind::Mcp, tools).with_future(move |call, _| {
        let (.., structured) = promises.iter().find(|(raw, ..)| *raw == call.raw_name).expect("its own");
        let output = ToolOutput { structured: structured.clone(), ..ToolOutput::default() };
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(output)
        })
    }))
}

pub(crate) fn rows() -> Value {
    json!({"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]})
}

/// The answers of a client of each generation to this call at `/mcp`.
async fn of_both(fixture: &Fixture, name: &str) -> [Value; 2] {
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let legacy = body(http.in_session(&session, "/mcp", &call(1, name, json!({}))), 200).await;
    let params = json!({"name": name, "arguments": {}});
    let modern = body(http.modern("/mcp", json!(1), "tools/call", params), 200).await;
    [legacy, modern].map(|mut answer| answer["result"].take())
}

#[tokio::test]
async fn a_job_reaches_the_model_with_its_id() {
    let (fixture, _) = Fixture::with_jobs(|_, _| ()).await;
    let background = |definition: &mut ToolDefinition| {
        definition.mode = Mode::Background;
        definition.output_schema = Some(rows());
        definition.on_output_mismatch = OnOutputMismatch::Error;
    };
    let plain = |definition: &mut ToolDefinition| definition.mode = Mode::Background;
    let tools: Vec<ToolCase> = vec![("promised", background, Some(json!({"rows": []}))), ("plain", plain, None)];
    fixture.add(promises(tools)).await;
    for answer in of_both(&fixture, "p__promised").await {
        let text = answer["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.contains("background job promised_"), "{answer}");
        // The SDKs' clients check what is no error, and what is structured in one.
        assert_eq!((&answer["isError"], answer.get("structuredContent")), (&json!(true), None), "{answer}");
        assert!(answer["content"][1]["text"].as_str().is_some_and(|text| text.contains("Nothing has failed")));
        assert_eq!(answer["_meta"]["toolwright/job"]["state"], "pending", "{answer}");
    }
    for answer in of_both(&fixture, "p__plain").await {
        assert!(answer["structuredContent"]["job"].is_string() && answer.get("isError").is_none(), "{answer}");
    }
}

#[tokio::test]
async fn waiting_and_skipped_calls_are_reported() {
    for (answers, reported) in
        [(AnswerSource::Elsewhere, "needs a person's approval"), (AnswerSource::Here, "skipped by the user")]
    {
        let (fixture, _) = Fixture::with_jobs(|options, _| {
            options.policy = asks_always();
            options.approver = Arc::new(match answers {
                AnswerSource::Elsewhere => FakeApprover::unavailable(),
                AnswerSource::Here | AnswerSource::Nobody => FakeApprover::saying(ApprovalDecision::Skip).at(answers),
            });
        })
        .await;
        let promised = |definition: &mut ToolDefinition| definition.output_schema = Some(rows());
        fixture.add(promises(vec![("promised", promised, None)])).await;
        for answer in of_both(&fixture, "p__promised").await {
            let text = answer["content"][0]["text"].as_str().unwrap_or_default();
            assert!(text.contains(reported), "{answer}");
            assert_eq!((&answer["isError"], answer.get("structuredContent")), (&json!(true), None), "{answer}");
        }
    }
}

#[tokio::test]
async fn job_tools_are_named_only_where_callable() {
    let view = |name: &str, allowed: &[&str]| ViewConfig {
        name: name.into(),
        allowed: allowed.iter().map(ToString::to_string).collect(),
        denied: Vec::new(),
        expose: None,
        schemas: None,
        profile: None,
        roles: Vec::new(),
    };
    let (fixture, _) = Fixture::with_jobs(|options, _| {
        let asks = json!({"effect": "ask", "tool": "p:asks", "reason": "one never knows"});
        let rules = json!({"rules": [asks, {"effect": "allow", "reason": "it may"}]});
        options.policy = Arc::new(serde_json::from_value(rules).expect("a policy"));
        options.approver = Arc::new(FakeApprover::unavailable());
        options.views = vec![view("small", &["p__*"]), view("following", &["p__*", "job__*"])];
    })
    .await;
    let background = |definition: &mut ToolDefinition| definition.mode = Mode::Background;
    fixture.add(promises(vec![("asks", |_| (), None), ("slow", background, None)])).await;
    let http = fixture.http().await;
    for (path, prefix, follows) in
        [("/mcp", "p__", true), ("/mcp/following", "p__", true), ("/mcp/small", "p__", false), ("/mcp/p", "", false)]
    {
        let (session, _) = http.initialize(path).await;
        for name in ["asks", "slow"] {
            let asked = call(1, &format!("{prefix}{name}"), json!({}));
            let answer = body(http.in_session(&session, path, &asked), 200).await;
            let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
            let reported = if name == "asks" { "needs a person's approval" } else { "background job slow_" };
            assert!(text.contains(reported), "{path}: {answer}");
            let structured = &answer["result"]["structuredContent"];
            assert!(structured["job"].as_str().is_some_and(|id| id.starts_with(name)), "{path}: {answer}");
            let both = ["message", "next"].map(|key| structured[key].as_str().unwrap_or_default());
            assert_eq!(both.join(" "), text, "clients show one or the other");
            assert_eq!(text.contains("job__wait"), follows, "{path}: {text}");
            assert_eq!(text.contains("toolwright jobs show"), !follows, "{path}: {text}");
        }
    }
}

#[tokio::test]
async fn a_task_that_became_a_job_has_completed() {
    let (fixture, _) = Fixture::with_jobs(|_, _| ()).await;
    let background = |definition: &mut ToolDefinition| {
        definition.mode = Mode::Background;
        definition.output_schema = Some(rows());
        definition.meta.insert("mcp".into(), json!({"execution": {"taskSupport": "optional"}}));
    };
    fixture.add(promises(vec![("promised", background, Some(json!({"rows": []})))])).await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let ask = async |method: &str, params: Value| {
        body(http.in_session(&session, "/mcp", &rpc(1, method, params)), 200).await["result"].take()
    };
    let created = ask("tools/call", json!({"name": "p__promised", "arguments": {}, "task": {}})).await;
    let task = json!({"taskId": created["task"]["taskId"]});
    let result = ask("tasks/result", task.clone()).await;
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains("background job promised_") && result["isError"] == true, "{result}");
    assert_eq!(result["_meta"]["toolwright/stands_in"], "job", "{result}");
    // A client asks for the result of what has not failed only.
    assert_eq!(ask("tasks/get", task).await["status"], "completed");
}

#[tokio::test]
async fn older_clients_get_wrapped_schemas_and_results() {
    let fixture = Fixture::new().await;
    let list = |definition: &mut ToolDefinition| {
        definition.output_schema = Some(json!({"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}));
    };
    let any = |definition: &mut ToolDefinition| {
        definition.output_schema = Some(json!({"anyOf": [{"type": "object"}, {"type": "null"}]}));
    };
    let around = |definition: &mut ToolDefinition| {
        let result = json!({"type": "array"});
        let properties = json!({"result": result});
        definition.output_schema = Some(json!({"type": "object", "properties": properties, "required": ["result"]}));
    };
    let tools: Vec<ToolCase> = vec![
        ("list", list, Some(json!([1]))),
        // As a server says it over a connection of the older generation.
        ("wrapped", list, Some(json!({"result": [1]}))),
        ("any", any, Some(json!({"a": 1}))),
        ("around", around, Some(json!([1]))),
        ("none", |_| (), Some(json!("text"))),
    ];
    fixture.add(promises(tools)).await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let legacy = body(http.in_session(&session, "/mcp", &rpc(1, "tools/list", json!({}))), 200).await;
    let modern = body(http.modern("/mcp", json!(1), "tools/list", json!({})), 200).await;
    let schema = |list: &Value, name: &str| {
        let tools = list["result"]["tools"].as_array().expect("tools");
        tools.iter().find(|tool| tool["name"] == name).expect("listed")["outputSchema"].clone()
    };
    assert_eq!(schema(&modern, "p__list")["type"], "array");
    assert_eq!(schema(&modern, "p__any").get("type"), None);
    for tool in legacy["result"]["tools"].as_array().expect("tools") {
        assert!(tool["outputSchema"].is_null() || tool["outputSchema"]["type"] == "object", "{tool}");
    }
    assert_eq!(schema(&legacy, "p__list")["properties"]["result"]["items"]["$ref"], "#/properties/result/$defs/a");
    for (name, older, newer) in [
        ("p__list", json!({"result": [1]}), json!([1])),
        ("p__wrapped", json!({"result": [1]}), json!([1])),
        ("p__any", json!({"result": {"a": 1}}), json!({"a": 1})),
        ("p__around", json!({"result": [1]}), json!({"result": [1]})),
        ("p__none", json!({"result": "text"}), json!("text")),
    ] {
        let [legacy, modern] = of_both(&fixture, name).await;
        assert_eq!((&legacy["structuredContent"], &modern["structuredContent"]), (&older, &newer), "{name}");
        assert!(legacy["structuredContent"].is_object() && legacy.get("isError").is_none(), "{legacy}");
    }
}

#[tokio::test]
async fn one_faulty_server_hides_no_other_tools() {
    let fixture = Fixture::new().await;
    let malformed = |definition: &mut ToolDefinition| {
        definition.parameters = Some(json!({"properties": {"a": true}, "required": null}));
        definition.output_schema = Some(json!({"type": "object", "properties": {"a": false}, "required": null}));
        let listed = json!({"annotations": null, "icons": null, "_meta": null, "execution": {"taskSupport": null}});
        definition.meta.insert("mcp".into(), listed);
    };
    fixture.add(promises(vec![("malformed", malformed, None)])).await;
    let http = fixture.http().await;
    for path in ["/mcp", "/mcp/p"] {
        let listed = body(http.modern(path, json!(1), "tools/list", json!({})), 200).await;
        let tools = listed["result"]["tools"].as_array().expect("tools");
        let tool = tools.iter().find(|tool| tool["name"].as_str().is_some_and(|name| name.ends_with("malformed")));
        let mut tool: Map<String, Value> = tool.and_then(Value::as_object).cloned().expect("listed");
        tool.remove("name");
        let expect = json!({
            "description": "Promises.", "inputSchema": {"type": "object", "properties": {"a": {}}, "required": []},
            "outputSchema": {"type": "object", "properties": {"a": {"not": {}}}}, "execution": {},
            "_meta": {"anthropic/maxResultSizeChars": 98_304},
        });
        assert_eq!(Value::Object(tool), expect);
    }
}

#[tokio::test]
async fn header_parameters_repeat_the_body() {
    let fixture = Fixture::new().await;
    let marked = |definition: &mut ToolDefinition| {
        let region = json!({"type": "string", "x-mcp-header": "Region"});
        definition.parameters = Some(json!({"type": "object", "properties": {"region": region}}));
    };
    fixture.add(promises(vec![("marked", marked, None)])).await;
    let http = fixture.http().await;
    for (path, name) in [("/mcp", "p__marked"), ("/mcp", "p:marked@0.0.0"), ("/mcp/p", "marked")] {
        for (arguments, header, code) in [
            (json!({"region": "eu"}), Some("eu"), None),
            (json!({"region": "eu"}), Some("=?base64?ZXU=?="), None),
            (json!({}), None, None),
            (json!({"region": "eu"}), Some("us"), Some(-32020)),
            (json!({"region": "eu"}), None, Some(-32020)),
            (json!({}), Some("us"), Some(-32020)),
            (json!({"region": "eu"}), Some("=?base64?!?="), Some(-32020)),
        ] {
            let params = json!({"name": name, "arguments": arguments});
            let mut request = http.modern(path, json!(1), "tools/call", params);
            if let Some(header) = header {
                request = request.header("Mcp-Param-Region", header);
            }
            let answer = body(request, if code.is_some() { 400 } else { 200 }).await;
            assert_eq!(answer["error"]["code"].as_i64(), code, "{name} {arguments} {header:?}: {answer}");
        }
    }
    // Clients without that generation's headers are not asked for them.
    let (session, _) = http.initialize("/mcp").await;
    let request = call(1, "p__marked", json!({"region": "eu"}));
    let answer = body(http.in_session(&session, "/mcp", &request).header("Mcp-Param-Region", "us"), 200).await;
    assert!(answer.get("error").is_none(), "{answer}");
}

fn promised(definition: &mut ToolDefinition) {
    definition.output_schema = Some(rows());
}

fn strict(definition: &mut ToolDefinition) {
    promised(definition);
    definition.on_output_mismatch = OnOutputMismatch::Error;
}

async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    let tools: Vec<ToolCase> = vec![
        ("wrong", promised, Some(json!({"columns": 3}))),
        ("none", promised, None),
        ("right", promised, Some(json!({"rows": []}))),
        ("strict", strict, Some(json!({"columns": 3}))),
    ];
    fixture.add(promises(tools)).await;
    fixture
}

/// The tools that are listed with an output schema.
async fn announced(http: &Http, session: &str) -> Vec<String> {
    let listed = body(http.in_session(session, "/mcp/p", &rpc(1, "tools/list", json!({}))), 200).await;
    let tools = listed["result"]["tools"].as_array().expect("tools").iter();
    tools.filter(|tool| tool.get("outputSchema").is_some()).map(|tool| tool["name"].to_string()).collect()
}

async fn ran(http: &Http, session: &str, name: &str) -> Value {
    body(http.in_session(session, "/mcp/p", &call(1, name, json!({}))), 200).await["result"].take()
}

#[tokio::test]
async fn a_broken_output_schema_is_not_listed_again() {
    let fixture = fixture().await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp/p").await;
    let (other, _) = http.initialize("/mcp/p").await;
    assert_eq!(announced(&http, &session).await, [r#""wrong""#, r#""none""#, r#""right""#, r#""strict""#]);
    assert_eq!(announced(&http, &other).await.len(), 4);
    let events = http.request(Method::GET, "/mcp/p").header("mcp-session-id", &session);
    let mut reported = Events::of(events.header("mcp-protocol-version", LEGACY)).await;
    for (name, first) in [("wrong", r#"{"columns":3}"#), ("none", "(The result is given as text")] {
        let result = ran(&http, &session, name).await;
        // Official clients throw it away otherwise: they check what is no error, and what is structured.
        assert_eq!((&result["isError"], result.get("structuredContent")), (&json!(true), None), "{result}");
        assert!(result["content"][0]["text"].as_str().is_some_and(|text| text.starts_with(first)), "{result}");
        assert!(result["_meta"]["toolwright/output_schema_mismatch"]["path"].is_string(), "{result}");
        assert_eq!(reported.next().await.expect("told")["method"], "notifications/tools/list_changed");
    }
    assert_eq!(ran(&http, &session, "right").await["structuredContent"], json!({"rows": []}));
    assert_eq!(announced(&http, &session).await, [r#""right""#, r#""strict""#]);
    // Who has that list looks for nothing; who has the one before still does.
    for (session, marked) in [(&session, false), (&other, true)] {
        let result = ran(&http, session, "wrong").await;
        assert_eq!((result["isError"] == true, result.get("structuredContent")), (marked, None), "{result}");
    }
    let fails = ran(&http, &session, "strict").await;
    assert!(fails["isError"] == true && fails["_meta"].get("toolwright/output_schema_mismatch").is_none(), "{fails}");
    assert_eq!(announced(&http, &session).await.len(), 2, "a schema that is held to is announced on");
}

#[tokio::test]
async fn a_changed_tool_gets_its_schema_back() {
    let fixture = fixture().await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp/p").await;
    ran(&http, &session, "wrong").await;
    assert_eq!(announced(&http, &session).await.len(), 3);
    let mended = |definition: &mut ToolDefinition| {
        let columns = json!({"columns": {"type": "integer"}});
        definition.output_schema = Some(json!({"type": "object", "properties": columns}));
    };
    let tools: Vec<ToolCase> = vec![("wrong", mended, Some(json!({"columns": 3})))];
    fixture.catalogue.put_provider(promises(tools)).await.expect("replaced");
    fixture.catalogue.refresh("p").await;
    assert_eq!(announced(&http, &session).await, [r#""wrong""#]);
    assert_eq!(ran(&http, &session, "wrong").await["structuredContent"], json!({"columns": 3}));
}
