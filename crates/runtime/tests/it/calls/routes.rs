//! Calls that their own tool does not run: latent ones, and those of activities.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolwright_core::catalogue::declared::DeclaredTools;
use toolwright_core::catalogue::{Listing, Provider as _, Snapshot};
use toolwright_core::model::{ModelResponse, Route};
use toolwright_core::policy::Effect;
use toolwright_core::store::{LedgerEntry, LedgerStore as _};
use toolwright_core::{CallId, ErrorKind, Outcome, Policy, Profile, RawArguments, RunInput, Services, ToolCall};
use toolwright_runtime::executor::RepairOptions;
use toolwright_runtime::{RunContext, RunVariables};
use toolwright_testkit::FakeModel;

use crate::fixture::{Fixture, fixture, provider};

async fn declared(fixture: &Fixture, tools: &[(&str, Value)]) -> RunContext {
    let schemas = Arc::new(DeclaredTools::new("schemas", tools.iter().map(|(name, schema)| (*name, schema))));
    assert_eq!(schemas.issues(), [""; 0]);
    let coded = provider(&fixture.counts);
    let listing = |provider: Arc<dyn toolwright_core::Provider>, tools| Listing {
        provider,
        tools,
        error: None,
        withheld: vec![],
    };
    let (own, known) = (schemas.tools().to_vec(), coded.tools().to_vec());
    fixture.on(Snapshot::build(&[listing(schemas, own), listing(coded, known)]))
}

async fn one(fixture: &Fixture, run: &RunContext, name: &str, arguments: Value) -> Outcome {
    let call = ToolCall::new(CallId::new("c"), format!("schema__{name}"), RawArguments::Value(arguments));
    fixture.executor.run_calls(vec![call], run).await.into_iter().next().expect("one outcome")
}

async fn rows(fixture: &Fixture) -> Vec<LedgerEntry> {
    fixture.store.flush().await.expect("flush");
    let traces = fixture.store.find_traces("test").await.expect("traces");
    fixture.store.operations(&traces[0], 10).await.expect("rows")
}

fn rated() -> Value {
    json!({
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "_output": {"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]},
        },
        "required": ["text"],
    })
}

#[tokio::test]
async fn latent_calls_are_recorded_as_not_executed() {
    let fixture = fixture(|_| {}).await;
    let run = declared(&fixture, &[("rate", rated())]).await;
    let outcome = one(&fixture, &run, "rate", json!({"text": "x", "_output": {"score": 3}})).await;
    assert!(outcome.ok, "{outcome:?}");
    assert_eq!(outcome.structured, Some(json!({"score": 3})));
    assert_eq!(outcome.text(), "Your result was accepted.");
    assert_eq!((&outcome.provenance.route, &outcome.extras["executed"]), (&Route::Latent, &json!(false)));
    let rows = rows(&fixture).await;
    assert_eq!((rows.len(), &rows[0].provenance.route, rows[0].attempts), (1, &Route::Latent, 0));
    assert_eq!(fixture.counts.ran.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn policy_judges_latent_calls() {
    let fixture = fixture(|_| {}).await;
    let run = declared(&fixture, &[("rate", rated())]).await;
    let rule = serde_json::from_value(json!({"effect": "deny", "tool": "schema__rate"})).expect("rule");
    let policy = Policy { rules: vec![rule], ..Policy::of(Profile::Trusted) };
    assert_eq!(policy.rules[0].effect, Effect::Deny);
    let run = RunContext { policy: Arc::new(policy), ..run };
    let outcome = one(&fixture, &run, "rate", json!({"text": "x", "_output": {"score": 3}})).await;
    assert_eq!(outcome.error.map(|error| error.kind()), Some(ErrorKind::Denied));
}

#[tokio::test]
async fn an_output_is_repaired_once() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let model = FakeModel::new(move |call| {
        seen.lock().expect("asked").push(serde_json::to_string(&call.request.messages).expect("json"));
        Ok(ModelResponse { text: r#"{"text": "x", "_output": {"score": 4}}"#.into(), ..ModelResponse::default() })
    });
    let fixture = fixture(|options| {
        options.repair = Some(RepairOptions::by("fake/model"));
        options.services = Arc::new(Services { model: Arc::new(model), ..(*options.services).clone() });
    })
    .await;
    let run = declared(&fixture, &[("rate", rated())]).await;
    let outcome = one(&fixture, &run, "rate", json!({"text": "x", "_output": {"points": 4}})).await;
    assert_eq!(outcome.structured, Some(json!({"score": 4})), "{outcome:?}");
    let asked = asked.lock().expect("asked");
    assert_eq!(asked.len(), 1);
    assert!(asked[0].contains("points") && asked[0].contains("score"), "{}", asked[0]);
}

#[tokio::test]
async fn activities_run_as_calls_inside() {
    let fixture = fixture(|_| {}).await;
    let schema = |activity: Value| {
        json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}, "_activity": activity, "_output": {"type": "string"}},
        })
    };
    let tools = [
        ("named", schema(json!({"const": "t__slow"}))),
        ("echo", json!({"type": "object", "properties": {"n": {"type": "integer"}}})),
        ("chosen", schema(json!({"enum": ["t__fails", ""]}))),
    ];
    let run = declared(&fixture, &tools).await;
    let named = one(&fixture, &run, "named", json!({"n": 1})).await;
    assert_eq!((named.ok, named.text().as_str()), (true, "slept 1"), "{named:?}");
    let rows = rows(&fixture).await;
    let names: Vec<&str> = rows.iter().map(|row| &*row.name).collect();
    assert!(names.contains(&"schema:named@0.0.0") && names.contains(&"t:slow@1.0.0"), "{names:?}");
    let inner = rows.iter().find(|row| &*row.name == "t:slow@1.0.0").expect("inner");
    let outer = rows.iter().find(|row| &*row.name == "schema:named@0.0.0").expect("outer");
    assert_eq!(inner.op.lineage.parent, Some(outer.op.id));

    assert_eq!(one(&fixture, &run, "echo", json!({"n": 7})).await.text(), "echo 7");
    let failed = one(&fixture, &run, "chosen", json!({"_activity": "t__fails"})).await;
    assert!(!failed.ok && failed.text().contains("it did not work"), "{failed:?}");
    let latent = one(&fixture, &run, "chosen", json!({"_activity": "", "_output": "mine"})).await;
    assert_eq!(latent.structured, Some(json!("mine")));
}

#[tokio::test]
async fn activities_see_what_scopes_grant() {
    let fixture = fixture(|_| {}).await;
    let scopes = json!({"const": ["input.tone", "†state.none"]});
    let schema = json!({"type": "object", "properties": {"_activity": {"const": "t__echo"}, "_scopes": scopes}});
    let input = RunInput { input: json!({"tone": "kind", "secret": "xyzzy"}), ..RunInput::default() };
    let run = declared(&fixture, &[("asks", schema)]).await;
    let run = RunContext { variables: Some(RunVariables::in_memory(input)), ..run };
    assert_eq!(one(&fixture, &run, "asks", json!({})).await.text(), r#"{"input.tone":"kind"}"#);
}
