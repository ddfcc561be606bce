//! Methods beside `tools/*`: raw at `/mcp/{server}`, merged at `/mcp`, in the words of the client's generation.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::sources::Source;
use crate::stdio::Client;
use crate::support::{House, LEGACY, MODERN, Warnings, body, rpc};

const INFO: &str = "io.modelcontextprotocol/serverInfo";

/// Two sources at one gateway.
async fn house() -> (House, [std::sync::Arc<Source>; 2]) {
    let house = House::new().await;
    let sources = [Source::new("alpha"), Source::new("beta")];
    for source in &sources {
        house.add(source.clone()).await;
    }
    (house, sources)
}

#[tokio::test]
async fn the_pages_of_a_source_end_with_an_older_ones_empty_cursor_and_where_they_go_in_a_circle() {
    let house = House::new().await;
    let sources = [Source::new("ends"), Source::new("circles"), Source::new("leads")];
    for source in &sources {
        house.add(source.clone()).await;
    }
    let http = house.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let list = rpc(1, "resources/list", json!({}));
    body(http.in_session(&session, "/mcp", &list), 200).await;
    let asked = sources.map(|source| {
        let asked = source.asked.lock().expect("asked");
        asked.iter().filter(|(method, _)| method == "resources/list").count()
    });
    assert_eq!(asked, [1, 2, 2], "an empty cursor leads on where the page is of 2026-07-28");
}

#[tokio::test]
async fn one_careless_server_takes_nobody_elses_prompts_and_resources_away() {
    let house = House::new().await;
    for source in [Source::new("careless"), Source::new("beta")] {
        house.add(source).await;
    }
    let http = house.http().await;
    let list = async |method: &str| body(http.modern("/mcp", json!(1), method, json!({})), 200).await["result"].take();
    let prompts = json!([
        {"name": "careless__hello", "arguments": [{"name": "a"}]}, {"name": "beta__hello", "description": "beta"},
    ]);
    assert_eq!(list("prompts/list").await["prompts"], prompts);
    let resources = list("resources/list").await["resources"].take();
    assert_eq!(resources[0], json!({"uri": "careless://one", "name": "careless://one"}));
    assert_eq!((&resources[1]["name"], resources.as_array().map(Vec::len)), (&json!("beta"), Some(4)), "{resources}");
}

#[tokio::test]
async fn a_careless_list_is_mended_at_every_address_and_told_of_once() {
    let house = House::new().await;
    for source in [Source::new("careless"), Source::new("beta")] {
        house.add(source).await;
    }
    let http = house.http().await;
    let (warnings, _recording) = Warnings::record();
    let (session, _) = http.initialize("/mcp/careless").await;
    for _ in 0..2 {
        let list = async |id: i64, method: &str| {
            let list = rpc(id, method, json!({}));
            body(http.in_session(&session, "/mcp/careless", &list), 200).await["result"].take()
        };
        let prompts = json!({"prompts": [{"name": "hello", "arguments": [{"name": "a"}]}]});
        assert_eq!(list(1, "prompts/list").await, prompts);
        let resources = json!({"resources": [{"uri": "careless://one", "name": "careless://one"}]});
        assert_eq!(list(2, "resources/list").await, resources);
        body(http.modern("/mcp", json!(1), "prompts/list", json!({})), 200).await;
    }
    let told = warnings.all();
    let mended = "as MCP has it; clients get them mended";
    assert_eq!(
        told,
        [
            format!(
                "careless lists 2 of its prompts not {mended}: hello (title, arguments, _meta), \
                 one that has nothing to be found by (name)"
            ),
            format!(
                "careless lists 2 of its resources not {mended}: careless://one (annotations, icons, _meta, name), \
                 one that has nothing to be found by (uri)"
            ),
        ]
    );
}

#[tokio::test]
async fn one_server_is_passed_through_as_it_is() {
    let (house, [alpha, _]) = house().await;
    let http = house.http().await;
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
            json!({"resources": [{"uri": "both://same", "name": "alpha"}, {"uri": "alpha://one", "name": "1", "later": [1]}], "nextCursor": "2"}),
        ),
        (
            "resources/list",
            json!({"cursor": "2"}),
            json!({"resources": [{"uri": "alpha://two", "name": "2"}], "ttlMs": 7, "cacheScope": "public"}),
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
        let asked = alpha.asked.lock().expect("lock").pop().expect("asked");
        assert_eq!(asked, (method.to_owned(), params), "without what is ours");
    }
}

