//! The `job` tools: start and control calls in the background, and return the manuals of tools.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::catalogue::{CallScope, Entry};
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::context::INFO_ID;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::job::{JobFilter, JobRecord, JobScope, JobState};
use toolwright_core::name_table::Resolution;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::{MessageKind, StoreError};
use toolwright_core::tool::Tool;
use toolwright_core::trigger::Trigger;

use super::{define, parse};

/// The most jobs in one list.
const MAX_LIST: usize = 50;
/// Seconds that one call waits at most.
const MAX_WAIT: u64 = 240;
/// Seconds that a call waits for the end of a job it has stopped.
const STOP_WAIT: u64 = 15;
/// The most lines of one read.
const MAX_LINES: usize = 1_000;
/// The most bytes of one read. Not more, so that the result is not stored as another output.
const READ_BYTES: usize = 80 << 10;

const NO_JOBS: &str = "There are no jobs in this session.";

/// The action of a job tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobAction {
    List,
    Status,
    Wait,
    Read,
    Send,
    Stop,
}

/// A tool that follows jobs. It sees only jobs of the call's own session and principal.
struct JobTool(JobAction);

/// Returns the tools that follow jobs.
pub(super) fn tools() -> Vec<Arc<dyn Tool>> {
    let verbs =
        [JobAction::List, JobAction::Status, JobAction::Wait, JobAction::Read, JobAction::Send, JobAction::Stop];
    let mut tools: Vec<Arc<dyn Tool>> = verbs.into_iter().map(|verb| Arc::new(JobTool(verb)) as _).collect();
    tools.push(Arc::new(ToolInfo));
    tools
}

#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    id: String,
    #[serde(default)]
    timeout: u64,
    #[serde(default)]
    input: Value,
    #[serde(default)]
    offset: i64,
    #[serde(default)]
    lines: usize,
}

#[async_trait]
impl Tool for JobTool {
    fn definition(&self) -> ToolDefinition {
        let id = || json!({"type": "string", "minLength": 1, "description": "The job's id."});
        let wait = |default: u64| {
            json!({"type": "integer", "minimum": 0, "maximum": MAX_WAIT, "default": default,
                   "description": "Seconds to wait at most."})
        };
        let write = Effects { destructive: false, open_world: false, ..Effects::UNKNOWN };
        let (name, title, description, effects, properties, required): (_, _, _, _, _, &[&str]) = match self.0 {
            JobAction::List => (
                "list",
                "List jobs",
                "Lists this session's background jobs and how each is doing.",
                Effects::READ,
                json!({}),
                &[],
            ),
            JobAction::Status => (
                "status",
                "Job status",
                "Says how a job is doing, without waiting for it.",
                Effects::READ,
                json!({"id": id()}),
                &["id"],
            ),
            JobAction::Wait => (
                "wait",
                "Wait for a job",
                "Waits until a job ends or wants input, and returns its result.",
                Effects::READ,
                json!({
                    "id": {"type": "string", "description": "The job's id; without it the newest job that goes on, else the newest."},
                    "timeout": wait(60),
                }),
                &[],
            ),
            JobAction::Read => (
                "read",
                "Read a job's output",
                "Reads what a job has written so far, and its result.",
                Effects::READ,
                json!({
                    "id": id(),
                    "lines": {"type": "integer", "minimum": 1, "maximum": MAX_LINES, "default": 100, "description": "Lines at most."},
                    "offset": {"type": "integer", "default": -100, "description": "First line, from 0; negative counts from the end."},
                }),
                &["id"],
            ),
            JobAction::Send => (
                "send",
                "Continue a job",
                "Gives a job that waits for input its input, and waits for its next answer. To an agent in the background it sends a message.",
                // The effects depend on the job's tool.
                Effects::UNKNOWN,
                json!({"id": id(), "input": {"description": "What the job asked for."}, "timeout": wait(60)}),
                &["id", "input"],
            ),
            JobAction::Stop => (
                "stop",
                "Stop a job",
                "Stops a job and everything that it has started, or removes a trigger.",
                Effects { idempotent: true, ..write },
                json!({"id": id()}),
                &["id"],
            ),
        };
        let mut definition = define(&format!("job:{name}@1.0.0"), title, description, effects, properties, required);
        let example = match self.0 {
            JobAction::List => json!({}),
            JobAction::Read => json!({"id": "bash_0a1b2c3d", "lines": 40}),
            JobAction::Send => json!({"id": "bash_0a1b2c3d", "input": "yes"}),
            JobAction::Status | JobAction::Wait | JobAction::Stop => json!({"id": "bash_0a1b2c3d"}),
        };
        definition.examples = vec![example];
        // A job's result is already within the limit of its own tool.
        definition.max_output =
            matches!(self.0, JobAction::Read | JobAction::Wait | JobAction::Send).then_some(READ_BYTES);
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Arguments = parse(arguments)?;
        match self.answer(&arguments, context).await {
            Ok(output) => Ok(output),
            Err(StoreError::NotFound(_))
                if self.0 == JobAction::Stop && remove_trigger(&arguments.id, context).await? =>
            {
                Ok(ToolOutput::text(format!("Trigger {} is removed.", arguments.id)))
            }
            Err(StoreError::NotFound(_)) => {
                let triggers = context.services.triggers.list(Some(&context.session)).await?;
                let trigger = triggers.iter().find(|trigger| self.0 == JobAction::Status && trigger.id == arguments.id);
                Ok(match trigger {
                    Some(it) => ToolOutput { structured: Some(it.note()), ..ToolOutput::text(it.line()) },
                    None => ToolOutput::failure(unknown(&arguments.id)),
                })
            }
            Err(StoreError::Refused(why)) => Ok(ToolOutput::failure(why)),
            Err(error) => Err(error.into()),
        }
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        if self.0 == JobAction::Send { CallScope::Anywhere } else { CallScope::Workspace }
    }

