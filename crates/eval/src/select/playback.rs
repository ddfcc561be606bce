//! Counts the tokens that the tools of a task take under each exposure: plays the task through the agent loop with a
//! scripted model, and counts the tokens of its requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_agent::{BASE_PROMPT, Driver, Limits, RunConfig, RunOptions, RunState};
use toolwright_core::catalogue::shown_tokens;
use toolwright_core::client::NoClient;
use toolwright_core::content::EstimatedTokens;
use toolwright_core::content::joined_text;
use toolwright_core::exposure::Exposure;
use toolwright_core::model::{
    CallResult, Message, ModelClient, ModelError, ModelEvents, ModelRequest, ModelResponse, RawToolCall, StopReason,
    ToolVisibility,
};
use toolwright_core::store::NoStore;
use toolwright_core::{
    ApprovalDecision, ApprovalRequest, Cancel, Health, Listing, Policy, Principal, Profile, Provider, ProviderCall,
    ProviderError, ProviderKind, RegisteredTool, Services, Session, SessionId, Snapshot, ToolContext, ToolError,
    ToolOutput,
};
use toolwright_runtime::{Catalogue, Executor, ExecutorOptions, SystemClock};

use super::catalogue_file::{CatalogueFile, FileProvider};
use super::tasks::{Call, Task};

/// The compared exposures.
pub const EXPOSURES: [Exposure; 4] = [Exposure::Direct, Exposure::Pick, Exposure::Deferred, Exposure::Search];
/// The most answers for a call: three searches, a description, the call; and some at the end.
const TURNS_PER_CALL: usize = 6;
/// The tools that find, describe and call tools.
const SEARCH: &str = "tools__search";
const DESCRIBE: &str = "tools__describe";
const CALL: &str = "tools__call";
/// Hits of a repeated search.
const MORE_HITS: usize = 10;
/// Hits of a search for the tool by its name.
const NAMED_HITS: usize = 1;
/// The deepest nesting of schemas that is filled in.
const MAX_DEPTH: usize = 8;
/// The most values that are created for one call.
const MAX_VALUES: usize = 1000;

/// A task, and its catalogue.
pub struct Playback {
    file: CatalogueFile,
    snapshot: Arc<Snapshot>,
    task: Task,
    next_result: Arc<Mutex<String>>,
}

impl Playback {
    /// Creates it for a task over the catalogue of a file.
    #[must_use]
    pub fn new(file: CatalogueFile, task: Task) -> Self {
        let next_result = Arc::new(Mutex::new(String::new()));
        Self { snapshot: Arc::new(scripted(&file, &next_result)), file, task, next_result }
    }

    /// Returns the number of tools.
    #[must_use]
    pub fn tools(&self) -> usize {
        self.file.tools.len()
    }

    /// Returns the number of steps of the task.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.task.steps.len()
    }

    /// Plays the task through the agent loop, with the catalogue exposed to the model by `exposure`.
    ///
    /// # Errors
    /// Where the task stops early, and why.
    pub async fn play(&self, exposure: Exposure) -> Result<TokensSpent, String> {
        let player = Arc::new(Player::new(self.cues(), BASE_PROMPT.to_owned(), Arc::clone(&self.next_result)));
        let services = Arc::new(Services::none(Arc::new(SystemClock)));
        let store = Arc::new(NoStore);
        let executor = Executor::new(ExecutorOptions::new(services, store.clone(), store));
        let catalogue = Catalogue::from_snapshot(Arc::clone(&self.snapshot));
        let driver = Driver::new(executor, catalogue, Arc::clone(&player) as _, None);
        let mut state = RunState::new(self.config(exposure), vec![Message::user(self.request())]);
        driver.run(&mut state, &options()).await.map_err(|error| error.to_string())?;
        player.spent().map_err(|(call, why)| self.stopped_early(call, &why))
    }

    fn config(&self, exposure: Exposure) -> RunConfig {
        let turns = u32::try_from(TURNS_PER_CALL * (self.task.calls.len() + 1)).unwrap_or(u32::MAX);
        RunConfig {
            limits: Limits { turns, ..Limits::default() },
            exposure: Some(exposure),
            ..RunConfig::new("script/player", BASE_PROMPT)
        }
    }

    /// Returns the user's request: all steps.
    fn request(&self) -> String {
        self.task.steps.iter().zip(1..).map(|(query, number)| format!("{number}. {query}\n")).collect()
    }

    fn cues(&self) -> Vec<ScriptedCall> {
        let cue = |call: &Call| {
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

    fn stopped_early(&self, call: usize, why: &str) -> String {
        let Some(Call { step, tool, .. }) = self.task.calls.get(call) else { return why.to_owned() };
        let (number, id, query) = (step + 1, &self.file.tools[*tool].id, &self.task.steps[*step]);
        format!("it does not finish the task: in step {number}, for `{id}` ({query}), {why}")
    }
}

fn options() -> RunOptions {
    let session = Session { id: SessionId::new("eval"), principal: Principal::owner(), root: "/".into(), agent: None };
    RunOptions::new(
        "eval".into(),
        Arc::new(session),
        Arc::new(Policy::of(Profile::Trusted)),
        // The played tools have no effects.
        Arc::new(|_: &ApprovalRequest| ApprovalDecision::Approve),
        Arc::new(NoClient),
        Cancel::new(),
    )
}

/// Returns the catalogue of a file, with tools that return `next_result`.
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

/// A call of the script.
#[derive(Debug)]
struct ScriptedCall {
    /// The action in words.
    query: String,
    /// Wire name of the tool.
    tool: String,
    arguments: Value,
    /// Whether the script has the arguments. If not, an error about them counts as an answer.
    is_written: bool,
    /// The tool's result.
    result: String,
}

/// Estimated tokens over all requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokensSpent {
    /// Tokens of the definitions that the model gets, and of the text about tools to find.
    pub definitions: usize,
    /// Tokens of tool results.
    pub results: usize,
}

