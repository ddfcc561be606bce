//! Picking with scorers that take time, fail, and are not asked twice.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolwright_core::OpKind;
use toolwright_core::catalogue::{Listing, Provider as _, ProviderKind, Snapshot};
use toolwright_core::context::NestedCalls;
use toolwright_core::embedding::{Embedder, EmbeddingError, TextRole};
use toolwright_core::event::Event;
use toolwright_core::model::{ModelClient, ModelError, ModelErrorKind, ModelResponse, Usage};
use toolwright_core::{
    Entry, Services, StaticProvider, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::ModelJudge;
use toolwright_runtime::{EventHub, ExecutorOptions};
use toolwright_search::{
    Cascade, Hybrid, Method, PickConfig, PickInput, PickOptions, Picked, Score, Scorer, ScorerError,
};
use toolwright_search::{Selector, ToolVectors, VectorSource};
use toolwright_testkit::{FakeLedger, FakeModel};

struct NamedTool(&'static str, &'static str);

#[async_trait]
impl Tool for NamedTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("t", self.0, "1.0.0").expect("id");
        ToolDefinition::new(id, self.1, Some(json!({"type": "object"})))
    }

    async fn run(&self, _arguments: serde_json::Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text(""))
    }
}

async fn snapshot() -> Arc<Snapshot> {
    let tools = [
        ("weather", "Tells the weather of a city."),
        ("forecast", "Tells what the weather of a city will be."),
        ("mail", "Sends a letter."),
        ("calendar", "Lists what is on."),
    ];
    let tools = tools.map(|(name, about)| Arc::new(NamedTool(name, about)) as Arc<dyn Tool>).to_vec();
    let provider = Arc::new(StaticProvider::new("p", ProviderKind::Native, tools).expect("provider"));
    let tools = provider.list().await.expect("tools");
    Arc::new(Snapshot::build(&[Listing { provider, tools, error: None, withheld: Vec::new() }]))
}

/// Scores by a function of the tool's name, after a while, and notes what it was asked.
struct FunctionScorer<F> {
    score: F,
    takes: Duration,
    deterministic: bool,
    asked: Mutex<Vec<Vec<String>>>,
}

