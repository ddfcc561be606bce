//! The lock of a workspace: within one executor, between processes, and for jobs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::catalogue::ProviderKind;
use toolwright_core::definition::Concurrency;
use toolwright_core::job::Jobs as _;
use toolwright_core::{
    CallId, Effects, RawArguments, Services, StaticProvider, Tool, ToolCall, ToolContext, ToolDefinition, ToolError,
    ToolId, ToolOutput,
};
use toolwright_runtime::{
    CallOrder, Catalogue, Executor, ExecutorOptions, QueueConfig, Queues, RunContext, SqliteStore, SystemClock,
};

use crate::background::jobs;
use crate::fixture::{call, fixture, spawn_test};

fn queue(concurrent: usize) -> Queues {
    let config = QueueConfig { concurrent, wait_timeout: Duration::from_millis(20), ..QueueConfig::default() };
    Queues::new(BTreeMap::from([("default".to_owned(), config)]))
}

#[tokio::test]
async fn exclusive_calls_wait_as_long_as_their_limits() {
    let fixture = fixture(|options| options.queues = queue(1)).await;
    let calls = (0..3).map(|n| call(&n.to_string(), "exclusive", json!({"n": 60}))).collect();
    let outcomes = fixture.all(calls).await;
    assert!(outcomes.iter().all(|outcome| outcome.ok), "{outcomes:?}");
    assert_eq!(fixture.counts.most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn safe_calls_pass_waiting_exclusive_calls() {
    let fixture = fixture(|options| options.queues = queue(2)).await;
    let hold = |id| fixture.all(vec![call(id, "exclusive", json!({"n": 600_000}))]);
    tokio::select! {
        _ = async { tokio::join!(hold("a"), hold("b"), hold("c")) } => panic!("they take long"),
        () = async {
            while fixture.counts.now.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert!(fixture.one("echo", json!({})).await.ok, "the second slot is free");
        } => {}
    }
}

/// What ran, in order, when calls arrive in this order and their tasks begin in the other.
async fn ran(calls: &[(&'static str, u64)]) -> Vec<u64> {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = Counting::new(dir.path()).await;
    let order = CallOrder::default();
    let turns: Vec<_> = calls.iter().map(|_| order.arrive()).collect();
    let mut tasks: Vec<_> = std::iter::zip(calls, turns)
        .map(|(&(name, n), turn)| fixture.call(name, n, RunContext { turn: Some(turn), ..fixture.run.clone() }))
        .collect();
    tasks.reverse();
    futures_util::future::join_all(tasks).await;
    let log = std::fs::read_to_string(dir.path().join("log")).expect("log");
    log.lines().map(|line| line.parse().expect("a number")).collect()
}

#[tokio::test]
async fn calls_of_one_order_run_as_they_arrive() {
    assert_eq!(ran(&[("writes", 1), ("reads", 2), ("writes", 3)]).await, [1, 2, 3]);
    assert_eq!(ran(&[("reads", 1), ("writes", 2), ("writes", 3), ("reads", 4)]).await, [1, 2, 3, 4]);
    // One that uses nothing of the workspace passes.
    assert_eq!(ran(&[("writes", 1), ("else", 2)]).await, [2, 1]);
    // Ordered ones wait for each other, and for nothing of the workspace.
    assert_eq!(ran(&[("ordered", 1), ("ordered", 2), ("ordered", 3)]).await, [1, 2, 3]);
    assert_eq!(ran(&[("writes", 1), ("ordered", 2), ("reads", 3)]).await, [2, 1, 3]);
}

#[tokio::test]
async fn a_job_holds_no_lock_in_the_background() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = jobs::fixture(dir.path()).await;
    let run = RunContext { background_after: Some(Duration::from_millis(20)), ..fixture.run.clone() };
    for (id, name) in [("a", "alone"), ("b", "alone_job")] {
        let job = jobs::id(&fixture.call_under(&run, id, name, json!({"n": 1, "ms": 600_000})).await);
        while !fixture.runs().contains_key(&1) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(fixture.call(&format!("{id}2"), "alone", json!({"n": 2})).await.ok, "{name}");
        fixture.jobs.stop(toolwright_core::job::JobScope::All, &job).await.expect("stopped");
    }
}

/// Notes its number, or adds one to a file the slow way.
struct Counts {
    name: &'static str,
    folder: PathBuf,
}

#[async_trait]
impl Tool for Counts {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("w", self.name, "1.0.0").expect("id");
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let mut definition = ToolDefinition::new(id, "", Some(schema));
        definition.effects = Effects::READ;
        if matches!(self.name, "writes" | "adds") {
            definition.effects = Effects::WRITE;
            definition.concurrency = Concurrency::Exclusive;
        }
        if self.name == "ordered" {
            definition.concurrency = Concurrency::Ordered;
        }
        definition
    }

    fn scope(&self, _: &Value, _: &toolwright_core::Session) -> toolwright_core::catalogue::CallScope {
        use toolwright_core::catalogue::CallScope::{Anywhere, Workspace};
        if self.name == "else" { Anywhere } else { Workspace }
    }

    async fn run(&self, arguments: Value, _: &ToolContext) -> Result<ToolOutput, ToolError> {
        if self.name == "adds" {
            let file = self.folder.join("sum");
            let sum: u64 = std::fs::read_to_string(&file).map_or(0, |text| text.parse().expect("a number"));
            tokio::time::sleep(Duration::from_millis(2)).await;
            std::fs::write(&file, (sum + 1).to_string()).expect("written");
            return Ok(ToolOutput::text("added"));
        }
        if self.name == "writes" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut log = std::fs::File::options().create(true).append(true).open(self.folder.join("log")).expect("log");
        std::io::Write::write_all(&mut log, format!("{}\n", arguments["n"]).as_bytes()).expect("noted");
        Ok(ToolOutput::text("noted"))
    }
}

struct Counting {
    executor: Arc<Executor>,
    run: RunContext,
}

impl Counting {
    async fn new(dir: &Path) -> Self {
        let tools = ["reads", "writes", "else", "adds", "ordered"]
            .map(|name| Arc::new(Counts { name, folder: dir.to_owned() }) as Arc<dyn Tool>);
        let catalogue = Catalogue::from_snapshot(Arc::default());
        let provider = StaticProvider::new("w", ProviderKind::Native, tools.to_vec()).expect("provider");
        catalogue.add_provider(Arc::new(provider)).await.expect("added");
        catalogue.refresh("w").await;
        let store = SqliteStore::in_memory().expect("store");
        let services = Arc::new(Services::none(Arc::new(SystemClock)));
        let mut options = ExecutorOptions::new(services, Arc::clone(&store) as _, store as _);
        options.lock_dir = Some(dir.join("locks"));
        let run = jobs::terms(jobs::session("s", dir), catalogue.snapshot());
        Self { executor: Executor::new(options), run }
    }

    async fn call(&self, name: &str, n: u64, run: RunContext) {
        let arguments = RawArguments::Value(json!({"n": n}));
        let call = ToolCall::new(CallId::new(n.to_string()), format!("w__{name}"), arguments);
        let outcomes = self.executor.run_calls(vec![call], &run).await;
        assert!(outcomes[0].ok, "{outcomes:?}");
    }
}

const DIR: &str = "TOOLWRIGHT_TEST_WORKSPACE_DIR";
const ADDED: u64 = 40;

/// One of the processes that share a workspace, which is this test alone.
#[tokio::test]
async fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let fixture = Counting::new(Path::new(&dir)).await;
    for n in 0..ADDED {
        fixture.call("adds", n, fixture.run.clone()).await;
    }
}

fn spawn(dir: &Path) -> Child {
    spawn_test("calls::workspace::child", DIR, dir)
}

#[test]
fn processes_on_one_workspace_exclude_each_other() {
    let dir = tempfile::tempdir().expect("dir");
    for mut child in [spawn(dir.path()), spawn(dir.path())] {
        assert!(child.wait().expect("ended").success());
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("sum")).expect("sum"), (2 * ADDED).to_string());
}
