//! Loading: from files to a resolved configuration. Total: whatever is wrong becomes a problem.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use toolwright_agent::tools::NAMESPACE;
use toolwright_core::catalogue::declared::SCHEMA_NAMESPACE;
use toolwright_core::pattern::nearest;
use toolwright_core::tool_id::{RESERVED_NAMESPACES, server_namespace, wire_candidate};
use toolwright_providers::builtin::web::{self, WebConfig};
use toolwright_providers::builtin::{self, BuiltinOptions};
use toolwright_providers::openapi::Origin;
use toolwright_telemetry::{Telemetry, TelemetryConfig};

use super::agents::{self, Names};
use super::files::{Layer, LayerKind, Places, Stamp, Variables, read_text, standing};
use super::folders::{DefinitionFolder, FolderKind, paths_in, user_folders};
use super::layers::{Project, find_project, lay_under, read};
use super::node::{At, Data, Member, Node, Problem, Severity};
use super::sections::check::{check, schema};
use super::sections::file::{ConfigFile, EmbeddingsConfig};
use super::sections::llm_tools;
use super::sections::models::{self, CompatSource};
use super::sections::servers::{self, Resolved};
use super::sections::variables::Scope;
use super::{AgentEntry, BUILTIN, Config, LLM, REST, skills, sources};
use crate::private_file::is_own;
use crate::secrets::without_scheme;
use crate::trust::{Judged, TrustStore};

/// What to load.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// `--config`: this file alone is the configuration.
    pub config: Option<PathBuf>,
    /// Settings that a program gives in code, in the shape of `toolwright.yaml`. They lie over those of `config`; without
    /// `config` no file is read at all.
    pub settings: Option<Value>,
    /// `--root`.
    pub root: Option<PathBuf>,
    /// `--state-dir`.
    pub state_dir: Option<PathBuf>,
    /// The current folder, absolute.
    pub cwd: PathBuf,
}

/// Loads the configuration: the file that is given, alone; else what is approved of a project's files
/// ([`crate::trust`]), over the user's file and the system's. Never fails: see [`Config::problems`] and [`Config::is_unusable`].
#[must_use]
pub fn load(options: &LoadOptions, variables: Variables<'_>) -> Config {
    let state_dir = state_dir(options, variables);
    let mut project = match (&options.config, &options.settings) {
        (None, None) => find_project(&options.cwd, variables, &TrustStore::in_state(&state_dir)),
        // These alone.
        _ => Project::default(),
    };
    let farther: Vec<(PathBuf, LayerKind)> = match (&options.config, &options.settings) {
        (Some(given), _) => {
            let given = options.cwd.join(given);
            let folder = |kind: FolderKind| (given.with_file_name(kind.name()), LayerKind::StandingFolder(kind));
            let folders = FolderKind::ALL.map(folder);
            [(given, LayerKind::Given)].into_iter().chain(folders).collect()
        }
        (None, Some(_)) => Vec::new(),
        (None, None) => {
            let files = standing(variables).into_iter().map(|path| (path, LayerKind::Standing));
            let folders = user_folders(variables).into_iter();
            files.chain(folders.map(|(path, kind)| (path, LayerKind::StandingFolder(kind)))).collect()
        }
    };
    for (path, kind) in farther {
        if !project.candidates.iter().any(|known| known.path == path) {
            let watched = match kind {
                LayerKind::StandingFolder(kind) => paths_in(kind, &path),
                _ => vec![path.clone()],
            };
            // Before it is read: what is written meanwhile makes another.
            project.stamps.extend(watched.into_iter().map(Stamp::noted));
            project.candidates.push(Layer { path, kind });
        }
    }
    let Project { candidates: layers, judged, stamps } = project;
    let mut problems: Vec<Problem> =
        judged.iter().flat_map(|judged| notice(judged).into_iter().chain(judged.faults.iter().cloned())).collect();
    let approved: BTreeMap<PathBuf, Option<String>> =
        judged.iter().filter_map(|judged| Some(judged.in_force.as_ref()?.texts(&judged.file))).flatten().collect();
    let mut files = Vec::new();
    let mut places = Places::beside(standing(variables));
    let mut root = None;
    let nowhere = At { file: Arc::from(options.cwd.as_path()), line: 0 };
    let mut merged = Node { at: nowhere, data: Data::Map(Vec::new()) };
    if let Some(settings) = &options.settings {
        merged = in_code(settings, &options.cwd, &mut problems);
    }
    let mut folders = Vec::new();
    for layer in &layers {
        let text = match layer.kind {
            LayerKind::ProjectFolder(kind) | LayerKind::StandingFolder(kind) => {
                folders.extend(definition_folder(kind, layer, &judged, &mut problems));
                continue;
            }
            LayerKind::Given | LayerKind::Standing => read_text(&layer.path),
            LayerKind::Project | LayerKind::Foreign => match held(&judged, &layer.path) {
                Some(text) => Ok(text),
                None => continue,
            },
        };
        let Some(node) = read(layer, text, &mut places, &mut problems) else { continue };
        if root.is_none() && layer.kind != LayerKind::Standing {
            root = layer.path.parent().map(Path::to_path_buf);
        }
        files.push(layer.path.clone());
        lay_under(&mut merged, node);
    }
    let root = options.root.as_ref().map(|root| options.cwd.join(root)).or(root).unwrap_or_else(|| options.cwd.clone());
    let root = std::fs::canonicalize(&root).unwrap_or_else(|error| {
        let message = format!("the workspace root cannot be used: {error}");
        problems.push(Problem::with_file(Severity::Error, &root, message, "give an existing folder with --root"));
        root
    });
    let mut config = Config {
        files,
        pin_scopes: places.all(),
        candidates: layers,
        stamps,
        trust: judged,
        root,
        state_dir,
        sections: ConfigFile::default(),
        tree: Value::Null,
        servers: Vec::new(),
        disabled: Vec::new(),
        rest_tools: Vec::new(),
        openapi: Vec::new(),
        catalogues: Vec::new(),
        llm_tools: Vec::new(),
        agents: Vec::new(),
        skills: Vec::new(),
        named_files: Vec::new(),
        named_stamps: Vec::new(),
        compat: CompatSource::default(),
        model_endpoints: Vec::new(),
        model_overrides: Vec::new(),
        tokenizers: Vec::new(),
        telemetry: Telemetry::default(),
        queues: BTreeMap::new(),
        secrets: Vec::new(),
        key_variables: Vec::new(),
        problems,
    };
    resolve(&mut config, merged, &places, &approved, (&folders, options.settings.is_some()), variables);
    // As a reader goes through the files.
    let order = &config.candidates;
    let place = |file: &PathBuf| order.iter().position(|layer| layer.path == *file);
    config.problems.sort_by_cached_key(|problem| (problem.file.as_ref().and_then(place), problem.line));
    config
}

