//! A model client that follows a script and counts the tokens of its requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright::core::Cancel;
use toolwright::core::catalogue::shown_tokens;
use toolwright::core::content::joined_text;
use toolwright::core::context::EstimatedTokens;
use toolwright::core::model::{
    CallResult, Exposed, Message, ModelClient, ModelError, ModelEvents, ModelRequest, ModelResponse, StopReason,
    WrittenCall,
};

/// What tools are found, described and called with.
const SEARCH: &str = "tools__search";
const DESCRIBE: &str = "tools__describe";
const CALL: &str = "tools__call";
/// Hits of a search that looks again.
const MORE_HITS: usize = 10;
/// Hits of a search for the tool itself, by its name.
const NAMED_HITS: usize = 1;

/// A call of the script.
#[derive(Debug)]
pub(super) struct ScriptedCall {
    /// What is to be done.
    pub(super) query: String,
    /// Wire name of the tool.
    pub(super) tool: String,
    pub(super) arguments: Value,
    /// Whether the script wrote the arguments. If not, a refusal of them counts as an answer.
    pub(super) is_written: bool,
    /// What the tool gives.
    pub(super) result: String,
}

/// Estimated tokens over all requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// Of the definitions before the model, and of the line that names what there is to find.
    pub(super) definitions: usize,
    /// Of the results of tools.
    pub(super) results: usize,
}

/// Plays like a sensible model: it says what it does next and calls the tool if it is before it; else it searches
/// with the step's query, reads the answer, asks for a description where a line does not show all arguments, and
/// calls: through `tools__call`, or by name where there is no such tool. What does not turn up it looks for again,
/// with more hits, and then by the tool's name.
pub(super) struct Player {
    cues: Vec<ScriptedCall>,
    /// The system prompt as the run was given it.
    system: String,
    progress: Mutex<Progress>,
    /// What the tool that is called next gives.
    next_result: Arc<Mutex<String>>,
}

#[derive(Default)]
struct Progress {
    /// Calls that are done.
    done: usize,
    /// Whether the last answer called the tool of the step.
    is_calling: bool,
    searches: usize,
    is_described: bool,
    requests: usize,
    spent: Spent,
    failure: Option<String>,
}

/// What the model does.
enum PlayerAction {
    Call(Value),
    CallFound(Value),
    Search(Value),
    Describe(Value),
    End,
}

impl Player {
    pub(super) fn new(cues: Vec<ScriptedCall>, system: String, next_result: Arc<Mutex<String>>) -> Self {
        Self { cues, system, progress: Mutex::default(), next_result }
    }

