//! What the client makes of the headers of an answer, of what is known of a model, and of a server that goes away.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{
    IgnoreModelEvents, Message, ModelClient, ModelErrorKind, ModelEvent, ModelRequest, OutputFormat, RateLimitWindow,
    RateLimits, RequestProgress, RequestSettings, Usability,
};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient, ModelOverrides, TimeoutOverrides, encode};
use toolwright_testkit::FakeModelEvents;
use toolwright_testkit::StreamItem::{Event, Traffic};
use toolwright_testkit::model_server::{Script, ScriptedModel, Turn, WireApi};

use crate::http::embeddings;

/// A server that gives every connection these bytes and closes it.
async fn saying(bytes: impl Into<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let bytes = bytes.into();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut read = [0; 8192];
            let _ = stream.read(&mut read).await;
            let _ = stream.write_all(bytes.as_bytes()).await;
        }
    });
    url
}

fn response(status: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
}

fn client(api: Api, url: &str, overrides: ModelOverrides) -> HttpModelClient {
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("p", api, url).with_key("k"));
    endpoints.set_overrides("p", overrides);
    HttpModelClient::new(endpoints)
}

fn question() -> ModelRequest {
    ModelRequest { messages: vec![Message::user("q")], ..ModelRequest::default() }
}

/// The model and the connection of each request.
type Served = Arc<Mutex<BTreeSet<(String, usize)>>>;

