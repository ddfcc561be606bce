//! Agents: the entries of `agents`, and files in agent folders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};
use toolwright_agent::ReportConfig;
use toolwright_core::agents::{AgentConfig, NameError, check_name, find_cycle, legal_name, unknown_tools};
use toolwright_core::model::is_replay;
use toolwright_core::pattern::nearest;
use toolwright_core::policy::Effect;
use toolwright_core::store::channel::Channels;
use toolwright_core::trigger::{TriggerCondition, TriggerConfig};

use super::claude_agents::{is_model_alias, translate};
use super::files::folders::{DefinitionFolder, FolderKind};
use super::files::front_matter::{front_matter, split};
use super::files::node::{Data, Member, Node, Problem, Severity, SourceLocation};
use super::sections::check::{FOREIGN_KEYS, check, entry_schema, snake_case};
use super::sections::variables::ResolveScope;
use super::skills::SkillEntry;

/// A usable agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentEntry {
    /// Its configuration.
    pub config: AgentConfig,
    /// The place of its definition.
    pub at: SourceLocation,
}

/// An agent before the agents are checked together.
struct AgentDraft {
    config: AgentConfig,
    at: SourceLocation,
    /// The tree that it was read from, for the places of its keys.
    node: Node,
    /// The prefix of a field in messages.
    prefix: String,
}

impl AgentDraft {
    fn problem(&self, severity: Severity, key: &str, message: String, remedy: impl Into<String>) -> Problem {
        let at = self.node.get(key).map_or(&self.at, |member| &member.at);
        Problem::new(severity, at, format!("{}{key}", self.prefix), message, remedy)
    }

    /// A problem of a trigger, by its place in the list.
    fn trigger_problem(&self, severity: Severity, index: usize, message: &str, remedy: impl Into<String>) -> Problem {
        let message = format!("trigger {}{message}", index + 1);
        let problem = self.problem(severity, "triggers", message, remedy);
        let line = self.trigger_nodes().get(index).map(|node| node.at.line);
        Problem { line: line.or(problem.line), ..problem }
    }

    fn trigger_nodes(&self) -> &[Node] {
        match self.node.get("triggers").map(|member| &member.value.data) {
            Some(Data::List(nodes)) => nodes,
            _ => &[],
        }
    }
}

/// The known names that agents may use.
pub(super) struct KnownNames<'a> {
    /// Aliases of models.
    pub(super) aliases: &'a indexmap::IndexMap<String, String>,
    /// Models in the configuration.
    pub(super) models: &'a [&'a str],
    /// Providers of models.
    pub(super) providers: &'a [String],
    /// Names of built-in tools. If empty, no tool names are checked.
    pub(super) tools: &'a [String],
    /// Namespaces of sources whose tools are not known yet.
    pub(super) sources: &'a [String],
    /// The configured channels.
    pub(super) channels: &'a Channels,
    /// The existing skills.
    pub(super) skills: &'a [SkillEntry],
}

/// Loads the agents of a configuration, in order: entries, then those of the folders. Of agents with the same name the
/// first is used.
pub(super) fn load(
    entries: Vec<Member>,
    folders: &[DefinitionFolder],
    names: &KnownNames<'_>,
    scope: &mut ResolveScope<'_>,
) -> Vec<AgentEntry> {
    let mut drafts: Vec<AgentDraft> = entries.into_iter().filter_map(|member| entry(member, scope)).collect();
    for folder in folders.iter().filter(|folder| folder.kind == FolderKind::Agents) {
        for (path, text) in &folder.files {
            let file: Arc<Path> = Arc::from(path.as_path());
            match text {
                Ok(text) if folder.kind.is_document(path, text) => {}
                Ok(text) => drafts.extend(read(text, &file, scope.problems)),
                Err(why) => {
                    let remedy = "give it the text of an agent, or remove it";
                    scope.problems.push(Problem::with_file(Severity::EntryDisabled, path, why.clone(), remedy));
                }
            }
        }
    }
    let problems = &mut *scope.problems;
    drafts.retain_mut(|draft| check_agent(draft, names, problems));
    dedup_by_name(&mut drafts, problems);
    let is_off = |draft: &mut AgentDraft| draft.config.enabled == Some(false);
    let off: BTreeSet<String> = drafts.extract_if(.., is_off).map(|draft| draft.config.name).collect();
    check_destinations(&mut drafts, off.clone(), problems);
    check_agents(&drafts, &off, problems);
    drafts.into_iter().map(|AgentDraft { config, at, .. }| AgentEntry { config, at }).collect()
}

