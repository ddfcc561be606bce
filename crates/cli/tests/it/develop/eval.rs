//! `eval` as programs use it: JSON on standard output, and no configuration.

use serde_json::{Value, json};

use crate::calls::arguments::answers;
use crate::support::Fixture;

/// A project whose configuration cannot be read, with a catalogue and cases.
fn fixture(tools: &str, cases: &str) -> Fixture {
    let fixture = Fixture::with("version: [not a configuration\n");
    fixture.write("project/tools.jsonl", tools);
    fixture.write("project/cases.jsonl", cases);
    fixture
}

fn select(fixture: &Fixture, catalogue: &str, cases: &str, scorer: &str) -> (Value, i32) {
    let arguments = ["eval", "select", "--catalogue", catalogue, "--cases", cases, "--scorer", scorer, "--json"];
    let (mut lines, code) = answers(fixture, &arguments, "");
    assert_eq!(lines.len(), 1, "{lines:?}");
    (lines.remove(0), code)
}

const TOOLS: &str = r#"{"id": "g.1", "name": "openGate", "description": "Opens the gate.", "parameters": {"type": "dict"}}
{"id": "é", "name": "close_window", "inputSchema": {"type": "object", "properties": {"floor": {"type": "tuple"}}}}
{"id": "3", "name": "weigh", "description": "Weighs a parcel.", "server": "post", "server_description": "The post office."}
"#;

#[test]
fn select_gives_the_figures_of_its_contract() {
    let cases = r#"{"id": "a", "query": "open the gate, please", "relevant": ["g.1"]}
{"id": "b", "query": "close the window", "relevant": ["é", "3"]}
{"id": "c", "query": "zzz", "relevant": ["3"]}
"#;
    let fixture = fixture(TOOLS, cases);
    for scorer in ["bm25", "auto"] {
        let (figures, code) = select(&fixture, "tools.jsonl", "cases.jsonl", scorer);
        assert_eq!(code, 0, "{figures}");
        let number = |key: &str| figures[key].as_f64().unwrap_or_else(|| panic!("no {key} in {figures}"));
        // One is first, two are first and third, and one that nothing speaks for is third.
        let pair = 1.5 / (1.0 + 3_f64.log2().recip());
        for (key, expect) in [
            ("n", 3.0),
            ("tools", 3.0),
            ("recall@1", 0.5),
            ("recall@3", 1.0),
            ("recall@5", 1.0),
            ("recall@10", 1.0),
            ("ndcg@10", (1.0 + pair + 0.5) / 3.0),
            ("complete@5", 1.0),
        ] {
            assert!((number(key) - expect).abs() < 1e-9, "{key} in {figures}");
        }
        assert!(number("p50_us") <= number("p99_us") && number("index_ms") >= 0.0 && number("index_bytes") > 0.0);
        assert_eq!(figures.as_object().map(serde_json::Map::len), Some(12), "{figures}");
    }
}

#[test]
fn select_reports_halves_where_they_are_asked_for() {
    // By the SHA-256 of their ids the first two are in the first half and the third is in the second.
    let cases = r#"{"id": "a", "query": "open the gate, please", "relevant": ["g.1"]}
{"id": "b", "query": "zzz", "relevant": ["3"]}
{"id": "1", "query": "close the window", "relevant": ["é"]}
"#;
    let arguments = ["eval", "select", "--catalogue", "tools.jsonl", "--cases", "cases.jsonl", "--halves", "--json"];
    let (lines, code) = answers(&fixture(TOOLS, cases), &arguments, "");
    // What nothing speaks for is third of the three tools.
    let half = |n: usize, first: f64, ndcg: f64| {
        json!({"n": n, "recall@1": first, "recall@3": 1.0, "recall@5": 1.0, "recall@10": 1.0, "ndcg@10": ndcg,
            "complete@5": 1.0})
    };
    assert_eq!((code, &lines[0]["halves"]), (0, &json!([half(2, 0.5, 0.75), half(1, 1.0, 1.0)])), "{}", lines[0]);
    assert_eq!(lines[0]["n"], json!(3));
}

