//! What becomes of results that are too large, or not what their tool promised.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::{Entry, Listing, ProviderKind, Snapshot};
use toolwright_core::definition::OnOutputMismatch;
use toolwright_core::event::Event;
use toolwright_core::output::outputs_of_note;
use toolwright_core::store::StoredOutput;
use toolwright_core::{
    ContentBlock, ErrorKind, Outcome, Policy, Profile, Provider as _, StaticProvider, Tool, ToolContext,
    ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::{BUDGET_EXCEEDED, ContextBudget, Interceptor, InterceptorDecision};

use crate::background::jobs;
use crate::fixture::{Fixture, call, fixture, readers};

/// A tool with one result.
#[derive(Clone)]
struct FixedOutputTool {
    output: ToolOutput,
    schema: Option<Value>,
    on_mismatch: OnOutputMismatch,
}

impl FixedOutputTool {
    fn output(output: ToolOutput) -> Self {
        Self { output, schema: None, on_mismatch: OnOutputMismatch::Warn }
    }

    fn structured(value: Value, schema: Option<Value>) -> Self {
        Self { schema, ..Self::output(ToolOutput { structured: Some(value), ..ToolOutput::default() }) }
    }
}

#[async_trait]
impl Tool for FixedOutputTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::parse("t:gives@1.0.0").expect("id");
        let mut definition = ToolDefinition::new(id, "Gives.", Some(json!({"type": "object"})));
        definition.output_schema.clone_from(&self.schema);
        definition.on_output_mismatch = self.on_mismatch;
        definition
    }

    async fn run(&self, _arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(self.output.clone())
    }
}

async fn terms(fixture: &Fixture, tool: FixedOutputTool) -> RunContext {
    let provider = Arc::new(StaticProvider::new("gives", ProviderKind::Native, vec![Arc::new(tool)]).expect("tool"));
    let tools = provider.list().await.expect("list");
    let listing = Listing { provider, tools, error: None, withheld: vec![] };
    fixture.on(Snapshot::build(&[listing, readers().await]))
}

async fn run(fixture: &Fixture, run: &RunContext) -> Outcome {
    fixture.executor.run_calls(vec![call("c", "gives", json!({}))], run).await.remove(0)
}

async fn one(fixture: &Fixture, tool: FixedOutputTool) -> Outcome {
    run(fixture, &terms(fixture, tool).await).await
}

async fn stored(fixture: &Fixture, outcome: &Outcome) -> String {
    let handle = outcome.extras["tool_output"]["handle"].as_str().expect("handle");
    assert!(outcome.text().contains(handle), "{}", outcome.text());
    let outputs = &fixture.executor.services().outputs;
    outputs.read(&fixture.run.session.id, handle, 0, 1 << 20).await.expect("stored").text
}

#[tokio::test]
async fn large_text_is_stored_and_the_rest_passes() {
    let fixture = fixture(|options| options.defaults.tool_response_max_bytes = Some(1000)).await;
    let resource =
        ContentBlock::Resource { resource: json!({"uri": "a:b", "text": "r".repeat(900)}), extra: Map::new() };
    let image = ContentBlock::image("AAAA", "image/png");
    let content = vec![ContentBlock::text("t".repeat(200)), image.clone(), resource];
    let outcome = one(&fixture, FixedOutputTool::output(ToolOutput { content, ..ToolOutput::default() })).await;
    assert_eq!(stored(&fixture, &outcome).await, format!("{}\n{}", "t".repeat(200), "r".repeat(900)));
    assert_eq!((outcome.content.len(), &outcome.content[1]), (2, &image));

    let note = json!({"handle": "session-a/b", "bytes": 9000, "lines": 3, "tokens": 2250});
    let own = ToolOutput::text("a preview").with_extra("tool_output", note.clone());
    let outcome = one(&fixture, FixedOutputTool::output(own)).await;
    let text = outcome.text();
    assert!(text.contains("session-a/b") && text.contains("9000 bytes") && text.ends_with("a preview"), "{text}");
    assert_eq!(outcome.extras["tool_output"], note, "what the tool has stored itself is not stored again");
}

