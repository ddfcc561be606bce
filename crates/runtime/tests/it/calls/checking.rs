//! References and repair: what happens between what was written and what runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::catalogue::{Listing, Provider as _, ProviderKind, RegisteredTool, Snapshot};
use toolwright_core::definition::NoSchemaMode;
use toolwright_core::model::{ModelClient, ModelErrorKind, ModelRequest};
use toolwright_core::model_repair::RepairOutcome;
use toolwright_core::store::LedgerStore as _;
use toolwright_core::taint::Taint;
use toolwright_core::variables::{KnownValue, Values, VariableKind, Variables};
use toolwright_core::{
    Effects, Event, Outcome, RawArguments, Services, StaticProvider, Tool, ToolContext, ToolDefinition, ToolError,
    ToolId, ToolOutput, ValidCall,
};
use toolwright_runtime::executor::{ExecutorOptions, GuardBinding, GuardVerdict, RepairOptions};
use toolwright_testkit::{FakeApprover, FakeModel};

use crate::fixture::{Fixture, call, fixture};

/// A state that `echo` seems to write: there from the moment the tool has run.
struct Written(Arc<crate::fixture::Counts>);

impl Variables for Written {
    fn get(&self, _kind: VariableKind, path: &[&str], _instance: Option<&str>) -> Option<KnownValue> {
        let known = || KnownValue { value: json!(4), taint: Taint::default() };
        (path == ["n"] && self.0.ran.load(Ordering::SeqCst) > 0).then(known)
    }
}

#[tokio::test]
async fn a_call_runs_once_its_value_is_there() {
    let mut fixture = fixture(|_| {}).await;
    fixture.run.variables = Some(Arc::new(Written(Arc::clone(&fixture.counts))));
    let outcomes = fixture
        .all(vec![
            call("late", "echo", json!({"n": "†state.n"})),
            call("never", "echo", json!({"n": "†state.other"})),
            call("first", "slow", json!({"n": 1})),
            call("else", "echo", json!({"n": "†state.other || 7"})),
        ])
        .await;
    let texts: Vec<_> = outcomes.iter().map(|outcome| (outcome.call_id.as_str(), outcome.text())).collect();
    assert_eq!((texts[0].0, texts[0].1.as_str()), ("late", "echo 4"));
    assert_eq!((texts[2].0, texts[3].1.as_str()), ("first", "echo 7"));
    assert!(!outcomes[1].ok && texts[1].1.contains("nothing is there for the reference †state.other"), "{texts:?}");
    assert_eq!(outcomes[0].provenance.resolved, ["/n"]);
}

#[tokio::test]
async fn calls_that_wait_for_each_other_end() {
    let mut fixture = fixture(|_| {}).await;
    fixture.run.variables = Some(Arc::new(Values::default()));
    let outcomes =
        fixture.all(vec![call("a", "echo", json!({"n": "†state.b"})), call("b", "echo", json!({"n": "†state.a"}))]);
    let outcomes = tokio::time::timeout(Duration::from_secs(5), outcomes).await.expect("no deadlock");
    assert!(outcomes.iter().all(|outcome| !outcome.ok));
    assert_eq!(fixture.counts.ran.load(Ordering::SeqCst), 0);
}

/// A fixture whose model mends arguments with the same words each time.
async fn repair_fixture(says: Result<&'static str, ModelErrorKind>) -> (Fixture, Arc<FakeModel>) {
    let mender = Arc::new(match says {
        Ok(text) => FakeModel::saying(text),
        Err(kind) => FakeModel::failing(kind, "no answer"),
    });
    let client: Arc<dyn ModelClient> = mender.clone();
    let fixture = fixture(|options: &mut ExecutorOptions| {
        options.services = Arc::new(Services { model: client, ..Services::clone(&options.services) });
        options.repair = Some(RepairOptions::by("small/m"));
    })
    .await;
    (fixture, mender)
}

fn end(outcome: &Outcome) -> &RepairOutcome {
    &outcome.provenance.repair.as_ref().expect("a record").end
}

