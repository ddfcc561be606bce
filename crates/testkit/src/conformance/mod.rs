//! The server that the official conformance suite asks for, by the names and texts it looks for
//! (`@modelcontextprotocol/conformance`, requirements of 2025-11-25 and 2026-07-28). It stands behind
//! the gateway, which passes it through under its raw names.
//!
//! Each capability of the protocol is a module with its lists and its methods; tools are the first.

mod tools;

use std::io;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::wire::{self, Answer, Exchange, Request, RpcError, Server};

/// How the fixture is started.
#[derive(Debug, clap::Parser)]
#[command(name = "conformance-fixture", about = "The MCP server that the official conformance suite asks for")]
pub struct Options {
    /// Serve streamable HTTP on this loopback port (0: any free one) in place of standard input and output
    #[arg(long, value_name = "PORT")]
    pub http: Option<u16>,
}

/// Serves the fixture: on stdio until standard input ends, on HTTP until the process is ended.
///
/// # Errors
/// The port is taken, or standard input cannot be read.
pub async fn run(options: Options) -> io::Result<()> {
    wire::serve(Fixture::default(), options.http).await
}

#[derive(Default)]
struct Fixture {
    /// Toggled by a tool, so that the list of tools changes.
    extra_tool: AtomicBool,
}

#[async_trait]
impl Server for Fixture {
    fn name(&self) -> &'static str {
        "conformance-fixture"
    }

    fn capabilities(&self) -> Value {
        json!({"tools": {"listChanged": true}})
    }

    fn speaks_modern(&self) -> bool {
        true
    }

    async fn handle(&self, request: &Request, exchange: &Exchange<'_>) -> Answer {
        match request.method.as_str() {
            "tools/list" => Answer::Result(tools::list(self)),
            "tools/call" => tools::call(self, request, exchange).await,
            method => RpcError::unknown_method(method).into(),
        }
    }
}
