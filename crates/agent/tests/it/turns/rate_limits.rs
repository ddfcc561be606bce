//! Two hundred concurrent agents on one model with limits, checked by the requests at its socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::Instant;
use toolwright_agent::{Driver, Limits, RunConfig, RunOptions, Status};
use toolwright_core::context::NoRedaction;
use toolwright_core::event::{Event, EventSink};
use toolwright_core::model::{ModelClient, ModelPriority, ModelRequest, RetryConfig};
use toolwright_core::operation::OpKind;
use toolwright_core::store::LedgerStore as _;
use toolwright_core::{Effects, Services};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient};
use toolwright_runtime::{
    Catalogue, Executor, ExecutorOptions, ModelQueueConfig, ModelTraffic, OutputFiles, SqliteStore, SystemClock,
    TrafficConfig,
};
use toolwright_testkit::model_server::{RecordedRequest, Reply, Script, ScriptedModel, Turn, WireApi};
use toolwright_testkit::{FakeEvents, FakeModel};

use crate::fixture::{Counter, begin_with, options, provider, run_config};

const AGENTS: usize = 200;
/// What a request takes: as many as may run at once may start in any time as long.
const REQUEST_TIME: Duration = Duration::from_millis(50);

/// The model of agents whose requests have this priority.
fn with_priority(traffic: &Arc<ModelTraffic>, priority: ModelPriority) -> Arc<FakeModel> {
    let traffic = Arc::clone(traffic);
    Arc::new(FakeModel::with_future(move |call| {
        let (traffic, request) = (Arc::clone(&traffic), ModelRequest { priority, ..call.request.clone() });
        Box::pin(async move { traffic.complete(call.model, &request, call.events, call.cancel).await })
    }))
}

/// The model, the driver in front of it, and the requests that reached the model: when, and by whom.
struct ManyAgentsFixture {
    server: ScriptedModel,
    traffic: Arc<ModelTraffic>,
    executor: Arc<Executor>,
    catalogue: Arc<Catalogue>,
    store: Arc<SqliteStore>,
    tool: Arc<Counter>,
    log: Arc<FakeEvents>,
    came: Arc<Mutex<Vec<(Instant, String)>>>,
    _dir: tempfile::TempDir,
}

