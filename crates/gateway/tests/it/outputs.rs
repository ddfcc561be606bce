//! Results over their caps as clients get them, and the tools that read what was stored.

use serde_json::{Value, json};

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
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
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
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let rows = result(&http, &session, "/mcp", "test__rows", json!({"text": "5000"})).await;
    assert_eq!(rows["structuredContent"]["rows"].as_array().map(Vec::len), Some(5000));
    assert!(rows["content"][0]["text"].as_str().expect("text").len() < 4000);
    assert_eq!(rows["_meta"]["tool_output"]["bytes"], 65_010);
}

#[tokio::test]
async fn where_nothing_reads_a_handle_none_is_named() {
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
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
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
