//! Turns and tokens of work that is planned first, beside work call by call: requests with the calls that answer them, a scripted
//! model, and results of one size.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{CallResult, Message, ModelRequest, ShownTool, WrittenCall};
use toolwright_core::plan::PlanDocument;
use toolwright_models::{Api, encode};

use crate::Failure;

/// Bytes of a token.
const TOKEN: usize = 4;
/// Bytes of a final answer.
const ANSWER: usize = 400;

#[derive(Serialize)]
pub(crate) struct Row {
    way: &'static str,
    result_bytes: usize,
    requests: usize,
    turns: usize,
    input_tokens: usize,
    output_tokens: usize,
}

#[derive(Deserialize)]
struct Task {
    request: String,
    plan: Value,
}

#[derive(Deserialize)]
struct ToolOfServer {
    name: String,
    description: String,
    parameters: Value,
    output_schema: Value,
}

/// What a piece of work takes one way, with results of so many bytes.
type Spend = fn(&Work<'_>, usize) -> Spent;

/// The work on one request.
struct Work<'a> {
    request: &'a str,
    plan: PlanDocument,
    tools: Vec<&'a ToolOfServer>,
    /// The calls by the turn in which all that they refer to is known.
    levels: Vec<Vec<usize>>,
}

pub(crate) fn run(data: Option<&Path>) -> Result<Vec<Row>, Failure> {
    let folder =
        data.ok_or("name the data with TOOLWRIGHT_TEST_DATA: a folder with plans/plans.jsonl and plans/tools.jsonl")?;
    let tools: Vec<ToolOfServer> = lines(&folder.join("plans/tools.jsonl"))?;
    let tools: BTreeMap<&str, &ToolOfServer> = tools.iter().map(|tool| (tool.name.as_str(), tool)).collect();
    let tasks: Vec<Task> = lines(&folder.join("plans/plans.jsonl"))?;
    let works: Vec<Work<'_>> = tasks.iter().map(|task| Work::of(task, &tools)).collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    for result_bytes in [200, 2_000, 12_000] {
        let ways: [(&'static str, Spend); 4] = [
            ("one call a turn", |work, bytes| work.in_turns(&work.one_by_one(), bytes)),
            ("independent calls together", |work, bytes| work.in_turns(&work.levels, bytes)),
            ("planned, and answered", |work, bytes| work.planned(Some(bytes))),
            ("planned alone", |work, _| work.planned(None)),
        ];
        for (way, spend) in ways {
            let spent = works.iter().map(|work| spend(work, result_bytes)).fold(Spent::default(), Spent::add);
            let Spent { turns, input, output } = spent;
            rows.push(Row {
                way,
                result_bytes,
                requests: works.len(),
                turns,
                input_tokens: input / TOKEN,
                output_tokens: output / TOKEN,
            });
        }
    }
    Ok(rows)
}

fn lines<T: for<'de> Deserialize<'de>>(file: &Path) -> Result<Vec<T>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Turns, and bytes of requests and of answers.
#[derive(Default)]
struct Spent {
    turns: usize,
    input: usize,
    output: usize,
}

impl Spent {
    fn add(self, other: Self) -> Self {
        Self { turns: self.turns + other.turns, input: self.input + other.input, output: self.output + other.output }
    }

    /// One more turn: this request, and this answer.
    fn turn(&mut self, request: &ModelRequest, answer: usize) {
        self.turns += 1;
        self.input += encode(Api::OpenAiChat, request, "m").bytes().len();
        self.output += answer;
    }
}

