//! `policy test`: shows the policy's decision about a call, and the reason, without making the call.

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use toolwright::Toolwright;
use toolwright::config::{Config, policy_file};
use toolwright::core::catalogue::{CallScope, Entry};
use toolwright::core::json::fault;
use toolwright::core::name_table::Resolution;
use toolwright::core::policy::{Decision, EffectSelector, HintTrust, PolicyQuery, ToolNote, UserRequest};
use toolwright::core::taint::{Taint, TaintedArgument};
use toolwright::core::{
    CallId, Caller, Effects, Policy, Principal, Profile, RawArguments, Session, Snapshot, ToolCall, ToolDefinition,
    ToolId, check, pointer,
};
use toolwright_eval::select::RecordFields;

use crate::app::{GlobalOptions, open_config, usable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::input;
use crate::terminal::screen::print_json;
use crate::use_tools::call::LIST_WAIT;
use crate::use_tools::tools;

/// The namespace of tools that only a policy or a line names, if it names none.
const UNLISTED: &str = "unlisted";

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Show which rule decides a call, and why; nothing runs. Prints JSON: {effect, rule, reason}.
    Test(PolicyTest),
}

#[derive(Debug, Args)]
pub(crate) struct PolicyTest {
    /// The tool: wire name, id, alias or bare name; or any name that the policy's `tools` cover.
    #[arg(required_unless_present = "jsonl")]
    tool: Option<String>,
    /// Arguments as JSON; `-` reads them from standard input. Default: `{}`.
    #[arg(value_name = "ARGS|-", allow_negative_numbers = true)]
    arguments: Option<String>,
    /// File with the policy: `profile`, `rules` and `tools`, at the top level or under `policy`. Default: the
    /// configuration's policy.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The user's request in the user's own words, for conditions that use `request`. Default: unknown.
    #[arg(long, value_name = "TEXT")]
    request: Option<String>,
    /// An argument whose value comes from an untrusted tool: its name, or a JSON Pointer into the arguments
    /// (repeatable).
    #[arg(long = "tainted", value_name = "ARG")]
    tainted: Vec<String>,
    /// A role of the caller (repeatable).
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Standard input has one JSON object a line, {tool, arguments?, request?, roles?, tainted?, effects?, tags?}; each
    /// gets one line of output. Effects and tags of a line apply to that line only.
    #[arg(long)]
    jsonl: bool,
}

pub(crate) async fn command(global: &GlobalOptions, command: &PolicyCommand) -> CommandResult {
    let PolicyCommand::Test(test) = command;
    let settings = usable(global)?;
    let policy = policy(test.policy.as_deref(), &settings)?;
    let app = open_config(global, settings).await?;
    let tester = PolicyTester { app: &app, policy, test };
    let done = if test.jsonl { tester.lines().await } else { tester.one().await };
    app.shut_down().await;
    done
}

fn policy(file: Option<&Path>, settings: &Config) -> Result<Policy, Failure> {
    let Some(file) = file else { return Ok(settings.policy(None, Profile::Ask)) };
    let section = policy_file(&input::read(file)?, file)
        .map_err(|problems| Failure::usage(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))?;
    Ok(section.policy_for(section.profile.unwrap_or_default()))
}

/// A call to decide about.
struct TestedCall {
    tool: String,
    arguments: Value,
    request: Option<Arc<UserRequest>>,
    roles: Vec<String>,
    tainted: Vec<TaintedArgument>,
    /// The declared effects of the tool.
    effects: Option<EffectSelector>,
    tags: Vec<String>,
}

/// Decides about calls, and looks up their tools.
struct PolicyTester<'a> {
    app: &'a Arc<Toolwright>,
    policy: Policy,
    test: &'a PolicyTest,
}

