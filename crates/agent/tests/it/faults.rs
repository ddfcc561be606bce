//! Failures of requests to a model, over all five APIs: from a run down to the bytes on the socket, and back up to the
//! ledger. The table checks what `docs/models.md` promises.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use toolwright_agent::{Dispatch, Driver, Limits, RunState, Status};
use toolwright_core::context::NoRedaction;
use toolwright_core::event::Event;
use toolwright_core::model::{
    Message, ModelError, ModelErrorKind, ModelRequest, ModelResponse, OutputFormat, Prices, Usage,
};
use toolwright_core::store::{LedgerEntry, LedgerStore as _};
use toolwright_core::{Effects, OpKind, Services, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient, Timeouts};
use toolwright_runtime::executor::ExecutorOptions;
use toolwright_runtime::{Catalogue, Executor, ModelTraffic, RunContext, SqliteStore, SystemClock};
use toolwright_testkit::FakeEvents;
use toolwright_testkit::model_server::{Fault, Recorded, Script, ScriptedModel, Turn, WireApi};

use crate::fixture::{begin, options, provider, run_config};

pub(crate) const APIS: [(Api, WireApi); 5] = [
    (Api::OpenAiChat, WireApi::OpenAi),
    (Api::OpenAiResponses, WireApi::Responses),
    (Api::Anthropic, WireApi::Anthropic),
    (Api::Gemini, WireApi::Gemini),
    (Api::Ollama, WireApi::Ollama),
];
const PRICES: Prices = Prices { input: 1.0, output: 10.0, cached: None, cache_written: None };
/// Far below what a hanging server takes (a minute), far above what a busy machine does.
const BOUND: Duration = Duration::from_secs(40);
/// Cells at once: most of their time is waiting.
const AT_ONCE: usize = 24;
/// Two frames of a stream.
const TEXT: &str = "Let me look around here.";

fn timeouts() -> Timeouts {
    Timeouts {
        first_byte: Duration::from_secs(6),
        idle: Duration::from_secs(5),
        answer: Duration::from_secs(12),
        ..Timeouts::default()
    }
}

/// Notes what it is called with.
#[derive(Default)]
struct Tally(Mutex<Vec<i64>>);

#[async_trait]
impl Tool for Tally {
    fn definition(&self) -> ToolDefinition {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let mut definition = ToolDefinition::new(ToolId::parse("t:count@1.0.0").unwrap(), "Counts.", Some(schema));
        definition.effects = Effects::WRITE;
        definition
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.0.lock().unwrap().push(arguments["n"].as_i64().unwrap_or_default());
        Ok(ToolOutput::text("counted"))
    }
}

/// Real parts from the driver to the socket, and the ledger on disk.
pub(crate) struct FaultFixture {
    pub(crate) server: ScriptedModel,
    executor: Arc<Executor>,
    catalogue: Arc<Catalogue>,
    pub(crate) driver: Driver,
    store: Arc<SqliteStore>,
    log: Arc<FakeEvents>,
    tally: Arc<Tally>,
    _dir: tempfile::TempDir,
}

impl FaultFixture {
    pub(crate) async fn new((api, wire): (Api, WireApi), script: impl Into<Script>) -> Self {
        let server = ScriptedModel::start(script).await.unwrap();
        let mut endpoints = Endpoints::default();
        endpoints.insert(Endpoint::new("test", api, server.base_url(wire)).with_key("sk-secret-7"));
        let client = Arc::new(HttpModelClient::with_timeouts(endpoints, timeouts()));
        let model = ModelTraffic::new(client, BTreeMap::new());
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let log = Arc::new(FakeEvents::default());
        let services = Services { events: log.clone(), model: model.clone(), ..Services::none(Arc::new(SystemClock)) };
        let mut settings = ExecutorOptions::new(Arc::new(services), store.clone(), store.clone());
        settings.prices = [("test".to_owned(), PRICES)].into_iter().collect();
        let executor = Executor::new(settings);
        let catalogue = Catalogue::new(log.clone(), Arc::new(NoRedaction), Duration::from_secs(5));
        let tally = Arc::new(Tally::default());
        catalogue.add_provider(provider("test", vec![tally.clone()])).await.unwrap();
        catalogue.refresh("test").await;
        let driver = Driver::new(executor.clone(), catalogue.clone(), model, Some(store.clone()));
        Self { server, executor, catalogue, driver, store, log, tally, _dir: dir }
    }

    async fn ask(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let run = options();
        let run = RunContext::new(run.session, self.catalogue.snapshot(), run.policy, run.approver);
        self.executor.ask_model("test/m", request, None, &run).await
    }

