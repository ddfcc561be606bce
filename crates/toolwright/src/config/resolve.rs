//! Checks sections against each other: reports problems that one section alone cannot show.

use std::net::SocketAddr;
use std::path::Path;

use indexmap::IndexMap;
use toolwright_agent::tools::NAMESPACE;
use toolwright_core::catalogue::declared::SCHEMA_NAMESPACE;
use toolwright_core::pattern::nearest;
use toolwright_core::session::Principal;
use toolwright_core::tool_id::server_namespace;
use toolwright_core::trigger::{TriggerConfig, TriggerError};
use toolwright_telemetry::{Telemetry, TelemetryConfig};

use super::agents::{KnownNames, check_model};
use super::files::node::{Node, Problem, Severity, SourceLocation};
use super::sections::file::{ConfigFile, ToolEntry};
use super::sections::selection::EmbeddingsConfig;
use super::sections::variables::ResolveScope;
use super::{AgentEntry, BUILTIN, Config, LLM, REST, agents};
use crate::secrets::without_scheme;

/// Checks settings against each other, and resolves names and paths.
pub(super) fn resolve_settings(
    sections: &mut ConfigFile,
    merged: &Node,
    state_dir: &Path,
    scope: &mut ResolveScope<'_>,
) {
    if let Err(error) = sections.server.http.parse::<SocketAddr>() {
        let (at, message) = (merged.place("server", "http"), format!("it is not an address and port: {error}"));
        let remedy = "write it like 127.0.0.1:7117; port 0 takes a free one";
        scope.problems.push(Problem::new(Severity::Error, at, "server.http", message, remedy));
    }
    for (name, client) in &sections.server.tokens {
        if name == Principal::OWNER {
            let at = merged.place("server", "tokens");
            let message = "the name is the owner's: the token would read and delete what the owner keeps".to_owned();
            let remedy = "give it another name";
            scope.problems.push(Problem::new(Severity::Error, at, format!("server.tokens.{name}"), message, remedy));
        }
        let field = format!("server.tokens.{name}.token");
        let is_reported = scope.problems.iter().any(|problem| problem.field == field);
        if client.token.expose().trim().is_empty() && !is_reported {
            let (at, message) = (merged.place("server", "tokens"), "it is empty".to_owned());
            let remedy = "write the token, or `${VAR}` of a variable that holds it";
            scope.problems.push(Problem::new(Severity::Error, at, field, message, remedy));
        }
    }
    if let Some(search) = &sections.native_tools.file_search
        && search.openai_responses.get("vector_store_ids").and_then(|ids| ids.as_array()).is_none_or(Vec::is_empty)
    {
        let (at, message) = (merged.place("native_tools", "file_search"), "it names no stores to search".to_owned());
        let remedy = "name them: `openai_responses: {vector_store_ids: [vs_...]}`";
        scope.problems.push(Problem::new(Severity::EntryDisabled, at, "native_tools.file_search", message, remedy));
        sections.native_tools.file_search = None;
    }
    for (name, view) in &mut sections.views {
        view.name.clone_from(name);
    }
    let sandbox = &mut sections.shell.sandbox;
    for path in sandbox.read.iter_mut().chain(&mut sandbox.write) {
        *path = scope.root.join(&*path);
    }
    sandbox.write.retain(|path| {
        let holds_state = reaches(path, state_dir);
        if holds_state {
            let message = format!(
                "{} has Toolwright's state in it: a sandboxed command could approve for you there",
                path.display()
            );
            let at = merged.place("sandbox", "write");
            let remedy = "name the folders beside it that commands need";
            scope.problems.push(Problem::new(Severity::Error, at, "sandbox.write", message, remedy));
        }
        !holds_state
    });
    let embeddings = sections.selection.embeddings.take();
    let at = merged.place("selection", "embeddings");
    sections.selection.embeddings = embeddings.and_then(|embeddings| self::embeddings(embeddings, at, scope));
}

/// Removes triggers that could never fire, and reports those whose agent or model does not exist.
pub(super) fn resolve_triggers(
    triggers: &mut IndexMap<String, TriggerConfig>,
    merged: &Node,
    agents: &[AgentEntry],
    names: &KnownNames<'_>,
    problems: &mut Vec<Problem>,
) {
    triggers.retain(|name, trigger| {
        let (at, field) = (merged.place("triggers", name), format!("triggers.{name}"));
        if let Err(why) = agents::check_trigger(trigger, names.channels) {
            let remedy = "it is left out until then";
            problems.push(Problem::new(Severity::EntryDisabled, at, field, why, remedy));
            return false;
        }
        let place = (at, &*field);
        check_started(trigger.agent.as_deref(), &mut trigger.model, "firings", place, (agents, names), problems);
        true
    });
}

