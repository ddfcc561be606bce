//! MCP servers over real pipes and sockets, looked at from both ends.
#![expect(clippy::expect_used, reason = "a test stops at its first surprise")]
#![expect(clippy::disallowed_methods, reason = "these tests stand where the executor stands")]

mod asker;
mod asking;
mod attribution;
mod environment;
mod http;
mod methods;
mod pages;
mod peer;
#[path = "../../../sandbox/tests/it/processes.rs"]
#[expect(dead_code, reason = "other tests use all of it")]
mod processes;
mod restarts;
mod stdio;
mod unreadable;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::ToolId;
use toolwright_core::cancel::Cancel;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{Provider, ProviderCall};
use toolwright_core::client::Roots;
use toolwright_core::context::{PartialSink, Services, ToolContext};
use toolwright_core::error::ToolError;
use toolwright_core::event::{Event, Partial};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::{CallId, Principal, Session, SessionId};
use toolwright_core::store::{ManifestCache, StoreError};
use toolwright_mcp::client::{McpOptions, McpProvider, McpServerOptions, McpTransport};
use toolwright_testkit::{FakeClock, FakeEvents};

/// What the tests look at from outside.
#[derive(Default)]
struct Observations {
    events: Arc<FakeEvents>,
    manifests: Mutex<HashMap<String, Value>>,
    partials: Mutex<Vec<Partial>>,
}

#[async_trait]
impl ManifestCache for Observations {
    async fn manifest(&self, key: &str) -> Result<Option<Value>, StoreError> {
        Ok(self.manifests.lock().expect("manifests").get(key).cloned())
    }
    async fn set_manifest(&self, key: &str, manifest: &Value) -> Result<(), StoreError> {
        self.manifests.lock().expect("manifests").insert(key.to_owned(), manifest.clone());
        Ok(())
    }
    async fn remove_manifest(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.manifests.lock().expect("manifests").remove(key).is_some())
    }
}

impl PartialSink for Observations {
    fn send(&self, partial: Partial) {
        self.partials.lock().expect("partials").push(partial);
    }
}

/// One provider and its surroundings.
struct Fixture {
    world: Arc<Observations>,
    provider: Arc<McpProvider>,
    cancel: Cancel,
    roots: Arc<Roots>,
}

impl Fixture {
    fn new(transport: McpTransport, change: impl FnOnce(&mut McpServerOptions)) -> Self {
        Self::within(Arc::default(), transport, change)
    }

    fn within(world: Arc<Observations>, transport: McpTransport, change: impl FnOnce(&mut McpServerOptions)) -> Self {
        let mut options = McpServerOptions::new("srv", transport);
        options.config.connect_timeout = Duration::from_secs(20);
        change(&mut options);
        let roots = Arc::new(Roots::default());
        let deps = McpOptions {
            manifests: Arc::clone(&world) as _,
            events: Arc::clone(&world.events) as _,
            roots: Arc::clone(&roots),
        };
        Self { provider: McpProvider::new(options, deps), world, cancel: Cancel::new(), roots }
    }

    async fn call(&self, tool: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
        run(&*self.provider, tool, arguments, &self.context("s")).await
    }

    /// What a call in this session gets.
    fn context(&self, session: &str) -> ToolContext {
        let id = SessionId::new(session);
        let session = Session { id, principal: Principal::owner(), root: PathBuf::from("/"), agent: None };
        let services = Arc::new(Services::none(Arc::new(FakeClock::real())));
        ToolContext {
            cancel: self.cancel.clone(),
            partials: Arc::clone(&self.world) as _,
            traceparent: Some("00-aa-bb-01".into()),
            ..ToolContext::detached(CallId::new("c1"), Arc::new(session), services)
        }
    }

    async fn names(&self) -> Vec<String> {
        let tools = self.provider.list().await.expect("listed");
        tools.iter().map(|tool| tool.raw_name().to_owned()).collect()
    }

    /// Codes of the warnings so far.
    fn warnings(&self) -> Vec<String> {
        let events = self.world.events.seen();
        let code = |event: &Event| match event {
            Event::Warning { code, .. } => Some(code.clone()),
            _ => None,
        };
        events.iter().filter_map(code).collect()
    }
}

/// Calls as the executor does.
async fn run(
    provider: &dyn Provider,
    tool: &str,
    arguments: Value,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let id = ToolId::foreign("srv", tool).expect("id");
    // A connection has no implementations to tell apart.
    let source_hash = ContentHash::of_bytes(b"");
    let call = ProviderCall { tool: &id, raw_name: tool, source_hash, arguments, idempotency_key: "key-1" };
    let call = provider.call(call, context);
    tokio::time::timeout(Duration::from_secs(30), call).await.expect("every call ends")
}

/// Waits, some seconds at most, until `holds`.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(15);
    while !holds() {
        assert!(Instant::now() < end, "it never came true: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