/// Reads an agent file; `None` if it is unusable. Errors are added to `problems`, and affect only this agent.
fn read(text: &str, file: &Arc<Path>, problems: &mut Vec<Problem>) -> Option<AgentDraft> {
    let mut found = Vec::new();
    let draft = parse(text, file, &mut found);
    let is_broken = draft.is_none() || found.iter().any(|problem| problem.severity != Severity::Warning);
    problems.extend(found.into_iter().map(|problem| {
        let severity = problem.severity.min(Severity::EntryDisabled);
        Problem { severity, ..problem }
    }));
    draft.filter(|_| !is_broken)
}

fn parse(text: &str, file: &Arc<Path>, problems: &mut Vec<Problem>) -> Option<AgentDraft> {
    let (front, body) = match split(text) {
        Ok(parts) => parts,
        Err(why) => {
            let remedy = "begin it with `---`, lines like `name: reviewer`, and `---`; the agent's instructions follow";
            problems.push(Problem::with_file(Severity::EntryDisabled, file, why, remedy));
            return None;
        }
    };
    let mut node = match front_matter(front, file) {
        Ok(node) => node,
        Err(problem) => {
            problems.push(problem);
            return None;
        }
    };
    let Data::Map(members) = &mut node.data else {
        let message = format!("its front matter holds {}, where a mapping belongs", node.kind());
        problems.push(Problem::new(
            Severity::EntryDisabled,
            &node.at,
            "",
            message,
            "write lines like `name: reviewer`",
        ));
        return None;
    };
    for member in members {
        member.key = snake_case(&member.key).replace('-', "_");
    }
    translate(&mut node, problems);
    let name = node.take("name");
    check(&mut node, schema(), problems);
    let mut config: AgentConfig = match serde_json::from_value(node.to_value()) {
        Ok(config) => config,
        Err(error) => {
            let remedy = "compare it with `agents` in `toolwright config schema`";
            problems.push(Problem::with_file(Severity::EntryDisabled, file, error.to_string(), remedy));
            return None;
        }
    };
    let body = body.trim();
    if config.prompt.is_empty() {
        body.clone_into(&mut config.prompt);
    } else if !body.is_empty() {
        let at = &node.get("prompt").map_or(&node.at, |member| &member.at).clone();
        let message = "the instructions stand both in the front matter and after it";
        problems.push(Problem::new(Severity::EntryDisabled, at, "prompt", message, "keep one of them"));
    }
    // An agent without a name has that of its file.
    let stem = || file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let written = name.as_ref().and_then(|name| name.value.text().map(str::trim)).filter(|name| !name.is_empty());
    let written = written.map_or_else(stem, str::to_owned);
    config.name = legal_name(&written);
    let at = name.as_ref().map_or_else(|| node.at.clone(), |name| name.at.clone());
    if config.name != written && !config.name.is_empty() {
        let message = format!("the agent `{written}` is called `{}` here", config.name);
        let remedy = "a name has lower-case letters, digits, `_` and `-`";
        problems.push(Problem::new(Severity::Warning, &at, "name", message, remedy));
    }
    Some(AgentDraft { config, at, node, prefix: String::new() })
}

/// Returns the schema of front matter: that of an entry of `agents`, except that unknown keys only warn.
fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let mut schema = entry_schema("agents").clone();
        if let Some(object) = schema.as_object_mut() {
            object.remove("additionalProperties");
            object.insert(FOREIGN_KEYS.to_owned(), json!(true));
        }
        schema
    })
}

fn entry(mut member: Member, scope: &mut ResolveScope<'_>) -> Option<AgentDraft> {
    let mut config: AgentConfig = scope.entry(&mut member, entry_schema("agents"), "agents")?;
    config.name.clone_from(&member.key);
    let prefix = format!("agents.{}.", member.key);
    Some(AgentDraft { config, at: member.at, node: member.value, prefix })
}