    /// What was spent on the whole script.
    ///
    /// # Errors
    /// The first call that could not be made, by its position, and why.
    pub(super) fn spent(&self) -> Result<Spent, (usize, String)> {
        let progress = self.progress();
        match &progress.failure {
            Some(why) => Err((progress.done, why.clone())),
            None if progress.done < self.cues.len() => Err((progress.done, "the run ended before it".into())),
            None => Ok(progress.spent),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what a request carries.
    fn count(&self, request: &ModelRequest, spent: &mut Spent) {
        let tools =
            request.tools.iter().filter(|tool| tool.exposed != Exposed::Deferred || is_loaded(request, &tool.name));
        spent.definitions += tools.map(shown_tokens).sum::<usize>();
        let index = request.system.strip_prefix(self.system.trim_end()).unwrap_or_default();
        spent.definitions += EstimatedTokens::of_bytes(index.trim().len());
        let of_result = |result: &CallResult| EstimatedTokens::of_bytes(joined_text(&result.content).len());
        spent.results += results(request).map(of_result).sum::<usize>();
    }

    /// Takes notice of how the call that was made last ended.
    fn take_result(&self, request: &ModelRequest, progress: &mut Progress) {
        if !std::mem::take(&mut progress.is_calling) {
            return;
        }
        match (results(request).last(), self.cues.get(progress.done)) {
            (Some(result), Some(cue)) if result.is_error && cue.is_written => {
                progress.failure = Some(format!("the call of {} failed: {}", cue.tool, joined_text(&result.content)));
            }
            _ => {
                progress.done += 1;
                (progress.searches, progress.is_described) = (0, false);
            }
        }
    }

    fn next(&self, request: &ModelRequest, progress: &mut Progress) -> PlayerAction {
        let Some(cue) = self.cues.get(progress.done).filter(|_| progress.failure.is_none()) else {
            return PlayerAction::End;
        };
        let is_shown =
            |name: &str| request.tools.iter().any(|tool| tool.name == name && tool.exposed != Exposed::Deferred);
        if is_shown(&cue.tool) || is_loaded(request, &cue.tool) {
            return PlayerAction::Call(cue.arguments.clone());
        }
        if let Some(line) = line_of(request, &cue.tool) {
            // A line that is cut, or knows no arguments, says so by this sign.
            if line.contains('…') && !std::mem::replace(&mut progress.is_described, true) {
                return match is_shown(DESCRIBE) {
                    true => PlayerAction::Describe(json!({"names": [cue.tool]})),
                    false => named(cue),
                };
            }
            return match is_shown(CALL) {
                true => PlayerAction::CallFound(json!({"name": cue.tool, "arguments": cue.arguments})),
                false => PlayerAction::Call(cue.arguments.clone()),
            };
        }
        progress.searches += 1;
        match progress.searches {
            1 if is_shown(SEARCH) => PlayerAction::Search(json!({"query": cue.query})),
            2 if is_shown(SEARCH) => PlayerAction::Search(json!({"query": cue.query, "limit": MORE_HITS})),
            3 if is_shown(SEARCH) => named(cue),
            _ => {
                progress.failure = Some(format!("the tool {} never turned up", cue.tool));
                PlayerAction::End
            }
        }
    }

    fn answer(&self, played: PlayerAction, progress: &mut Progress) -> ModelResponse {
        let query = |done: usize| self.cues.get(done).map_or("", |cue| cue.query.as_str());
        let (name, arguments, about) = match played {
            PlayerAction::End => return ModelResponse { text: "That is all.".into(), ..ModelResponse::default() },
            PlayerAction::Search(arguments) => (SEARCH.to_owned(), arguments, query(progress.done)),
            PlayerAction::Describe(arguments) => (DESCRIBE.to_owned(), arguments, query(progress.done)),
            PlayerAction::Call(arguments) => (self.begin(progress), arguments, query(progress.done + 1)),
            PlayerAction::CallFound(arguments) => {
                self.begin(progress);
                (CALL.to_owned(), arguments, query(progress.done + 1))
            }
        };
        let id = format!("call_{}", progress.requests);
        ModelResponse {
            text: about.to_owned(),
            calls: vec![WrittenCall { id, name, arguments: arguments.to_string() }],
            stop: StopReason::ToolCalls,
            ..ModelResponse::default()
        }
    }

    /// Sets the stage for the tool of the script, whose name it returns.
    fn begin(&self, progress: &mut Progress) -> String {
        progress.is_calling = true;
        let Some(cue) = self.cues.get(progress.done) else { return String::new() };
        self.next_result.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&cue.result);
        cue.tool.clone()
    }
}

#[async_trait]
impl ModelClient for Player {
    async fn complete(
        &self,
        _model: &str,
        request: &ModelRequest,
        _events: &dyn ModelEvents,
        _cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let progress = &mut *self.progress();
        progress.requests += 1;
        self.count(request, &mut progress.spent);
        self.take_result(request, progress);
        let played = self.next(request, progress);
        Ok(self.answer(played, progress))
    }

    fn has_tool_search(&self, _model: &str) -> bool {
        true
    }
}

/// To look for the tool by its name: the first hit of a name is its tool.
fn named(cue: &ScriptedCall) -> PlayerAction {
    PlayerAction::Search(json!({"query": cue.tool, "limit": NAMED_HITS}))
}

fn results(request: &ModelRequest) -> impl Iterator<Item = &CallResult> {
    let results = request.messages.iter().filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    results.flatten()
}

/// Whether a result has put a deferred tool before the model.
fn is_loaded(request: &ModelRequest, tool: &str) -> bool {
    results(request).any(|result| result.loads.iter().any(|name| name == tool))
}

/// The latest line of a search's answer that is about a tool.
fn line_of(request: &ModelRequest, tool: &str) -> Option<String> {
    let searches: Vec<_> = results(request).filter(|result| result.name == SEARCH).collect();
    let is_about = |line: &&str| line.strip_prefix(tool).is_some_and(|rest| rest.starts_with('('));
    searches.into_iter().rev().find_map(|result| joined_text(&result.content).lines().find(is_about).map(str::to_owned))
}