#[tokio::test]
async fn a_model_repairs_arguments_once_on_record() {
    let (fixture, mender) = repair_fixture(Ok("```json\n{\"n\": 3}\n```")).await;
    let mut events = fixture.events.subscribe();
    let mut broken = call("b", "echo", json!({}));
    broken.arguments = RawArguments::Text("three, please".into());
    let outcomes =
        fixture.all(vec![call("a", "echo", json!({"n": "three"})), broken, call("c", "echo", json!({"n": 1}))]).await;
    assert_eq!(outcomes.iter().map(Outcome::text).collect::<Vec<_>>(), ["echo 3", "echo 3", "echo 1"]);
    assert_eq!((end(&outcomes[0]), outcomes[2].provenance.repair.is_none()), (&RepairOutcome::Accepted, true));
    let record = outcomes[1].to_json()["provenance"]["repair"].clone();
    assert_eq!((&record["original"], &record["candidate"]), (&json!("three, please"), &json!({"n": 3})));
    assert_eq!((&record["attempt"], &record["model"]), (&json!(1), &json!("small/m")));
    let written =
        |(model, request)| format!("{model} {}", serde_json::to_string::<ModelRequest>(&request).expect("json"));
    let asked: Vec<String> = mender.asked().into_iter().map(written).collect();
    assert!(
        asked.len() == 2 && asked[0].contains("expected integer") && asked[1].contains("three, please"),
        "{asked:?}"
    );
    let (mut reported, mut asked) = (0, Vec::new());
    while let Ok(event) = events.try_recv().map(Arc::unwrap_or_clone) {
        match event {
            Event::CallRepair { .. } => reported += 1,
            Event::ModelStarted { op, model, .. } => asked.push((op, model)),
            Event::ModelFinished { op, model, .. } => {
                let begun = asked.iter().position(|asked| *asked == (op.clone(), model.clone()));
                asked.remove(begun.expect("what ended has begun"));
                reported += 10;
            }
            _ => {}
        }
    }
    assert_eq!((reported, asked.len()), (22, 0));
    fixture.store.flush().await.expect("flush");
    assert_eq!(fixture.store.totals().await.expect("totals").model_calls, 2);
}

#[tokio::test]
async fn an_unrepairable_call_never_runs() {
    for (says, expect) in [
        (Ok("{\"n\": \"four\"}"), "rejected"),
        (Ok("null"), "failed"),
        (Ok("I would rather not"), "failed"),
        (Err(ModelErrorKind::Unavailable), "failed"),
    ] {
        let (fixture, mender) = repair_fixture(says).await;
        let outcome = fixture.one("echo", json!({"n": "three"})).await;
        assert!(outcome.text().contains("/n: expected integer, got string \"three\""), "{}", outcome.text());
        let record = outcome.to_json()["provenance"]["repair"]["end"].clone();
        assert!(record.get(expect).is_some(), "{record}");
        assert_eq!((fixture.counts.ran.load(Ordering::SeqCst), mender.requests()), (0, 1));
    }
}

#[tokio::test]
async fn repairs_are_bounded_by_calls_per_turn() {
    let (fixture, mender) = repair_fixture(Ok("null")).await;
    fixture.one("nope", json!({})).await;
    assert_eq!(mender.requests(), 0);
    fixture.all((0..30).map(|n| call(&n.to_string(), "echo", json!({"n": "x"}))).collect()).await;
    assert_eq!(mender.requests(), fixture.executor.calls_per_turn());
}

#[tokio::test]
async fn only_an_unconditional_call_starts_early() {
    let mut fixture = fixture(|_| {}).await;
    fixture.run.policy = Arc::new(toolwright_core::Policy::of(toolwright_core::Profile::Ask));
    fixture.run.variables = Some(Arc::new(Values(json!({"input": {"n": 1}}))));
    fixture.run.approver = Arc::new(FakeApprover::saying(toolwright_core::ApprovalDecision::Approve));
    for (name, arguments, expect) in [
        ("echo", json!({"n": 1}), true),
        ("echo", json!({"n": "1"}), true),
        ("echo", json!({"n": "x"}), false),
        ("echo", json!({"n": "†input.n"}), false),
        ("write", json!({"n": 1}), false),
        ("nope", json!({}), false),
    ] {
        let startable = fixture.executor.startable(call("c", name, arguments.clone()), &fixture.run);
        assert_eq!(startable.is_some(), expect, "{name} {arguments}");
    }
}

#[tokio::test]
async fn arguments_rewritten_by_a_guard_get_defaults() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "unit": {"default": "m"}}});
    for (schema, written, expect) in [
        (Some(&schema), json!({"n": 2}), Ok(json!({"n": 2, "unit": "m"}))),
        (Some(&schema), json!({"n": "two"}), Err("/n: expected integer")),
        (Some(&schema), json!(null), Err("must be a JSON object")),
        (None, json!({"any": 1}), Ok(json!({"any": 1}))),
        (None, json!([1]), Err("must be a JSON object")),
        (None, json!("{}"), Err("must be a JSON object")),
    ] {
        let rewritten = written.clone();
        let rewrites = move |_: &ValidCall| GuardVerdict::Rewrite(rewritten.clone());
        let fixture = fixture(|options| options.guards.push(GuardBinding::new("rewrites", Arc::new(rewrites)))).await;
        let snapshot = snapshot_of(vec![Unschemed("full", NoSchemaMode::Full, Effects::READ, schema.cloned())]).await;
        let mut call = call("c", "full", json!({"n": 1}));
        call.name = "u__full".into();
        let outcome = fixture.executor.run_calls(vec![call], &fixture.on(snapshot)).await.remove(0);
        match expect {
            Ok(ran) => {
                assert_eq!(serde_json::from_str::<Value>(&outcome.text()).expect("json"), ran, "{written}");
                assert_eq!((&outcome.ran_with, outcome.provenance.rewritten), (&Some(ran), true));
            }
            Err(why) => assert!(outcome.text().contains(why), "{written}: {}", outcome.text()),
        }
    }
}

