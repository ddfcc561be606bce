//! The tools that clients list: their schemas, and the sizes of their results.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_core::catalogue::{ProviderKind, RegisteredTool, foreign_ids};
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::outcome::ToolOutput;
use toolwright_gateway::{ListedSchemas, ViewConfig};
use toolwright_testkit::FakeProvider;

use crate::support::{Fixture, Http, body, call, rpc};

async fn listed(http: &Http, session: &str, path: &str) -> Vec<String> {
    let listed = body(http.in_session(session, path, &rpc(9, "tools/list", json!({}))), 200).await;
    let tools = listed["result"]["tools"].as_array().expect("tools");
    tools.iter().map(|tool| tool["name"].as_str().expect("name").to_owned()).collect()
}

async fn result(http: &Http, session: &str, path: &str, name: &str, arguments: Value) -> Value {
    body(http.in_session(session, path, &call(7, name, arguments)), 200).await["result"].clone()
}

#[tokio::test]
async fn listed_output_tools_read_stored_results() {
    let (_fixture, http, session) = Fixture::with_session().await;
    let (other, _) = http.initialize("/mcp").await;
    let readers = async |session: &str| {
        let names = listed(&http, session, "/mcp").await;
        names.into_iter().filter(|name| name.starts_with("output__")).collect::<Vec<_>>()
    };
    // Many clients list once. No model is configured here that could extract.
    assert_eq!(readers(&session).await, ["output__read", "output__grep"]);

    let big = result(&http, &session, "/mcp", "test__big", json!({})).await;
    let note = &big["_meta"]["tool_output"];
    let handle = note["handle"].as_str().expect("handle");
    let next = note["next"].as_str().expect("next");
    let expect = json!({
        "handle": handle, "reason": "size_limit_exceeded", "bytes": 100_000, "lines": 1, "tokens": 25_000, "next": next,
    });
    assert_eq!(*note, expect);
    assert!(handle.len() == 9 && next.starts_with("Read it with output__read") && !next.contains("output__extract"));
    assert_eq!(big.get("structuredContent"), None, "clients that show nothing else would lose the image");
    let text = big["content"][0]["text"].as_str().expect("text");
    assert!(text.contains(handle) && text.contains("output__read") && text.len() < 4000, "{text}");
    assert_eq!(big["content"][1]["data"].as_str().map(str::len), Some(40_000), "images pass");
    assert_eq!(big["content"][2]["resource"]["blob"].as_str().map(str::len), Some(40_000), "resources pass");
    assert_eq!(big["content"].as_array().map(Vec::len), Some(3));

    let read = json!({"handle": handle, "offset": 99_995});
    let part = result(&http, &session, "/mcp", "output__read", read.clone()).await;
    assert_eq!(part["content"][0]["text"], "xxxxx\n[bytes 99995 to 100000 of 100000; this is the end]");
    let foreign = result(&http, &other, "/mcp", "output__read", read).await;
    assert!(
        foreign["isError"].is_null()
            && foreign["content"][0]["text"].as_str().expect("text").contains("no stored output")
    );
}

#[tokio::test]
async fn structured_results_with_a_schema_stay_whole() {
    let (_fixture, http, session) = Fixture::with_session().await;
    let rows = result(&http, &session, "/mcp", "test__rows", json!({"text": "5000"})).await;
    assert_eq!(rows["structuredContent"]["rows"].as_array().map(Vec::len), Some(5000));
    assert!(rows["content"][0]["text"].as_str().expect("text").len() < 4000);
    assert_eq!(rows["_meta"]["tool_output"]["bytes"], 65_010);
}

#[tokio::test]
async fn handles_are_hidden_without_a_reader() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let path = "/mcp/test";
    let (session, _) = http.initialize(path).await;
    let big = result(&http, &session, path, "big", json!({})).await;
    let text = big["content"][0]["text"].as_str().expect("text");
    assert!(text.contains("toolwright cut this result of 100000 bytes") && text.len() <= 49_152, "{text}");
    assert!(!text.contains("output__") && !text.contains("Handle: ") && big["_meta"].is_null());
}

