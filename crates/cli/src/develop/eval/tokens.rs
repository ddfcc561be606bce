//! `eval tokens`: compares the token cost of a task under each exposure.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright::agent::{BASE_PROMPT, DEFAULT_PICK_SIZE, Dispatch, Driver, Limits, RunOptions, RunSpec, RunState};
use toolwright::core::client::NoClient;
use toolwright::core::exposure::Exposure;
use toolwright::core::model::{Message, ModelSettings};
use toolwright::core::store::NoStore;
use toolwright::core::{
    ApprovalDecision, ApprovalRequest, Approver, Cancel, Health, Listing, Policy, Principal, Profile, Provider,
    ProviderCall, ProviderError, ProviderKind, RegisteredTool, Services, Session, SessionId, Snapshot, ToolContext,
    ToolError, ToolOutput,
};
use toolwright::runtime::{Catalogue, Executor, ExecutorOptions, SystemClock};

use super::TokensArgs;
use super::player::{Player, ScriptedCall, Spent};
use super::sample::sample;
use super::task::{self, Task};
use crate::app::Global;
use crate::develop::catalogue_file::{CatalogueFile, FileProvider};
use crate::exit::{Done, Exit};
use crate::terminal::screen::{harmless, print_json, print_text};
use crate::terminal::table::{Table, name};

const EXPOSURES: [Exposure; 4] = [Exposure::Direct, Exposure::Pick, Exposure::Deferred, Exposure::Search];
/// Answers that a call may take: to search three times, to ask for a description, to call; and some at the end.
const TURNS_PER_CALL: usize = 6;

pub(super) async fn command(global: &Global, args: &TokensArgs) -> Done {
    let file = CatalogueFile::read(&args.catalogue)?;
    let task = task::read(&args.task, &file.positions_by_name())?;
    let next_result = Arc::new(Mutex::new(String::new()));
    let play = Play { snapshot: Arc::new(scripted(&file, &next_result)), file, task, next_result };
    let mut spent = Vec::with_capacity(EXPOSURES.len());
    for exposure in EXPOSURES {
        spent.push((exposure, play.under(exposure).await));
    }
    if global.json {
        print_json(&play.json(&spent))?;
    } else {
        play.print(&spent)?;
    }
    Ok(if spent.iter().all(|(_, spent)| spent.is_ok()) { Exit::Ok } else { Exit::Failed })
}

/// A task and the catalogue that it is played over.
struct Play {
    file: CatalogueFile,
    snapshot: Arc<Snapshot>,
    task: Task,
    next_result: Arc<Mutex<String>>,
}

impl Play {
    /// Plays the task through the agent loop, with the catalogue put before the model by `exposure`.
    ///
    /// # Errors
    /// Where the task stops short of its end, and why.
    async fn under(&self, exposure: Exposure) -> Result<Spent, String> {
        let player = Arc::new(Player::new(self.cues(), BASE_PROMPT.to_owned(), Arc::clone(&self.next_result)));
        let services = Arc::new(Services::none(Arc::new(SystemClock)));
        let store = Arc::new(NoStore);
        let executor = Executor::new(ExecutorOptions::new(services, store.clone(), store));
        let catalogue = Catalogue::from_snapshot(Arc::clone(&self.snapshot));
        let driver = Driver::new(executor, catalogue, Arc::clone(&player) as _, None);
        let mut state = RunState::new(self.spec(exposure), vec![Message::user(self.request())]);
        driver.run(&mut state, &options()).await.map_err(|error| error.to_string())?;
        player.spent().map_err(|(call, why)| self.stuck(call, &why))
    }

    fn spec(&self, exposure: Exposure) -> RunSpec {
        let turns = u32::try_from(TURNS_PER_CALL * (self.task.calls.len() + 1)).unwrap_or(u32::MAX);
        RunSpec {
            model: "script/player".into(),
            system: BASE_PROMPT.into(),
            max_tokens: None,
            temperature: None,
            settings: ModelSettings::default(),
            limits: Limits { turns, ..Limits::default() },
            dispatch: Dispatch::TurnEnd,
            tools: Vec::new(),
            window: None,
            exposure: Some(exposure),
            pinned: Vec::new(),
            pick_size: DEFAULT_PICK_SIZE,
            agent_tools: toolwright::agent::AgentTools::default(),
            context: toolwright::agent::ContextOptions::default(),
        }
    }

