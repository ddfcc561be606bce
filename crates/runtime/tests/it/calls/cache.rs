//! What the response cache serves, and to whom.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::catalogue::{ProviderKind, Snapshot};
use toolwright_core::definition::Mode;
use toolwright_core::{
    ContentHash, Effects, Event, Policy, Principal, Profile, RegisteredTool, Session, SessionId, ToolDefinition,
    ToolId, ToolOutput,
};
use toolwright_runtime::{Responses, RunContext, SqliteStore, SystemClock};
use toolwright_testkit::{FakeApprover, FakeProvider};

use crate::fixture::{Fixture, fixture};

/// As whom a source runs its calls.
#[derive(Default)]
struct Login {
    now: Mutex<&'static str>,
    /// Who logs in while the next call runs.
    next: Mutex<Option<&'static str>>,
}

/// A provider of one tool that counts its runs.
fn source(id: &str, change: impl FnOnce(&mut ToolDefinition)) -> FakeProvider {
    source_as("p", &Arc::default(), id, change)
}

fn source_as(name: &str, login: &Arc<Login>, id: &str, change: impl FnOnce(&mut ToolDefinition)) -> FakeProvider {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "fail": {"type": "boolean"}}});
    let mut definition = ToolDefinition::new(ToolId::parse(id).expect("id"), "Counts.", Some(schema));
    definition.effects = Effects::READ;
    definition.cache_ttl = Some(Duration::from_secs(60));
    change(&mut definition);
    let (ran, runs, asked) = (AtomicUsize::new(0), Arc::clone(login), Arc::clone(login));
    FakeProvider::new(name, ProviderKind::Native, vec![RegisteredTool::own(definition).expect("registers")])
        .answering(move |call| {
            let text = format!("run {}", ran.fetch_add(1, Ordering::SeqCst) + 1);
            if let Some(other) = runs.next.lock().expect("login").take() {
                *runs.now.lock().expect("login") = other;
            }
            if call.arguments["fail"] == true { ToolOutput::failure(text) } else { ToolOutput::text(text) }
        })
        .with_credentials(move || Some(ContentHash::of_bytes(asked.now.lock().expect("login").as_bytes())))
}

/// What makes a tool another.
type Change = fn(&mut ToolDefinition);

struct CacheFixture {
    fixture: Fixture,
}

impl CacheFixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("store");
        let cache = Responses::new(store, Arc::new(SystemClock));
        Self { fixture: fixture(|options| options.cache = Some(cache)).await }
    }

    /// Calls the one tool of `source`; what it said, and whether that came from the cache.
    async fn call(
        &self,
        source: &Arc<FakeProvider>,
        arguments: Value,
        terms: impl FnOnce(&mut RunContext),
    ) -> (String, bool) {
        let listing = source.listing();
        let name = listing.tools[0].definition().id.to_string();
        let mut run = self.fixture.on(Snapshot::build(&[listing]));
        terms(&mut run);
        let call = toolwright_core::ToolCall::new(
            toolwright_core::CallId::new("c"),
            name,
            toolwright_core::RawArguments::Value(arguments),
        );
        let outcome = self.fixture.executor.run_calls(vec![call], &run).await.pop().expect("one");
        (outcome.text(), outcome.extras.get("cached") == Some(&json!(true)))
    }
}

fn as_is(_: &mut RunContext) {}

#[tokio::test]
async fn an_equal_call_is_served_without_being_run() {
    let setup = CacheFixture::new().await;
    let mut events = setup.fixture.events.subscribe();
    let tool = Arc::new(source("t:x@1.0.0", |_| {}));
    assert_eq!(setup.call(&tool, json!({"n": 1, "fail": false}), as_is).await, ("run 1".into(), false));
    assert_eq!(setup.call(&tool, json!({"fail": false, "n": 1}), as_is).await, ("run 1".into(), true));
    assert_eq!(setup.call(&tool, json!({"n": 2}), as_is).await, ("run 2".into(), false));
    let mut started = 0;
    let mut finished = 0;
    while let Ok(event) = events.try_recv().map(Arc::unwrap_or_clone) {
        match event {
            Event::ToolStarted { .. } => started += 1,
            Event::ToolFinished { .. } => finished += 1,
            _ => {}
        }
    }
    assert_eq!((started, finished), (2, 3), "what was served did not start");
    assert_eq!(setup.call(&tool, json!({"fail": true}), as_is).await, ("run 3".into(), false));
    assert_eq!(setup.call(&tool, json!({"fail": true}), as_is).await, ("run 4".into(), false), "a failure is not kept");
}