impl ManyAgentsFixture {
    /// A model that says `reply` to the request of this number, from 1.
    async fn new(
        queue: ModelQueueConfig,
        reply: impl Fn(&RecordedRequest, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let came: Arc<Mutex<Vec<(Instant, String)>>> = Arc::default();
        let arrivals = Arc::clone(&came);
        let turn = Turn::computed(move |asked: &RecordedRequest| {
            let mut came = arrivals.lock().unwrap();
            came.push((Instant::now(), asked.model().to_owned()));
            reply(asked, came.len())
        });
        let server = ScriptedModel::start(Script::from(vec![turn.with_delay(REQUEST_TIME)]).repeating()).await.unwrap();
        let mut endpoints = Endpoints::default();
        endpoints.insert(Endpoint::new("many", Api::OpenAiChat, server.base_url(WireApi::OpenAi)).with_key("k"));
        let retry = RetryConfig { attempts: 10, ..RetryConfig::default() };
        let terms = TrafficConfig { queue: Some(queue), retry: Some(retry) };
        let traffic =
            ModelTraffic::new(Arc::new(HttpModelClient::new(endpoints)), BTreeMap::from([("many".to_owned(), terms)]));
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let log = Arc::new(FakeEvents::default());
        let events: Arc<dyn EventSink> = Arc::clone(&log) as _;
        let services = Services {
            outputs: OutputFiles::new(dir.path().join("outputs")),
            events: Arc::clone(&events),
            model: Arc::clone(&traffic) as _,
            ..Services::none(Arc::new(SystemClock))
        };
        let executor = Executor::new(ExecutorOptions::new(Arc::new(services), store.clone(), store.clone()));
        let catalogue = Catalogue::new(events, Arc::new(NoRedaction), Duration::from_secs(5));
        let tool = Counter::new("t:add@1.0.0", Effects::READ);
        catalogue.add_provider(provider("test", vec![tool.clone()])).await.unwrap();
        catalogue.refresh("test").await;
        Self { server, traffic, executor, catalogue, store, tool, log, came, _dir: dir }
    }

    /// Sets them going: a third each of what has time, of work on the side, and of what is waited for.
    fn start(&self) -> JoinSet<Status> {
        let mut runs = JoinSet::new();
        for agent in 0..AGENTS {
            let (priority, name) = match agent % 3 {
                0 => (ModelPriority::Low, "low"),
                1 => (ModelPriority::Background, "background"),
                _ => (ModelPriority::Interactive, "interactive"),
            };
            let client = with_priority(&self.traffic, priority);
            let driver = Driver::new(self.executor.clone(), self.catalogue.clone(), client, Some(self.store.clone()));
            let mut state = begin_with(RunConfig { model: format!("many/{name}"), ..run_config(Limits::default()) });
            let options = RunOptions { run_id: format!("run-{agent}").into(), ..options() };
            runs.spawn(async move { driver.run(&mut state, &options).await.unwrap().status });
        }
        runs
    }

    fn came(&self) -> Vec<(Instant, String)> {
        self.came.lock().unwrap().clone()
    }

    /// The most that came within any time of this length.
    fn most_within(&self, time: Duration) -> usize {
        let came = self.came();
        let within = |from: usize| came[from..].iter().take_while(|(at, _)| *at - came[from].0 < time).count();
        (0..came.len()).map(within).max().unwrap_or_default()
    }

    /// Half of what is waited for has come before half of the work on the side, and that before half of what has time.
    fn assert_order(&self) {
        let came = self.came();
        let middle = |name: &str| {
            let of: Vec<usize> = (0..came.len()).filter(|&at| came[at].1.ends_with(name)).collect();
            of[of.len() / 2]
        };
        assert!(middle("interactive") < middle("background") && middle("background") < middle("low"));
    }

    async fn assert_one_row_an_attempt(&self) {
        self.store.flush().await.unwrap();
        let mut rows = 0;
        for agent in 0..AGENTS {
            for trace in self.store.find_traces(&format!("run-{agent}")).await.unwrap() {
                let operations = self.store.operations(&trace, 1000).await.unwrap();
                rows += operations.iter().filter(|row| row.kind == OpKind::Model).count();
            }
        }
        let came = self.came().len();
        assert_eq!((rows, self.server.requests().len()), (came, came), "one row an attempt");
        assert_eq!(self.server.failures(), Vec::<String>::new());
    }

    /// How many came within this time, up to now.
    fn came_within(&self, time: Duration) -> usize {
        self.came.lock().unwrap().iter().rev().take_while(|(at, _)| at.elapsed() < time).count()
    }

    /// How many requests have waited in the queue.
    fn waits(&self) -> usize {
        self.log.seen().iter().filter(|event| matches!(event, Event::ModelWait { .. })).count()
    }

    /// Waits, by no clock of the test, until nothing happens any more: some moments where that is `expected`, and else
    /// long enough for who is slow.
    async fn rests(&self, expected: impl Fn() -> bool) {
        let state = || (self.came.lock().unwrap().len(), self.log.seen().len(), self.tool.count());
        let (mut before, mut same) = (state(), 0);
        while same < if expected() { 2 } else { 100 } {
            spawn_blocking(|| std::thread::sleep(Duration::from_millis(2))).await.unwrap();
            let now = state();
            same = if now == before { same + 1 } else { 0 };
            before = now;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_agents_keep_the_limit_and_finish() {
    const AT_ONCE: usize = 16;
    let queue = ModelQueueConfig {
        concurrent: AT_ONCE,
        requests_per_minute: None,
        max_waiting: AGENTS,
        wait_timeout: Duration::from_secs(60),
    };
    let many = ManyAgentsFixture::new(queue, |asked, number| match (number % 20, asked.last_results().is_empty()) {
        (0, _) => Reply::error(503, "come again"),
        (_, true) => Reply::calls(vec![("t__add", json!({"n": 1}))]),
        (_, false) => Reply::text("done"),
    })
    .await;
    let ended = many.start().join_all().await;
    assert!(ended.len() == AGENTS && ended.iter().all(|status| *status == Status::Success), "{ended:?}");
    assert_eq!(many.tool.count(), AGENTS);
    let within = many.most_within(REQUEST_TIME);
    assert!(within <= AT_ONCE, "{within} requests started within {REQUEST_TIME:?}");
    many.assert_order();
    many.assert_one_row_an_attempt().await;
}

/// The requests are real, and the minute is not waited for: the clock stands still while anything happens, and is then
/// set forward.
#[tokio::test(start_paused = true)]
async fn two_hundred_agents_keep_the_rate_limit() {
    const AT_ONCE: usize = 5;
    const A_MINUTE: usize = 600;
    const REQUESTS: usize = 4;
    const MINUTE: Duration = Duration::from_secs(60);
    // Without anything else to do, a paused clock would be set forward while answers are on their way.
    let (still, stands) = std::sync::mpsc::channel::<()>();
    let held = spawn_blocking(move || stands.recv());
    let queue = ModelQueueConfig {
        concurrent: AT_ONCE,
        requests_per_minute: Some(A_MINUTE),
        max_waiting: AGENTS,
        wait_timeout: Duration::from_secs(600),
    };
    let many = ManyAgentsFixture::new(queue, |asked, _| {
        let answers =
            asked.body["messages"].as_array().map_or(0, |all| all.iter().filter(|m| m["role"] == "assistant").count());
        if answers + 1 < REQUESTS { Reply::calls(vec![("t__add", json!({"n": 1}))]) } else { Reply::text("done") }
    })
    .await;
    let mut runs = many.start();
    many.rests(|| many.waits() == AGENTS - AT_ONCE).await;
    assert_eq!((many.came().len(), many.waits()), (AT_ONCE, AGENTS - AT_ONCE), "the others wait in line");

    let (mut ended, mut steps) = (Vec::new(), 0);
    while ended.len() < AGENTS {
        let is_busy = many.came_within(REQUEST_TIME) > 0;
        tokio::time::advance(if is_busy { REQUEST_TIME } else { Duration::from_secs(1) }).await;
        many.rests(|| many.came_within(REQUEST_TIME) == AT_ONCE || many.came_within(MINUTE) == A_MINUTE).await;
        while let Some(run) = runs.try_join_next() {
            ended.push(run.unwrap());
        }
        steps += 1;
        assert!(steps < 2000, "{} of {AGENTS} have ended after {} requests", ended.len(), many.came().len());
    }
    drop(still);
    held.await.unwrap().unwrap_err();

    assert!(ended.iter().all(|status| *status == Status::Success), "{ended:?}");
    let came = many.came();
    assert_eq!((came.len(), many.tool.count()), (AGENTS * REQUESTS, AGENTS * (REQUESTS - 1)));
    assert_eq!((many.most_within(REQUEST_TIME), many.most_within(MINUTE)), (AT_ONCE, A_MINUTE));
    many.assert_order();
    // Whoever came first had no others to wait for. While many of each wait, none of a lower priority goes before.
    let (interactive, background) = (&came[AT_ONCE..200], &came[300..480]);
    assert!(interactive.iter().all(|(_, model)| model.ends_with("interactive")), "{interactive:?}");
    assert!(background.iter().all(|(_, model)| model.ends_with("background")), "{background:?}");
    many.assert_one_row_an_attempt().await;
}
