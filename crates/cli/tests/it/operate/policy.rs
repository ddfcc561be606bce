//! `policy test`, and the shipped example policy against the calls of AgentDojo.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use toolwright::config::policy_file;
use toolwright::core::policy::{Decision, Effect, HintTrust, PolicyQuery, UserRequest};
use toolwright::core::{Effects, Policy, Principal, Profile, ToolDefinition, ToolId};

use crate::calls::arguments::answers;
use crate::support::Fixture;

#[derive(Deserialize)]
struct Suite {
    tools: Vec<SuiteTool>,
    user_tasks: Vec<UserTask>,
    injection_tasks: Vec<InjectionTask>,
}

#[derive(Deserialize)]
struct SuiteTool {
    name: String,
    read_only: bool,
    open_world_read: bool,
}

#[derive(Deserialize)]
struct UserTask {
    id: String,
    prompt: String,
    calls: Vec<SuiteCall>,
}

#[derive(Deserialize)]
struct InjectionTask {
    id: String,
    calls: Vec<SuiteCall>,
}

#[derive(Deserialize)]
pub(crate) struct SuiteCall {
    pub(crate) tool: String,
    pub(crate) arguments: Value,
}

impl Suite {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/agentdojo/{name}.json"));
        serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture")).expect("JSON")
    }

    /// A read of the user's own data: what it returns may be anything, but the read itself harms nobody.
    fn is_closed_read(&self, call: &SuiteCall) -> bool {
        let tool = self.tools.iter().find(|tool| tool.name == call.tool).expect("a tool of the suite");
        tool.read_only && !tool.open_world_read
    }
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policy/untrusted-content.yaml")
}

pub(crate) fn example_policy() -> Policy {
    let file = example();
    let section = policy_file(&std::fs::read_to_string(&file).expect("the policy"), &file).expect("a policy");
    section.policy_for(Profile::Ask)
}

/// As the executor asks about a call of a foreign server that says nothing about its tools.
pub(crate) fn decide(policy: &Policy, call: &SuiteCall, request: Option<&Arc<UserRequest>>) -> Decision {
    let id = ToolId::foreign("suite", &call.tool).expect("an id");
    let definition = ToolDefinition { effects: Effects::UNKNOWN, ..ToolDefinition::new(id, "", None) };
    policy.decide(&PolicyQuery {
        definition: &definition,
        trust: HintTrust::Foreign,
        principal: &Principal::owner(),
        root: Path::new("/work"),
        scope: toolwright::core::catalogue::CallScope::Anywhere,
        unvalidated: None,
        arguments: &call.arguments,
        request,
        tainted: &[],
    })
}

/// What a policy gets wrong on a suite: every harm that it lets through, every read of the user's own data that it
/// holds up, and too many questions about what the user wants.
fn wrong(policy: &Policy, suite: &Suite, requests: &[Option<Arc<UserRequest>>]) -> Vec<String> {
    let mut wrong = Vec::new();
    for task in &suite.injection_tasks {
        // The attack runs under whatever the user had asked for, never under its own words.
        for request in requests {
            for call in task.calls.iter().filter(|call| !suite.is_closed_read(call)) {
                let decision = decide(policy, call, request.as_ref());
                if decision.effect == Effect::Allow {
                    wrong.push(format!("{}: {} runs by {}: {request:?}", task.id, call.tool, decision.rule));
                }
            }
        }
    }
    let (mut asked, mut calls) = (0, 0);
    for (task, request) in suite.user_tasks.iter().zip(requests) {
        for call in &task.calls {
            let decision = decide(policy, call, request.as_ref());
            calls += 1;
            asked += usize::from(decision.effect == Effect::Ask);
            if decision.effect == Effect::Deny || (decision.effect == Effect::Ask && suite.is_closed_read(call)) {
                wrong.push(format!("{}: {} is held up: {decision:?}", task.id, call.tool));
            }
        }
    }
    if asked * 100 > calls * 40 {
        wrong.push(format!("{asked} of {calls} calls that the user wants are asked about"));
    }
    wrong
}