#[tokio::test]
async fn only_large_results_are_cut_with_a_note() {
    let (_fixture, http, session) = Fixture::with_session().await;
    let echo =
        async |bytes: usize| result(&http, &session, "/mcp", "test__echo", json!({"text": "x".repeat(bytes)})).await;
    let whole = echo(40_960).await;
    assert_eq!(whole["content"][0]["text"].as_str().map(str::len), Some(40_960));
    let cut = echo(60_000).await;
    let (text, beside) = (cut["content"][0]["text"].as_str().expect("text"), &cut["structuredContent"]["toolwright"]);
    assert!(text.contains("60000 bytes") && beside["message"] == text, "{cut}");
    assert!(text.contains(beside["next"].as_str().expect("next")), "{cut}");
}

#[tokio::test]
async fn listed_tools_announce_their_result_size() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let listed = body(http.modern("/mcp", json!(1), "tools/list", json!({})), 200).await;
    let tools = listed["result"]["tools"].as_array().expect("tools");
    let chars = |name: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name).expect("listed");
        tool["_meta"]["anthropic/maxResultSizeChars"].as_u64().expect("chars")
    };
    assert_eq!(chars("test__echo"), 2 * 48 * 1024);
    assert!(chars("output__read") <= 500_000);
}

fn union() -> Value {
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": {"$.xgafv": {"type": "string"}, "at": {"type": "array", "items": [{"type": "number"}, {"type": "number"}]}},
        "oneOf": [{"required": ["$.xgafv"]}, {"required": ["at"]}],
    })
}

/// A server whose schemas some clients refuse. Its tools say what they were called with.
fn odd() -> FakeProvider {
    let [union_id, compact_id] = &foreign_ids("odd", &["union", "compact"]).expect("ids")[..] else { panic!("two") };
    let mut odd = ToolDefinition::new(union_id.clone(), "Odd.", Some(union()));
    odd.effects = Effects::READ;
    odd.meta.insert("mcp".into(), json!({"_meta": {"k": 1}}));
    let long = json!({"type": "object", "properties": {"a": {"type": "string", "description": "Very long."}}});
    let mut compact = ToolDefinition::new(compact_id.clone(), "Compact.", Some(long));
    compact.provider_schema = Some(json!({"type": "object", "properties": {"a": {"type": "string"}}}));
    let tools = vec![RegisteredTool::foreign(odd, "union"), RegisteredTool::foreign(compact, "compact")];
    FakeProvider::new("odd", ProviderKind::Mcp, tools).answering(|call| ToolOutput::text(call.arguments.to_string()))
}

async fn fixture(schemas: ListedSchemas) -> Fixture {
    let view = |name: &str, schemas: Option<ListedSchemas>| ViewConfig {
        name: name.into(),
        allowed: vec!["odd__*".into()],
        denied: Vec::new(),
        expose: None,
        schemas,
        profile: None,
        roles: Vec::new(),
    };
    let fixture = Fixture::with(|options| {
        options.server.schemas = schemas;
        options.pinned = vec!["odd:union".into()];
        options.views = vec![view("raw", Some(ListedSchemas::Raw)), view("usual", None)];
    })
    .await;
    fixture.add(Arc::new(odd())).await;
    fixture
}

async fn tool(http: &Http, path: &str, name: &str) -> Value {
    let listed = body(http.modern(path, json!(1), "tools/list", json!({})), 200).await;
    let mut tools = listed["result"]["tools"].as_array().expect("tools").iter();
    tools.find(|tool| tool["name"] == name).unwrap_or_else(|| panic!("{name} in {listed}")).clone()
}

async fn ran(http: &Http, path: &str, name: &str, arguments: Value) -> Value {
    let params = json!({"name": name, "arguments": arguments});
    let answer = body(http.modern(path, json!(1), "tools/call", params), 200).await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{answer}"))
}

