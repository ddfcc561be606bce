//! Reads cases (inputs of a tool and checks of its output) from files in YAML, which includes JSON, or JSON lines.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;
use toolwright_core::canonical::ContentHash;
use toolwright_core::pointer::push;

use super::check::{Check, CheckFault, Kind, Order, RawCheck, check_weight, present};

/// The largest file of cases, in bytes.
pub const MAX_FILE_BYTES: usize = 4 << 20;
/// The most characters of an id.
const MAX_ID: usize = 100;
/// The most repeats of a case.
const MAX_REPEAT: u32 = 100;
/// Length of an id that is derived from the input, in digits.
const ID_DIGITS: usize = 12;
/// The most faults that are reported at once.
const MAX_SHOWN: usize = 20;

const COMPARE: &str = "compare it with docs/bench.md";
/// The most values in a file, with room to spare. Aliases may not expand to more.
const MAX_VALUES: usize = 1_000_000;

/// The cases that come with Toolwright, for its six tools.
const SHIPPED: [(&str, &str); 6] = [
    ("summarize.yaml", include_str!("../../cases/summarize.yaml")),
    ("classify.yaml", include_str!("../../cases/classify.yaml")),
    ("score.yaml", include_str!("../../cases/score.yaml")),
    ("structure.yaml", include_str!("../../cases/structure.yaml")),
    ("clarify.yaml", include_str!("../../cases/clarify.yaml")),
    ("fact-extract.yaml", include_str!("../../cases/fact-extract.yaml")),
];

/// The cases of one tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// The tool's id with or without version, wire name or alias.
    pub tool: String,
    /// The mode of its requests to models.
    pub mode: Option<String>,
    /// How often each case is measured. Default: as the run sets it.
    pub repeat: Option<u32>,
    /// The cases, in order; their ids are unique.
    pub cases: Vec<Case>,
    /// The file that contains them, for messages.
    pub file: String,
    /// The place that names the tool.
    pub tool_at: CaseLocation,
    /// The place that names the mode, or the tool if no mode is named.
    pub mode_at: CaseLocation,
}

/// A place in a file of cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaseLocation {
    /// Line, from 1.
    pub line: u32,
    /// Key, like `cases[2].mode`.
    pub key: String,
}

/// A case.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Its name: as written, else derived from its input.
    pub id: String,
    /// The arguments of the call.
    pub input: Value,
    /// Its weight in the mean.
    pub weight: f64,
    /// The checks in addition to the tool's own output schema.
    pub checks: Vec<Check>,
    /// Its line.
    pub line: u32,
    /// Its key in the file, like `cases[2]`; empty if it is the whole line.
    pub key: String,
}

impl Case {
    /// Returns whether it needs a judge.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.checks.iter().any(|check| matches!(check.kind, Kind::Rubric { .. }))
    }
}

/// An error in a file of cases. `Display` is `file:line: key: message; remedy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseError {
    /// The file.
    pub file: String,
    /// Line, from 1; 0 if unknown.
    pub line: u32,
    /// The key, like `cases[2].checks[0].numeric`; empty for the whole file.
    pub key: String,
    /// The error.
    pub message: String,
    /// The remedy.
    pub remedy: &'static str,
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, key, message, remedy } = self;
        f.write_str(file)?;
        if *line > 0 {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if !key.is_empty() {
            write!(f, "{key}: ")?;
        }
        write!(f, "{message}; {remedy}")
    }
}

impl std::error::Error for CaseError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSuite {
    tool: Option<Spanned<String>>,
    mode: Option<Spanned<String>>,
    repeat: Option<Spanned<u32>>,
    cases: Spanned<Vec<Spanned<RawCase>>>,
}

/// A case as written. Its own settings override those above the cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCase {
    tool: Option<Spanned<String>>,
    mode: Option<Spanned<String>>,
    repeat: Option<Spanned<u32>>,
    id: Option<Spanned<String>>,
    input: Spanned<Value>,
    weight: Option<Spanned<f64>>,
    #[serde(default, deserialize_with = "present")]
    expect: Option<Value>,
    #[serde(default)]
    checks: Vec<Spanned<RawCheck>>,
}

/// `yes` and `no` are strings, as in the configuration.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_nodes: MAX_VALUES, max_events: 2 * MAX_VALUES, enforce_alias_anchor_ratio: false },
    }
}

