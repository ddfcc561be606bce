//! Plans that answer real requests, over a server that answers each tool: every call runs with the arguments that its references
//! mean, and as soon as they are there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::canonical::{ContentHash, canonical_json};
use toolwright_core::catalogue::{ProviderKind, RegisteredTool, Snapshot};
use toolwright_core::error::ErrorKind;
use toolwright_core::plan::{PlanContext, PlanDocument, check_plan};
use toolwright_core::store::{Written, fold};
use toolwright_core::{Effects, RunInput, ToolDefinition, ToolError, ToolId, ToolOutput};
use toolwright_runtime::{RunContext, RunVariables};
use toolwright_testkit::FakeProvider;

use crate::fixture::{Fixture, fixture};

/// A tool as the data names it.
#[derive(Deserialize)]
struct ToolOfServer {
    name: String,
    parameters: Value,
    output_schema: Value,
}

/// A request with the plan that answers it.
#[derive(Deserialize)]
struct Request {
    id: String,
    plan: Value,
}

/// What a server with these tools is asked, and what it answers, for one plan.
struct Script {
    /// The arguments of each call, references replaced.
    arguments: Vec<Value>,
    /// The answers, by tool and arguments.
    answers: BTreeMap<String, Value>,
    /// The calls that each call waits for.
    producers: Vec<BTreeSet<usize>>,
}

/// The references in a value, each with the type that the tool wants there.
fn references(value: &Value, schema: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::String(text) if text.starts_with('†') && !text.starts_with("††") => {
            found.push((text.clone(), schema["type"].clone()));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, &schema["items"], found)),
        Value::Object(members) => {
            members.iter().for_each(|(name, member)| references(member, &schema["properties"][name], found));
        }
        _ => {}
    }
}

/// A value of a type, the same for the same place of the same answer.
fn value_of(kind: &Value, place: &str) -> Value {
    let hash = ContentHash::of_value(&json!(place)).to_string();
    let number = hash.bytes().map(u64::from).sum::<u64>();
    match kind.as_str() {
        Some("integer" | "number") => json!(number),
        Some("boolean") => json!(number.is_multiple_of(2)),
        Some("array") => json!([place]),
        Some("object") => json!({"of": place}),
        _ => json!(format!("{place} {number}")),
    }
}

/// The steps of `author[0].id`: an item by its number.
fn steps(path: &str) -> Vec<&str> {
    path.split(['.', '[', ']']).filter(|step| !step.is_empty()).collect()
}

fn put(target: &mut Value, path: &[&str], value: Value) {
    match path {
        [] => *target = value,
        [step, rest @ ..] => match step.parse::<usize>() {
            Ok(item) => {
                let mut items = target.as_array().cloned().unwrap_or_default();
                items.resize(items.len().max(item + 1), Value::Null);
                put(&mut items[item], rest, value);
                *target = items.into();
            }
            Err(_) => {
                if !target.is_object() {
                    *target = json!({});
                }
                put(&mut target[*step], rest, value);
            }
        },
    }
}

/// A written value in the type that its tool wants, where it has another that means the same.
fn fitted(value: &Value, kind: &Value) -> Value {
    match (kind.as_str(), value) {
        (Some("string"), Value::Number(number)) => json!(number.to_string()),
        (Some("integer" | "number"), Value::String(text)) => text.parse::<i64>().map_or(value.clone(), Value::from),
        (Some("array"), Value::String(text)) => json!([text]),
        _ => value.clone(),
    }
}

