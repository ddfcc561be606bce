//! Questions to the client of a call: in the stream of the response up to 2025-11-25, and from 2026-07-28 by answering
//! `input_required`, while the call waits where it is.

use serde_json::{Value, json};
use toolwright_core::session::Principal;

use crate::protocol::stdio::Client;
use crate::sources::Source;
use crate::support::{Events, Fixture, Http, LEGACY, asks_always, body, call, rpc};

const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

async fn fixture() -> (Fixture, Source) {
    let fixture = Fixture::new().await;
    let source = Source::new("alpha");
    fixture.add_listed(source.provider()).await;
    (fixture, source)
}

fn form(key: Option<&str>) -> Value {
    json!({"key": key, "method": "elicitation/create", "params": {"message": "m"}})
}

fn everything() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {}})
}

/// A call of `ask` with these rounds.
fn params(rounds: &Value) -> Value {
    json!({"name": "ask", "arguments": {"rounds": rounds}, "_meta": {CAPABILITIES: everything()}})
}

fn again(first: &Value, rounds: &Value, responses: Value) -> Value {
    let mut params = params(rounds);
    params["requestState"] = first["result"]["requestState"].clone();
    params["inputResponses"] = responses;
    params
}

async fn ask(http: &Http, id: i64, params: Value, status: u16) -> Value {
    body(http.modern("/mcp/alpha", json!(id), "tools/call", params), status).await
}

fn text(answer: &Value) -> Value {
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    serde_json::from_str(text).expect("json")
}

#[tokio::test]
async fn a_calls_stream_carries_its_questions() {
    let (fixture, _) = fixture().await;
    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": everything()}))).await;
    let rounds = json!([[form(Some("name")), {"method": "roots/list", "params": {}}]]);
    client.send(&call(1, "alpha__ask", json!({"rounds": rounds}))).await;
    let (first, second) = (client.next().await, client.next().await);
    assert_eq!(
        (&first["method"], &first["params"]),
        (&json!("elicitation/create"), &json!({"message": "alpha asks:\nm"}))
    );
    assert_eq!(second["method"], "roots/list");
    for (asked, result) in [(&second, json!({"roots": []})), (&first, json!({"action": "accept"}))] {
        client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": result})).await;
    }
    let answer = client.next().await;
    assert_eq!((&answer["id"], text(&answer)), (&json!(1), json!([{"action": "accept"}, {"roots": []}])));
    // What it did not announce it is not asked, and its refusals reach the source.
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {"roots": {}}}))).await;
    let refused = client.ask(&call(2, "alpha__ask", json!({"rounds": [[form(None)]]}))).await;
    assert!(
        refused["result"]["content"][0]["text"].as_str().is_some_and(|text| text.contains("does not offer")),
        "{refused}"
    );
    let asked = client.ask(&call(3, "alpha__ask", json!({"rounds": [[{"method": "roots/list", "params": {}}]]}))).await;
    let error = json!({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -1, "message": "not now"}});
    let refused = client.ask(&error).await;
    assert!(refused["result"]["content"][0]["text"].as_str().is_some_and(|text| text.contains("not now")), "{refused}");
    client.end().await;
}

#[tokio::test]
async fn older_clients_get_an_elicitation_id() {
    let (fixture, _) = fixture().await;
    let mut client = Client::of(&fixture);
    let capabilities = json!({"elicitation": {"url": {}}});
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": capabilities}))).await;
    let page = json!({"mode": "url", "message": "m", "url": "https://a.test/"});
    let mut named = page.clone();
    named["elicitationId"] = json!("own");
    let rounds = json!([[
        {"method": "elicitation/create", "params": page}, {"method": "elicitation/create", "params": page},
        {"method": "elicitation/create", "params": named},
    ]]);
    client.send(&call(1, "alpha__ask", json!({"rounds": rounds}))).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let asked = client.next().await;
        ids.push(asked["params"]["elicitationId"].as_str().unwrap_or_else(|| panic!("{asked}")).to_owned());
        client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}})).await;
    }
    assert!(ids[0] != ids[1] && ids[2] == "own", "{ids:?}");
    assert_eq!(text(&client.next().await).as_array().map(Vec::len), Some(3));
    client.end().await;
}

