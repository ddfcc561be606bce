//! Calls that calls make: as many and as deep as they may, and guards that are calls' callers too.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::{Listing, Provider as _, ProviderKind, Snapshot};
use toolwright_core::model::ModelResponse;
use toolwright_core::policy::Selector;
use toolwright_core::store::LedgerStore as _;
use toolwright_core::{
    CallId, Effects, ErrorKind, Outcome, RawArguments, Services, StaticProvider, Tool, ToolCall, ToolContext,
    ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::executor::{GuardBinding, GuardContext, GuardVerdict, InputGuard, ModelGuard};
use toolwright_testkit::FakeModel;

use crate::fixture::{Fixture, call, fixture};

/// `many` calls `leaf` so often at once; `deep` calls itself until it has gone so deep.
struct NestingTool(&'static str);

#[async_trait]
impl Tool for NestingTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("t", self.0, "1.0.0").expect("id");
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let mut definition = ToolDefinition::new(id, "", Some(schema));
        definition.effects = Effects::READ;
        definition
    }

    fn awaits_others(&self) -> bool {
        self.0 != "leaf"
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let n = arguments["n"].as_u64().unwrap_or(0);
        let inner = |id: u64, name: &str, n: u64| {
            ToolCall::new(CallId::new(id.to_string()), format!("t__{name}"), RawArguments::Value(json!({"n": n})))
        };
        let calls: Vec<ToolCall> = match self.0 {
            "many" => (0..n).map(|id| inner(id, "leaf", id)).collect(),
            "deep" if n > 0 => vec![inner(0, "deep", n - 1)],
            _ => return Ok(ToolOutput::text("bottom")),
        };
        let outcomes = context.calls.run(calls).await?;
        let said = |outcome: &Outcome| match &outcome.error {
            Some(error) => error.kind().as_str().to_owned(),
            None => outcome.text(),
        };
        Ok(ToolOutput::text(outcomes.iter().map(said).collect::<Vec<_>>().join(" ")))
    }
}

async fn carriers(fixture: &Fixture) -> toolwright_runtime::RunContext {
    let tools = ["many", "deep", "leaf"].map(|name| Arc::new(NestingTool(name)) as Arc<dyn Tool>).to_vec();
    let provider = Arc::new(StaticProvider::new("carriers", ProviderKind::Native, tools).expect("provider"));
    let tools = provider.list().await.expect("list");
    fixture.on(Snapshot::build(&[Listing { provider, tools, error: None, withheld: vec![] }]))
}

#[tokio::test]
async fn nested_calls_are_bounded_in_number_and_depth() {
    let fixture = fixture(|options| (options.defaults.calls_per_turn, options.inner_calls) = (1, 20)).await;
    let run = carriers(&fixture).await;
    for (tool, n, expect) in [
        ("many", 20, "bottom ".repeat(20)),
        ("many", 22, format!("{}limit_exceeded limit_exceeded", "bottom ".repeat(20))),
        ("deep", 5, "bottom".to_owned()),
        ("deep", 6, "limit_exceeded".to_owned()),
        ("deep", 9, "limit_exceeded".to_owned()),
    ] {
        let outcomes = fixture.executor.run_calls(vec![call("c", tool, json!({"n": n}))], &run).await;
        assert_eq!(outcomes[0].text().trim(), expect.trim(), "{tool} {n}");
    }
}

#[tokio::test]
async fn a_model_guard_fails_closed() {
    // What the model says, and after which time.
    let said: Arc<Mutex<(String, Duration)>> = Arc::default();
    let says = Arc::clone(&said);
    let client = Arc::new(FakeModel::with_future(move |call| {
        assert!(call.request.system.contains("no twos") && call.request.output.is_some());
        let (text, pause) = says.lock().expect("lock").clone();
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            Ok(ModelResponse { text, ..ModelResponse::default() })
        })
    }));
    let fixture = fixture(|options| {
        options.services = Arc::new(Services { model: client, ..(*options.services).clone() });
        let echo = Selector { tool: Some("t:echo".into()), ..Selector::default() };
        let guard = Arc::new(ModelGuard::new("m/judge", "no twos"));
        options.guards.push(GuardBinding::new("twos", guard).on(echo).within(Duration::from_millis(50)));
    })
    .await;
    let none = Duration::ZERO;
    for (answer, pause, expect) in [
        (r#"{"verdict": "allow", "reason": "", "arguments": null}"#, none, "echo 2"),
        (r#"{"verdict": "deny", "reason": "twos are out", "arguments": null}"#, none, "denied: twos are out"),
        (r#"{"verdict": "rewrite", "reason": "", "arguments": "{\"n\": 3}"}"#, none, "echo 3"),
        ("I think it is fine.", none, "guard twos could not judge it"),
        (r#"{"verdict": "allow", "reason": "", "arguments": null}"#, Duration::from_secs(5), "within 50ms"),
    ] {
        *said.lock().expect("lock") = (answer.to_owned(), pause);
        let text = fixture.one("echo", json!({"n": 2})).await.text();
        assert!(text.contains(expect), "{answer}: {text}");
    }
    assert!(fixture.one("slow", json!({"n": 1})).await.ok, "nobody judges it");
    fixture.store.flush().await.expect("flush");
    let totals = fixture.store.totals().await.expect("totals");
    assert_eq!((totals.tool_calls, totals.model_calls), (6, 5), "each of its requests is in the ledger");
}

/// Runs the very call that it judges.
struct SelfCallingGuard;

#[async_trait]
impl InputGuard for SelfCallingGuard {
    async fn judge(&self, call: &ValidCall, context: &GuardContext<'_>) -> Result<GuardVerdict, String> {
        let tried = ToolCall::new(
            CallId::new("tried"),
            call.entry.wire_name.clone(),
            RawArguments::Value(call.arguments.clone()),
        );
        let outcomes = context.executor.run_calls(vec![tried], &context.run).await;
        if outcomes[0].ok { Ok(GuardVerdict::Allow) } else { Err(outcomes[0].text()) }
    }
}

#[tokio::test]
async fn calls_by_a_guard_are_not_guarded() {
    let fixture = fixture(|options| options.guards.push(GuardBinding::new("tries", Arc::new(SelfCallingGuard)))).await;
    assert!(fixture.one("echo", json!({"n": 1})).await.ok);
    let failed = fixture.one("fails", json!({})).await;
    assert_eq!(failed.error.map(|error| error.kind()), Some(ErrorKind::Denied));
    assert_eq!(fixture.counts.ran.load(std::sync::atomic::Ordering::SeqCst), 3);
}