/// Returns the checks that `expect` abbreviates: each of its members has its value, or the whole does.
fn expected(value: Value) -> Vec<Check> {
    let check = |path: String, value| Check {
        weight: 1.0,
        kind: Kind::Exact { path, one_of: vec![value], order: Order::Given },
    };
    let Value::Object(members) = value else { return vec![check(String::new(), value)] };
    let member = |(name, value): (String, Value)| {
        let mut path = String::new();
        push(&mut path, &name);
        check(path, value)
    };
    members.into_iter().map(member).collect()
}

/// Reads the cases of a file. A `.jsonl` file has one case per line. Any other file is YAML, with one document per
/// tool, or a list of cases that name their tools.
///
/// # Errors
/// All faults with their places. A file that cannot be parsed has one.
pub fn parse(text: &str, file: &str) -> Result<Vec<Suite>, Vec<CaseError>> {
    let mut reader = Reader { file, faults: Vec::new(), groups: Vec::new() };
    let whole = ValueLocation { line: 0, key: "" };
    if text.len() > MAX_FILE_BYTES {
        let message = format!("it has {} bytes, and {MAX_FILE_BYTES} at most are read", text.len());
        reader.fault(whole, message, "split it, and give both files with --cases");
        return Err(reader.faults);
    }
    if file.ends_with(".jsonl") {
        reader.lines(text);
    } else if is_list(text) {
        reader.list(text);
    } else {
        reader.documents(text);
    }
    if reader.faults.is_empty() && reader.groups.is_empty() {
        reader.fault(whole, "it has no cases", "write them as docs/bench.md says");
    }
    let Reader { mut faults, groups, .. } = reader;
    faults.truncate(MAX_SHOWN);
    if faults.is_empty() { Ok(groups.into_iter().map(|(suite, _)| suite).collect()) } else { Err(faults) }
}

/// Returns whether a YAML text begins with an item of a list.
fn is_list(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_start);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("---"));
    first.is_some_and(|line| line == "-" || line.starts_with("- ") || line.starts_with('['))
}

struct Reader<'a> {
    file: &'a str,
    faults: Vec<CaseError>,
    /// The cases by tool, mode and repeat, and the used ids.
    groups: Vec<(Suite, HashSet<String>)>,
}

/// The place of a value.
#[derive(Clone, Copy)]
struct ValueLocation<'a> {
    line: u32,
    key: &'a str,
}

impl ValueLocation<'_> {
    /// Returns the key of a member here.
    fn member(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }
}

/// The settings above cases, which are defaults for them.
#[derive(Default)]
struct SuiteDefaults {
    tool: Option<Spanned<String>>,
    mode: Option<Spanned<String>>,
    repeat: Option<Spanned<u32>>,
}

fn line_of<T>(spanned: &Spanned<T>) -> u32 {
    u32::try_from(spanned.referenced.line()).unwrap_or(0)
}

