//! The server for the official conformance suite, with the names and texts that the suite expects
//! (`@modelcontextprotocol/conformance`, requirements of 2025-11-25 and 2026-07-28, and the tasks extension). It stands
//! behind the gateway, which shows its tools under their raw names.
//!
//! Each capability of the protocol is a module with its lists and its methods. If a request needs input of the client,
//! `dialogue` asks for it in the way of the client's protocol generation.

mod blocks;
mod dialogue;
mod prompts;
mod questions;
mod resources;
mod seal;
mod tasks;
mod tools;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::wire::{self, Answer, Era, Exchange, Listeners, META, Request, RpcError, ServedTransport, Server};

/// How the fixture is started.
#[derive(Debug, clap::Parser)]
#[command(name = "conformance-fixture", about = "The MCP server that the official conformance suite asks for")]
pub struct Options {
    /// Serve streamable HTTP on this loopback port (0: any free one) in place of standard input and output
    #[arg(long, value_name = "PORT")]
    pub http: Option<u16>,
    /// Refuse 2026-07-28, as servers of before 2026 do
    #[arg(long)]
    pub legacy: bool,
}

/// Serves the fixture: on stdio until standard input ends, on HTTP until the process is ended.
///
/// # Errors
/// If the port is taken, or standard input cannot be read.
pub async fn run(options: Options) -> io::Result<()> {
    let fixture = Fixture { legacy_only: options.legacy, ..Fixture::default() };
    wire::serve(fixture, options.http.map_or(ServedTransport::Stdio, ServedTransport::Http)).await
}

#[derive(Default)]
struct Fixture {
    legacy_only: bool,
    /// Toggled by tools in order to change the lists.
    extra_tool: AtomicBool,
    extra_prompt: AtomicBool,
    resources: resources::Resources,
    seal: seal::Seal,
    tasks: Arc<tasks::Tasks>,
}

#[async_trait]
impl Server for Fixture {
    fn name(&self) -> &'static str {
        "conformance-fixture"
    }

    fn instructions(&self) -> Option<&'static str> {
        Some("Every tool, resource and prompt here is for tests.")
    }

    fn capabilities(&self, era: Era) -> Value {
        let mut capabilities = json!({
            "tools": {"listChanged": true},
            "prompts": {"listChanged": true},
            "resources": {"listChanged": true, "subscribe": true},
            "completions": {},
            "logging": {},
        });
        if era == Era::Modern {
            capabilities["extensions"] = json!({format!("{META}tasks"): {}});
        }
        capabilities
    }

    fn speaks_modern(&self) -> bool {
        !self.legacy_only
    }

    fn is_resumable(&self) -> bool {
        true
    }

    fn input_schema(&self, tool: &str) -> Option<Value> {
        tools::input_schema(self, tool)
    }

    fn caching(&self, method: &str) -> (u64, &'static str) {
        match method {
            "resources/read" => (1_000, "private"),
            _ => (60_000, "public"),
        }
    }

    fn meet(&self, listeners: &Arc<Listeners>) {
        self.tasks.meet(listeners);
    }

    async fn handle(&self, request: &Request, exchange: &Exchange) -> Answer {
        match request.method.as_str() {
            "tools/list" => Answer::Result(tools::list(self)),
            "tools/call" => tools::call(self, request, exchange).await,
            "resources/list" => resources::list(self, request),
            "resources/templates/list" => Answer::Result(resources::templates()),
            "resources/read" => resources::read(self, request, exchange).await,
            "prompts/list" => prompts::list(self, request),
            "prompts/get" => prompts::get(self, request, exchange).await,
            "completion/complete" => prompts::complete(request),
            "tasks/get" | "tasks/update" | "tasks/cancel" if request.era == Era::Modern => {
                self.tasks.method(request, exchange)
            }
            method => RpcError::unknown_method(method).into(),
        }
    }
}

/// Returns one page of a list. A cursor is the index of the page's first item; any other cursor is an error.
fn page(request: &Request, key: &str, items: &[Value]) -> Answer {
    const PAGE: usize = 3;
    let start = match request.params.get("cursor").map(|cursor| cursor.as_str().and_then(|text| text.parse().ok())) {
        None => 0,
        Some(Some(start)) if start < items.len() => start,
        Some(_) => return RpcError::invalid("no such cursor").into(),
    };
    let end = items.len().min(start + PAGE);
    let mut result = json!({key: items.get(start..end).unwrap_or_default()});
    if end < items.len() {
        result["nextCursor"] = json!(end.to_string());
    }
    Answer::Result(result)
}