/// Skips every call, with this in its place.
struct Skips(ToolOutput);

#[async_trait]
impl Interceptor for Skips {
    fn name(&self) -> &str {
        "skips"
    }

    async fn before(&self, _call: &ValidCall, _run: &RunContext) -> InterceptorDecision {
        InterceptorDecision::Skip(self.0.clone())
    }
}

#[tokio::test]
async fn a_skip_message_need_not_fit_the_schema() {
    let rows = |value: Value| ToolOutput { structured: Some(value), ..ToolOutput::default() };
    for (output, expect) in [
        (ToolOutput::text("not needed"), Ok(Some("skipped"))),
        (rows(json!({"rows": []})), Ok(None)),
        (rows(json!({"rows": 1})), Err(ErrorKind::ExecutionError)),
    ] {
        let fixture = fixture(|options| options.interceptors.push(Arc::new(Skips(output)))).await;
        let schema = json!({"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]});
        let tool = FixedOutputTool::structured(json!({"rows": []}), Some(schema));
        let outcome = one(&fixture, FixedOutputTool { on_mismatch: OnOutputMismatch::Error, ..tool }).await;
        let stands_in = outcome.extras.get("stands_in").and_then(Value::as_str);
        assert_eq!(outcome.error.map_or(Ok(stands_in), |error| Err(error.kind())), expect);
    }
}

/// Puts this in the place of every output.
struct Replaces(ToolOutput);

#[async_trait]
impl Interceptor for Replaces {
    fn name(&self) -> &str {
        "replaces"
    }

    async fn after(&self, _tool: &Entry, _output: &ToolOutput, _run: &RunContext) -> Option<ToolOutput> {
        Some(self.0.clone())
    }
}

#[tokio::test]
async fn an_interceptor_may_replace_a_placeholder() {
    let rows = |value: Value| ToolOutput { structured: Some(value), ..ToolOutput::default() };
    let stands_in = ToolOutput::text("later").with_extra("stands_in", "job");
    for (said, replaced, expect) in [
        (stands_in.clone(), ToolOutput::text("not yet"), Ok(Some("job"))),
        (stands_in.clone(), ToolOutput::text("no").with_extra("stands_in", "skipped"), Ok(Some("skipped"))),
        (stands_in.clone(), rows(json!({"rows": []})), Ok(None)),
        (stands_in, rows(json!({"rows": 1})), Err(ErrorKind::ExecutionError)),
        (rows(json!({"rows": []})), ToolOutput::text("none"), Err(ErrorKind::ExecutionError)),
    ] {
        let fixture = fixture(|options| options.interceptors.push(Arc::new(Replaces(replaced)))).await;
        let schema = json!({"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]});
        let tool = FixedOutputTool { output: said, schema: Some(schema), on_mismatch: OnOutputMismatch::Error };
        let outcome = one(&fixture, tool).await;
        let stands_in = outcome.extras.get("stands_in").and_then(Value::as_str);
        assert_eq!(outcome.error.map_or(Ok(stands_in), |error| Err(error.kind())), expect);
    }
}

#[tokio::test]
async fn an_interceptor_may_replace_a_jobs_step() {
    let dir = tempfile::tempdir().expect("dir");
    let rewords = Replaces(ToolOutput::text("in other words"));
    let fixture = jobs::fixture_with(dir.path(), |options| options.interceptors.push(Arc::new(rewords))).await;
    let step = fixture.call("a", "strict_talk", json!({"n": 5})).await;
    assert!(step.ok && step.text().starts_with("in other words"), "{step:?}");
    let extra = |name: &str| step.extras.get(name).and_then(Value::as_str);
    assert_eq!((extra("overridden_by"), extra("stands_in")), (Some("replaces"), Some("step")));
    // A result of the tool's own is replaced by something that its schema is for.
    let outcome = fixture.call("b", "strict", json!({"n": 4})).await;
    assert_eq!(outcome.error.map(|error| error.kind()), Some(ErrorKind::ExecutionError));
}

#[tokio::test]
async fn json_is_previewed_as_json() {
    let fixture = fixture(|options| options.defaults.tool_response_max_bytes = Some(2000)).await;
    let rows: Vec<Value> = (0..500).map(|n| json!({"row": n})).collect();
    let outcome = one(&fixture, FixedOutputTool::output(ToolOutput::text(json!(rows).to_string()))).await;
    let text = outcome.text();
    let preview = text.split("\n\n").nth(1).expect("preview");
    let preview: Vec<Value> = serde_json::from_str(preview).expect("JSON");
    assert_eq!((&preview[0]["row"], &preview[preview.len() - 1]["row"]), (&json!(0), &json!(499)));
}

#[tokio::test]
async fn callers_without_readers_get_no_handles() {
    let fixture = fixture(|options| options.defaults.tool_response_max_bytes = Some(1000)).await;
    let tool = FixedOutputTool::output(ToolOutput::text("x".repeat(5000)));
    let mut denied = terms(&fixture, tool.clone()).await;
    let rules = json!([{"effect": "deny", "namespace": "output", "reason": "no"}]);
    denied.policy =
        Arc::new(Policy { rules: serde_json::from_value(rules).expect("rules"), ..Policy::of(Profile::Trusted) });
    let mut unnamed = terms(&fixture, tool.clone()).await;
    unnamed.names = Some(Arc::new(|entry| (entry.id().namespace() == "t").then(|| "gives".into())));
    let mut absent = terms(&fixture, tool).await;
    absent.snapshot = Arc::new(absent.snapshot.only(|entry| entry.id().namespace() == "t", "filtered"));
    for terms in [denied, unnamed, absent] {
        let outcome = run(&fixture, &terms).await;
        let text = outcome.text();
        assert!(
            outcome.ok && text.len() <= 1000 && text.contains("toolwright cut this result of 5000 bytes"),
            "{text}"
        );
        assert!(!text.contains("output__") && !text.contains("Handle: ") && outcome.is_truncated(), "{text}");
        assert_eq!(json!(outcome.extras), json!({"cut_bytes": 5000}), "there is no handle");
    }
}

#[tokio::test]
async fn structured_results_stay_whole_where_they_were_promised() {
    let fixture = fixture(|options| {
        (options.defaults.tool_response_max_bytes, options.defaults.whole_result_max_bytes) = (Some(1000), 5000)
    })
    .await;
    let value = |bytes: usize| json!({"a": "x".repeat(bytes)});
    let promised = Some(json!({"type": "object"}));

    let outcome = one(&fixture, FixedOutputTool::structured(value(3000), promised.clone())).await;
    assert!(outcome.ok && outcome.structured == Some(value(3000)));
    assert_eq!(stored(&fixture, &outcome).await, value(3000).to_string(), "a model has a handle to go by");

    let outcome = one(&fixture, FixedOutputTool::structured(value(6000), promised)).await;
    assert_eq!(outcome.error.as_ref().map(ToolError::kind), Some(ErrorKind::ExecutionError));
    assert!(outcome.structured.is_none() && outcome.text().starts_with("(tool failed:"), "{}", outcome.text());
    assert_eq!(stored(&fixture, &outcome).await, value(6000).to_string());

    let outcome = one(&fixture, FixedOutputTool::structured(value(3000), None)).await;
    assert!(outcome.ok && outcome.structured.is_none());
    assert_eq!(stored(&fixture, &outcome).await, value(3000).to_string());

    let mut twice = FixedOutputTool::structured(value(3000), None);
    twice.output.content = ToolOutput::text(value(3000).to_string()).content;
    let outcome = one(&fixture, twice).await;
    assert!(outcome.structured.is_none() && outcome.content.len() == 1, "what is said twice is stored once");

    let outcome = one(&fixture, FixedOutputTool::structured(value(10), None)).await;
    assert_eq!((outcome.structured, outcome.extras.len()), (Some(value(10)), 0));
}

#[tokio::test]
async fn output_schema_mismatch_is_noted_or_fails() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    for (structured, path) in [
        (Some(json!({"n": 1})), None),
        (Some(json!({"n": "one"})), Some("/n")),
        (Some(json!({})), Some("(root)")),
        (None, Some("(root)")),
    ] {
        for on_mismatch in [OnOutputMismatch::Warn, OnOutputMismatch::Error] {
            let fixture = fixture(|_| ()).await;
            let mut events = fixture.events.subscribe();
            let output = ToolOutput { structured: structured.clone(), ..ToolOutput::text("text") };
            let tool = FixedOutputTool { output, schema: Some(schema.clone()), on_mismatch };
            let outcome = one(&fixture, tool).await;
            let reported =
                std::iter::from_fn(|| events.try_recv().ok().map(Arc::unwrap_or_clone)).find_map(|event| match event {
                    Event::Warning { code, message } => Some((code, message)),
                    _ => None,
                });
            assert_eq!(reported.is_some(), path.is_some(), "{structured:?}");
            let Some(path) = path else {
                assert!(outcome.ok && outcome.extras.is_empty());
                continue;
            };
            let (code, message) = reported.expect("told");
            assert!(code == "output_schema_mismatch" && message.contains(path), "{message}");
            if on_mismatch == OnOutputMismatch::Warn {
                assert!(outcome.ok && outcome.structured == structured);
                assert_eq!(outcome.extras["output_schema_mismatch"]["path"], path);
            } else {
                assert_eq!(outcome.error.as_ref().map(ToolError::kind), Some(ErrorKind::ExecutionError));
                assert!(outcome.text().contains(path), "{}", outcome.text());
            }
        }
    }
    let fixture = fixture(|_| ()).await;
    let failed = FixedOutputTool { schema: Some(schema), ..FixedOutputTool::output(ToolOutput::failure("no")) };
    assert_eq!(one(&fixture, failed).await.text(), "no", "a failure need not fit");
}

#[tokio::test]
async fn results_over_the_budget_are_stored_or_refused() {
    let fixture = fixture(|_| ()).await;
    let tool = FixedOutputTool::output(ToolOutput::text("x".repeat(4000)));
    let mut terms = terms(&fixture, tool).await;
    for (limit, removable, expect) in [(2000, 0, "whole"), (900, 0, "handle"), (60, 400, "handle"), (60, 0, "refused")]
    {
        let budget = Arc::new(ContextBudget::new(limit + 500));
        budget.holds(500, removable);
        terms.budget = Some(budget);
        let mut events = fixture.events.subscribe();
        let outcome = run(&fixture, &terms).await;
        let text = outcome.text();
        let reported =
            std::iter::from_fn(|| events.try_recv().ok().map(Arc::unwrap_or_clone)).find_map(|event| match event {
                Event::BudgetExceeded { needed, left, handle, .. } => Some((needed > left, handle.is_some())),
                _ => None,
            });
        assert_eq!(reported, (expect != "whole").then_some((true, true)), "{limit} {removable}");
        match expect {
            "whole" => assert_eq!(text.len(), 4000),
            "handle" => {
                assert!(outcome.ok && text.len() < 600 && text.contains("output__read"), "{text}");
                assert_eq!(stored(&fixture, &outcome).await.len(), 4000);
            }
            _ => {
                assert!(!outcome.ok && text.starts_with("(tool failed: context window budget exceeded)\n"), "{text}");
                assert_eq!(stored(&fixture, &outcome).await.len(), 4000);
            }
        }
        assert_eq!(outcome.extras.contains_key(BUDGET_EXCEEDED), expect == "refused");
    }
}

#[tokio::test]
async fn results_of_a_turn_share_one_budget() {
    let fixture = fixture(|_| ()).await;
    let mut terms = terms(&fixture, FixedOutputTool::output(ToolOutput::text("x".repeat(4000)))).await;
    terms.budget = Some(Arc::new(ContextBudget::new(2400)));
    let calls = (0..4).map(|n| call(&format!("c{n}"), "gives", json!({}))).collect();
    let outcomes = fixture.executor.run_calls(calls, &terms).await;
    let whole = outcomes.iter().filter(|outcome| outcome.text().len() == 4000).count();
    let handles = outcomes.iter().filter(|outcome| outcome.ok && outcome.text().len() < 600).count();
    assert_eq!((whole, handles), (2, 2));
}

/// What is stored under all handles of an outcome, in order; the model is told of each.
async fn all_stored(fixture: &Fixture, outcome: &Outcome) -> Vec<String> {
    let mut texts = Vec::new();
    for StoredOutput { handle, .. } in outputs_of_note(&outcome.extras["tool_output"]) {
        assert!(outcome.text().contains(&handle), "{handle} in {}", outcome.text());
        let outputs = &fixture.executor.services().outputs;
        texts.push(outputs.read(&fixture.run.session.id, &handle, 0, 1 << 20).await.expect("stored").text);
    }
    texts
}

#[tokio::test]
async fn a_result_stored_in_parts_names_all_handles() {
    let fixture = fixture(|options| {
        (options.defaults.tool_response_max_bytes, options.defaults.whole_result_max_bytes) = (Some(1000), 5000)
    })
    .await;
    let (text, value) = ("t".repeat(3000), json!({"a": "x".repeat(3000)}));
    let both = ToolOutput { structured: Some(value.clone()), ..ToolOutput::text(text.clone()) };
    let outcome = one(&fixture, FixedOutputTool::output(both.clone())).await;
    assert_eq!(all_stored(&fixture, &outcome).await, [text.clone(), value.to_string()]);

    // A promise that is too large is an error, and what the tool said in words is told of still.
    let (large, promised) = (json!({"a": "x".repeat(6000)}), Some(json!({"type": "object"})));
    let output = ToolOutput { structured: Some(large.clone()), ..both.clone() };
    let outcome = one(&fixture, FixedOutputTool { schema: promised, ..FixedOutputTool::output(output) }).await;
    assert!(!outcome.ok && outcome.text().starts_with("(tool failed:"), "{}", outcome.text());
    assert_eq!(all_stored(&fixture, &outcome).await, [text.clone(), large.to_string()]);

    // Where the conversation has no room, neither is stored again, and a short text beside them is not lost.
    let mut full = terms(&fixture, FixedOutputTool::output(both)).await;
    let budget = Arc::new(ContextBudget::new(600));
    budget.holds(500, 400);
    full.budget = Some(budget);
    assert_eq!(all_stored(&fixture, &run(&fixture, &full).await).await, [text, value.to_string()]);
    let short = ToolOutput { structured: Some(value.clone()), ..ToolOutput::text("in short") };
    let mut full = terms(&fixture, FixedOutputTool::output(short)).await;
    let budget = Arc::new(ContextBudget::new(600));
    budget.holds(500, 400);
    full.budget = Some(budget);
    assert_eq!(all_stored(&fixture, &run(&fixture, &full).await).await, [value.to_string(), "in short".to_owned()]);
}

#[tokio::test]
async fn images_over_the_budget_are_kept() {
    let fixture = fixture(|_| ()).await;
    let content = vec![ContentBlock::text("two views"), ContentBlock::image("AAAA", "image/png")];
    let mut terms = terms(&fixture, FixedOutputTool::output(ToolOutput { content, ..ToolOutput::default() })).await;
    terms.budget = Some(Arc::new(ContextBudget::new(400)));
    let outcome = run(&fixture, &terms).await;
    let text = outcome.text();
    let handle = text.split("stored its images and other files under ").nth(1).expect("a handle").trim_end_matches('.');
    let open = fixture.executor.services().outputs.open(&fixture.run.session.id, handle).await.expect("stored");
    assert_eq!((open.bytes, open.binary.as_deref()), (3, Some("image/png")));
    let whole = all_stored(&fixture, &outcome).await;
    assert!(whole.len() == 1 && whole[0].starts_with("two views\n") && whole[0].contains(handle), "{whole:?}");
}
