//! `selection.embeddings`: where vectors come from.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use toolwright::Toolwright;
use toolwright::app::embedder;
use toolwright::config::{Config, EmbeddingsConfig, LoadOptions, Severity};
use toolwright::core::{Event, Secret};
use toolwright::models::EmbeddingsApi;

use crate::command_line::cli::ok;
#[cfg(not(feature = "embeddings"))]
use crate::command_line::cli::{run, stderr};
use crate::configuration::config::broken;
use crate::support::Fixture;

fn found(config: &Config) -> Option<EmbeddingsConfig> {
    config.sections.selection.embeddings.clone()
}

#[test]
fn embeddings_come_from_directory_or_api() {
    let fixture = Fixture::with("selection:\n  embeddings: {path: \"${MODELS}/minilm\"}\n").set("MODELS", "models");
    if cfg!(feature = "embeddings") {
        let config = fixture.load();
        assert_eq!(config.problems, []);
        let path = Some(config.root.join("models/minilm"));
        assert_eq!(found(&config), Some(EmbeddingsConfig { path, ..EmbeddingsConfig::default() }));
    }

    let fixture = Fixture::with(
        "selection:\n  embeddings:\n    url: https://h/v1\n    model: ${M:-small}\n    apiKey: ${EMBEDDINGS_KEY}\n",
    )
    .set("EMBEDDINGS_KEY", "k-7");
    let config = fixture.load();
    assert_eq!(config.problems, []);
    let (url, model, api_key) = (Some("https://h/v1".into()), Some("small".into()), Some(Secret::new("k-7")));
    let source = EmbeddingsConfig { path: None, url, api: EmbeddingsApi::OpenAi, model, api_key };
    assert_eq!(found(&config), Some(source));
    assert_eq!((&*config.secrets, &*config.key_variables), (&["k-7".into()][..], &["EMBEDDINGS_KEY".into()][..]));
    assert!(!format!("{:?}{}", found(&config), config.to_redacted_json()).contains("k-7"));

    let config = Fixture::with("selection: {embeddings: {url: \"http://h\", model: m, api: ollama}}\n").load();
    assert!(matches!(found(&config), Some(EmbeddingsConfig { api: EmbeddingsApi::Ollama, api_key: None, .. })));
    assert_eq!(found(&Fixture::with("selection: {pick_size: 3}\n").load()), None);
}

#[test]
fn embeddings_without_a_model_are_refused() {
    let check = |settings: &str, key: &str, words: &str| {
        let text = format!("selection:\n  embeddings: {{{settings}}}\n");
        broken(&text, 2, &format!("selection.embeddings.{key}"), Severity::EntryDisabled, &[words]);
        assert_eq!(found(&Fixture::with(&text).load()), None);
    };
    check("", "path", "`url` and `model` of an API");
    check("path: \"\"", "path", "no model is named");
    check("path: a, url: \"http://h\", model: m", "url", "not from both");
    check("url: \"http://h\"", "model", "text-embedding-3-small");
    check("url: here, model: m", "url", "not an address");
    check("path: \"${NOWHERE}\"", "path", "NOWHERE");
}

#[cfg(not(feature = "embeddings"))]
#[test]
fn builds_without_embeddings_report_it() {
    let fixture = Fixture::with("selection:\n  embeddings: {path: models/minilm}\n");
    let config = fixture.load();
    assert_eq!(found(&config), None);
    let [problem] = &config.problems[..] else { panic!("{:#?}", config.problems) };
    let path = config.root.join("models/minilm");
    assert!(problem.message.contains(&path.display().to_string()) && problem.severity == Severity::EntryDisabled);
    for (arguments, code) in
        [(&["doctor"][..], 1), (&["validate"], 1), (&["serve", "--stdio"], 0), (&["pick", "read a file"], 0)]
    {
        let output = run(&fixture, arguments);
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        for words in [&problem.message, &problem.remedy] {
            assert_eq!(said.matches(&**words).count(), 1, "{arguments:?}: {said}");
        }
    }
}