/// Checks an agent by itself, and replaces aliases of models. Returns whether it is usable.
fn check_agent(draft: &mut AgentDraft, names: &KnownNames<'_>, problems: &mut Vec<Problem>) -> bool {
    let before = problems.len();
    let out = Severity::EntryDisabled;
    if let Err(error) = check_name(&draft.config.name) {
        problems.push(draft.problem(out, "name", error.to_string(), "rename it"));
    }
    let schema = draft.config.output_schema.clone().map(serde_json::Value::Object);
    if let Some(Err(error)) = schema.map(ReportConfig::by_schema) {
        problems.push(draft.problem(out, "output_schema", error.to_string(), "write a JSON Schema"));
    }
    if draft.config.rules.iter().any(|rule| rule.effect != Effect::Deny) {
        let message = "an agent's rules may only deny".to_owned();
        problems.push(draft.problem(out, "rules", message, "allow and ask under `policy.rules` of the configuration"));
    }
    if let Err((field, why)) = draft.config.settings.check() {
        problems.push(draft.problem(out, "settings", format!("{field}: {why}"), "fix it, or remove it"));
    }
    if problems.len() > before {
        return false;
    }
    if draft.config.description.trim().is_empty() {
        let message = "it has no description: a model cannot tell when to use it".to_owned();
        problems.push(draft.problem(Severity::Warning, "description", message, "say in a sentence when to use it"));
    }
    resolve_model(draft, names, problems);
    resolve_triggers(draft, names, problems);
    resolve_skills(draft, names.skills, problems);
    check_tools(draft, names, problems);
    true
}

/// Removes triggers that could never fire, and checks the models of the others.
fn resolve_triggers(draft: &mut AgentDraft, names: &KnownNames<'_>, problems: &mut Vec<Problem>) {
    let read = |written: &Map<String, Value>| {
        let trigger = TriggerConfig::parse(written)?;
        check_trigger(&trigger, names.channels).map(|()| trigger.model)
    };
    let mut indices = 0..;
    let mut triggers = std::mem::take(&mut draft.config.triggers);
    triggers.retain_mut(|written| {
        let index = indices.next().unwrap_or_default();
        let mut model = match read(written) {
            Ok(model) => model,
            Err(why) => {
                let message = format!(" is left out: {why}");
                problems.push(draft.trigger_problem(Severity::EntryDisabled, index, &message, "fix it, or remove it"));
                return false;
            }
        };
        if let Some((message, remedy)) = check_model(&mut model, names) {
            problems.push(draft.trigger_problem(Severity::Warning, index, &format!(": {message}"), remedy));
        }
        match model {
            Some(model) => drop(written.insert("model".into(), model.into())),
            None => drop(written.shift_remove("model")),
        }
        true
    });
    draft.config.triggers = triggers;
}

/// Checks that a configured trigger can fire.
pub(super) fn check_trigger(trigger: &TriggerConfig, channels: &Channels) -> Result<(), String> {
    match trigger.when(0, "UTC").map_err(|error| error.to_string())? {
        TriggerCondition::Message { channel, .. } => channels.unreachable(&channel).map_or(Ok(()), Err),
        _ => Ok(()),
    }
}

