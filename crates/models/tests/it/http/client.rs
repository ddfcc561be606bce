//! The client against the scripted server, over a real socket, in every API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, IgnoreModelEvents, Message, ModelClient, ModelError, ModelErrorKind, ModelEvent, ModelRequest,
    ModelResponse, StopReason, Usage,
};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient, Timeouts, default_model, endpoints_from_env};
use toolwright_testkit::FakeModelEvents;
use toolwright_testkit::model_server::{Answer, Fault, Reply, Script, ScriptedModel, Stop, Tokens, Turn, WireApi};

pub(crate) const PAIRS: [(Api, WireApi); 5] = [
    (Api::OpenAiChat, WireApi::OpenAi),
    (Api::OpenAiResponses, WireApi::Responses),
    (Api::Anthropic, WireApi::Anthropic),
    (Api::Gemini, WireApi::Gemini),
    (Api::Ollama, WireApi::Ollama),
];

struct Bench {
    server: ScriptedModel,
    client: HttpModelClient,
}

impl Bench {
    async fn new(api: Api, script: impl Into<Script>) -> Self {
        let server = ScriptedModel::start(script).await.unwrap();
        let wire = PAIRS.iter().find(|(ours, _)| *ours == api).unwrap().1;
        let mut endpoints = Endpoints::default();
        endpoints.insert(Endpoint::new("test", api, server.base_url(wire)).with_key("sk-secret-7"));
        let idle = Duration::from_millis(400);
        let timeouts = Timeouts { first_byte: Duration::from_secs(5), idle, ..Timeouts::default() };
        Self { server, client: HttpModelClient::with_timeouts(endpoints, timeouts) }
    }

    async fn ask(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        self.client.complete("test/m/1", request, &IgnoreModelEvents, &Cancel::new()).await
    }
}

/// One check in all APIs at once: most of the time is waiting.
async fn in_every_api(check: impl AsyncFn(Api)) {
    let [a, b, c, d, e] = PAIRS.map(|(api, _)| api);
    tokio::join!(check(a), check(b), check(c), check(d), check(e));
}

fn question(text: &str) -> ModelRequest {
    ModelRequest { messages: vec![Message::user(text)], ..crate::golden::conversation() }
}