/// Plays like a sensible model: it writes what it does next, and calls the tool if it has its definition. Otherwise it
/// searches with the step's query, reads the answer, asks for a description if a line does not show all arguments, and
/// calls: through `tools__call`, or by name if that tool does not exist. If a tool is not found, it searches again with
/// more hits, and then by the tool's name.
struct Player {
    cues: Vec<ScriptedCall>,
    /// The system prompt of the run.
    system: String,
    progress: Mutex<Progress>,
    /// The result of the tool that is called next.
    next_result: Arc<Mutex<String>>,
}

#[derive(Default)]
struct Progress {
    /// The number of finished calls.
    done: usize,
    /// Whether the last answer called the tool of the step.
    is_calling: bool,
    searches: usize,
    is_described: bool,
    requests: usize,
    spent: TokensSpent,
    failure: Option<String>,
}

/// The model's next action.
enum PlayerAction {
    Call(Value),
    CallFound(Value),
    Search(Value),
    Describe(Value),
    End,
}

impl Player {
    fn new(cues: Vec<ScriptedCall>, system: String, next_result: Arc<Mutex<String>>) -> Self {
        Self { cues, system, progress: Mutex::default(), next_result }
    }

    /// Returns the usage of the whole script.
    ///
    /// # Errors
    /// The first call that could not be made, by its position, and why.
    fn spent(&self) -> Result<TokensSpent, (usize, String)> {
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

    /// A function that counts the tokens of a request.
    fn count(&self, request: &ModelRequest, spent: &mut TokensSpent) {
        let tools = request
            .tools
            .iter()
            .filter(|tool| tool.exposed != ToolVisibility::Deferred || is_loaded(request, &tool.name));
        spent.definitions += tools.map(shown_tokens).sum::<usize>();
        let index = request.system.strip_prefix(self.system.trim_end()).unwrap_or_default();
        spent.definitions += EstimatedTokens::of_bytes(index.trim().len());
        let of_result = |result: &CallResult| EstimatedTokens::of_bytes(joined_text(&result.content).len());
        spent.results += results(request).map(of_result).sum::<usize>();
    }

    /// Takes the result of the last call.
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
            |name: &str| request.tools.iter().any(|tool| tool.name == name && tool.exposed != ToolVisibility::Deferred);
        if is_shown(&cue.tool) || is_loaded(request, &cue.tool) {
            return PlayerAction::Call(cue.arguments.clone());
        }
        if let Some(line) = line_of(request, &cue.tool) {
            // This character marks a line that is cut, or does not show the arguments.
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
            calls: vec![RawToolCall { id, name, arguments: arguments.to_string() }],
            stop: StopReason::ToolCalls,
            ..ModelResponse::default()
        }
    }

    /// Prepares the tool of the script for its call, and returns its name.
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

/// Searches for the tool by its name: the first hit of a name is its tool.
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

/// Returns whether a result has loaded a deferred tool.
fn is_loaded(request: &ModelRequest, tool: &str) -> bool {
    results(request).any(|result| result.loads.iter().any(|name| name == tool))
}

/// Returns the last line about a tool in search results.
fn line_of(request: &ModelRequest, tool: &str) -> Option<String> {
    let searches: Vec<_> = results(request).filter(|result| result.name == SEARCH).collect();
    let is_about = |line: &&str| line.strip_prefix(tool).is_some_and(|rest| rest.starts_with('('));
    searches.into_iter().rev().find_map(|result| joined_text(&result.content).lines().find(is_about).map(str::to_owned))
}

/// Returns arguments with only what `schema` requires. Ignores patterns, formats and conditions.
fn sample(schema: &Value) -> Value {
    let mut builder = SampleBuilder { root: schema, left: MAX_VALUES };
    match builder.value(schema, 0) {
        arguments @ Value::Object(_) => arguments,
        _ => Map::new().into(),
    }
}

struct SampleBuilder<'a> {
    root: &'a Value,
    left: usize,
}

