//! Plans that answer real requests, over a server that answers each tool: every call runs with the arguments that its references
//! mean, and as soon as they are there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{ProviderKind, RegisteredTool, Snapshot};
use toolwright_core::error::ErrorKind;
use toolwright_core::plan::{PlanContext, PlanDocument, check_plan};
use toolwright_core::{Effects, RunInput, ToolDefinition, ToolError, ToolId, ToolOutput};
use toolwright_runtime::{RunContext, RunVariables};
use toolwright_testkit::FakeProvider;
use toolwright_testkit::requests::{PlannedRequest as Request, ServerScript, ServerTool, call_key as key, read_lines};

use crate::fixture::{Fixture, fixture};

fn snapshot(
    tools: &BTreeMap<&str, &ServerTool>,
    answer: impl Fn(&str, &Value) -> Result<Value, ToolError> + Send + Sync + 'static,
    steps: Arc<Mutex<Vec<String>>>,
) -> Snapshot {
    let define = |tool: &ServerTool| {
        let id = ToolId::foreign("requests", &tool.name).unwrap_or_else(|error| panic!("{}: {error}", tool.name));
        let mut definition = ToolDefinition::new(id, "", Some(tool.parameters.clone()));
        definition.output_schema = Some(tool.output_schema.clone());
        // Tools that only read wait for no store: with the clock paused, a wait for a thread would end at once.
        definition.effects = Effects::READ;
        RegisteredTool::foreign(definition, tool.name.as_str())
    };
    let provider = FakeProvider::new("requests", ProviderKind::Mcp, tools.values().map(|tool| define(tool)).collect());
    let answer = Arc::new(answer);
    let provider = provider.with_future(move |call, _| {
        let (answer, steps) = (Arc::clone(&answer), Arc::clone(&steps));
        Box::pin(async move {
            let asked = key(call.raw_name, &call.arguments);
            steps.lock().expect("steps").push(format!("begin {asked}"));
            // Each takes another time, so that no two end together.
            let hash = ContentHash::of_value(&json!(asked)).to_string();
            let delay = hash.bytes().fold(0u64, |sum, byte| (sum * 31 + u64::from(byte)) % 100_003);
            tokio::time::sleep(Duration::from_millis(1000 + delay)).await;
            steps.lock().expect("steps").push(format!("end {asked}"));
            let structured = answer(call.raw_name, &call.arguments)?;
            Ok(ToolOutput { structured: Some(structured.clone()), ..ToolOutput::text(structured.to_string()) })
        })
    });
    Snapshot::build(&[Arc::new(provider).listing()])
}

/// Checks the plan, and runs it where the check finds nothing wrong.
async fn check(
    fixture: &Fixture,
    tools: &BTreeMap<&str, &ServerTool>,
    request: &Request,
) -> Result<Vec<String>, String> {
    let id = &request.id;
    let plan = PlanDocument::of_value(request.plan.clone()).unwrap_or_else(|faults| panic!("{id}: {faults:?}"));
    let steps = Arc::new(Mutex::new(Vec::new()));
    let policy = toolwright_core::Policy::of(toolwright_core::Profile::Trusted);
    let unanswered = snapshot(tools, |_, _| Ok(json!({})), Arc::default());
    let context = PlanContext {
        snapshot: &unanswered,
        session: &fixture.run.session,
        policy: Some(&policy),
        request: None,
        variables: None,
        max_cost: None,
    };
    let found = check_plan(&plan, &context);
    if !found.is_valid() {
        return Err(found.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
    }
    let script = ServerScript::of(&plan, tools, 0).unwrap_or_else(|why| panic!("{id}: {why}"));
    let answers = script.answers.clone();
    let answer = move |tool: &str, arguments: &Value| {
        let unexpected = || ToolError::new(ErrorKind::ExecutionError, format!("nobody asks {tool} for {arguments}"));
        answers.get(&key(tool, arguments)).cloned().ok_or_else(unexpected)
    };
    let variables = RunVariables::in_memory(RunInput { foreign: true, ..RunInput::default() });
    let run = RunContext {
        variables: Some(variables),
        is_plan: true,
        ..fixture.on(snapshot(tools, answer, Arc::clone(&steps)))
    };
    let outcomes = fixture.executor.run_calls(plan.tool_calls(), &run).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        assert!(outcome.ok, "{id}: {} {}", plan.calls[index].tool, outcome.text());
        let asked = key(&plan.calls[index].tool, &script.arguments[index]);
        assert_eq!(outcome.structured.as_ref(), script.answers.get(&asked), "{id}: call {index}");
    }
    // A call begins when the last call that it waits for has ended: meanwhile no other ends.
    let steps = steps.lock().expect("steps").clone();
    for (index, call) in plan.calls.iter().enumerate() {
        let asked = key(&call.tool, &script.arguments[index]);
        let begun = steps.iter().position(|step| *step == format!("begin {asked}")).expect("begun");
        let ended = script.producers[index].iter().map(|&producer| {
            let asked = key(&plan.calls[producer].tool, &script.arguments[producer]);
            steps.iter().position(|step| *step == format!("end {asked}")).expect("ended")
        });
        let last = ended.max();
        assert!(last.is_none_or(|last| last < begun), "{id}: call {index} begins too early: {steps:#?}");
        let between = &steps[last.map_or(0, |last| last + 1)..begun];
        assert!(between.iter().all(|step| step.starts_with("begin ")), "{id}: call {index} waits in vain: {steps:#?}");
    }
    Ok(steps)
}

