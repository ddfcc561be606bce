//! What holds for every HTTP client: equal bytes, many at once.

use serde_json::json;

use crate::support::{Fixture, body};

#[tokio::test]
async fn equal_catalogues_are_listed_in_equal_bytes() {
    let text = async || {
        let fixture = Fixture::new().await;
        let http = fixture.http().await;
        http.modern("/mcp", json!(1), "tools/list", json!({}))
            .send()
            .await
            .expect("response")
            .text()
            .await
            .expect("text")
    };
    assert_eq!(text().await, text().await);
}

#[tokio::test]
async fn names_are_shortened_and_still_callable() {
    let fixture = Fixture::with(|options| options.max_tool_name = 16).await;
    fixture.foreign.set(&["a_rather_long_tool_name"]);
    let http = fixture.http().await;
    let name = loop {
        let list = body(http.modern("/mcp", json!(1), "tools/list", json!({})), 200).await;
        let tools = list["result"]["tools"].as_array().expect("tools");
        let names = tools.iter().filter_map(|tool| tool["name"].as_str());
        let foreign: Vec<&str> =
            names.filter(|name| !name.starts_with("test__") && !name.starts_with("output__")).collect();
        if let [name] = foreign[..] {
            break name.to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert!(name.len() <= 16, "{name}");
    for written in [name.as_str(), "remote__a_rather_long_tool_name"] {
        let called = body(http.modern("/mcp", json!(1), "tools/call", json!({"name": written})), 200).await;
        assert_eq!(called["result"]["content"][0]["text"], "a_rather_long_tool_name ran", "{written}");
    }
}

#[tokio::test]
async fn many_clients_call_at_once() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let calls = (0..100).map(|n| {
        let text = n.to_string();
        let request =
            http.modern("/mcp", json!(n), "tools/call", json!({"name": "test__echo", "arguments": {"text": text}}));
        async move { (body(request, 200).await, n) }
    });
    for (answer, n) in futures_util::future::join_all(calls).await {
        assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(n), &json!(n.to_string())));
    }
}