/// A server whose connections stay open, and what they served.
async fn keeping_connections() -> (String, Served) {
    let body = json!({"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}).to_string();
    let (answer, served) = (response("200 OK", &[], &body), Served::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, serves) = (format!("http://{}", listener.local_addr().unwrap()), Arc::clone(&served));
    tokio::spawn(async move {
        for number in 0.. {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let (answer, serves) = (answer.clone(), Arc::clone(&serves));
            tokio::spawn(async move {
                while let Some((_, body)) = embeddings::read(&mut stream).await {
                    serves.lock().unwrap().insert((body["model"].as_str().unwrap().to_owned(), number));
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    (url, served)
}

#[tokio::test]
async fn providers_and_dedicated_models_have_own_connections() {
    let (url, served) = keeping_connections().await;
    let mut endpoints = Endpoints::default();
    for provider in ["p", "q"] {
        endpoints.insert(Endpoint::new(provider, Api::OpenAiChat, url.as_str()).with_key(provider));
    }
    let dedicated = ModelOverrides { requires_dedicated_client: true, ..ModelOverrides::default() };
    endpoints.set_overrides("q/own", dedicated);
    let client = HttpModelClient::new(endpoints);
    for model in ["p/a", "p/b", "q/c", "q/own", "q/d", "q/own", "p/a"] {
        client.complete(model, &question(), &IgnoreModelEvents, &Cancel::new()).await.unwrap();
    }
    let served = served.lock().unwrap();
    for group in [["a", "b"].as_slice(), &["c", "d"], &["own"]] {
        let (own, others): (Vec<_>, Vec<_>) = served.iter().partition(|(model, _)| group.contains(&model.as_str()));
        assert!(own.iter().all(|(_, one)| others.iter().all(|(_, other)| one != other)), "{served:?}");
    }
}

#[tokio::test]
async fn limits_and_first_bytes_precede_the_answer() {
    let body = json!({"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}).to_string();
    let headers = [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "1m0s"),
    ];
    let url = saying(response("200 OK", &headers, &body)).await;
    let reported = FakeModelEvents::default();
    let client = client(Api::OpenAiChat, &url, ModelOverrides::default());
    client.complete("p/m", &question(), &reported, &Cancel::new()).await.unwrap();
    let requests = RateLimitWindow { limit: Some(60), remaining: Some(0), reset_ms: Some(60_000) };
    let limits = RequestProgress::Limits(RateLimits { requests, ..RateLimits::default() });
    let expect = [Traffic(limits), Traffic(RequestProgress::FirstByte), Event(ModelEvent::Text("ok".into()))];
    assert_eq!(*reported.seen(), expect);
}

#[tokio::test]
async fn retry_advice_is_read_from_failures() {
    use ModelErrorKind::*;
    let minute = json!([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "quota",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26s"}]}}]);
    let minute = minute.to_string();
    // Kind, milliseconds to wait, whether another try is worth it.
    let check = async |answer: String, expect: (ModelErrorKind, Option<u64>, Option<bool>)| {
        let url = saying(answer.clone()).await;
        let client = client(Api::Gemini, &url, ModelOverrides::default());
        let reported = FakeModelEvents::default();
        let error = client.complete("p/m", &question(), &reported, &Cancel::new()).await.unwrap_err();
        assert_eq!((error.kind, error.retry_after_ms, error.should_retry), expect, "{answer}: {error}");
        assert!(reported.seen().is_empty(), "nothing of an answer has come");
    };
    check(response("429 Too Many", &[], &minute), (RateLimit, Some(26_000), None)).await;
    let header = [("retry-after-ms", "1500"), ("retry-after", "9")];
    check(response("429 Too Many", &header, &minute), (RateLimit, Some(1500), None)).await;
    check(response("503 Busy", &[("x-should-retry", "false")], "{}"), (Unavailable, None, Some(false))).await;
    check(response("500 Oops", &[("x-should-retry", "true")], "{}"), (Unavailable, None, Some(true))).await;
    check(response("400 Bad", &[("x-should-retry", "true")], "{}"), (Invalid, None, None)).await;
    // It had the request, so it may have billed it.
    check(String::new(), (Unavailable, None, Some(false))).await;
    check("HTTP/1.1 200 OK\r\ncontent-le".into(), (Unavailable, None, Some(false))).await;
}

#[tokio::test]
async fn only_unsent_requests_are_worth_another_try() {
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let client = client(Api::OpenAiChat, &gone, ModelOverrides::default());
    let error = client.complete("p/m", &question(), &IgnoreModelEvents, &Cancel::new()).await.unwrap_err();
    assert_eq!((error.kind, error.should_retry), (ModelErrorKind::Unavailable, Some(true)), "{error}");

    let server = ScriptedModel::start(vec![Turn::text("late").with_delay(Duration::from_secs(30))]).await.unwrap();
    let timeouts = TimeoutOverrides { first_byte: Some(Duration::from_millis(100)), ..TimeoutOverrides::default() };
    let overrides = ModelOverrides { timeouts, ..ModelOverrides::default() };
    let client = self::client(Api::OpenAiChat, &server.base_url(WireApi::OpenAi), overrides);
    let error = client.complete("p/m", &question(), &IgnoreModelEvents, &Cancel::new()).await.unwrap_err();
    assert_eq!((error.kind, error.should_retry), (ModelErrorKind::Unavailable, Some(false)), "{error}");
    assert!(error.message.contains("no answer within 0.1 s"), "{error}");
}

#[tokio::test]
async fn window_and_longest_answer_bound_requests() {
    let overrides = ModelOverrides { window: Some(8192), max_output: Some(500), ..ModelOverrides::default() };
    for (api, wire, asked, at, expect) in [
        (Api::Ollama, WireApi::Ollama, Some(900), "/options", json!({"num_predict": 500, "num_ctx": 8192})),
        (Api::Ollama, WireApi::Ollama, None, "/options", json!({"num_ctx": 8192})),
        (Api::Anthropic, WireApi::Anthropic, Some(900), "/max_tokens", json!(500)),
        (Api::Anthropic, WireApi::Anthropic, Some(90), "/max_tokens", json!(90)),
        (Api::Anthropic, WireApi::Anthropic, None, "/max_tokens", json!(500)),
        (Api::OpenAiChat, WireApi::OpenAi, Some(900), "/max_completion_tokens", json!(500)),
    ] {
        let server = ScriptedModel::start(Script::echo()).await.unwrap();
        let client = client(api, &server.base_url(wire), overrides.clone());
        let request = ModelRequest { max_tokens: asked, ..question() };
        client.complete("p/m", &request, &IgnoreModelEvents, &Cancel::new()).await.unwrap();
        let sent = server.requests().remove(0);
        assert_eq!(sent.body.pointer(at), Some(&expect), "{api} {asked:?}");
    }
}

#[tokio::test]
async fn reported_longest_answer_is_the_sent_limit() {
    let settings = |value| serde_json::from_value::<RequestSettings>(value).unwrap();
    for (api, wire, at) in [
        (Api::Anthropic, WireApi::Anthropic, "/max_tokens"),
        (Api::OpenAiChat, WireApi::OpenAi, "/max_completion_tokens"),
        (Api::Ollama, WireApi::Ollama, "/options/num_predict"),
    ] {
        for (configured, asked, says, max_output) in [
            (json!({}), Some(900), json!({}), None),
            (json!({"effort": "high"}), Some(900), json!({}), None),
            (json!({"effort": "high"}), Some(900), json!({"effort": "none"}), None),
            (json!({"thinking_tokens": 5000}), Some(900), json!({}), Some(4000)),
            (json!({"effort": "low"}), Some(900), json!({"effort": "high"}), None),
            (json!({"effort": "high"}), None, json!({}), None),
        ] {
            let server = ScriptedModel::start(Script::echo()).await.unwrap();
            let overrides = ModelOverrides {
                settings: settings(configured.clone()).settings,
                max_output,
                ..ModelOverrides::default()
            };
            let client = client(api, &server.base_url(wire), overrides);
            let request = ModelRequest { max_tokens: asked, settings: settings(says.clone()), ..question() };
            client.complete("p/m", &request, &IgnoreModelEvents, &Cancel::new()).await.unwrap();
            let reported = client.longest_answer("p/m", asked, &request.settings, 4096);
            let sent = server.requests()[0].body.pointer(at).and_then(serde_json::Value::as_u64);
            assert_eq!(sent.is_some(), asked.is_some() || api == Api::Anthropic, "{api}");
            assert!(
                sent.is_none_or(|sent| sent == u64::from(reported)),
                "{api} {configured} {asked:?} {says}: {sent:?}, {reported}"
            );
        }
    }
}

#[test]
fn card_says_whether_a_model_answers() {
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("keyed", Api::Anthropic, "https://h").with_key("k"));
    endpoints.insert(Endpoint::new("bare", Api::Anthropic, "https://h"));
    endpoints.insert(Endpoint::new("local", Api::OpenAiChat, "http://127.0.0.1:8000/v1"));
    endpoints.insert(Endpoint::new("ollama", Api::Ollama, "http://h:11434"));
    let headers = [("authorization".to_owned(), "x".to_owned())].into();
    endpoints.insert(Endpoint { headers, ..Endpoint::new("by_header", Api::OpenAiChat, "https://h") });
    let known = ModelOverrides { window: Some(8), max_output: Some(4), ..ModelOverrides::default() };
    endpoints.set_overrides("keyed/m", known);
    let client = HttpModelClient::new(endpoints);
    for (model, usable) in
        [("keyed/m", true), ("bare/m", false), ("local/m", true), ("ollama/m", true), ("by_header/m", true)]
    {
        let expect = if usable { Usability::Usable } else { Usability::NoKey };
        assert_eq!(client.card(model).usability, expect, "{model}");
    }
    assert!(matches!(client.card("x/m").usability, Usability::Unknown(why) if why.contains("`x`")));
    let card = client.card("keyed/m");
    assert_eq!((card.window, card.max_output), (Some(8), Some(4)));
    assert_eq!(client.card("bare/m").window, None);
}

#[test]
fn old_gemini_gets_the_shape_as_text() {
    let output = OutputFormat { name: "o".into(), schema: Some(json!({"type": "object"})) };
    let with_tools = ModelRequest { output: Some(output), ..crate::golden::conversation() };
    let without = ModelRequest { tools: Arc::default(), ..with_tools.clone() };
    for (model, request, in_words) in [
        ("gemini-2.5-flash", &with_tools, true),
        ("models/gemini-2.0-pro", &with_tools, true),
        ("gemini-2.5-flash", &without, false),
        ("gemini-3-pro", &with_tools, false),
    ] {
        let body = encode(Api::Gemini, request, model).body();
        let demanded = body.pointer("/generationConfig/responseMimeType").is_some();
        let system = body.pointer("/systemInstruction/parts/0/text").unwrap().as_str().unwrap();
        assert_eq!((demanded, system.contains("JSON Schema")), (!in_words, in_words), "{model}");
    }
}