/// The words of each user task, or that they are not known.
fn requests(suite: &Suite) -> [Vec<Option<Arc<UserRequest>>>; 2] {
    let known = suite.user_tasks.iter().map(|task| Some(Arc::new(UserRequest::new([task.prompt.as_str()]))));
    [known.collect(), vec![None; suite.user_tasks.len()]]
}

const SUITES: [&str; 2] = ["banking", "slack"];

#[test]
fn the_example_policy_stops_attacks_asking_little() {
    let policy = example_policy();
    for name in SUITES {
        let suite = Suite::read(name);
        assert!(suite.user_tasks.len() >= 16 && suite.injection_tasks.len() >= 5, "{name} is whole");
        for requests in requests(&suite) {
            let wrong = wrong(&policy, &suite, &requests);
            assert!(wrong.is_empty(), "{name}, known: {}:\n{}", requests[0].is_some(), wrong.join("\n"));
        }
    }
}

#[test]
fn useless_policies_fail_the_cases() {
    for (rules, expect) in [
        (json!([{"effect": "allow"}]), "runs by rule 1"),
        (json!([{"effect": "ask"}]), "are asked about"),
        (json!([{"effect": "deny"}]), "is held up"),
    ] {
        let policy: Policy = serde_json::from_value(json!({"rules": rules})).expect("a policy");
        for name in SUITES {
            let suite = Suite::read(name);
            for requests in requests(&suite) {
                let wrong = wrong(&policy, &suite, &requests);
                assert!(wrong.iter().any(|wrong| wrong.contains(expect)), "{name} {expect}: {wrong:?}");
            }
        }
    }
}

#[test]
fn the_example_policy_names_no_attack() {
    fn texts(value: &Value, found: &mut HashSet<String>) {
        match value {
            Value::String(text) => drop(found.insert(text.clone())),
            Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
            Value::Object(members) => members.values().for_each(|member| texts(member, found)),
            _ => {}
        }
    }
    // Whether a text holds a value as a whole is what a request is asked for too.
    let policy = UserRequest::new([std::fs::read_to_string(example()).expect("the policy").as_str()]);
    for name in SUITES {
        let suite = Suite::read(name);
        let mut literals = HashSet::new();
        let injected = suite.injection_tasks.iter().flat_map(|task| &task.calls);
        let wanted = suite.user_tasks.iter().flat_map(|task| &task.calls);
        injected.chain(wanted).for_each(|call| texts(&call.arguments, &mut literals));
        let held: Vec<_> = literals.iter().filter(|literal| policy.names_text(literal) == Some(true)).collect();
        assert!(held.is_empty(), "{name}: {held:?}");
    }
}

#[test]
fn policy_test_decides_like_the_executor() {
    let fixture = Fixture::new();
    let (policy, file) = (example_policy(), example());
    let file = file.to_str().expect("a path");
    for name in SUITES {
        let suite = Suite::read(name);
        let (mut input, mut expect) = (String::new(), Vec::new());
        let wanted = suite.user_tasks.iter().flat_map(|task| task.calls.iter().map(|call| (call, Some(&task.prompt))));
        let injected = suite.injection_tasks.iter().flat_map(|task| task.calls.iter().map(|call| (call, None)));
        for (call, request) in wanted.chain(injected) {
            let line = json!({"tool": call.tool, "arguments": call.arguments, "request": request});
            input.push_str(&format!("{line}\n"));
            let request = request.map(|text| Arc::new(UserRequest::new([text.as_str()])));
            expect.push(json!(decide(&policy, call, request.as_ref())));
        }
        let (lines, code) = answers(&fixture, &["policy", "test", "--jsonl", "--policy", file], &input);
        assert_eq!((lines, code), (expect, 0), "{name}");
    }
}

fn check(fixture: &Fixture, arguments: &[&str], input: &str, expect: &[Value], code: i32) {
    let (lines, exit) = answers(fixture, &[&["policy", "test"], arguments].concat(), input);
    assert_eq!(lines.len(), expect.len(), "{arguments:?}: {lines:?}");
    for (line, expect) in lines.iter().zip(expect) {
        for (key, value) in expect.as_object().expect("an object") {
            assert_eq!(&line[key], value, "{arguments:?}: {line}");
        }
    }
    assert_eq!(exit, code, "{arguments:?}: {lines:?}");
}