#[tokio::test]
async fn schemas_are_listed_in_portable_form() {
    let fixture = fixture(ListedSchemas::Portable).await;
    let http = fixture.http().await;
    let mut listed = Vec::new();
    for (path, name) in [("/mcp", "odd__union"), ("/mcp/odd", "union"), ("/mcp/usual", "odd__union")] {
        let tool = tool(&http, path, name).await;
        let meta = (&tool["_meta"]["k"], &tool["_meta"]["anthropic/alwaysLoad"]);
        assert_eq!(meta, (&json!(1), &json!(true)), "it is pinned");
        listed.push(tool["inputSchema"].clone());
    }
    let alias = listed[0]["properties"].as_object().expect("properties").keys().next().expect("a name").clone();
    let golden = json!({
        "type": "object",
        "properties": {
            alias.as_str(): {"type": "string"},
            "at": {"type": "array", "items": {"type": "number"}},
        },
        "description": "Needs exactly one of these: `$.xgafv`; or `at`.",
    });
    assert_eq!(listed, [golden.clone(), golden.clone(), golden]);
    assert!(alias.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && alias.contains("xgafv"), "{alias}");
    assert_eq!(tool(&http, "/mcp/raw", "odd__union").await["inputSchema"], union());
    for path in ["/mcp/raw", "/mcp"] {
        let compact = tool(&http, path, "odd__compact").await;
        assert_eq!(
            compact["inputSchema"],
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
            "{path}"
        );
        assert_eq!(compact["_meta"].get("anthropic/alwaysLoad"), None);
    }
    let other = self::fixture(ListedSchemas::Raw).await;
    let http = other.http().await;
    assert_eq!(tool(&http, "/mcp", "odd__union").await["inputSchema"], union());
    assert_eq!(ran(&http, "/mcp", "odd__union", json!({"$.xgafv": "1"})).await, json!({"$.xgafv": "1"}));
}

#[tokio::test]
async fn listed_argument_names_map_back_to_the_tools() {
    let fixture = fixture(ListedSchemas::Portable).await;
    let http = fixture.http().await;
    let listed = tool(&http, "/mcp/odd", "union").await;
    let alias = listed["inputSchema"]["properties"].as_object().expect("properties").keys().next().expect("a name");
    let own = json!({"$.xgafv": "1"});
    for arguments in [json!({alias.as_str(): "1"}), own.clone()] {
        for (path, name) in [("/mcp", "odd__union"), ("/mcp", "odd:union@0.0.0"), ("/mcp/odd", "union")] {
            assert_eq!(ran(&http, path, name, arguments.clone()).await, own, "{path} {name}");
        }
        let carried = json!({"name": "odd__union", "arguments": arguments});
        assert_eq!(ran(&http, "/mcp?expose=search", "tools__call", carried).await, own);
    }
    // The tool's own schema judges.
    let both = json!({"name": "odd__union", "arguments": {alias.as_str(): "1", "at": [1, 2]}});
    let answer = body(http.modern("/mcp", json!(1), "tools/call", both), 200).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
}

#[tokio::test]
async fn an_unchanged_list_stays_byte_equal() {
    let fixture = fixture(ListedSchemas::Portable).await;
    let http = fixture.http().await;
    let list = async || http.modern("/mcp", json!(1), "tools/list", json!({})).send().await.expect("sent").text().await;
    let first = list().await.expect("text");
    fixture.catalogue.refresh("odd").await;
    fixture.foreign.set(&["Get.Thing", "other"]);
    fixture.catalogue.refresh("remote").await;
    assert_eq!(list().await.expect("text"), first);
}

#[tokio::test]
async fn our_tools_ask_to_be_always_loaded() {
    let fixture = fixture(ListedSchemas::Portable).await;
    let http = fixture.http().await;
    let listed = body(http.modern("/mcp?expose=search", json!(1), "tools/list", json!({})), 200).await;
    let tools = listed["result"]["tools"].as_array().expect("tools");
    let names: Vec<_> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    let shown = ["tools__search", "tools__describe", "tools__call", "output__read", "output__grep", "odd__union"];
    assert_eq!(names, shown);
    for tool in tools {
        assert_eq!(tool["_meta"]["anthropic/alwaysLoad"], true, "{tool}");
    }
    assert_eq!(tool(&http, "/mcp", "test__echo").await["_meta"].get("anthropic/alwaysLoad"), None);
}
