//! Two hundred agents at once, over one model that takes only so many requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use tokio::task::JoinSet;
use toolwright_agent::{Driver, Limits, RunOptions, RunSpec, Status};
use toolwright_core::context::NoRedaction;
use toolwright_core::event::EventSink;
use toolwright_core::model::{
    ModelClient, ModelError, ModelEvents, ModelPriority, ModelRequest, ModelResponse, RetryTerms,
};
use toolwright_core::operation::OpKind;
use toolwright_core::store::LedgerStore as _;
use toolwright_core::{Cancel, Effects, Services};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient};
use toolwright_runtime::{
    Catalogue, Executor, ExecutorOptions, ModelTraffic, OutputFiles, QueueSpec, SqliteStore, SystemClock, TrafficTerms,
};
use toolwright_testkit::model_server::{Asked, Reply, Script, ScriptedModel, Turn, WireApi};

use crate::house::{Counter, Log, begin_with, options, provider, spec};

const AGENTS: usize = 200;
/// Requests that may run at once, each of which takes `TAKES`: so many may start in any time as long.
const AT_ONCE: usize = 16;
const TAKES: Duration = Duration::from_millis(50);

/// The model of agents whose requests have this priority.
struct Of(Arc<ModelTraffic>, ModelPriority);

#[async_trait]
impl ModelClient for Of {
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let request = ModelRequest { priority: self.1, ..request.clone() };
        self.0.complete(model, &request, events, cancel).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_agents_keep_the_limit_and_all_finish() {
    let starts: Arc<Mutex<Vec<(Instant, String)>>> = Arc::default();
    let came = Arc::clone(&starts);
    let turn = Turn::computed(move |asked: &Asked| {
        let mut came = came.lock().unwrap();
        came.push((Instant::now(), asked.model().to_owned()));
        match (came.len() % 20, asked.last_results().is_empty()) {
            (0, _) => Reply::error(503, "come again"),
            (_, true) => Reply::calls(vec![("t__add", json!({"n": 1}))]),
            (_, false) => Reply::text("done"),
        }
    });
    let server = ScriptedModel::start(Script::from(vec![turn.with_delay(TAKES)]).repeating()).await.unwrap();
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("many", Api::OpenAiChat, server.base_url(WireApi::OpenAi)).with_key("k"));
    let queue =
        QueueSpec { concurrent: AT_ONCE, per_minute: None, max_waiting: AGENTS, wait_timeout: Duration::from_secs(60) };
    let retry = RetryTerms { attempts: 10, ..RetryTerms::default() };
    let terms = TrafficTerms { queue: Some(queue), retry: Some(retry) };
    let traffic =
        ModelTraffic::new(Arc::new(HttpModelClient::new(endpoints)), BTreeMap::from([("many".to_owned(), terms)]));
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let events: Arc<dyn EventSink> = Arc::new(Log::default());
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

    let mut runs = JoinSet::new();
    for agent in 0..AGENTS {
        let (priority, name) = match agent % 3 {
            0 => (ModelPriority::Low, "low"),
            1 => (ModelPriority::Background, "background"),
            _ => (ModelPriority::Interactive, "interactive"),
        };
        let client = Arc::new(Of(Arc::clone(&traffic), priority));
        let driver = Driver::new(executor.clone(), catalogue.clone(), client, Some(store.clone()));
        let mut state = begin_with(RunSpec { model: format!("many/{name}"), ..spec(Limits::default()) });
        let options = RunOptions { run_id: format!("run-{agent}").into(), ..options() };
        runs.spawn(async move { driver.run(&mut state, &options).await.unwrap().status });
    }
    let ended = runs.join_all().await;
    assert!(ended.len() == AGENTS && ended.iter().all(|status| *status == Status::Success), "{ended:?}");
    assert_eq!(tool.count(), AGENTS);

    let starts = starts.lock().unwrap().clone();
    for (from, (first, _)) in starts.iter().enumerate() {
        let within = starts[from..].iter().take_while(|(start, _)| *start - *first < TAKES).count();
        assert!(within <= AT_ONCE, "{within} requests started within {TAKES:?}");
    }
    // Whoever is waited for goes before who has time: half of theirs have come before half of the others'.
    let middle = |name: &str| {
        let of: Vec<usize> = (0..starts.len()).filter(|&at| starts[at].1.ends_with(name)).collect();
        of[of.len() / 2]
    };
    assert!(middle("interactive") < middle("background") && middle("background") < middle("low"));

    store.flush().await.unwrap();
    let mut rows = 0;
    for agent in 0..AGENTS {
        for trace in store.find_traces(&format!("run-{agent}")).await.unwrap() {
            let operations = store.operations(&trace, 1000).await.unwrap();
            rows += operations.iter().filter(|row| row.kind == OpKind::Model).count();
        }
    }
    assert_eq!((rows, server.requests().len()), (starts.len(), starts.len()), "one row an attempt");
    assert_eq!(server.failures(), Vec::<String>::new());
}