impl<F: Fn(&str) -> Result<f32, String> + Send + Sync> FunctionScorer<F> {
    fn new(score: F) -> Arc<Self> {
        Arc::new(Self { score, takes: Duration::ZERO, deterministic: false, asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<Vec<String>> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

#[async_trait]
impl<F: Fn(&str) -> Result<f32, String> + Send + Sync> Scorer for FunctionScorer<F> {
    fn name(&self) -> &str {
        "mine"
    }

    fn deterministic(&self) -> bool {
        self.deterministic
    }

    async fn score(
        &self,
        _query: &str,
        tools: &[&Entry],
        _calls: Option<&dyn NestedCalls>,
    ) -> Result<Vec<Score>, ScorerError> {
        let names: Vec<_> = tools.iter().map(|tool| tool.id().name().to_owned()).collect();
        self.asked.lock().expect("not poisoned").push(names.clone());
        tokio::time::sleep(self.takes).await;
        names.iter().map(|name| (self.score)(name).map(Score::from).map_err(ScorerError)).collect()
    }
}

fn options(scorer: Method) -> PickOptions {
    PickOptions { scorer, ..PickOptions::default() }
}

fn at_most(max_candidates: usize, scorer: Method) -> PickOptions {
    PickOptions { config: PickConfig { max_candidates, ..PickConfig::default() }, ..options(scorer) }
}

fn names(picked: &Picked, snapshot: &Snapshot) -> Vec<String> {
    picked.picks.iter().map(|pick| snapshot.list()[pick.position].id().name().to_owned()).collect()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn check(scorer: Method, query: &str, expect: &[&str], by: &str, fell_back: &[(&str, &str)]) {
    let snapshot = snapshot().await;
    let picked = Selector::new().pick(query, &snapshot, &options(scorer)).await;
    let provenance = &picked.provenance;
    assert_eq!((names(&picked, &snapshot), provenance.scorer.as_str()), (owned(expect), by));
    assert_eq!(provenance.fell_back.len(), fell_back.len(), "{:?}", provenance.fell_back);
    for ((scorer, why), (name, part)) in provenance.fell_back.iter().zip(fell_back) {
        assert!(scorer == name && why.contains(part), "{scorer}: {why}");
    }
}

#[tokio::test]
async fn lexical_scorers_need_no_model() {
    for (method, name) in [(Method::Auto, "auto"), (Method::Bm25, "bm25"), (Method::Keyword, "keyword")] {
        check(method.clone(), "send a letter", &["mail"], name, &[]).await;
        check(method, "nothing like it", &[], name, &[]).await;
    }
}

#[tokio::test]
async fn a_failed_scorer_is_replaced_with_its_reason() {
    let letter = "send a letter";
    let failing = FunctionScorer::new(|_| Err("out of order".to_owned()));
    check(Method::Custom(failing.clone()), letter, &["mail"], "auto", &[("mine", "out of order")]).await;
    let nan = FunctionScorer::new(|_| Ok(f32::NAN));
    check(Method::Custom(nan), letter, &["mail"], "auto", &[("mine", "no number")]).await;
    check(Method::Embedding, letter, &["mail"], "bm25", &[("embedding", "no embeddings")]).await;
    check(Method::Hybrid(Hybrid::default()), letter, &["mail"], "bm25", &[("hybrid", "no embeddings")]).await;
    check(Method::Judge, letter, &["mail"], "auto", &[("judge", "no model")]).await;
    let cascade = Cascade { first: Method::Embedding, then: Method::Custom(failing), survivors: 2 };
    let why = [("embedding", "no embeddings"), ("mine", "out of order")];
    check(Method::Cascade(Arc::new(cascade)), letter, &["mail"], "bm25", &why).await;
}

#[tokio::test]
async fn scores_order_and_named_tools_come_first() {
    let scorer = FunctionScorer::new(|name| Ok(if name == "mail" { 7.0 } else { 0.5 }));
    check(Method::Custom(scorer.clone()), "x", &["mail", "weather", "forecast"], "mine", &[]).await;
    check(Method::Custom(scorer.clone()), "t__calendar", &["calendar", "mail", "weather"], "mine", &[]).await;
    check(Method::Custom(FunctionScorer::new(|_| Ok(0.04))), "x", &[], "mine", &[]).await;
}

#[tokio::test]
async fn the_second_scorer_ranks_only_survivors() {
    let scorer = FunctionScorer::new(|name| Ok(if name == "forecast" { 0.9 } else { 0.4 }));
    let cascade = |survivors| {
        Method::Cascade(Arc::new(Cascade { first: Method::Bm25, then: Method::Custom(scorer.clone()), survivors }))
    };
    check(cascade(2), "weather of a city", &["forecast", "weather"], "mine", &[]).await;
    check(cascade(3), "weather of a city", &["forecast", "weather", "mail"], "mine", &[]).await;
    let asked: Vec<usize> = scorer.asked().iter().map(Vec::len).collect();
    assert_eq!(asked, [2, 3]);
}

#[tokio::test(start_paused = true)]
async fn after_a_scorers_timeout_registration_order_applies() {
    let snapshot = snapshot().await;
    let slow = Arc::new(FunctionScorer {
        takes: Duration::from_secs(60),
        ..Arc::into_inner(FunctionScorer::new(|_| Ok(1.0))).expect("alone")
    });
    let options = PickOptions {
        timeout: Some(Duration::from_secs(2)),
        config: PickConfig { max_candidates: 2, min_score: 0.9, ..PickConfig::default() },
        ..options(Method::Custom(slow.clone()))
    };
    let selector = Selector::new();
    let picked = selector.pick("t__mail now", &snapshot, &options).await;
    assert_eq!(names(&picked, &snapshot), ["mail", "weather"]);
    assert_eq!(picked.picks[1].score, 0.0);
    assert!(picked.picks[1].reason.contains("scoring took longer than 2s"), "{:?}", picked.picks[1]);
    assert_eq!(picked.provenance.scorer, "registration");
    assert_eq!(picked.provenance.fell_back[0].0, "mine");
    // What was given up is asked for again.
    let patient = PickOptions { timeout: None, ..options };
    selector.pick("t__mail now", &snapshot, &patient).await;
    assert_eq!(slow.asked().len(), 2);
}

#[tokio::test]
async fn scores_that_could_change_are_asked_for_once() {
    let snapshot = snapshot().await;
    let check = async |deterministic: bool, expect: &[&[&str]]| {
        let scorer = Arc::new(FunctionScorer {
            deterministic,
            ..Arc::into_inner(FunctionScorer::new(|_| Ok(0.5))).expect("alone")
        });
        let selector = Selector::new();
        let narrow = Cascade { first: Method::Bm25, then: Method::Custom(scorer.clone()), survivors: 1 };
        let narrow = options(Method::Cascade(Arc::new(narrow)));
        let all = options(Method::Custom(scorer.clone()));
        let first = selector.pick("letter", &snapshot, &narrow).await;
        assert_eq!(selector.pick("letter", &snapshot, &narrow).await, first);
        selector.pick("letter", &snapshot, &all).await;
        selector.pick("another", &snapshot, &all).await;
        assert_eq!(scorer.asked(), expect, "deterministic: {deterministic}");
    };
    let all = ["weather", "forecast", "mail", "calendar"];
    check(false, &[&["mail"], &["weather", "forecast", "calendar"], &all]).await;
    check(true, &[&["mail"], &["mail"], &all, &all]).await;
}

/// A judge's model that answers with one text, or fails where that is empty.
fn answers(text: &'static str) -> Arc<FakeModel> {
    Arc::new(FakeModel::new(move |call| {
        assert!(call.model == "p/m" && call.request.output.is_some());
        if text.is_empty() {
            return Err(ModelError::new(ModelErrorKind::Unavailable, "the model is away"));
        }
        let usage = Usage { input_tokens: 10, output_tokens: 5, cached_tokens: 0, ..Usage::default() };
        Ok(ModelResponse { text: text.into(), usage, ..ModelResponse::default() })
    }))
}

/// A judge by `client`, in a fixture of its own.
async fn judge(client: Arc<dyn ModelClient>, configure: impl FnOnce(&mut ExecutorOptions)) -> ModelJudge {
    let fixture = crate::fixture::fixture(|options| {
        options.services = Arc::new(Services { model: client, ..Services::clone(&options.services) });
        configure(options);
    });
    let fixture = fixture.await;
    ModelJudge::new(fixture.executor, fixture.run.session, "p/m")
}

#[tokio::test]
async fn garbled_scores_of_a_judge_are_ignored() {
    let snapshot = snapshot().await;
    let check = async |answer: &'static str, expect: &[&str], by: &str, why: &str| {
        let model = answers(answer);
        let selector = Selector::new().with_judge(Arc::new(judge(model.clone(), |_| ()).await));
        for _ in 0..2 {
            let picked = selector.pick("weather of a city", &snapshot, &options(Method::Judge)).await;
            assert_eq!((names(&picked, &snapshot), picked.provenance.scorer.as_str()), (owned(expect), by));
            let reported = picked
                .provenance
                .fell_back
                .iter()
                .any(|(scorer, reported)| scorer == "judge" && reported.contains(why));
            assert_eq!(reported, !why.is_empty(), "{:?}", picked.provenance);
        }
        model.requests()
    };
    // The judge is asked about the tools in the order of the first pass, the others behind them.
    let judged = r#"{"scores": [{"tool": 3, "score": 0.8}, {"tool": 2, "score": 0.3}]}"#;
    assert_eq!(check(judged, &["mail", "forecast"], "judge", "").await, 1);
    let garbled = r#"{"scores": [{"tool": 3, "score": "very"}]}"#;
    assert_eq!(check(garbled, &["weather", "forecast"], "auto", "no number").await, 2);
    assert_eq!(check("", &["weather", "forecast"], "auto", "the model is away").await, 2);
}

#[tokio::test(start_paused = true)]
async fn the_ledger_has_each_request_of_a_judge() {
    let snapshot = snapshot().await;
    let ledger = Arc::new(FakeLedger::default());
    let events = Arc::new(EventHub::default());
    let mut heard = events.subscribe();
    let clients: [(Arc<dyn ModelClient>, &str, u64); 3] = [
        (answers(r#"{"scores": []}"#), "ok", 10),
        (answers(""), "unavailable", 0),
        (Arc::new(FakeModel::hanging()), "canceled", 0),
    ];
    for (client, _, _) in &clients {
        let judge = judge(Arc::clone(client), |options| {
            options.ledger = Arc::clone(&ledger) as _;
            let events = Arc::clone(&events) as _;
            options.services = Arc::new(Services { events, ..Services::clone(&options.services) });
        });
        let options = PickOptions { timeout: Some(Duration::from_secs(1)), ..options(Method::Judge) };
        Selector::new().with_judge(Arc::new(judge.await)).pick("a letter", &snapshot, &options).await;
    }
    let (mut began, mut ended) = (Vec::new(), Vec::new());
    while let Ok(event) = heard.try_recv().map(Arc::unwrap_or_clone) {
        match event {
            Event::ModelStarted { op, .. } => began.push(op),
            Event::ModelFinished { op, .. } => ended.push(op),
            _ => {}
        }
    }
    assert_eq!((began.len(), &began), (3, &ended), "observers hear of both ends of each");
    let expect = clients.map(|(_, status, tokens)| (OpKind::Model, "p/m", status, tokens));
    let entries = ledger.ended();
    let entered = entries.iter().map(|entry| (entry.kind, &*entry.name, &*entry.status, entry.usage.input_tokens));
    assert_eq!(entered.collect::<Vec<_>>(), expect);
}

#[tokio::test]
async fn unjudged_tools_stay_in_order_behind_judged_ones() {
    let names: Vec<&'static str> = (0..400).map(|number| &*format!("tool{number}").leak()).collect();
    let tools = names
        .iter()
        .enumerate()
        .map(|(number, &name)| {
            let about = if number < 40 { "Sends a letter." } else { "Lists what is on." };
            Arc::new(NamedTool(name, about)) as Arc<dyn Tool>
        })
        .collect();
    let provider = Arc::new(StaticProvider::new("p", ProviderKind::Native, tools).expect("provider"));
    let tools = provider.list().await.expect("tools");
    let snapshot = Arc::new(Snapshot::build(&[Listing { provider, tools, error: None, withheld: Vec::new() }]));
    let model = answers(r#"{"scores": [{"tool": 32, "score": 0.9}]}"#);
    let selector = Selector::new().with_judge(Arc::new(judge(model.clone(), |_| ()).await));
    let options = at_most(40, Method::Judge);
    for _ in 0..2 {
        let picked = selector.pick("send a letter", &snapshot, &options).await;
        let places: Vec<usize> = picked.picks.iter().map(|pick| pick.position).collect();
        assert_eq!(places, [31, 32, 33, 34, 35, 36, 37, 38, 39]);
        assert!(
            picked.picks[1].score > 0.05 && picked.picks[1].reason == "not judged; in place 33 by auto",
            "{picked:?}"
        );
    }
    assert_eq!(model.requests(), 1);
}

/// Knows three topics; a text is as much about each as it has words of it.
struct Topics {
    works: bool,
}

#[async_trait]
impl Embedder for Topics {
    fn id(&self) -> &str {
        "topics"
    }

    async fn embed(&self, texts: &[&str], _role: TextRole) -> Result<Vec<Vec<f32>>, EmbeddingError> {
        if !self.works {
            return Err(EmbeddingError::new("the embeddings are away"));
        }
        const TOPICS: [&[&str]; 3] =
            [&["weather", "rain", "forecast"], &["letter", "mail", "epistle"], &["list", "plan"]];
        let about = |text: &&str| {
            let text = text.to_lowercase();
            let mut vector =
                TOPICS.map(|words| if words.iter().any(|word| text.contains(word)) { 1.0_f32 } else { 0.1 });
            let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
            vector.iter_mut().for_each(|number| *number /= length);
            vector.to_vec()
        };
        Ok(texts.iter().map(about).collect())
    }
}

#[tokio::test]
async fn vectors_find_what_words_do_not() {
    let snapshot = snapshot().await;
    let check = async |works: bool, method: Method, expect: &[&str], by: &str| {
        let vectors = Arc::new(ToolVectors::new(Arc::new(Topics { works }), None));
        let selector = Selector::new().with_vectors(Arc::new(vectors));
        let picked = selector.pick("an epistle", &snapshot, &at_most(1, method)).await;
        assert_eq!((names(&picked, &snapshot), picked.provenance.scorer.as_str()), (owned(expect), by));
        assert!(picked.picks.iter().all(|pick| pick.reason.contains("in meaning")), "{:?}", picked.picks);
        assert_eq!(picked.provenance.fell_back.iter().any(|(_, why)| why.contains("are away")), !works);
    };
    for method in [Method::Embedding, Method::Hybrid(Hybrid::default()), Method::Auto] {
        let name = method.name().to_owned();
        check(true, method.clone(), &["mail"], &name).await;
        let instead = if matches!(method, Method::Auto) { "auto" } else { "bm25" };
        check(false, method, &[], instead).await;
    }
}

#[tokio::test]
async fn meaning_is_that_of_the_last_turns() {
    let snapshot = snapshot().await;
    let selector =
        Selector::new().with_vectors(Arc::new(Arc::new(ToolVectors::new(Arc::new(Topics { works: true }), None))));
    for (turns, expect) in [
        (["an epistle", "go on"].as_slice(), "mail"),
        (&["it is about rain", "an epistle", "go on"], "mail"),
        (&["an epistle", "but will there be rain"], "weather"),
    ] {
        let options = options(Method::Embedding);
        let picked = selector.pick(PickInput::turns(turns), &snapshot, &options).await;
        assert_eq!(names(&picked, &snapshot).first().map(String::as_str), Some(expect), "{turns:?}");
    }
}

/// An embedder that never answers.
struct Silent;

#[async_trait]
impl Embedder for Silent {
    fn id(&self) -> &str {
        "silent"
    }

    async fn embed(&self, _texts: &[&str], _role: TextRole) -> Result<Vec<Vec<f32>>, EmbeddingError> {
        std::future::pending().await
    }
}

/// An embedding model that never comes to be loaded.
struct NeverLoaded;

#[async_trait]
impl VectorSource for NeverLoaded {
    async fn tool_vectors(&self) -> Result<Option<Arc<ToolVectors>>, EmbeddingError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn words_rank_when_embeddings_do_not_answer() {
    let snapshot = snapshot().await;
    let silent = || Arc::new(Arc::new(ToolVectors::new(Arc::new(Silent), None))) as Arc<dyn VectorSource>;
    for source in [silent(), Arc::new(NeverLoaded)] {
        let selector = Selector::new().with_vectors(source);
        for method in [Method::Auto, Method::Embedding, Method::Hybrid(Hybrid::default()), Method::Judge] {
            let (name, limit) = (method.name().to_owned(), Some(Duration::from_secs(1)));
            let by = if matches!(method, Method::Auto | Method::Judge) { "auto" } else { "bm25" };
            let options = PickOptions { timeout: limit, ..options(method) };
            let picked = selector.pick("send a letter", &snapshot, &options).await;
            assert_eq!((names(&picked, &snapshot), picked.provenance.scorer.as_str()), (owned(&["mail"]), by));
            let reported = &picked.provenance.fell_back;
            assert!(reported.iter().any(|(_, why)| why.contains("took longer than 1s")), "{reported:?}");
            let missing = if name == "auto" { "embedding" } else { &name };
            assert!(reported.iter().any(|(scorer, _)| scorer == missing), "{reported:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_pass_counts_without_a_judge() {
    let snapshot = snapshot().await;
    let selector = Selector::new().with_judge(Arc::new(judge(Arc::new(FakeModel::hanging()), |_| ()).await));
    let options = PickOptions { timeout: Some(Duration::from_secs(1)), ..options(Method::Judge) };
    let picked = selector.pick("send a letter", &snapshot, &options).await;
    assert_eq!((names(&picked, &snapshot), picked.provenance.scorer.as_str()), (owned(&["mail"]), "auto"));
    assert_eq!(picked.provenance.fell_back, [("judge".to_owned(), "scoring took longer than 1s".to_owned())]);
}

#[tokio::test]
async fn mistyped_queries_find_something_where_nothing_fits() {
    let snapshot = snapshot().await;
    for (query, expect) in [
        ("the forecats of the ctiy", Some("its words are spelt like those of the query")),
        ("wether in the ctiy", Some("its words are spelt like those of the query")),
        ("the weather", Some("name")),
        ("bake a cake", None),
    ] {
        let picked = Selector::new().pick(query, &snapshot, &PickOptions::default()).await;
        let reason = picked.picks.first().map(|pick| pick.reason.as_str());
        match (reason, expect) {
            (Some(reason), Some(words)) => assert!(reason.contains(words), "{query}: {reason}"),
            (got, expect) => assert_eq!(got, expect, "{query}"),
        }
    }
}