    /// The attempts at requests to the model as they are in the ledger, which says of each what it used and what that
    /// cost.
    async fn ledger_rows(&self) -> Vec<LedgerEntry> {
        self.store.flush().await.unwrap();
        let traces = self.store.find_traces("last").await.unwrap();
        let mut rows = self.store.operations(&traces[0], 1000).await.unwrap();
        rows.retain(|row| row.kind == OpKind::Model);
        for row in &rows {
            let cost = PRICES.known_cost(row.usage);
            assert_eq!(row.cost_usd, cost, "{row:?}");
        }
        rows
    }

    fn ran(&self) -> Vec<i64> {
        self.tally.0.lock().unwrap().clone()
    }
}

/// Status, number and tokens of each attempt.
fn attempts(rows: &[LedgerEntry]) -> Vec<(&str, u32, u64, u64)> {
    rows.iter().map(|row| (&*row.status, row.attempts, row.usage.input_tokens, row.usage.output_tokens)).collect()
}

fn sum(rows: &[LedgerEntry]) -> Usage {
    let mut sum = Usage::default();
    rows.iter().for_each(|row| sum.add(row.usage));
    sum
}

/// The requests have the same bytes.
fn all_same(requests: &[Recorded]) -> bool {
    requests.windows(2).all(|two| two[0].bytes == two[1].bytes && two[0].path == two[1].path)
}

/// What a request comes to that meets a fault at its first attempt.
#[derive(Debug, Clone, Copy)]
enum FaultOutcome {
    /// It is answered at this attempt. The failures before it are of this kind.
    Answered { attempts: u32, failures: ModelErrorKind },
    /// It fails, and is not made again: nothing of its answer is billed but what the provider said by then.
    Fails(ModelErrorKind),
}

/// A stream: what goes wrong with it (after two frames, where it goes wrong amid), and how that ends.
const STREAMED: [(Fault, FaultOutcome); 21] = {
    use FaultOutcome::{Answered, Fails};
    use ModelErrorKind::{BadResponse, RateLimit, Unavailable};
    [
        (Fault::Status(429, None), Answered { attempts: 2, failures: RateLimit }),
        (Fault::Status(429, Some(1)), Answered { attempts: 2, failures: RateLimit }),
        (Fault::Status(429, Some(3600)), Fails(RateLimit)),
        (Fault::Status(500, None), Answered { attempts: 2, failures: Unavailable }),
        (Fault::Status(503, None), Answered { attempts: 2, failures: Unavailable }),
        (Fault::HangingStatus(429, 1), Answered { attempts: 2, failures: RateLimit }),
        (Fault::Overload, Answered { attempts: 2, failures: Unavailable }),
        (Fault::Hang, Fails(Unavailable)),
        (Fault::HangAfter(0), Fails(Unavailable)),
        (Fault::HangAfter(2), Fails(BadResponse)),
        (Fault::CutAfter(0), Fails(BadResponse)),
        (Fault::CutAfter(2), Fails(BadResponse)),
        (Fault::CutWithin(2), Fails(BadResponse)),
        (Fault::EndAfter(2), Fails(BadResponse)),
        (Fault::Garble(2), Fails(BadResponse)),
        (Fault::ErrorAfter(2), Fails(Unavailable)),
        (Fault::Empty, Fails(BadResponse)),
        (Fault::Page, Fails(BadResponse)),
        (Fault::Mislabel, Answered { attempts: 1, failures: BadResponse }),
        (Fault::Drip(7, Duration::from_millis(2)), Answered { attempts: 1, failures: BadResponse }),
        (Fault::KeepAlive(2), Fails(BadResponse)),
    ]
};

/// An answer that is sent whole although a stream was asked for; it is one frame.
const WHOLE: [(Fault, FaultOutcome); 13] = {
    use FaultOutcome::{Answered, Fails};
    use ModelErrorKind::{BadResponse, RateLimit, Unavailable};
    [
        (Fault::Status(429, None), Answered { attempts: 2, failures: RateLimit }),
        (Fault::Status(503, None), Answered { attempts: 2, failures: Unavailable }),
        (Fault::HangingStatus(429, 1), Answered { attempts: 2, failures: RateLimit }),
        (Fault::Overload, Answered { attempts: 2, failures: Unavailable }),
        (Fault::Hang, Fails(Unavailable)),
        (Fault::HangAfter(0), Fails(Unavailable)),
        (Fault::CutAfter(0), Fails(BadResponse)),
        (Fault::CutWithin(0), Fails(BadResponse)),
        (Fault::Garble(0), Fails(BadResponse)),
        (Fault::Empty, Fails(BadResponse)),
        (Fault::Mislabel, Answered { attempts: 1, failures: BadResponse }),
        (Fault::Drip(7, Duration::from_millis(2)), Answered { attempts: 1, failures: BadResponse }),
        (Fault::KeepAlive(0), Fails(BadResponse)),
    ]
};