impl PolicyTester<'_> {
    async fn one(&self) -> CommandResult {
        let text = match self.test.arguments.as_deref() {
            Some("-") => input::read(Path::new("-"))?,
            Some(text) => text.to_owned(),
            None => "{}".to_owned(),
        };
        let arguments = serde_json::from_str(&text)
            .map_err(|error| Failure::failed(format!("the arguments are not JSON: {}", fault(&error))))?;
        let asked = TestedCall {
            tool: self.test.tool.clone().unwrap_or_default(),
            arguments,
            request: self.test.request.as_deref().map(|text| Arc::new(UserRequest::new([text]))),
            roles: self.test.roles.clone(),
            tainted: tainted(&self.test.tainted),
            effects: None,
            tags: Vec::new(),
        };
        print_json(&json!(self.decide(&asked).await?))?;
        Ok(Exit::Ok)
    }

    async fn lines(&self) -> CommandResult {
        let bytes = input::read_bytes(Path::new("-"))?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let mut whole = Exit::Ok;
        for line in input::without_mark(&bytes).split_inclusive(|byte| *byte == b'\n') {
            let decided = match self.read_call(line) {
                Ok(asked) => self.decide(&asked).await,
                Err(error) => Err(Failure::failed(error)),
            };
            match decided {
                Ok(decision) => writeln!(out, "{}", json!(decision))?,
                Err(failure) => {
                    writeln!(out, "{}", failure.to_json())?;
                    whole = failure.exit;
                }
            }
        }
        out.flush()?;
        Ok(whole)
    }

    /// Parses one line.
    fn read_call(&self, line: &[u8]) -> Result<TestedCall, String> {
        let record: Value =
            serde_json::from_slice(line).map_err(|error| format!("the line is not JSON: {}", fault(&error)))?;
        let mut line = RecordFields::of(record)?;
        let tool = match line.text("tool")?.or(line.text("name")?) {
            Some(tool) => tool,
            None => self.test.tool.clone().filter(|tool| tool != "-").ok_or("it has no `tool`")?,
        };
        let request = match line.texts("request")? {
            said if !said.is_empty() => Some(UserRequest::new(said.iter().map(String::as_str))),
            _ => self.test.request.as_deref().map(|text| UserRequest::new([text])),
        };
        let mut roles = line.texts("roles")?;
        roles.extend(self.test.roles.iter().cloned());
        Ok(TestedCall {
            tool,
            arguments: line.value(&["arguments", "args"]).unwrap_or_else(|| json!({})),
            request: request.map(Arc::new),
            roles,
            tainted: tainted(line.texts("tainted")?.iter().chain(&self.test.tainted)),
            effects: effects(&mut line)?,
            tags: line.texts("tags")?,
        })
    }

    async fn decide(&self, asked: &TestedCall) -> Result<Decision, Failure> {
        let principal = Principal { roles: asked.roles.clone(), ..Principal::owner() };
        let session = Session { principal, ..Session::clone(&self.app.session("policy-test")) };
        let found = self.find(asked).await?;
        let mut policy = std::borrow::Cow::Borrowed(&self.policy);
        if asked.effects.is_some() || !asked.tags.is_empty() {
            let note = ToolNote {
                tool: found.definition().id.as_str().to_owned(),
                effects: asked.effects.unwrap_or_default(),
                tags: asked.tags.clone(),
            };
            policy.to_mut().tools.insert(0, note);
        }
        Ok(found.decide(&policy, asked, &session))
    }

    /// Looks up a tool: in the present catalogue, then in the policy or the line, then in the catalogue with its
    /// servers connected.
    async fn find(&self, asked: &TestedCall) -> Result<TestedTool, Failure> {
        let snapshot = self.app.catalogue().snapshot();
        if let Some(entry) = find_entry(&snapshot, &asked.tool) {
            return Ok(TestedTool::Listed(entry, snapshot));
        }
        let id = unlisted(&asked.tool)?;
        let spoken_of = asked.effects.is_some() || self.policy.tools.iter().any(|note| note.covers(&id));
        if spoken_of {
            let definition = ToolDefinition { effects: Effects::UNKNOWN, ..ToolDefinition::new(id, "", None) };
            return Ok(TestedTool::Unlisted(Box::new(definition)));
        }
        self.app.list_for(&asked.tool, LIST_WAIT).await;
        let snapshot = self.app.catalogue().snapshot();
        match snapshot.resolve(&asked.tool) {
            Resolution::Found(index, _) => {
                Ok(TestedTool::Listed(Arc::clone(&snapshot.list()[index]), Arc::clone(&snapshot)))
            }
            Resolution::Unknown(near) => {
                let failure = tools::unknown(&snapshot, &asked.tool, &near);
                let remedy = "or say what it does under `tools` of the policy, or with `effects` in its line";
                Err(Failure { message: format!("{}; {remedy}", failure.message), ..failure })
            }
        }
    }
}

/// Returns the places declared to derive from an untrusted tool.
fn tainted<'a>(places: impl IntoIterator<Item = &'a String>) -> Vec<TaintedArgument> {
    let Ok(tool) = ToolId::foreign(UNLISTED, "untrusted") else { return Vec::new() };
    let place = |written: &String| {
        let mut path = String::new();
        match written.starts_with('/') {
            true => path.clone_from(written),
            false => written.split('.').for_each(|step| pointer::push(&mut path, step)),
        }
        TaintedArgument { path, from: Taint::of(&tool) }
    };
    places.into_iter().map(place).collect()
}