impl SampleBuilder<'_> {
    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        if depth > MAX_DEPTH || self.left == 0 {
            return Value::Null;
        }
        self.left -= 1;
        for given in ["const", "default"] {
            if let Some(value) = schema.get(given) {
                return value.clone();
            }
        }
        for list in ["enum", "examples"] {
            if let Some(value) = schema.get(list).and_then(|list| list.get(0)) {
                return value.clone();
            }
        }
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
        if let Some(target) = target.and_then(|path| self.root.pointer(path)) {
            return self.value(target, depth + 1);
        }
        for list in ["anyOf", "oneOf"] {
            if let Some(first) = schema.get(list).and_then(|list| list.get(0)) {
                return self.value(first, depth + 1);
            }
        }
        self.of_type(schema, depth)
    }

    fn of_type(&mut self, schema: &Value, depth: usize) -> Value {
        let name = match schema.get("type") {
            Some(Value::Array(names)) => names.iter().find(|name| *name != "null").and_then(Value::as_str),
            Some(name) => name.as_str(),
            None if schema.get("items").is_some() => Some("array"),
            None if schema.get("properties").is_some() || schema.get("allOf").is_some() => Some("object"),
            None => None,
        };
        match name {
            Some("object" | "dict") => self.object(schema, depth),
            Some("array" | "tuple" | "list") => {
                let count = number(schema, "minItems").map_or(0, |count| count as usize).min(MAX_VALUES);
                let items = schema.get("items").cloned().unwrap_or_default();
                (0..count).map(|_| self.value(&items, depth + 1)).collect()
            }
            Some("integer" | "number" | "float") => {
                let above = number(schema, "exclusiveMinimum").map(|least| least.floor() + 1.0);
                let least = number(schema, "minimum").or(above).unwrap_or(0.0);
                let most = number(schema, "maximum").unwrap_or(f64::MAX);
                let number = if (0.0..=most).contains(&1.0) && least <= 1.0 { 1.0 } else { least };
                if number.fract() == 0.0 { (number as i64).into() } else { number.into() }
            }
            Some("boolean") => true.into(),
            Some("null") => Value::Null,
            _ => {
                let length = number(schema, "minLength").map_or(1, |length| length as usize).clamp(1, MAX_VALUES);
                "x".repeat(length).into()
            }
        }
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let mut members = Map::new();
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            if let Value::Object(more) = self.value(part, depth + 1) {
                members.extend(more);
            }
        }
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        for name in required.filter_map(Value::as_str) {
            let member = schema.get("properties").and_then(|properties| properties.get(name)).unwrap_or(&Value::Null);
            let value = self.value(member, depth + 1);
            members.insert(name.to_owned(), value);
        }
        members.into()
    }
}

fn number(schema: &Value, keyword: &str) -> Option<f64> {
    schema.get(keyword)?.as_f64()
}

#[cfg(test)]
mod tests {
    use toolwright_core::schema::CompiledSchema;

    use super::*;

    fn check(schema: Value, expect: Value) {
        let arguments = sample(&schema);
        assert_eq!(arguments, expect, "{schema}");
        if let Ok(compiled) = CompiledSchema::compile(&schema) {
            assert!(compiled.is_valid(&arguments), "{schema}");
        }
    }

    #[test]
    fn required_properties_get_samples() {
        check(json!({"type": "object", "properties": {"a": {"type": "string"}}}), json!({}));
        check(
            json!({"type": "object", "required": ["s", "n", "e", "d", "l", "o", "b"], "properties": {
                "s": {"type": "string", "minLength": 3},
                "n": {"type": ["null", "integer"], "minimum": 7},
                "e": {"enum": ["up", "down"]},
                "d": {"type": "number", "default": 2.5},
                "l": {"type": "array", "minItems": 2, "items": {"type": "boolean"}},
                "o": {"$ref": "#/$defs/o"},
                "b": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, {"type": "null"}], "default": null},
            }, "$defs": {"o": {"type": "object", "required": ["x"], "properties": {"x": {"const": 1}}}}}),
            json!({"s": "xxx", "n": 7, "e": "up", "d": 2.5, "l": [true, true], "o": {"x": 1}, "b": null}),
        );
        check(json!({"type": "dict", "required": ["f"], "properties": {"f": {"type": "float"}}}), json!({"f": 1}));
        for no_object in [json!({"type": "string"}), json!(3)] {
            assert_eq!(sample(&no_object), json!({}), "{no_object}");
        }
        check(
            json!({"allOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]}),
            json!({"a": "x", "b": "x"}),
        );
    }

    #[test]
    fn samples_of_recursive_schemas_end() {
        let list =
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}});
        assert!(sample(&list).is_object());
    }
}