#[tokio::test]
async fn an_earlier_repair_is_checked_and_reused() {
    let (fixture, mender) = repair_fixture(Ok("{\"n\": 3}")).await;
    let written = || vec![call("a", "echo", json!({"n": "three"})), call("b", "echo", json!({"n": 1}))];
    let first = fixture.executor.check_calls(written(), &[], &fixture.run).await;
    let mended = first.model_repairs();
    assert_eq!((mended.len(), mended[0].0.as_str()), (1, "a"));
    let again = fixture.executor.check_calls(written(), &mended, &fixture.run).await;
    assert_eq!((again.model_repairs(), again.usage.input_tokens), (mended.clone(), 0));
    assert_eq!(again.calls[0].as_ref().expect("valid").arguments, json!({"n": 3}));
    assert_eq!(mender.requests(), 1);
    let mut stale = mended;
    stale[0].1.candidate = Some(json!({"n": "four"}));
    let refused = fixture.executor.check_calls(written(), &stale, &fixture.run).await;
    assert!(refused.calls[0].is_err());
    assert_eq!(mender.requests(), 1, "not even where it does not fit any more");
}

/// A tool without a schema that says how it may run; with one, if the last says so.
struct Unschemed(&'static str, NoSchemaMode, Effects, Option<Value>);

async fn snapshot_of(tools: Vec<Unschemed>) -> Snapshot {
    let tools = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
    let provider = Arc::new(StaticProvider::new("u", ProviderKind::Native, tools).expect("registers"));
    let tools = provider.list().await.expect("lists");
    Snapshot::build(&[Listing { provider, tools, error: None, withheld: vec![] }])
}

#[async_trait]
impl Tool for Unschemed {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("u", self.0, "1.0.0").expect("id");
        let mut definition = ToolDefinition::new(id, "", self.3.clone());
        (definition.allow_no_schema, definition.no_schema_mode, definition.effects) = (true, Some(self.1), self.2);
        definition
    }
    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text(arguments.to_string()))
    }
}

#[tokio::test]
async fn a_tool_without_schema_follows_its_mode() {
    let fixture = fixture(|_| {}).await;
    let tools = [
        Unschemed("reads", NoSchemaMode::ReadOnly, Effects::READ, None),
        Unschemed("writes", NoSchemaMode::ReadOnly, Effects::WRITE, None),
        Unschemed("person", NoSchemaMode::HumanApproval, Effects::READ, None),
        Unschemed("full", NoSchemaMode::Full, Effects::UNKNOWN, None),
    ];
    let run = fixture.on(snapshot_of(tools.into()).await);
    for (name, mode, runs) in [
        ("reads", "read-only", true),
        ("writes", "read-only", false),
        ("person", "human-approval", false),
        ("full", "full", true),
    ] {
        let mut written = call("c", name, json!({"any": [1]}));
        written.name = format!("u__{name}");
        assert!(fixture.executor.startable(written.clone(), &run).is_none(), "none starts by itself");
        let outcome = fixture.executor.run_calls(vec![written], &run).await.remove(0);
        assert_eq!((outcome.ok, outcome.validated.0), (runs, false), "{name}: {}", outcome.text());
        assert_eq!(outcome.to_json()["provenance"]["unvalidated"], mode, "{name}");
    }
}

#[tokio::test]
async fn an_unusable_foreign_schema_leaves_a_warning() {
    let fixture = fixture(|_| {}).await;
    let definition =
        ToolDefinition::new(ToolId::parse("x:echo@0.0.0").expect("id"), "", Some(json!({"type": "nonsense"})));
    let provider = crate::fixture::provider(&fixture.counts);
    let tools = vec![RegisteredTool::foreign(definition, "echo")];
    let snapshot = Snapshot::build(&[Listing { provider, tools, error: None, withheld: vec![] }]);
    let mut events = fixture.events.subscribe();
    let run = fixture.on(snapshot);
    let mut written = call("c", "echo", json!({}));
    written.name = "x__echo".into();
    let outcome = fixture.executor.run_calls(vec![written], &run).await.remove(0);
    assert_eq!(outcome.to_json()["provenance"]["unvalidated"], "full");
    let warned = std::iter::from_fn(|| events.try_recv().ok().map(Arc::unwrap_or_clone))
        .any(|event| matches!(event, Event::Warning { code, message } if code == "schema_unusable" && message.contains("x:echo")));
    assert!(warned);
}