fn find_entry(snapshot: &Snapshot, tool: &str) -> Option<Arc<Entry>> {
    match snapshot.resolve(tool) {
        Resolution::Found(index, matched) if !matched.is_guess() => Some(Arc::clone(&snapshot.list()[index])),
        _ => None,
    }
}

/// A tool to decide about.
enum TestedTool {
    /// It is in the catalogue.
    Listed(Arc<Entry>, Arc<Snapshot>),
    /// Only the policy or the line describes it.
    Unlisted(Box<ToolDefinition>),
}

impl TestedTool {
    fn definition(&self) -> &ToolDefinition {
        match self {
            Self::Listed(entry, _) => entry.definition(),
            Self::Unlisted(definition) => definition,
        }
    }

    /// Decides as the executor does, with the arguments after validation if they are valid.
    fn decide(&self, policy: &Policy, asked: &TestedCall, session: &Session) -> Decision {
        let query = PolicyQuery {
            definition: self.definition(),
            trust: HintTrust::Trusted,
            principal: &session.principal,
            root: &session.root,
            scope: CallScope::Anywhere,
            unvalidated: None,
            arguments: &asked.arguments,
            request: asked.request.as_ref(),
            tainted: &asked.tainted,
        };
        let Self::Listed(entry, snapshot) = self else { return policy.decide(&query) };
        let decide_as = |entry: &Entry, definition: &ToolDefinition, arguments: &Value, unvalidated| {
            let scope = entry.provider.scope(entry.id(), arguments, session);
            policy.decide(&PolicyQuery {
                definition,
                trust: entry.provider.trust(),
                scope,
                unvalidated,
                arguments,
                ..query
            })
        };
        let decide = |entry: &Entry, arguments: &Value, unvalidated| {
            decide_as(entry, entry.definition(), arguments, unvalidated)
        };
        let call = ToolCall::new(
            CallId::new("policy-test"),
            entry.id().as_str().to_owned(),
            RawArguments::Value(asked.arguments.clone()),
        );
        let caller = Caller::of(&session.principal);
        let Ok(valid) = check(call, snapshot, caller) else {
            // An incomplete call has the effects of the tool that would run.
            let definition = ToolDefinition { effects: entry.effects(), ..entry.definition().clone() };
            return decide_as(entry, &definition, &asked.arguments, None);
        };
        let judged = valid.judge(snapshot, caller, |call| decide(&call.entry, &call.arguments, call.unvalidated));
        // An activity with invalid arguments is judged anyway, as is any other invalid call.
        judged.unwrap_or_else(|rejection| decide(rejection.entry.as_ref().unwrap_or(entry), &valid.arguments, None))
    }
}

/// Returns the id of a tool that is in no catalogue: an id unchanged, a wire name or a bare name as a third-party
/// tool's.
fn unlisted(name: &str) -> Result<ToolId, Failure> {
    let name = name.trim();
    let (namespace, raw) = name
        .split_once("__")
        .or_else(|| name.split_once(':'))
        .filter(|(namespace, raw)| !namespace.is_empty() && !raw.is_empty())
        .unwrap_or((UNLISTED, name));
    ToolId::try_parse(name)
        .or_else(|| ToolId::foreign(namespace, raw).ok())
        .map_or_else(|| ToolId::foreign(UNLISTED, name), Ok)
        .map_err(Failure::usage)
}

/// Reads the effects of a line: ours, or the hints of an MCP server (`readOnlyHint`, …).
fn effects(line: &mut RecordFields) -> Result<Option<EffectSelector>, String> {
    let flag = |members: &Map<String, Value>, ours: &str, hint: &str| {
        members.get(ours).or_else(|| members.get(hint)).and_then(Value::as_bool)
    };
    match line.value(&["effects", "annotations"]) {
        None => Ok(None),
        Some(Value::Object(members)) => Ok(Some(EffectSelector {
            read_only: flag(&members, "read_only", "readOnlyHint"),
            destructive: flag(&members, "destructive", "destructiveHint"),
            idempotent: flag(&members, "idempotent", "idempotentHint"),
            open_world: flag(&members, "open_world", "openWorldHint"),
        })),
        Some(_) => Err("its `effects` are not an object".into()),
    }
}
