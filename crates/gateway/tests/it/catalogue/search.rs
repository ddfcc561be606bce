//! The view that lists three tools, which find, describe and call the others.

use serde_json::{Value, json};
use toolwright_core::policy::Policy;
use toolwright_core::session::Principal;
use toolwright_gateway::Expose;

use crate::support::{Events, Fixture, Http, REMOTE_SAYS, body, call, rpc};

const SEARCH: &str = "/mcp?expose=search";
const THREE: [&str; 3] = ["tools__search", "tools__describe", "tools__call"];
/// Those, and the ways on with a result that was cut.
const LISTED: [&str; 5] = ["tools__search", "tools__describe", "tools__call", "output__read", "output__grep"];

fn names(answer: &Value) -> Vec<&str> {
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    tools.iter().filter_map(|tool| tool["name"].as_str()).collect()
}

impl Http {
    async fn list(&self, path: &str) -> Value {
        body(self.modern(path, json!(1), "tools/list", json!({})), 200).await
    }

    async fn ran(&self, path: &str, name: &str, arguments: Value) -> Value {
        let params = json!({"name": name, "arguments": arguments});
        body(self.modern(path, json!(1), "tools/call", params), 200).await["result"].clone()
    }

    async fn text(&self, path: &str, name: &str, arguments: Value) -> String {
        let result = self.ran(path, name, arguments).await;
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
    }
}

#[tokio::test]
async fn search_lists_three_tools_that_find_others() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let list = http.list(SEARCH).await;
    assert_eq!(names(&list), LISTED);
    let hints = |n: usize| {
        let hints = &list["result"]["tools"][n]["annotations"];
        (hints["readOnlyHint"] == true, hints["destructiveHint"] == true)
    };
    assert_eq!([hints(0), hints(1), hints(2)], [(true, false), (true, false), (false, true)]);
    for path in ["/mcp", "/mcp?expose=direct"] {
        assert_eq!(names(&http.list(path).await).len(), 12, "{path}");
    }

    let found = http.ran(SEARCH, "tools__search", json!({"query": "the tool echo", "limit": 1})).await;
    assert_eq!(found["content"][0]["text"], "test__echo(text: string) — The tool echo.");
    assert_eq!(found.get("structuredContent"), None, "some clients would show nothing but it");
    let described = http.text(SEARCH, "tools__describe", json!({"names": ["test__echo"]})).await;
    assert!(described.starts_with("test__echo: The tool echo.\n{\"type\":\"object\","), "{described}");
    let inside = json!({"name": "test__echo", "arguments": {"text": "hi"}});
    let direct = http.ran("/mcp", "test__echo", json!({"text": "hi"})).await;
    assert_eq!(http.ran(SEARCH, "tools__call", inside).await, direct, "the result is the tool's own");
    assert_eq!(http.ran(SEARCH, "test__echo", json!({"text": "hi"})).await, direct, "a hidden tool runs");
    let unlisted = json!({"name": "tools__search", "arguments": {"query": "echo"}});
    let refused = body(http.modern("/mcp", json!(1), "tools/call", unlisted), 400).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
}

#[tokio::test]
async fn the_view_is_that_of_the_session() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let (session, result) = http.initialize(SEARCH).await;
    let reported = format!(
        "Most tools are not listed: tools__search finds them by what they do, tools__describe gives their schemas, \
         tools__call runs them. What there is: test (8), remote (2), output (2)\n\nUse the tools.\n\n{REMOTE_SAYS}"
    );
    assert_eq!(result["instructions"], reported);
    let discovered = body(http.modern(SEARCH, json!(1), "server/discover", json!({})), 200).await;
    assert_eq!(discovered["result"]["instructions"], reported);
    let list = rpc(1, "tools/list", json!({}));
    assert_eq!(names(&body(http.in_session(&session, SEARCH, &list), 200).await), LISTED);
    body(http.in_session(&session, "/mcp", &list), 404).await;
    let echo = call(2, "tools__call", json!({"name": "test__echo", "arguments": {"text": "a"}}));
    let echoed = body(http.in_session(&session, SEARCH, &echo), 200).await;
    assert_eq!(echoed["result"]["content"][0]["text"], "a");
    for request in [http.post("/mcp?expose=pick", &list), http.request(reqwest::Method::GET, "/mcp/test?expose")] {
        let response = request.send().await.expect("response");
        assert_eq!(response.status(), 400);
        assert_eq!(response.text().await.expect("text"), "400: expose is `direct` or `search`\n");
    }
}

#[tokio::test]
async fn errors_of_carried_calls_are_results() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    for (inside, expect) in [
        (json!({"name": "test__ehco", "arguments": {}}), "did you mean test__echo"),
        (json!({"name": "test__echo", "arguments": {}}), "\"text\" is missing"),
        (json!({"name": "tools__call", "arguments": {}}), "cannot name the tool itself"),
    ] {
        let result = http.ran(SEARCH, "tools__call", inside).await;
        assert_eq!(result["isError"], true, "{result}");
        assert!(result["content"][0]["text"].as_str().is_some_and(|text| text.contains(expect)), "{result}");
    }
}

