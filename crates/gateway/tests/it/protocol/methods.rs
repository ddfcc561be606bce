//! The methods beside `tools/*`, and the log levels that sources get.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::protocol::stdio::Client;
use crate::sources::{Source, two_sources};
use crate::support::{Events, Fixture, LEGACY, MODERN, body, call, messages, rpc};

const INFO: &str = "io.modelcontextprotocol/serverInfo";

#[tokio::test]
async fn one_server_is_passed_through_as_it_is() {
    let (fixture, [alpha, _]) = two_sources().await;
    let http = fixture.http().await;
    let (session, initialized) = http.initialize("/mcp/alpha").await;
    let mut announced = json!({
        "tools": {"listChanged": true}, "resources": {"subscribe": true, "listChanged": true},
        "prompts": {"listChanged": true}, "completions": {}, "logging": {},
    });
    let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    let mut initialized = initialized["capabilities"].clone();
    assert_eq!(initialized["tasks"].take(), tasks);
    announced["tasks"] = Value::Null;
    assert_eq!(initialized, announced);
    announced.as_object_mut().expect("object").remove("tasks");
    announced["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
    let discovered = body(http.modern("/mcp/alpha", json!(1), "server/discover", json!({})), 200).await;
    assert_eq!(discovered["result"]["capabilities"], announced);
    let stamped = |mut result: Value, cached: bool| {
        result["resultType"] = json!("complete");
        if cached {
            let ttl = result.get("ttlMs").cloned().unwrap_or(json!(0));
            let scope = result.get("cacheScope").cloned().unwrap_or(json!("private"));
            (result["ttlMs"], result["cacheScope"]) = (ttl, scope);
        }
        result
    };
    for (method, params, result) in [
        (
            "resources/list",
            json!({}),
            json!({"resources": [
                {"uri": "both://same", "name": "alpha"}, {"uri": "alpha://one", "name": "1", "later": [1]},
                {"uri": "alpha://two", "name": "2"},
            ]}),
        ),
        (
            "resources/templates/list",
            json!({}),
            json!({"resourceTemplates": [{"uriTemplate": "alpha://{id}/data", "name": "t"}]}),
        ),
        ("resources/read", json!({"uri": "any:thing"}), json!({"contents": [{"uri": "any:thing", "text": "alpha"}]})),
        ("prompts/list", json!({}), json!({"prompts": [{"name": "hello", "description": "alpha"}]})),
        (
            "prompts/get",
            json!({"name": "hello", "arguments": {"a": "b"}}),
            json!({"messages": [], "description": "\"hello\" of alpha", "later": 1}),
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "hello"}, "argument": {"name": "a", "value": "b"}}),
            json!({"completion": {"values": ["alpha", "hello", null]}}),
        ),
    ] {
        let legacy = body(http.in_session(&session, "/mcp/alpha", &rpc(1, method, params.clone())), 200).await;
        let mut plain = result.clone();
        plain.as_object_mut().expect("object").retain(|key, _| !["ttlMs", "cacheScope"].contains(&key.as_str()));
        assert_eq!(legacy["result"], plain, "{method}");
        let modern = body(http.modern("/mcp/alpha", json!(2), method, params.clone()), 200).await;
        let cached = !["prompts/get", "completion/complete"].contains(&method);
        let mut expect = stamped(result, cached);
        expect["_meta"] = modern["result"]["_meta"].clone();
        assert_eq!(
            (&modern["result"], &modern["result"]["_meta"][INFO]["name"]),
            (&expect, &json!("toolwright")),
            "{method}"
        );
        if !method.ends_with("/list") {
            let asked = alpha.asked.lock().expect("lock").pop().expect("asked");
            assert_eq!(asked, (method.to_owned(), params), "without what is ours");
        }
    }
}