#[tokio::test]
async fn a_missing_resource_is_told_as_the_generation_tells_it() {
    let (house, _) = house().await;
    let http = house.http().await;
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
async fn a_result_that_is_too_large_is_an_error_that_names_its_bound() {
    let house = House::passing_on(1000).await;
    house.add(Source::new("alpha")).await;
    let http = house.http().await;
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
async fn what_a_server_did_not_announce_is_no_method_here_either() {
    let house = House::new().await;
    house.add(Source::with("bare", json!({"prompts": {}, "resources": {}}))).await;
    let http = house.http().await;
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
    let (house, [alpha, beta]) = house().await;
    let mut client = Client::of(&house);
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
async fn a_filled_in_template_is_of_the_server_under_whose_address_it_is_shown() {
    let house = House::new().await;
    let sources = [Source::new("zed"), Source::new("abc")];
    for source in &sources {
        house.add(source.clone()).await;
    }
    let mut client = Client::of(&house);
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
async fn a_link_leads_to_the_server_whose_result_has_it() {
    let (house, [alpha, beta]) = house().await;
    let http = house.http().await;
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
async fn a_silent_server_takes_only_its_own_away() {
    let (house, [alpha, beta]) = house().await;
    let http = house.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let prompt = json!({"ref": {"type": "ref/prompt", "name": "beta__hello"}, "argument": {}});
    let names = |answer: &Value| -> Vec<String> {
        let items = answer["result"]["prompts"].as_array().expect("a list");
        items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
    };
    // Nothing is known of it yet, nothing any more, and then what it listed before it fell silent.
    for (round, most, expect) in [
        ("at first", 8, &["beta__hello"][..]),
        ("again", 4, &["beta__hello"]),
        ("after it has spoken", 8, &["alpha__hello", "beta__hello"]),
    ] {
        if round == "after it has spoken" {
            alpha.is_silent.send_replace(false);
            let listed = body(http.in_session(&session, "/mcp", &rpc(1, "prompts/list", json!({}))), 200).await;
            assert_eq!(names(&listed), expect);
        }
        alpha.is_silent.send_replace(true);
        let ask = async |id: i64, method: &str, params: Value| {
            let (start, request) = (Instant::now(), rpc(id, method, params.clone()));
            let legacy = body(http.in_session(&session, "/mcp", &request), 200);
            let modern = async {
                match method.starts_with("resources/sub") || method.starts_with("logging") {
                    true => None,
                    false => Some(body(http.modern("/mcp", json!(id), method, params.clone()), 200).await),
                }
            };
            let (legacy, modern) = tokio::join!(legacy, modern);
            assert!(start.elapsed() < Duration::from_secs(most), "{round}: {method} took {:?}", start.elapsed());
            for answer in modern.iter().chain([&legacy]) {
                assert!(answer["result"].is_object(), "{round}: {method}: {answer}");
            }
            legacy
        };
        let (prompts, ..) = tokio::join!(
            ask(1, "prompts/list", json!({})),
            ask(2, "resources/list", json!({})),
            ask(3, "resources/templates/list", json!({})),
            ask(4, "resources/read", json!({"uri": "beta://one"})),
            ask(5, "resources/read", json!({"uri": "beta://5/data"})),
            ask(6, "prompts/get", json!({"name": "beta__hello"})),
            ask(7, "completion/complete", prompt.clone()),
            ask(8, "logging/setLevel", json!({"level": "error"})),
            ask(9, "resources/subscribe", json!({"uri": "beta://two"})),
        );
        assert_eq!(names(&prompts), expect, "{round}");
    }
    // What is known needs no list; its own are waited for.
    let start = Instant::now();
    let got =
        body(http.in_session(&session, "/mcp", &rpc(1, "prompts/get", json!({"name": "beta__hello"}))), 200).await;
    assert_eq!(got["result"]["description"], "\"hello\" of beta");
    let called = body(http.in_session(&session, "/mcp", &crate::support::call(2, "alpha__meta", json!({}))), 200).await;
    assert_eq!(called["result"]["content"][0]["text"], "{}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let wanted = json!({"notifications": {"resourceSubscriptions": ["alpha://one", "beta://one"]}});
    let mut heard = crate::support::Events::of(http.modern("/mcp", json!(3), "subscriptions/listen", wanted)).await;
    let granted = heard.next().await.expect("an acknowledgement");
    assert_eq!(granted["params"]["notifications"]["resourceSubscriptions"], json!(["beta://one"]), "{granted}");
    assert!(beta.taken().iter().any(|(method, _)| method == "resources/subscribe"));
}

#[tokio::test]
async fn a_session_hears_what_it_wants_of_log_messages() {
    let (house, [alpha, _]) = house().await;
    let http = house.http().await;
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
    let told: Vec<_> = alpha.taken().into_iter().filter(|(method, _)| method == "logging/setLevel").collect();
    let least = ("logging/setLevel".to_owned(), json!({"level": "warning"}));
    assert_eq!(told, [least.clone(), least], "for each session the least severe that anybody wants");
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
async fn what_a_request_says_of_its_own_reaches_the_source() {
    let (house, _) = house().await;
    let http = house.http().await;
    let params = json!({"name": "meta", "arguments": {}, "_meta": {"vendor/a": [1], "progressToken": 1}});
    let answer = body(http.modern("/mcp/alpha", json!(1), "tools/call", params), 200).await;
    assert_eq!(answer["result"]["content"][0]["text"], r#"{"vendor/a":[1]}"#);
}

#[tokio::test]
async fn what_was_listed_before_a_source_came_or_went_hides_nothing() {
    let (house, _) = house().await;
    let http = house.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let ask = async |method: &str, params: Value| {
        body(http.in_session(&session, "/mcp", &rpc(1, method, params)), 200).await["result"].take()
    };
    let read = async |uri: &str| ask("resources/read", json!({"uri": uri})).await["contents"][0]["text"].take();
    ask("resources/list", json!({})).await;
    ask("resources/templates/list", json!({})).await;
    assert_eq!(read("both://same").await, "alpha");
    house.add(Source::new("gamma")).await;
    assert_eq!(read("gamma://7/data").await, "gamma");
    house.catalogue.remove_provider("alpha").await.expect("it was there");
    assert_eq!(read("both://same").await, "beta");
}
