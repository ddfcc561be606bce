//! Turns and tokens of work that is planned first, compared with work call by call. The requests are real ones with the
//! calls that answer them; agents run them with a scripted model and a server whose results have one size. Tokens are
//! counted from the requests that the model received.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use toolwright::app::{PlanOptions, PlanWriter};
use toolwright::{ModelApi, Profile, Status, Toolwright};
use toolwright_core::approval::NoApprover;
use toolwright_core::catalogue::{ProviderKind, RegisteredTool};
use toolwright_core::plan::PlanDocument;
use toolwright_core::{Cancel, Effects, ErrorKind, RunInput, ToolDefinition, ToolError, ToolId, ToolOutput};
use toolwright_testkit::FakeProvider;
use toolwright_testkit::model_server::{Reply, ScriptedModel, Turn, WireApi};
use toolwright_testkit::requests::{PlannedRequest, ServerScript, ServerTool, call_key, read_lines};

use crate::Failure;

/// The bytes of a token.
const TOKEN: usize = 4;
/// The bytes of a final answer.
const ANSWER: usize = 400;
const MODEL: &str = "scripted/model";
const SERVER: &str = "requests";

#[derive(Serialize)]
pub(crate) struct Row {
    way: &'static str,
    result_bytes: usize,
    /// Requests with a valid plan, out of all.
    requests: String,
    turns: usize,
    input_tokens: usize,
    output_tokens: usize,
}

/// A way of working on a request.
#[derive(Clone, Copy)]
enum Strategy {
    OneByOne,
    Together,
    /// `run --plan`.
    PlannedAndAnswered,
    /// `plan make`, then `plan run`.
    Planned,
}

impl Strategy {
    const ALL: [(&'static str, Self); 4] = [
        ("one call a turn", Self::OneByOne),
        ("independent calls together", Self::Together),
        ("planned, and answered", Self::PlannedAndAnswered),
        ("planned alone", Self::Planned),
    ];
}

/// The work on one request.
struct PlannedRequestWork<'a> {
    request: &'a str,
    tools: Vec<&'a ServerTool>,
    plan: PlanDocument,
    /// The wire name of each call's tool.
    names: Vec<String>,
}