#[tokio::test]
async fn only_some_methods_may_require_input() {
    let fixture = Fixture::with(|options| {
        options.policy = asks_always();
    })
    .await;
    fixture.add_listed(Source::new("alpha").provider()).await;
    let http = fixture.http().await;
    for path in ["/mcp", "/mcp/alpha"] {
        for (method, params) in [
            ("resources/list", json!({})),
            ("resources/templates/list", json!({})),
            ("prompts/list", json!({})),
            ("completion/complete", json!({"ref": {"type": "ref/prompt", "name": "alpha__hello"}, "argument": {}})),
        ] {
            let mut params = params;
            params["_meta"][CAPABILITIES] = everything();
            let response = http.modern(path, json!(1), method, params).send().await.expect("response");
            let answer: Value = response.json().await.expect("json");
            assert_ne!(answer["result"]["resultType"], "input_required", "{path} {method}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_paused_call_continues_with_the_answers() {
    let (fixture, source) = fixture().await;
    let http = fixture.http().await;
    let rounds = json!([[form(Some("user_name")), {"method": "roots/list", "params": {}}], [form(Some("user_name"))]]);
    let first = ask(&http, 1, params(&rounds), 200).await;
    assert_eq!(first["result"]["resultType"], "input_required");
    let expect = json!({
        "user_name": {"method": "elicitation/create", "params": {"message": "alpha asks:\nm"}},
        "roots-list": {"method": "roots/list", "params": {}},
    });
    assert_eq!(first["result"]["inputRequests"], expect);
    // What is missing is asked again, what is there is kept.
    let name = json!({"user_name": {"action": "accept", "content": {"n": 1}}, "other": {}});
    let second = ask(&http, 1, again(&first, &rounds, name.clone()), 200).await;
    assert_eq!(
        second["result"]["inputRequests"].as_object().map(|open| open.keys().cloned().collect::<Vec<_>>()),
        Some(vec!["roots-list".to_owned()])
    );
    let void = ask(&http, 1, again(&first, &rounds, name.clone()), 400).await;
    assert_eq!(void["error"]["code"], -32602, "an earlier state is void");
    let third = ask(&http, 1, again(&second, &rounds, json!({"roots-list": {"roots": []}})), 200).await;
    assert_eq!(third["result"]["resultType"], "input_required");
    assert_ne!(third["result"]["requestState"], second["result"]["requestState"]);
    let last = ask(&http, 1, again(&third, &rounds, json!({"user_name": {"action": "decline"}})), 200).await;
    let all = json!([{"action": "accept", "content": {"n": 1}}, {"roots": []}, {"action": "decline"}]);
    assert_eq!((&last["result"]["resultType"], text(&last)), (&json!("complete"), all));
    assert_eq!(source.taken().len(), 1, "called once");
    let spent = ask(&http, 1, again(&third, &rounds, json!({"user_name": {"action": "decline"}})), 400).await;
    assert_eq!(spent["error"]["code"], -32602, "a state is good for one answer");
}

#[tokio::test]
async fn the_resumed_request_sets_progress_and_level() {
    let (fixture, _) = fixture().await;
    let http = fixture.http().await;
    let arguments = json!({"rounds": [[form(Some("a"))]], "speaks": true});
    let first = json!({"name": "ask", "arguments": arguments, "_meta": {CAPABILITIES: everything()}});
    let asked = ask(&http, 1, first.clone(), 200).await;
    let mut second = first;
    second["requestState"] = asked["result"]["requestState"].clone();
    second["inputResponses"] = json!({"a": {"action": "accept"}});
    second["_meta"]["progressToken"] = json!("late");
    second["_meta"]["io.modelcontextprotocol/logLevel"] = json!("info");
    let mut events = Events::of(http.modern("/mcp/alpha", json!(2), "tools/call", second)).await;
    let progress = events.next().await.expect("progress");
    let params = json!({"progressToken": "late", "progress": 1.0, "_meta": {"k": 1}});
    assert_eq!((&progress["method"], &progress["params"]), (&json!("notifications/progress"), &params));
    let logged = events.next().await.expect("a log message");
    assert_eq!((&logged["method"], &logged["params"]["data"]), (&json!("notifications/message"), &json!("heard")));
    assert_eq!(text(&events.next().await.expect("the answer")), json!([{"action": "accept"}]));
}

#[tokio::test]
async fn a_request_state_fits_its_own_request() {
    let (fixture, source) = fixture().await;
    let http = fixture.http().await;
    let rounds = json!([[form(Some("a"))]]);
    let first = ask(&http, 1, params(&rounds), 200).await;
    let answer = json!({"a": {"action": "accept"}});
    let mut tampered = again(&first, &rounds, answer.clone());
    let state = tampered["requestState"].as_str().expect("text").to_owned();
    tampered["requestState"] = json!(format!("{state}-TAMPERED"));
    let other_arguments = again(&first, &json!([[form(Some("b"))]]), answer.clone());
    let mut other_tool = again(&first, &rounds, answer.clone());
    other_tool["name"] = json!("log");
    for wrong in [
        tampered,
        other_arguments,
        other_tool,
        again(&first, &rounds, json!({"a": 5})),
        again(&first, &rounds, json!([])),
    ] {
        assert_eq!(ask(&http, 2, wrong.clone(), 400).await["error"]["code"], -32602, "{wrong}");
    }
    let mut elsewhere = again(&first, &rounds, answer.clone());
    elsewhere["name"] = json!("alpha__ask");
    let refused = body(http.modern("/mcp", json!(2), "tools/call", elsewhere), 400).await;
    assert_eq!(refused["error"]["code"], -32602);
    let good = ask(&http, 3, again(&first, &rounds, answer), 200).await;
    assert_eq!((&good["id"], text(&good)), (&json!(3), json!([{"action": "accept"}])));
    assert_eq!(source.taken().len(), 1);
}

#[tokio::test]
async fn answers_sent_along_are_used() {
    let (fixture, _) = fixture().await;
    let http = fixture.http().await;
    let rounds = json!([[form(Some("a"))]]);
    let with = |responses: Value| {
        let mut params = params(&rounds);
        params["inputResponses"] = responses;
        params
    };
    let done = ask(&http, 1, with(json!({"a": {"action": "accept"}, "unknown": {}})), 200).await;
    assert_eq!(text(&done), json!([{"action": "accept"}]));
    let asked = ask(&http, 1, with(json!({"wrong": {"action": "accept"}})), 200).await;
    assert_eq!(asked["result"]["resultType"], "input_required");
    assert_eq!(ask(&http, 1, with(json!({"a": 12345})), 400).await["error"]["code"], -32602);
    assert_eq!(ask(&http, 1, with(json!(null)), 200).await["result"]["resultType"], "input_required");
}

#[tokio::test]
async fn an_undeclared_capability_is_named_as_missing() {
    let (fixture, _) = fixture().await;
    let http = fixture.http().await;
    let mut lacking = params(&json!([[{"method": "sampling/createMessage", "params": {}}]]));
    lacking["_meta"][CAPABILITIES] = json!({"elicitation": {}});
    let error = ask(&http, 1, lacking, 400).await;
    assert_eq!(
        (&error["error"]["code"], &error["error"]["data"]),
        (&json!(-32021), &json!({"requiredCapabilities": {"sampling": {}}}))
    );
}

#[tokio::test]
async fn a_stream_ends_with_the_question() {
    let (fixture, _) = fixture().await;
    let http = fixture.http_with(|options| options.keep_alive = std::time::Duration::from_millis(20)).await;
    let rounds = json!([[form(Some("a"))]]);
    let mut only_events = http.modern("/mcp/alpha", json!(1), "tools/call", params(&rounds)).build().expect("request");
    only_events.headers_mut().insert("accept", "text/event-stream".parse().expect("value"));
    let response = http.client.execute(only_events).await.expect("response").text().await.expect("text");
    let data = response.lines().find_map(|line| line.strip_prefix("data: ")).expect("an event");
    let first: Value = serde_json::from_str(data).expect("json");
    assert_eq!(first["result"]["resultType"], "input_required");
    let done = ask(&http, 1, again(&first, &rounds, json!({"a": {"action": "cancel"}})), 200).await;
    assert_eq!(text(&done), json!([{"action": "cancel"}]));
}

#[tokio::test]
async fn over_stdio_a_call_waits_for_answers() {
    let (fixture, source) = fixture().await;
    let mut client = Client::of(&fixture);
    let rounds = json!([[form(Some("a"))]]);
    let modern = |id: i64, params: Value| {
        let mut params = params;
        params["name"] = json!("alpha__ask");
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
        rpc(id, "tools/call", params)
    };
    let first = client.ask(&modern(1, params(&rounds))).await;
    let last = client.ask(&modern(2, again(&first, &rounds, json!({"a": {"action": "accept"}})))).await;
    assert_eq!((&last["id"], text(&last)), (&json!(2), json!([{"action": "accept"}])));
    // A client that leaves while a call waits holds nothing up.
    client.ask(&modern(3, params(&rounds))).await;
    client.end().await;
    assert_eq!(source.taken().len(), 2);
}

#[tokio::test]
async fn prompts_resources_and_approvals_ask_equally() {
    let fixture = Fixture::with(|options| {
        options.policy = asks_always();
    })
    .await;
    let source = Source::new("alpha");
    fixture.add_listed(source.provider()).await;
    let http = fixture.http().await;
    for (method, given) in [
        ("tools/call", json!({"name": "meta", "arguments": {}})),
        ("prompts/get", json!({"name": "hello"})),
        ("resources/read", json!({"uri": "a:b"})),
    ] {
        for (decision, runs) in [("approve", true), ("deny", false)] {
            let with = |extra: Value| {
                let mut params = given.clone();
                params["_meta"][CAPABILITIES] = everything();
                params.as_object_mut().expect("object").extend(extra.as_object().cloned().expect("object"));
                params
            };
            let first = body(http.modern("/mcp/alpha", json!(1), method, with(json!({}))), 200).await;
            let asked = first["result"]["inputRequests"].as_object().unwrap_or_else(|| panic!("{method}: {first}"));
            let (key, question) = asked.iter().next().expect("a question");
            assert_eq!((asked.len(), &question["method"]), (1, &json!("elicitation/create")), "{method}: {first}");
            let answer = json!({key: {"action": "accept", "content": {"decision": decision}}});
            let extra = json!({"requestState": first["result"]["requestState"], "inputResponses": answer});
            let response = http.modern("/mcp/alpha", json!(2), method, with(extra)).send().await.expect("response");
            let last: Value = response.json().await.expect("json");
            let ran = last.get("error").is_none() && last["result"]["isError"] != true;
            assert_eq!(ran, runs, "{method} {decision}: {last}");
        }
    }
    assert_eq!(source.taken().len(), 3);
}

/// A call where everything is to be approved, by a client that has forms and says yes before it is asked.
async fn approving_itself(owner: bool) -> Value {
    let fixture = Fixture::with(|options| {
        options.policy = asks_always();
    })
    .await;
    fixture.add_listed(Source::new("alpha").provider()).await;
    let http = fixture.http_with(|options| {
        options.principal = Principal { id: "ci".into(), roles: Vec::new(), owner };
    });
    let yes = json!({"action": "accept", "content": {"decision": "approve"}});
    let mut params = json!({"name": "meta", "arguments": {}, "_meta": {CAPABILITIES: everything()}});
    params["inputResponses"] = json!({"approval": yes, "approval-": yes});
    ask(&http.await, 1, params, 200).await["result"].take()
}

#[tokio::test]
async fn only_the_owner_approves_its_own_calls() {
    let asked = approving_itself(true).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let denied = approving_itself(false).await;
    assert_eq!((&denied["resultType"], &denied["isError"]), (&json!("complete"), &json!(true)), "{denied}");
}

#[tokio::test]
async fn answers_after_the_end_get_the_result() {
    let (fixture, source) = fixture().await;
    let http = fixture.http().await;
    let params = || json!({"name": "ask", "arguments": {}, "_meta": {CAPABILITIES: everything()}});
    let again = |before: &Value, responses: Value| {
        let mut params = params();
        params["requestState"] = before["result"]["requestState"].clone();
        params["inputResponses"] = responses;
        params
    };
    let open = |answer: &Value| -> Vec<String> {
        let open = answer["result"]["inputRequests"].as_object().unwrap_or_else(|| panic!("{answer}"));
        open.keys().cloned().collect()
    };
    let first = ask(&http, 1, params(), 200).await;
    assert_eq!(open(&first), ["one"]);
    let second = ask(&http, 2, again(&first, json!({"one": {"action": "decline"}})), 200).await;
    assert_eq!(open(&second), ["other"]);
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let declined = ask(&http, 3, again(&second, json!({"other": {"action": "cancel"}})), 200).await;
    assert_eq!(text(&declined), json!([{"action": "decline"}]));
    let later = ask(&http, 4, again(&second, json!({"other": {"action": "cancel"}})), 400).await;
    assert!(later["error"]["message"].as_str().is_some_and(|text| text.contains("has ended")), "{later}");
    assert_eq!(source.taken().len(), 1, "called once");
}

#[tokio::test]
async fn over_http_the_stream_carries_questions() {
    let (fixture, _) = fixture().await;
    let http = fixture.http().await;
    let begin = rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": everything()}));
    let response = http.post("/mcp/alpha", &begin).send().await.expect("response");
    let session = response.headers()["mcp-session-id"].to_str().expect("text").to_owned();
    let asking = call(1, "ask", json!({"rounds": [[form(None)]]}));
    let mut events = Events::of(http.in_session(&session, "/mcp/alpha", &asking)).await;
    let asked = events.next().await.expect("a question");
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}});
    assert_eq!(http.in_session(&session, "/mcp/alpha", &answer).send().await.expect("response").status(), 202);
    assert_eq!(text(&events.next().await.expect("the result")), json!([{"action": "decline"}]));
}
