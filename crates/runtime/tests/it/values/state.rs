//! The state of a run: outputs that calls keep under their paths, and where they came from.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_core::call::CallMeta;
use toolwright_core::policy::Policy;
use toolwright_core::store::SessionLog as _;
use toolwright_core::{Outcome, RunInput, Services, ToolCall};
use toolwright_runtime::executor::ExecutorOptions;
use toolwright_runtime::{RunVariables, SqliteStore, SystemClock};

use crate::fixture::{Fixture, call, fixture};

fn keeping(id: &str, name: &str, path: &str, arguments: Value) -> ToolCall {
    let meta = CallMeta { output_path: Some(path.into()), ..CallMeta::default() };
    call(id, name, arguments).with_meta(meta)
}

/// A fixture whose session log is a store, with the values of its run.
async fn with_state(input: RunInput, configure: impl FnOnce(&mut ExecutorOptions)) -> (Fixture, Arc<SqliteStore>) {
    let log = SqliteStore::in_memory().expect("store");
    let mut fixture = fixture(|options| {
        let mut services = (*options.services).clone();
        services.log = Arc::clone(&log) as _;
        options.services = Arc::new(services);
        configure(options);
    })
    .await;
    fixture.run.variables = Some(open(&fixture, input).await);
    (fixture, log)
}

async fn open(fixture: &Fixture, input: RunInput) -> Arc<RunVariables> {
    let services = fixture.executor.services();
    RunVariables::open(&*services.log, &*services.outputs, &fixture.run.session.id, input).await.expect("read")
}

async fn kept(fixture: &Fixture) -> Value {
    open(fixture, RunInput::default()).await.state(None)
}

fn texts(outcomes: &[Outcome]) -> Vec<String> {
    outcomes.iter().map(Outcome::text).collect()
}

#[tokio::test]
async fn outputs_with_paths_are_kept_for_later() {
    let (fixture, log) = with_state(RunInput::default(), |_| {}).await;
    let outcomes = fixture
        .all(vec![
            call("a", "echo", json!({"n": "†state.slept || 7"})),
            keeping("b", "slow", "†state.slept", json!({"n": 1})),
            keeping("c", "fails", "failed", json!({})),
            keeping("d", "echo", "user.name", json!({"n": 3})),
            call("e", "echo", json!({"n": 9})),
        ])
        .await;
    // A text is no integer: the reference waited for it.
    assert!(!outcomes[0].ok && outcomes[0].text().contains("/n"), "{:?}", texts(&outcomes));
    assert_eq!(kept(&fixture).await, json!({"slept": "slept 1", "user": {"name": "echo 3"}}));
    // The same call of a resumed run writes nothing more.
    fixture.all(vec![keeping("d", "echo", "user.name", json!({"n": 4}))]).await;
    assert_eq!(kept(&fixture).await["user"], json!({"name": "echo 3"}));
    let rows = log.values(&fixture.run.session.id, "state").await.expect("rows");
    assert_eq!(
        rows.iter().map(|row| row.author.call.as_ref().map(|id| id.as_str())).collect::<Vec<_>>(),
        [Some("d"), Some("b")]
    );
    assert!(rows.iter().all(|row| row.at_ms > 0));
}

#[tokio::test]
async fn large_values_are_stored_outputs_and_read_whole() {
    let (mut fixture, log) = with_state(RunInput::default(), |_| {}).await;
    let outcomes = fixture.all(vec![keeping("a", "big", "text", json!({"n": 40_000}))]).await;
    assert!(outcomes[0].ok && outcomes[0].text().len() < 100_000);
    let rows = log.values(&fixture.run.session.id, "").await.expect("rows");
    assert!(format!("{rows:?}").len() < 2000, "the log holds a handle");
    let whole = "0123456789\n".repeat(40_000);
    for variables in [fixture.run.variables.clone().expect("variables"), open(&fixture, RunInput::default()).await] {
        fixture.run.variables = Some(variables);
        let says = fixture.one("fails", json!({"says": "†state.text"})).await;
        assert_eq!(says.extras["tool_output"]["bytes"], json!(whole.len()), "{says:?}");
    }
    assert_eq!(kept(&fixture).await["text"], json!(whole));
}

#[tokio::test]
async fn instances_read_and_write_for_themselves() {
    let input = RunInput {
        input: json!({"n": 1}),
        instances: [("①".to_owned(), json!({"n": 10})), ("②".to_owned(), json!({}))].into_iter().collect(),
        ..RunInput::default()
    };
    let (fixture, _) = with_state(input, |_| {}).await;
    let of = |instance: &str, call: ToolCall| {
        let meta = CallMeta { instance: Some(instance.into()), ..call.meta.clone() };
        call.with_meta(meta)
    };
    let outcomes = fixture
        .all(vec![
            of("①", keeping("a", "echo", "n", json!({"n": "†input.n"}))),
            of("②", keeping("b", "echo", "n", json!({"n": "†input.n"}))),
            keeping("c", "echo", "all", json!({"n": "†input.n"})),
            of("③", call("d", "echo", json!({"n": 1}))),
            of("①", call("e", "fails", json!({"says": "†state.n"}))),
            of("②", call("f", "fails", json!({"says": "†state.n"}))),
            call("g", "fails", json!({"says": "†state.n"})),
        ])
        .await;
    let texts = texts(&outcomes);
    assert_eq!(texts[..3], ["echo 10", "echo 1", "echo 1"]);
    assert!(texts[3].contains("there is no instance `③`: use one of ①, ②"), "{texts:?}");
    assert_eq!(texts[4..6], ["echo 10", "echo 1"]);
    assert!(texts[6].contains("nothing is there for the reference †state.n"), "{texts:?}");
}