    fn awaits_others(&self) -> bool {
        matches!(self.0, JobAction::Wait | JobAction::Send | JobAction::Stop)
    }
}

impl JobTool {
    async fn answer(&self, arguments: &Arguments, context: &ToolContext) -> Result<ToolOutput, StoreError> {
        let (jobs, scope, id) = (&context.services.jobs, JobScope::Of(&context.session), &*arguments.id);
        let wait = |seconds| jobs.wait(scope, id, Duration::from_secs(seconds));
        match self.0 {
            JobAction::List => {
                let list = jobs.list(scope, JobFilter::All, MAX_LIST).await?;
                let triggers = context.services.triggers.list(Some(&context.session)).await?;
                let lines = list.iter().map(JobRecord::line).chain(triggers.iter().map(Trigger::line));
                let lines: Vec<String> = lines.collect();
                let text = if lines.is_empty() { NO_JOBS.into() } else { lines.join("\n") };
                let notes: Vec<Value> = list.iter().map(JobRecord::note).collect();
                let mut structured = json!({"jobs": notes});
                if !triggers.is_empty() {
                    structured["triggers"] = triggers.iter().map(Trigger::note).collect();
                }
                Ok(ToolOutput { structured: Some(structured), ..ToolOutput::text(text) })
            }
            JobAction::Status => {
                let job = jobs.get(scope, id).await?;
                Ok(described(&job))
            }
            JobAction::Read => {
                let read = jobs.read(scope, id, arguments.offset, arguments.lines).await?;
                let last = read.first + read.text.lines().count();
                let state = jobs.get(scope, id).await?.state;
                let first = read.first;
                let more = if last < read.total { format!("; read on from offset {last}") } else { String::new() };
                let note = format!("[lines {first} to {last} of {}; the job is {state}{more}]", read.total);
                Ok(ToolOutput::text(format!("{}{note}", read.text)))
            }
            JobAction::Wait if id.is_empty() => {
                let mut newest = jobs.list(scope, JobFilter::Open, 1).await?;
                if newest.is_empty() {
                    newest = jobs.list(scope, JobFilter::All, 1).await?;
                }
                let Some(newest) = newest.pop() else { return Ok(ToolOutput::failure(NO_JOBS)) };
                let waited = jobs.wait(scope, &newest.id, Duration::from_secs(arguments.timeout)).await?;
                result(waited, context).await
            }
            JobAction::Wait => result(wait(arguments.timeout).await?, context).await,
            JobAction::Send => {
                jobs.send(scope, id, arguments.input.clone()).await?;
                result(wait(arguments.timeout).await?, context).await
            }
            JobAction::Stop => {
                jobs.stop(scope, id).await?;
                Ok(described(&wait(STOP_WAIT).await?))
            }
        }
    }
}