/// What the scripted server has said of tokens after two frames.
fn early_usage(api: Api, fault: Fault) -> (u64, u64) {
    match (fault, api) {
        (
            Fault::HangAfter(2)
            | Fault::CutAfter(2)
            | Fault::CutWithin(2)
            | Fault::EndAfter(2)
            | Fault::Garble(2)
            | Fault::ErrorAfter(2)
            | Fault::KeepAlive(2),
            _,
        ) => match api {
            Api::Anthropic => (10, 1),
            Api::Gemini => (10, 0),
            _ => (0, 0),
        },
        _ => (0, 0),
    }
}

/// The rows of a request that meets `fault`.
fn expected(api: Api, fault: Fault, end: FaultOutcome) -> Vec<(&'static str, u32, u64, u64)> {
    match end {
        FaultOutcome::Answered { attempts, failures } => {
            let failed = (1..attempts).map(|attempt| (failures.as_str(), attempt, 0, 0));
            failed.chain([("ok", attempts, 10, 5)]).collect()
        }
        FaultOutcome::Fails(kind) => {
            let (input, output) = early_usage(api, fault);
            vec![(kind.as_str(), 1, input, output)]
        }
    }
}

/// All cells at once, each within its bound.
async fn in_every_api<T: Copy>(cells: &[T], check: impl AsyncFn((Api, WireApi), T)) {
    let check = &check;
    let cells = cells.iter().flat_map(|cell| APIS.map(|api| (api, *cell)));
    stream::iter(cells.enumerate())
        .for_each_concurrent(AT_ONCE, |(number, (api, cell))| async move {
            let done = tokio::time::timeout(BOUND, check(api, cell)).await;
            assert!(done.is_ok(), "cell {number} of {api:?} hangs");
        })
        .await;
}