impl Reader<'_> {
    fn fault(&mut self, at: ValueLocation<'_>, message: impl Into<String>, remedy: &'static str) {
        let ValueLocation { line, key } = at;
        self.faults.push(CaseError {
            file: self.file.to_owned(),
            line,
            key: key.to_owned(),
            message: message.into(),
            remedy,
        });
    }

    /// Reports a parser error; `before` is the number of lines before its text.
    fn syntax(&mut self, error: &serde_saphyr::Error, before: u32) {
        let within = error.location().map_or(0, |location| u32::try_from(location.line()).unwrap_or(0));
        let said = error.without_snippet().to_string();
        let first = said.lines().next().unwrap_or_default().to_owned();
        self.fault(ValueLocation { line: before + within, key: "" }, first, COMPARE);
    }

    fn documents(&mut self, text: &str) {
        let written: Vec<RawSuite> = match serde_saphyr::from_multiple_with_options(text, options()) {
            Ok(written) => written,
            Err(error) => return self.syntax(&error, 0),
        };
        for RawSuite { tool, mode, repeat, cases } in written {
            if cases.value.is_empty() {
                self.fault(
                    ValueLocation { line: line_of(&cases), key: "cases" },
                    "it is empty",
                    "write a case, or leave it out",
                );
            }
            let above = SuiteDefaults { tool, mode, repeat };
            self.check_tool_settings(&above, ValueLocation { line: 0, key: "" }, 0);
            for (index, case) in cases.value.into_iter().enumerate() {
                let line = line_of(&case);
                self.case(case.value, &above, ValueLocation { line, key: &format!("cases[{index}]") }, 0);
            }
        }
    }

    fn list(&mut self, text: &str) {
        let written: Vec<Spanned<RawCase>> = match serde_saphyr::from_str_with_options(text, options()) {
            Ok(written) => written,
            Err(error) => return self.syntax(&error, 0),
        };
        for (index, case) in written.into_iter().enumerate() {
            let line = line_of(&case);
            self.case(case.value, &SuiteDefaults::default(), ValueLocation { line, key: &format!("[{index}]") }, 0);
        }
    }

    fn lines(&mut self, text: &str) {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let before = u32::try_from(index).unwrap_or(u32::MAX);
            match serde_saphyr::from_str_with_options(line, options()) {
                Ok(case) => {
                    self.case(case, &SuiteDefaults::default(), ValueLocation { line: before + 1, key: "" }, before)
                }
                Err(error) => self.syntax(&error, before),
            }
        }
    }

    /// Checks the settings of a tool.
    fn check_tool_settings(&mut self, above: &SuiteDefaults, at: ValueLocation<'_>, before: u32) {
        if let Some(tool) = above.tool.as_ref().filter(|tool| tool.value.trim().is_empty()) {
            let here = ValueLocation { line: before + line_of(tool), key: &at.member("tool") };
            self.fault(here, "it is empty", "name the tool, like llm:classify");
        }
        if let Some(repeat) = above.repeat.as_ref().filter(|repeat| !(1..=MAX_REPEAT).contains(&repeat.value)) {
            let message = format!("{} is not within 1 and {MAX_REPEAT}", repeat.value);
            let here = ValueLocation { line: before + line_of(repeat), key: &at.member("repeat") };
            self.fault(here, message, "write how often each case is measured");
        }
    }

    /// Returns the index of this tool's group of cases.
    fn group(
        &mut self,
        (tool, tool_at): (String, CaseLocation),
        mode: Option<(String, CaseLocation)>,
        repeat: Option<u32>,
    ) -> usize {
        let (mode, mode_at) = mode.map_or((None, tool_at.clone()), |(mode, at)| (Some(mode), at));
        let same = |suite: &Suite| suite.tool == tool && suite.mode == mode && suite.repeat == repeat;
        if let Some(at) = self.groups.iter().position(|(suite, _)| same(suite)) {
            return at;
        }
        let suite = Suite { tool, mode, repeat, cases: Vec::new(), file: self.file.to_owned(), tool_at, mode_at };
        self.groups.push((suite, HashSet::new()));
        self.groups.len() - 1
    }

    fn case(&mut self, written: RawCase, above: &SuiteDefaults, at: ValueLocation<'_>, before: u32) {
        let RawCase { tool, mode, repeat, id, input, weight, expect, checks } = written;
        let own = SuiteDefaults { tool, mode, repeat };
        self.check_tool_settings(&own, at, before);
        // A case's own setting, else the one above the cases.
        let said = |own: &Option<Spanned<String>>, above: &Option<Spanned<String>>, name: &str| {
            let key = if own.is_some() { at.member(name) } else { name.to_owned() };
            let text = own.as_ref().or(above.as_ref())?;
            Some((text.value.clone(), CaseLocation { line: before + line_of(text), key }))
        };
        let Some(tool) = said(&own.tool, &above.tool, "tool") else {
            let here = ValueLocation { line: at.line, key: &at.member("tool") };
            return self.fault(here, "it names no tool", "name it in the case, or above the cases");
        };
        let mode = said(&own.mode, &above.mode, "mode").filter(|(mode, _)| !mode.is_empty());
        let repeat = own.repeat.as_ref().or(above.repeat.as_ref()).map(|repeat| repeat.value);
        let group = self.group(tool, mode, repeat);
        if !input.value.is_object() {
            let here = ValueLocation { line: before + line_of(&input), key: &at.member("input") };
            return self.fault(here, "it is no mapping", "write the arguments of the call by name");
        }
        let (id, id_line) = match id {
            Some(id) => (id.value.trim().to_owned(), before + line_of(&id)),
            None => {
                let hash = ContentHash::of_value(&input.value).to_hex();
                (hash.get(..ID_DIGITS).unwrap_or_default().to_owned(), at.line)
            }
        };
        let here = ValueLocation { line: id_line, key: &at.member("id") };
        if id.is_empty() || id.chars().count() > MAX_ID || id.chars().any(char::is_control) {
            self.fault(here, "it is not a name", "use 1 to 100 characters on one line, or leave it out");
        } else if !self.groups[group].1.insert(id.clone()) {
            self.fault(here, format!("another case is called `{id}`"), "give one of them an id of its own");
        }
        let weight_line = weight.as_ref().map_or(at.line, |weight| before + line_of(weight));
        let weight = weight.map_or(1.0, |weight| weight.value);
        if let Err(fault) = check_weight(weight) {
            let here = ValueLocation { line: weight_line, key: &at.member("weight") };
            self.fault(here, fault.message, fault.remedy);
        }
        let mut all = expect.map_or_else(Vec::new, expected);
        for (index, check) in checks.into_iter().enumerate() {
            let line = before + line_of(&check);
            match check.value.read() {
                Ok(check) => all.push(check),
                Err(CheckFault { key, message, remedy }) => {
                    let key = at.member(&format!("checks[{index}]{key}"));
                    self.fault(ValueLocation { line, key: &key }, message, remedy);
                }
            }
        }
        self.groups[group].0.cases.push(Case {
            id,
            input: input.value,
            weight,
            checks: all,
            line: at.line,
            key: at.key.to_owned(),
        });
    }
}

