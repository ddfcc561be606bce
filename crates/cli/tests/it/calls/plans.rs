//! `plan`: the contract of its output, and plans that are kept, approved and repeated.

use serde_json::{Value, json};
use toolwright::core::store::RunStore as _;
use toolwright::runtime::SqliteStore;

use crate::agents::agent::start;
use crate::command_line::cli::{json_of, ok, run, stderr};
use crate::support::{Fixture, until};

/// A project with two files, and a plan that finds one by the pattern in the other.
pub(crate) fn project() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "*.rs\n");
    fixture.write("project/b.rs", "// TODO one\n");
    let plan = json!([
        {"_tool": "fs__grep", "_outputPath": "found", "pattern": "TODO"},
        {"_tool": "shell__bash", "_outputPath": "said", "command": "†input.command"},
        {"_tool": "shell__bash", "command": "†state.said.stdout || \"echo fell back\""},
    ]);
    fixture.write("project/plan.json", &plan.to_string());
    fixture
}

#[test]
fn plan_check_has_its_contract() {
    let fixture = project();
    let good = json!([
        {"_tool": "fs__glob", "_outputPath": "found", "pattern": "*.txt"},
        {"_tool": "fs__read", "path": "†state.found"},
        {"_tool": "fs__glob", "pattern": "*"},
    ]);
    fixture.write("project/good.json", &good.to_string());
    let checked = json_of(&run(&fixture, &["plan", "check", "good.json", "--json"]));
    assert_eq!(checked, json!({"valid": true, "calls": 3, "edges": [[0, 1]], "errors": []}));
    let bad = json!([
        {"_tool": "fs__glub", "pattern": "*"},
        {"_tool": "fs__read", "path": "†state.nothing"},
        {"_tool": "fs__read"},
    ]);
    fixture.write("project/bad.json", &bad.to_string());
    let output = run(&fixture, &["plan", "check", "bad.json", "--json"]);
    let checked = json_of(&output);
    assert_eq!((output.status.code(), &checked["valid"], &checked["calls"]), (Some(1), &json!(false), &json!(3)));
    let errors: Vec<_> = checked["errors"].as_array().expect("errors").iter().collect();
    let kinds: Vec<_> = errors.iter().map(|error| (&error["path"], &error["kind"])).collect();
    assert_eq!(
        kinds,
        [
            (&json!("/0/_tool"), &json!("unknown_tool")),
            (&json!("/1/path"), &json!("reference")),
            (&json!("/2"), &json!("schema")),
        ]
    );
    assert!(errors.iter().all(|error| error["message"].as_str().is_some_and(|message| !message.is_empty())));
    fixture.write("project/none.json", "{}");
    let output = run(&fixture, &["plan", "check", "none.json", "--json"]);
    assert_eq!((output.status.code(), &json_of(&output)["errors"][0]["kind"]), (Some(1), &json!("parse")));
}

#[test]
fn plan_run_has_its_contract() {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "one\n");
    let plan = json!([
        {"_tool": "fs__glob", "_outputPath": "found.first", "pattern": "†input.pattern"},
        {"_tool": "fs__glob", "pattern": "†state.found.first"},
        {"_tool": "fs__read", "_outputPath": "lost", "path": "missing.txt"},
        {"_tool": "fs__glob", "pattern": "†state.lost"},
        {"_tool": "fs__glob", "pattern": "*", "path": "†state.lost && \".\""},
    ]);
    fixture.write("project/plan.json", &plan.to_string());
    let input = ["plan", "run", "plan.json", "--json", "--input", r#"{"pattern": "*.txt"}"#];
    let output = run(&fixture, &input);
    let ran = json_of(&output);
    assert_eq!((output.status.code(), &ran["status"]), (Some(1), &json!("partial")), "{}", stderr(&output));
    let calls = ran["calls"].as_array().expect("calls");
    let seen: Vec<_> = calls.iter().map(|call| (&call["index"], &call["tool"], &call["ok"])).collect();
    let (yes, no) = (json!(true), json!(false));
    let (glob, read) = (json!("fs__glob"), json!("fs__read"));
    assert_eq!(
        seen,
        [
            (&json!(0), &glob, &yes),
            (&json!(1), &glob, &yes),
            (&json!(2), &read, &no),
            (&json!(3), &glob, &no),
            (&json!(4), &glob, &no)
        ]
    );
    assert_eq!(calls[0]["arguments"]["pattern"], "*.txt");
    assert_eq!(calls[1]["arguments"]["pattern"], ran["state"]["found"]["first"], "{ran}");
    assert_eq!(calls[0]["output"], ran["state"]["found"]["first"]);
    for blocked in &calls[3..] {
        assert!(blocked["error"]["message"].as_str().is_some_and(|why| why.contains("call_2")), "{ran}");
    }
    let at = |index: usize, when: &str| calls[index][when].as_i64().expect("a time");
    assert_eq!(at(0, "started_ms").min(at(2, "started_ms")), 0, "{ran}");
    assert!(at(0, "ended_ms") <= at(1, "started_ms") + 1, "{ran}");
}