/// Removes tools whose calls could never install a trigger, and reports unknown agents and models of the others.
pub(super) fn resolve_tools(
    tools: &mut IndexMap<String, ToolEntry>,
    merged: &Node,
    agents: &[AgentEntry],
    names: &KnownNames<'_>,
    problems: &mut Vec<Problem>,
) {
    tools.retain(|name, tool| {
        let (at, field) = (merged.place("tools", name), format!("tools.{name}.set"));
        let mut set = tool.set.clone();
        set.shift_remove("deliver");
        set.insert("type".into(), tool.class.as_str().into());
        set.entry("prompt").or_insert_with(|| "what its calls say".into());
        let checked = TriggerConfig::parse(&set).and_then(|config| match config.when(0, "UTC") {
            // Its calls give the rest.
            Ok(_) | Err(TriggerError::Missing { .. }) => Ok(config),
            Err(error) => Err(error.to_string()),
        });
        let mut config = match checked {
            Ok(config) => config,
            Err(why) => {
                let remedy = "it is left out until then";
                problems.push(Problem::new(Severity::EntryDisabled, at, field, why, remedy));
                return false;
            }
        };
        let place = (at, &*field);
        check_started(config.agent.as_deref(), &mut config.model, "calls", place, (agents, names), problems);
        match config.model {
            Some(model) => drop(tool.set.insert("model".into(), model.into())),
            None => drop(tool.set.shift_remove("model")),
        }
        true
    });
}