/// Describes the state of a job and the possible next steps, equally in text and structure.
fn described(job: &JobRecord) -> ToolOutput {
    let (message, next) = (job.line(), job.next());
    let mut note = job.note();
    note["message"] = message.as_str().into();
    note["next"] = next.into();
    ToolOutput { structured: Some(note), ..ToolOutput::text(format!("{message}. {next}")) }
}

/// Returns a job with its outcome as the result of a wait. Its pending notification is withdrawn.
async fn result(job: JobRecord, context: &ToolContext) -> Result<ToolOutput, StoreError> {
    if job.state.is_over() {
        context.services.log.withdraw(&job.session, MessageKind::Job, &job.id).await?;
    }
    let mut output = described(&job);
    if (job.state.is_over() || job.state == JobState::WaitingInput)
        && let Some(outcome) = job.outcome
    {
        let mut content = outcome.content;
        let text = joined_text(&content);
        if let Some(structured) = outcome.structured.as_ref().filter(|_| text.is_empty()) {
            content.push(ContentBlock::text(structured.to_string()));
        }
        if let Some(note) = &mut output.structured {
            note["result"] = outcome.structured.unwrap_or_else(|| text.into());
        }
        output.content.append(&mut content);
    }
    Ok(output)
}

/// Removes the session's trigger with this id. Returns whether it was one.
async fn remove_trigger(id: &str, context: &ToolContext) -> Result<bool, StoreError> {
    context.services.triggers.remove(id, Some(&context.session)).await
}

fn unknown(id: &str) -> String {
    let shown: String = id.chars().take(100).collect();
    format!(
        "There is no job `{shown}` in this session. job__list names those there are; their ids are copied, not guessed."
    )
}

/// Returns a tool's full manual.
struct ToolInfo;

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[async_trait]
impl Tool for ToolInfo {
    fn definition(&self) -> ToolDefinition {
        let name = json!({"type": "string", "minLength": 1, "description": "The tool's name."});
        let mut definition = define(
            INFO_ID,
            "Tool manual",
            "Shows the full manual of a tool, if it has one.",
            Effects::READ,
            json!({"name": name}),
            &["name"],
        );
        definition.examples = vec![json!({"name": "shell__bash"})];
        // A manual is returned whole.
        definition.max_output = Some(256 << 10);
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Named { name } = parse(arguments)?;
        let found = context.calls.snapshot().and_then(|tools| match tools.resolve(&name) {
            Resolution::Found(index, _) => Some(Arc::clone(&tools.list()[index])),
            Resolution::Unknown(_) => None,
        });
        let visible = |entry: &Arc<Entry>| context.session.principal.may_use(&entry.definition().allowed_roles);
        let Some(entry) = found.filter(visible) else {
            let shown: String = name.chars().take(100).collect();
            return Ok(ToolOutput::failure(format!("There is no tool `{shown}`.")));
        };
        context.services.manuals.read(&context.session.id, entry.tool.hash());
        Ok(ToolOutput { content: vec![ContentBlock::text(manual(&entry))], ..ToolOutput::default() })
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }

    /// It makes no calls, but looks up the tools of its turn.
    fn awaits_others(&self) -> bool {
        true
    }
}

/// Returns the documentation, or else the description, and the arguments.
fn manual(entry: &Entry) -> String {
    let definition = entry.definition();
    let text = definition.documentation.as_deref().unwrap_or(&definition.description);
    let schema = serde_json::to_string(&definition.parameters).unwrap_or_default();
    let mut manual = format!("# {}\n\n{}\n\nArguments: {schema}\n", entry.wire_name, text.trim_end());
    for example in &definition.examples {
        manual.push_str(&format!("Example: {example}\n"));
    }
    manual
}