#[tokio::test]
async fn a_missing_resource_gets_the_generations_error() {
    let (fixture, _) = two_sources().await;
    let http = fixture.http().await;
    for path in ["/mcp/alpha", "/mcp"] {
        let (session, _) = http.initialize(path).await;
        let missing = json!({"uri": "alpha://missing/data"});
        let legacy = body(http.in_session(&session, path, &rpc(1, "resources/read", missing.clone())), 200).await;
        assert_eq!(legacy["error"]["code"], -32002, "{path}");
        let modern = body(http.modern(path, json!(1), "resources/read", missing.clone()), 400).await;
        assert_eq!((&modern["error"]["code"], &modern["error"]["data"]), (&json!(-32602), &missing), "{path}");
    }
    let nowhere = json!({"uri": "nowhere:"});
    let modern = body(http.modern("/mcp", json!(1), "resources/read", nowhere.clone()), 400).await;
    assert_eq!((&modern["error"]["code"], &modern["error"]["data"]), (&json!(-32602), &nowhere));
}

#[tokio::test]
async fn a_result_over_the_bound_is_an_error() {
    let fixture = Fixture::with_max_whole(1000).await;
    fixture.add_listed(Source::new("alpha").provider()).await;
    let http = fixture.http().await;
    let read = |characters: usize| json!({"uri": format!("alpha:{}", "x".repeat(characters))});
    for path in ["/mcp/alpha", "/mcp"] {
        let (session, _) = http.initialize(path).await;
        let legacy = body(http.in_session(&session, path, &rpc(1, "resources/read", read(1000))), 200).await;
        let modern = body(http.modern(path, json!(1), "resources/read", read(1000)), 200).await;
        for answer in [legacy, modern] {
            let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{path}: {answer}"));
            assert_eq!(answer["error"]["code"], -32603, "{path}");
            assert!(message.contains("1000 bytes (defaults.whole_result_max_bytes)"), "{path}: {message}");
        }
        let small = body(http.modern("/mcp/alpha", json!(2), "resources/read", read(500)), 200).await;
        assert_eq!(small["result"]["contents"][0]["text"], "alpha", "{path}");
    }
}

#[tokio::test]
async fn unannounced_methods_are_not_served() {
    let fixture = Fixture::new().await;
    fixture.add_listed(Source::with("bare", json!({"prompts": {}, "resources": {}})).provider()).await;
    let http = fixture.http().await;
    let (session, initialized) = http.initialize("/mcp/bare").await;
    let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    let announced = json!({"tools": {"listChanged": true}, "prompts": {}, "resources": {}, "tasks": tasks});
    assert_eq!(initialized["capabilities"], announced);
    for (path, method, code) in [
        ("/mcp/bare", "completion/complete", -32601),
        ("/mcp/bare", "resources/subscribe", -32601),
        ("/mcp/bare", "logging/setLevel", -32601),
        ("/mcp/remote", "prompts/list", -32601),
        ("/mcp/bare", "prompts/nothing", -32601),
    ] {
        let session = if path == "/mcp/bare" { session.clone() } else { http.initialize(path).await.0 };
        let params = json!({"uri": "a:b", "level": "info", "ref": {}, "argument": {}});
        let error = body(http.in_session(&session, path, &rpc(1, method, params.clone())), 200).await;
        assert_eq!(error["error"]["code"], code, "{path} {method}");
        body(http.modern(path, json!(1), method, params), 404).await;
    }
}

