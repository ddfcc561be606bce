//! The APIs of OpenAI and Anthropic that `serve` has: agents with tools behind stock clients.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolwright::{Builder, Profile, Toolwright};
use toolwright_testkit::model_server::{Answer as ModelAnswer, Reply, Tokens, Turn};
use toolwright_testkit::stream_order::check_stream;

use crate::support::{Add, Send, builder, calls, scripted, sum, with_model};

pub(crate) const KEY: &str = "sesame";

/// A server, and the program behind it.
pub(crate) struct Served {
    pub(crate) tw: std::sync::Arc<Toolwright>,
    gateway: toolwright::Serving,
}

pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answered {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect("JSON")
    }
}

impl Served {
    pub(crate) async fn of(builder: Builder) -> Self {
        Self::under(Profile::Ask, builder).await
    }

    pub(crate) async fn under(profile: Profile, builder: Builder) -> Self {
        let tw = builder.build().await.expect("builds");
        let gateway = tw.serve().policy(profile).token(KEY).http("127.0.0.1:0").await.expect("listens");
        Self { tw, gateway }
    }

    /// Sends a request, whose answer comes on this connection.
    pub(crate) async fn open(&self, method: &str, path: &str, key: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(self.gateway.addr()).await.expect("connects");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        // An answer of HTTP/1.0 ends with its connection.
        let request = format!(
            "{method} {path} HTTP/1.0\r\nhost: localhost\r\n{key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("sends");
        stream
    }

    pub(crate) async fn send(&self, method: &str, path: &str, key: &str, body: &Value) -> Answered {
        let mut stream = self.open(method, path, key, body).await;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("reads");
        let (head, text) = answer.split_once("\r\n\r\n").expect("a head");
        if head.to_ascii_lowercase().contains("text/event-stream") {
            let checked = check_stream(path, text);
            assert!(checked.is_ok(), "{path}: {checked:?}\n{text}");
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answered { status, head: head.to_ascii_lowercase(), text: text.to_owned() }
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answered {
        self.send("POST", path, &format!("authorization: Bearer {KEY}"), &body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answered {
        self.send("GET", path, &format!("authorization: Bearer {KEY}"), &Value::Null).await
    }

    pub(crate) async fn end(self) {
        self.gateway.shut_down().await.expect("ends well");
        self.tw.shut_down().await;
    }
}

pub(crate) const MODEL: &str = "scripted/model";

pub(crate) fn request(path: &str, text: &str, stream: bool) -> Value {
    match path {
        "/v1/responses" => json!({"model": MODEL, "input": text, "stream": stream}),
        _ => json!({
            "model": MODEL, "max_tokens": 99, "stream": stream, "messages": [{"role": "user", "content": text}],
        }),
    }
}

/// The text of a whole answer.
pub(crate) fn text_of(body: &Value) -> String {
    let chat = body.pointer("/choices/0/message/content").and_then(Value::as_str).map(str::to_owned);
    let parts = |list: &Value| -> String {
        list.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect()
    };
    let responses = || {
        let items = body["output"].as_array()?;
        Some(items.iter().map(|item| parts(&item["content"])).collect::<String>())
    };
    chat.or_else(responses).unwrap_or_else(|| parts(&body["content"]))
}

pub(crate) const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/responses", "/v1/messages"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_with_tools_answer_every_api() {
    let turns = || vec![calls("math__add", sum(2, 40)), Turn::text("It is 42.")];
    let script: Vec<Turn> = (0..6).flat_map(|_| turns()).collect();
    let (builder, model) = scripted(builder().tool(Add), script).await;
    let served = Served::of(builder).await;
    for path in PATHS {
        let whole = served.post(path, request(path, "2 + 40?", false)).await;
        assert_eq!((whole.status, text_of(&whole.json()).as_str()), (200, "It is 42."), "{}", whole.text);
        let streamed = served.post(path, request(path, "2 + 40?", true)).await;
        assert!(streamed.head.contains("text/event-stream"), "{}", streamed.head);
        assert!(streamed.text.contains("42"), "{}", streamed.text);
        let shows = streamed.text.contains("math__add");
        assert_eq!(shows, path != "/v1/chat/completions", "calls that run here are items where there are some");
    }
    assert_eq!(model.failures(), Vec::<String>::new());
    served.end().await;
}

pub(crate) fn client_tool(path: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    match path {
        "/v1/messages" => json!([{"name": "weather", "input_schema": parameters}]),
        "/v1/responses" => json!([{"type": "function", "name": "weather", "parameters": parameters}]),
        _ => json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}]),
    }
}

/// The next request of a client that has run its call.
pub(crate) fn with_result(path: &str, first: &Value, answer: &Value, result: &str) -> Value {
    let mut next = first.clone();
    match path {
        "/v1/responses" => {
            let call = answer["output"].as_array().expect("items").iter().find(|item| item["type"] == "function_call");
            let id = call.expect("a call")["call_id"].clone();
            next["previous_response_id"] = answer["id"].clone();
            next["input"] = json!([{"type": "function_call_output", "call_id": id, "output": result}]);
        }
        "/v1/messages" => {
            let blocks = answer["content"].as_array().expect("blocks");
            let id = blocks.iter().find(|block| block["type"] == "tool_use").expect("a call")["id"].clone();
            let messages = next["messages"].as_array_mut().expect("messages");
            messages.push(json!({"role": "assistant", "content": blocks}));
            messages.push(json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id, "content": result},
            ]}));
        }
        _ => {
            let message = answer["choices"][0]["message"].clone();
            let id = message["tool_calls"][0]["id"].clone();
            let messages = next["messages"].as_array_mut().expect("messages");
            messages.push(message);
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
        }
    }
    next
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_calls_continue_after_a_restart() {
    for path in PATHS {
        let folder = tempfile();
        let both = Turn::from(Reply::calls(vec![("weather", json!({"city": "Oslo"})), ("math__add", sum(2, 40))]));
        let last = Turn::computed(|asked| {
            let results: Vec<String> = asked.last_results().into_iter().map(|result| result.text).collect();
            Reply::text(results.join(" and "))
        });
        let (first_builder, model) = scripted(builder().tool(Add).state_dir(&folder), vec![both, last]).await;
        let served = Served::of(first_builder).await;
        let mut first = request(path, "Weather and sum?", false);
        first["tools"] = client_tool(path);
        let answer = served.post(path, first.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        served.end().await;
        let served = Served::of(with_model(builder().tool(Add).state_dir(&folder), &model)).await;
        let next = with_result(path, &first, &answer.json(), "rain");
        let done = served.post(path, next).await;
        assert_eq!(text_of(&done.json()), "rain and 42", "{path}: {}", done.text);
        assert_eq!(model.failures(), Vec::<String>::new());
        served.end().await;
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}

pub(crate) fn tempfile() -> std::path::PathBuf {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::env::temp_dir().join(format!("toolwright-facades-{}-{next}", std::process::id()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_only_reads_asks_no_model() {
    let settings = json!({"server": {"tokens": {"guest": {"token": "other", "views": [], "api": "read"}}}});
    let (builder, model) = scripted(builder().settings(settings), Vec::new()).await;
    let served = Served::of(builder).await;
    let asked = json!({"model": format!("raw/{MODEL}"), "messages": [{"role": "user", "content": "x"}]});
    let refused = served.send("POST", "/v1/chat/completions", "x-api-key: other", &asked).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert_eq!(served.send("GET", "/api/jobs", "authorization: Bearer other", &Value::Null).await.status, 200);
    assert!(model.requests().is_empty());
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_have_the_form_of_the_api() {
    let (builder, _model) = scripted(builder(), Vec::new()).await;
    let served = Served::of(builder).await;
    for path in PATHS {
        let anthropic = path == "/v1/messages";
        let mut body = request(path, "x", false);
        body["unheard_of"] = json!(1);
        let refused = served.post(path, body).await;
        assert_eq!(refused.status, 400);
        let error = refused.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|message| message.contains("unheard_of")), "{error}");
        assert_eq!(error["type"], "invalid_request_error");
        let mut body = request(path, "x", false);
        body["model"] = json!("nobody");
        let unknown = served.post(path, body).await;
        assert_eq!(unknown.status, 404, "{}", unknown.text);
        let ends = "); `GET /v1/models` lists what there is";
        let message = unknown.json()["error"]["message"].clone();
        assert!(message.as_str().is_some_and(|message| message.ends_with(ends)), "{message}");
        let kind = if anthropic { "not_found_error" } else { "invalid_request_error" };
        assert_eq!(unknown.json()["error"]["type"], kind);
        let stranger = served.send("POST", path, "x-api-key: wrong", &request(path, "x", false)).await;
        assert_eq!((stranger.status, stranger.json()["error"]["type"].clone()), (401, json!("authentication_error")));
        for refused in [unknown, stranger] {
            let id = refused.json()["request_id"].as_str().map(|id| format!("\r\nrequest-id: {id}\r\n"));
            assert_eq!(id.is_some(), anthropic, "{}", refused.text);
            assert!(id.is_none_or(|id| format!("{}\r\n", refused.head).contains(&id)), "{}", refused.head);
        }
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_models_cross_apis_and_name_losses() {
    let (builder, model) = scripted(builder().tool(Add), vec![Turn::text("plain"), Turn::text("streamed")]).await;
    let served = Served::of(builder).await;
    let mut body = request("/v1/messages", "hi", false);
    body["model"] = json!("raw/scripted/model");
    body["top_k"] = json!(5);
    let whole = served.post("/v1/messages", body.clone()).await;
    assert_eq!(text_of(&whole.json()), "plain", "{}", whole.text);
    assert!(whole.head.contains("x-toolwright-losses: top_k"), "{}", whole.head);
    let trace = served.get(&format!("/api/traces/{}", whole.json()["id"].as_str().expect("an id"))).await;
    assert!(trace.text.contains("\"lost\":[\"top_k\"]"), "the ledger has them too: {}", trace.text);
    body["stream"] = json!(true);
    let streamed = served.post("/v1/messages", body).await;
    assert!(streamed.text.contains("streamed"), "{}", streamed.text);
    assert!(model.requests().iter().all(|request| request.body.get("tools").is_none()), "no tools of ours");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_has_cached_and_reasoning_tokens() {
    let tokens = Tokens { input: 100, cached: 40, cache_written: 0, output: 20, thinking: 7 };
    let answer = || Turn::from(Reply::Answer(ModelAnswer { text: "warm".into(), tokens, ..ModelAnswer::default() }));
    let (builder, _model) = scripted(builder(), (0..3).map(|_| answer()).collect()).await;
    let served = Served::of(builder).await;
    for (path, figures) in [
        (
            "/v1/chat/completions",
            ["/prompt_tokens_details/cached_tokens", "/completion_tokens_details/reasoning_tokens"],
        ),
        ("/v1/responses", ["/input_tokens_details/cached_tokens", "/output_tokens_details/reasoning_tokens"]),
        ("/v1/messages", ["/cache_read_input_tokens", "/output_tokens_details/thinking_tokens"]),
    ] {
        let usage = served.post(path, request(path, "warm?", false)).await.json()["usage"].clone();
        assert_eq!(figures.map(|figure| usage.pointer(figure)), [Some(&json!(40)), Some(&json!(7))], "{usage}");
    }
    served.end().await;
}

/// A client adds the figures up, or takes the last as the size of its conversation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_that_of_one_request() {
    for path in PATHS {
        let script =
            vec![Turn::from(Reply::calls(vec![("weather", json!({"city": "Oslo"}))])), Turn::text("It rains.")];
        let (builder, _model) = scripted(builder(), script).await;
        let served = Served::of(builder).await;
        let mut first = request(path, "Weather?", false);
        first["tools"] = client_tool(path);
        let asked = served.post(path, first.clone()).await.json();
        let done = served.post(path, with_result(path, &first, &asked, "rain")).await.json();
        assert_eq!(text_of(&done), "It rains.", "{done}");
        assert!(asked["usage"].to_string().contains("10") && asked["usage"] == done["usage"], "{asked}\n{done}");
        served.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_takes_one_result() {
    let script = vec![Turn::from(Reply::calls(vec![("weather", json!({"city": "Oslo"}))])), Turn::text("It rains.")];
    let (builder, model) = scripted(builder(), script).await;
    let served = Served::of(builder).await;
    let path = "/v1/responses";
    let mut first = request(path, "Weather?", false);
    first["tools"] = client_tool(path);
    let asked = served.post(path, first.clone()).await.json();
    let next = with_result(path, &first, &asked, "rain");
    let (mut twice, mut other) = (next.clone(), next.clone());
    let again = next["input"][0].clone();
    twice["input"].as_array_mut().expect("items").push(again);
    other["input"][0]["call_id"] = json!("unheard_of");
    for wrong in [twice, other] {
        let refused = served.post(path, wrong).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
    }
    let done = served.post(path, next.clone()).await.json();
    assert_eq!(text_of(&done), "It rains.", "{done}");
    let mut repeated = next;
    repeated["previous_response_id"] = done["id"].clone();
    assert_eq!(served.post(path, repeated).await.status, 400, "it has its result");
    assert_eq!(model.requests().len(), 2);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_shows_calls_as_reasoning_if_configured() {
    let settings = json!({"server": {"facades": {"chat_calls": "reasoning"}}});
    let script = (0..2).flat_map(|_| [calls("math__add", sum(2, 40)), Turn::text("It is 42.")]).collect();
    let (builder, _model) = scripted(builder().tool(Add).settings(settings), script).await;
    let served = Served::of(builder).await;
    let path = "/v1/chat/completions";
    let whole = served.post(path, request(path, "2 + 40?", false)).await.json();
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["content"], message.get("tool_calls")), (&json!("It is 42."), None), "{message}");
    let shown = message["reasoning_content"].as_str().expect("reasoning");
    assert!(shown.contains("math__add {") && shown.contains("result: 42"), "{shown}");
    let streamed = served.post(path, request(path, "2 + 40?", true)).await;
    assert!(streamed.text.contains("\"reasoning_content\":\"result: 42"), "{}", streamed.text);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_hide_calls_if_asked() {
    let settings = json!({"server": {"facades": {"responses_calls": "hidden"}}});
    let turns = |_| [Turn::text_and_calls("Let me see.", vec![("math__add", sum(2, 40))]), Turn::text("It is 42.")];
    let (builder, _model) = scripted(builder().tool(Add).settings(settings), (0..3).flat_map(turns).collect()).await;
    let served = Served::of(builder).await;
    let path = "/v1/responses";
    let whole = served.post(path, request(path, "2 + 40?", false)).await.json();
    let kinds: Vec<&str> =
        whole["output"].as_array().expect("items").iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!((kinds, text_of(&whole).as_str()), (vec!["message", "message"], "Let me see.It is 42."));
    let streamed = served.post(path, request(path, "2 + 40?", true)).await;
    assert!(!streamed.text.contains("mcp_call") && streamed.text.contains("It is 42."), "{}", streamed.text);
    // The console shows them nevertheless.
    let link = served.gateway.console();
    let token = json!({"token": link.split_once("#token=").expect("a token").1});
    let page = served.send("POST", "/console/session", "accept: */*", &token).await.json();
    let key = format!("authorization: Bearer {}", page["token"].as_str().expect("a token"));
    let shown = served.send("POST", path, &key, &request(path, "2 + 40?", true)).await;
    assert!(shown.text.contains("mcp_call") && shown.text.contains("It is 42."), "{}", shown.text);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_limit_budgets_models_and_views() {
    let settings = json!({
        "views": {"sums": {"allow": ["math__*"]}},
        "server": {"tokens": {"guest": {
            "token": "other", "models": ["scripted/*"], "budget": {"requests": 1}, "views": ["sums"],
        }}},
    });
    let (builder, model) = scripted(builder().tool(Add).tool(Send).settings(settings), vec![Turn::text("once")]).await;
    let served = Served::of(builder).await;
    let path = "/v1/messages";
    let key = "x-api-key: other";
    let once = served.send("POST", path, key, &request(path, "x", false)).await;
    assert_eq!(text_of(&once.json()), "once", "{}", once.text);
    let sent = model.requests()[0].body.to_string();
    assert!(sent.contains("math__add") && !sent.contains("mail__send"), "{sent}");
    for stream in [false, true] {
        let refused = served.send("POST", path, key, &request(path, "x", stream)).await;
        assert_eq!(refused.status, 429, "{}", refused.text);
        assert!(refused.head.contains("retry-after"), "{}", refused.head);
        assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    }
    let mut other = request(path, "x", false);
    other["model"] = json!("raw/scripted/model");
    assert_eq!(served.send("POST", path, key, &other).await.status, 403);
    assert_eq!(model.requests().len(), 1);
    let budgets = served.get("/api/budgets").await.json()["tokens"].clone();
    assert_eq!((&budgets[0]["token"], &budgets[0]["limits"]["requests"]), (&json!("guest"), &json!(1)), "{budgets}");
    assert_eq!((&budgets[0]["spent"]["requests"], &budgets[1]), (&json!(1), &Value::Null), "{budgets}");
    served.end().await;
}

/// Fetches this until it is so.
pub(crate) async fn until(served: &Served, path: &str, holds: impl Fn(&Value) -> bool) {
    for _ in 0..600 {
        if holds(&served.get(path).await.json()) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let now = served.get(path).await.text;
    assert!(now.is_empty(), "{path} never became so: {now}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_listed_in_both_forms() {
    let (builder, _model) = scripted(builder().settings(json!({"models": {"default": MODEL}})), Vec::new()).await;
    let served = Served::of(builder).await;
    let openai = served.get("/v1/models").await.json();
    assert_eq!(openai["data"][0], json!({"id": MODEL, "object": "model", "created": 0, "owned_by": "toolwright"}));
    let key = format!("x-api-key: {KEY}\r\nanthropic-version: 2023-06-01");
    let anthropic = served.send("GET", "/v1/models", &key, &Value::Null).await.json();
    assert_eq!((&anthropic["first_id"], &anthropic["data"][0]["type"]), (&json!(MODEL), &json!("model")));
    let raw = format!("raw/{MODEL}");
    for (query, ids, has_more) in [
        ("limit=1".to_owned(), vec![MODEL], true),
        (format!("after_id={MODEL}&beta=true"), vec![raw.as_str()], false),
        (format!("before_id={raw}"), vec![MODEL], false),
        (format!("after_id={MODEL}&before_id={MODEL}"), vec![], false),
    ] {
        let page = served.send("GET", &format!("/v1/models?{query}"), &key, &Value::Null).await.json();
        let found: Vec<_> = page["data"].as_array().into_iter().flatten().map(|model| model["id"].as_str()).collect();
        assert_eq!(found, ids.into_iter().map(Some).collect::<Vec<_>>(), "{query}: {page}");
        assert_eq!(page["has_more"], has_more, "{query}: {page}");
    }
    for wrong in ["limit=0", "limit=1001", "after_id=nobody"] {
        let refused = served.send("GET", &format!("/v1/models?{wrong}"), &key, &Value::Null).await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{wrong}"
        );
    }
    assert_eq!(served.get(&format!("/v1/models/{MODEL}")).await.json()["id"], MODEL);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_parameters_of_urls_are_refused() {
    let served = Served::of(scripted(builder(), Vec::new()).await.0).await;
    let (conversation, model) =
        (served.post("/v1/conversations", json!({})).await.json(), format!("/v1/models/{MODEL}"));
    let conversation = format!("/v1/conversations/{}", conversation["id"].as_str().expect("an id"));
    for path in ["/v1/models", &model, &conversation, "/v1/messages/s", "/v1/chat/completions/s"] {
        let refused = served.get(&format!("{path}?limt=1")).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
        assert!(refused.text.contains("there is no parameter `limt`"), "{path}: {}", refused.text);
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counted_tokens_include_prompts_and_tools() {
    let count = async |builder: Builder, model: &str, tools: bool| {
        let (builder, asked) = scripted(builder, Vec::new()).await;
        let served = Served::of(builder).await;
        let mut body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}]});
        if tools {
            body["tools"] = client_tool("/v1/messages");
        }
        let counted = served.post("/v1/messages/count_tokens", body).await;
        assert!(asked.requests().is_empty(), "no model is asked");
        served.end().await;
        counted.json()["input_tokens"].as_u64().unwrap_or_else(|| panic!("{}", counted.text))
    };
    let raw = count(builder(), &format!("raw/{MODEL}"), false).await;
    let bare = count(builder(), MODEL, false).await;
    let with_own = count(builder().tool(Add), MODEL, false).await;
    let with_both = count(builder().tool(Add), MODEL, true).await;
    assert!(0 < raw && raw < bare && bare < with_own && with_own < with_both, "{raw} {bare} {with_own} {with_both}");
}