#[tokio::test]
async fn a_directory_without_model_names_the_remedy() {
    let fixture = Fixture::new();
    let error = embedder(&fixture.path("home")).await.err().expect("no model").to_string();
    assert!(error.contains(&fixture.path("home").display().to_string()), "{error}");
    let remedy = if cfg!(feature = "embeddings") { "as its authors publish it" } else { "--features embeddings" };
    assert!(error.contains(remedy), "{error}");
}

/// Answers each request for vectors by the next status, the last again and again, after a while; the most at once.
struct Server {
    url: String,
    most: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
}

impl Server {
    async fn start(statuses: Vec<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
        let url = format!("http://{}/v1", listener.local_addr().expect("address"));
        let [now, most, asked]: [Arc<AtomicUsize>; 3] = Default::default();
        let (seen, count) = (Arc::clone(&most), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let status = statuses.get(number).or(statuses.last()).copied().unwrap_or(200);
                let (now, seen) = (Arc::clone(&now), Arc::clone(&seen));
                tokio::spawn(async move {
                    seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let texts = texts(&mut stream).await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    // Of what is about cars, all else aside.
                    let vector = |text: &str| if text.contains("car") || text.contains("automobile") { 1 } else { 0 };
                    let data = texts
                        .iter()
                        .enumerate()
                        .map(|(index, text)| json!({"index": index, "embedding": [1 - vector(text), vector(text)]}));
                    let body = match status {
                        200 => json!({"data": data.collect::<Vec<_>>(), "usage": {"prompt_tokens": 1000}}),
                        _ => json!({"error": {"message": "later"}}),
                    }
                    .to_string();
                    let head =
                        format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n");
                    let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        Self { url, most, asked }
    }
}

/// The texts that a request asks about.
async fn texts(stream: &mut TcpStream) -> Vec<String> {
    let mut bytes = Vec::new();
    loop {
        stream.read_buf(&mut bytes).await.expect("request");
        let text = String::from_utf8_lossy(&bytes);
        let body = text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str::<Value>(body).ok());
        if let Some(body) = body {
            return serde_json::from_value(body["input"].clone()).expect("texts");
        }
    }
}

/// The events of requests to models while `work` goes on, and the operations of the ledger.
async fn reported(fixture: &Fixture, work: impl AsyncFn(&Toolwright)) -> (Vec<Arc<Event>>, Vec<Value>) {
    let options = LoadOptions { cwd: fixture.project(), ..LoadOptions::default() };
    let app = Toolwright::open(options, fixture.load(), Box::new(|_| None)).await.expect("opens");
    let mut events = app.events().subscribe();
    work(&app).await;
    let mut reported = Vec::new();
    while let Ok(event) = events.try_recv() {
        reported.push(event);
    }
    app.shut_down().await;
    let trace: Value = serde_json::from_str(&ok(fixture, &["trace", "last", "--json"])).expect("json");
    let turns = trace["turns"].as_array().cloned().unwrap_or_default();
    (reported, turns.iter().flat_map(|turn| turn["ops"].as_array().cloned().unwrap_or_default()).collect())
}

fn fixture(server: &Server, models: &str) -> Fixture {
    let url = &server.url;
    Fixture::with(&format!("selection: {{embeddings: {{url: '{url}', model: small}}}}\nmodels:\n{models}"))
}

async fn query(app: &Toolwright, text: &str) -> Result<(), String> {
    let vectors = app.tool_vectors().await.expect("configured").expect("configured");
    vectors.query(text).await.map(drop).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn vector_requests_use_their_models_queue() {
    let server = Server::start(vec![200]).await;
    let fixture = fixture(&server, "  embeddings: {queue: {concurrent: 2}}\n");
    let (events, _) = reported(&fixture, async |app| {
        let queries = (0..6).map(|number| async move { query(app, &format!("q{number}")).await });
        for done in futures_util::future::join_all(queries).await {
            done.expect("vectors");
        }
    })
    .await;
    assert_eq!((server.most.load(Ordering::SeqCst), server.asked.load(Ordering::SeqCst)), (2, 6));
    let waits = |event: &&Arc<Event>| matches!(&***event, Event::ModelWait { queue, .. } if queue == "embeddings");
    assert_eq!(events.iter().filter(waits).count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn vector_requests_are_retried_and_recorded() {
    let server = Server::start(vec![503, 200]).await;
    // The prices of the one model, the terms of all.
    let models = "  embeddings: {retry: {attempts: 2}}\n  embeddings/small: {prices: {input: 100, output: 0}}\n";
    let fixture = fixture(&server, models);
    let (events, ops) = reported(&fixture, async |app| query(app, "q").await.expect("vectors")).await;
    assert_eq!(server.asked.load(Ordering::SeqCst), 2);
    let finished = events.iter().find_map(|event| match &**event {
        Event::ModelFinished { model, attempt, ok, usage, cost_usd, characters_in, .. } => {
            Some((model.clone(), *attempt, *ok, usage.input_tokens, *cost_usd, *characters_in))
        }
        _ => None,
    });
    assert_eq!(finished, Some(("embeddings/small".to_owned(), 2, true, 1000, Some(0.1), 1)));
    assert!(events.iter().any(|event| matches!(&**event, Event::ModelRetried { .. })));
    let rows: Vec<_> = ops.iter().map(|op| (op["kind"].clone(), op["name"].clone(), op["status"].clone())).collect();
    let row = |status: &str| (json!("model"), json!("embeddings/small"), json!(status));
    assert!(rows.len() == 2 && rows.contains(&row("unavailable")) && rows.contains(&row("ok")), "{ops:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn vector_requests_follow_their_providers_limits() {
    let server = Server::start(vec![503]).await;
    // What has the address of a provider is one of its models.
    let url = &server.url;
    let models = format!(
        "  endpoints: {{mine: {{api: openai_chat, base_url: '{url}/'}}}}\n  mine: {{retry: {{attempts: 1}}}}\n"
    );
    let fixture = fixture(&server, &models);
    let (events, ops) = reported(&fixture, async |app| {
        let error = query(app, "q").await.expect_err("it is down");
        assert!(error.contains("later") && error.contains("selection.embeddings"), "{error}");
    })
    .await;
    assert_eq!(server.asked.load(Ordering::SeqCst), 1, "once in all");
    let name =
        |event: &Arc<Event>| matches!(&**event, Event::ModelFinished { model, ok: false, .. } if model == "mine/small");
    assert!(events.iter().any(name));
    assert_eq!((ops.len(), &ops[0]["name"], &ops[0]["status"]), (1, &json!("mine/small"), &json!("unavailable")));
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_searched_by_meaning() {
    let server = Server::start(vec![200]).await;
    let fixture = fixture(&server, "  aliases: {}\n");
    for (key, value) in [("a", "Bananas are ripe."), ("b", "The automobile is in the yard."), ("c", "It rains.")] {
        ok(&fixture, &["call", "memory__scratchpad", "op=set", &format!("key={key}"), &format!("value={value}")]);
    }
    let search = |mode: &str| {
        let output = ok(&fixture, &["call", "memory__search", "query=car", &format!("mode={mode}"), "--json"]);
        serde_json::from_str::<Value>(&output).expect("json")["structured"].clone()
    };
    for mode in ["semantic", "hybrid"] {
        let found = search(mode);
        let first = found["passages"][0]["text"].as_str().unwrap_or_default();
        assert!(first.contains("automobile") && found["note"].is_null(), "{mode}: {found}");
    }
    assert_eq!(search("text")["passages"], json!([]), "no note has the word");
}
