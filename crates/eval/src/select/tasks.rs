//! Reads the test data of selection: files of queries with their tools, and files of tasks, which are an agent's steps
//! with the results of its tools.

use std::collections::HashMap;

use serde_json::Value;
use toolwright_core::ContentHash;

use super::records::{AdjustedRecords, RecordFields, RecordKind, RecordLocation, records};

const CASES: RecordKind = RecordKind { one: "case", list: "cases", marks: &["query"] };

/// The most unknown ids in one message.
const MAX_NAMED: usize = 5;

const STEPS: RecordKind = RecordKind { one: "step", list: "steps", marks: &["query"] };

/// The most steps of a task: each is run under every exposure, and each request contains all earlier results.
const MAX_STEPS: usize = 1000;
/// The default result of a tool.
const DONE: &str = "Done.";

/// A query, and the positions of its tools: at least one, without duplicates. A tool that the catalogue lacks has a
/// position after all others, where no ranking finds it.
#[derive(Debug, PartialEq)]
pub struct Query {
    /// The half of the cases that contains it, 0 or 1: determined by its id, or by its query if it has none.
    pub half: usize,
    /// The search text.
    pub text: String,
    /// The tools.
    pub relevant: Vec<usize>,
}

/// The queries of a file, and its oddities.
#[derive(Debug, Default)]
pub struct Queries {
    /// The queries in the file's order.
    pub queries: Vec<Query>,
    /// Ids that are not in the catalogue.
    pub unknown: AdjustedRecords,
    /// Cases without relevant tools.
    pub without: AdjustedRecords,
}

impl Queries {
    /// Parses a JSON list of queries, an object with a list under `cases`, or one query per line. A query is `{id?,
    /// query, relevant: [tool id]}`; other members are ignored. Queries without a tool are left out. `positions` are
    /// those of the catalogue's ids.
    ///
    /// # Errors
    /// The error, with its place.
    pub fn parse(text: &str, positions: &HashMap<&str, usize>) -> Result<Self, String> {
        let mut all = Self::default();
        for (place, record) in records(text, CASES)? {
            all.add(&place, record, positions).map_err(|error| format!("{place}: {error}"))?;
        }
        Ok(all)
    }

    fn add(&mut self, place: &RecordLocation, record: Value, positions: &HashMap<&str, usize>) -> Result<(), String> {
        let mut record = RecordFields::of(record)?;
        let text = record.text("query")?.ok_or("it has no `query`")?;
        let half = match record.value(&["id"]) {
            Some(Value::String(id)) => half(&id),
            Some(id) => half(&id.to_string()),
            None => half(&text),
        };
        let mut ids = record.texts("relevant")?;
        if ids.is_empty() {
            self.without.add(|| place.to_string());
            return Ok(());
        }
        ids.sort_unstable();
        ids.dedup();
        let mut behind = positions.len()..;
        let position = |id: String| {
            positions.get(id.as_str()).copied().or_else(|| {
                self.unknown.add(|| format!("`{id}` in {place}"));
                behind.next()
            })
        };
        let mut relevant: Vec<usize> = ids.into_iter().filter_map(position).collect();
        relevant.sort_unstable();
        self.queries.push(Query { half, text, relevant });
        Ok(())
    }
}

/// Returns the last bit of the first byte of the text's SHA-256.
fn half(text: &str) -> usize {
    usize::from(ContentHash::of_bytes(text.as_bytes()).as_bytes()[0] & 1)
}

/// Returns the positions of tools, each once.
fn positions_of(ids: &[String], positions: &HashMap<&str, usize>) -> Result<Vec<usize>, String> {
    let unknown: Vec<&String> = ids.iter().filter(|id| !positions.contains_key(id.as_str())).collect();
    if !unknown.is_empty() {
        let named: Vec<String> = unknown.iter().take(MAX_NAMED).map(|id| format!("`{id}`")).collect();
        let more = if unknown.len() > MAX_NAMED { ", …" } else { "" };
        return Err(format!("the catalogue has no tool with the id {}{more}", named.join(", ")));
    }
    let mut relevant: Vec<usize> = ids.iter().filter_map(|id| positions.get(id.as_str()).copied()).collect();
    relevant.sort_unstable();
    relevant.dedup();
    Ok(relevant)
}

/// A task.
#[derive(Debug, PartialEq)]
pub struct Task {
    /// The action of each step, in words.
    pub steps: Vec<String>,
    /// Its calls, in order; at least one per step.
    pub calls: Vec<Call>,
}

/// A call of a step.
#[derive(Debug, PartialEq)]
pub struct Call {
    /// Position of the step.
    pub step: usize,
    /// Position of the tool.
    pub tool: usize,
    /// `None` for what its schema requires.
    pub arguments: Option<Value>,
    /// The tool's result.
    pub result: String,
}

impl Task {
    /// Parses `{steps: […]}`, a list of steps, or one step per line. A step is `{query, tool | relevant: [tool id],
    /// arguments?, result?}`: the action, the tools to call, and the arguments if there is only one tool. A result is a
    /// text or any JSON; by default the tool reports that it is done. Cases of `eval select` are also steps.
    ///
    /// # Errors
    /// The error, with its place.
    pub fn parse(text: &str, positions: &HashMap<&str, usize>) -> Result<Self, String> {
        let steps = records(text, STEPS)?;
        if steps.is_empty() || steps.len() > MAX_STEPS {
            return Err(format!("it has {} steps: give from 1 to {MAX_STEPS}", steps.len()));
        }
        let mut task = Self { steps: Vec::with_capacity(steps.len()), calls: Vec::new() };
        for (place, step) in steps {
            task.add(step, positions).map_err(|error| format!("{place}: {error}"))?;
        }
        Ok(task)
    }

