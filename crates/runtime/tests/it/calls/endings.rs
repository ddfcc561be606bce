//! Every way in which a call can end: one outcome, one finished event, one row, and nothing that stays held.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest};
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::{CallScope, Entry, Listing, Provider, Snapshot};
use toolwright_core::definition::Concurrency;
use toolwright_core::event::{Event, Partial};
use toolwright_core::store::LedgerStore as _;
use toolwright_core::{
    Cancel, CancelCause, ContentHash, Effects, ErrorKind, Outcome, Policy, Profile, Services, Session, Tool,
    ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::executor::{GuardBinding, GuardVerdict, Interceptor, InterceptorDecision, ResponseCache};
use toolwright_runtime::{ExecutorOptions, QueueConfig, Queues, RunContext};
use toolwright_testkit::{FakeEvents, FakeProvider};

use crate::fixture::{Fixture, call, fixture};

const TOOLS: [&str; 12] = [
    "fine",
    "waits",
    "deaf",
    "blocks",
    "last_words",
    "working",
    "silent",
    "breaks",
    "gone",
    "flaky",
    "away",
    "scopeless",
];

/// Ends in the way of its name. All are exclusive and share a queue with one slot.
struct EndingTool {
    name: &'static str,
    started: Arc<tokio::sync::Notify>,
    attempts: AtomicUsize,
}

#[async_trait]
impl Tool for EndingTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("t", self.name, "1.0.0").expect("id");
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let mut definition = ToolDefinition::new(id, "", Some(schema));
        definition.effects = Effects::WRITE;
        definition.concurrency = Concurrency::Exclusive;
        definition.cache_ttl = Some(Duration::from_secs(60));
        definition.timeout = match self.name {
            "last_words" => Some(Duration::from_millis(30)),
            "flaky" => Some(Duration::from_secs(20)),
            _ => None,
        };
        definition.idle_timeout = matches!(self.name, "silent" | "working").then_some(Duration::from_millis(60));
        definition.retries = matches!(self.name, "flaky" | "away").then_some(2);
        definition
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        assert_ne!(self.name, "scopeless", "no scope");
        CallScope::Anywhere
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.started.notify_one();
        let attempt = self.attempts.fetch_add(1, Ordering::SeqCst) + 1;
        match self.name {
            "waits" => Err(ToolError::canceled(context.cancel.cancelled().await)),
            "last_words" => {
                let cause = context.cancel.cancelled().await;
                Err(ToolError::canceled(cause).with_model_message("half of it is done"))
            }
            "deaf" | "silent" => std::future::pending().await,
            "blocks" => {
                std::thread::sleep(Duration::from_millis(900));
                Ok(ToolOutput::text("too late"))
            }
            "working" => {
                for _ in 0..6 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    context.partials.send(Partial::Text("still here".into()));
                }
                Ok(ToolOutput::text("done"))
            }
            "breaks" => panic!("the tool's own fault"),
            "gone" => Err(ToolError::new(ErrorKind::TransportError, "the server at 10.0.0.1 is gone")
                .with_model_message("the connection to the tool failed")),
            "away" => Err(ToolError::new(ErrorKind::TransportError, "it is away").retryable()),
            "flaky" if attempt < 3 => Err(ToolError::new(ErrorKind::TransportError, "not sent").retryable()),
            _ => Ok(ToolOutput::text(format!("ran with {}", arguments["n"]))),
        }
    }
}

/// A cache that panics when it is asked.
struct Panics;

#[async_trait]
impl ResponseCache for Panics {
    async fn get(&self, _key: &ContentHash, _ttl: Duration) -> Option<ToolOutput> {
        panic!("the cache's own fault")
    }
    async fn put(&self, _key: &ContentHash, _ttl: Duration, _output: &ToolOutput) {}
}

