//! The parts that the benchmarks of the executor share: a real store, observed events, and one tool.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::approval::NoApprover;
use toolwright_core::catalogue::{Listing, Provider as _, ProviderKind, Snapshot};
use toolwright_core::event::Event;
use toolwright_core::{
    CallId, ContentHash, Policy, Principal, Profile, RawArguments, Services, Session, SessionId, StaticProvider, Tool,
    ToolCall, ToolOutput,
};
use toolwright_runtime::executor::ResponseCache;
use toolwright_runtime::{EventHub, Executor, ExecutorOptions, RunContext, SqliteStore, SystemClock};

use crate::Failure;

/// An executor with every feature on, and the context of its calls.
pub(crate) struct Toolwright {
    pub(crate) executor: Arc<Executor>,
    pub(crate) run: RunContext,
    pub(crate) store: Arc<SqliteStore>,
    /// Makes the hub send events.
    _observer: tokio::sync::broadcast::Receiver<Arc<Event>>,
    _dir: tempfile::TempDir,
}

impl Toolwright {
    pub(crate) async fn of(tool: Arc<dyn Tool>, configure: impl FnOnce(&mut ExecutorOptions)) -> Result<Self, Failure> {
        let dir = tempfile::tempdir()?;
        let provider = Arc::new(StaticProvider::new("bench", ProviderKind::Native, vec![tool])?);
        let tools = provider.list().await?;
        let snapshot = Snapshot::build(&[Listing { provider, tools, error: None, withheld: vec![] }]);
        let store = SqliteStore::open(dir.path())?;
        let events = Arc::new(EventHub::default());
        let _observer = events.subscribe();
        let services = Services { events, ..Services::none(Arc::new(SystemClock)) };
        let mut options = ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, Arc::clone(&store) as _);
        configure(&mut options);
        let run = run_in(dir.path(), snapshot, Profile::Ask);
        Ok(Self { executor: Executor::new(options), run, store, _observer, _dir: dir })
    }
}

/// Returns the terms of calls in a workspace.
pub(crate) fn run_in(root: &Path, snapshot: Snapshot, profile: Profile) -> RunContext {
    let session =
        Session { id: SessionId::new("bench"), principal: Principal::owner(), root: root.to_owned(), agent: None };
    RunContext::new(
        Arc::new(session),
        Arc::new(snapshot),
        Arc::new(Policy::of(profile)),
        Arc::new(NoApprover { remedy: String::new() }),
    )
}

/// Creates a call of the benchmark's tool.
pub(crate) fn call(id: String, tool: &str, arguments: Value) -> ToolCall {
    ToolCall::new(CallId::new(id), format!("bench__{tool}"), RawArguments::Value(arguments))
}

/// Returns arguments like those of a file tool.
pub(crate) fn arguments() -> Value {
    json!({"path": "src/lib.rs", "limit": 3})
}

/// An empty cache, for timing the key and the look-up alone.
pub(crate) struct EmptyCache;

#[async_trait]
impl ResponseCache for EmptyCache {
    async fn get(&self, _key: &ContentHash, _ttl: Duration) -> Option<ToolOutput> {
        None
    }
    async fn put(&self, _key: &ContentHash, _ttl: Duration, _output: &ToolOutput) {}
}