#[tokio::test]
async fn many_servers_are_one_without_clashes() {
    let (fixture, [alpha, beta]) = two_sources().await;
    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}))).await;
    let listed = client.ask(&rpc(1, "resources/list", json!({}))).await;
    let uris = listed["result"]["resources"].as_array().expect("a list").iter().map(|one| one["uri"].clone());
    let others = "toolwright-resource://beta/both://same";
    let expect = ["both://same", "alpha://one", "alpha://two", others, "beta://one", "beta://two"].map(Value::from);
    assert_eq!(uris.collect::<Vec<_>>(), expect, "all pages");
    let prompts = client.ask(&rpc(2, "prompts/list", json!({}))).await;
    let expect =
        json!([{"name": "alpha__hello", "description": "alpha"}, {"name": "beta__hello", "description": "beta"}]);
    assert_eq!(prompts["result"]["prompts"], expect);
    let templates = client.ask(&rpc(3, "resources/templates/list", json!({}))).await;
    assert_eq!(templates["result"]["resourceTemplates"].as_array().map(Vec::len), Some(2));
    for (method, params, pointer, expect) in [
        (
            "resources/read",
            json!({"uri": "both://same"}),
            "/contents/0",
            json!({"uri": "both://same", "text": "alpha"}),
        ),
        ("resources/read", json!({"uri": others}), "/contents/0", json!({"uri": others, "text": "beta"})),
        ("resources/read", json!({"uri": "beta://two"}), "/contents/0/text", json!("beta")),
        ("resources/read", json!({"uri": "beta://5/data"}), "/contents/0/text", json!("beta")),
        ("prompts/get", json!({"name": "beta__hello"}), "/description", json!("\"hello\" of beta")),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "beta__hello"}, "argument": {}}),
            "/completion/values",
            json!(["beta", "hello", null]),
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/resource", "uri": "beta://{id}/data"}, "argument": {}}),
            "/completion/values",
            json!(["beta", null, "beta://{id}/data"]),
        ),
    ] {
        let answer = client.ask(&rpc(4, method, params.clone())).await;
        assert_eq!(answer["result"].pointer(pointer), Some(&expect), "{method} {params}: {answer}");
    }
    assert!(
        alpha.taken().iter().all(|(_, arguments)| arguments["uri"] == "both://same"),
        "others' are not asked of it"
    );
    assert_eq!(beta.taken().len(), 6);
    for (method, params) in [
        ("prompts/get", json!({"name": "hello"})),
        ("prompts/get", json!({})),
        ("resources/list", json!({"cursor": "2"})),
        ("completion/complete", json!({"ref": {"type": "other"}, "argument": {}})),
    ] {
        assert_eq!(client.ask(&rpc(5, method, params.clone())).await["error"]["code"], -32602, "{method} {params}");
    }
    client.end().await;
}

#[tokio::test]
async fn a_filled_template_routes_to_its_server() {
    let fixture = Fixture::new().await;
    let sources = [Source::new("zed"), Source::new("abc")];
    for source in &sources {
        fixture.add_listed(source.provider()).await;
    }
    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}))).await;
    let listed = client.ask(&rpc(1, "resources/templates/list", json!({}))).await;
    let shown = listed["result"]["resourceTemplates"].as_array().expect("a list").iter();
    let shown: Vec<_> = shown.map(|one| one["uriTemplate"].as_str().expect("text").to_owned()).collect();
    assert_eq!(shown, ["both://{id}/data", "toolwright-resource://abc/both://{id}/data"]);
    for (source, template) in sources.iter().zip(shown) {
        let uri = template.replace("{id}", "5");
        for method in ["resources/read", "resources/subscribe"] {
            let answer = client.ask(&rpc(2, method, json!({"uri": uri}))).await;
            assert!(answer["result"].is_object(), "{answer}");
        }
        let asked = |method: &str| (method.to_owned(), json!({"uri": "both://5/data"}));
        assert_eq!(source.taken(), ["resources/read", "resources/subscribe"].map(asked), "{uri}");
    }
    client.end().await;
}