fn by_name(tools: &[ServerTool]) -> BTreeMap<&str, &ServerTool> {
    tools.iter().map(|tool| (tool.name.as_str(), tool)).collect()
}

async fn fixture_of_plans() -> Fixture {
    fixture(|_| {}).await
}

/// Plans of the shapes that real requests have: a chain, a diamond, one result for many calls, a path into a result, a value amid
/// a list, two searches of one tool, and one that lacks what its tool needs.
fn own() -> (Vec<ServerTool>, Vec<Request>) {
    let tool = |name: &str, parameters: Value, fields: &[&str]| ServerTool {
        name: name.to_owned(),
        description: String::new(),
        parameters: json!({"type": "object", "properties": parameters, "required": ["q"]}),
        output_schema: json!({
            "type": "object",
            "properties": fields.iter().map(|field| ((*field).to_owned(), json!({}))).collect::<Map<_, _>>(),
        }),
    };
    let text = json!({"type": "string"});
    let tools = vec![
        tool("FindPlace", json!({"q": text}), &["id", "name"]),
        tool("plan_route", json!({"q": text, "to": text, "km": {"type": "number"}}), &["legs", "total"]),
        tool("compare_prices", json!({"q": {"type": "array", "items": text}, "n": {"type": "integer"}}), &["best"]),
    ];
    let request = |id: &str, plan: Value| Request { id: id.to_owned(), request: String::new(), plan };
    let requests = vec![
        request(
            "chain",
            json!([
                {"_tool": "FindPlace", "_outputPath": "a", "q": "Oslo"},
                {"_tool": "plan_route", "_outputPath": "b", "q": "†state.a.id"},
                {"_tool": "compare_prices", "_outputPath": "c", "q": ["†state.b.legs", "train"]},
            ]),
        ),
        request(
            "diamond",
            json!([
                {"_tool": "FindPlace", "_outputPath": "a", "q": "Oslo"},
                {"_tool": "FindPlace", "_outputPath": "b", "q": "Turin"},
                {"_tool": "plan_route", "_outputPath": "c", "q": "†state.a.id", "to": "†state.b.id"},
                {"_tool": "plan_route", "_outputPath": "d", "q": "†state.b.name", "to": "†state.a.name"},
                {"_tool": "compare_prices", "q": ["†state.c.total.fare", "†state.d.total.fare"], "n": 2},
            ]),
        ),
        request(
            "fan",
            json!([
                {"_tool": "FindPlace", "_outputPath": "a", "q": "Bergen"},
                {"_tool": "plan_route", "_outputPath": "x1", "q": "†state.a.id", "km": 5},
                {"_tool": "plan_route", "_outputPath": "x2", "q": "†state.a.id", "km": 6},
                {"_tool": "plan_route", "_outputPath": "x3", "q": "†state.a.id", "km": "†state.x1.total"},
            ]),
        ),
        request(
            "wanting",
            json!([
                {"_tool": "FindPlace", "_outputPath": "a", "q": "Rome"},
                {"_tool": "plan_route", "to": "†state.a.id"},
            ]),
        ),
    ];
    (tools, requests)
}

#[tokio::test(start_paused = true)]
async fn plans_run_with_the_arguments_they_mean() {
    let fixture = fixture_of_plans().await;
    let (tools, requests) = own();
    let tools = by_name(&tools);
    for request in &requests {
        let ran = check(&fixture, &tools, request).await;
        match (&*request.id, ran) {
            ("wanting", ran) => assert!(ran.as_ref().is_err_and(|why| why.contains("/1 (schema)")), "{ran:?}"),
            (id, ran) => drop(ran.unwrap_or_else(|why| panic!("{id}: {why}"))),
        }
    }
}

/// The requests of the larger data, where it is.
#[tokio::test(start_paused = true)]
async fn plans_of_real_requests_run_as_intended() {
    let Some(folder) = toolwright_testkit::test_data("plans") else { return };
    let tools: Vec<ServerTool> = read_lines(&folder.join("tools.jsonl")).expect("tools");
    let requests: Vec<Request> = read_lines(&folder.join("plans.jsonl")).expect("plans");
    let fixture = fixture_of_plans().await;
    let tools = by_name(&tools);
    let mut refused = Vec::new();
    for request in &requests {
        if let Err(why) = check(&fixture, &tools, request).await {
            assert!(why.contains("(schema): "), "{}: {why}", request.id);
            refused.push(request.id.as_str());
        }
    }
    // These lack arguments that their tools require, or give them in another type.
    assert_eq!(
        refused,
        [
            "executable-2",
            "non-executable-glaive-56",
            "non-executable-glaive-63",
            "non-executable-glaive-91",
            "non-executable-glaive-96",
            "non-executable-glaive-142",
            "non-executable-glaive-166",
        ]
    );
    assert_eq!(requests.len(), 127);
}