async fn one_request(api: (Api, WireApi), turn: Turn, (fault, end): (Fault, FaultOutcome)) {
    let what = format!("{} {fault}", api.0);
    let bench = FaultFixture::new(api, Script::from(vec![turn]).with_faults([fault])).await;
    let request = ModelRequest { messages: vec![Message::user("q")], ..ModelRequest::default() };
    let began = Instant::now();
    let answer = bench.ask(&request).await;
    match end {
        FaultOutcome::Answered { .. } => {
            let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!((answer.text.as_str(), answer.usage.output_tokens), (TEXT, 5), "{what}");
        }
        FaultOutcome::Fails(kind) => {
            let Err(error) = answer else { panic!("{what}: answered") };
            assert_eq!(error.kind, kind, "{what}: {error}");
            assert_eq!(error.message.contains("content type is text/html"), fault == Fault::Page, "{what}: {error}");
            let kept = error.partial.map(|partial| partial.text).unwrap_or_default();
            assert!(TEXT.starts_with(&kept), "{what}: {kept}");
        }
    }
    if let Fault::Status(_, Some(1)) | Fault::HangingStatus(_, 1) = fault {
        assert!(began.elapsed() >= Duration::from_secs(1), "{what}: the provider's wait is waited");
    }
    let expect = expected(api.0, fault, end);
    assert_eq!(attempts(&bench.ledger_rows().await), expect, "{what}");
    let sent = bench.server.requests();
    assert!(sent.len() == expect.len() && all_same(&sent), "{what}: {sent:?}");
    assert_eq!(bench.server.failures(), [""; 0], "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_stream_ends_as_documented() {
    in_every_api(&STREAMED, async |api, cell| one_request(api, Turn::text(TEXT), cell).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_answer_ends_as_documented() {
    in_every_api(&WHOLE, async |api, cell| one_request(api, Turn::text(TEXT).whole(), cell).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_faults_runs_no_call_twice() {
    in_every_api(&STREAMED, async |api, (fault, end)| {
        let what = format!("{} {fault}", api.0);
        let turns = vec![Turn::text_and_calls(TEXT, vec![("t__count", json!({"n": 1}))]), Turn::text("Done.")];
        let bench = FaultFixture::new(api, Script::from(turns).with_faults([fault])).await;
        let report = bench.driver.run(&mut begin(Limits::default()), &options()).await.unwrap();
        let ledger_rows = bench.ledger_rows().await;
        let mut expect = expected(api.0, fault, end);
        let failed = match end {
            FaultOutcome::Answered { .. } => {
                expect.push(("ok", 1, 10, 5));
                assert_eq!((report.status, report.answer.as_str()), (Status::Success, "Done."), "{what}");
                1
            }
            FaultOutcome::Fails(_) => {
                assert_eq!(report.status, Status::Failure, "{what}: {report:?}");
                assert!(report.reason.as_deref().unwrap_or_default().contains("the model request failed"), "{what}");
                0
            }
        };
        assert_eq!((attempts(&ledger_rows), bench.ran()), (expect.clone(), vec![1; failed]), "{what}");
        assert_eq!(report.usage, sum(&ledger_rows), "{what}: the report and the ledger say the same");
        let sent = bench.server.requests();
        assert!(sent.len() == expect.len() && all_same(&sent[..sent.len() - failed]), "{what}");
        assert_eq!(bench.server.failures(), [""; 0], "{what}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_started_call_runs_once() {
    use ModelErrorKind::{BadResponse, Unavailable};
    // Frames behind which the first of two calls is whole and the second is not.
    let within_second = |api| match api {
        Api::OpenAiChat => 6,
        Api::OpenAiResponses => 15,
        Api::Anthropic => 12,
        Api::Gemini | Api::Ollama => 3,
    };
    type Faulty = fn(usize) -> Fault;
    let faults: [(Faulty, ModelErrorKind); 7] = [
        (Fault::CutAfter, BadResponse),
        (Fault::CutWithin, BadResponse),
        (Fault::EndAfter, BadResponse),
        (Fault::HangAfter, BadResponse),
        (Fault::Garble, BadResponse),
        (Fault::KeepAlive, BadResponse),
        (Fault::ErrorAfter, Unavailable),
    ];
    in_every_api(&faults, async |api, (fault, kind)| {
        let fault = fault(within_second(api.0));
        let what = format!("{} {fault}", api.0);
        let calls = vec![("t__count", json!({"n": 1})), ("t__count", json!({"n": 2}))];
        let second = Turn::text("Done.").expecting("one result", |asked| asked.last_results().len() == 1);
        let bench = FaultFixture::new(api, vec![Turn::text_and_calls(TEXT, calls).with_fault(fault), second]).await;
        let config = toolwright_agent::RunConfig { dispatch: Dispatch::Streaming, ..run_config(Limits::default()) };
        let mut state = RunState::new(config, vec![Message::user("task")]);
        let report = bench.driver.run(&mut state, &options()).await.unwrap();
        let ledger_rows = bench.ledger_rows().await;
        let rows: Vec<_> = ledger_rows.iter().map(|row| (&*row.status, row.attempts)).collect();
        let sent = bench.server.requests().len();
        // What breaks off in the same breath as the call comes is known before the call could start.
        let hangs = matches!(fault, Fault::HangAfter(_) | Fault::KeepAlive(_));
        if hangs || !bench.ran().is_empty() {
            assert_eq!((report.status, report.answer.as_str()), (Status::Success, "Done."), "{what}: {report:?}");
            assert_eq!((bench.ran(), rows, sent), (vec![1], vec![(kind.as_str(), 1), ("ok", 1)], 2), "{what}");
        } else {
            assert_eq!((report.status, rows, sent), (Status::Failure, vec![(kind.as_str(), 1)], 1), "{what}");
        }
        assert_eq!(report.usage, sum(&ledger_rows), "{what}: the report and the ledger say the same");
        assert_eq!(bench.server.failures(), [""; 0], "{what}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_abilities_are_found_within_the_request() {
    let refusal = Turn::error(400, "output_config: this model does not support structured outputs");
    let bench = FaultFixture::new(APIS[2], vec![refusal, Turn::text("{}")]).await;
    let schema = json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false});
    let output = Some(OutputFormat { name: "o".into(), schema: Some(schema) });
    let request = ModelRequest { messages: vec![Message::user("q")], output, ..ModelRequest::default() };
    let answer = bench.ask(&request).await.unwrap();
    assert_eq!(answer.text, "{}");
    assert_eq!(attempts(&bench.ledger_rows().await), [("invalid", 1, 0, 0), ("ok", 2, 10, 5)]);

    let bench = FaultFixture::new(APIS[4], vec![Turn::text("ok")]).await;
    let request = ModelRequest { messages: vec![Message::user("four".repeat(2000))], ..ModelRequest::default() };
    bench.ask(&request).await.unwrap();
    let events = bench.log.seen();
    let warned = events.iter().filter_map(|event| match event {
        Event::Warning { code, message } => Some((code.as_str(), message.contains("10 tokens of about 2000"))),
        _ => None,
    });
    assert_eq!(warned.collect::<Vec<_>>(), [("prompt_truncated", true)]);
}
