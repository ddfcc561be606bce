use super::*;
use serde_json::json;

fn first(text: &str, file: &str) -> Result<Vec<Suite>, String> {
    parse(text, file).map_err(|faults| faults[0].to_string())
}

#[test]
fn every_form_of_a_check_is_read() {
    let text = "\
tool: llm:classify
mode: strict
repeat: 3
cases:
  - id: refund
    input: {request: x, suggestions: [a, b]}
    weight: 2
    checks:
      - exact: {path: /selected_index, equals: 1}
      - {exact: {one_of: [a, null], order: any}, weight: 0.5}
      - numeric: {path: /confidence, min: 0.5}
      - numeric: {path: /n, equals: 200, relative: 0.1, tolerance: 5}
      - numeric: {path: /summary, of: words, max: 40}
      - contains: {path: /reasoning, all: [money], none: [sorry], case: exact}
      - schema: {type: object}
      - rubric: {task: t, criteria: [accuracy], min: 70}
  - input: {request: y, suggestions: [a]}
---
tool: llm:score
cases:
  - input: {task: t, answer: a}
";
    let suites = first(text, "c.yaml").expect("cases");
    assert_eq!(suites.iter().map(|suite| suite.tool.as_str()).collect::<Vec<_>>(), ["llm:classify", "llm:score"]);
    let suite = &suites[0];
    assert_eq!((suite.mode.as_deref(), suite.repeat, suite.cases.len()), (Some("strict"), Some(3), 2));
    let case = &suite.cases[0];
    assert_eq!((case.id.as_str(), case.weight, case.line, case.checks.len()), ("refund", 2.0, 5, 8));
    assert_eq!((case.key.as_str(), suite.cases[1].key.as_str()), ("cases[0]", "cases[1]"));
    assert!(case.is_judged() && !suite.cases[1].is_judged());
    let written = serde_json::to_value(&case.checks).expect("json");
    assert_eq!(written[1], json!({"weight": 0.5, "exact": {"path": "", "one_of": ["a", null], "order": "any"}}));
    assert_eq!(written[2]["numeric"]["max"], json!(f64::MAX));
    assert_eq!(written[3]["numeric"], json!({"path": "/n", "of": "value", "min": 175.0, "max": 225.0}));
    assert_eq!(written[5]["contains"]["ignore_case"], json!(false));
    let id = &suite.cases[1].id;
    assert!(id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
}

#[test]
fn lines_are_cases_of_their_tools() {
    let text = "{\"tool\": \"a:b\", \"id\": \"1\", \"input\": {}}\n\n{\"tool\": \"c:d\", \"input\": {\"x\": 1}}\n\
                {\"tool\": \"a:b\", \"id\": \"2\", \"input\": {}, \"checks\": [{\"contains\": {\"all\": [\"x\"]}}]}\n";
    let suites = first(text, "c.jsonl").expect("cases");
    let found: Vec<(&str, usize, u32)> =
        suites.iter().map(|suite| (suite.tool.as_str(), suite.cases.len(), suite.tool_at.line)).collect();
    assert_eq!(found, [("a:b", 2, 1), ("c:d", 1, 3)]);
    let error = first("{\"tool\": \"a:b\", \"input\": {}}\n{\"tool\": \"a:b\"}\n", "c.jsonl").expect_err("refused");
    assert!(error.starts_with("c.jsonl:2: ") && error.contains("input"), "{error}");
    let error = first("{\"input\": {}}\n", "c.jsonl").expect_err("refused");
    assert!(error.starts_with("c.jsonl:1: tool: it names no tool"), "{error}");
    let error = first("{\"tool\": \"a:b\", \"input\": 1}\n", "c.jsonl").expect_err("refused");
    assert_eq!(error, "c.jsonl:1: input: it is no mapping; write the arguments of the call by name");
}

#[test]
fn cases_may_name_their_tools_and_say_in_short_what_is_expected() {
    let text =
        "# cases\n---\n- tool: a:b\n  input: {}\n  expect: {x/y: 1, z: null}\n- {tool: c:d, input: {}, expect: yes}\n";
    let suites = first(text, "c.yaml").expect("cases");
    let checks = |suite: &Suite| serde_json::to_value(&suite.cases[0].checks).expect("json");
    let exact =
        |path: &str, value: Value| json!({"weight": 1.0, "exact": {"path": path, "one_of": [value], "order": "given"}});
    assert_eq!(checks(&suites[0]), json!([exact("/x~1y", json!(1)), exact("/z", Value::Null)]));
    assert_eq!((suites[1].tool.as_str(), checks(&suites[1])), ("c:d", json!([exact("", json!("yes"))])));
    let text = "tool: a:b\ncases:\n  - {input: {}}\n  - {tool: c:d, input: {}}\n  - {input: {x: 1}, repeat: 2}\n";
    let suites = first(text, "c.yaml").expect("cases");
    let found: Vec<(&str, Option<u32>)> = suites.iter().map(|suite| (suite.tool.as_str(), suite.repeat)).collect();
    assert_eq!(found, [("a:b", None), ("c:d", None), ("a:b", Some(2))]);
    let error = first("- {input: {}}\n", "c.yaml").expect_err("refused");
    assert!(error.starts_with("c.yaml:1: [0].tool: it names no tool"), "{error}");
}

#[test]
fn what_is_wrong_has_a_place_and_a_remedy() {
    let case = |case: &str| format!("tool: a:b\ncases:\n  - input: {{}}\n    {case}\n");
    let check = |check: &str| case(&format!("checks:\n      - {check}"));
    for (text, expect) in [
        ("tool: a:b\ncases: []\n".to_owned(), "f.yaml:2: cases: it is empty; "),
        ("# nothing\n".to_owned(), "f.yaml: "),
        ("tool: ''\ncases:\n  - input: {}\n".to_owned(), "f.yaml:1: tool: it is empty"),
        ("tool: a:b\nrepeat: 0\ncases:\n  - input: {}\n".to_owned(), "f.yaml:2: repeat: 0 is not within 1 and 100"),
        ("tool: a:b\ncasse: []\n".to_owned(), "casse"),
        ("tool: a:b\ncases:\n  - inptu: {}\n".to_owned(), "f.yaml:3: "),
        ("tool: [\n".to_owned(), "f.yaml:"),
        ("tool: a:b\ncases:\n  - input: [1]\n".to_owned(), "f.yaml:3: cases[0].input: it is no mapping"),
        (case("weight: 0"), "f.yaml:4: cases[0].weight: 0 is no weight"),
        (case("id: ''"), "f.yaml:4: cases[0].id: it is no name"),
        (case("id: a\n  - {id: a, input: {}}"), "f.yaml:5: cases[1].id: another case is called `a`"),
        (check("weight: 1"), "f.yaml:5: cases[0].checks[0]: it checks nothing; write one of exact"),
        (check("{exact: {equals: 1}, schema: {}}"), "several checks in one"),
        (check("exact: {path: a, equals: 1}"), "cases[0].checks[0].exact.path: `a` is no JSON Pointer; begin"),
        (check("exact: {path: /x~5, equals: 1}"), "`/x~5` is no JSON Pointer"),
        (check("exact: {path: /a}"), "it wants no value, or two"),
        (check("exact: {equals: 1, one_of: [2]}"), "it wants no value, or two"),
        (check("numeric: {path: /a}"), "bounds do not go together"),
        (check("numeric: {min: 1, tolerance: 2}"), "bounds do not go together"),
        (check("numeric: {equals: 1, tolerance: -2}"), "bounds do not go together"),
        (check("numeric: {min: 2, max: 1}"), "no number is within"),
        (check("numeric: {max: .inf}"), "no number is within"),
        (check("contains: {}"), "it looks for nothing"),
        (check("contains: {all: ['']}"), "it looks for nothing"),
        (check("schema: {type: 3}"), "cases[0].checks[0].schema: "),
        (check("rubric: {task: ' '}"), "its `task` is empty"),
        (check("rubric: {task: t, criteria: [a, a]}"), "stands twice"),
        (check("rubric: {task: t, min: 101}"), "its `min` of 101 is no score"),
        (check("{exact: {equals: 1}, weight: -1}"), "checks[0].weight: -1 is no weight"),
    ] {
        match first(&text, "f.yaml") {
            Err(error) => assert!(error.contains(expect), "{text}\n{error}\nnot\n{expect}"),
            Ok(suites) => panic!("{text}: {suites:?}"),
        }
    }
    let many = format!("tool: a:b\ncases:\n  - input: {{l: [{}]}}\n", "1, ".repeat(300_000));
    assert_eq!(first(&many, "f.yaml").map(|suites| suites.len()), Ok(1), "{} bytes are fewer than may be", many.len());
    let large = "#".repeat(MAX_FILE_BYTES + 1);
    assert!(first(&large, "f.yaml").expect_err("refused").contains("split it"));
    let faults = parse("tool: a:b\ncases:\n  - {input: 1}\n  - {input: 2}\n", "f.yaml").expect_err("refused");
    assert_eq!(faults.len(), 2, "all are told at once");
}
