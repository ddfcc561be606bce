//! Making room: what it costs, what happens when it fails, and that a crash amid it loses nothing.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use toolwright_agent::{ContextOptions, DriverError, RunConfig, RunState, Status};
use toolwright_core::context::{Exactness, TokenCounter};
use toolwright_core::event::{CompactionLayer, Event};
use toolwright_core::model::{Message, Usage};
use toolwright_core::operation::OpKind;
use toolwright_core::store::{LedgerEntry, LedgerStore as _};
use toolwright_runtime::SqliteStore;
use toolwright_testkit::model_server::{LongTalk, MEMORY_MODEL, ScriptedModel, count_tokens};

use crate::fixture::options;
use crate::turns::long_conversations::{APIS, LongRunFixture, LongRunOptions, begin, terms};
use crate::turns::resume::FaultyStore;

pub(crate) async fn rows(store: &SqliteStore) -> Vec<LedgerEntry> {
    store.flush().await.unwrap();
    let run = store.find_traces("run-1").await.unwrap().remove(0);
    store.operations(&run, 10_000).await.unwrap()
}

#[tokio::test]
async fn usage_of_making_room_counts_for_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let talk = LongTalk::new(8192, 40);
    let fixture = LongRunFixture::new(dir.path(), talk.script(), APIS[0]).await;
    let mut state = begin(&talk, 8192, terms());
    fixture.talk(&talk, &mut state).await.unwrap();
    let (tally, done) = (talk.tally(), state.compactions());
    assert!(done.summarized > 0 && tally.memory_in > 0, "{done:?}");
    assert_eq!(done.usage.input_tokens, tally.memory_in, "what its API reported");

    let rows = rows(&fixture.store).await;
    let of = |kind: OpKind, name: &str| {
        let of = |row: &&LedgerEntry| row.kind == kind && row.name.starts_with(name);
        rows.iter().filter(of).cloned().collect::<Vec<_>>()
    };
    let asked = of(OpKind::Model, "long/memory");
    assert_eq!(asked.len(), tally.memory);
    assert_eq!(asked.iter().map(|row| row.usage.input_tokens).sum::<u64>(), tally.memory_in);
    assert!(asked.iter().all(|row| row.cost_usd.is_some_and(|cost| cost > 0.0)));
    let (summaries, facts) = (of(OpKind::Tool, "llm:summarize@"), of(OpKind::Tool, "llm:fact-extract@"));
    assert_eq!((summaries.len() as u32, summaries.len() + facts.len()), (done.summarized, tally.memory));
    // All of it belongs to the run; none of it is the model's own.
    assert!(rows.iter().all(|row| row.op.lineage.run.as_deref() == Some("run-1")));
    let called = state.messages().iter().flat_map(|message| match message {
        Message::Assistant { calls, .. } => calls.clone(),
        _ => Vec::new(),
    });
    assert!(called.into_iter().all(|call| call.name == "t__step"));
    let log = fixture.log.seen();
    let events = log.iter().filter_map(|event| match event {
        Event::Compacted {
            layer: CompactionLayer::Summarize, before, after, limit, usage, handle: Some(_), ..
        } => Some((*before > *after && *after <= limit / 4 * 3, *usage)),
        _ => None,
    });
    let events: Vec<(bool, Usage)> = events.collect();
    assert_eq!(events.len() as u32, done.summarized);
    assert!(events.iter().all(|(smaller, usage)| *smaller && usage.input_tokens > 0), "{events:?}");
    drop(log);

    // What was learnt of the model's counting is kept with the run.
    let saved = RunState::from_json(state.to_json().unwrap()).unwrap();
    assert_eq!(saved.in_tokens(10_000), state.in_tokens(10_000));
    assert_ne!(state.in_tokens(10_000), 10_000);
}

