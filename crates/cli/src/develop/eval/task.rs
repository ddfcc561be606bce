//! Reads files with a task: an agent's steps and the results of its tools.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::cases::positions_of;
use crate::develop::catalogue_file::MAX_BYTES;
use crate::develop::records::{Kind, Members, records};
use crate::exit::Failure;
use crate::input;

const STEPS: Kind = Kind { one: "step", list: "steps", marks: &["query"] };

/// Steps of one task: each is run under every exposure, and each request holds the results of all before it.
const MAX_STEPS: usize = 1000;
/// What a tool gives where the task does not say.
const DONE: &str = "Done.";

/// A task.
#[derive(Debug, PartialEq)]
pub(super) struct Task {
    /// What is to be done in each step.
    pub(super) steps: Vec<String>,
    /// The calls that it takes, in order; at least one a step.
    pub(super) calls: Vec<Call>,
}

/// A call that a step takes.
#[derive(Debug, PartialEq)]
pub(super) struct Call {
    /// Position of the step.
    pub(super) step: usize,
    /// Position of the tool.
    pub(super) tool: usize,
    /// `None` for whatever its schema asks for.
    pub(super) arguments: Option<Value>,
    /// What the tool gives.
    pub(super) result: String,
}

/// Reads `{steps: […]}`, a list of steps, or one step a line. A step is
/// `{query, tool | relevant: [tool id], arguments?, result?}`: what is to be done, the tools that are called for it,
/// and with which arguments if there is one. A result is a text, or any JSON; without one the tool says that it is
/// done. Cases of `eval select` are steps too.
pub(super) fn read(file: &Path, positions: &HashMap<&str, usize>) -> Result<Task, Failure> {
    let failure = |error: String| Failure::usage(format!("{}: {error}", file.display()));
    parse(&input::read_up_to(file, MAX_BYTES)?, positions).map_err(failure)
}

fn parse(text: &str, positions: &HashMap<&str, usize>) -> Result<Task, String> {
    let steps = records(text, STEPS)?;
    if steps.is_empty() || steps.len() > MAX_STEPS {
        return Err(format!("it has {} steps: give from 1 to {MAX_STEPS}", steps.len()));
    }
    let mut task = Task { steps: Vec::with_capacity(steps.len()), calls: Vec::new() };
    for (place, step) in steps {
        task.add(step, positions).map_err(|error| format!("{place}: {error}"))?;
    }
    Ok(task)
}

impl Task {
    fn add(&mut self, step: Value, positions: &HashMap<&str, usize>) -> Result<(), String> {
        let mut step = Members::of(step)?;
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

    fn read(text: &str) -> Result<Task, String> {
        parse(text, &HashMap::from([("a", 0), ("b", 1)]))
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
    fn what_is_wrong_has_a_place() {
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
