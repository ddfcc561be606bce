//! Loads files to a resolved configuration. Never fails: errors become problems.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use toolwright_core::tool_id::{RESERVED_NAMESPACES, server_namespace, wire_candidate};
use toolwright_core::trigger::TriggerKind;
use toolwright_providers::builtin::{self, BuiltinOptions, OptionalTool, web};
use toolwright_providers::openapi::Origin;
use toolwright_telemetry::Telemetry;

use super::agents::{self, KnownNames};
use super::files::folders::{DefinitionFolder, FolderKind, paths_in, user_folders};
use super::files::node::{Data, Member, Node, Problem, Severity, SourceLocation};
use super::files::{FileNames, FileStamp, Layer, LayerKind, Variables, base_files, read_text};
use super::layers::{Project, find_project, merge_below, read};
use super::resolve::{
    check_channels, check_reach, check_views, resolve_settings, resolve_tools, resolve_triggers, telemetry,
};
use super::sections::check::{check, schema};
use super::sections::file::ConfigFile;
use super::sections::llm_tools;
use super::sections::models::{self, CompatSource};
use super::sections::servers::{self, ResolvedServer};
use super::sections::variables::ResolveScope;
use super::{Config, skills, sources};
use crate::private_file::is_own;
use crate::trust::{ProjectTrust, TrustStore};

/// The sources of a configuration.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// `--config`: the only file to read.
    pub config: Option<PathBuf>,
    /// Settings in code, in the shape of `toolwright.yaml`. They override those of `config`; without `config` no file
    /// is read.
    pub settings: Option<Value>,
    /// `--root`.
    pub root: Option<PathBuf>,
    /// `--state-dir`.
    pub state_dir: Option<PathBuf>,
    /// The current folder, absolute.
    pub cwd: PathBuf,
}