#[tokio::test]
async fn policy_judges_the_carried_tool() {
    let policy = json!({"profile": "trusted", "rules": [{"effect": "deny", "tool": "test:echo"}]});
    let policy: Policy = serde_json::from_value(policy).expect("a policy");
    let fixture = Fixture::with(|options| options.policy = policy.into()).await;
    let guest = Principal { id: "g".into(), roles: Vec::new(), owner: false };
    let http = fixture.http_with(|options| options.principal = guest).await;
    let inside = |name: &str| json!({"name": name, "arguments": {"text": "a"}});
    let denied = http.text(SEARCH, "tools__call", inside("test__echo")).await;
    assert_eq!(denied, http.text("/mcp", "test__echo", json!({"text": "a"})).await);
    assert!(denied.contains("rule 1"), "{denied}");
    assert!(http.text(SEARCH, "tools__call", inside("test__limited")).await.contains("ops"));
    let found = http.text(SEARCH, "tools__search", json!({"query": "limited"})).await;
    assert!(!found.contains("test__limited"), "{found}");
    let discovered = body(http.modern(SEARCH, json!(1), "server/discover", json!({})), 200).await;
    assert!(discovered["result"]["instructions"].as_str().is_some_and(|reported| reported.contains("test (7)")));
}

#[tokio::test]
async fn pinned_tools_are_listed_under_short_names() {
    let fixture = Fixture::with(|options| {
        options.expose = Expose::Search;
        options.pinned = vec!["test:echo".into(), "remote__a_*".into()];
        options.server.max_tool_name = 16;
    })
    .await;
    fixture.foreign.set(&["a_rather_long_tool_name", "other"]);
    let http = fixture.http().await;
    let list = loop {
        let list = http.list("/mcp").await;
        if names(&list).len() == 7 {
            break list;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    let listed = names(&list);
    assert_eq!((&listed[..3], listed[3]), (&THREE[..], "test__echo"));
    let is_short = |name: &&&str| !name.starts_with("output__");
    let short = listed[4..].iter().find(is_short).copied().expect("the pinned one");
    assert!(short.len() <= 16 && short != "remote__a_rather_long_tool_name", "{short}");
    for name in [short, "remote__a_rather_long_tool_name"] {
        let expect = "a_rather_long_tool_name ran";
        assert_eq!(http.text("/mcp", name, json!({})).await, expect, "{name}");
        let inside = json!({"name": name, "arguments": {}});
        assert_eq!(http.text("/mcp", "tools__call", inside).await, expect, "{name}");
    }
}

#[tokio::test]
async fn a_providers_search_finds_its_own_tools() {
    let fixture = Fixture::new().await;
    fixture.foreign.set(&["search", "Get.Thing"]);
    let http = fixture.http().await;
    let path = "/mcp/remote?expose=search";
    while !http.text(path, "tools__search", json!({"query": "search"})).await.starts_with("remote__search(") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(names(&http.list(path).await), THREE);
    let all = http.text(path, "tools__search", json!({"query": "echo"})).await;
    assert_eq!(all, "No tool fits \"echo\". Try other words, or look in: remote (2)");
    for name in ["search", "remote__search", "remote:search@0.0.0"] {
        let inside = json!({"name": name, "arguments": {}});
        assert_eq!(http.text(path, "tools__call", inside).await, "search ran", "{name}");
    }
    assert_eq!(http.text(path, "Get.Thing", json!({})).await, "Get.Thing ran");
    let beyond = json!({"name": "test__echo", "arguments": {"text": "a"}});
    assert_eq!(http.ran(path, "tools__call", beyond.clone()).await["isError"], true);
    body(http.modern(path, json!(1), "tools/call", beyond), 400).await;
}

#[tokio::test]
async fn searching_clients_get_no_list_changes() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let listen = |path: &str| {
        let params = json!({"notifications": {"toolsListChanged": true}});
        http.modern(path, json!("s"), "subscriptions/listen", params)
    };
    let (mut direct, mut search) = (Events::of(listen("/mcp")).await, Events::of(listen(SEARCH)).await);
    let before = http.list(SEARCH).await;
    for events in [&mut direct, &mut search] {
        assert_eq!(events.next().await.expect("granted")["method"], "notifications/subscriptions/acknowledged");
    }
    fixture.foreign.set(&["other", "fresh"]);
    assert_eq!(direct.next().await.expect("told")["method"], "notifications/tools/list_changed");
    assert_eq!(http.list(SEARCH).await, before);
    assert_eq!(http.text(SEARCH, "tools__call", json!({"name": "remote__fresh", "arguments": {}})).await, "fresh ran");
    fixture.shutdown.cancel(toolwright_core::cancel::CancelCause::Shutdown);
    assert_eq!(search.next().await.expect("the end")["result"]["resultType"], "complete");
}

#[tokio::test]
async fn equal_catalogues_are_listed_in_equal_bytes() {
    let said = async || {
        let fixture = Fixture::new().await;
        let http = fixture.http().await;
        let list = http.modern(SEARCH, json!(1), "tools/list", json!({})).send().await.expect("response");
        (list.text().await.expect("text"), http.initialize(SEARCH).await.1.to_string())
    };
    assert_eq!(said().await, said().await);
}