#[tokio::test]
async fn a_turn_with_calls_and_their_results() {
    for (api, _) in PAIRS {
        let calls = vec![("fs__grep", json!({"pattern": "TÖDO", "n": 1})), ("odd__any", json!({}))];
        let bench = Bench::new(
            api,
            vec![
                Turn::text_and_calls("Let me look around here.", calls)
                    .expecting("the system prompt", |asked| asked.system() == "You are terse."),
                Turn::computed(|asked| Reply::text(format!("found: {}", asked.last_result_text())))
                    .expecting("both results", |asked| asked.last_results().len() == 2),
            ],
        )
        .await;
        let mut request = question("find");
        let pieces = FakeModelEvents::default();
        let first = bench.client.complete("test/m/1", &request, &pieces, &Cancel::new()).await.unwrap();
        assert_eq!(first.text, "Let me look around here.", "{api}");
        let written: Vec<_> = first.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!(written, [("fs__grep", r#"{"pattern":"TÖDO","n":1}"#), ("odd__any", "{}")], "{api}");
        assert_eq!(
            (first.stop.clone(), first.usage.input_tokens, first.usage.output_tokens),
            (StopReason::ToolCalls, 10, 5),
            "{api}"
        );
        let pieces = pieces.events();
        assert!(pieces.iter().filter(|piece| matches!(piece, ModelEvent::Text(_))).count() > 1, "{api}: it streams");

        let results = first.calls.iter().map(|call| CallResult {
            call_id: call.id.clone(),
            name: call.name.clone(),
            content: vec![ContentBlock::text(format!("<{}>", call.name))],
            ..CallResult::default()
        });
        let results = results.collect();
        request.messages.push(Message::Assistant { text: first.text, calls: first.calls, opaque: first.opaque });
        request.messages.push(Message::Tool { results });
        let second = bench.ask(&request).await.unwrap();
        assert_eq!((second.text.as_str(), second.stop), ("found: <fs__grep>\n<odd__any>", StopReason::End), "{api}");
        assert_eq!(bench.server.failures(), [""; 0], "{api}");
    }
}

#[tokio::test]
async fn reasoning_stop_reasons_and_tokens() {
    let tokens = Tokens { input: 1200, cached: 600, cache_written: 400, output: 70, thinking: 30 };
    for (api, _) in PAIRS {
        let say =
            |stop| Answer { thinking: "It is late.".into(), text: "Good ni".into(), stop, tokens, ..Answer::default() };
        let stops = [Stop::Done, Stop::MaxTokens, Stop::Refusal, Stop::Filtered];
        let turns: Vec<Turn> = stops.map(|stop| Reply::Answer(say(stop)).into()).into();
        let bench = Bench::new(api, turns).await;
        let refusal = if api == Api::Ollama { StopReason::End } else { StopReason::Refusal };
        for stop in [StopReason::End, StopReason::MaxTokens, refusal.clone(), refusal] {
            let answer = bench.ask(&question("Bed?")).await.unwrap();
            assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("It is late.", "Good ni"), "{api}");
            assert_eq!(answer.stop, stop, "{api}");
            let (cached_tokens, cache_written_tokens) = match api {
                Api::Gemini => (600, 0),
                Api::Ollama => (0, 0),
                Api::OpenAiChat | Api::OpenAiResponses | Api::Anthropic => (600, 400),
            };
            let reasoning_tokens = if api == Api::Ollama { 0 } else { 30 };
            let usage =
                Usage { input_tokens: 1200, output_tokens: 70, cached_tokens, cache_written_tokens, reasoning_tokens };
            assert_eq!(answer.usage, usage, "{api}");
        }
    }
}

#[tokio::test]
async fn the_bytes_and_headers_that_go_out() {
    for (api, wire) in PAIRS {
        let bench = Bench::new(api, vec![Turn::text("ok")]).await;
        let request = crate::golden::conversation();
        bench.ask(&request).await.unwrap();
        assert_eq!(bench.server.failures(), [""; 0], "{api}");
        let sent = bench.server.requests().remove(0);
        assert_eq!(sent.api, wire);
        assert_eq!(sent.bytes, toolwright_models::encode(api, &request, "m/1").bytes(), "{api}");
        assert_eq!(sent.header("content-type"), "application/json");
        let headers = ["authorization", "x-api-key", "x-goog-api-key", "anthropic-version"];
        let expect = match api {
            Api::Anthropic => ["", "sk-secret-7", "", "2023-06-01"],
            Api::Gemini => ["", "", "sk-secret-7", ""],
            _ => ["Bearer sk-secret-7", "", "", ""],
        };
        assert_eq!(headers.map(|name| sent.header(name)), expect, "{api}");
    }
}

#[tokio::test]
async fn a_stream_in_tiny_pieces() {
    in_every_api(async |api| {
        let turn = Turn::calls(vec![("a", json!({"k": "é"}))]).with_fault(Fault::Drip(5, Duration::ZERO));
        let bench = Bench::new(api, vec![turn]).await;
        let answer = bench.ask(&question("q")).await.unwrap();
        assert_eq!(answer.calls[0].arguments, r#"{"k":"é"}"#, "{api}");
    })
    .await;
}

#[tokio::test]
async fn failed_request_is_sent_once_with_remedy() {
    in_every_api(async |api| {
        for (status, kind) in [
            (401, ModelErrorKind::Auth),
            (400, ModelErrorKind::Invalid),
            (404, ModelErrorKind::Invalid),
            (429, ModelErrorKind::RateLimit),
            (500, ModelErrorKind::Unavailable),
            (503, ModelErrorKind::Unavailable),
        ] {
            let bench = Bench::new(api, vec![Turn::error(status, "no: sk-secret-7"), Turn::text("late")]).await;
            let error = bench.ask(&question("q")).await.unwrap_err();
            assert_eq!((error.kind, bench.server.requests().len()), (kind, 1), "{api}");
            assert!(error.message.contains("no: ***") && !error.message.contains("secret"), "{api}: {error}");
        }

        let long =
            Reply::Error { status: 429, code: String::new(), message: "tomorrow".into(), retry_after: Some(3600) };
        let bench = Bench::new(api, vec![long.into()]).await;
        let error = bench.ask(&question("q")).await.unwrap_err();
        assert_eq!((error.kind, error.retry_after_ms), (ModelErrorKind::RateLimit, Some(3_600_000)), "{api}");
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_breaks_is_not_tried_again() {
    let faults = [
        (Fault::CutAfter(2), ModelErrorKind::BadResponse, "broke off"),
        (Fault::EndAfter(2), ModelErrorKind::BadResponse, "broke off"),
        (Fault::HangAfter(2), ModelErrorKind::BadResponse, "sent nothing"),
        (Fault::ErrorAfter(2), ModelErrorKind::Unavailable, "failed while answering"),
    ];
    let check = async |api: Api, (fault, kind, part): (Fault, ModelErrorKind, &str)| {
        let turn = Turn::text_and_calls("a text of some length", vec![("a", json!({"k": 1}))]).with_fault(fault);
        let bench = Bench::new(api, vec![turn, Turn::text("late")]).await;
        let error = bench.ask(&question("q")).await.unwrap_err();
        assert!(error.kind == kind && error.message.contains(part), "{api} {fault:?}: {error}");
        let partial = error.partial.map(|partial| partial.text).unwrap_or_default();
        assert!("a text of some length".starts_with(&partial), "{api} {fault:?}: {partial:?}");
        assert_eq!(error.message.contains("kept as a partial answer"), !partial.is_empty(), "{api} {fault:?}");
        assert_eq!(bench.server.requests().len(), 1, "{api} {fault:?}");
    };
    in_every_api(async |api| {
        tokio::join!(check(api, faults[0]), check(api, faults[1]), check(api, faults[2]), check(api, faults[3]));
    })
    .await;
}

/// A server of Chat Completions that answers once with these events, each after its wait, and then leaves the stream open.
async fn slow_stream_server(events: Vec<(Duration, &'static str)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 8192]).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        for (wait, event) in events {
            tokio::time::sleep(wait).await;
            // The client may have gone.
            let _ = stream.write_all(format!("data: {event}\n\n").as_bytes()).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
    url
}

#[tokio::test]
async fn usage_after_the_answer_is_awaited() {
    const END: &str = r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#;
    const USED: &str = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#;
    const BOTH: &str = r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#;
    const CORRECTED: &str = r#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3}}"#;
    let (at_once, after_end) = (Duration::ZERO, Duration::from_millis(1800));
    let timeouts = |idle| Timeouts { idle: Duration::from_secs(idle), ..Timeouts::default() };
    // (events, idle time in seconds) -> prompt tokens, and whether the answer is there before `late`
    let check = async |events: Vec<(Duration, &'static str)>, idle, expect: u64, is_soon| {
        let what = format!("{events:?}");
        let mut endpoints = Endpoints::default();
        endpoints.insert(Endpoint::new("test", Api::OpenAiChat, slow_stream_server(events).await).with_key("k"));
        let client = HttpModelClient::with_timeouts(endpoints, timeouts(idle));
        let asked = Instant::now();
        let answer = client.complete("test/m", &question("q"), &IgnoreModelEvents, &Cancel::new()).await.unwrap();
        assert_eq!((answer.text.as_str(), answer.usage.input_tokens), ("a", expect), "{what}");
        assert_eq!(asked.elapsed() < after_end, is_soon, "{what} after {:?}", asked.elapsed());
    };
    tokio::join!(
        check(vec![(at_once, END), (after_end, USED)], 30, 7, false),
        check(vec![(at_once, END), (after_end, USED), (at_once, "[DONE]")], 30, 7, false),
        // No longer than an answer may be silent.
        check(vec![(at_once, END)], 2, 0, false),
        // Where it is told, or nothing more comes, only the end of the stream is waited for.
        check(vec![(at_once, END), (at_once, USED), (after_end, CORRECTED)], 30, 7, true),
        check(vec![(at_once, BOTH), (after_end, CORRECTED)], 30, 7, true),
        check(vec![(at_once, END), (at_once, "[DONE]"), (after_end, USED)], 30, 0, true),
    );
}

#[tokio::test]
async fn a_cancel_ends_the_request_at_once() {
    let bench = Bench::new(Api::OpenAiChat, vec![Turn::text("late").with_delay(Duration::from_secs(30))]).await;
    let cancel = Cancel::new();
    let (request, asked) = (question("q"), Instant::now());
    let answer = bench.client.complete("test/m", &request, &IgnoreModelEvents, &cancel);
    let (answer, ()) = tokio::join!(answer, async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.cancel(CancelCause::User);
    });
    let error = answer.unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (ModelErrorKind::Canceled, "the model request was cancelled by the user")
    );
    assert!(asked.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn an_unknown_server_is_named() {
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("gone", Api::Ollama, "http://127.0.0.1:1"));
    endpoints.insert(Endpoint::new("typo", Api::Ollama, "not a url"));
    let client = Arc::new(HttpModelClient::new(endpoints));
    for (model, kind, part) in [
        ("gone/m", ModelErrorKind::Unavailable, "127.0.0.1:1 cannot be reached"),
        ("typo/m", ModelErrorKind::Invalid, "base URL of provider `typo`"),
        ("other/m", ModelErrorKind::Unsupported, "configured providers: gone, typo"),
    ] {
        let error = client.complete(model, &question("q"), &IgnoreModelEvents, &Cancel::new()).await.unwrap_err();
        assert!(error.kind == kind && error.message.contains(part), "{model}: {error}");
    }
}

#[tokio::test]
async fn unexpected_request_fails_loudly() {
    let unexpected = Turn::text("a").expecting("a mention of cats", |asked| asked.last_user_text().contains("cat"));
    for (turns, part) in [(vec![unexpected, Turn::text("b")], "a mention of cats"), (vec![], "has only 0 turns")] {
        let bench = Bench::new(Api::Anthropic, turns).await;
        let error = bench.ask(&question("dogs?")).await.unwrap_err();
        assert!(error.message.contains("HTTP 500") && error.message.contains(part), "{error}");
        assert_eq!((bench.server.failures().len(), bench.server.answered()), (1, 0), "nothing was answered");
    }
}

/// The model that is used when nobody names one.
async fn check_default(vars: &[(&str, &str)], expect: Result<&str, &str>) {
    let get = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let client = HttpModelClient::new(endpoints_from_env(&get));
    let got = default_model(&get, &client).await.map_err(|error| error.message);
    match expect {
        Ok(model) => assert_eq!(got.as_deref(), Ok(model), "{vars:?}"),
        Err(part) => assert!(got.as_ref().is_err_and(|message| message.contains(part)), "{vars:?}: {got:?}"),
    }
}

#[tokio::test]
async fn the_first_configured_provider_gives_the_model() {
    let server = ScriptedModel::start(Script::echo()).await.unwrap();
    let (root, v1) = (server.url(), format!("{}/v1", server.url()));
    let nowhere = ("OLLAMA_HOST", "127.0.0.1:1");
    check_default(
        &[("OPENAI_API_KEY", "k"), ("OPENAI_MODEL", "gpt-x"), ("ANTHROPIC_API_KEY", "k")],
        Ok("openai/gpt-x"),
    )
    .await;
    check_default(&[("ANTHROPIC_API_KEY", "k"), ("ANTHROPIC_MODEL", "claude-x")], Ok("anthropic/claude-x")).await;
    check_default(&[("OPENAI_BASE_URL", &v1)], Ok("openai/scripted")).await;
    check_default(&[("OLLAMA_HOST", &root)], Ok("ollama/scripted:latest")).await;
    check_default(&[("OLLAMA_HOST", &root), ("OLLAMA_MODEL", "qwen3")], Ok("ollama/qwen3")).await;
    check_default(&[nowhere], Err("--model PROVIDER/MODEL")).await;
    check_default(&[nowhere], Err("ANTHROPIC_API_KEY")).await;
}
