//! An MCP server for tests that misbehaves on request. Flags choose faults of the whole server; the called tool chooses
//! the fault of a call. Without those flags and tools it is a correct server.

use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::wire::{self, Answer, Change, Era, Exchange, Request, RpcError, ServedTransport, Server, text_result};

/// The exit code of a process that ended itself (`die`, `counter`, `--die-after-list`).
pub const DEATH: i32 = 3;

/// What goes wrong. Without any flag the server behaves, and speaks 2025-11-25 and older.
#[derive(Debug, Clone, Default, clap::Parser)]
#[command(name = "misbehaving-mcp", about = "An MCP server for tests that misbehaves on request")]
pub struct Options {
    /// Wait so long before the first message is read
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub slow_start: u64,
    /// Read `server/discover` and never answer it
    #[arg(long)]
    pub silent_discover: bool,
    /// Speak 2026-07-28 too
    #[arg(long)]
    pub modern: bool,
    /// End as soon as the first list of tools has been sent
    #[arg(long)]
    pub die_after_list: bool,
    /// End at once with this exit code, and a line on standard error
    #[arg(long, value_name = "CODE")]
    pub exit_at_once: Option<u8>,
    /// List `echo` twice
    #[arg(long)]
    pub dup_names: bool,
    /// What `echo` is said to do
    #[arg(long, value_name = "TEXT", default_value = "Returns the text")]
    pub describe: String,
    /// List one malformed tool among the good ones
    #[arg(long)]
    pub bad_tool: bool,
    /// List this many more tools, `many_0001` and on
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub many: usize,
    /// The file to which the tool `counter` adds a line each time it runs
    #[arg(long, value_name = "FILE")]
    pub counter: Option<PathBuf>,
    /// Serve streamable HTTP on this loopback port (0: any free one) in place of standard input and output
    #[arg(long, value_name = "PORT")]
    pub http: Option<u16>,
    /// Serve HTTP with server-sent events, as 2024-11-05 has it, on this loopback port
    #[arg(long, value_name = "PORT", conflicts_with = "http")]
    pub sse: Option<u16>,
    /// Serve WebSocket on this loopback port
    #[arg(long, value_name = "PORT", conflicts_with_all = ["http", "sse"])]
    pub ws: Option<u16>,
}

impl Options {
    fn transport(&self) -> ServedTransport {
        match (self.http, self.sse, self.ws) {
            (Some(port), ..) => ServedTransport::Http(port),
            (_, Some(port), _) => ServedTransport::Sse(port),
            (_, _, Some(port)) => ServedTransport::WebSocket(port),
            (None, None, None) => ServedTransport::Stdio,
        }
    }
}

/// Serves until standard input ends, or on a port until the process is ended.
///
/// # Errors
/// If the port is taken, or standard input cannot be read.
pub async fn run(options: Options) -> io::Result<ExitCode> {
    if let Some(code) = options.exit_at_once {
        to_stderr(b"misbehaving-mcp: cannot start: told so by --exit-at-once\n").await;
        return Ok(ExitCode::from(code));
    }
    tokio::time::sleep(Duration::from_millis(options.slow_start)).await;
    let door = options.transport();
    let server =
        Misbehaving { options, added: AtomicUsize::new(0), logins: AtomicUsize::new(0), cancelled: Mutex::default() };
    wire::serve(server, door).await?;
    Ok(ExitCode::SUCCESS)
}

struct Misbehaving {
    options: Options,
    /// The number of tools added by `change_list`.
    added: AtomicUsize,
    /// The number of calls of `log_in`.
    logins: AtomicUsize,
    /// The ids of requests that were cancelled while they ran, in order of arrival.
    cancelled: Mutex<Vec<Value>>,
}

#[async_trait]
impl Server for Misbehaving {
    fn name(&self) -> &'static str {
        "misbehaving-mcp"
    }

    fn capabilities(&self, _era: Era) -> Value {
        json!({"tools": {"listChanged": true}})
    }

    fn speaks_modern(&self) -> bool {
        self.options.modern
    }

    fn ignores(&self, method: &str) -> bool {
        method == "server/discover" && self.options.silent_discover
    }

    async fn handle(&self, request: &Request, exchange: &Exchange) -> Answer {
        match request.method.as_str() {
            "tools/list" if self.options.die_after_list => Answer::LastWords(listed_tools(self), DEATH),
            "tools/list" => Answer::Result(listed_tools(self)),
            "tools/call" => call(self, request, exchange).await,
            method => RpcError::unknown_method(method).into(),
        }
    }
}

/// The annotations of a tool about its effects.
#[derive(Clone, Copy)]
enum Hint {
    ReadOnly,
    /// No annotation: the client must assume the worst.
    None,
}

