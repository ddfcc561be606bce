use std::sync::Arc;

use serde_json::json;

use super::super::{PlanApproval, check_per_input};
use super::*;
use crate::call::run_input::RunInput;
use crate::catalogue::declared::DeclaredTools;
use crate::catalogue::{Listing, RegisteredTool};
use crate::definition::{Effects, ToolDefinition};
use crate::identity::session::{Principal, SessionId};
use crate::identity::tool_id::ToolId;
use crate::policy::Profile;
use crate::secret::NoRedaction;
use crate::testing::{listing, own};

/// Tools that search, read and send, and a foreign one.
fn snapshot() -> Snapshot {
    let define = |id: &str, parameters: Value, output: Option<Value>| {
        let mut tool = ToolDefinition::new(ToolId::parse(id).expect("id"), "", Some(parameters));
        tool.output_schema = output;
        tool
    };
    let text = json!({"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]});
    let found = json!({
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "any": {}, "hits": {"type": "array", "items": {"type": "string"}}},
    });
    let closed = json!({"type": "object", "properties": {"done": {"type": "boolean"}}, "additionalProperties": false});
    let mut search = define("x:search@1.0.0", text.clone(), Some(found));
    search.effects = Effects { read_only: true, ..Effects::default() };
    search.cost_hint = Some(json!(0.25));
    let send = json!({
        "type": "object",
        "properties": {"to": {"type": "string"}, "n": {"type": "integer"}, "flag": {"type": "boolean"}},
        "required": ["to"],
    });
    let tools = vec![own(search), own(define("x:send@1.0.0", send, Some(closed)))];
    let foreign = vec![RegisteredTool::foreign(define("mcp:find@0.0.0", text, None), "Find")];
    Snapshot::build(&[listing("x", tools), listing("mcp", foreign)])
}

fn session() -> Session {
    Session { id: SessionId::new("s"), principal: Principal::owner(), root: "/work".into(), agent: None }
}

fn checked(plan: Value, policy: &Policy, max_cost: Option<f64>) -> PlanCheck {
    let plan = PlanDocument::of_value(plan).expect("a plan");
    let (snapshot, session) = (snapshot(), session());
    let policy = Some(policy);
    check_plan(
        &plan,
        &PlanContext { snapshot: &snapshot, session: &session, policy, request: None, variables: None, max_cost },
    )
}

fn check(plan: Value, expect: &[(&str, &str, &str)]) -> PlanCheck {
    let found = checked(plan.clone(), &Policy::of(Profile::Trusted), None);
    let errors: Vec<_> = found.errors.iter().map(|issue| (&*issue.path, issue.kind.as_str())).collect();
    assert_eq!(errors, expect.iter().map(|(path, kind, _)| (*path, *kind)).collect::<Vec<_>>(), "{:?}", found.errors);
    for (issue, (.., fragment)) in found.errors.iter().zip(expect) {
        assert!(issue.message.contains(fragment), "{issue}");
    }
    found
}

#[test]
fn a_plan_that_can_run_has_edges() {
    let found = check(
        json!([
            {"_tool": "x__search", "_outputPath": "a", "q": "one"},
            {"_tool": "Find", "_outputPath": "b", "q": "†state.a.name"},
            {"_tool": "x__send", "to": "†state.b", "n": "†state.a.id"},
            {"_tool": "x__search", "_outputPath": "a", "q": "two"},
        ]),
        &[],
    );
    assert_eq!(
        found.to_json(),
        json!({
            "valid": true, "calls": 4, "edges": [[0, 1], [0, 2], [1, 2]], "errors": [], "order": [[0, 3], [1, 3], [2, 3]],
            "cost": {"usd": 0.5, "unknown": 2},
        })
    );
}

/// Inputs, and the values of references.
struct Inputs(RunInput, Vec<String>);

impl Variables for Inputs {
    fn get(&self, kind: VariableKind, path: &[&str], instance: Option<&str>) -> Option<KnownValue> {
        (kind == VariableKind::Input).then(|| self.0.get(path, instance)).flatten()
    }

    fn instances(&self) -> &[String] {
        &self.1
    }
}

#[test]
fn faults_name_inputs_of_the_whole_array() {
    let plan = PlanDocument::of_value(json!([{"_tool": "x__search", "q": "†input.q"}])).expect("a plan");
    let (snapshot, session) = (snapshot(), session());
    for (inputs, before, expect) in [
        (json!([{"q": "a"}, {"q": [1]}, {"q": "c"}]), 0, &["/1"][..]),
        (json!([{"q": "a"}, {"q": [1]}, {"q": "c"}]), 100, &["/101"]),
        (json!([{"q": [1]}, {"q": [1]}]), 0, &[""]),
        (json!([{"q": [1]}, {"q": [1]}]), 200, &["/200", "/201"]),
    ] {
        let input = RunInput::of_value(inputs.clone()).expect("inputs");
        let values = Inputs(input.clone(), input.instances.keys().cloned().collect());
        let context = PlanContext {
            snapshot: &snapshot,
            session: &session,
            policy: None,
            request: None,
            variables: Some(&values),
            max_cost: None,
        };
        let found = check_per_input(&plan, (&input, before), &context, |_, _| {});
        let items: Vec<&str> = found.errors.iter().map(|issue| issue.item.as_deref().unwrap_or_default()).collect();
        assert_eq!(items, expect, "{inputs} behind {before}: {:?}", found.errors);
    }
}

#[test]
fn tools_and_arguments_are_checked_around_references() {
    check(
        json!([
            {"_tool": "x__serch", "q": "one"},
            {"_tool": "x__search"},
            {"_tool": "search", "q": 1, "_outputPath": "a"},
            {"_tool": "search", "q": [1]},
            {"_tool": "x__send", "n": "†state.a.id", "flag": "maybe"},
            {"_tool": "Find", "q": ["†state.a"]},
        ]),
        &[
            ("/0/_tool", "unknown_tool", "did you mean x__search"),
            ("/1", "schema", "\"q\" is missing"),
            ("/3/q", "schema", "string"),
            ("/4", "schema", "\"to\" is missing"),
            ("/4/flag", "schema", "boolean"),
            ("/5/q", "schema", "string"),
        ],
    );
}

#[test]
fn references_need_a_writer_or_a_fallback() {
    let found = check(
        json!([
            {"_tool": "x__search", "_outputPath": "found", "q": "†state.fund.name"},
            {"_tool": "x__search", "q": "†state.none || \"x\""},
            {"_tool": "x__search", "q": "†input.none"},
            {"_tool": "x__search", "q": "see †state.none"},
            {"_tool": "x__search", "q": "††state.none"},
        ]),
        &[("/0/q", "reference", "did you mean †state.found?"), ("/2/q", "reference", "†input.none")],
    );
    assert_eq!(found.warnings.iter().map(|issue| &*issue.path).collect::<Vec<_>>(), ["/1/q"]);
}

#[test]
fn fixed_output_paths_count_in_the_graph() {
    let schema = |fields: Value| {
        let mut schema = json!({"type": "object", "properties": {"q": {}, "_output": {}}});
        schema["properties"].as_object_mut().expect("properties").extend(fields.as_object().expect("fields").clone());
        schema
    };
    let tools = [
        ("note", schema(json!({"_outputPath": {"const": "notes.last"}}))),
        ("ask", schema(json!({"_delegate": {"const": "anonymous"}, "_scopes": {"const": ["state.notes"]}}))),
    ];
    let provider = Arc::new(DeclaredTools::new("schemas", tools.iter().map(|(name, schema)| (*name, schema))));
    let tools = provider.tools().to_vec();
    let snapshot = Snapshot::build(&[Listing { provider, tools, error: None, withheld: Vec::new() }]);
    let plan = PlanDocument::of_value(json!([
        {"_tool": "schema__note", "q": 1, "_output": "†state.nothing"},
        {"_tool": "schema__ask", "q": "†state.notes.last"},
        {"_tool": "schema__ask"},
    ]))
    .expect("a plan");
    let session = session();
    let context = PlanContext {
        snapshot: &snapshot,
        session: &session,
        policy: None,
        request: None,
        variables: None,
        max_cost: None,
    };
    let found = check_plan(&plan, &context);
    assert_eq!((found.value_edges(), found.errors), (vec![[0, 1], [0, 2]], Vec::new()));
}

#[test]
fn references_are_typed_against_output_schemas() {
    let found = check(
        json!([
            {"_tool": "x__search", "_outputPath": "a", "q": "one"},
            {"_tool": "x__send", "_outputPath": "b", "to": "†state.a.name", "n": "†state.a.name"},
            {"_tool": "x__send", "to": "†state.a.hits", "n": "†state.a.any"},
            {"_tool": "x__send", "to": "†state.a.hits[0]", "flag": "†state.b.done"},
            {"_tool": "x__send", "to": "†state.b.text", "n": "†state.a.nam"},
            {"_tool": "x__send", "to": "†state.a"},
        ]),
        &[
            ("/1/n", "type", "†state.a.name is of type string, and integer is wanted here"),
            ("/2/to", "type", "array"),
            ("/4/to", "reference", "it has no `text`"),
            ("/5/to", "type", "object"),
        ],
    );
    let warning = found.warnings.first().expect("a warning");
    assert!(warning.path == "/4/n" && warning.message.contains("did you mean `name`?"), "{warning}");
}

#[test]
fn cyclic_handoffs_are_refused() {
    check(
        json!([
            {"_tool": "x__search", "_outputPath": "a", "q": "†state.b.name"},
            {"_tool": "x__search", "_outputPath": "b", "q": "†state.a.name"},
            {"_tool": "x__search", "q": "†state.a.name"},
        ]),
        &[("/0", "cycle", "/0 waits for /1 waits for /0")],
    );
    check(
        json!([{"_tool": "x__search", "_outputPath": "a", "q": "†state.a.name"}]),
        &[("/0", "cycle", "/0 waits for /0")],
    );
}

#[test]
fn denials_and_costs_are_found_before_anything_runs() {
    let rules: Policy = serde_json::from_value(json!({"profile": "trusted", "rules": [
        {"effect": "deny", "tool": "x:send@*", "when": "args.to == 'eve'"},
        {"effect": "ask", "tool": "mcp:*"},
    ]}))
    .expect("rules");
    let plan = json!([
        {"_tool": "x__search", "_outputPath": "a", "q": "one"},
        {"_tool": "x__send", "to": "eve"},
        {"_tool": "x__send", "to": "†state.a.name"},
        {"_tool": "Find", "q": "†state.a.name"},
    ]);
    let found = checked(plan, &rules, Some(0.1));
    let errors: Vec<_> = found.errors.iter().map(|issue| (&*issue.path, issue.kind.as_str())).collect();
    assert_eq!(errors, [("/1/_tool", "policy"), ("", "cost")]);
    assert_eq!(found.calls[3].verdict.as_ref().map(|decision| decision.effect), Some(Effect::Ask));
}

#[test]
fn structural_faults_are_listed_with_all_errors() {
    let found = check(
        json!([
            {"_tool": "x__serch", "q": "one"},
            {"_tool": "x__search", "_outputPath": "a..b", "q": {}},
            {"q": "two"},
        ]),
        &[
            ("/0/_tool", "unknown_tool", "did you mean x__search"),
            ("/1/_outputPath", "path", "is not a path"),
            ("/1/q", "schema", "string"),
            ("/2/_tool", "parse", "names no tool"),
        ],
    );
    assert!(!found.is_valid());
    let found = check(json!([{"_tool": "x__search", "q": "†sate.a"}, {"_tool": "x__search", "q": "††a.b"}]), &[]);
    let warned: Vec<_> = found.warnings.iter().map(|issue| &*issue.path).collect();
    assert_eq!(warned, ["/0/q"]);
}

#[test]
fn malformed_references_are_faults() {
    let write = json!({"_tool": "x__search", "_outputPath": "a", "q": "x"});
    for text in ["†state.a || none", "†state.a ||", "†state[\"a\"]", "†state.a + 1"] {
        let of = |text: &str| json!([write, {"_tool": "x__send", "to": text}]);
        check(of(text), &[("/1/to", "reference", "is no reference")]);
        check(of(&format!("†{text}")), &[]);
    }
}

#[test]
fn unreadable_results_are_warned_of() {
    let write = |path: &str, method: &str| json!({"_tool": "x__search", "_outputPath": path, "_outputMethod": method, "q": "x"});
    let read = json!({"_tool": "x__search", "q": "†state.a.name"});
    for (calls, expect) in [
        (json!([write("a", "set"), write("a", "set")]), &["/1/_outputPath"][..]),
        (json!([write("a.b", "set"), write("a", "set"), write("a", "set")]), &["/1/_outputPath", "/2/_outputPath"][..]),
        (json!([write("a", "set"), read, write("a", "set")]), &[][..]),
        (json!([write("a", "set"), write("a", "merge")]), &[][..]),
        (json!([write("a", "set"), write("a.b", "set")]), &[][..]),
    ] {
        let found = check(calls.clone(), &[]);
        assert_eq!(found.warnings.iter().map(|issue| &*issue.path).collect::<Vec<_>>(), expect, "{calls}");
    }
}

#[test]
fn activities_are_judged_and_approved() {
    let schema = json!({"type": "object", "properties": {"to": {"type": "string"}, "_activity": {"const": "x__send"}}});
    let provider = Arc::new(DeclaredTools::new("schemas", [("post", &schema)]));
    let tools = provider.tools().to_vec();
    let parameters = json!({
        "type": "object",
        "properties": {"to": {"type": "string"}, "times": {"type": "integer", "default": 1}},
        "required": ["to"],
    });
    let send = ToolDefinition::new(ToolId::parse("x:send@1.0.0").expect("id"), "", Some(parameters));
    let declared = Listing { provider, tools, error: None, withheld: Vec::new() };
    let snapshot = Snapshot::build(&[declared, listing("x", vec![own(send)])]);
    let plan = |call: Value| PlanDocument::of_value(json!([call])).expect("a plan");
    let post = plan(json!({"_tool": "schema__post", "to": "ada"}));
    let session = session();
    let checked = |plan: &PlanDocument, policy: &Policy| {
        let (variables, request) = (None, None);
        let policy = Some(policy);
        check_plan(
            plan,
            &PlanContext { snapshot: &snapshot, session: &session, policy, request, variables, max_cost: None },
        )
    };
    let checked_post = checked(&post, &Policy::of(Profile::Ask));
    assert_eq!(checked_post.calls[0].effect(), Some(Effect::Ask));
    let approval = PlanApproval::of(&post, &checked_post, &NoRedaction);
    let approved_calls: Vec<_> =
        approval.calls.iter().map(|call| (call.id.as_str(), call.tool.as_str(), &call.arguments)).collect();
    assert_eq!(approved_calls, [("call_0.activity", "x:send@1.0.0", &json!({"to": "ada", "times": 1}))]);
    let misfit = checked(&plan(json!({"_tool": "schema__post"})), &Policy::of(Profile::Trusted));
    let errors: Vec<_> = misfit.errors.iter().map(|issue| (&*issue.path, issue.kind.as_str())).collect();
    assert_eq!(errors, [("/0", "schema")]);
    assert!(misfit.errors[0].message.starts_with("x__send runs it: "), "{:?}", misfit.errors);
    let rule = serde_json::from_value(json!({"effect": "deny", "tool": "x:send"})).expect("a rule");
    let denied = checked(&post, &Policy { rules: vec![rule], ..Policy::of(Profile::Trusted) });
    let errors: Vec<_> = denied.errors.iter().map(|issue| (&*issue.path, issue.kind.as_str())).collect();
    assert_eq!(errors, [("/0/_tool", "policy")]);
}