    /// What the user asks for: all steps.
    fn request(&self) -> String {
        self.task.steps.iter().zip(1..).map(|(query, number)| format!("{number}. {query}\n")).collect()
    }

    fn cues(&self) -> Vec<ScriptedCall> {
        let cue = |call: &task::Call| {
            let entry = &self.snapshot.list()[call.tool];
            let made = || entry.definition().parameters.as_ref().map_or_else(|| json!({}), sample);
            ScriptedCall {
                query: self.task.steps[call.step].clone(),
                tool: entry.wire_name.clone(),
                arguments: call.arguments.clone().unwrap_or_else(made),
                is_written: call.arguments.is_some(),
                result: call.result.clone(),
            }
        };
        self.task.calls.iter().map(cue).collect()
    }

    fn stuck(&self, call: usize, why: &str) -> String {
        let Some(task::Call { step, tool, .. }) = self.task.calls.get(call) else { return why.to_owned() };
        let (number, id, query) = (step + 1, &self.file.tools[*tool].id, &self.task.steps[*step]);
        format!("it does not finish the task: in step {number}, for `{id}` ({query}), {why}")
    }

    fn json(&self, spent: &[(Exposure, Result<Spent, String>)]) -> Value {
        let of = |spent: &Result<Spent, String>| match spent {
            Ok(Spent { definitions, results }) => {
                json!({"definition_tokens": definitions, "result_tokens": results, "total": definitions + results})
            }
            Err(why) => json!({ "error": why }),
        };
        let exposures = spent.iter().map(|(exposure, spent)| (exposure.to_string(), of(spent)));
        json!({
            "tools": self.file.tools.len(),
            "steps": self.task.steps.len(),
            "exposures": Value::Object(exposures.collect()),
        })
    }

    fn print(&self, spent: &[(Exposure, Result<Spent, String>)]) -> std::io::Result<()> {
        let (tools, steps) = (self.file.tools.len(), self.task.steps.len());
        print_text(&format!("{tools} tools, {steps} steps; estimated tokens of all requests"))?;
        let mut table = Table::new(["exposure", "definitions>", "results>", "total>"]);
        for (exposure, spent) in spent {
            let exposure = name(exposure.as_str());
            match spent {
                Ok(Spent { definitions, results }) => {
                    table.row([exposure, definitions.into(), results.into(), (definitions + results).into()]);
                }
                Err(why) => table.row_with([exposure], harmless(why)),
            }
        }
        table.print()
    }
}

fn options() -> RunOptions {
    let session = Session { id: SessionId::new("eval"), principal: Principal::owner(), root: "/".into(), agent: None };
    RunOptions {
        run_id: "eval".into(),
        session: Arc::new(session),
        policy: Arc::new(Policy::of(Profile::Trusted)),
        approver: Arc::new(ApproveAll),
        client: Arc::new(NoClient),
        cancel: Cancel::new(),
        variables: None,
        transcript: None,
    }
}

/// Nothing that is played does anything.
struct ApproveAll;

#[async_trait]
impl Approver for ApproveAll {
    async fn ask(&self, _request: &ApprovalRequest) -> ApprovalDecision {
        ApprovalDecision::Approve
    }
}

/// The catalogue of a file, with tools that give what stands on the stage.
fn scripted(file: &CatalogueFile, next_result: &Arc<Mutex<String>>) -> Snapshot {
    let listing = |inner: Arc<FileProvider>| Listing {
        tools: inner.tools.clone(),
        provider: Arc::new(ScriptedProvider { inner, next_result: Arc::clone(next_result) }),
        error: None,
        withheld: Vec::new(),
    };
    Snapshot::build(&file.providers().into_iter().map(listing).collect::<Vec<_>>())
}

struct ScriptedProvider {
    inner: Arc<FileProvider>,
    next_result: Arc<Mutex<String>>,
}

#[async_trait]
impl Provider for ScriptedProvider {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn kind(&self) -> ProviderKind {
        self.inner.kind()
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        self.inner.list().await
    }

    async fn call(&self, _call: ProviderCall<'_>, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text(self.next_result.lock().unwrap_or_else(PoisonError::into_inner).as_str()))
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn instructions(&self) -> Option<String> {
        self.inner.instructions()
    }
}