fn tool(name: &str, description: &str, hint: Hint, properties: &Value) -> Value {
    let mut tool = json!({
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties},
    });
    if let Hint::ReadOnly = hint {
        tool["annotations"] = json!({"readOnlyHint": true});
    }
    tool
}

fn listed_tools(server: &Misbehaving) -> Value {
    let milliseconds = || json!({"ms": {"type": "integer", "minimum": 0}});
    let bytes = || json!({"bytes": {"type": "integer", "minimum": 0}});
    let echo = || {
        let mut echo = tool("echo", &server.options.describe, Hint::ReadOnly, &json!({"text": {"type": "string"}}));
        echo["inputSchema"]["required"] = json!(["text"]);
        echo
    };
    let mut lie = tool("lie", "Promises an integer and returns a string", Hint::ReadOnly, &json!({}));
    lie["outputSchema"] = json!({
        "type": "object",
        "properties": {"value": {"type": "integer"}},
        "required": ["value"],
    });
    let uncompilable = tool(
        "uncompilable",
        "Has a schema that no validator takes; answers like echo",
        Hint::ReadOnly,
        &json!({"text": {"type": "strnig", "pattern": "("}}),
    );
    let counter = json!({
        "label": {"type": "string"},
        "then": {"type": "string", "enum": ["answer", "die", "hang"], "default": "answer"},
    });
    let mut tools = vec![
        echo(),
        tool("slow", "Answers after `ms`, with progress on the way", Hint::ReadOnly, &milliseconds()),
        tool("die", "Ends the process in the middle of the call", Hint::None, &json!({})),
        tool("hang", "Never answers", Hint::None, &json!({})),
        tool("flood", "Returns so many bytes of lines (default 1 MiB)", Hint::ReadOnly, &bytes()),
        tool("huge_line", "Returns so many bytes without a line break (default 17 MiB)", Hint::ReadOnly, &bytes()),
        tool("garbage", "Sends what is no protocol, then answers", Hint::ReadOnly, &json!({})),
        tool(
            "stderr_flood",
            "Writes so many bytes to standard error (default 4 MiB), then answers",
            Hint::ReadOnly,
            &bytes(),
        ),
        lie,
        uncompilable,
        tool("change_list", "Adds a tool to this list", Hint::None, &json!({})),
        tool("ignore_cancel", "Answers after `ms`, cancelled or not", Hint::None, &milliseconds()),
        tool("observe_cancel", "Answers after `ms`, or not at all once cancelled", Hint::None, &milliseconds()),
        tool("cancelled_ids", "Returns the ids of the requests that were cancelled", Hint::ReadOnly, &json!({})),
        tool("counter", "Adds a line to the counter file; then answers, dies or hangs", Hint::None, &counter),
        tool(
            "log_in",
            "Refuses so many calls (default 1) until a page is opened, with error -32042; then answers",
            Hint::ReadOnly,
            &json!({"refusals": {"type": "integer", "minimum": 0}}),
        ),
        tool(
            "spawn_child",
            "Starts a process in a session of its own that sleeps for ten minutes",
            Hint::None,
            &json!({}),
        ),
    ];
    tools.extend((1..=server.added.load(Ordering::Relaxed)).map(|n| plain(&format!("added_{n}"))));
    tools.extend((1..=server.options.many).map(|n| plain(&format!("many_{n:04}"))));
    if server.options.dup_names {
        tools.push(echo());
    }
    if server.options.bad_tool {
        tools.insert(1, json!({"name": 7, "description": ["malformed"], "inputSchema": "none"}));
    }
    json!({"tools": tools})
}

fn plain(name: &str) -> Value {
    tool(name, &format!("Answers with its name, {name}"), Hint::ReadOnly, &json!({}))
}

/// The most bytes that a tool sends.
const MAX_BYTES: u64 = 256 << 20;
/// The progress reports of one `slow` call.
const STEPS: u64 = 10;
/// Lines that a client must survive: text, half a frame, an answer with an unknown id, invalid UTF-8, an empty array.
const GARBAGE: &[u8] =
    b"Listening for your orders\n{\"jsonrpc\": \"2.0\", \"id\": \n\n{\"jsonrpc\":\"2.0\",\"id\":\"nobody\",\"result\":{}}\n\xff\xfe\n[]\n";

async fn call(server: &Misbehaving, request: &Request, exchange: &Exchange) -> Answer {
    let answer = run_tool(server, request, exchange);
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

async fn run_tool(server: &Misbehaving, request: &Request, exchange: &Exchange) -> Answer {
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
            exchange.announce(&Change::Tools).await;
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
async fn to_stderr(bytes: &[u8]) {
    let mut stderr = tokio::io::stderr();
    let _ = stderr.write_all(bytes).await;
    let _ = stderr.flush().await;
}