pub(crate) fn run(data: Option<&Path>) -> Result<Vec<Row>, Failure> {
    let folder =
        data.ok_or("name the data with TOOLWRIGHT_TEST_DATA: a folder with plans/plans.jsonl and plans/tools.jsonl")?;
    let tools: Vec<ServerTool> = read_lines(&folder.join("plans/tools.jsonl"))?;
    let tools: BTreeMap<&str, &ServerTool> = tools.iter().map(|tool| (tool.name.as_str(), tool)).collect();
    let requests: Vec<PlannedRequest> = read_lines(&folder.join("plans/plans.jsonl"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(&tools, &requests))
}

async fn measure(tools: &BTreeMap<&str, &ServerTool>, requests: &[PlannedRequest]) -> Result<Vec<Row>, Failure> {
    let mut works = Vec::new();
    for request in requests {
        works.extend(PlannedRequestWork::of(request, tools).await?);
    }
    let mut rows = Vec::new();
    for result_bytes in [200, 2_000, 12_000] {
        for (name, way) in Strategy::ALL {
            let mut spent = RequestCost::default();
            for work in &works {
                let fails = |error| format!("{name}, {result_bytes} bytes, {:?}: {error}", work.request);
                spent.add(&work.run(way, result_bytes).await.map_err(fails)?);
            }
            rows.push(Row {
                way: name,
                result_bytes,
                requests: format!("{} of {}", works.len(), requests.len()),
                turns: spent.turns,
                input_tokens: spent.input / TOKEN,
                output_tokens: spent.output / TOKEN,
            });
        }
    }
    Ok(rows)
}

/// The number of turns, and the bytes of requests and answers.
#[derive(Default)]
struct RequestCost {
    turns: usize,
    input: usize,
    output: usize,
}

impl RequestCost {
    fn add(&mut self, other: &Self) {
        self.turns += other.turns;
        self.input += other.input;
        self.output += other.output;
    }
}

/// The model's answer in one turn: calls, or a text if there are none.
struct ModelAnswer(Vec<(String, Value)>);

impl ModelAnswer {
    fn bytes(&self) -> usize {
        let bytes = self.0.iter().map(|(name, arguments)| name.len() + arguments.to_string().len()).sum();
        if self.0.is_empty() { ANSWER } else { bytes }
    }

    fn turn(self) -> Turn {
        match self.0 {
            calls if calls.is_empty() => Turn::text("x".repeat(ANSWER)),
            calls => Reply::calls(calls).into(),
        }
    }
}

impl<'a> PlannedRequestWork<'a> {
    /// Prepares the work on a request; `None` if the plan is invalid.
    async fn of(request: &'a PlannedRequest, tools: &BTreeMap<&str, &'a ServerTool>) -> Result<Option<Self>, Failure> {
        let plan = PlanDocument::of_value(request.plan.clone())
            .map_err(|faults| format!("{} is no plan: {faults:?}", request.id))?;
        let mut used: Vec<&ServerTool> = Vec::new();
        for call in &plan.calls {
            let tool = tools.get(&*call.tool).ok_or_else(|| format!("there is no tool {}", call.tool))?;
            if !used.iter().any(|known| known.name == tool.name) {
                used.push(tool);
            }
        }
        let (app, model) = opened(&used, BTreeMap::new(), Vec::new()).await?;
        let is_valid = app.check_plan(&plan, Some(Profile::Trusted), &RunInput::default(), None).is_valid();
        let snapshot = app.catalogue().snapshot();
        let named = |raw: &str| snapshot.list().iter().find(|entry| entry.tool.raw_name() == raw);
        let names = plan.calls.iter().filter_map(|call| Some(named(&call.tool)?.wire_name.clone())).collect();
        app.shut_down().await;
        drop(model);
        if !is_valid {
            return Ok(None);
        }
        Ok(Some(Self { request: &request.request, tools: used, plan, names }))
    }

    /// Returns the model's answers, one for each turn.
    fn scripted_answers(&self, way: Strategy, script: &ServerScript) -> Vec<ModelAnswer> {
        let call = |index: usize| (self.names[index].clone(), script.arguments[index].clone());
        let planned = || {
            let calls = self.plan.calls.iter().zip(&self.names).map(|(call, name)| {
                let mut written = call.to_value();
                if let Some(members) = written.as_object_mut() {
                    members.remove("_tool");
                }
                (name.clone(), written)
            });
            ModelAnswer(calls.collect())
        };
        let answer = || ModelAnswer(Vec::new());
        match way {
            Strategy::OneByOne => {
                (0..self.names.len()).map(|index| ModelAnswer(vec![call(index)])).chain([answer()]).collect()
            }
            Strategy::Together => {
                let level = |level: Vec<usize>| ModelAnswer(level.into_iter().map(call).collect());
                levels(&script.producers).into_iter().map(level).chain([answer()]).collect()
            }
            Strategy::PlannedAndAnswered => vec![planned(), answer()],
            Strategy::Planned => vec![planned()],
        }
    }

    /// Does the work with results of at least `result_bytes` bytes. Fails unless every call succeeds.
    async fn run(&self, way: Strategy, result_bytes: usize) -> Result<RequestCost, Failure> {
        let tools = self.tools.iter().map(|&tool| (tool.name.as_str(), tool)).collect();
        let script = ServerScript::of(&self.plan, &tools, result_bytes)?;
        let said = self.scripted_answers(way, &script);
        let output = said.iter().map(ModelAnswer::bytes).sum();
        let turns = said.into_iter().map(ModelAnswer::turn).collect();
        let (app, model) = opened(&self.tools, script.answers, turns).await?;
        let ended = self.done(&app, way).await;
        app.shut_down().await;
        let failures = model.failures();
        match ended? {
            Some(wrong) => return Err(format!("{wrong}; {failures:?}").into()),
            None if !failures.is_empty() => return Err(format!("{failures:?}").into()),
            None => {}
        }
        let received = model.requests();
        let input = received.iter().map(|request| request.bytes.len()).sum();
        Ok(RequestCost { turns: received.len(), input, output })
    }

    /// Does the work and returns a description of a failure, if any.
    async fn done(&self, app: &Arc<Toolwright>, way: Strategy) -> Result<Option<String>, Failure> {
        let agent = || app.agent(MODEL).policy(Profile::Trusted);
        let report = match way {
            Strategy::OneByOne | Strategy::Together => agent().task(self.request).run().await?,
            Strategy::PlannedAndAnswered => {
                let mut conversation = agent().conversation().await?;
                let plan = conversation.plan(self.request, None).await?;
                conversation.run_plan(&plan, true);
                conversation.proceed().await?
            }
            Strategy::Planned => {
                let profile = Some(Profile::Trusted);
                let writer = PlanWriter { model: MODEL.to_owned(), profile, ..PlanWriter::default() };
                let plan = app.write_plan(self.request, &writer).await?;
                let options = PlanOptions {
                    profile,
                    input: RunInput::default(),
                    approver: Arc::new(NoApprover { remedy: String::new() }),
                    max_cost: None,
                    approved: true,
                    cancel: Cancel::new(),
                };
                let report = app.run_plan(&plan.document, options).await?;
                return Ok((report.status != Status::Success).then(|| report.to_json().to_string()));
            }
        };
        let done = report.calls.iter().filter(|call| call.ok).count();
        let is_done = report.status == Status::Success && done == self.plan.calls.len();
        Ok((!is_done).then(|| format!("{:?} {:?} {:?}", report.status, report.reason, report.calls)))
    }
}

/// Groups the calls by turn: a call comes one turn after the last call that it waits for.
fn levels(producers: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let mut depths: Vec<usize> = Vec::new();
    for producers in producers {
        depths.push(producers.iter().map(|&producer| depths[producer] + 1).max().unwrap_or(0));
    }
    let last = depths.iter().copied().max().unwrap_or(0);
    (0..=last).map(|depth| (0..depths.len()).filter(|&index| depths[index] == depth).collect()).collect()
}

/// Opens a Toolwright whose server has these tools and gives `answers`, with a model that answers with `turns`.
async fn opened(
    tools: &[&ServerTool],
    answers: BTreeMap<String, Value>,
    turns: Vec<Turn>,
) -> Result<(Arc<Toolwright>, ScriptedModel), Failure> {
    let model = ScriptedModel::start(turns).await?;
    let url = model.base_url(WireApi::OpenAi);
    let builder = Toolwright::builder().model_endpoint("scripted", ModelApi::OpenAiChat, url);
    let app = builder.model_key("scripted", "k").variables(|_| None).build().await?;
    let mut defined = Vec::new();
    for tool in tools {
        let id = ToolId::foreign(SERVER, &tool.name)?;
        let mut definition = ToolDefinition::new(id, &*tool.description, Some(tool.parameters.clone()));
        definition.output_schema = Some(tool.output_schema.clone());
        definition.effects = Effects::READ;
        defined.push(RegisteredTool::foreign(definition, tool.name.as_str()));
    }
    let provider = FakeProvider::new(SERVER, ProviderKind::Mcp, defined).with_future(move |call, _| {
        let answer = answers.get(&call_key(call.raw_name, &call.arguments)).cloned();
        let unexpected = format!("nobody asks {} for {}", call.raw_name, call.arguments);
        Box::pin(async move {
            let structured = answer.ok_or_else(|| ToolError::new(ErrorKind::ExecutionError, unexpected))?;
            Ok(ToolOutput { structured: Some(structured.clone()), ..ToolOutput::text(structured.to_string()) })
        })
    });
    app.catalogue().add_provider(Arc::new(provider)).await?;
    app.catalogue().refresh(SERVER).await;
    Ok((app, model))
}
