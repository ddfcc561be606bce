//! Queued requests to models: how many, how often, in which order, and which are retried.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::event::Event;
use toolwright_core::model::{
    IgnoreModelEvents, Message, ModelCard, ModelClient, ModelError, ModelErrorKind, ModelEvent, ModelPriority,
    ModelRequest, ModelResponse, Prices, RateLimitWindow, RateLimits, RequestProgress, RetryConfig, Usability, Usage,
};
use toolwright_core::{OpKind, Services};
use toolwright_runtime::{ModelQueueConfig, ModelTraffic, Priority, RunContext, TrafficConfig};
use toolwright_testkit::{FakeLedger, FakeModel, FakeRequest};

use crate::fixture::fixture;

/// What a provider does with one request.
#[derive(Clone)]
enum ProviderAction {
    Answer,
    /// Answers, and tells its limits.
    Tell(RateLimits),
    /// Fails before anything of an answer.
    Fail(ModelErrorKind, Option<u64>),
    /// Refuses the form of the request, which will be another the next time.
    Refuse(ModelErrorKind),
    /// Fails once the first bytes have come, having used so many tokens.
    Break(ModelErrorKind, u64),
    Hang,
}

/// A provider that takes its time, and does what is asked of it, one deed a request; then it answers.
struct Provider {
    deeds: Mutex<VecDeque<ProviderAction>>,
    takes: Duration,
    running: AtomicUsize,
    most: AtomicUsize,
    /// When which request came.
    came: Mutex<Vec<(Instant, String, ModelPriority)>>,
}

impl Provider {
    fn new(takes: Duration, deeds: impl IntoIterator<Item = ProviderAction>) -> Arc<Self> {
        Arc::new(Self {
            deeds: Mutex::new(deeds.into_iter().collect()),
            takes,
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            came: Mutex::default(),
        })
    }

    fn came(&self) -> Vec<(Instant, String, ModelPriority)> {
        self.came.lock().expect("came").clone()
    }

    /// When each request came, in milliseconds since `begun`.
    fn times(&self, begun: Instant) -> Vec<u128> {
        self.came().iter().map(|(at, ..)| (*at - begun).as_millis()).collect()
    }
}