/// Reports an unknown agent or model of a trigger, and replaces the alias of a model.
fn check_started(
    agent: Option<&str>,
    model: &mut Option<String>,
    fails: &str,
    (at, field): (&SourceLocation, &str),
    (agents, known): (&[AgentEntry], &KnownNames<'_>),
    problems: &mut Vec<Problem>,
) {
    let names = || agents.iter().map(|agent| agent.config.name.as_str());
    if let Some(agent) = agent.filter(|agent| names().all(|name| name != *agent)) {
        let message = format!("there is no agent `{agent}`: its {fails} fail");
        let remedy = nearest(agent, names()).map_or_else(
            || "`toolwright agents ls` lists the agents".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        problems.push(Problem::new(Severity::Warning, at, format!("{field}.agent"), message, remedy));
    }
    if let Some((message, remedy)) = check_model(model, known) {
        problems.push(Problem::new(Severity::Warning, at, format!("{field}.model"), message, remedy));
    }
}

/// Returns whether one of the two paths contains the other.
fn reaches(path: &Path, state_dir: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (path, state_dir) = (real(path), real(state_dir));
    state_dir.starts_with(&path) || path.starts_with(&state_dir)
}

/// Returns the source of embeddings with an absolute path; `None`, with the reason among the problems, if it is
/// invalid.
fn embeddings(
    mut config: EmbeddingsConfig,
    at: &SourceLocation,
    scope: &mut ResolveScope<'_>,
) -> Option<EmbeddingsConfig> {
    const SECTION: &str = "selection.embeddings";
    if scope.problems.iter().any(|problem| problem.field.starts_with(SECTION)) {
        return None;
    }
    // An unset variable with an empty default leaves an empty text.
    config.path.take_if(|path| path.as_os_str().is_empty());
    for text in [&mut config.url, &mut config.model] {
        text.take_if(|text| text.is_empty());
    }
    config.api_key.take_if(|key| key.expose().is_empty());
    config.path = config.path.map(|path| scope.root.join(path));
    let before = scope.problems.len();
    let mut fault = |key: &str, message: String, remedy: &str| {
        scope.leave_out(at, &format!("{SECTION}.{key}"), message, remedy);
    };
    match (&config.path, &config.url) {
        (Some(_), Some(_)) => {
            fault("url", "embeddings come from `path` or from `url`, not from both".into(), "remove one of them");
        }
        (None, None) => {
            fault("path", "no model is named".into(), "give the `path` of a directory, or `url` and `model` of an API");
        }
        #[cfg(feature = "embeddings")]
        (Some(_), None) => {}
        #[cfg(not(feature = "embeddings"))]
        (Some(path), None) => {
            let (message, remedy) = cannot_load(path);
            fault("path", message, remedy);
        }
        (None, Some(url)) => {
            if let Err(error) = url::Url::parse(url) {
                fault("url", format!("it is not an address: {error}"), "write it like https://host/v1");
            }
            if config.model.is_none() {
                fault("model", "the API is asked for no model".into(), "name one, like text-embedding-3-small");
            }
        }
    }
    (scope.problems.len() == before).then_some(config)
}

/// Returns why a build without the feature `embeddings` cannot load the model in `path`, and the remedy.
#[cfg(not(feature = "embeddings"))]
pub(crate) fn cannot_load(path: &Path) -> (String, &'static str) {
    let message = format!("this program was built without the feature `embeddings` and cannot load {}", path.display());
    let remedy = "build it with `cargo build --release -p toolwright-cli --features embeddings`, or name an embeddings API as `url`";
    (message, remedy)
}

/// Returns the receivers of telemetry. Invalid ones are left out, with the reason among the problems.
pub(super) fn telemetry(config: &TelemetryConfig, at: &SourceLocation, scope: &mut ResolveScope<'_>) -> Telemetry {
    let mut config = config.clone();
    if scope.problems.iter().any(|problem| problem.field.starts_with("telemetry.")) {
        // A variable could not be expanded.
        (config.traces, config.metrics) = (false, false);
    }
    let resolved = config.resolve(scope.variables);
    for fault in resolved.faults {
        let severity = if fault.leaves_out { Severity::EntryDisabled } else { Severity::Warning };
        scope.problems.push(Problem::new(severity, at, fault.field, fault.message, fault.remedy));
    }
    // Receivers use keys of any name, which children must not get.
    let keys = resolved.secrets.iter().map(|value| without_scheme(value)).filter(|key| !key.is_empty());
    scope.secrets.extend(keys.map(ToOwned::to_owned));
    scope.key_variables.extend(resolved.key_variables);
    if resolved.telemetry.is_sent() && cfg!(not(feature = "telemetry")) {
        let message = "this program was built without the feature `telemetry`: nothing is sent";
        let remedy = "build it with `cargo build --release -p toolwright-cli --features telemetry`";
        scope.problems.push(Problem::new(Severity::Warning, at, "telemetry", message, remedy));
    }
    resolved.telemetry
}

/// Describes the source at `/mcp/{name}`, of any kind except views.
fn source_at(config: &Config, sections: &ConfigFile, name: &str) -> Option<String> {
    if let Some(server) = config.servers.iter().find(|server| server.namespace == name) {
        return Some(format!("the server `{}`", server.entry));
    }
    if config.openapi.iter().any(|document| document.name == name) {
        return Some(format!("the OpenAPI document `{name}`"));
    }
    if config.catalogues.iter().any(|catalogue| catalogue.namespace == name) {
        return Some(format!("the catalogue `{name}`"));
    }
    let ours = match name {
        BUILTIN => "the provider of built-in tools",
        LLM => "the provider of tools that a model answers",
        REST if !config.rest_tools.is_empty() => "the provider of REST tools",
        SCHEMA_NAMESPACE if !sections.schema_tools.is_empty() => "the provider of tools without code",
        NAMESPACE if sections.server.batch => "the provider of `batch`",
        _ => return None,
    };
    Some(ours.to_owned())
}

/// Checks the names of views: they share the addresses `/mcp/{name}` with sources, and are part of an address.
pub(super) fn check_views(config: &mut Config, sections: &ConfigFile, merged: &Node) {
    for name in sections.views.keys() {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
        let (message, remedy) = if let Some(source) = source_at(config, sections, name) {
            (format!("{source} has this name"), "give the view another name")
        } else if name.is_empty() || !name.chars().all(legal) {
            ("it is not a name for an address".to_owned(), "use lower-case letters, digits, `_` and `-`")
        } else {
            continue;
        };
        let at = merged.place("views", name);
        config.problems.push(Problem::new(Severity::Error, at, format!("views.{name}"), message, remedy));
    }
}

/// Checks that the tools accept each channel's name.
pub(super) fn check_channels(config: &mut Config, sections: &ConfigFile, merged: &Node) {
    for name in sections.channels.0.keys() {
        if let Err(message) = sections.channels.get(name) {
            let (at, field) = (merged.place("channels", name), format!("channels.{name}"));
            config.problems.push(Problem::new(Severity::Error, at, field, message, "give it another name"));
        }
    }
}

/// Reports clients' names that are neither views nor sources.
pub(super) fn check_reach(config: &mut Config, sections: &ConfigFile, merged: &Node) {
    let entries = config.tree["mcp_servers"].as_object().into_iter().flat_map(|entries| entries.keys());
    for (client, token) in &sections.server.tokens {
        for name in token.views.iter().flatten() {
            // A disabled or left-out source is not a misspelling.
            let is_off = entries.clone().any(|entry| server_namespace(entry, &|_| false) == *name)
                || ["openapi", "catalogues"].iter().any(|section| config.tree[*section].get(name).is_some());
            if sections.views.contains_key(name) || source_at(config, sections, name).is_some() || is_off {
                continue;
            }
            let views = sections.views.keys().map(String::as_str);
            let servers = config.servers.iter().map(|server| server.namespace.as_str());
            let documents = config.openapi.iter().map(|document| document.name.as_str());
            let remedy = match nearest(name, views.chain(servers).chain(documents)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "name a view, a server or another source, or remove it".to_owned(),
            };
            let (at, field) = (merged.place("server", "tokens"), format!("server.tokens.{client}.views"));
            let message = format!("there is no view or source `{name}`, and nothing at /mcp/{name}");
            config.problems.push(Problem::new(Severity::Warning, at, field, message, remedy));
        }
    }
}
