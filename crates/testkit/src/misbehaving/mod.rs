//! An MCP server for tests that misbehaves on request. Flags choose faults of the whole server; the called tool chooses
//! the fault of a call. Without those flags and tools it is a correct server.

mod list;
mod tools;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::wire::{self, Answer, Era, Exchange, Request, RpcError, ServedTransport, Server};

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
    fn door(&self) -> ServedTransport {
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
        tools::to_stderr(b"misbehaving-mcp: cannot start: told so by --exit-at-once\n").await;
        return Ok(ExitCode::from(code));
    }
    tokio::time::sleep(Duration::from_millis(options.slow_start)).await;
    let door = options.door();
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
            "tools/list" if self.options.die_after_list => Answer::LastWords(list::tools(self), DEATH),
            "tools/list" => Answer::Result(list::tools(self)),
            "tools/call" => tools::call(self, request, exchange).await,
            method => RpcError::unknown_method(method).into(),
        }
    }
}