#[tokio::test]
async fn a_link_routes_to_its_results_server() {
    let (fixture, [alpha, beta]) = two_sources().await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let ask =
        async |method: &str, params: Value| body(http.in_session(&session, "/mcp", &rpc(1, method, params)), 200).await;
    let read = async |uri: &str| ask("resources/read", json!({"uri": uri})).await;
    let by = async |uri: &str| read(uri).await["result"]["contents"][0]["text"].take();
    let (unlisted, others) = ("any://unlisted/7", "toolwright-resource://beta/both://same");
    assert_eq!(read(unlisted).await["error"]["code"], -32002);
    assert_eq!(by("both://same").await, "alpha");

    let links = [unlisted, "both://same", "alpha://one"];
    let links = links.map(|uri| json!({"type": "resource_link", "uri": uri, "name": "n", "size": 3}));
    *beta.content.lock().expect("lock") = serde_json::from_value(json!(links)).expect("blocks");
    let called = ask("tools/call", json!({"name": "beta__meta", "arguments": {}})).await;
    for (at, link) in links.iter().enumerate() {
        assert_eq!(called["result"]["content"][at + 1], *link, "untouched");
    }
    for (uri, expect) in [(unlisted, "beta"), ("both://same", "beta"), (others, "beta"), ("alpha://one", "alpha")] {
        assert_eq!(by(uri).await, expect, "{uri}");
    }
    beta.taken();
    assert_eq!(ask("resources/subscribe", json!({"uri": unlisted})).await["result"], json!({}));
    assert_eq!(beta.taken(), [("resources/subscribe".to_owned(), json!({"uri": unlisted}))]);

    // Who names it last counts.
    let held = json!({"type": "resource", "resource": {"uri": "both://same", "text": "t"}});
    *alpha.prompt.lock().expect("lock") = json!([{"role": "user", "content": held}]);
    ask("prompts/get", json!({"name": "alpha__hello"})).await;
    for (uri, expect) in [("both://same", "alpha"), (unlisted, "beta"), (others, "beta")] {
        assert_eq!(by(uri).await, expect, "{uri}");
    }
}

#[tokio::test]
async fn a_session_gets_logs_of_its_level() {
    let (fixture, [alpha, _]) = two_sources().await;
    let http = fixture.http().await;
    for (path, tool, level, heard) in [
        ("/mcp/alpha", "log", None, &["debug", "warning", "alert"][..]),
        ("/mcp/alpha", "log", Some("warning"), &["warning", "alert"]),
        ("/mcp", "alpha__log", Some("emergency"), &[]),
    ] {
        let (session, _) = http.initialize(path).await;
        if let Some(level) = level {
            let set = rpc(1, "logging/setLevel", json!({"level": level}));
            assert_eq!(body(http.in_session(&session, path, &set), 200).await["result"], json!({}));
            let wrong = rpc(1, "logging/setLevel", json!({"level": "loud"}));
            assert_eq!(body(http.in_session(&session, path, &wrong), 200).await["error"]["code"], -32602);
        }
        let request = http.in_session(&session, path, &crate::support::call(2, tool, json!({})));
        let said = crate::support::messages(request).await;
        let levels: Vec<_> = said.iter().filter_map(|one| one["params"]["level"].as_str()).collect();
        assert_eq!(levels, heard, "{path} {level:?}");
    }
    let reported: Vec<_> = alpha.taken().into_iter().filter(|(method, _)| method == "logging/setLevel").collect();
    let least = ("logging/setLevel".to_owned(), json!({"level": "warning"}));
    assert_eq!(reported, [least.clone(), least], "for each session the least severe that anybody wants");
    for (level, heard) in [(None, 0), (Some("alert"), 1)] {
        let mut params = json!({"name": "log", "arguments": {}});
        if let Some(level) = level {
            params["_meta"]["io.modelcontextprotocol/logLevel"] = json!(level);
        }
        let said = crate::support::messages(http.modern("/mcp/alpha", json!(1), "tools/call", params)).await;
        assert_eq!(said.len() - 1, heard, "{level:?} {MODERN}");
    }
}