#[test]
fn a_killed_call_shows_its_real_arguments() {
    let fixture = Fixture::new();
    fixture.write("project/plan.json", r#"[{"_tool": "shell__bash", "command": "†input.command"}]"#);
    let input = json!({"command": "echo once >> count; sleep 60"});
    let saved = ok(&fixture, &["plan", "save", "plan.json", "--approve", "--input", &input.to_string()]);
    let resume = ["plan", "run", saved.trim(), "--json"];
    let mut child = start(&fixture, &[], &resume);
    until("the command runs", || fixture.path("project/count").exists());
    child.kill().expect("killed");
    child.wait().expect("ends");
    let ran = json_of(&run(&fixture, &resume));
    let call = &ran["calls"][0];
    assert_eq!((&call["ok"], &call["arguments"]["command"]), (&json!(false), &input["command"]), "{ran}");
    assert_eq!(fixture.read("project/count"), "once\n");
}

#[test]
fn a_stored_plan_is_approved_and_run_later() {
    let fixture = project();
    let saved =
        ok(&fixture, &["plan", "save", "plan.json", "--approve", "--input", r#"{"command": "echo once >> count"}"#]);
    let id = saved.trim();
    assert!(!fixture.path("project/count").exists());
    let shown = ok(&fixture, &["plan", "show", id]);
    assert!(shown.contains("fs__grep") && shown.contains("†input.command"), "{shown}");
    std::fs::remove_file(fixture.path("project/plan.json")).expect("removed");
    // Nobody is there to be asked, and the policy asks about commands: the approval answers.
    let output = run(&fixture, &["plan", "run", id, "--policy", "ask", "--json"]);
    assert!(output.status.success(), "{} {}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert_eq!(fixture.read("project/count"), "once\n");
    // It has ended: it says again what it came to.
    let again = json_of(&run(&fixture, &["plan", "run", id, "--json"]));
    assert_eq!((&again["status"], fixture.read("project/count").as_str()), (&json!("success"), "once\n"));
    let output = run(&fixture, &["plan", "run", "plan-0"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn a_plan_is_shown_as_a_mermaid_flowchart() {
    let fixture = project();
    let shown = ok(&fixture, &["plan", "show", "plan.json", "--mermaid", "--input", r#"{"command": "date"}"#]);
    let expect = "flowchart TD\n  c0[\"0: fs__grep\"]\n  c1[\"1: shell__bash\"]\n  c2[\"2: shell__bash\"]\n  \
                  c1 -->|\"said\"| c2\n";
    assert_eq!(shown, expect);
}

#[test]
fn each_input_of_a_plan_has_its_state() {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "one\n");
    fixture.write("project/b.rs", "two\n");
    let of =
        |name: &str| json!({"_tool": "fs__glob", "_instance": name, "_outputPath": "found", "pattern": "†input.p"});
    let reads = json!({"_tool": "fs__glob", "_instance": "②", "_outputPath": "again", "pattern": "†state.found"});
    fixture.write("project/plan.json", &json!([of("①"), of("②"), reads]).to_string());
    let input = r#"[{"p": "*.txt"}, {"p": "*.rs"}]"#;
    let checked = json_of(&run(&fixture, &["plan", "check", "plan.json", "--json", "--input", input]));
    assert_eq!(checked["edges"], json!([[1, 2]]), "{checked}");
    let ran = json_of(&run(&fixture, &["plan", "run", "plan.json", "--json", "--input", input]));
    assert_eq!((&ran["status"], &ran["state"]), (&json!("success"), &json!({})), "{ran}");
    assert_eq!(ran["instances"]["①"], json!({"found": ran["calls"][0]["output"]}), "{ran}");
    assert_eq!(ran["instances"]["②"]["again"], ran["calls"][2]["output"], "{ran}");
    let id = ran["plan"].as_str().expect("a name");
    let output = run(&fixture, &["plan", "run", id, "--input", input]);
    assert!(output.status.code() == Some(2) && stderr(&output).contains("has its input"), "{}", stderr(&output));
}

#[test]
fn a_plan_is_repeated_for_each_input() {
    let fixture = Fixture::new();
    let plan = json!([
        {"_tool": "fs__write", "_outputPath": "wrote", "path": "†input.p", "content": "x"},
        {"_tool": "fs__glob", "_outputPath": "found", "pattern": "†state.wrote && †input.p"},
    ]);
    fixture.write("project/plan.json", &plan.to_string());
    let inputs: Vec<Value> = (0..103).map(|n| json!({"p": format!("{n}.txt")})).collect();
    let mut faulty = inputs.clone();
    (faulty[1], faulty[101]) = (json!({"q": 1}), json!({"p": [7, 8]}));
    fixture.write("project/inputs.json", &json!(inputs).to_string());
    fixture.write("project/faulty.json", &json!(faulty).to_string());
    let checked = json_of(&run(&fixture, &["plan", "check", "plan.json", "--json", "--input", "inputs.json"]));
    let expect = json!({"valid": true, "calls": 2, "edges": [[0, 1]], "errors": [], "inputs": 103});
    assert_eq!(checked, expect);
    // Nothing runs, whatever input it is.
    let output = run(&fixture, &["plan", "run", "plan.json", "--json", "--input", "faulty.json"]);
    let refused = json_of(&output);
    let found: Vec<_> = refused["errors"].as_array().expect("errors").iter().collect();
    let at: Vec<_> = found.iter().map(|issue| (&issue["path"], &issue["item"], &issue["kind"])).collect();
    let (path, reference, schema) = (json!("/0/path"), json!("reference"), json!("schema"));
    assert_eq!(
        (output.status.code(), at),
        (Some(1), vec![(&path, &json!("/1"), &reference), (&path, &json!("/101"), &schema)]),
        "{refused}"
    );
    assert!(!fixture.path("project/0.txt").exists());
    let ran = json_of(&run(&fixture, &["plan", "run", "plan.json", "--json", "--input", "inputs.json"]));
    let calls = ran["calls"].as_array().expect("calls");
    assert_eq!((&ran["status"], calls.len(), &ran["state"]), (&json!("success"), 206, &json!({})), "{ran}");
    let last = (&calls[204]["index"], &calls[204]["instance"], &calls[204]["arguments"]["path"]);
    assert_eq!(last, (&json!(204), &json!("103"), &json!("102.txt")));
    assert_eq!(ran["instances"].as_object().map(serde_json::Map::len), Some(103));
    assert_eq!(ran["instances"]["②"]["found"], calls[3]["output"]);
    assert!(calls[3]["output"].to_string().contains("1.txt"), "{}", calls[3]);
    let id = ran["plan"].as_str().expect("a name");
    let shown = ok(&fixture, &["plan", "show", id]);
    assert!(shown.starts_with("for each of 103 inputs\nstep 1\n  0 fs__write -> wrote (asks)\n"), "{shown}");
    let again = json_of(&run(&fixture, &["plan", "run", id, "--json"]));
    assert_eq!((&again["status"], again["calls"].as_array().map(Vec::len)), (&json!("success"), Some(206)));
}

#[test]
fn unapproved_plans_are_judged_call_by_call() {
    let fixture = project();
    let saved = ok(&fixture, &["plan", "save", "plan.json", "--input", r#"{"command": "echo once >> count"}"#]);
    let output = run(&fixture, &["plan", "run", saved.trim(), "--policy", "ask", "--json"]);
    let ran = json_of(&output);
    assert_eq!((&ran["status"], &ran["calls"][0]["ok"]), (&json!("partial"), &json!(true)), "{ran}");
    assert_eq!(ran["calls"][1]["error"]["kind"], "denied", "{ran}");
    assert!(!fixture.path("project/count").exists());
}

#[test]
fn calls_of_activities_are_shown_and_approved() {
    let tool = |parameter: &str| {
        format!("{{type: object, properties: {{{parameter}: {{type: string}}, _activity: {{const: \"shell:bash\"}}}}}}")
    };
    let (fits, misfits) = (tool("command"), tool("cmd"));
    let fixture =
        Fixture::with(&format!("policy: {{profile: ask}}\nschemaTools:\n  fits: {fits}\n  misfits: {misfits}\n"));
    let command = format!("echo once >> count # {} end", "x".repeat(300));
    fixture.write("project/plan.json", &json!([{"_tool": "schema__fits", "command": command}]).to_string());
    fixture.write("project/misfit.json", &json!([{"_tool": "schema__misfits", "cmd": "date"}]).to_string());

    let listed = json_of(&run(&fixture, &["tools", "show", "schema__fits", "--json"]));
    assert_eq!(listed["effects"]["read_only"], false, "{listed}");
    for arguments in [r#"{"command": "date"}"#, "{}"] {
        let tested = json_of(&run(&fixture, &["policy", "test", "schema__fits", arguments]));
        assert_eq!(tested["effect"], "ask", "{tested}");
    }
    let shown = ok(&fixture, &["plan", "show", "plan.json"]);
    assert!(shown.contains("0 schema__fits by shell__bash (asks)") && shown.contains("x end\""), "{shown}");
    let checked = json_of(&run(&fixture, &["plan", "check", "misfit.json", "--json"]));
    assert_eq!((&checked["valid"], &checked["errors"][0]["kind"]), (&json!(false), &json!("schema")), "{checked}");

    let asked = json_of(&run(&fixture, &["plan", "run", "plan.json", "--policy", "ask", "--json"]));
    assert_eq!(asked["calls"][0]["error"]["kind"], "denied", "{asked}");
    let ran = json_of(&run(&fixture, &["plan", "run", "plan.json", "--json"]));
    assert_eq!((&ran["status"], fixture.read("project/count").as_str()), (&json!("success"), "once\n"), "{ran}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_argument_changed_after_approval_asks_again() {
    let altered = |value: &Value| -> Value {
        serde_json::from_str(&value.to_string().replace("echo once", "echo twice")).expect("JSON")
    };
    // With the plan, what was shown of it changes too: the approval is bound to what it was.
    for (changes, ok) in [("nothing", true), ("the call", false), ("the plan and what was shown", false)] {
        let fixture = Fixture::new();
        let plan = json!([{"_tool": "shell__bash", "command": "echo once >> count"}]);
        fixture.write("project/plan.json", &plan.to_string());
        let saved = self::ok(&fixture, &["plan", "save", "plan.json", "--approve"]);
        let id = saved.trim();
        let store = SqliteStore::open(&fixture.state_dir()).expect("the store");
        let state = store.run(id).await.expect("read").expect("a run").state;
        let mut changed = if changes == "nothing" { state.clone() } else { altered(&state) };
        if changes == "the call" {
            changed["plan"] = state["plan"].clone();
        }
        assert_eq!(changed == state, ok, "{changes}");
        store.save_run(id, &changed).await.expect("saved");
        let ran = json_of(&run(&fixture, &["plan", "run", id, "--policy", "ask", "--json"]));
        let call = &ran["calls"][0];
        assert_eq!((&call["ok"], call["error"]["kind"] == "denied"), (&json!(ok), !ok), "{changes}: {ran}");
        assert_eq!(fixture.path("project/count").exists(), ok, "{changes}");
    }
}

#[test]
fn an_approved_plan_returns_values() {
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let fixture = Fixture::with(&format!("mcpServers: {{odd: {{command: {}}}}}\n", json!(server)));
    let plan = json!([
        {"_tool": "odd__echo", "_outputPath": "said", "text": "echo hi >> count"},
        {"_tool": "odd__echo", "text": "†state.said"},
        {"_tool": "shell__bash", "command": "†state.said"},
    ]);
    fixture.write("project/plan.json", &plan.to_string());
    let output = run(&fixture, &["plan", "run", "plan.json", "--json"]);
    let ran = json_of(&output);
    let seen: Vec<_> = ran["calls"].as_array().expect("calls").iter().map(|call| &call["ok"]).collect();
    assert_eq!(seen, [&json!(true), &json!(true), &json!(false)], "{ran}");
    assert_eq!(ran["calls"][1]["output"], ran["calls"][0]["output"]);
    // A person has to see what another tool makes of it.
    assert_eq!(ran["calls"][2]["error"]["kind"], "denied", "{ran}");
    assert!(!fixture.path("project/count").exists());
}

/// A server's text that a plan writes to a file is no value of the plan's own when it is read again, in whichever run.
#[test]
fn a_rule_sees_values_through_a_file() {
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let rule = "{effect: deny, tool: \"fs:glob\", when: \"args.pattern.tainted\"}";
    let policy = format!("policy: {{profile: trusted, rules: [{rule}]}}\n");
    let fixture = Fixture::with(&format!("mcpServers: {{odd: {{command: {}}}}}\n{policy}", json!(server)));
    fixture.write("project/mine.txt", "*.md\n");
    let saves = [
        json!({"_tool": "odd__echo", "_outputPath": "page", "text": "*.txt"}),
        json!({"_tool": "fs__write", "_outputPath": "saved", "path": "page.txt", "content": "†state.page"}),
    ];
    let reads = |path: &str| {
        [
            json!({"_tool": "fs__read", "_outputPath": "text", "path": path}),
            json!({"_tool": "fs__glob", "pattern": "†state.text"}),
        ]
    };
    let first = [&saves[..], &reads("†state.saved && \"page.txt\"")[..]].concat();
    for (plan, denied) in [(first, true), (reads("page.txt").to_vec(), true), (reads("mine.txt").to_vec(), false)] {
        fixture.write("project/plan.json", &json!(plan).to_string());
        let ran = json_of(&run(&fixture, &["plan", "run", "plan.json", "--json"]));
        let calls = ran["calls"].as_array().expect("calls");
        let (last, before) = calls.split_last().expect("a call");
        assert!(before.iter().all(|call| call["ok"] == true), "{ran}");
        assert_eq!((&last["ok"], last["error"]["kind"] == "denied"), (&json!(!denied), denied), "{ran}");
    }
}