/// What messages call the place of settings that are given in code, as a file of this folder: relative paths begin there.
#[must_use]
pub(crate) fn place_of_code(cwd: &Path) -> PathBuf {
    cwd.join("Toolwright::builder()")
}

fn in_code(settings: &Value, cwd: &Path, problems: &mut Vec<Problem>) -> Node {
    let mut node = Node::of_value(settings, &At { file: Arc::from(place_of_code(cwd)), line: 0 });
    check(&mut node, schema(), problems);
    node
}

/// The files of a folder that count.
fn definition_folder(
    kind: FolderKind,
    layer: &Layer,
    judged: &[Judged],
    problems: &mut Vec<Problem>,
) -> Option<DefinitionFolder> {
    if layer.kind.is_of_project() {
        let judged = judged.iter().find(|judged| judged.file == layer.path)?;
        return Some(DefinitionFolder::approved(kind, judged.in_force.as_ref()?.texts(&judged.file)));
    }
    let read = match DefinitionFolder::read(kind, &layer.path) {
        // Beside a file that is given others may have a folder.
        Ok(Some(_)) if !is_own(&layer.path) => Err("it belongs to another user".to_owned()),
        Ok(folder) => Ok(folder),
        Err(error) => Err(format!("cannot be read: {error}")),
    };
    read.unwrap_or_else(|message| {
        let remedy = "give it to your user (chown), or remove it";
        problems.push(Problem::with_file(Severity::Warning, &layer.path, message, remedy));
        None
    })
}

/// What is in force of a project's file.
fn held(judged: &[Judged], path: &Path) -> Option<String> {
    let judged = judged.iter().find(|judged| judged.file == path)?;
    Some(judged.in_force.as_ref()?.text.clone())
}

fn notice(judged: &Judged) -> Option<Problem> {
    let (message, remedy) = judged.notice()?;
    Some(Problem::with_file(Severity::Warning, &judged.file, message, remedy))
}

