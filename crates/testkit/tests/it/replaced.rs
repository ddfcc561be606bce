//! The MCP client and a server that another one replaces, as processes.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolwright_core::ToolId;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{Provider as _, ProviderCall};
use toolwright_core::context::{Services, ToolContext};
use toolwright_core::error::ErrorKind;
use toolwright_core::event::NoEvents;
use toolwright_core::session::{CallId, Principal, Session, SessionId};
use toolwright_core::store::NoStore;
use toolwright_mcp::client::{McpOptions, McpProvider, McpServerOptions, McpTransport};
use toolwright_runtime::SystemClock;

const PROGRAM: &str = env!("CARGO_BIN_EXE_conformance-fixture");

/// A server on a port, ended with this.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start(port: u16, args: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg("--http").arg(port.to_string()).args(args).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split_once("ready ").unwrap().1.trim().to_owned();
        Self { child, url }
    }

    fn port(&self) -> u16 {
        url::Url::parse(&self.url).unwrap().port().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait().map(drop)).unwrap();
    }
}

fn context() -> ToolContext {
    let session =
        Session { id: SessionId::new("s"), principal: Principal::owner(), root: PathBuf::from("/"), agent: None };
    let services = Arc::new(Services::none(Arc::new(SystemClock)));
    ToolContext::detached(CallId::new("c"), Arc::new(session), services)
}

#[tokio::test]
async fn tasks_end_when_older_servers_replace_theirs() {
    let newer = Served::start(0, &[]);
    let transport = McpTransport::Http { url: newer.url.clone(), headers: Default::default() };
    let deps = McpOptions { manifests: Arc::new(NoStore), events: Arc::new(NoEvents), roots: Arc::default() };
    let provider = McpProvider::new(McpServerOptions::new("srv", transport), deps);
    provider.warm_up().await.unwrap();
    let (id, context) = (ToolId::foreign("srv", "slow_compute").unwrap(), context());
    let call = ProviderCall {
        tool: &id,
        raw_name: "slow_compute",
        source_hash: ContentHash::of_bytes(b""),
        arguments: json!({"seconds": 600, "label": "x"}),
        idempotency_key: "k",
    };
    #[expect(clippy::disallowed_methods, reason = "the executor is not what is looked at")]
    let called = provider.call(call, &context);
    let replaced = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let port = newer.port();
        drop(newer);
        Served::start(port, &["--legacy"])
    };
    let (called, _older) = tokio::join!(tokio::time::timeout(Duration::from_secs(60), called), replaced);
    let error = called.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{error}");
    assert!(error.message().contains("forgotten"), "{error}");
    provider.shut_down().await;
}
