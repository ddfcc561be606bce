//! Embeddings over a real socket: the bytes that go out, and every kind of answer that comes back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use toolwright_core::Secret;
use toolwright_core::embedding::{Embedder as _, EmbeddingError, TextRole};
use toolwright_core::model::{
    AuxiliaryRequest, AuxiliarySender, IgnoreModelEvents, MAX_TOKENS, ModelError, ModelPriority, Usage,
};
use toolwright_models::{EmbeddingsApi, HttpEmbedder, Timeouts};

/// The model, the priority and the characters of a request, and what came of it.
type Received = (String, ModelPriority, u64, Result<Usage, String>);

/// Sends a request twice at most, and keeps what it was told of it.
#[derive(Default)]
struct RetryingSender(Mutex<Vec<Received>>);

#[async_trait]
impl AuxiliarySender for RetryingSender {
    async fn send(
        &self,
        model: &str,
        request: &dyn AuxiliaryRequest,
        priority: ModelPriority,
    ) -> Result<Usage, ModelError> {
        let mut sent = request.send(&IgnoreModelEvents).await;
        if sent.as_ref().is_err_and(|error| error.kind.is_retryable()) {
            sent = request.send(&IgnoreModelEvents).await;
        }
        let reported = sent.as_ref().map(|usage| *usage).map_err(ToString::to_string);
        self.0.lock().unwrap().push((model.to_owned(), priority, request.characters(), reported));
        sent
    }
}

/// Answers each request by the next status and body, the last again and again, and keeps what it was sent.
struct Server {
    url: String,
    sent: Arc<Mutex<Vec<(String, Value)>>>,
    sender: Arc<RetryingSender>,
}

impl Server {
    async fn start(answers: Vec<(u16, Value)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sent);
        tokio::spawn(async move {
            let mut answers = answers.into_iter().peekable();
            while let Ok((mut stream, _)) = listener.accept().await {
                let Some(request) = read(&mut stream).await else { continue };
                kept.lock().unwrap().push(request);
                let (status, body) = match answers.peek().cloned() {
                    Some(last) if answers.len() == 1 => last,
                    _ => answers.next().unwrap(),
                };
                let body = body.to_string();
                let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n");
                let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self { url, sent, sender: Arc::default() }
    }

    fn embedder(&self, api: EmbeddingsApi) -> HttpEmbedder {
        let patience = Duration::from_secs(5);
        let timeouts = Timeouts { connect: patience, first_byte: patience, idle: patience, answer: patience };
        HttpEmbedder::new(api, &self.url, Some(Secret::new("sk-hidden-7")), "m-1", self.sender.clone())
            .with_timeouts(timeouts)
    }

    fn sent(&self) -> Vec<(String, Value)> {
        self.sent.lock().unwrap().clone()
    }
}

/// The head of the next request in lower case, and its body; none where the connection has ended.
pub(super) async fn read(stream: &mut TcpStream) -> Option<(String, Value)> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.unwrap_or_default() == 0 {
            return None;
        }
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let length: usize =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
        if bytes.len() - end - 4 == length {
            return Some((head, serde_json::from_slice(&bytes[end + 4..]).unwrap()));
        }
    }
}