/// The state directory that the options name, absolute.
#[must_use]
pub fn state_dir(options: &LoadOptions, variables: Variables<'_>) -> PathBuf {
    let set = |name: &str| variables(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let chosen = options.state_dir.clone().or_else(|| set("TOOLWRIGHT_STATE_DIR")).unwrap_or_else(|| {
        set("XDG_STATE_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".local/state")))
            .unwrap_or_else(|| std::env::temp_dir().join("toolwright-state"))
            .join("toolwright")
    });
    options.cwd.join(chosen)
}

fn resolve(
    config: &mut Config,
    mut merged: Node,
    places: &Places,
    approved: &BTreeMap<PathBuf, Option<String>>,
    (folders, is_in_code): (&[DefinitionFolder], bool),
    variables: Variables<'_>,
) {
    config.tree = merged.to_value();
    let agent_entries = take_entries(&mut merged, "agents");
    let servers = take_entries(&mut merged, "mcp_servers");
    let rest_tools = take_entries(&mut merged, "rest_tools");
    let documents = take_entries(&mut merged, "openapi");
    let queues = take_entries(&mut merged, "queues");
    let catalogues = take_entries(&mut merged, "catalogues");
    let llm = take_entries(&mut merged, "llm_tools");
    let endpoints = match &mut merged.data {
        Data::Map(sections) => sections.iter_mut().find(|section| section.key == "models"),
        _ => None,
    }
    .map(|models| take_entries(&mut models.value, "endpoints"))
    .unwrap_or_default();
    let endpoint_names: Vec<String> = endpoints.iter().map(|member| member.key.clone()).collect();
    let names: Vec<String> = queues.iter().map(|member| member.key.clone()).collect();
    let root = config.root.clone();
    let with_workspace = |name: &str| {
        if name == "workspaceFolder" { Some(root.to_string_lossy().into_owned()) } else { variables(name) }
    };
    let mut scope = Scope {
        places,
        variables: &with_workspace,
        queues: &names,
        root: &root,
        secrets: &mut config.secrets,
        key_variables: &mut config.key_variables,
        fault: Severity::EntryDisabled,
        empties: false,
        problems: &mut config.problems,
    };
    scope.fill_settings(&mut merged);
    let mut sections: ConfigFile = match serde_json::from_value(merged.to_value()) {
        Ok(sections) => sections,
        Err(error) => {
            scope.problems.push(Problem {
                severity: Severity::Error,
                file: config.files.first().cloned(),
                line: None,
                field: String::new(),
                message: error.to_string(),
                remedy: "compare it with `toolwright config schema`".into(),
            });
            ConfigFile::default()
        }
    };
    settle(&mut sections, &merged, &config.state_dir, &mut scope);
    for member in queues {
        config.queues.extend(scope.read(&member, "queues").map(|queue| (member.key, queue)));
    }
    for member in servers {
        let taken: Vec<String> = config.servers.iter().map(|server| server.namespace.clone()).collect();
        let name = member.key.clone();
        match servers::resolve(member, &taken, &mut scope) {
            Resolved::Server(server) => config.servers.push(*server),
            Resolved::Off => config.disabled.push(("mcp_servers", name)),
            Resolved::Broken => {}
        }
    }
    let is_on = |disabled: &mut Vec<(&'static str, String)>, section: &'static str, member: &Member| {
        let is_off = member.value.get("enabled").is_some_and(|enabled| enabled.value.data == Data::Bool(false));
        if is_off {
            disabled.push((section, member.key.clone()));
        }
        !is_off
    };
    for member in rest_tools {
        if is_on(&mut config.disabled, "rest_tools", &member) {
            config.rest_tools.extend(sources::rest_tool(member, &mut scope));
        }
    }
    for member in documents {
        if !is_on(&mut config.disabled, "openapi", &member) {
            continue;
        }
        let taken = |name: &str| {
            let is_server = config.servers.iter().any(|server| server.namespace == name);
            is_server || config.openapi.iter().any(|document| document.name == name)
        };
        let document = sources::document(member, &sections.web.address, &taken, &config.trust, &mut scope);
        if let Some(Origin::File(path)) = document.as_ref().map(|document| &document.document) {
            config.named_stamps.push(Stamp::of(path));
            config.named_files.push(path.clone());
        }
        config.openapi.extend(document);
    }
    for member in catalogues {
        if !is_on(&mut config.disabled, "catalogues", &member) {
            continue;
        }
        let taken = |name: &str| {
            let is_server = config.servers.iter().any(|server| server.namespace == name);
            is_server || config.openapi.iter().any(|document| document.name == name)
        };
        config.catalogues.extend(sources::catalogue(member, &taken, &mut scope));
    }
    for mut member in endpoints {
        if let Some(endpoint) = models::endpoint(&mut member, &mut scope) {
            config.model_endpoints.push(endpoint);
        }
    }
    for member in llm {
        if let Some(path) = llm_tools::file_of(&member) {
            config.named_stamps.push(Stamp::of(&path));
            config.named_files.push(path);
        }
        config.llm_tools.extend(llm_tools::entry(&member, approved, &mut scope));
    }
    for (name, model) in &sections.models.by_name {
        let at = merged.place("models", name);
        config.tokenizers.extend(models::tokenizer(name, model, at, &mut scope).map(|path| (name.clone(), path)));
        let overrides = models::overrides(name, &sections.models.by_name, at, scope.problems);
        config.model_overrides.extend(overrides.map(|overrides| (name.clone(), overrides)));
    }
    // A program may have tools and models of its own.
    let (tools, providers) = if is_in_code { Default::default() } else { (tool_names(), providers(&endpoint_names)) };
    let named = &sections.models;
    let models: Vec<&str> = (named.by_name.keys().chain(named.aliases.values()))
        .chain(named.default.as_ref())
        .map(String::as_str)
        .filter(|name| name.contains('/'))
        .collect();
    let skills = skills::load(folders, scope.problems);
    let names = Names {
        aliases: &sections.models.aliases,
        models: &models,
        providers: &providers,
        tools: &tools,
        sources: &sources_of_tools(&config.tree),
        channels: &sections.channels,
        skills: &skills,
    };
    config.agents = agents::load(agent_entries, folders, &names, &mut scope);
    config.skills = skills;
    settle_triggers(&mut sections, &merged, &config.agents, scope.problems);
    // What stands beside a configuration that nobody has approved is a stranger's too.
    let beside = (!config.files.is_empty()).then_some(&*root);
    config.compat = models::compat(&sections, beside, &config.state_dir, &merged, scope.problems);
    let at = merged.get("telemetry").map_or(&merged.at, |section| &section.at);
    config.telemetry = telemetry(&sections.telemetry, at, &mut scope);
    check_views(config, &sections, &merged);
    check_channels(config, &sections, &merged);
    check_reach(config, &sections, &merged);
    config.sections = sections;
}

/// Checks what the settings say together, and makes names and paths of it.
fn settle(sections: &mut ConfigFile, merged: &Node, state_dir: &Path, scope: &mut Scope<'_>) {
    if let Err(error) = sections.server.http.parse::<SocketAddr>() {
        let (at, message) = (merged.place("server", "http"), format!("it is not an address and port: {error}"));
        let remedy = "write it like 127.0.0.1:7117; port 0 takes a free one";
        scope.problems.push(Problem::new(Severity::Error, at, "server.http", message, remedy));
    }
    for (name, client) in &sections.server.tokens {
        let field = format!("server.tokens.{name}.token");
        let is_reported = scope.problems.iter().any(|problem| problem.field == field);
        if client.token.expose().trim().is_empty() && !is_reported {
            let (at, message) = (merged.place("server", "tokens"), "it is empty".to_owned());
            let remedy = "write the token, or `${VAR}` of a variable that holds it";
            scope.problems.push(Problem::new(Severity::Error, at, field, message, remedy));
        }
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

/// Takes out triggers that could never fire, and says of those whose agent is not there.
fn settle_triggers(sections: &mut ConfigFile, merged: &Node, agents: &[AgentEntry], problems: &mut Vec<Problem>) {
    let ConfigFile { triggers, channels, .. } = sections;
    triggers.retain(|name, trigger| {
        let (at, field) = (merged.place("triggers", name), format!("triggers.{name}"));
        if let Err(why) = agents::check_trigger(trigger, channels) {
            let remedy = "it is left out until then";
            problems.push(Problem::new(Severity::EntryDisabled, at, field, why, remedy));
            return false;
        }
        let names = || agents.iter().map(|agent| agent.spec.name.as_str());
        if let Some(agent) = trigger.agent.as_deref().filter(|agent| names().all(|name| name != *agent)) {
            let message = format!("there is no agent `{agent}`: its firings fail");
            let remedy = nearest(agent, names()).map_or_else(
                || "`toolwright agents ls` lists the agents".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            problems.push(Problem::new(Severity::Warning, at, field, message, remedy));
        }
        true
    });
}

/// Whether one of the two is in the other.
fn reaches(path: &Path, state_dir: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (path, state_dir) = (real(path), real(state_dir));
    state_dir.starts_with(&path) || path.starts_with(&state_dir)
}

/// Where embeddings come from, its path absolute; `None`, with the reason among the problems, when it cannot be told.
fn embeddings(mut config: EmbeddingsConfig, at: &At, scope: &mut Scope<'_>) -> Option<EmbeddingsConfig> {
    const SECTION: &str = "selection.embeddings";
    if scope.problems.iter().any(|problem| problem.field.starts_with(SECTION)) {
        return None;
    }
    // An empty text is what an unset variable with an empty default leaves.
    config.path.take_if(|path| path.as_os_str().is_empty());
    for text in [&mut config.url, &mut config.model] {
        text.take_if(|text| text.is_empty());
    }
    config.api_key.take_if(|key| key.expose().is_empty());
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
        (Some(_), None) => {}
        (None, Some(url)) => {
            if let Err(error) = url::Url::parse(url) {
                fault("url", format!("it is not an address: {error}"), "write it like https://host/v1");
            }
            if config.model.is_none() {
                fault("model", "the API is asked for no model".into(), "name one, like text-embedding-3-small");
            }
        }
    }
    config.path = config.path.map(|path| scope.root.join(path));
    (scope.problems.len() == before).then_some(config)
}

/// What is sent where. What cannot be used is left out, with the reason among the problems.
fn telemetry(config: &TelemetryConfig, at: &At, scope: &mut Scope<'_>) -> Telemetry {
    let mut config = config.clone();
    if scope.problems.iter().any(|problem| problem.field.starts_with("telemetry.")) {
        // Not all of it could be filled in.
        (config.traces, config.metrics) = (false, false);
    }
    let resolved = config.resolve(scope.variables);
    for fault in resolved.faults {
        let severity = if fault.leaves_out { Severity::EntryDisabled } else { Severity::Warning };
        scope.problems.push(Problem::new(severity, at, fault.field, fault.message, fault.remedy));
    }
    // Receivers have keys of any name. What goes to our receiver is not for children.
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

fn take_entries(merged: &mut Node, section: &str) -> Vec<Member> {
    match merged.take(section) {
        Some(Member { value: Node { data: Data::Map(members), .. }, .. }) => members,
        _ => Vec::new(),
    }
}

/// The names of the built-in tools, as ids and as models write them.
fn tool_names() -> Vec<String> {
    let tools = builtin::tools(&BuiltinOptions::default()).into_iter().chain(web::tools(&WebConfig::default()));
    let ids = tools.map(|tool| tool.definition().id);
    ids.flat_map(|id| [id.without_version().to_owned(), wire_candidate(id.namespace(), id.name())]).collect()
}

/// Namespaces that may have any tools: those of sources, there or not, and those whose tools come and go.
fn sources_of_tools(tree: &Value) -> Vec<String> {
    let names = |section: &str| tree[section].as_object().into_iter().flat_map(|entries| entries.keys().cloned());
    let servers = names("mcp_servers").map(|entry| server_namespace(&entry, &|_| false));
    let sources = servers.chain(names("openapi")).chain(names("catalogues"));
    let builtin = ["fs", "shell", "web", "job", "output"];
    let reserved = RESERVED_NAMESPACES.iter().filter(|name| !builtin.contains(name)).map(|name| (*name).to_owned());
    sources.chain(reserved).collect()
}

/// Providers of models that are known.
fn providers(endpoints: &[String]) -> Vec<String> {
    let named = ["openai", "anthropic", "gemini", "ollama"].map(str::to_owned);
    endpoints.iter().cloned().chain(named).collect()
}

/// Who has the address `/mcp/{name}` beside views, of all kinds of sources.
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

/// A view and a source share the addresses `/mcp/{name}`, and a name is a part of an address.
fn check_views(config: &mut Config, sections: &ConfigFile, merged: &Node) {
    for name in sections.views.keys() {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
        let (message, remedy) = if let Some(source) = source_at(config, sections, name) {
            (format!("{source} has this name"), "give the view another name")
        } else if name.is_empty() || !name.chars().all(legal) {
            ("it is no name for an address".to_owned(), "use lower-case letters, digits, `_` and `-`")
        } else {
            continue;
        };
        let at = merged.place("views", name);
        config.problems.push(Problem::new(Severity::Error, at, format!("views.{name}"), message, remedy));
    }
}

/// A channel has a name that the tools take.
fn check_channels(config: &mut Config, sections: &ConfigFile, merged: &Node) {
    for name in sections.channels.0.keys() {
        if let Err(message) = sections.channels.get(name) {
            let (at, field) = (merged.place("channels", name), format!("channels.{name}"));
            config.problems.push(Problem::new(Severity::Error, at, field, message, "give it another name"));
        }
    }
}

/// A client may reach views and sources: any other name leads nowhere.
fn check_reach(config: &mut Config, sections: &ConfigFile, merged: &Node) {
    let entries = config.tree["mcp_servers"].as_object().into_iter().flat_map(|entries| entries.keys());
    for (client, token) in &sections.server.tokens {
        for name in token.views.iter().flatten() {
            // What is switched off, or left out for now, is no misspelling.
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