impl<'a> Work<'a> {
    fn of(task: &'a Task, tools: &BTreeMap<&str, &'a ToolOfServer>) -> Result<Self, Failure> {
        let plan = PlanDocument::of_value(task.plan.clone()).map_err(|faults| format!("no plan: {faults:?}"))?;
        let mut used: Vec<&ToolOfServer> = Vec::new();
        for call in &plan.calls {
            let tool = tools.get(&*call.tool).ok_or_else(|| format!("no tool {}", call.tool))?;
            if !used.iter().any(|known| known.name == tool.name) {
                used.push(tool);
            }
        }
        let mut depths: Vec<usize> = Vec::new();
        for (index, call) in plan.calls.iter().enumerate() {
            let text = Value::Object(call.arguments.clone()).to_string();
            let reads = |other: usize| {
                plan.calls[other].meta.output_path.as_deref().is_some_and(|path| {
                    text.contains(&format!("†state.{path}.")) || text.contains(&format!("†state.{path}\""))
                })
            };
            depths.push((0..index).filter(|&other| reads(other)).map(|other| depths[other] + 1).max().unwrap_or(0));
        }
        let last = depths.iter().copied().max().unwrap_or(0);
        let level = |depth| (0..depths.len()).filter(|&index| depths[index] == depth).collect();
        let levels = (0..=last).map(level).collect();
        Ok(Self { request: &task.request, plan, tools: used, levels })
    }

    fn one_by_one(&self) -> Vec<Vec<usize>> {
        (0..self.plan.calls.len()).map(|index| vec![index]).collect()
    }

    fn asked(&self, is_plan: bool) -> ModelRequest {
        let shown = |tool: &&ToolOfServer| {
            let mut shown = ShownTool {
                name: tool.name.clone(),
                description: tool.description.clone(),
                parameters: tool.parameters.clone(),
                ..ShownTool::default()
            };
            if is_plan {
                toolwright_agent::show_for_plan(&mut shown, Some(&tool.output_schema));
            }
            shown
        };
        ModelRequest {
            system: if is_plan { toolwright_agent::PLANNER.to_owned() } else { String::new() },
            messages: vec![Message::user(self.request)],
            tools: self.tools.iter().map(shown).collect(),
            ..ModelRequest::default()
        }
    }

    fn written(&self, index: usize, is_plan: bool) -> WrittenCall {
        let call = &self.plan.calls[index];
        let mut arguments = call.arguments.clone();
        if let Some(path) = call.meta.output_path.as_ref().filter(|_| is_plan) {
            arguments.insert("_outputPath".into(), path.as_str().into());
        }
        WrittenCall {
            id: format!("call_{index}"),
            name: call.tool.clone(),
            arguments: Value::from(arguments).to_string(),
        }
    }

    /// Puts an answer with these calls into the conversation, and their results. The bytes of the answer.
    fn answer(&self, request: &mut ModelRequest, calls: &[usize], result: usize, is_plan: bool) -> usize {
        let calls: Vec<WrittenCall> = calls.iter().map(|&index| self.written(index, is_plan)).collect();
        let bytes = calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
        let results = calls.iter().map(|call| CallResult {
            call_id: call.id.clone(),
            name: call.name.clone(),
            content: vec![ContentBlock::text("x".repeat(result))],
            ..CallResult::default()
        });
        let results = results.collect();
        request.messages.push(Message::Assistant { text: String::new(), calls, opaque: Vec::new() });
        request.messages.push(Message::Tool { results });
        bytes
    }

    fn in_turns(&self, turns: &[Vec<usize>], result: usize) -> Spent {
        let (mut spent, mut request) = (Spent::default(), self.asked(false));
        for calls in turns {
            let before = request.clone();
            let bytes = self.answer(&mut request, calls, result, false);
            spent.turn(&before, bytes);
        }
        spent.turn(&request, ANSWER);
        spent
    }

    /// Planned in one turn; with results, the model then answers.
    fn planned(&self, result: Option<usize>) -> Spent {
        let (mut spent, asked, mut request) = (Spent::default(), self.asked(true), self.asked(false));
        let all: Vec<usize> = (0..self.plan.calls.len()).collect();
        let bytes = self.answer(&mut request, &all, result.unwrap_or_default(), true);
        spent.turn(&asked, bytes);
        if result.is_some() {
            spent.turn(&request, ANSWER);
        }
        spent
    }
}