#[tokio::test]
async fn without_compaction_the_next_turn_is_the_last() {
    let unasked = ContextOptions { summarize: false, ..terms() };
    let unknown = ContextOptions { model: Some("nobody/m".into()), ..terms() };
    for (context, failed) in [(unasked, 0), (unknown, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let talk = LongTalk::new(8192, 300);
        let fixture = LongRunFixture::new(dir.path(), talk.script(), APIS[1]).await;
        let mut state = begin(&talk, 8192, context);
        let report = fixture.talk(&talk, &mut state).await.unwrap();
        assert!(talk.tally().turns < 300 && talk.tally().overflows == 0, "{:?}", talk.tally());
        let forced = report.reason.as_deref() == Some("the last turn was forced: Your context window is full");
        assert!(forced && report.status == Status::Partial, "{report:?}");
        assert_eq!(fixture.compacted(CompactionLayer::Summarize), 0);
        let warned = |code: &str| fixture.warnings().iter().filter(|warning| warning.starts_with(code)).count();
        assert_eq!(warned("context_full") + warned("context_budget_exceeded"), 1);
        assert!(warned("compaction_failed") >= failed && (failed > 0 || warned("compaction_failed") == 0));
        assert_eq!(fixture.server.failures(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_unknown_window_is_learned_from_an_overflow() {
    let dir = tempfile::tempdir().unwrap();
    let talk = LongTalk::new(8192, 60);
    let fixture = LongRunFixture::new(dir.path(), talk.script(), APIS[0]).await;
    let config = RunConfig { window: None, ..begin(&talk, 8192, terms()).config().clone() };
    let mut state = RunState::new(config, vec![Message::user(talk.user(0).unwrap())]);
    let report = fixture.talk(&talk, &mut state).await.unwrap();
    let tally = talk.tally();
    assert_eq!((report.status, tally.turns), (Status::Success, 60), "{report:?}");
    assert!((1..4).contains(&tally.overflows), "{tally:?}");
    assert!(state.compactions().summarized > 0 && tally.known == LongTalk::fact_count(), "{tally:?}");
}

/// Counts as the server does, and how often.
#[derive(Default)]
struct ServerTokenCounter(Arc<AtomicUsize>);

impl TokenCounter for ServerTokenCounter {
    fn count(&self, text: &str) -> (usize, Exactness) {
        self.0.fetch_add(1, Ordering::SeqCst);
        (usize::try_from(count_tokens(text)).unwrap(), Exactness::Exact)
    }

    fn of_model(&self, model: &str) -> Option<Arc<dyn TokenCounter>> {
        (model == "long/talker").then(|| Arc::new(Self(Arc::clone(&self.0))) as _)
    }
}

#[tokio::test]
async fn a_tokenizer_counts_only_near_the_limit() {
    for (turns, near) in [(3, false), (60, true)] {
        let dir = tempfile::tempdir().unwrap();
        let talk = LongTalk::new(16_384, turns);
        let server = Arc::new(ScriptedModel::start(talk.script()).await.unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let parts =
            LongRunOptions { tokens: Arc::new(ServerTokenCounter(Arc::clone(&asked))), ..LongRunOptions::default() };
        let fixture = LongRunFixture::on(dir.path(), server, APIS[0], parts, |store| store).await;
        let mut state = begin(&talk, 16_384, terms());
        let report = fixture.talk(&talk, &mut state).await.unwrap();
        assert_eq!((report.status, talk.tally().overflows), (Status::Success, 0));
        assert_eq!((asked.load(Ordering::SeqCst) > 0, state.is_counted()), (near, near));
        let log = fixture.log.seen();
        let exact = log.iter().filter(|event| matches!(event, Event::Compacted { exact: true, .. })).count();
        let all = log.iter().filter(|event| matches!(event, Event::Compacted { .. })).count();
        assert_eq!((exact, all > 0), (all, near));
    }
}

/// Turns of the talks that are broken off: room is made by a model in the first task that calls tools.
const TURNS: usize = 25;
const WINDOW: usize = 6000;

/// A talk that breaks off at the save that `when` says, and is taken up again. Returns whether it broke off.
async fn broken_off(dir: &Path, when: impl Fn(&Value) -> bool + Send + Sync + 'static, written: bool) -> bool {
    let talk = LongTalk::new(WINDOW as u64, TURNS);
    let server = Arc::new(ScriptedModel::start(talk.script()).await.unwrap());
    let breaking = |store| FaultyStore::when(store, when, written);
    let fixture = LongRunFixture::on(dir, Arc::clone(&server), APIS[1], LongRunOptions::default(), breaking).await;
    let mut state = begin(&talk, WINDOW, terms());
    let ended = fixture.talk(&talk, &mut state).await;
    let broke = ended.is_err();
    if let Err(error) = ended {
        assert!(matches!(error, DriverError::Store(_)), "{error}");
        drop((fixture, state));
        let fixture =
            LongRunFixture::on(dir, Arc::clone(&server), APIS[1], LongRunOptions::default(), |store| store).await;
        let mut state = fixture.driver.load(&options()).await.unwrap();
        fixture.talk(&talk, &mut state).await.unwrap();
        assert!(state.compactions().summarized > 0);
        assert_eq!(state.compactions().usage.input_tokens, talk.tally().memory_in, "what had come counts too");
    }
    let tally = talk.tally();
    assert_eq!((tally.turns, tally.overflows, tally.known), (TURNS, 0, LongTalk::fact_count()), "{tally:?}");
    // Nothing is asked twice: no two requests for summaries and facts are the same.
    let requests = server.requests();
    let asked: Vec<_> = requests.iter().filter(|request| request.body["model"] == MEMORY_MODEL).collect();
    let distinct: HashSet<_> = asked.iter().map(|request| &request.bytes).collect();
    assert_eq!((distinct.len(), asked.len()), (asked.len(), tally.memory));
    assert!(tally.memory > 1);
    broke
}

#[tokio::test]
async fn a_crash_during_compaction_repeats_no_request() {
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let under_way = |state: &Value| state["context"].get("compaction").is_some();
    assert!(!broken_off(dirs[0].path(), |_| false, true).await);
    // Just after it was begun: the calls are made by whoever takes the run up.
    assert!(broken_off(dirs[1].path(), under_way, true).await);
    // Just before: it is begun anew.
    assert!(broken_off(dirs[2].path(), under_way, false).await);
    // All answers had come, and were in the journal alone.
    let ended =
        |state: &Value| state["context"].get("compaction").is_none() && state["context"]["counts"]["summarized"] == 1;
    assert!(broken_off(dirs[3].path(), ended, false).await);
}
