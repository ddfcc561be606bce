//! Tools whose results break their own output schemas.

use reqwest::Method;
use serde_json::{Value, json};
use toolwright_core::definition::{OnOutputMismatch, ToolDefinition};

use crate::promises::{Promise, promises, rows};
use crate::support::{Events, Fixture, Http, LEGACY, body, call, rpc};

fn promised(definition: &mut ToolDefinition) {
    definition.output_schema = Some(rows());
}

fn strict(definition: &mut ToolDefinition) {
    promised(definition);
    definition.on_output_mismatch = OnOutputMismatch::Error;
}

async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    let tools: Vec<Promise> = vec![
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
    let mut told = Events::of(events.header("mcp-protocol-version", LEGACY)).await;
    for (name, first) in [("wrong", r#"{"columns":3}"#), ("none", "(The result is given as text")] {
        let result = ran(&http, &session, name).await;
        // Official clients throw it away otherwise: they check what is no error, and what is structured.
        assert_eq!((&result["isError"], result.get("structuredContent")), (&json!(true), None), "{result}");
        assert!(result["content"][0]["text"].as_str().is_some_and(|text| text.starts_with(first)), "{result}");
        assert!(result["_meta"]["toolwright/output_schema_mismatch"]["path"].is_string(), "{result}");
        assert_eq!(told.next().await.expect("told")["method"], "notifications/tools/list_changed");
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
    let tools: Vec<Promise> = vec![("wrong", mended, Some(json!({"columns": 3})))];
    fixture.catalogue.put_provider(promises(tools)).await.expect("replaced");
    fixture.catalogue.refresh("p").await;
    assert_eq!(announced(&http, &session).await, [r#""wrong""#]);
    assert_eq!(ran(&http, &session, "wrong").await["structuredContent"], json!({"columns": 3}));
}