#[test]
fn unmatched_tools_are_ranked_last() {
    let tools = [("alpha", "Adds."), ("beta", "Subtracts."), ("gamma", "Divides.")];
    let tools = tools.map(|(name, about)| json!({"name": name, "description": about}).to_string()).join("\n");
    let fixture = fixture(&tools, r#"{"query": "nothing of the kind", "relevant": ["beta"]}"#);
    for scorer in ["keyword", "bm25", "auto"] {
        let (figures, _) = select(&fixture, "tools.jsonl", "cases.jsonl", scorer);
        assert_eq!((&figures["recall@1"], &figures["recall@3"]), (&json!(0.0), &json!(1.0)), "{scorer}");
    }
}

#[test]
fn select_reports_faulty_files() {
    for (tools, cases, complaint) in [
        (TOOLS, "", "cases.jsonl: it has no cases"),
        (TOOLS, "{\"query\": \"x\", \"relevant\": []}", "cases.jsonl: it has no cases"),
        ("{\"description\": \"a\"}", "", "tools.jsonl: tool 1: it has no `name`"),
    ] {
        let (answer, code) = select(&fixture(tools, cases), "tools.jsonl", "cases.jsonl", "auto");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(code == 2 && message.contains(complaint), "{message}");
    }
}

#[test]
fn invalid_records_do_not_end_the_measurement() {
    let tools = format!("{TOOLS}{}\n", r#"{"id": 3, "name": "again"}"#);
    let cases = r#"{"query": "open the gate", "relevant": ["g.1", "gone"]}
{"query": "nothing", "relevant": []}
{"query": "weigh a parcel", "relevant": 3}
"#;
    let (figures, code) = select(&fixture(&tools, cases), "tools.jsonl", "cases.jsonl", "auto");
    let figure = |key: &str| figures[key].as_f64().expect("a figure");
    assert_eq!((code, figure("n"), figure("tools"), figure("recall@5")), (0, 2.0, 3.0, 0.75), "{figures}");
}

#[test]
fn tokens_are_counted_over_a_whole_task() {
    let tools: String = (0..120)
        .map(|number| {
            let schema = json!({"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]});
            let description = format!("Sets the valve of boiler {number}. {}", "It can be set again at any time. ".repeat(8));
            let tool = json!({"id": number.to_string(), "name": format!("set_valve_{number}"), "description": description, "parameters": schema});
            format!("{tool}\n")
        })
        .collect();
    let fixture = fixture(&tools, "");
    let step = |number: u32| json!({"query": format!("valve of boiler {number}"), "tool": format!("set_valve_{number}"), "result": "It is set."});
    fixture.write("project/task.json", &json!({"steps": [step(7), step(77), step(101)]}).to_string());
    let arguments = ["eval", "tokens", "--catalogue", "tools.jsonl", "--task", "task.json", "--json"];
    let (lines, code) = answers(&fixture, &arguments, "");
    let answer = &lines[0];
    assert_eq!((code, &answer["tools"], &answer["steps"]), (0, &json!(120), &json!(3)), "{answer}");
    let spent = |exposure: &str, what: &str| answer["exposures"][exposure][what].as_u64().expect("tokens");
    for exposure in ["direct", "pick", "deferred", "search"] {
        let (definitions, results) = (spent(exposure, "definition_tokens"), spent(exposure, "result_tokens"));
        assert!(definitions > 0 && results > 0 && spent(exposure, "total") == definitions + results, "{answer}");
    }
    // Four requests carry every definition, and the three results stand in three, two and one of them.
    assert_eq!(spent("direct", "definition_tokens") % 4, 0);
    assert_eq!(spent("direct", "result_tokens"), 6 * "It is set.".len().div_ceil(4) as u64);
    assert!(10 * spent("search", "total") < spent("direct", "total"), "{answer}");

    let play = |task: Value| {
        fixture.write("project/task.json", &task.to_string());
        let (mut lines, code) = answers(&fixture, &arguments, "");
        (lines.remove(0), code)
    };
    let (answer, code) = play(json!([{"query": "x", "tool": "none"}]));
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(code == 2 && message.contains("step 1: the catalogue has no tool with the id `none`"), "{message}");

    // An exposure that does not finish stands beside the others, with the reason.
    let (answer, code) = play(json!([{"query": "x", "tool": "7", "arguments": {"amount": "much"}}]));
    let why = answer["exposures"]["direct"]["error"].as_str().expect("a reason");
    assert!(code == 1 && why.contains("in step 1, for `7` (x), the call of"), "{answer}");
}

#[test]
fn a_tool_among_equal_names_is_found() {
    let tool =
        |n: usize| json!({"name": "run", "server": format!("s{n}"), "id": n.to_string(), "description": "Runs it."});
    let tools: Vec<String> = (0..60).map(|n| tool(n).to_string()).collect();
    let fixture = fixture(&tools.join("\n"), r#"{"query": "zzz", "tool": "41"}"#);
    let arguments = ["eval", "tokens", "--catalogue", "tools.jsonl", "--task", "cases.jsonl", "--json"];
    let (lines, code) = answers(&fixture, &arguments, "");
    assert_eq!(code, 0, "{}", lines[0]);
}

#[test]
fn search_and_pick_cost_a_tenth() {
    let Some(tools) = toolwright_testkit::test_data("retrieval/bfcl/tools.jsonl") else { return };
    let queries = std::fs::read_to_string(tools.with_file_name("queries.jsonl")).expect("queries");
    let tools = std::fs::read_to_string(tools).expect("tools");
    let tools: Vec<&str> = tools.lines().take(500).collect();
    let ids: Vec<String> =
        tools.iter().map(|tool| serde_json::from_str::<Value>(tool).expect("a tool")["id"].to_string()).collect();
    let is_there = |query: &&str| ids.iter().any(|id| query.contains(&format!("\"relevant\": [{id}]")));
    let task: Vec<&str> = queries.lines().filter(is_there).take(10).collect();
    assert_eq!(task.len(), 10);
    let fixture = fixture(&tools.join("\n"), &task.join("\n"));
    let (lines, code) =
        answers(&fixture, &["eval", "tokens", "--catalogue", "tools.jsonl", "--task", "cases.jsonl", "--json"], "");
    assert_eq!(code, 0, "{lines:?}");
    let total = |exposure: &str| lines[0]["exposures"][exposure]["total"].as_u64().expect("tokens");
    for exposure in ["search", "pick"] {
        assert!(10 * total(exposure) <= total("direct"), "{exposure}: {}", lines[0]);
    }
}

/// The floors are what BM25 over stemmed fields reaches.
#[test]
fn the_right_tools_are_found_without_a_model() {
    for (set, recall, ndcg) in [("bfcl", 0.826, 0.748), ("sealtools", 0.888, 0.916), ("metatool", 0.647, 0.571)] {
        let Some(folder) = toolwright_testkit::test_data("retrieval").map(|folder| folder.join(set)) else { return };
        let file = |name: &str| folder.join(name).to_str().expect("a path").to_owned();
        let fixture = fixture("", "");
        let (figures, code) = select(&fixture, &file("tools.jsonl"), &file("queries.jsonl"), "bm25");
        assert_eq!(code, 0, "{figures}");
        let at_least = |key: &str, floor: f64| figures[key].as_f64().is_some_and(|figure| figure >= floor);
        assert!(at_least("recall@5", recall) && at_least("ndcg@10", ndcg), "{set}: {figures}");
    }
}

#[test]
fn tools_are_listed_with_token_costs() {
    let fixture = Fixture::new();
    let (lines, code) = answers(&fixture, &["tools", "ls", "--tokens", "--json"], "");
    assert_eq!(code, 0, "{lines:?}");
    let listed = &lines[0];
    let tokens = |value: &Value| value["tokens"].as_u64().expect("tokens");
    let sum = |list: &Value| list.as_array().expect("a list").iter().map(tokens).sum::<u64>();
    let total = listed["total"].as_u64().expect("a total");
    assert!(total > 0);
    assert_eq!((sum(&listed["tools"]), sum(&listed["providers"])), (total, total));
    assert_eq!(listed["estimated"], json!(true));
    let exposures = &listed["exposures"];
    assert_eq!(exposures["direct"].as_u64(), Some(total));
    for exposure in ["search", "deferred", "pick"] {
        assert!(exposures[exposure].as_u64().is_some_and(|tokens| tokens > 0), "{exposures}");
    }
    assert_eq!(listed["auto"]["exposure"], json!("direct"), "{listed}");
    let (lines, _) = answers(&fixture, &["tools", "ls", "--tokens", "--window", "2000", "--json"], "");
    assert_eq!(lines[0]["auto"]["exposure"], json!("search"), "{}", lines[0]["auto"]);
}
