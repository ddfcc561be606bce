//! What clients of the APIs of OpenAI and Anthropic answer: results of their tools and decisions about calls, each once and
//! each to its own run; and the form of what they are refused.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Map, Value, json};
use toolwright::{ModelApi, Profile, tool};
use toolwright_testkit::model_server::{Fault, Reply, ScriptedModel, Turn, WireApi};

use crate::served::facades::{MODEL, PATHS, Served, client_tool, request, tempfile, text_of, with_result};
use crate::support::{Send, builder, calls, scripted, with_model};

static PAID: AtomicU32 = AtomicU32::new(0);
static BOOKED: AtomicU32 = AtomicU32::new(0);

/// Pays a bill.
#[tool(namespace = "bank", effects(destructive = false))]
async fn pay() -> String {
    format!("paid {}", PAID.fetch_add(1, Ordering::SeqCst) + 1)
}

/// Books a seat.
#[tool(namespace = "seats", effects(read_only))]
async fn book() -> String {
    format!("booked {}", BOOKED.fetch_add(1, Ordering::SeqCst) + 1)
}

fn last_result() -> Turn {
    Turn::computed(|asked| Reply::text(asked.last_result_text()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approved_calls_run_once() {
    let settings = json!({"server": {"facades": {"approvals": "tool"}}});
    let script = (0..2).flat_map(|_| [calls("bank__pay", json!({})), last_result()]).collect();
    let (builder, model) = scripted(builder().tool(Pay).settings(settings), script).await;
    let served = Served::of(builder).await;
    for (path, paid) in [("/v1/responses", "paid 1"), ("/v1/chat/completions", "paid 2")] {
        let mut first = request(path, "pay", false);
        if path != "/v1/responses" {
            first["tools"] = json!([
                {"type": "function", "function": {"name": "approve_tool_call", "parameters": {"type": "object"}}},
            ]);
        }
        let answer = |asked: &Value, yes: bool| match path {
            "/v1/responses" => {
                let items = asked["output"].as_array().expect("items");
                let question = items.iter().find(|item| item["type"] == "mcp_approval_request").expect("a question");
                let answer =
                    json!({"type": "mcp_approval_response", "approval_request_id": question["id"], "approve": yes});
                json!({"model": MODEL, "previous_response_id": asked["id"], "input": [answer]})
            }
            _ => with_result(path, &first, asked, &json!({"approved": yes}).to_string()),
        };
        let asked = served.post(path, first.clone()).await.json();
        let yes = answer(&asked, true);
        let (one, other) = tokio::join!(served.post(path, yes.clone()), served.post(path, yes.clone()));
        for answered in [&one, &other] {
            let is_paid = answered.status == 200 && text_of(&answered.json()) == paid;
            assert!(is_paid || answered.status == 409, "{path}: {}", answered.text);
        }
        let done = if one.status == 200 { one } else { other };
        let again = served.post(path, yes).await;
        assert_eq!((again.status, again.json()["id"].clone()), (200, done.json()["id"].clone()), "{}", again.text);
        assert_eq!(text_of(&again.json()), paid, "the kept answer");
        let changed = served.post(path, answer(&asked, false)).await;
        assert_eq!(changed.status, 409, "{path}: {}", changed.text);
    }
    assert_eq!((PAID.load(Ordering::SeqCst), model.requests().len()), (2, 4));
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_results_continue_a_failed_run() {
    let both = || Turn::calls(vec![("weather", json!({"city": "Oslo"})), ("seats__book", json!({}))]);
    let last = || {
        Turn::computed(|asked| {
            let results: Vec<String> = asked.last_results().into_iter().map(|result| result.text).collect();
            Reply::text(results.join(" and "))
        })
    };
    let script = (0..3).flat_map(|_| [both(), Turn::error(400, "broken"), last()]);
    let script = script.chain([last(), last()]).collect();
    let (builder, model) = scripted(builder().tool(Book), script).await;
    let served = Served::under(Profile::Trusted, builder).await;
    let mut others = Vec::new();
    for (number, path) in (1..).zip(PATHS) {
        let mut first = request(path, "Weather and a seat?", false);
        first["tools"] = client_tool(path);
        let asked = served.post(path, first.clone()).await.json();
        let next = with_result(path, &first, &asked, "rain");
        let failed = served.post(path, next.clone()).await;
        assert!(failed.status >= 400, "{path}: {}", failed.text);
        for _ in 0..2 {
            let done = served.post(path, next.clone()).await;
            assert_eq!(text_of(&done.json()), format!("rain and booked {number}"), "{path}: {}", done.text);
        }
        others.push((path, with_result(path, &first, &asked, "snow")));
    }
    assert_eq!((BOOKED.load(Ordering::SeqCst), model.requests().len()), (3, 9), "no call ran again");
    // Where the client holds the conversation it may go on in another way, with what it sends alone.
    for (path, other) in others {
        let answered = served.post(path, other).await;
        match path {
            "/v1/responses" => assert_eq!(answered.status, 409, "{}", answered.text),
            _ => assert_eq!(text_of(&answered.json()), "snow", "{path}: {}", answered.text),
        }
    }
    assert_eq!(BOOKED.load(Ordering::SeqCst), 3);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_branch_where_no_call_waits() {
    let echo = || Turn::computed(|asked| Reply::text(format!("heard {}", asked.last_user_text())));
    let (builder, _model) = scripted(builder(), vec![echo(), echo(), echo()]).await;
    let served = Served::of(builder).await;
    let path = "/v1/responses";
    let first = served.post(path, request(path, "one", false)).await.json();
    for branch in ["two", "three"] {
        let next = json!({"model": MODEL, "input": branch, "previous_response_id": first["id"]});
        assert_eq!(text_of(&served.post(path, next).await.json()), format!("heard {branch}"));
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_over_models_without_ids_stay_apart() {
    let call = || calls("weather", json!({"city": "Oslo"}));
    let last =
        || Turn::computed(|asked| Reply::text(format!("{}: {}", asked.last_user_text(), asked.last_result_text())));
    let script = (0..2).flat_map(|_| [call(), call(), last(), last()]).collect::<Vec<_>>();
    let model = ScriptedModel::start(script).await.expect("starts");
    let url = model.base_url(WireApi::Ollama);
    let served = Served::of(builder().model_endpoint("scripted", ModelApi::Ollama, url)).await;
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let first = ["here", "there"].map(|text| {
            let mut first = request(path, text, false);
            first["tools"] = client_tool(path);
            first
        });
        let here = served.post(path, first[0].clone()).await.json();
        let there = served.post(path, first[1].clone()).await.json();
        for (first, asked, result) in [(&first[0], &here, "rain"), (&first[1], &there, "snow")] {
            let done = served.post(path, with_result(path, first, asked, result)).await;
            let text = first["messages"][0]["content"].as_str().expect("a text");
            assert_eq!(text_of(&done.json()), format!("{text}: {result}"), "{path}: {}", done.text);
        }
    }
    assert_eq!(model.failures(), Vec::<String>::new());
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profiles_of_views_bound_agents() {
    let settings = json!({
        "views": {"letters": {"allow": ["mail__*"], "profile": "ask"}, "all": {}},
        "server": {"facades": {"approvals": "deny"}, "tokens": {
            "guest": {"token": "other", "views": ["all", "letters"]},
            "friend": {"token": "third", "views": ["all"]},
        }},
    });
    let script = (0..2).flat_map(|_| [calls("mail__send", json!({"to": "me"})), last_result()]).collect();
    let (builder, _model) = scripted(builder().tool(Send).settings(settings), script).await;
    let served = Served::under(Profile::Trusted, builder).await;
    let path = "/v1/chat/completions";
    for (key, expect) in [("other", "denied"), ("third", "sent to me")] {
        let answered = served.send("POST", path, &format!("x-api-key: {key}"), &request(path, "mail me", false)).await;
        assert!(text_of(&answered.json()).contains(expect), "{key}: {}", answered.text);
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_has_the_form_of_its_api() {
    let settings = json!({"server": {"tokens": {"guest": {"token": "other", "models": ["agent/*"]}}}});
    let (builder, _model) = scripted(builder().settings(settings), vec![Turn::text("hi")]).await;
    let served = Served::of(builder).await;
    let (key, anthropic) = ("x-api-key: sesame", "x-api-key: sesame\r\nanthropic-version: 2023-06-01");
    let counted = |model: &str| json!({"model": model, "messages": [{"role": "user", "content": "hi"}]});
    let none = || Value::Null;
    let count = "/v1/messages/count_tokens";
    for (method, path, key, body, status) in [
        ("GET", "/v1/unheard/of", key, none(), 404),
        ("GET", "/v1/unheard/of", anthropic, none(), 404),
        ("GET", "/v1/chat/completions", key, none(), 405),
        ("PUT", "/v1/messages", key, none(), 405),
        ("GET", "/v1/conversations/x/items?limit=x", key, none(), 400),
        ("GET", "/v1/models", "x-api-key: wrong", none(), 401),
        ("POST", "/v1/messages", "x-api-key: wrong", none(), 401),
        ("POST", count, key, counted("nobody"), 404),
        ("POST", count, "x-api-key: other", counted(MODEL), 403),
        ("POST", count, key, counted(MODEL), 200),
        ("POST", "/v1/messages", key, request("/v1/messages", "hi", false), 200),
    ] {
        let answered = served.send(method, path, key, &body).await;
        assert_eq!(answered.status, status, "{method} {path}: {}", answered.text);
        let is_anthropic = path.starts_with("/v1/messages") || key.contains("anthropic");
        assert!(answered.head.contains("\r\nx-request-id: "), "{method} {path}: {}", answered.head);
        assert_eq!(answered.head.contains("\r\nrequest-id: "), is_anthropic, "{method} {path}: {}", answered.head);
        if status >= 400 {
            let body = answered.json();
            assert!(body["error"]["message"].is_string() && body["error"]["type"].is_string(), "{path}: {body}");
            assert_eq!(body["type"] == "error", is_anthropic, "{path}: {body}");
        }
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_parameters_and_paths_are_named() {
    let (builder, _model) = scripted(builder(), vec![Turn::text("hi")]).await;
    let served = Served::of(builder).await;
    let said = ["one", "two", "three"].map(|text| json!({"role": "user", "content": text}));
    let body = json!({"metadata": {"a": "b"}, "items": said});
    let conversation = served.post("/v1/conversations", body).await.json();
    let at = format!("/v1/conversations/{}", conversation["id"].as_str().expect("an id"));
    let items = format!("{at}/items");
    let listed = served.get(&format!("{items}?order=asc&limit=2&include[]=message.output_text.logprobs")).await.json();
    let texts = |list: &Value| -> Vec<String> {
        let items = list["data"].as_array().into_iter().flatten();
        items.filter_map(|item| item["content"][0]["text"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!((texts(&listed), &listed["has_more"]), (vec!["one".to_owned(), "two".to_owned()], &json!(true)));
    let last = listed["last_id"].as_str().expect("an id");
    let rest = served.get(&format!("{items}?order=asc&after={last}")).await.json();
    assert_eq!((texts(&rest), &rest["has_more"]), (vec!["three".to_owned()], &json!(false)));
    let response = served.post("/v1/responses", json!({"model": MODEL, "input": "hi"})).await.json();
    let response = format!("/v1/responses/{}", response["id"].as_str().expect("an id"));
    let many: Map<String, Value> = (0..17).map(|at| (at.to_string(), json!("x"))).collect();
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}]}]);
    for (method, path, body, param) in [
        ("GET", format!("{items}?after=unheard_of"), Value::Null, "after"),
        ("GET", format!("{items}?limit=0"), Value::Null, "limit"),
        ("GET", format!("{items}?limit=101"), Value::Null, "limit"),
        ("GET", format!("{items}?limit=x"), Value::Null, "limit"),
        ("GET", format!("{items}?order=up"), Value::Null, "order"),
        ("GET", format!("{items}?befor=x"), Value::Null, "befor"),
        ("GET", format!("{items}?include=foo"), Value::Null, "include"),
        ("GET", format!("{items}/{last}?include=foo"), Value::Null, "include"),
        ("GET", format!("{items}/{last}?limit=1"), Value::Null, "limit"),
        ("POST", format!("{items}?include[]=foo"), json!({"items": []}), "include"),
        ("GET", format!("{response}?include=foo"), Value::Null, "include"),
        ("GET", format!("{response}/input_items?include[]=foo"), Value::Null, "include"),
        ("GET", format!("{response}/input_items?after=unheard_of"), Value::Null, "after"),
        ("GET", format!("{response}?stream=true"), Value::Null, "stream"),
        ("GET", format!("{response}?strem=true"), Value::Null, "strem"),
        ("POST", "/v1/conversations".into(), json!({"metadata": many}), "metadata"),
        ("POST", "/v1/conversations".into(), json!({"odd": 1}), "odd"),
        ("POST", at, json!({"metadata": {"a": 1}}), "metadata.a"),
        ("POST", items, json!({"items": [{"role": "user", "content": "x", "odd": 1}]}), "items[0].odd"),
        (
            "POST",
            "/v1/chat/completions".into(),
            json!({"model": MODEL, "messages": image}),
            "messages[0].content[0].image_url.url",
        ),
    ] {
        let refused = served.send(method, &path, "x-api-key: sesame", &body).await;
        let error = refused.json()["error"].clone();
        let found = (refused.status, &error["type"], &error["param"]);
        assert_eq!(found, (400, &json!("invalid_request_error"), &json!(param)), "{method} {path}: {error}");
    }
    let mut asked = request("/v1/messages", "hi", false);
    asked["messages"][0]["odd"] = json!(1);
    let refused = served.post("/v1/messages", asked).await;
    let error = json!({"type": "invalid_request_error", "message": "messages[0].odd: this API has no such field"});
    assert_eq!((refused.status, &refused.json()["error"]), (400, &error));
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_cover_agents_tools_and_restarts() {
    let folder = tempfile();
    let settings = json!({
        "models": {"default": MODEL},
        "agents": {"helper": {"description": "Helps."}},
        "server": {"tokens": {"guest": {"token": "other", "budget": {"requests": 4}}}},
    });
    let builder = || builder().builtins(true).settings(settings.clone()).state_dir(&folder);
    let picked = json!({"selected_index": 0, "confidence": 1.0, "reasoning": "r"}).to_string();
    let script = vec![
        calls("agent__helper", json!({"reason": "it is asked for", "task": "help"})),
        Turn::text("helped"),
        calls("llm__classify", json!({"request": "which?", "suggestions": ["one", "two"]})),
        Turn::text(picked),
    ];
    let (first, model) = scripted(builder(), script).await;
    let path = "/v1/chat/completions";
    let ask = async |served: &Served| served.send("POST", path, "x-api-key: other", &request(path, "x", false)).await;
    let served = Served::under(Profile::Trusted, first).await;
    let refused = ask(&served).await;
    assert_eq!((refused.status, model.requests().len()), (429, 4), "all four are spent: {}", refused.text);
    assert!(refused.text.contains("budget.requests"), "{}", refused.text);
    served.end().await;
    let served = Served::under(Profile::Trusted, with_model(builder(), &model)).await;
    let refused = ask(&served).await;
    assert_eq!((refused.status, model.requests().len()), (429, 4), "also after a restart: {}", refused.text);
    assert_eq!(model.failures(), Vec::<String>::new());
    served.end().await;
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_disconnected_clients_are_kept() {
    let settings = json!({"server": {"facades": {"on_disconnect": "continue"}}});
    let slow = || Turn::text("done").with_delay(std::time::Duration::from_millis(300));
    let broken = Turn::error(400, "broken").with_delay(std::time::Duration::from_millis(300));
    let (builder, model) = scripted(builder().settings(settings), vec![slow(), slow(), broken]).await;
    let served = Served::of(builder).await;
    let key = "x-api-key: sesame\r\nx-toolwright-session: mine";
    for (asked, path, expect) in
        [(1, "/v1/chat/completions", "\"done\""), (2, "/v1/messages", "\"done\""), (3, "/v1/messages", "broken")]
    {
        let body = request(path, "x", asked == 2);
        tokio::select! {
            answered = served.send("POST", path, key, &body) => panic!("the client did not leave: {}", answered.text),
            () = crate::support::until("the model is asked", || model.requests().len() == asked) => {}
        }
        let kept = loop {
            let kept = served.get(&format!("{path}/mine")).await;
            if kept.status != 202 {
                break kept;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        assert!(kept.text.contains(expect), "{path}: {}", kept.text);
        assert_eq!(kept.status == 200, asked < 3, "{}", kept.text);
        if asked < 3 {
            let by_id = format!("{path}/{}", kept.json()["id"].as_str().expect("an id"));
            assert_eq!(served.get(&by_id).await.json(), kept.json());
        }
    }
    assert_eq!(served.get("/v1/messages/other").await.status, 404);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losses_of_agent_files_are_named() {
    let (builder, _model) = scripted(builder(), vec![Turn::text("hi")]).await;
    let served = Served::of(builder).await;
    let mut body = request("/v1/messages", "hi", false);
    body["top_k"] = json!(5);
    let answered = served.post("/v1/messages", body).await;
    assert!(answered.head.contains("x-toolwright-losses: top_k"), "{}", answered.head);
    let trace = served.get(&format!("/api/traces/{}", answered.json()["id"].as_str().expect("an id"))).await;
    assert!(trace.text.contains("\"lost\":[\"top_k\"]"), "the ledger has them too: {}", trace.text);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_have_the_form_of_the_api() {
    let limited = || Turn::text("never").with_fault(Fault::Status(429, Some(7)));
    let cut = || Turn::text("half an answer").with_fault(Fault::ErrorAfter(2));
    // A model that has had enough is left alone for these seconds: each has one of its own.
    let once = json!({"retry": {"attempts": 1}});
    let settings = json!({"models": {"p0": once, "p1": once, "p2": once}});
    let script = (0..3).flat_map(|_| [limited(), cut()]).collect();
    let (mut builder, model) = scripted(builder().settings(settings), script).await;
    for name in ["p0", "p1", "p2"] {
        let url = model.base_url(WireApi::OpenAi);
        builder = builder.model_endpoint(name, ModelApi::OpenAiChat, url).model_key(name, "sk-scripted");
    }
    let served = Served::of(builder).await;
    for (number, path) in PATHS.into_iter().enumerate() {
        let mut body = request(path, "x", false);
        body["model"] = json!(format!("raw/p{number}/model"));
        let refused = served.post(path, body.clone()).await;
        assert_eq!(refused.status, 429, "{path}: {}", refused.text);
        assert!(refused.head.contains("retry-after: 7"), "{path}: {}", refused.head);
        (body["stream"], body["model"]) = (json!(true), json!("raw/scripted/model"));
        // The order of its events was checked when it was read.
        let streamed = served.post(path, body).await;
        assert!(streamed.head.contains("text/event-stream"), "{path}: {}", streamed.head);
        let error = if path == "/v1/responses" { "response.failed" } else { "\"error\"" };
        assert!(streamed.text.contains(error), "{path}: {}", streamed.text);
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_keep_a_repeated_answer_once() {
    let (builder, model) = scripted(builder(), vec![calls("weather", json!({"city": "Oslo"})), last_result()]).await;
    let served = Served::of(builder).await;
    let path = "/v1/responses";
    let conversation = served.post("/v1/conversations", json!({})).await.json();
    let mut first = request(path, "Weather?", false);
    (first["tools"], first["conversation"]) = (client_tool(path), conversation["id"].clone());
    let asked = served.post(path, first.clone()).await.json();
    let mut next = with_result(path, &first, &asked, "rain");
    next.as_object_mut().expect("an object").remove("previous_response_id");
    let done = served.post(path, next.clone()).await.json();
    assert_eq!(text_of(&done), "rain", "{done}");
    let items = format!("/v1/conversations/{}/items", conversation["id"].as_str().expect("an id"));
    let before = served.get(&items).await.json();
    let again = served.post(path, next).await.json();
    assert_eq!((&again["id"], text_of(&again).as_str()), (&done["id"], "rain"), "{again}");
    assert_eq!(served.get(&items).await.json(), before, "nothing is added");
    assert_eq!(model.requests().len(), 2);
    served.end().await;
}

/// As the AI SDK does: it sends what was kept by its id alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn item_references_are_resolved_by_id() {
    let heard = Turn::computed(|asked| Reply::text(format!("heard {}", asked.last_user_text())));
    let call = vec![("weather", json!({"city": "Oslo"}))];
    let script = vec![Turn::text_and_calls("Let me see.", call), last_result(), heard];
    let settings = json!({"server": {"tokens": {"guest": {"token": "other"}}}});
    let (builder, model) = scripted(builder().settings(settings), script).await;
    let served = Served::of(builder).await;
    let path = "/v1/responses";
    let mut first = request(path, "Weather?", false);
    first["tools"] = client_tool(path);
    let asked = served.post(path, first.clone()).await.json();
    let reference = |item: &Value| json!({"type": "item_reference", "id": item["id"]});
    let mut input = vec![json!({"role": "user", "content": "Weather?"})];
    input.extend(asked["output"].as_array().expect("items").iter().map(reference));
    let call = asked["output"].as_array().and_then(|items| items.last()).expect("a call")["call_id"].clone();
    input.push(json!({"type": "function_call_output", "call_id": call, "output": "rain"}));
    first["input"] = json!(input);
    let done = served.post(path, first.clone()).await.json();
    assert_eq!(text_of(&done), "rain", "{done}");
    input.extend(done["output"].as_array().expect("items").iter().map(reference));
    input.push(json!({"role": "user", "content": "And then?"}));
    first["input"] = json!(input);
    assert_eq!(text_of(&served.post(path, first.clone()).await.json()), "heard And then?");
    let sent = model.requests()[2].body.to_string();
    for said in ["Weather?", "Let me see.", "Oslo", "rain", "And then?"] {
        assert!(sent.contains(said), "{said}: {sent}");
    }
    let stranger = served.send("POST", path, "x-api-key: other", &first).await;
    assert_eq!(
        (stranger.status, &stranger.json()["error"]["param"]),
        (400, &json!("input[1].id")),
        "{}",
        stranger.text
    );
    served.end().await;
}

/// Brings the client's tool for approvals, where calls are not asked about by items. Returns the request that says yes.
fn approval(path: &str, first: &mut Value) -> impl Fn(&Value) -> Value + use<> {
    let tool = match path {
        "/v1/messages" => json!([{"name": "approve_tool_call", "input_schema": {"type": "object"}}]),
        "/v1/responses" => Value::Null,
        _ => json!([{"type": "function", "function": {"name": "approve_tool_call", "parameters": {"type": "object"}}}]),
    };
    if !tool.is_null() {
        first["tools"] = tool;
    }
    let (path, first) = (path.to_owned(), first.clone());
    move |asked| {
        if path != "/v1/responses" {
            return with_result(&path, &first, asked, "yes");
        }
        let items = asked["output"].as_array().expect("items");
        let question = items.iter().find(|item| item["type"] == "mcp_approval_request").expect("a question");
        let answer = json!({"type": "mcp_approval_response", "approval_request_id": question["id"], "approve": true});
        json!({"model": MODEL, "previous_response_id": asked["id"], "input": [answer]})
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_answers_are_the_kept_ones() {
    let folder = tempfile();
    let settings = json!({"server": {"facades": {"approvals": "tool"}}});
    let script = (0..3).flat_map(|_| [calls("mail__send", json!({"to": "me"})), last_result()]).collect();
    let builder = || builder().tool(Send).settings(settings.clone()).state_dir(&folder);
    let (first_builder, model) = scripted(builder(), script).await;
    let served = Served::of(first_builder).await;
    let mut all = Vec::new();
    for path in PATHS {
        let mut first = request(path, "mail me", false);
        let yes = approval(path, &mut first);
        let next = yes(&served.post(path, first).await.json());
        let done = served.post(path, next.clone()).await;
        assert_eq!(text_of(&done.json()), "sent to me", "{path}: {}", done.text);
        let shows = done.text.contains("mail__send");
        assert_eq!(shows, path != "/v1/chat/completions", "{path}: {}", done.text);
        assert_eq!(served.post(path, next.clone()).await.text, done.text, "{path}");
        all.push((path, next, done));
    }
    served.end().await;
    let served = Served::of(with_model(builder(), &model)).await;
    for (path, mut next, done) in all {
        assert_eq!(served.post(path, next.clone()).await.text, done.text, "{path}: after a restart");
        next["stream"] = json!(true);
        let streamed = served.post(path, next).await;
        assert!(streamed.text.contains("sent to me"), "{path}: {}", streamed.text);
        assert_eq!(streamed.text.contains("mail__send"), done.text.contains("mail__send"), "{path}: {}", streamed.text);
        if path == "/v1/responses" {
            let id = done.json()["id"].as_str().expect("an id").to_owned();
            assert_eq!(served.get(&format!("{path}/{id}")).await.text, done.text, "what is kept stays");
        }
    }
    assert_eq!(model.requests().len(), 6, "no model is asked again");
    served.end().await;
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_needs_its_result() {
    let both = || Turn::calls(vec![("weather", json!({"city": "Oslo"})), ("weather", json!({"city": "Rome"}))]);
    let last = || {
        Turn::computed(|asked| {
            let results: Vec<String> = asked.last_results().into_iter().map(|result| result.text).collect();
            Reply::text(results.join(" and "))
        })
    };
    let (builder, model) = scripted(builder(), (0..3).flat_map(|_| [both(), last()]).collect()).await;
    let served = Served::of(builder).await;
    for (path, calls, id, field) in [
        ("/v1/chat/completions", "/choices/0/message/tool_calls/1", "id", "messages"),
        ("/v1/responses", "/output/1", "call_id", "input"),
        ("/v1/messages", "/content/1", "id", "messages"),
    ] {
        let mut first = request(path, "Weather?", false);
        first["tools"] = client_tool(path);
        let asked = served.post(path, first.clone()).await.json();
        let second = asked.pointer(calls).map(|call| call[id].clone()).expect("a second call");
        let partial = with_result(path, &first, &asked, "rain");
        let refused = served.post(path, partial.clone()).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
        let error = refused.json()["error"].clone();
        let missing = second.as_str().expect("an id");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(missing)), "{path}: {error}");
        if path != "/v1/messages" {
            assert_eq!(error["param"], field, "{path}: {error}");
        }
        let mut whole = partial;
        match path {
            "/v1/responses" => {
                let result = json!({"type": "function_call_output", "call_id": second, "output": "sun"});
                whole["input"].as_array_mut().expect("items").push(result);
            }
            "/v1/messages" => {
                let result = json!({"type": "tool_result", "tool_use_id": second, "content": "sun"});
                let blocks = whole.pointer_mut("/messages/2/content").and_then(Value::as_array_mut);
                blocks.expect("blocks").push(result);
            }
            _ => {
                let result = json!({"role": "tool", "tool_call_id": second, "content": "sun"});
                whole["messages"].as_array_mut().expect("messages").push(result);
            }
        }
        let done = served.post(path, whole).await;
        assert_eq!(text_of(&done.json()), "rain and sun", "{path}: {}", done.text);
    }
    assert_eq!(model.requests().len(), 6);
    served.end().await;
}