#[tokio::test]
async fn a_requests_own_meta_reaches_the_source() {
    let (fixture, _) = two_sources().await;
    let http = fixture.http().await;
    let params = json!({"name": "meta", "arguments": {}, "_meta": {"vendor/a": [1], "progressToken": 1}});
    let answer = body(http.modern("/mcp/alpha", json!(1), "tools/call", params), 200).await;
    assert_eq!(answer["result"]["content"][0]["text"], r#"{"vendor/a":[1]}"#);
}

#[tokio::test]
async fn lists_follow_sources_that_come_and_go() {
    let (fixture, _) = two_sources().await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let ask = async |method: &str, params: Value| {
        body(http.in_session(&session, "/mcp", &rpc(1, method, params)), 200).await["result"].take()
    };
    let read = async |uri: &str| ask("resources/read", json!({"uri": uri})).await["contents"][0]["text"].take();
    ask("resources/list", json!({})).await;
    ask("resources/templates/list", json!({})).await;
    assert_eq!(read("both://same").await, "alpha");
    fixture.add_listed(Source::new("gamma").provider()).await;
    assert_eq!(read("gamma://7/data").await, "gamma");
    fixture.catalogue.remove_provider("alpha").await.expect("it was there");
    assert_eq!(read("both://same").await, "beta");
}

const LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// That a source was told this level.
fn reported(level: &str) -> (String, Value) {
    ("logging/setLevel".to_owned(), json!({"level": level}))
}

#[tokio::test]
async fn older_servers_get_a_requests_log_level_first() {
    let fixture = Fixture::new().await;
    let alpha = Source::new("alpha");
    fixture.add_listed(alpha.provider()).await;
    let http = fixture.http().await;
    for (level, expect) in
        [(None, None), (Some("warning"), Some("warning")), (Some("alert"), None), (Some("debug"), Some("debug"))]
    {
        let mut params = json!({"name": "log", "arguments": {}});
        if let Some(level) = level {
            params["_meta"][LEVEL] = json!(level);
        }
        messages(http.modern("/mcp/alpha", json!(1), "tools/call", params)).await;
        let mut expect: Vec<_> = expect.map(reported).into_iter().collect();
        expect.push(("log".to_owned(), json!({})));
        assert_eq!(alpha.taken(), expect, "{level:?}: the least severe that anybody wants");
    }
}

/// Another source in the place of one, or beside it.
async fn comes(fixture: &Fixture, name: &'static str) -> Source {
    // There may be none of the name.
    let _ = fixture.catalogue.remove_provider(name).await;
    let source = Source::new(name);
    fixture.add_listed(source.provider()).await;
    source
}

#[tokio::test]
async fn an_added_source_gets_the_sessions_log_level() {
    let fixture = Fixture::new().await;
    comes(&fixture, "alpha").await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let set = rpc(1, "logging/setLevel", json!({"level": "warning"}));
    assert_eq!(body(http.in_session(&session, "/mcp", &set), 200).await["result"], json!({}));
    let stream = http.request(Method::GET, "/mcp").header("mcp-session-id", &session);
    let _events = Events::of(stream.header("mcp-protocol-version", LEGACY)).await;
    for name in ["alpha", "beta"] {
        let source = comes(&fixture, name).await;
        for _ in 0..500 {
            if source.times("logging/setLevel") > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(source.taken().first(), Some(&reported("warning")), "{name}");
    }
}

#[tokio::test]
async fn the_next_call_sends_the_sessions_log_level() {
    let fixture = Fixture::new().await;
    comes(&fixture, "alpha").await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let called = async || {
        let answer = body(http.in_session(&session, "/mcp", &call(2, "alpha__meta", json!({}))), 200).await;
        assert!(answer["result"].is_object() && answer["result"]["isError"] != true, "{answer}");
    };
    let set = rpc(1, "logging/setLevel", json!({"level": "error"}));
    assert_eq!(body(http.in_session(&session, "/mcp", &set), 200).await["result"], json!({}));
    let again = comes(&fixture, "alpha").await;
    let meta = || ("meta".to_owned(), json!({}));
    called().await;
    assert_eq!(again.taken(), [reported("error"), meta()]);
    called().await;
    assert_eq!(again.taken(), [meta()], "it knows");
}