#[test]
fn policy_test_has_its_contract() {
    let fixture = Fixture::with(
        "policy:\n  rules:\n  - {effect: deny, tool: 'fs:write', when: 'args.path.endsWith(\".env\")', reason: secrets stay}\n",
    );
    fixture.write(
        "project/own.yaml",
        "profile: trusted\nrules:\n- {effect: ask, role: guest}\ntools:\n- {tool: 'mail:*'}\n",
    );
    let env = r#"{"path": "a/.env", "content": ""}"#;
    let denied = json!({"effect": "deny", "rule": "rule 1", "reason": "secrets stay"});
    check(&fixture, &["fs__write", env], "", std::slice::from_ref(&denied), 0);
    check(&fixture, &["fs__write", "-"], env, &[denied], 0);
    check(&fixture, &["fs__read"], "", &[json!({"effect": "allow", "rule": "profile ask"})], 0);
    fixture.write(
        "project/edits.yaml",
        "rules:\n- {effect: deny, tool: 'fs:edit', when: 'args.path.endsWith(\".env\")'}\n",
    );
    let edits = r#"{"edits": [{"path": "a", "old_string": "b", "new_string": "c"}, {"path": ".env", "old_string": "b", "new_string": "c"}]}"#;
    let denied = json!({"effect": "deny", "reason": "edits[1]: rule 1 says deny"});
    check(&fixture, &["--policy", "edits.yaml", "fs__multi_edit", edits], "", &[denied], 0);
    check(&fixture, &["fs__write", "{}"], "", &[json!({"effect": "deny", "rule": "rule 1"})], 0);
    let own = ["--policy", "own.yaml"];
    check(
        &fixture,
        &[&own[..], &["fs__write", env]].concat(),
        "",
        &[json!({"effect": "allow", "rule": "profile trusted"})],
        0,
    );
    check(&fixture, &[&own[..], &["fs__write", env, "--role", "guest"]].concat(), "", &[json!({"rule": "rule 1"})], 0);
    check(&fixture, &[&own[..], &["mail__send"]].concat(), "", &[json!({"effect": "allow"})], 0);
    let (lines, code) = answers(&fixture, &["policy", "test", "nope__such"], "");
    assert_eq!((&lines[0]["error"]["kind"], code), (&json!("unknown_tool"), 3), "{lines:?}");
    assert!(
        lines[0]["error"]["message"].as_str().is_some_and(|reported| reported.contains("under `tools` of the policy"))
    );
    let input = [
        json!({"tool": "x__look", "effects": {"read_only": true}}).to_string(),
        json!({"tool": "x__look", "annotations": {"readOnlyHint": false}, "arguments": {"a": 1}}).to_string(),
        "not JSON".to_owned(),
        json!({"tool": "fs__read", "arguments": {"path": "a"}, "roles": ["guest"]}).to_string(),
        json!({"arguments": {}}).to_string(),
    ];
    let expect = [
        json!({"effect": "allow", "rule": "profile ask"}),
        json!({"effect": "ask", "rule": "profile ask"}),
        json!({"error": {"kind": "failed", "message": "the line is not JSON: line 1, column 2: expected a value: `true`, `false`, `null`, a number, or a text in double quotes"}}),
        json!({"effect": "allow"}),
        json!({"error": {"kind": "failed", "message": "it has no `tool`"}}),
    ];
    check(&fixture, &["--jsonl"], &input.join("\n"), &expect, 1);
}

#[test]
fn a_bad_condition_is_located() {
    let fixture = Fixture::with("policy:\n  rules:\n  - effect: deny\n    when: args.amount >\n");
    let (lines, code) = answers(&fixture, &["policy", "test", "fs__read"], "");
    let reported = lines[0]["error"]["message"].as_str().expect("a message").to_owned();
    assert_eq!(code, 2, "{reported}");
    for part in ["toolwright.yaml:4: error: policy.rules.0.when: ", "the condition cannot be read: 1:14"] {
        assert!(reported.contains(part), "{reported}");
    }
}