/// Returns the cases of the shipped tools, in their order.
///
/// # Errors
/// The faults of a file; a test checks that there are none.
pub fn shipped_cases() -> Result<Vec<Suite>, Vec<CaseError>> {
    let mut suites = Vec::new();
    for (file, text) in SHIPPED {
        suites.extend(parse(text, file)?);
    }
    Ok(suites)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwright_core::llm::shipped;
    use toolwright_core::schema::CompiledSchema;

    use super::*;

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
    fn cases_may_name_tools_and_use_expect() {
        let text = "# cases\n---\n- tool: a:b\n  input: {}\n  expect: {x/y: 1, z: null}\n- {tool: c:d, input: {}, expect: yes}\n";
        let suites = first(text, "c.yaml").expect("cases");
        let checks = |suite: &Suite| serde_json::to_value(&suite.cases[0].checks).expect("json");
        let exact = |path: &str, value: Value| json!({"weight": 1.0, "exact": {"path": path, "one_of": [value], "order": "given"}});
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
    fn faults_have_a_place_and_remedy() {
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
            (case("id: ''"), "f.yaml:4: cases[0].id: it is not a name"),
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
        assert_eq!(
            first(&many, "f.yaml").map(|suites| suites.len()),
            Ok(1),
            "{} bytes are fewer than may be",
            many.len()
        );
        let large = "#".repeat(MAX_FILE_BYTES + 1);
        assert!(first(&large, "f.yaml").expect_err("refused").contains("split it"));
        let faults = parse("tool: a:b\ncases:\n  - {input: 1}\n  - {input: 2}\n", "f.yaml").expect_err("refused");
        assert_eq!(faults.len(), 2, "all are told at once");
    }

    #[test]
    fn words_inside_other_words_do_not_match() {
        let suites = shipped_cases().unwrap_or_else(|faults| panic!("{}", faults[0]));
        let cases = || suites.iter().flat_map(|suite| &suite.cases);
        let of = |case: &str, summary: &str, check: usize| {
            let case = cases().find(|known| known.id == case).expect("the case");
            case.checks[check].kind.verdict(&json!({"summary": summary})).expect("no judge").value
        };
        assert!(of("closes-the-mark", "The library extends its hours from April.", 0) < 1.0);
        assert_eq!(of("closes-the-mark", "Open until ten from April.", 0), 1.0);
        assert_eq!(of("nothing-is-added", "Notice of the ship came in a letter; the price is unknown.", 1), 1.0);
        assert_eq!(of("nothing-is-added", "It was crushed by the ice.", 1), 0.0);
    }

    #[test]
    fn each_shipped_tool_has_good_cases() {
        let suites = shipped_cases().unwrap_or_else(|faults| panic!("{}", faults[0]));
        let tools = shipped();
        let ids: Vec<String> = tools.iter().map(|tool| tool.source().id.without_version().to_owned()).collect();
        assert_eq!(
            suites.iter().map(|suite| suite.tool.clone()).collect::<HashSet<_>>(),
            ids.iter().cloned().collect()
        );
        for tool in tools {
            let id = tool.source().id.without_version();
            let cases = suites.iter().filter(|suite| suite.tool == id).flat_map(|suite| &suite.cases);
            let parameters = CompiledSchema::compile(&tool.source().parameters).expect("compiles");
            let (mut count, mut judged) = (0, 0);
            for case in cases {
                count += 1;
                let violation = parameters.violations(&case.input).into_iter().next();
                assert!(violation.is_none(), "{id} {}: {violation:?}", case.id);
                let plain = case.checks.iter().filter(|check| !matches!(check.kind, Kind::Rubric { .. })).count();
                assert!(plain > 0, "{id} {}: without a judge it says nothing", case.id);
                judged += usize::from(case.is_judged());
            }
            assert!(count >= 12, "{id} has {count} cases");
            assert!(id != "llm:summarize" || judged > 0, "prose wants a judge");
        }
    }
}
