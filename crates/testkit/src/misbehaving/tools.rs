//! The tools of the server and their faults.

use std::io;
use std::process::Stdio;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::{DEATH, Misbehaving};
use crate::wire::{Answer, Change, Exchange, Request, RpcError, text_result};

/// The most bytes that a tool sends.
const MAX_BYTES: u64 = 256 << 20;
/// The progress reports of one `slow` call.
const STEPS: u64 = 10;
/// Lines that a client must survive: text, half a frame, an answer with an unknown id, invalid UTF-8, an empty array.
const GARBAGE: &[u8] =
    b"Listening for your orders\n{\"jsonrpc\": \"2.0\", \"id\": \n\n{\"jsonrpc\":\"2.0\",\"id\":\"nobody\",\"result\":{}}\n\xff\xfe\n[]\n";

pub(super) async fn call(server: &Misbehaving, request: &Request, exchange: &Exchange) -> Answer {
    let answer = run(server, request, exchange);
    let note = || server.cancelled.lock().unwrap_or_else(PoisonError::into_inner).push(request.id.clone());
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => {
            // The call may be cancelled after the answer is ready.
            if exchange.is_cancelled() {
                note();
            }
            answer
        }
        () = exchange.cancelled() => {
            note();
            answer.await
        }
    }
}

async fn run(server: &Misbehaving, request: &Request, exchange: &Exchange) -> Answer {
    let number = |key: &str, default: u64| request.argument(key).and_then(Value::as_u64).unwrap_or(default);
    let text = |key: &str| request.argument(key).and_then(Value::as_str).unwrap_or_default();
    let pause = Duration::from_millis(number("ms", 1000));
    let bytes = |default: u64| number("bytes", default).min(MAX_BYTES).try_into().unwrap_or(usize::MAX);
    match request.text("name") {
        "echo" | "uncompilable" => Answer::text(text("text")),
        "slow" => slow(request, exchange, pause).await,
        "die" => std::process::exit(DEATH),
        "hang" => hang(exchange).await,
        "flood" => Answer::text(lines(bytes(1 << 20))),
        "huge_line" => Answer::text("x".repeat(bytes(17 << 20))),
        "garbage" => {
            exchange.raw(GARBAGE).await;
            Answer::text("that was garbage, this is the answer")
        }
        "stderr_flood" => {
            to_stderr(lines(bytes(4 << 20)).as_bytes()).await;
            Answer::text("standard error is full of lines")
        }
        "lie" => {
            let mut result = text_result(r#"{"value":"seven"}"#);
            result["structuredContent"] = json!({"value": "seven"});
            Answer::Result(result)
        }
        "change_list" => {
            let added = server.added.fetch_add(1, Ordering::Relaxed) + 1;
            exchange.tell(&Change::Tools).await;
            Answer::text(format!("added_{added} is here"))
        }
        "ignore_cancel" => {
            tokio::time::sleep(pause).await;
            Answer::text("answered in spite of everything")
        }
        "observe_cancel" => tokio::select! {
            () = exchange.cancelled() => Answer::Silence,
            () = tokio::time::sleep(pause) => Answer::text("nobody cancelled this"),
        },
        "cancelled_ids" => {
            let ids = server.cancelled.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let mut result = text_result(json!(ids).to_string());
            result["structuredContent"] = json!({"ids": ids});
            Answer::Result(result)
        }
        "counter" => match count(server, text("label")).await {
            Err(error) => RpcError::new(RpcError::INVALID_PARAMS, format!("counter: {error}")).into(),
            Ok(()) => match text("then") {
                "die" => std::process::exit(DEATH),
                "hang" => hang(exchange).await,
                _ => Answer::text("counted"),
            },
        },
        "log_in" => {
            let calls = server.logins.fetch_add(1, Ordering::Relaxed) as u64;
            if calls >= number("refusals", 1) { Answer::text("welcome") } else { pages_required().into() }
        }
        "spawn_child" => match spawn_child() {
            Err(error) => RpcError::new(RpcError::INVALID_PARAMS, format!("setsid sleep: {error}")).into(),
            Ok(pid) => {
                let mut result = text_result(format!("started process {pid}"));
                result["structuredContent"] = json!({"pid": pid});
                Answer::Result(result)
            }
        },
        name if name.starts_with("added_") || name.starts_with("many_") => Answer::text(name),
        name => RpcError::new(RpcError::INVALID_PARAMS, format!("unknown tool: {name}")).into(),
    }
}

/// The error for a call whose user must open a page first (MCP 2025-11-25, "URL Elicitation Required Error").
fn pages_required() -> RpcError {
    let page = json!({
        "mode": "url",
        "elicitationId": "login",
        "url": "https://login.example/?for=1",
        "message": "Log in.",
    });
    RpcError::new(RpcError::PAGES_REQUIRED, "log in first").with_data(json!({"elicitations": [page]}))
}

async fn slow(request: &Request, exchange: &Exchange, pause: Duration) -> Answer {
    let work = async {
        for step in 1..=STEPS {
            tokio::time::sleep(pause / u32::try_from(STEPS).unwrap_or(1)).await;
            exchange.progress(request, step, STEPS).await;
        }
    };
    tokio::select! {
        () = exchange.cancelled() => Answer::Silence,
        () = work => Answer::text("done at last"),
    }
}

/// Waits for a cancel and never answers.
async fn hang(exchange: &Exchange) -> Answer {
    exchange.cancelled().await;
    Answer::Silence
}

/// Appends a line to the counter file: the process id and the caller's label.
async fn count(server: &Misbehaving, label: &str) -> io::Result<()> {
    let file = server.options.counter.as_ref().ok_or_else(|| io::Error::other("started without --counter FILE"))?;
    let mut file = tokio::fs::OpenOptions::new().create(true).append(true).open(file).await?;
    file.write_all(format!("{} {label}\n", std::process::id()).as_bytes()).await?;
    file.flush().await
}

/// Starts a process that survives the end of this one and signals to its process group.
fn spawn_child() -> io::Result<u32> {
    let mut command = tokio::process::Command::new("setsid");
    command.args(["sleep", "600"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()?.id().ok_or_else(|| io::Error::other("it ended at once"))
}

/// Returns numbered lines, so that a cut in the middle shows.
fn lines(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 32);
    let mut number = 0_u64;
    while text.len() < bytes {
        number += 1;
        text.push_str(&format!("line {number:09} of the flood\n"));
    }
    text.truncate(bytes);
    text
}

/// Writes to standard error and ignores errors.
pub(super) async fn to_stderr(bytes: &[u8]) {
    let mut stderr = tokio::io::stderr();
    let _ = stderr.write_all(bytes).await;
    let _ = stderr.flush().await;
}