/// Appends the texts of its skills to its own.
fn resolve_skills(draft: &mut AgentDraft, skills: &[SkillEntry], problems: &mut Vec<Problem>) {
    for name in draft.config.skills.clone() {
        let Some(entry) = skills.iter().find(|entry| entry.skill.name == name) else {
            let remedy = nearest(&name, skills.iter().map(|entry| entry.skill.name.as_str())).map_or_else(
                || "write it as a folder of `skills` with a file SKILL.md, or take it out".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            problems.push(draft.problem(Severity::Warning, "skills", format!("there is no skill `{name}`"), remedy));
            continue;
        };
        let gap = if draft.config.prompt.is_empty() { "" } else { "\n\n" };
        draft.config.prompt = format!("{}{gap}{}", draft.config.prompt, entry.skill.in_words().trim_end());
    }
}

fn check_tools(draft: &AgentDraft, names: &KnownNames<'_>, problems: &mut Vec<Problem>) {
    if names.tools.is_empty() {
        return;
    }
    for (glob, near) in unknown_tools(&draft.config, names.tools.iter().map(String::as_str)) {
        let namespace = glob.split_once("__").or_else(|| glob.split_once(':')).map(|(namespace, _)| namespace);
        let is_source =
            |namespace: &str| namespace.contains(['*', '?']) || names.sources.iter().any(|source| source == namespace);
        if namespace.is_some_and(is_source) {
            continue;
        }
        let key =
            if draft.config.tools.iter().flatten().any(|tool| *tool == glob) { "tools" } else { "disallowed_tools" };
        let remedy = near.map_or_else(
            || "`toolwright tools ls` lists the tools".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        problems.push(draft.problem(Severity::Warning, key, format!("there is no tool `{glob}`"), remedy));
    }
}

/// Reports unknown agents: among the tools of others, and in triggers.
fn check_agents(drafts: &[AgentDraft], off: &BTreeSet<String>, problems: &mut Vec<Problem>) {
    let agents = || drafts.iter().map(|draft| draft.config.name.as_str());
    for draft in drafts {
        let config = &draft.config;
        let unknown = |agent: &str| {
            let remedy = nearest(agent, agents().filter(|name| *name != config.name)).map_or_else(
                || "`toolwright agents ls` lists the agents".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            (format!("there is no agent `{agent}`"), remedy)
        };
        let tools = config.tools.iter().flatten().map(|tool| ("tools", tool));
        for (key, tool) in tools.chain(config.disallowed_tools.iter().map(|tool| ("disallowed_tools", tool))) {
            let Some(agent) = tool.strip_prefix("agent__").or_else(|| tool.strip_prefix("agent:")) else { continue };
            let agent = agent.split('@').next().unwrap_or_default();
            let is_tool = matches!(check_name(agent), Err(NameError::Reserved(_)));
            let mut agent_names = agents().chain(off.iter().map(String::as_str));
            if tool.contains(['*', '?']) || is_tool || agent_names.any(|name| name.eq_ignore_ascii_case(agent)) {
                continue;
            }
            let (message, remedy) = unknown(agent);
            problems.push(draft.problem(Severity::Warning, key, message, remedy));
        }
        for (index, node) in draft.trigger_nodes().iter().enumerate() {
            let Some(agent) = node.text_of("agent").filter(|agent| *agent != config.name) else { continue };
            let (message, remedy) = match agents().any(|name| name == agent) {
                true => (
                    format!("it starts `{}`, not `{agent}`", config.name),
                    format!("leave `agent` out, or write the trigger in the file or entry of `{agent}`"),
                ),
                false => unknown(agent),
            };
            problems.push(draft.trigger_problem(Severity::Warning, index, &format!(": {message}"), remedy));
        }
    }
}

fn resolve_model(draft: &mut AgentDraft, names: &KnownNames<'_>, problems: &mut Vec<Problem>) {
    if let Some((message, remedy)) = check_model(&mut draft.config.model, names) {
        problems.push(draft.problem(Severity::Warning, "model", message, remedy));
    }
}

/// Replaces the alias of a model, and removes an invalid name. Returns the error and the remedy.
pub(super) fn check_model(model: &mut Option<String>, names: &KnownNames<'_>) -> Option<(String, String)> {
    let written = model.clone()?;
    let Some((provider, _)) =
        written.split_once('/').filter(|(provider, name)| !provider.is_empty() && !name.is_empty())
    else {
        if is_replay(&written) {
            return None;
        }
        *model = names.aliases.get(&written).cloned();
        if model.is_some() {
            return None;
        }
        if is_model_alias(&written) {
            let message =
                format!("`models.aliases` does not say which model `{written}` is: the default model is used");
            let remedy = format!("write `models: {{aliases: {{{written}: PROVIDER/MODEL}}}}` in the configuration");
            return Some((message, remedy));
        }
        let message = format!("there is no model `{written}`: the default model is used");
        let remedy = nearest(&written, names.aliases.keys().map(String::as_str)).map_or_else(
            || "write it as provider/model, or give it a model under `models.aliases`".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        return Some((message, remedy));
    };
    if !names.providers.is_empty() && !names.providers.iter().any(|known| known == provider) {
        let message = format!("the model `{written}` is of a provider that is not known: `{provider}`");
        let remedy = nearest(provider, names.providers.iter().map(String::as_str)).map_or_else(
            || format!("say where it is under `models.endpoints.{provider}`"),
            |near| format!("did you mean `{near}`?"),
        );
        return Some((message, remedy));
    }
    // There is no list of all models of a provider, but a name with the same words and version as another, except for a
    // small difference, is a mistake.
    let digits = |name: &str| (name.split('-').count(), name.chars().filter(char::is_ascii_digit).collect::<String>());
    let is_like =
        |model: &&str| model.split_once('/').is_some_and(|(of, _)| of == provider) && digits(model) == digits(&written);
    if names.models.contains(&&*written) {
        return None;
    }
    let near = nearest(&written, names.models.iter().copied().filter(is_like))?;
    Some((format!("the configuration does not know the model `{written}`"), format!("did you mean `{near}`?")))
}

fn dedup_by_name(drafts: &mut Vec<AgentDraft>, problems: &mut Vec<Problem>) {
    let mut unique: Vec<AgentDraft> = Vec::with_capacity(drafts.len());
    for draft in drafts.drain(..) {
        match unique.iter().find(|first| first.config.name == draft.config.name) {
            Some(first) if first.config.enabled == Some(false) => {}
            Some(first) => {
                let message = format!(
                    "the agent `{}` of {}:{} is used instead",
                    draft.config.name,
                    first.at.file.display(),
                    first.at.line
                );
                problems.push(draft.problem(Severity::Warning, "name", message, "rename or remove one of them"));
            }
            None => unique.push(draft),
        }
    }
    *drafts = unique;
}

/// Removes agents with unknown destinations, and those in cycles. A destination that was removed itself, or is
/// disabled, is removed from the agents that name it.
fn check_destinations(drafts: &mut Vec<AgentDraft>, off: BTreeSet<String>, problems: &mut Vec<Problem>) {
    let mut left_out = off;
    let all: Vec<String> = drafts.iter().map(|draft| draft.config.name.clone()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    drafts.retain(|draft| {
        let unknown = draft
            .config
            .router
            .destinations
            .iter()
            .find(|to| !all.contains(&&*to.agent) && !left_out.contains(&to.agent));
        let Some(unknown) = unknown else { return true };
        let message = format!("there is no agent `{}`", unknown.agent);
        let remedy = nearest(&unknown.agent, all.iter().copied().filter(|name| *name != draft.config.name))
            .map_or_else(
                || "`toolwright agents ls` lists the agents".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
        problems.push(draft.problem(Severity::EntryDisabled, "router", message, remedy));
        left_out.insert(draft.config.name.clone());
        false
    });
    loop {
        let configs: Vec<AgentConfig> = drafts.iter().map(|draft| draft.config.clone()).collect();
        let Some(cycle) = find_cycle(&configs) else { break };
        drafts.retain(|draft| {
            let is_in = cycle.contains(&draft.config.name);
            if is_in {
                let message = format!("its destinations lead back to it: {}", cycle.join(" -> "));
                let remedy = "remove one of these destinations; `may_return: true` lets an agent hand a request back";
                problems.push(draft.problem(Severity::EntryDisabled, "router", message, remedy));
                left_out.insert(draft.config.name.clone());
            }
            !is_in
        });
    }
    let descriptions: BTreeMap<String, String> =
        drafts.iter().map(|draft| (draft.config.name.clone(), draft.config.description.clone())).collect();
    for draft in drafts {
        let (remaining, gone): (Vec<_>, Vec<_>) =
            draft.config.router.destinations.drain(..).partition(|to| !left_out.contains(&to.agent));
        draft.config.router.destinations = remaining;
        for to in &mut draft.config.router.destinations {
            if to.description.is_empty() {
                to.description = descriptions.get(&to.agent).cloned().unwrap_or_default();
            }
        }
        for to in gone {
            let message = format!("the agent `{}` was left out, so it is not a destination", to.agent);
            problems.push(draft.problem(Severity::Warning, "router", message, "fix that agent, or enable it"));
        }
    }
}