/// Loads the configuration: only the given file, else the approved content of a project's files ([`crate::trust`]) over
/// the user's file and the system's. Never fails: see [`Config::problems`] and [`Config::is_unusable`].
#[must_use]
pub fn load(options: &LoadOptions, variables: Variables<'_>) -> Config {
    let state_dir = state_dir(options, variables);
    let mut project = match (&options.config, &options.settings) {
        (None, None) => find_project(&options.cwd, variables, &TrustStore::in_state(&state_dir)),
        // Only these.
        _ => Project::default(),
    };
    let farther: Vec<(PathBuf, LayerKind)> = match (&options.config, &options.settings) {
        (Some(given), _) => {
            let config_path = options.cwd.join(given);
            let folder = |kind: FolderKind| (config_path.with_file_name(kind.name()), LayerKind::StandingFolder(kind));
            let folders = FolderKind::ALL.map(folder);
            [(config_path, LayerKind::Given)].into_iter().chain(folders).collect()
        }
        (None, Some(_)) => Vec::new(),
        (None, None) => {
            let files = base_files(variables).into_iter().map(|path| (path, LayerKind::Base));
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
            // Stamped before reading, so that a write in between is detected.
            project.stamps.extend(watched.into_iter().map(FileStamp::noted));
            project.candidates.push(Layer { path, kind });
        }
    }
    let Project { candidates: layers, trust: judged, stamps } = project;
    let mut problems: Vec<Problem> =
        judged.iter().flat_map(|judged| notice(judged).into_iter().chain(judged.faults.iter().cloned())).collect();
    let approved: BTreeMap<PathBuf, Option<String>> =
        judged.iter().filter_map(|judged| Some(judged.in_force.as_ref()?.texts(&judged.file))).flatten().collect();
    let mut files = Vec::new();
    let mut places = FileNames::with_base_files(base_files(variables));
    let mut root = None;
    let nowhere = SourceLocation { file: Arc::from(options.cwd.as_path()), line: 0 };
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
            LayerKind::Given | LayerKind::Base => read_text(&layer.path),
            LayerKind::Project | LayerKind::Foreign => match held(&judged, &layer.path) {
                Some(text) => Ok(text),
                None => continue,
            },
        };
        let Some(node) = read(layer, text, &mut places, &mut problems) else { continue };
        if root.is_none() && layer.kind != LayerKind::Base {
            root = layer.path.parent().map(Path::to_path_buf);
        }
        files.push(layer.path.clone());
        merge_below(&mut merged, node);
    }
    let root = options.root.as_ref().map(|root| options.cwd.join(root)).or(root).unwrap_or_else(|| options.cwd.clone());
    let root = std::fs::canonicalize(&root).unwrap_or_else(|error| {
        let message = format!("the workspace root cannot be used: {error}");
        problems.push(Problem::with_file(
            Severity::Error,
            &root,
            message,
            "give an existing folder: `--root`, or `root` of the builder",
        ));
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
    // In the order of the files.
    let order = &config.candidates;
    let place = |file: &PathBuf| order.iter().position(|layer| layer.path == *file);
    config.problems.sort_by_cached_key(|problem| (problem.file.as_ref().and_then(place), problem.line));
    config
}

/// Returns the path that messages show for settings in code, as a file of this folder, to which relative paths refer.
#[must_use]
pub(crate) fn code_settings_path(cwd: &Path) -> PathBuf {
    cwd.join("Toolwright::builder()")
}

fn in_code(settings: &Value, cwd: &Path, problems: &mut Vec<Problem>) -> Node {
    let mut node = Node::of_value(settings, &SourceLocation { file: Arc::from(code_settings_path(cwd)), line: 0 });
    check(&mut node, schema(), problems);
    node
}

/// Reads a definition folder's applicable files.
fn definition_folder(
    kind: FolderKind,
    layer: &Layer,
    judged: &[ProjectTrust],
    problems: &mut Vec<Problem>,
) -> Option<DefinitionFolder> {
    if layer.kind.is_of_project() {
        let judged = judged.iter().find(|judged| judged.file == layer.path)?;
        return Some(DefinitionFolder::approved(kind, judged.in_force.as_ref()?.texts(&judged.file)));
    }
    let read = match DefinitionFolder::read(kind, &layer.path) {
        // A given file may be beside a folder of another user.
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

/// Returns the content of a project's file that is in force.
fn held(judged: &[ProjectTrust], path: &Path) -> Option<String> {
    let judged = judged.iter().find(|judged| judged.file == path)?;
    Some(judged.in_force.as_ref()?.text.clone())
}

fn notice(judged: &ProjectTrust) -> Option<Problem> {
    let (message, remedy) = judged.notice()?;
    Some(Problem::with_file(Severity::Warning, &judged.file, message, remedy))
}

/// Returns the absolute state directory of the options.
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
    places: &FileNames,
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
    let mut scope = ResolveScope {
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
    resolve_settings(&mut sections, &merged, &config.state_dir, &mut scope);
    for member in queues {
        config.queues.extend(scope.read(&member, "queues").map(|queue| (member.key, queue)));
    }
    for member in servers {
        let taken: Vec<String> = config.servers.iter().map(|server| server.namespace.clone()).collect();
        let name = member.key.clone();
        match servers::resolve(member, &taken, &mut scope) {
            ResolvedServer::Server(server) => config.servers.push(*server),
            ResolvedServer::Off => config.disabled.push(("mcp_servers", name)),
            ResolvedServer::Broken => {}
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
            config.named_stamps.push(FileStamp::of(path));
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
            config.named_stamps.push(FileStamp::of(&path));
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
    // A program may have its own tools and models.
    let (tools, providers) =
        if is_in_code { Default::default() } else { (tool_names(&sections), providers(&endpoint_names)) };
    let mut triggers = std::mem::take(&mut sections.triggers);
    let named = &sections.models;
    let models: Vec<&str> = (named.by_name.keys().chain(named.aliases.values()))
        .chain(named.default.as_ref())
        .map(String::as_str)
        .filter(|name| name.contains('/'))
        .collect();
    let skills = skills::load(folders, scope.problems);
    let names = KnownNames {
        aliases: &sections.models.aliases,
        models: &models,
        providers: &providers,
        tools: &tools,
        sources: &sources_of_tools(&config.tree),
        channels: &sections.channels,
        skills: &skills,
    };
    config.agents = agents::load(agent_entries, folders, &names, &mut scope);
    resolve_triggers(&mut triggers, &merged, &config.agents, &names, scope.problems);
    sections.triggers = triggers;
    let mut tools = std::mem::take(&mut sections.tools);
    resolve_tools(&mut tools, &merged, &config.agents, &names, scope.problems);
    sections.tools = tools;
    config.skills = skills;
    // Files beside an unapproved configuration are untrusted too.
    let beside = (!config.files.is_empty()).then_some(&*root);
    config.compat = models::compat(&sections, beside, &config.state_dir, &merged, scope.problems);
    let at = merged.get("telemetry").map_or(&merged.at, |section| &section.at);
    config.telemetry = telemetry(&sections.telemetry, at, &mut scope);
    check_views(config, &sections, &merged);
    check_channels(config, &sections, &merged);
    check_reach(config, &sections, &merged);
    config.sections = sections;
}

fn take_entries(merged: &mut Node, section: &str) -> Vec<Member> {
    match merged.take(section) {
        Some(Member { value: Node { data: Data::Map(members), .. }, .. }) => members,
        _ => Vec::new(),
    }
}

/// Returns the names of the built-in tools, listed or not, and of those of `tools`, as ids and as models write them.
fn tool_names(sections: &ConfigFile) -> Vec<String> {
    let options = BuiltinOptions {
        groups: true,
        triggers: TriggerKind::ALL.to_vec(),
        optional: OptionalTool::ALL.to_vec(),
        ..BuiltinOptions::default()
    };
    let tools = builtin::tools(&options).into_iter().chain(web::tools(&sections.web));
    let ids = tools.map(|tool| tool.definition().id).map(|id| (id.namespace().to_owned(), id.name().to_owned()));
    let own = sections.tools.keys().map(|name| ("trigger".to_owned(), name.clone()));
    ids.chain(own).flat_map(|(of, name)| [format!("{of}:{name}"), wire_candidate(&of, &name)]).collect()
}

/// Returns namespaces with unknown tools: those of sources, existing or not, and those whose tools change.
fn sources_of_tools(tree: &Value) -> Vec<String> {
    let names = |section: &str| tree[section].as_object().into_iter().flat_map(|entries| entries.keys().cloned());
    let servers = names("mcp_servers").map(|entry| server_namespace(&entry, &|_| false));
    let sources = servers.chain(names("openapi")).chain(names("catalogues"));
    let builtin = ["channel", "fs", "group", "job", "memory", "output", "shell", "trigger", "web"];
    let reserved = RESERVED_NAMESPACES.iter().filter(|name| !builtin.contains(name)).map(|name| (*name).to_owned());
    sources.chain(reserved).collect()
}

/// Returns the known providers of models.
fn providers(endpoints: &[String]) -> Vec<String> {
    let named = ["openai", "anthropic", "gemini", "ollama"].map(str::to_owned);
    endpoints.iter().cloned().chain(named).collect()
}