    fn add(&mut self, step: Value, positions: &HashMap<&str, usize>) -> Result<(), String> {
        let mut step = RecordFields::of(step)?;
        let query = step.text("query")?.ok_or("it has no `query`")?;
        let mut ids = step.texts("relevant")?;
        if let Some(tool) = step.text("tool")? {
            ids = vec![tool];
        }
        let arguments = step.value(&["arguments"]);
        match (ids.len(), &arguments) {
            (0, _) => return Err("it names no tool: give `tool`, or `relevant`".into()),
            (2.., Some(_)) => {
                return Err("it has `arguments` and several tools: name the `tool` that takes them".into());
            }
            (_, Some(Value::Object(_)) | None) => {}
            (_, Some(_)) => return Err("its `arguments` are not an object".into()),
        }
        let result = match step.value(&["result"]) {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => DONE.to_owned(),
        };
        for tool in positions_of(&ids, positions)? {
            let (arguments, result) = (arguments.clone(), result.clone());
            self.calls.push(Call { step: self.steps.len(), tool, arguments, result });
        }
        self.steps.push(query);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(text: &str, expect: Result<&[(&str, &[usize])], &str>) {
        let positions = HashMap::from([("a", 0), ("b.é", 1)]);
        match (Queries::parse(text, &positions), expect) {
            (Ok(Queries { queries, .. }), Ok(expect)) => {
                let got: Vec<_> =
                    queries.iter().map(|query| (query.text.as_str(), query.relevant.as_slice())).collect();
                assert_eq!(got, expect, "{text}");
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }

    #[test]
    fn queries_are_read_and_faults_located() {
        let line = r#"{"id": "1", "query": "q", "relevant": ["b.é", "a", "a"]}"#;
        check(line, Ok(&[("q", &[0, 1])]));
        check(&format!("{line}\n\n{line}"), Ok(&[("q", &[0, 1]), ("q", &[0, 1])]));
        check(&format!("{{\"cases\": [{line}]}}"), Ok(&[("q", &[0, 1])]));
        check("", Ok(&[]));
        check(r#"[{"query": "q", "relevant": [{}]}]"#, Err("case 1: its `relevant` holds what is not a text"));
        check(r#"[{"relevant": ["a"]}]"#, Err("case 1: it has no `query`"));
    }

    #[test]
    fn an_invalid_case_does_not_end_the_benchmark() {
        check(r#"{"query": "q", "relevant": ["gone", "a", "lost", "gone"]}"#, Ok(&[("q", &[0, 2, 3])]));
        check(r#"{"query": "q", "relevant": "a"}"#, Ok(&[("q", &[0])]));
        check(r#"{"query": 7, "relevant": [7]}"#, Ok(&[("7", &[2])]));
        let text = r#"[{"query": "q", "relevant": []}, {"query": "r"}, {"query": "s", "relevant": ["a", "c"]}]"#;
        check(text, Ok(&[("s", &[0, 2])]));
        let adjusted = Queries::parse(text, &HashMap::from([("a", 0)])).expect("cases");
        assert!(format!("{:?}", adjusted.unknown).contains("`c` in case 3"), "{adjusted:?}");
        assert!(format!("{:?}", adjusted.without).contains("\"case 1\", \"case 2\""), "{adjusted:?}");
    }

    #[test]
    fn the_split_of_a_query_follows_its_id() {
        let positions = HashMap::from([("a", 0)]);
        // SHA-256 of `a` begins with ca, that of `1` with 6b.
        for (case, expect) in [
            (r#"{"id": "a", "query": "1", "relevant": ["a"]}"#, 0),
            (r#"{"id": "1", "query": "a", "relevant": ["a"]}"#, 1),
            (r#"{"id": 1, "query": "a", "relevant": ["a"]}"#, 1),
            (r#"{"query": "1", "relevant": ["a"]}"#, 1),
        ] {
            assert_eq!(Queries::parse(case, &positions).expect(case).queries[0].half, expect, "{case}");
        }
    }

    fn read(text: &str) -> Result<Task, String> {
        Task::parse(text, &HashMap::from([("a", 0), ("b", 1)]))
    }

    #[test]
    fn steps_are_read_in_every_form() {
        let line = r#"{"query": "do it", "tool": "b", "arguments": {"n": 1}, "result": {"ok": true}}"#;
        let call = Call { step: 0, tool: 1, arguments: Some(json!({"n": 1})), result: r#"{"ok":true}"#.into() };
        let expect = Ok(Task { steps: vec!["do it".into()], calls: vec![call] });
        for text in [line.to_owned(), format!("[{line}]"), format!("{{\"id\": 7, \"steps\": [{line}]}}")] {
            assert_eq!(read(&text), expect, "{text}");
        }
        let case = r#"{"id": "x", "query": "both", "relevant": ["b", "a"]}"#;
        let task = read(&format!("{case}\n{line}")).expect("two steps");
        let calls: Vec<_> = task.calls.iter().map(|call| (call.step, call.tool, call.result.as_str())).collect();
        assert_eq!(calls, [(0, 0, DONE), (0, 1, DONE), (1, 1, r#"{"ok":true}"#)]);
    }

    #[test]
    fn task_file_errors_name_their_step() {
        for (text, expect) in [
            ("", "it has 0 steps"),
            (r#"[{"query": "x"}]"#, "step 1: it names no tool"),
            (r#"[{"query": "x", "tool": "c"}]"#, "step 1: the catalogue has no tool with the id `c`"),
            (r#"[{"query": "x", "relevant": ["a", "b"], "arguments": {}}]"#, "step 1: it has `arguments` and several"),
            (r#"[{"query": "x", "tool": "a", "arguments": 3}]"#, "step 1: its `arguments` are not an object"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(expect), "{error}");
        }
    }
}
