//! Loading: from files to a resolved configuration. Total: whatever is wrong becomes a problem.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use toolwright_agent::tools::NAMESPACE;
use toolwright_core::pattern::nearest;
use toolwright_core::tool_id::server_namespace;
use toolwright_providers::openapi::Origin;
use toolwright_runtime::QueueSpec;
use toolwright_sandbox::sandbox::SandboxSettings;

use super::check::check;
use super::compat::CompatSource;
use super::expand::{Variables, expand};
use super::fill::{Holds, Scope, key_variables, note_secrets};
use super::layers::{Layer, LayerKind, lay_under, read, read_text, standing};
use super::node::{Data, Member, Node};
use super::places::Places;
use super::problem::{At, Problem, Severity};
use super::project::{self, Project};
use super::resolved::Config;
use super::servers::{self, Resolved};
use super::stamp::Stamp;
use super::telemetry::{self, Telemetry};
use super::typed::{CatalogueEntry, ConfigFile, LlmToolEntry, ModelEndpoint, OpenApiEntry, Queue, RestTool};
use super::{BUILTIN, LLM, REST};
use super::{catalogues as catalogue_entries, compat, llm_tools, models, openapi, rest, sandbox, schema, selection};
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
        (None, None) => project::find(&options.cwd, variables, &TrustStore::in_state(&state_dir)),
        // These alone.
        _ => Project::default(),
    };
    let farther: Vec<Layer> = match (&options.config, &options.settings) {
        (Some(given), _) => vec![Layer { path: options.cwd.join(given), kind: LayerKind::Given }],
        (None, Some(_)) => Vec::new(),
        (None, None) => standing(variables).into_iter().map(|path| Layer { path, kind: LayerKind::Standing }).collect(),
    };
    for layer in farther {
        if !project.candidates.iter().any(|known| known.path == layer.path) {
            // Before it is read: what is written meanwhile makes another.
            project.stamps.push(Stamp::noted(layer.path.clone()));
            project.candidates.push(layer);
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
    for layer in &layers {
        let text = match layer.kind {
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
        written: ConfigFile::default(),
        tree: Value::Null,
        servers: Vec::new(),
        servers_off: Vec::new(),
        rest_tools: Vec::new(),
        openapi: Vec::new(),
        catalogues: Vec::new(),
        llm_tools: Vec::new(),
        named_files: Vec::new(),
        named_stamps: Vec::new(),
        compat: CompatSource::default(),
        model_endpoints: Vec::new(),
        model_overrides: Vec::new(),
        model_traffic: BTreeMap::new(),
        tokenizers: Vec::new(),
        embeddings: None,
        telemetry: Telemetry::default(),
        sandbox: SandboxSettings::default(),
        queues: BTreeMap::new(),
        policy: Default::default(),
        secrets: Vec::new(),
        key_variables: Vec::new(),
        problems,
    };
    resolve(&mut config, merged, &places, &approved, variables);
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
    check(&mut node, schema::checked(), problems);
    node
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
    variables: Variables<'_>,
) {
    config.tree = merged.to_value();
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
    let mut written: ConfigFile = match serde_json::from_value(merged.to_value()) {
        Ok(written) => written,
        Err(error) => {
            config.problems.push(Problem {
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
    expand_tokens(config, &mut written, &merged, variables);
    if let Err(error) = written.server.http.parse::<SocketAddr>() {
        let remedy = "write it like 127.0.0.1:7117; port 0 takes a free one";
        config.problems.push(Problem::new(
            Severity::Error,
            place(&merged, "server", "http"),
            "server.http",
            format!("it is not an address and port: {error}"),
            remedy,
        ));
    }
    for member in queues {
        if let Some(queue) = typed::<Queue>("queues", &member, &mut config.problems) {
            config.queues.insert(member.key.clone(), queue_spec(&queue));
            written.queues.insert(member.key, queue);
        }
    }
    let names: Vec<String> = config.queues.keys().cloned().collect();
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
        problems: &mut config.problems,
    };
    for member in servers {
        let taken: Vec<String> = config.servers.iter().map(|server| server.namespace.clone()).collect();
        let name = member.key.clone();
        match servers::resolve(member, &taken, &mut scope) {
            Resolved::Server(server) => config.servers.push(*server),
            Resolved::Off => config.servers_off.push(name),
            Resolved::Broken => {}
        }
    }
    for member in rest_tools {
        let Some(tool) = typed::<RestTool>("rest_tools", &member, scope.problems) else { continue };
        if tool.enabled != Some(false) {
            config.rest_tools.extend(rest::resolve(&member, &tool, &mut scope));
        }
        written.rest_tools.insert(member.key, tool);
    }
    for member in documents {
        let Some(entry) = typed::<OpenApiEntry>("openapi", &member, scope.problems) else { continue };
        let taken = |name: &str| {
            let is_server = config.servers.iter().any(|server| server.namespace == name);
            is_server || config.openapi.iter().any(|document| document.name == name)
        };
        let resolved = openapi::resolve(&member, &entry, &written.web, &taken, &config.trust, &mut scope);
        if let Some(Origin::File(path)) = resolved.as_ref().map(|spec| &spec.document) {
            config.named_stamps.push(Stamp::of(path));
            config.named_files.push(path.clone());
        }
        config.openapi.extend(resolved);
        written.openapi.insert(member.key, entry);
    }
    for member in endpoints {
        let Some(endpoint) = typed::<ModelEndpoint>("models.endpoints", &member, scope.problems) else { continue };
        config.model_endpoints.extend(models::resolve(&member, &endpoint, &mut scope));
        written.models.endpoints.insert(member.key, endpoint);
    }
    for member in catalogues {
        let Some(entry) = typed::<CatalogueEntry>("catalogues", &member, scope.problems) else { continue };
        let taken = |name: &str| {
            let is_server = config.servers.iter().any(|server| server.namespace == name);
            is_server || config.openapi.iter().any(|document| document.name == name)
        };
        config.catalogues.extend(catalogue_entries::resolve(&member, &entry, &taken, &mut scope));
        written.catalogues.insert(member.key, entry);
    }
    for member in llm {
        let Some(entry) = typed::<LlmToolEntry>("llm_tools", &member, scope.problems) else { continue };
        if let Some(file) = entry.file.as_ref().filter(|_| entry.enabled != Some(false)) {
            let path = llm_tools::file_of(&member, file);
            config.named_stamps.push(Stamp::of(&path));
            config.named_files.push(path);
        }
        config.llm_tools.extend(llm_tools::resolve(&member, &entry, approved, &mut scope));
        written.llm_tools.insert(member.key, entry);
    }
    for (name, overrides) in &written.models.by_name {
        let at = place(&merged, "models", name);
        config.tokenizers.extend(models::tokenizer(name, overrides, at, &mut scope).map(|path| (name.clone(), path)));
        config.model_traffic.extend(models::traffic(overrides).map(|terms| (name.clone(), terms)));
        config.model_overrides.extend(
            models::overrides(name, &written.models.by_name, at, scope.problems)
                .map(|overrides| (name.clone(), overrides)),
        );
    }
    config.compat = compat::resolve(
        &written,
        &compat::Places {
            // What stands beside a configuration that nobody has approved is a stranger's too.
            root: (!config.files.is_empty()).then_some(&root),
            state_dir: &config.state_dir,
            merged: &merged,
        },
        scope.problems,
    );
    if let Some(embeddings) = &written.selection.embeddings {
        let at = place(&merged, "selection", "embeddings");
        config.embeddings = selection::embeddings(embeddings, at, &mut scope);
    }
    let at = merged.get("telemetry").map_or(&merged.at, |section| &section.at);
    config.telemetry = telemetry::telemetry(&written.telemetry, at, &mut scope);
    config.sandbox =
        sandbox::settings(&written.sandbox, place(&merged, "sandbox", "write"), &config.state_dir, &mut scope);
    check_views(config, &written, &merged);
    check_reach(config, &written, &merged);
    config.policy = written.policy.clone();
    config.written = written;
}

pub(super) fn place<'n>(merged: &'n Node, section: &str, key: &str) -> &'n At {
    merged.get(section).and_then(|section| section.value.get(key)).map_or(&merged.at, |member| &member.at)
}

fn take_entries(merged: &mut Node, section: &str) -> Vec<Member> {
    match merged.take(section) {
        Some(Member { value: Node { data: Data::Map(members), .. }, .. }) => members,
        _ => Vec::new(),
    }
}

fn typed<T: serde::de::DeserializeOwned>(section: &str, member: &Member, problems: &mut Vec<Problem>) -> Option<T> {
    match serde_json::from_value(member.value.to_value()) {
        Ok(value) => Some(value),
        Err(error) => {
            let field = format!("{section}.{}", member.key);
            let remedy = "compare it with `toolwright config schema`";
            problems.push(Problem::new(Severity::EntryDisabled, &member.at, field, error.to_string(), remedy));
            None
        }
    }
}

fn expand_tokens(config: &mut Config, written: &mut ConfigFile, merged: &Node, variables: Variables<'_>) {
    let server = &mut written.server;
    let own = server.token.iter_mut().map(|token| ("token".to_owned(), "token", token));
    let clients = server.tokens.iter_mut();
    let clients = clients.map(|(name, client)| (format!("tokens.{name}.token"), "tokens", &mut client.token));
    for (field, key, token) in own.chain(clients) {
        let (at, field) = (place(merged, "server", key), format!("server.{field}"));
        match expand(token, variables) {
            Ok(expanded) => {
                note_secrets(&expanded, Holds::OwnKey("token"), &mut config.secrets);
                config.key_variables.extend(key_variables(&expanded));
                *token = expanded.text;
            }
            Err(error) => {
                config.problems.push(Problem::new(Severity::Error, at, field, error.to_string(), error.remedy()));
                continue;
            }
        }
        if token.trim().is_empty() && key == "tokens" {
            let remedy = "write the token, or `${VAR}` of a variable that holds it";
            config.problems.push(Problem::new(Severity::Error, at, field, "it is empty".to_owned(), remedy));
        }
    }
}

/// Who has the address `/mcp/{name}` beside views, of all kinds of sources.
fn source_at(config: &Config, written: &ConfigFile, name: &str) -> Option<String> {
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
        NAMESPACE if written.server.batch => "the provider of `batch`",
        _ => return None,
    };
    Some(ours.to_owned())
}

/// A view and a source share the addresses `/mcp/{name}`, and a name is a part of an address.
fn check_views(config: &mut Config, written: &ConfigFile, merged: &Node) {
    for name in written.views.keys() {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
        let (message, remedy) = if let Some(source) = source_at(config, written, name) {
            (format!("{source} has this name"), "give the view another name")
        } else if name.is_empty() || !name.chars().all(legal) {
            ("it is no name for an address".to_owned(), "use lower-case letters, digits, `_` and `-`")
        } else {
            continue;
        };
        let at = place(merged, "views", name);
        config.problems.push(Problem::new(Severity::Error, at, format!("views.{name}"), message, remedy));
    }
}

/// A client may reach views and sources: any other name leads nowhere.
fn check_reach(config: &mut Config, written: &ConfigFile, merged: &Node) {
    let entries = config.tree["mcp_servers"].as_object().into_iter().flat_map(|entries| entries.keys());
    for (client, token) in &written.server.tokens {
        for name in token.views.iter().flatten() {
            // What is switched off, or left out for now, is no misspelling.
            let is_off = entries.clone().any(|entry| server_namespace(entry, &|_| false) == *name)
                || written.openapi.contains_key(name)
                || written.catalogues.contains_key(name);
            if written.views.contains_key(name) || source_at(config, written, name).is_some() || is_off {
                continue;
            }
            let views = written.views.keys().map(String::as_str);
            let servers = config.servers.iter().map(|server| server.namespace.as_str());
            let documents = config.openapi.iter().map(|document| document.name.as_str());
            let remedy = match nearest(name, views.chain(servers).chain(documents)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "name a view, a server or another source, or remove it".to_owned(),
            };
            let (at, field) = (place(merged, "server", "tokens"), format!("server.tokens.{client}.views"));
            let message = format!("there is no view or source `{name}`, and nothing at /mcp/{name}");
            config.problems.push(Problem::new(Severity::Warning, at, field, message, remedy));
        }
    }
}

fn queue_spec(queue: &Queue) -> QueueSpec {
    let default = QueueSpec::default();
    QueueSpec {
        concurrent: queue.concurrent,
        per_minute: queue.per_minute,
        max_waiting: queue.max_waiting.unwrap_or(default.max_waiting),
        wait_timeout: queue.wait_timeout.map_or(default.wait_timeout, |span| span.0),
    }
}