#[tokio::test]
async fn values_that_cannot_be_kept_fail_their_readers() {
    let (fixture, _) = with_state(RunInput::default(), |options| {
        let mut services = (*options.services).clone();
        services.outputs = Arc::clone(&Services::none(Arc::new(SystemClock)).outputs);
        options.services = Arc::new(services);
    })
    .await;
    let outcomes = fixture
        .all(vec![
            keeping("a", "big", "text", json!({"n": 40_000})),
            call("b", "fails", json!({"says": "†state.text"})),
        ])
        .await;
    assert!(outcomes[0].ok && outcomes[0].text().contains("was not kept under text"), "{:?}", texts(&outcomes));
    assert!(outcomes[1].text().contains("a (t__big), which was not kept"), "{:?}", texts(&outcomes));
}

/// The tainted arguments of a call, with the tools.
fn tainted(outcome: &Outcome) -> Vec<String> {
    let from = |one: &toolwright_core::taint::TaintedArgument| format!("{} {}", one.path, one.from.sources().join(" "));
    outcome.provenance.tainted.iter().map(from).collect()
}

#[tokio::test]
async fn taint_follows_values_into_further_calls() {
    let rules = json!({"profile": "trusted", "rules": [
        {"effect": "deny", "tool": "t:write", "when": "has(args.to) && args.to.tainted"},
    ]});
    let (mut fixture, _) = with_state(RunInput { input: json!({"n": 5}), ..RunInput::default() }, |_| {}).await;
    fixture.run.policy = Arc::new(serde_json::from_value::<Policy>(rules).expect("policy"));
    // `shell` may reach anywhere, the others do not.
    let outcomes = fixture
        .all(vec![
            keeping("a", "shell", "bad.text", json!({"n": 3})),
            keeping("b", "echo", "fine.text", json!({"n": 3})),
            keeping("c", "fails", "never", json!({"says": "†state.bad.text"})),
            keeping("d", "echo", "bad.copy", json!({"n": "†input.n", "from": "†state.bad"})),
            call("e", "write", json!({"n": "†input.n", "note": "†state.bad.copy"})),
            call("f", "write", json!({"n": "†state.bad.copy || 1"})),
            call("g", "write", json!({"n": "†input.n", "note": "†state.fine.text"})),
            call("h", "write", json!({"to": "†state.bad.text"})),
        ])
        .await;
    let tainted = |at: usize| tainted(&outcomes[at]);
    assert_eq!(tainted(2), ["/says t:shell@1.0.0"]);
    assert_eq!((tainted(3), tainted(4)), (vec!["/from t:shell@1.0.0".into()], vec!["/note t:shell@1.0.0".into()]));
    assert_eq!((tainted(6), outcomes[4].ok, outcomes[6].ok), (vec![], true, true));
    assert!(outcomes[7].text().contains("denied"), "{:?}", outcomes[7]);
    // The text is no integer and is refused for that: the taint is known all the same.
    assert!(!outcomes[5].ok && tainted(5) == ["/n t:shell@1.0.0"], "{:?}", outcomes[5]);
}

#[tokio::test]
async fn taint_follows_values_through_files() {
    let (mut fixture, _) = with_state(RunInput::default(), |_| {}).await;
    let policy = serde_json::from_value::<Policy>(json!({"profile": "trusted"})).expect("policy");
    fixture.run.policy = Arc::new(policy);
    fixture.all(vec![keeping("a", "shell", "page", json!({}))]).await;
    let wrote = fixture.one("write", json!({"file": "/w/page.md", "note": "†state.page"})).await;
    assert_eq!(tainted(&wrote), ["/note t:shell@1.0.0"]);
    // A resumed run knows it, and so does a later one of the same user.
    fixture.run.variables = Some(open(&fixture, RunInput::default()).await);
    let reads = |path: &str, file: &str| keeping(path, "echo", path, json!({"file": file}));
    fixture.all(vec![reads("text", "/w/page.md"), reads("folder", "/w"), reads("other", "/v")]).await;
    for (path, expect) in [("text", "/says t:shell@1.0.0"), ("folder", "/says t:shell@1.0.0"), ("other", "")] {
        let says = fixture.one("fails", json!({"says": format!("†state.{path}")})).await;
        assert_eq!(tainted(&says).join(" "), expect, "{path}");
    }
    // The whole file is replaced by what nobody else wrote.
    fixture.one("write", json!({"file": "/w/page.md", "note": "mine"})).await;
    fixture.all(vec![reads("clean", "/w/page.md")]).await;
    assert_eq!(tainted(&fixture.one("fails", json!({"says": "†state.clean"})).await), Vec::<String>::new());
}