async fn embed(server: &Server, api: EmbeddingsApi, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbeddingError> {
    server.embedder(api).embed(texts, TextRole::Tool).await
}

fn listed(vectors: &[(usize, Value)]) -> Value {
    let data =
        vectors.iter().map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": vector}));
    json!({"object": "list", "data": data.collect::<Vec<_>>(), "model": "m-1", "usage": {"prompt_tokens": 3, "total_tokens": 3}})
}

#[tokio::test]
async fn embedding_requests_and_vectors_match_each_api() {
    let answer = listed(&[(1, json!([0, 2])), (0, json!([3, -4]))]);
    let server = Server::start(vec![(200, answer)]).await;
    let vectors = embed(&server, EmbeddingsApi::OpenAi, &["a", "\"ü\""]).await.unwrap();
    assert_eq!(vectors, [[0.6, -0.8], [0.0, 1.0]]);
    let (head, body) = &server.sent()[0];
    assert!(head.starts_with("post /embeddings http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nauthorization: bearer sk-hidden-7"), "{head}");
    assert_eq!(*body, json!({"model": "m-1", "input": ["a", "\"ü\""], "encoding_format": "float"}));
    let used = Usage { input_tokens: 3, ..Usage::default() };
    let carried = server.sender.0.lock().unwrap().clone();
    assert_eq!(carried, [("embeddings/m-1".to_owned(), ModelPriority::Background, 4, Ok(used))]);

    let answer = json!({"model": "m-1", "embeddings": [[0.5, 0], [0, -0.5]], "total_duration": 1});
    let server = Server::start(vec![(200, answer)]).await;
    let vectors = embed(&server, EmbeddingsApi::Ollama, &["a", "b"]).await.unwrap();
    assert_eq!(vectors, [[1.0, 0.0], [0.0, -1.0]]);
    let (head, body) = &server.sent()[0];
    assert!(head.starts_with("post /api/embed http/1.1\r\n"), "{head}");
    assert_eq!(*body, json!({"model": "m-1", "input": ["a", "b"]}));
}

#[tokio::test]
async fn many_and_long_texts_go_in_bounded_requests() {
    let vectors = |count: usize| json!({"embeddings": vec![[1.0, 0.0]; count]});
    let server = Server::start(vec![(200, vectors(64)), (200, vectors(36))]).await;
    let long = "ä".repeat(10_000);
    let mut texts = vec!["x"; 99];
    texts.push(&long);
    assert_eq!(embed(&server, EmbeddingsApi::Ollama, &texts).await.unwrap().len(), 100);
    let sizes: Vec<_> = server.sent().iter().map(|(_, body)| body["input"].as_array().unwrap().len()).collect();
    assert_eq!(sizes, [64, 36]);
    assert_eq!(server.sent()[1].1["input"][35], "ä".repeat(4000));
    assert!(embed(&server, EmbeddingsApi::Ollama, &[]).await.unwrap().is_empty());
    assert_eq!(server.sent().len(), 2);
}

#[tokio::test]
async fn implausible_usage_figures_are_ignored() {
    let most = Usage { input_tokens: MAX_TOKENS, ..Usage::default() };
    for (api, answer) in [
        (
            EmbeddingsApi::OpenAi,
            json!({"data": [{"index": 0, "embedding": [1]}], "usage": {"prompt_tokens": u64::MAX}}),
        ),
        (EmbeddingsApi::Ollama, json!({"embeddings": [[1]], "prompt_eval_count": MAX_TOKENS + 1})),
    ] {
        let server = Server::start(vec![(200, answer)]).await;
        embed(&server, api, &["a"]).await.unwrap();
        assert_eq!(server.sender.0.lock().unwrap()[0].3, Ok(most));
    }
}

#[tokio::test]
async fn request_is_sent_as_often_as_asked() {
    let busy = (503, json!({"error": {"message": "loading"}}));
    let server = Server::start(vec![busy, (200, listed(&[(0, json!([1]))]))]).await;
    assert_eq!(embed(&server, EmbeddingsApi::OpenAi, &["a"]).await.unwrap(), [[1.0]]);
    assert_eq!(server.sent().len(), 2);
}

async fn check(api: EmbeddingsApi, status: u16, answer: Value, expect: &str) {
    let server = Server::start(vec![(status, answer.clone())]).await;
    let error = embed(&server, api, &["a", "b"]).await.unwrap_err().to_string();
    assert!(error.contains(expect) && error.contains("selection.embeddings"), "{answer}: {error}");
    assert!(!error.contains("hidden"), "{error}");
}

#[tokio::test]
async fn unusable_answers_give_the_reason() {
    use EmbeddingsApi::{Ollama, OpenAi};
    let one = json!([1, 0]);
    check(OpenAi, 401, json!({"error": {"message": "bad key sk-hidden-7"}}), "bad key ***").await;
    check(OpenAi, 404, json!({"error": {"message": "no model m-1"}}), "no model m-1").await;
    check(OpenAi, 200, json!({"data": 3}), "not what the API gives").await;
    check(OpenAi, 200, listed(&[(0, one.clone())]), "1 vectors for 2 texts").await;
    check(OpenAi, 200, listed(&[(0, one.clone()), (0, one.clone())]), "1 vectors for 2 texts").await;
    check(OpenAi, 200, listed(&[(0, one.clone()), (2, one.clone())]), "1 vectors for 2 texts").await;
    check(OpenAi, 200, listed(&[(0, one.clone()), (1, json!([1, null]))]), "not what the API gives").await;
    check(OpenAi, 200, listed(&[(0, one.clone()), (1, json!([1, 0, 0]))]), "differ in length").await;
    check(OpenAi, 200, listed(&[(0, one.clone()), (1, json!([]))]), "has 0 numbers").await;
    check(OpenAi, 200, listed(&[(0, one.clone()), (1, json!(vec![1; 8193]))]), "has 8193 numbers").await;
    check(Ollama, 200, json!({"embeddings": [[1, 0], [0, 0]]}), "no direction").await;
    check(Ollama, 200, json!({"embeddings": [[1, 0], [1e39, 0]]}), "out of range").await;
    check(Ollama, 200, json!({"embedding": [1, 0]}), "not what the API gives").await;
    check(Ollama, 404, json!({"error": "model \"m-1\" not found, try pulling it first"}), "try pulling it").await;
}

#[tokio::test]
async fn missing_server_is_named_without_secrets() {
    let embedder = HttpEmbedder::new(
        EmbeddingsApi::Ollama,
        "http://me:pw-hidden@127.0.0.1:1",
        None,
        "m-1",
        Arc::new(RetryingSender::default()),
    );
    let error = embedder.embed(&["a"], TextRole::Query).await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("cannot be reached"), "{error}");
    for text in [error.as_str(), embedder.id(), &format!("{embedder:?}")] {
        assert!(!text.contains("hidden"), "{text}");
    }
}

#[test]
fn recordings_name_models_by_their_path() {
    let id = |url: &str| {
        HttpEmbedder::new(EmbeddingsApi::OpenAi, url, None, "m-1", Arc::new(RetryingSender::default())).id().to_owned()
    };
    assert_ne!(id("http://h/small/v1"), id("http://h/large/v1"));
    assert_eq!(id("http://h/v1"), id("http://h/v1/"));
}