/// The value that a reference means, by what the calls before it have answered.
fn meant(reference: &str, state: &[Written]) -> Value {
    let alternatives = reference.split("||").map(str::trim);
    let found = alternatives.filter_map(|term| match term.strip_prefix("†state.") {
        Some(path) => {
            let (first, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
            let whole = fold(state.iter(), first, None)?;
            let pointer: String = steps(rest).iter().map(|step| format!("/{step}")).collect();
            whole.pointer(&pointer).cloned()
        }
        None => serde_json::from_str(term).ok(),
    });
    found.into_iter().next().unwrap_or_else(|| panic!("{reference} means nothing"))
}

fn replaced(value: &Value, state: &[Written]) -> Value {
    match value {
        Value::String(text) if text.starts_with('†') && !text.starts_with("††") => meant(text, state),
        Value::Array(items) => items.iter().map(|item| replaced(item, state)).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.clone(), replaced(member, state))).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

fn key(tool: &str, arguments: &Value) -> String {
    format!("{tool} {}", canonical_json(arguments))
}

impl Script {
    /// Works the plan out call by call, without the executor.
    fn of(plan: &PlanDocument, tools: &BTreeMap<&str, &ToolOfServer>) -> Self {
        let mut read: Vec<Vec<(String, Value)>> = Vec::new();
        for call in &plan.calls {
            let mut found = Vec::new();
            references(&Value::Object(call.arguments.clone()), &tools[&*call.tool].parameters, &mut found);
            read.push(found);
        }
        let paths: Vec<Option<&str>> = plan.calls.iter().map(|call| call.meta.output_path.as_deref()).collect();
        let (mut state, mut script) =
            (Vec::new(), Self { arguments: Vec::new(), answers: BTreeMap::new(), producers: Vec::new() });
        for (index, call) in plan.calls.iter().enumerate() {
            let mut arguments = replaced(&Value::Object(call.arguments.clone()), &state);
            for (name, schema) in tools[&*call.tool].parameters["properties"].as_object().into_iter().flatten() {
                if let Some(value) = arguments.get_mut(name) {
                    *value = fitted(value, &schema["type"]);
                }
            }
            let named = |reference: &str, path: &str| {
                reference.split("||").map(str::trim).any(|term| {
                    term.strip_prefix("†state.")
                        .and_then(|term| term.strip_prefix(path))
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
                })
            };
            // Those that write one path run in written order.
            let producers = (0..index).filter(|&producer| {
                paths[producer].is_some_and(|path| {
                    paths[index] == Some(path) || read[index].iter().any(|(reference, _)| named(reference, path))
                })
            });
            script.producers.push(producers.collect());
            let known = script.answers.entry(key(&call.tool, &arguments)).or_insert_with(|| json!({}));
            let fields = tools[&*call.tool].output_schema["properties"].as_object();
            for name in fields.into_iter().flatten().map(|(name, _)| name) {
                if known.get(name).is_none() {
                    put(known, &[name], value_of(&Value::Null, &format!("{}.{name} of {arguments}", call.tool)));
                }
            }
            if let Some(path) = paths[index] {
                for (reference, kind) in read.iter().flatten() {
                    for term in reference.split("||").map(str::trim) {
                        let Some(rest) = term.strip_prefix(&format!("†state.{path}.")) else { continue };
                        put(known, &steps(rest), value_of(kind, &format!("{}.{rest} of {arguments}", call.tool)));
                    }
                }
                state.push(Written::set(path, known.clone()));
            }
            script.arguments.push(arguments);
        }
        script
    }
}

fn snapshot(
    tools: &BTreeMap<&str, &ToolOfServer>,
    answer: impl Fn(&str, &Value) -> Result<Value, ToolError> + Send + Sync + 'static,
    steps: Arc<Mutex<Vec<String>>>,
) -> Snapshot {
    let define = |tool: &ToolOfServer| {
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
    tools: &BTreeMap<&str, &ToolOfServer>,
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
    let script = Script::of(&plan, tools);
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

fn by_name(tools: &[ToolOfServer]) -> BTreeMap<&str, &ToolOfServer> {
    tools.iter().map(|tool| (tool.name.as_str(), tool)).collect()
}

async fn fixture_of_plans() -> Fixture {
    fixture(|_| {}).await
}

/// Plans of the shapes that real requests have: a chain, a diamond, one result for many calls, a path into a result, a value amid
/// a list, two searches of one tool, and one that lacks what its tool needs.
fn own() -> (Vec<ToolOfServer>, Vec<Request>) {
    let tool = |name: &str, parameters: Value, fields: &[&str]| ToolOfServer {
        name: name.to_owned(),
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
    let request = |id: &str, plan: Value| Request { id: id.to_owned(), plan };
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
async fn plans_of_real_requests_run_as_meant() {
    let Some(folder) = toolwright_testkit::test_data("plans") else { return };
    let lines = |name: &str| std::fs::read_to_string(PathBuf::from(&folder).join(name)).expect("a file");
    let tools: Vec<ToolOfServer> =
        lines("tools.jsonl").lines().map(|line| serde_json::from_str(line).expect("a tool")).collect();
    let requests: Vec<Request> =
        lines("plans.jsonl").lines().map(|line| serde_json::from_str(line).expect("a plan")).collect();
    let fixture = fixture_of_plans().await;
    let tools = by_name(&tools);
    let mut refused = Vec::new();
    for request in &requests {
        if let Err(why) = check(&fixture, &tools, request).await {
            assert!(why.contains("missing") || why.contains("required"), "{}: {why}", request.id);
            refused.push(request.id.as_str());
        }
    }
    // These lack arguments that their tools require.
    assert_eq!(
        refused,
        [
            "executable-2",
            "non-executable-glaive-56",
            "non-executable-glaive-91",
            "non-executable-glaive-96",
            "non-executable-glaive-166",
        ]
    );
    assert_eq!(requests.len(), 127);
}