/// Skips, overrides or panics.
struct MeddlingInterceptor(&'static str);

#[async_trait]
impl Interceptor for MeddlingInterceptor {
    fn name(&self) -> &str {
        self.0
    }
    async fn before(&self, _call: &ValidCall, _run: &RunContext) -> InterceptorDecision {
        match self.0 {
            "panics before" => panic!("the interceptor's own fault"),
            "skips" => InterceptorDecision::Skip(ToolOutput::text("not needed")),
            "overrides" => InterceptorDecision::Override(json!({"n": 7})),
            "overrides badly" => InterceptorDecision::Override(json!({"n": "seven"})),
            _ => InterceptorDecision::Continue,
        }
    }
    async fn after(&self, _tool: &Entry, output: &ToolOutput, _run: &RunContext) -> Option<ToolOutput> {
        match self.0 {
            "panics after" => panic!("the interceptor's own fault"),
            "overrides the output" => Some(ToolOutput { is_error: output.is_error, ..ToolOutput::text("another") }),
            _ => None,
        }
    }
}

/// What happens while the call is under way.
#[derive(Clone, Copy)]
enum Disturbance {
    Nothing,
    /// Once the tool runs, the run's token fires.
    Cancel(CancelCause),
    /// Once the tool runs, the fixture is shut down.
    ShutDown,
    /// Once the tool runs, nobody waits any more.
    CallerLeaves,
    /// The only slot is taken by another call, and the caller goes while this one waits for it.
    WaitingCallerLeaves,
    /// The only slot is taken, and the fixture is shut down.
    ShutDownWaiting,
    /// The only slot is taken, and nobody may wait for it.
    QueueIsFull,
}
use Disturbance::{CallerLeaves, Nothing, QueueIsFull, ShutDown, ShutDownWaiting, WaitingCallerLeaves};

impl Disturbance {
    fn another_holds_the_slot(self) -> bool {
        matches!(self, WaitingCallerLeaves | ShutDownWaiting | QueueIsFull)
    }
}

struct Scene {
    fixture: Fixture,
    run: RunContext,
    started: Arc<tokio::sync::Notify>,
    events: Receiver<Arc<Event>>,
}

impl Scene {
    async fn set(configure: fn(&mut ExecutorOptions), terms: fn(&mut RunContext), is_io_bound: bool) -> Self {
        let started = Arc::new(tokio::sync::Notify::new());
        let tool = |name| {
            Arc::new(EndingTool { name, started: Arc::clone(&started), attempts: AtomicUsize::new(0) }) as Arc<dyn Tool>
        };
        let provider = FakeProvider::of_tools("ends", TOOLS.map(tool).to_vec()).with(|it| it.is_io_bound = is_io_bound);
        let fixture = fixture(|options| {
            options.defaults.tool_timeout = Duration::from_millis(500);
            options.grace = Duration::from_millis(60);
            let one = QueueConfig { concurrent: 1, ..QueueConfig::default() };
            options.queues = Queues::new(BTreeMap::from([("default".to_owned(), one)]));
            configure(options);
        })
        .await;
        let tools = provider.list().await.expect("list");
        let snapshot =
            Snapshot::build(&[Listing { provider: Arc::new(provider), tools, error: None, withheld: vec![] }]);
        let mut run = fixture.on(snapshot);
        terms(&mut run);
        let events = fixture.events.subscribe();
        Self { fixture, run, started, events }
    }

    async fn one(&self, tool: &str, arguments: Value, run: &RunContext) -> Outcome {
        let outcomes = self.fixture.executor.run_calls(vec![call("c", tool, arguments)], run).await;
        let [outcome] = outcomes.try_into().expect("exactly one outcome");
        outcome
    }

    /// The outcome, unless nobody waited for it.
    async fn play(&self, tool: &str, arguments: Value, meanwhile: Disturbance) -> Option<Outcome> {
        let calling = self.one(tool, arguments, &self.run);
        tokio::pin!(calling);
        match meanwhile {
            Nothing | QueueIsFull => return Some(calling.await),
            WaitingCallerLeaves | ShutDownWaiting => {
                assert!(tokio::time::timeout(Duration::from_millis(30), &mut calling).await.is_err());
            }
            Disturbance::Cancel(_) | ShutDown | CallerLeaves => tokio::select! {
                _ = &mut calling => panic!("it was to wait"),
                () = self.started.notified() => {}
            },
        }
        match meanwhile {
            CallerLeaves | WaitingCallerLeaves => return None,
            Disturbance::Cancel(cause) => self.run.cancel.cancel(cause),
            _ => {
                let executor = Arc::clone(&self.fixture.executor);
                tokio::spawn(async move { executor.shut_down(Duration::from_millis(300)).await });
            }
        }
        Some(calling.await)
    }

    /// The finished events of calls `c`, once one is there.
    async fn finished(&mut self) -> Vec<Option<ErrorKind>> {
        let mut finished = Vec::new();
        let deadline = Duration::from_secs(5);
        while finished.is_empty() {
            let event = tokio::time::timeout(deadline, self.events.recv()).await.expect("a finished event");
            match &*event.expect("open") {
                Event::ToolFinished { call, error, .. } if call.as_str() == "c" => finished.push(*error),
                _ => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        while let Ok(event) = self.events.try_recv().map(Arc::unwrap_or_clone) {
            if matches!(&event, Event::ToolFinished { call, .. } if call.as_str() == "c") {
                finished.push(None);
            }
        }
        finished
    }
}

/// What is expected of the outcome: `Ok` with a part of its text; or kind, cause, and parts of both messages.
type Expect = Result<&'static str, (ErrorKind, Option<CancelCause>, &'static str, &'static str)>;

#[derive(Clone)]
struct Case {
    tool: &'static str,
    arguments: Value,
    configure: fn(&mut ExecutorOptions),
    terms: fn(&mut RunContext),
    meanwhile: Disturbance,
    expect: Expect,
}

impl Case {
    fn new(tool: &'static str, expect: Expect) -> Self {
        let arguments = json!({"n": 1});
        Self { tool, arguments, configure: |_| (), terms: |_| (), meanwhile: Nothing, expect }
    }

    async fn check(self, is_io_bound: bool) {
        let name = format!("{} {:?} {is_io_bound}", self.tool, self.expect);
        let mut scene = Scene::set(self.configure, self.terms, is_io_bound).await;
        let waits = self.meanwhile.another_holds_the_slot();
        let other = RunContext { cancel: Cancel::new(), ..scene.run.clone() };
        let holder = waits.then(|| {
            let (executor, run) = (Arc::clone(&scene.fixture.executor), other.clone());
            tokio::spawn(async move { executor.run_calls(vec![call("holder", "waits", json!({}))], &run).await })
        });
        if holder.is_some() {
            scene.started.notified().await;
        }
        let outcome = scene.play(self.tool, self.arguments, self.meanwhile).await;
        let kind = self.expect.err().map(|(kind, ..)| kind);
        assert_eq!(scene.finished().await, [kind], "{name}");
        match (outcome, self.expect) {
            (None, _) => {}
            (Some(outcome), Ok(text)) => {
                assert!(outcome.ok && outcome.text().contains(text), "{name}: {}", outcome.text());
            }
            (Some(outcome), Err((kind, cause, operator, model))) => {
                assert!(!outcome.ok, "{name}");
                let error = outcome.error.expect("an error");
                assert_eq!((error.kind(), error.cancel_cause()), (kind, cause), "{name}: {error}");
                assert!(error.message().contains(operator), "{name}: {error}");
                let reported = error.for_model();
                assert!(reported.starts_with("(tool failed: ") && reported.contains(model), "{name}: {reported}");
            }
        }
        if let Some(holder) = holder {
            other.cancel.cancel(CancelCause::User);
            holder.await.expect("holder");
        }
        scene.fixture.store.flush().await.expect("flush");
        let rows = scene.fixture.store.totals().await.expect("totals").tool_calls;
        assert_eq!(rows, if waits { 2 } else { 1 }, "{name}: rows");
        let plain =
            RunContext { cancel: Cancel::new(), policy: Arc::new(Policy::of(Profile::Trusted)), ..scene.run.clone() };
        let after = scene.one("fine", json!({"n": 2}), &plain);
        let after = tokio::time::timeout(Duration::from_secs(5), after).await.expect("slot and lock are free");
        if matches!(self.meanwhile, ShutDown | ShutDownWaiting) {
            assert_eq!(after.error.as_ref().and_then(ToolError::cancel_cause), Some(CancelCause::Shutdown), "{name}");
        }
        assert_ne!(after.error.map(|error| error.kind()), Some(ErrorKind::LimitExceeded), "{name}");
    }
}

/// Checks each case with a tool that may keep its thread, and with one that only waits.
async fn check_all(cases: Vec<Case>) {
    for case in cases {
        case.clone().check(false).await;
        // Whoever keeps its thread does not only wait.
        if case.tool != "blocks" {
            case.check(true).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_once_by_its_tool() {
    use ErrorKind::{Denied, InternalError, InvalidParameters, Timeout, TransportError, UnknownTool};
    check_all(vec![
        Case::new("fine", Ok("ran with 1")),
        Case::new("working", Ok("done")),
        Case::new("flaky", Ok("ran with 1")),
        Case::new("nope", Err((UnknownTool, None, "nope", "nope"))),
        Case { arguments: json!({"n": "x"}), ..Case::new("fine", Err((InvalidParameters, None, "/n", "/n"))) },
        Case {
            terms: |run| run.policy = Arc::new(Policy::of(Profile::Ask)),
            ..Case::new("fine", Err((Denied, None, "t:fine@1.0.0 was denied", "denied: ")))
        },
        Case::new(
            "last_words",
            Err((
                Timeout,
                None,
                "did not finish within 30ms; it said: canceled",
                "timeout after 30ms; it said: half of it is done",
            )),
        ),
        Case::new("deaf", Err((Timeout, None, "t:deaf@1.0.0 did not finish within 500ms", "timeout after 500ms"))),
        Case::new("blocks", Err((Timeout, None, "did not finish within 500ms", "timeout after 500ms"))),
        Case::new("silent", Err((Timeout, None, "did not report progress for 60ms", "no progress for 60ms"))),
        Case::new("breaks", Err((InternalError, None, "panicked: the tool's own fault", "internal error of the tool"))),
        Case::new("gone", Err((TransportError, None, "10.0.0.1", "connection to the tool failed"))),
        Case::new("scopeless", Err((InternalError, None, "scope of the tool panicked", "internal error"))),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_once_by_code_around_it() {
    use ErrorKind::{InternalError, InvalidParameters};
    check_all(vec![
        Case {
            terms: |run| {
                run.policy = Arc::new(Policy::of(Profile::Ask));
                let panics = |_: &ApprovalRequest| -> ApprovalDecision { panic!("the approver's own fault") };
                run.approver = Arc::new(panics);
            },
            ..Case::new("fine", Err((InternalError, None, "the approver's own fault", "internal error")))
        },
        Case {
            configure: |options| options.cache = Some(Arc::new(Panics)),
            ..Case::new("fine", Err((InternalError, None, "the response cache panicked", "internal error")))
        },
        Case {
            configure: |options| {
                let panics = |_: &ValidCall| -> GuardVerdict { panic!("the guard's own fault") };
                options.guards.push(GuardBinding::new("g", Arc::new(panics)));
            },
            ..Case::new("fine", Err((InternalError, None, "a guard panicked: the guard's own fault", "internal error")))
        },
        Case {
            configure: |options| options.interceptors.push(Arc::new(MeddlingInterceptor("panics before"))),
            ..Case::new("fine", Err((InternalError, None, "an interceptor panicked", "internal error")))
        },
        Case {
            configure: |options| options.interceptors.push(Arc::new(MeddlingInterceptor("panics after"))),
            ..Case::new("fine", Err((InternalError, None, "an interceptor panicked", "internal error")))
        },
        Case {
            configure: |options| options.interceptors.push(Arc::new(MeddlingInterceptor("skips"))),
            ..Case::new("deaf", Ok("not needed"))
        },
        Case {
            configure: |options| options.interceptors.push(Arc::new(MeddlingInterceptor("overrides"))),
            ..Case::new("fine", Ok("ran with 7"))
        },
        Case {
            configure: |options| options.interceptors.push(Arc::new(MeddlingInterceptor("overrides badly"))),
            ..Case::new(
                "fine",
                Err((InvalidParameters, None, "interceptor overrides badly rewrote", "something invalid")),
            )
        },
        Case {
            configure: |options| options.interceptors.push(Arc::new(MeddlingInterceptor("overrides the output"))),
            ..Case::new("fine", Ok("another"))
        },
        Case {
            configure: |options| {
                let hub = Arc::clone(&options.services.events);
                let events = Arc::new(FakeEvents::with(move |event| {
                    hub.emit(event.clone());
                    panic!("the observer's own fault");
                }));
                options.services = Arc::new(Services { events, ..(*options.services).clone() });
            },
            ..Case::new("working", Ok("done"))
        },
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_once_when_it_is_stopped() {
    use CancelCause::{Deadline, RunLimit, Shutdown, Sibling, User};
    use ErrorKind::{Canceled, LimitExceeded};
    let mut cases = vec![
        Case { meanwhile: CallerLeaves, ..Case::new("waits", Err((Canceled, Some(User), "", ""))) },
        Case { meanwhile: CallerLeaves, ..Case::new("deaf", Err((Canceled, Some(User), "", ""))) },
        Case { meanwhile: WaitingCallerLeaves, ..Case::new("fine", Err((Canceled, Some(User), "", ""))) },
        Case {
            meanwhile: ShutDown,
            ..Case::new("waits", Err((Canceled, Some(Shutdown), "shutting down", "shutting down")))
        },
        Case {
            meanwhile: ShutDown,
            ..Case::new("deaf", Err((Canceled, Some(Shutdown), "shutting down", "shutting down")))
        },
        Case {
            meanwhile: ShutDownWaiting,
            ..Case::new("fine", Err((Canceled, Some(Shutdown), "shutting down", "shutting down")))
        },
    ];
    for (cause, words) in [
        (User, "by the user"),
        (Sibling, "a call of the same turn"),
        (Shutdown, "shutting down"),
        (RunLimit, "reached a limit"),
        (Deadline, "its time was up"),
    ] {
        for tool in ["waits", "deaf", "away"] {
            let expect = Err((Canceled, Some(cause), words, words));
            cases.push(Case { meanwhile: Disturbance::Cancel(cause), ..Case::new(tool, expect) });
        }
    }
    cases.push(Case {
        configure: |options| {
            let none = QueueConfig { concurrent: 1, max_waiting: 0, ..QueueConfig::default() };
            options.queues = Queues::new(BTreeMap::from([("default".to_owned(), none)]));
        },
        meanwhile: QueueIsFull,
        ..Case::new("fine", Err((LimitExceeded, None, "held by t:waits@1.0.0", "is full")))
    });
    check_all(cases).await;
}

#[tokio::test]
async fn attempts_share_one_idempotency_key() {
    let scene = Scene::set(|_| (), |_| (), false).await;
    let outcome = scene.one("flaky", json!({}), &scene.run).await;
    assert_eq!(outcome.extras.get("attempts"), Some(&json!(3)));
    let two = vec![call("a", "working", json!({})), call("b", "fine", json!({}))];
    let outcomes = scene.fixture.executor.run_calls(two, &scene.run).await;
    let waited = outcomes[1].extras.get("wait_ms").and_then(Value::as_u64).expect("it waited");
    assert!(waited >= 60, "{waited}");
    assert!(!outcomes[0].extras.contains_key("wait_ms"));
}

/// What a call that only waits for its source does within itself is told of no earlier than that it began.
#[tokio::test]
async fn brief_observers_get_short_calls_once() {
    for (is_io_bound, expect) in [(true, "short | late | long"), (false, "started | short | started | long")] {
        let mut scene = Scene::set(|_| (), |_| (), is_io_bound).await;
        scene.events = scene.fixture.events.subscribe_brief();
        // Until one event has found nobody, whoever reads all may be there.
        scene.one("fine", json!({}), &scene.run).await;
        while scene.events.try_recv().is_ok() {}
        scene.one("fine", json!({}), &scene.run).await;
        scene.one("working", json!({}), &scene.run).await;
        let mut reported = Vec::new();
        while let Ok(event) = scene.events.try_recv() {
            match &*event {
                Event::ToolStarted { after_us: 0, arguments: Value::Null, .. } => reported.push("started"),
                Event::ToolStarted { after_us: 5000.., arguments: Value::Null, .. } => reported.push("late"),
                Event::ToolFinished { run_us: ..60_000, .. } => reported.push("short"),
                Event::ToolFinished { run_us, latency_us, .. } => {
                    assert!(*run_us >= 120_000 && run_us <= latency_us, "{run_us} of {latency_us}");
                    reported.push("long");
                }
                Event::ToolPartial { .. } | Event::ToolWait { .. } | Event::ToolWaited { .. } => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(reported.join(" | "), expect);
        let mut whole = scene.fixture.events.subscribe();
        scene.one("fine", json!({}), &scene.run).await;
        let first = whole.try_recv().expect("told");
        assert!(matches!(&*first, Event::ToolStarted { after_us: 0, .. }), "{first:?}");
        drop(whole);
        // One that is cancelled at once may go on for a while. It is to have begun, and not the ones before it.
        scene.started.notified().await;
        scene.one("fine", json!({}), &scene.run).await;
        scene.started.notified().await;
        while scene.events.try_recv().is_ok() {}
        scene.play("deaf", json!({}), Disturbance::Cancel(CancelCause::User)).await;
        let reported: Vec<_> = std::iter::from_fn(|| scene.events.try_recv().ok()).collect();
        let began = reported.iter().position(|event| matches!(&**event, Event::ToolStarted { .. }));
        let ended = reported.iter().position(|event| matches!(&**event, Event::ToolFinished { .. }));
        assert!(began < ended && began.is_some(), "{reported:?}");
    }
}