fn last_text(request: &ModelRequest) -> String {
    match request.messages.first() {
        Some(Message::User { content }) => content[0].as_text().unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}

impl Provider {
    /// The client that leads to it.
    fn client(self: &Arc<Self>) -> Arc<FakeModel> {
        let provider = Arc::clone(self);
        let fake = FakeModel::with_future(move |call| {
            let provider = Arc::clone(&provider);
            Box::pin(async move { provider.answer(call).await })
        });
        Arc::new(fake.with_card(|model| {
            let usability = match model.starts_with("p/") {
                true => Usability::Usable,
                false => Usability::Unknown("no such provider".into()),
            };
            ModelCard { usability, ..ModelCard::default() }
        }))
    }

    async fn answer(&self, FakeRequest { request, events, .. }: FakeRequest<'_>) -> Result<ModelResponse, ModelError> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        self.came.lock().expect("came").push((Instant::now(), last_text(request), request.priority));
        let deed = self.deeds.lock().expect("deeds").pop_front().unwrap_or(ProviderAction::Answer);
        tokio::time::sleep(self.takes).await;
        let usage = Usage { input_tokens: 1000, output_tokens: 10, ..Usage::default() };
        let answer = match deed {
            ProviderAction::Answer | ProviderAction::Tell(_) => {
                if let ProviderAction::Tell(limits) = deed {
                    events.on_traffic(RequestProgress::Limits(limits));
                }
                events.on_traffic(RequestProgress::FirstByte);
                events.on_event(ModelEvent::Text("ok".into()));
                Ok(ModelResponse { text: "ok".into(), usage, ..ModelResponse::default() })
            }
            ProviderAction::Fail(kind, retry_after_ms) => {
                Err(ModelError { retry_after_ms, ..ModelError::new(kind, "not now") })
            }
            ProviderAction::Refuse(kind) => {
                Err(ModelError { should_retry: Some(true), ..ModelError::new(kind, "that is too large") })
            }
            ProviderAction::Break(kind, input_tokens) => {
                events.on_traffic(RequestProgress::FirstByte);
                let usage = Usage { input_tokens, ..Usage::default() };
                Err(ModelError { usage, ..ModelError::new(kind, "broke off") })
            }
            ProviderAction::Hang => std::future::pending().await,
        };
        self.running.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

fn request(text: impl Into<String>, priority: ModelPriority) -> ModelRequest {
    ModelRequest { messages: vec![Message::user(text)], priority, ..ModelRequest::default() }
}

fn plain() -> ModelRequest {
    request("q", ModelPriority::Interactive)
}

/// In front of `provider`, with this queue for all of its models.
fn queued(provider: &Arc<Provider>, queue: ModelQueueConfig) -> Arc<ModelTraffic> {
    let terms = TrafficConfig { queue: Some(queue), retry: None };
    ModelTraffic::new(provider.client(), BTreeMap::from([("p".to_owned(), terms)]))
}

async fn ask(traffic: &ModelTraffic, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
    traffic.complete("p/m", request, &IgnoreModelEvents, &Cancel::new()).await
}

#[tokio::test(start_paused = true)]
async fn two_hundred_agents_share_one_model_queue() {
    use ModelPriority::{Background, Interactive, Low, Retry};
    const EACH: usize = 5;
    let provider = Provider::new(Duration::from_millis(100), []);
    let traffic = queued(
        &provider,
        ModelQueueConfig { concurrent: 5, requests_per_minute: Some(600), ..ModelQueueConfig::default() },
    );
    let begun = Instant::now();
    let mut agents = JoinSet::new();
    for agent in 0..200 {
        let traffic = Arc::clone(&traffic);
        let priority = [Low, Background, Interactive, Retry][agent % 4];
        agents.spawn(async move {
            for turn in 0..EACH {
                ask(&traffic, &request(format!("{agent}.{turn}"), priority)).await.expect("answered");
            }
            (priority, begun.elapsed())
        });
    }
    let ended = agents.join_all().await;
    let came = provider.came();
    assert_eq!((came.len(), provider.most.load(Ordering::SeqCst)), (200 * EACH, 5));
    for (at, (start, ..)) in came.iter().enumerate() {
        let minute = came[at..].iter().take_while(|(other, ..)| *other - *start < Duration::from_secs(60)).count();
        assert!(minute <= 600, "{minute} starts in the minute after {:?}", *start - begun);
    }
    // 600 at 50 a second, and the rest when the first of them are a minute old.
    let whole = ended.iter().map(|(_, at)| *at).max().expect("ended");
    assert!((67..=70).contains(&whole.as_secs()), "{whole:?}");
    // By their priorities, as far as nobody has waited too long: all that is urgent is done in the first minute.
    let last = |of: ModelPriority| ended.iter().filter(|(priority, _)| *priority == of).map(|(_, at)| *at).max();
    assert!(last(Retry) < last(Interactive) && last(Interactive) < last(Background), "{ended:?}");
    assert!(last(Background) <= last(Low) && last(Interactive) < Some(Duration::from_secs(20)), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn transient_failures_are_retried_and_recorded() {
    use ModelErrorKind::*;
    let check = async |deeds: Vec<ProviderAction>, expect: Result<(), ModelErrorKind>, rows: &[(&str, u32, u64)]| {
        let named = rows.iter().map(|row| row.0).collect::<Vec<_>>().join(",");
        let provider = Provider::new(Duration::from_millis(10), deeds);
        let ledger = Arc::new(FakeLedger::default());
        let fixture = fixture(|options| {
            let model = ModelTraffic::new(provider.client(), BTreeMap::new());
            options.services = Arc::new(Services { model, ..Services::clone(&options.services) });
            options.ledger = Arc::clone(&ledger) as _;
            let prices = Prices { input: 1.0, output: 10.0, ..Prices::default() };
            options.prices = [("p".to_owned(), prices)].into_iter().collect();
        })
        .await;
        let mut events = fixture.events.subscribe();
        let answer = fixture.executor.ask_model("p/m", &plain(), None, &fixture.run).await;
        assert_eq!(answer.map(drop).map_err(|error| error.kind), expect, "{named}");
        let entries = ledger.ended();
        assert!(entries.iter().all(|entry| entry.kind == OpKind::Model));
        let entered = entries.iter().map(|entry| (&*entry.status, entry.attempts, entry.usage.input_tokens));
        assert_eq!(entered.collect::<Vec<_>>(), rows, "{named}");
        assert_eq!(provider.came().len(), rows.len(), "{named}");
        let mut ops: Vec<_> = entries.iter().map(|entry| entry.op.id).collect();
        ops.dedup();
        assert_eq!(ops.len(), rows.len(), "{named}: each attempt is an operation");
        let cost: f64 = entries.iter().filter_map(|entry| entry.cost_usd).sum();
        let tokens: u64 = rows.iter().map(|row| row.2).sum();
        let expect = tokens as f64 / 1e6 + if expect.is_ok() { 1e-4 } else { 0.0 };
        assert!((cost - expect).abs() < 1e-12, "{named}: {cost}");
        let (mut retried, mut finished) = (0, Vec::new());
        while let Ok(event) = events.try_recv().map(Arc::unwrap_or_clone) {
            match event {
                Event::ModelRetried { attempt, .. } => {
                    retried += 1;
                    assert_eq!(attempt, retried, "{named}");
                }
                Event::ModelFinished { attempt, ok, .. } => finished.push((attempt, ok)),
                _ => {}
            }
        }
        let last = rows.len() as u32;
        assert_eq!((retried, finished), (last - 1, vec![(last, expect_ok(rows))]), "{named}");
    };
    check(vec![], Ok(()), &[("ok", 1, 1000)]).await;
    let busy = [ProviderAction::Fail(RateLimit, Some(0)), ProviderAction::Fail(Unavailable, None)];
    let rows = [("rate_limit", 1, 0), ("unavailable", 2, 0), ("ok", 3, 1000)];
    check(busy.to_vec(), Ok(()), &rows).await;
    let down = vec![ProviderAction::Fail(Unavailable, None); 9];
    let rows = [1, 2, 3, 4].map(|attempt| ("unavailable", attempt, 0));
    check(down, Err(Unavailable), &rows).await;
    check(vec![ProviderAction::Fail(RateLimit, Some(3_600_000))], Err(RateLimit), &[("rate_limit", 1, 0)]).await;
    check(vec![ProviderAction::Break(Unavailable, 7)], Err(Unavailable), &[("unavailable", 1, 7)]).await;
    for kind in [Auth, Quota, ContextOverflow, ContentFilter, Invalid, BadResponse, Unsupported] {
        check(vec![ProviderAction::Fail(kind, None)], Err(kind), &[(kind.as_str(), 1, 0)]).await;
    }
}

fn expect_ok(rows: &[(&str, u32, u64)]) -> bool {
    rows.last().is_some_and(|row| row.0 == "ok")
}

#[tokio::test(start_paused = true)]
async fn a_reformatted_request_is_no_retry() {
    use ModelErrorKind::{ContextOverflow, Invalid, RateLimit};
    let check = async |attempts: u32, deeds: Vec<ProviderAction>, expect: Result<usize, (usize, ModelErrorKind)>| {
        let provider = Provider::new(Duration::from_millis(1), deeds);
        let terms = TrafficConfig {
            retry: Some(RetryConfig { attempts, ..RetryConfig::default() }),
            ..TrafficConfig::default()
        };
        let client: Arc<dyn ModelClient> = provider.client();
        let traffic = ModelTraffic::new(client, BTreeMap::from([("p".to_owned(), terms)]));
        let answer = ask(&traffic, &plain()).await;
        let came = provider.came().len();
        assert_eq!(answer.map(|_| came).map_err(|error| (came, error.kind)), expect, "{attempts}");
    };
    let refuse = || ProviderAction::Refuse(Invalid);
    let limited = || ProviderAction::Fail(RateLimit, None);
    check(1, vec![refuse()], Ok(2)).await;
    check(1, vec![refuse(), refuse()], Ok(3)).await;
    check(1, vec![refuse(), limited()], Err((2, RateLimit))).await;
    check(2, vec![limited(), refuse()], Ok(3)).await;
    check(2, vec![refuse(), limited(), limited()], Err((3, RateLimit))).await;
    check(1, vec![refuse(); 20], Err((7, Invalid))).await;
    // However many attempts there may be: six other forms are the most.
    check(4, vec![refuse(); 20], Err((7, Invalid))).await;
    // What is too long in the last form as well is too long, which is for the conversation to mend.
    let long = || ProviderAction::Refuse(ContextOverflow);
    check(1, vec![refuse(), long()], Ok(3)).await;
    check(4, vec![long(); 20], Err((7, ContextOverflow))).await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_limited_provider_pauses_its_queue() {
    let of = |limit, remaining, reset_ms| RateLimitWindow {
        limit: Some(limit),
        remaining: Some(remaining),
        reset_ms: Some(reset_ms),
    };
    let requests = |requests| ProviderAction::Tell(RateLimits { requests, ..RateLimits::default() });
    // The deed of the first of three requests that come one after the other -> when the second one comes, at least and
    // at most.
    let check = async |deed: ProviderAction, least: u128, most: u128| {
        let provider = Provider::new(Duration::from_millis(10), [deed]);
        let traffic = queued(&provider, ModelQueueConfig { concurrent: 1, ..ModelQueueConfig::default() });
        let begun = Instant::now();
        let request = plain();
        let (first, second) = tokio::join!(ask(&traffic, &request), ask(&traffic, &request));
        first.expect("answered");
        second.expect("answered");
        let times = provider.times(begun);
        assert!((least..=most).contains(&times[1]), "{times:?}, not {least} to {most}");
    };
    check(requests(of(60, 1, 60_000)), 10, 10).await;
    check(requests(of(60, 0, 60_000)), 1010, 1010).await;
    check(requests(of(1, 0, 3_600_000)), 60_010, 60_010).await;
    check(ProviderAction::Fail(ModelErrorKind::RateLimit, Some(5000)), 5010, 5510).await;
    check(ProviderAction::Fail(ModelErrorKind::RateLimit, None), 260, 510).await;
    // Nobody else is held up by what may concern one request alone.
    check(ProviderAction::Fail(ModelErrorKind::Unavailable, None), 10, 10).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_without_slot_and_runs_first() {
    let provider = Provider::new(Duration::from_secs(1), [ProviderAction::Fail(ModelErrorKind::Unavailable, None)]);
    let traffic = queued(&provider, ModelQueueConfig { concurrent: 1, ..ModelQueueConfig::default() });
    let mut asked = JoinSet::new();
    for name in ["a", "b", "c", "d"] {
        let traffic = Arc::clone(&traffic);
        asked.spawn(async move { ask(&traffic, &request(name, ModelPriority::Interactive)).await });
        tokio::task::yield_now().await;
    }
    asked.join_all().await.into_iter().for_each(|answer| drop(answer.expect("answered")));
    let order: Vec<_> = provider.came().into_iter().map(|(_, name, _)| name).collect();
    assert_eq!(order, ["a", "b", "a", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn waits_are_bounded_and_end_by_a_cancel() {
    let provider = Provider::new(Duration::from_millis(10), vec![ProviderAction::Hang; 9]);
    let wait_timeout = Duration::from_secs(3);
    let queue = ModelQueueConfig { concurrent: 1, max_waiting: 1, wait_timeout, ..ModelQueueConfig::default() };
    let traffic = queued(&provider, queue);
    let fixture = fixture(|options| {
        let model = Arc::clone(&traffic) as _;
        options.services = Arc::new(Services { model, ..Services::clone(&options.services) });
    })
    .await;
    let mut events = fixture.events.subscribe();
    let (request, cancel) = (plain(), Cancel::new());
    let mut held = Box::pin(traffic.complete("p/m", &request, &IgnoreModelEvents, &cancel));
    assert!(futures_util::poll!(held.as_mut()).is_pending());
    let run = RunContext { cancel: Cancel::new(), ..fixture.run.clone() };
    let (timed_out, full) = tokio::join!(
        fixture.executor.ask_model("p/other", &request, None, &run),
        fixture.executor.ask_model("p/m", &request, None, &run),
    );
    for (error, why) in [(timed_out, "was not free within 3s"), (full, "1 calls wait already")] {
        let error = error.expect_err("refused");
        assert_eq!((error.kind, error.should_retry), (ModelErrorKind::RateLimit, Some(false)));
        for part in ["the queue of p ", "held by p/m", why] {
            assert!(error.message.contains(part), "{part}: {error}");
        }
    }
    let waits = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        run.cancel.cancel(CancelCause::User);
    };
    let (ended, ()) = tokio::join!(fixture.executor.ask_model("p/m", &request, None, &run), waits);
    assert_eq!(ended.expect_err("cancelled").kind, ModelErrorKind::Canceled);
    assert_eq!(provider.came().len(), 1, "nobody else got through");
    let mut reported = Vec::new();
    while let Ok(event) = events.try_recv().map(Arc::unwrap_or_clone) {
        match event {
            Event::ModelWait { model, queue, .. } => reported.push(format!("{model} waits for {queue}")),
            Event::ModelWaited { ok, .. } => reported.push(format!("waited: {ok}")),
            _ => {}
        }
    }
    let expect = ["p/other waits for p", "waited: false", "p/m waits for p", "waited: false"];
    assert_eq!(reported, expect);
}

#[tokio::test(start_paused = true)]
async fn an_unsent_request_costs_nothing() {
    enum AbortCause {
        Cancel,
        Limit,
        Drop,
    }
    // In the pause before the second attempt, in the line, and on its way.
    let pause = || vec![ProviderAction::Fail(ModelErrorKind::RateLimit, Some(5000))];
    for (gives, deeds, is_held, row, expect) in [
        (AbortCause::Cancel, pause(), false, ("canceled", 1), Some(0.0)),
        (AbortCause::Limit, pause(), false, ("unavailable", 1), Some(0.0)),
        (AbortCause::Drop, pause(), false, ("canceled", 1), Some(0.0)),
        (AbortCause::Cancel, vec![ProviderAction::Hang], true, ("canceled", 0), Some(0.0)),
        (AbortCause::Limit, vec![ProviderAction::Hang], true, ("unavailable", 0), Some(0.0)),
        (AbortCause::Drop, vec![ProviderAction::Hang], true, ("canceled", 0), Some(0.0)),
        (AbortCause::Cancel, vec![ProviderAction::Hang], false, ("canceled", 1), None),
        (AbortCause::Limit, vec![ProviderAction::Hang], false, ("unavailable", 1), None),
        (AbortCause::Drop, vec![ProviderAction::Hang], false, ("canceled", 1), None),
        // The second attempt is on its way.
        (AbortCause::Cancel, [pause(), vec![ProviderAction::Hang]].concat(), false, ("canceled", 2), None),
    ] {
        let provider = Provider::new(Duration::from_millis(10), deeds);
        let traffic = queued(&provider, ModelQueueConfig { concurrent: 1, ..ModelQueueConfig::default() });
        let ledger = Arc::new(FakeLedger::default());
        let fixture = fixture(|options| {
            let model = Arc::clone(&traffic) as _;
            options.services = Arc::new(Services { model, ..Services::clone(&options.services) });
            options.ledger = Arc::clone(&ledger) as _;
        })
        .await;
        let (request, nobody) = (plain(), Cancel::new());
        let mut held = Box::pin(traffic.complete("p/m", &request, &IgnoreModelEvents, &nobody));
        if is_held {
            assert!(futures_util::poll!(held.as_mut()).is_pending());
        }
        let mut events = fixture.events.subscribe();
        // Amid the pause, or long after it.
        let abort_after = Duration::from_secs(if row.1 == 2 { 20 } else { 1 });
        let run = RunContext { cancel: Cancel::new(), ..fixture.run.clone() };
        let limit = matches!(gives, AbortCause::Limit).then_some(abort_after);
        let asked = fixture.executor.ask_model("p/m", &request, limit, &run);
        match gives {
            AbortCause::Limit => drop(asked.await.expect_err("too late")),
            AbortCause::Drop => drop(tokio::time::timeout(abort_after, asked).await.expect_err("dropped")),
            AbortCause::Cancel => {
                let cancels = async {
                    tokio::time::sleep(abort_after).await;
                    run.cancel.cancel(CancelCause::User);
                };
                drop(tokio::join!(asked, cancels).0.expect_err("cancelled"));
            }
        }
        let entries = ledger.ended();
        assert!(entries.iter().all(|entry| entry.kind == OpKind::Model));
        let last = entries.last().expect("an entry");
        let is_open = expect.is_none();
        assert_eq!(
            (&*last.status, last.attempts, last.cost_usd, last.may_miss_cost()),
            (row.0, row.1, expect, is_open)
        );
        let mut reported = Vec::new();
        while let Ok(event) = events.try_recv().map(Arc::unwrap_or_clone) {
            if let Event::ModelFinished { cost_usd, .. } = event {
                reported.push(cost_usd);
            }
        }
        assert_eq!(reported, [expect], "{row:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_retry_names_its_first_failure() {
    let provider =
        Provider::new(Duration::ZERO, [ProviderAction::Fail(ModelErrorKind::Unavailable, None), ProviderAction::Hang]);
    let traffic = queued(&provider, ModelQueueConfig { concurrent: 1, max_waiting: 0, ..ModelQueueConfig::default() });
    let request = plain();
    let error = tokio::select! {
        biased;
        answer = ask(&traffic, &request) => answer.expect_err("refused"),
        // Comes while the first one waits to be made again, and stays.
        _ = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            ask(&traffic, &request).await
        } => panic!("it hangs"),
    };
    assert_eq!(error.kind, ModelErrorKind::RateLimit);
    for part in ["0 calls wait already", "held by p/m", "it had failed: not now"] {
        assert!(error.message.contains(part), "{part}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn low_priority_requests_leave_a_full_queue() {
    let provider = Provider::new(Duration::from_secs(1), [ProviderAction::Fail(ModelErrorKind::Unavailable, None)]);
    let traffic = queued(&provider, ModelQueueConfig { concurrent: 1, max_waiting: 4, ..ModelQueueConfig::default() });
    let mut asked = JoinSet::new();
    let priorities = [("again", ModelPriority::Interactive), ("now", ModelPriority::Interactive)];
    let low = ["a", "b", "c", "d"].map(|name| (name, ModelPriority::Low));
    for (name, priority) in [&priorities[..1], &low, &priorities[1..]].concat() {
        let traffic = Arc::clone(&traffic);
        asked
            .spawn(async move { (name, ask(&traffic, &request(name, priority)).await.map_err(|error| error.message)) });
        tokio::task::yield_now().await;
    }
    let ended: BTreeMap<_, _> = asked.join_all().await.into_iter().collect();
    let failed: Vec<_> = ended.iter().filter(|(_, answer)| answer.is_err()).map(|(name, _)| *name).collect();
    assert_eq!(failed, ["d"], "the newest of the lowest: {ended:?}");
    let order: Vec<_> = provider.came().into_iter().map(|(_, name, _)| name).collect();
    assert_eq!(order, ["again", "now", "again", "a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn models_have_queues_unless_their_provider_has_one() {
    let one = || Some(ModelQueueConfig { concurrent: 1, ..ModelQueueConfig::default() });
    let check = async |names: &[&str], models: [&str; 2], most: usize| {
        let provider = Provider::new(Duration::from_secs(1), []);
        let terms = names.iter().map(|name| ((*name).to_owned(), TrafficConfig { queue: one(), retry: None }));
        let traffic = ModelTraffic::new(provider.client(), terms.collect());
        let (request, cancel) = (plain(), Cancel::new());
        let ask = |model| traffic.complete(model, &request, &IgnoreModelEvents, &cancel);
        let (a, b) = tokio::join!(ask(models[0]), ask(models[1]));
        assert!(a.is_ok() && b.is_ok());
        assert_eq!(provider.most.load(Ordering::SeqCst), most, "{names:?} {models:?}");
    };
    check(&[], ["p/a", "p/a"], 2).await;
    check(&["p/a"], ["p/a", "p/a"], 1).await;
    check(&["p/a"], ["p/a", "p/b"], 2).await;
    check(&["p"], ["p/a", "p/b"], 1).await;
    check(&["p", "p/a"], ["p/a", "p/b"], 2).await;
    check(&["p", "x"], ["x/a", "x/a"], 2).await;
}

#[tokio::test(start_paused = true)]
async fn terms_of_retry_are_the_nearest_ones() {
    let terms = |attempts| {
        let retry = Some(RetryConfig { attempts, ..RetryConfig::default() });
        TrafficConfig { queue: None, retry }
    };
    let provider = Provider::new(Duration::ZERO, vec![ProviderAction::Fail(ModelErrorKind::Unavailable, None); 99]);
    let names = BTreeMap::from([("p".to_owned(), terms(2)), ("p/a".to_owned(), terms(1))]);
    let traffic = ModelTraffic::new(provider.client(), names);
    for (model, attempts) in [("p/a", 1), ("p/b", 2)] {
        let before = provider.came().len();
        let asked = traffic.complete(model, &plain(), &IgnoreModelEvents, &Cancel::new()).await;
        asked.expect_err("down");
        assert_eq!(provider.came().len() - before, attempts, "{model}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_over_the_limit_is_the_reason() {
    for (kind, asked, expect) in [
        (ModelErrorKind::RateLimit, 90_000, Some("asks to wait 90 s, over the 60 s of retry.longest_wait")),
        (ModelErrorKind::Quota, 90_000, None),
    ] {
        let provider = Provider::new(Duration::from_millis(10), [ProviderAction::Fail(kind, Some(asked))]);
        let traffic = ModelTraffic::new(provider.client(), BTreeMap::new());
        let answer = traffic.complete("p/m", &plain(), &IgnoreModelEvents, &Cancel::new()).await;
        let message = answer.expect_err("it failed").message;
        assert_eq!(provider.came().len(), 1, "{message}");
        assert_eq!(message.contains("longest_wait"), expect.is_some(), "{message}");
        assert!(expect.is_none_or(|part| message.contains(part)), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn background_calls_queue_their_model_requests_last() {
    let provider = Provider::new(Duration::ZERO, []);
    let fixture = fixture(|options| {
        let model = ModelTraffic::new(provider.client(), BTreeMap::new());
        options.services = Arc::new(Services { model, ..Services::clone(&options.services) });
    })
    .await;
    for (priority, of, expect) in [
        (Priority::Interactive, ModelPriority::Interactive, ModelPriority::Interactive),
        (Priority::Background, ModelPriority::Interactive, ModelPriority::Background),
        (Priority::Background, ModelPriority::Low, ModelPriority::Low),
    ] {
        let run = RunContext { priority, ..fixture.run.clone() };
        fixture.executor.ask_model("p/m", &request("q", of), None, &run).await.expect("answered");
        assert_eq!(provider.came().last().map(|(.., priority)| *priority), Some(expect));
    }
}
