//! What several tests use: own tools, a scripted model, a server over stdio.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright::app::PlanOptions;
use toolwright::core::RunInput;
use toolwright::core::approval::NoApprover;
use toolwright::{Builder, Cancel, ModelApi, Profile, Toolwright, tool};
use toolwright_testkit::bin;
use toolwright_testkit::model_server::{ScriptedModel, Turn, WireApi};

/// Adds two numbers.
#[tool(namespace = "math", effects(read_only, open_world = false))]
pub(crate) async fn add(
    /// First number.
    a: i64,
    /// Second number.
    b: i64,
) -> String {
    (a + b).to_string()
}

/// Sends a mail.
#[tool(namespace = "mail", effects(destructive = false))]
pub(crate) async fn send(
    /// Who gets it.
    to: String,
) -> String {
    format!("sent to {to}")
}

/// A builder that looks at no variable of this machine but where programs are.
pub(crate) fn builder() -> Builder {
    Toolwright::builder().variables(|name| (name == "PATH").then(|| std::env::var(name).ok()).flatten())
}

/// The model `scripted/model`, and its server.
pub(crate) async fn scripted(builder: Builder, turns: Vec<Turn>) -> (Builder, ScriptedModel) {
    let model = ScriptedModel::start(turns).await.expect("starts");
    (with_model(builder, &model), model)
}

pub(crate) fn with_model(builder: Builder, model: &ScriptedModel) -> Builder {
    let url = model.base_url(WireApi::OpenAi);
    builder.model_endpoint("scripted", ModelApi::OpenAiChat, url).model_key("scripted", "sk-scripted")
}

/// Options of a plan that is approved as it is written, and of which nobody is asked.
pub(crate) fn approved(input: RunInput) -> PlanOptions {
    PlanOptions {
        profile: Some(Profile::Trusted),
        input,
        approver: Arc::new(NoApprover { remedy: String::new() }),
        max_cost: None,
        approved: true,
        cancel: Cancel::new(),
    }
}

/// A server called `odd` over stdio.
pub(crate) fn with_server(builder: Builder, flags: &[&str]) -> Builder {
    builder.mcp_stdio("odd", bin("misbehaving-mcp").to_string_lossy(), flags.iter().copied())
}

/// One call of a script.
pub(crate) fn calls(name: &str, arguments: Value) -> Turn {
    Turn::calls(vec![(name, arguments)])
}

pub(crate) fn sum(a: i64, b: i64) -> Value {
    json!({"a": a, "b": b})
}

/// Waits until something holds, half a minute at most.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(holds(), "{what}");
}

/// Answers every HTTP request with this JSON, for as long as the test runs.
pub(crate) async fn serve_json(body: Value) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("address");
    let body = body.to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).await.is_ok_and(|read| read == 1) {
                head.push(byte[0]);
            }
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            // A client that has gone away needs no answer.
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    address
}