#[tokio::test]
async fn uncacheable_calls_run_each_time() {
    let never: [(&str, Change); 9] = [
        ("t:x@1.0.0", |definition| definition.cache_ttl = None),
        ("t:x@1.0.0", |definition| definition.safe = false),
        ("t:x@1.0.0", |definition| definition.mode = Mode::Stateful),
        ("t:x@1.0.0", |definition| {
            definition.parameters = None;
            definition.allow_no_schema = true;
            definition.no_schema_mode = Some(toolwright_core::definition::NoSchemaMode::Full);
        }),
        ("t:x@1.0.0", |definition| definition.cache_ttl = Some(Duration::ZERO)),
        ("fs:x@1.0.0", |_| {}),
        ("shell:x@1.0.0", |_| {}),
        ("memory:x@1.0.0", |_| {}),
        ("job:x@1.0.0", |_| {}),
    ];
    for (id, change) in never {
        let setup = CacheFixture::new().await;
        let tool = Arc::new(source(id, change));
        for n in 1..=2 {
            assert_eq!(setup.call(&tool, json!({}), as_is).await, (format!("run {n}"), false), "{id}");
        }
    }
}

#[tokio::test]
async fn cached_results_stay_with_their_principal() {
    let setup = CacheFixture::new().await;
    let tool = Arc::new(source("t:x@1.0.0", |_| {}));
    let of = |id: &str, root: &str| {
        let principal = Principal { id: id.into(), roles: vec![], owner: false };
        let session = Session { id: SessionId::new("s"), principal, root: Path::new(root).into(), agent: None };
        move |run: &mut RunContext| run.session = Arc::new(session)
    };
    for (n, (principal, root)) in [("a", "/w"), ("b", "/w"), ("a", "/v")].into_iter().enumerate() {
        let first = format!("run {}", n + 1);
        assert_eq!(setup.call(&tool, json!({}), of(principal, root)).await, (first.clone(), false));
        assert_eq!(setup.call(&tool, json!({}), of(principal, root)).await, (first, true));
    }
    let others = [
        source_as("p", &Arc::new(Login { now: Mutex::new("another key"), ..Login::default() }), "t:x@1.0.0", |_| {}),
        source_as("another instance", &Arc::default(), "t:x@1.0.0", |_| {}),
        source("t:x@1.0.1", |_| {}),
        source("t:x@1.0.0", |definition| definition.description.push_str(" Differently.")),
    ];
    for other in others {
        let (_, cached) = setup.call(&Arc::new(other), json!({}), of("a", "/w")).await;
        assert!(!cached);
    }
}

#[tokio::test]
async fn a_result_across_logins_is_not_kept() {
    let setup = CacheFixture::new().await;
    let login = Arc::new(Login::default());
    let tool = Arc::new(source_as("p", &login, "t:x@1.0.0", |_| {}));
    *login.next.lock().expect("login") = Some("another account");
    // Begun as one account, it may have been sent as the other.
    assert_eq!(setup.call(&tool, json!({}), as_is).await, ("run 1".into(), false));
    assert_eq!(setup.call(&tool, json!({}), as_is).await, ("run 2".into(), false), "not the other one's");
    assert_eq!(setup.call(&tool, json!({}), as_is).await, ("run 2".into(), true));
    *login.now.lock().expect("login") = "";
    assert_eq!(setup.call(&tool, json!({}), as_is).await, ("run 3".into(), false), "nor the first one's");
}

#[tokio::test]
async fn one_time_approvals_are_asked_again() {
    let setup = CacheFixture::new().await;
    let tool = Arc::new(source("t:write@1.0.0", |definition| definition.effects = Effects::WRITE));
    let says = Arc::new(FakeApprover::saying(ApprovalDecision::Approve));
    for n in 1..=2 {
        let approver = Arc::clone(&says);
        let asks = move |run: &mut RunContext| {
            run.policy = Arc::new(Policy::of(Profile::Ask));
            run.approver = approver;
        };
        assert_eq!(setup.call(&tool, json!({}), asks).await, (format!("run {n}"), false));
    }
    assert_eq!(says.count(), 2);
    let (_, cached) = setup.call(&tool, json!({}), as_is).await;
    assert!(!cached, "and its result was not kept");
    assert_eq!(setup.call(&tool, json!({}), as_is).await, ("run 3".into(), true));
}
