//! Applies a configuration at the start, and watches its files to apply their changes.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::event::ModifyKind;
use notify::{ErrorKind, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::task::JoinError;
use toolwright_core::catalogue::Provider;
use toolwright_core::catalogue::declared::SCHEMA_NAMESPACE;
use toolwright_mcp::client::{McpProvider, McpTransport};
use toolwright_net::HttpOptions;
use toolwright_providers::DocumentOptions;
use toolwright_providers::catalogue::CatalogueProvider;
use toolwright_providers::openapi::OpenApiProvider;
use toolwright_runtime::Executor;

use super::parts::build::{self, ProviderOptions, missing_tools, server_options};
use super::parts::llm_tools::{LlmProviderOptions, OfferRule};
use super::{ProviderSettings, ReloadChanges, Toolwright};
use crate::config::{
    ANY_FILE, BUILTIN, Config, LLM, LoadOptions, ModelConfig, ModelsConfig, Problem, REST, SKILLS, Severity,
};
use crate::error::Error;
use crate::private_file::private_folder;

/// How often the calls of a retired provider are counted.
const RETIRE_POLL: Duration = Duration::from_millis(200);
/// How long a retired provider waits for its calls.
const RETIRE_BOUND: Duration = Duration::from_secs(3600);

impl Toolwright {
    /// Reads the configuration again and applies it. Unchanged servers keep their process, running calls finish on the
    /// old providers.
    ///
    /// # Errors
    /// [`Error::Config`] for an unusable configuration; the running one stays in force.
    pub async fn reload(self: &Arc<Self>) -> Result<ReloadChanges, Error> {
        // The state directory stays, because its approvals count.
        let state_dir = Some(self.config().state_dir.clone());
        let options = LoadOptions { state_dir, ..self.options.clone() };
        let variables = Arc::clone(&self.variables);
        // The files may be slow to read and large.
        let fresh = tokio::task::spawn_blocking(move || crate::config::load(&options, &**variables));
        let broke_off = |error: JoinError| {
            let message = format!("reading the configuration broke off: {error}");
            let problem = Problem::with_file(Severity::Error, &self.options.cwd, message, "report it, with the log");
            Error::Config(vec![problem])
        };
        let fresh = fresh.await.map_err(broke_off)?;
        if fresh.is_unusable() {
            return Err(Error::Config(fresh.problems));
        }
        self.redactor.add(fresh.secrets.iter().cloned());
        let old = self.config();
        let needs_restart = needs_restart(&old, &fresh);
        let problems = fresh.problems.clone();
        self.put_compat(&fresh);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh);
        let reloaded = self.resolve_providers().await?;
        self.triggers.use_channels(self.config().sections.channels.clone());
        self.configure_triggers().await;
        let new = reloaded.added.iter().chain(&reloaded.changed);
        // A document may have changed under an unchanged entry, which only this check detects.
        let config = self.config();
        let documents = config.openapi.iter().map(|document| &document.name);
        let due: HashSet<&String> = new.chain(documents).collect();
        for name in due {
            let (catalogue, name) = (Arc::clone(&self.catalogue), name.clone());
            tokio::spawn(async move { catalogue.refresh(&name).await });
        }
        Ok(ReloadChanges { needs_restart, problems, ..reloaded })
    }

    /// Updates the catalogue's providers to the configuration in force. Built-in and REST tools are
    /// listed at once; servers are not connected.
    pub(super) async fn resolve_providers(self: &Arc<Self>) -> Result<ReloadChanges, Error> {
        let config = self.config();
        let mut running = self.running.lock().await;
        let mut done = ReloadChanges::default();
        let settings = ProviderOptions::of(&config);
        if running.settings.as_ref() != Some(&settings) {
            self.put_own(BUILTIN, settings.builtins()?, &mut done).await;
            self.put_own(SCHEMA_NAMESPACE, settings.declared(), &mut done).await;
        }
        if running.settings.as_ref() != Some(&settings) || running.rest != config.rest_tools {
            self.put_own(REST, settings.rest(&config.rest_tools), &mut done).await;
        }
        let same_surroundings = running
            .settings
            .as_ref()
            .is_some_and(|old| (old.withheld_env(), old.sandbox()) == (settings.withheld_env(), settings.sandbox()));
        running.settings = Some(settings);
        running.rest.clone_from(&config.rest_tools);
        self.resolve_llm_in(&mut running, OfferRule::WithModel, &mut done).await;
        let skills = (config.skills.clone(), config.sections.defaults.clone());
        if running.skills.as_ref() != Some(&skills) {
            self.put_own(SKILLS, build::skills(&skills.0, &skills.1), &mut done).await;
            running.skills = Some(skills);
        }
        self.resolve_agents_in(&config, &mut running, &mut done).await;
        self.remove_gone(&config, &running, &mut done).await;
        let mut fresh: Vec<Arc<dyn Provider>> = Vec::new();
        let catalogues: HashMap<String, _> =
            config.catalogues.iter().map(|entry| (entry.namespace.clone(), entry.clone())).collect();
        for entry in &config.catalogues {
            if running.catalogues.get(&entry.namespace) != Some(entry) {
                fresh.push(CatalogueProvider::new(entry.clone(), self.document_deps()));
            }
        }
        let servers: HashMap<String, _> =
            config.servers.iter().map(|server| (server.namespace.clone(), server.clone())).collect();
        for server in &config.servers {
            let inherits = matches!(server.config.transport, McpTransport::Stdio { .. });
            let same = running.servers.get(&server.namespace) == Some(server);
            if !same || (inherits && !same_surroundings) {
                fresh.push(McpProvider::new(server_options(server, &config, &self.redactor), self.mcp.clone()));
            }
        }
        let documents: HashMap<String, _> =
            config.openapi.iter().map(|document| (document.name.clone(), document.clone())).collect();
        for entry in &config.openapi {
            if running.openapi.get(&entry.name) != Some(entry) {
                fresh.push(OpenApiProvider::with(entry.clone(), self.document_deps()));
            }
        }
        self.put(fresh, &mut done).await;
        (running.catalogues, running.servers, running.openapi) = (catalogues, servers, documents);
        if self.pins.set_config(config.sections.pins) {
            self.catalogue.recheck_pins().await;
        }
        self.catalogue.set_absent(missing_tools(&config)).await;
        Ok(done)
    }

    /// Removes the providers that the configuration no longer names, before any is added.
    async fn remove_gone(&self, config: &Config, running: &ProviderSettings, done: &mut ReloadChanges) {
        let servers = config.servers.iter().map(|server| &server.namespace);
        let documents = config.openapi.iter().map(|document| &document.name);
        let catalogues = config.catalogues.iter().map(|entry| &entry.namespace);
        let configured: HashSet<&String> = servers.chain(documents).chain(catalogues).collect();
        let names = running.servers.keys().chain(running.openapi.keys()).chain(running.catalogues.keys());
        let gone: HashSet<&String> = names.filter(|name| !configured.contains(name)).collect();
        for name in gone {
            self.take_out(name, done).await;
        }
    }

    /// Updates the LLM-backed tools to the configuration in force.
    pub(super) async fn resolve_llm(&self, offered: OfferRule) {
        let mut running = self.running.lock().await;
        self.resolve_llm_in(&mut running, offered, &mut ReloadChanges::default()).await;
    }

    async fn resolve_llm_in(&self, running: &mut ProviderSettings, offered: OfferRule, done: &mut ReloadChanges) {
        let (config, all) = (self.config(), offered == OfferRule::Always);
        if all && running.all_llm_of.as_ref().is_some_and(|known| Arc::ptr_eq(known, &config)) {
            return;
        }
        let settings = LlmProviderOptions::of(&config, &|tool| {
            all || self.executor.has_model_for(&tool.id, Some(&tool.model_preference))
        });
        running.all_llm_of = all.then_some(config);
        if running.llm.as_ref() != Some(&settings) {
            self.put_own(LLM, settings.provider(), done).await;
            running.llm = Some(settings);
        }
    }

    fn document_deps(&self) -> DocumentOptions {
        let (manifests, events) = (Arc::clone(&self.store) as _, Arc::clone(&self.events) as _);
        DocumentOptions { manifests, events, http: HttpOptions::default() }
    }

    /// Adds or replaces a local provider and lists it, or removes it.
    pub(super) async fn put_own(&self, name: &str, provider: Option<Arc<dyn Provider>>, done: &mut ReloadChanges) {
        match provider {
            Some(provider) => {
                self.put(vec![provider], done).await;
                self.catalogue.refresh(name).await;
            }
            None => self.take_out(name, done).await,
        }
    }

    /// Adds providers, or replaces those of the same name.
    async fn put(&self, providers: Vec<Arc<dyn Provider>>, done: &mut ReloadChanges) {
        let names: Vec<String> = providers.iter().map(|provider| provider.name().to_owned()).collect();
        for (name, old) in names.into_iter().zip(self.catalogue.put_providers(providers).await) {
            match old {
                Some(old) => {
                    done.changed.push(name);
                    retire(old, Arc::clone(&self.executor));
                }
                None => done.added.push(name),
            }
        }
    }

    async fn take_out(&self, name: &str, done: &mut ReloadChanges) {
        if let Some(old) = self.catalogue.remove_provider(name).await {
            done.removed.push(name.to_owned());
            retire(old, Arc::clone(&self.executor));
        }
    }
}

/// Shuts a provider down once none of its calls runs, or after [`RETIRE_BOUND`].
fn retire(provider: Arc<dyn Provider>, executor: Arc<Executor>) {
    tokio::spawn(async move {
        let calls_end = async {
            // At least one wait: a call may have been checked against the old snapshot but not begun.
            loop {
                tokio::time::sleep(RETIRE_POLL).await;
                if executor.calls_on(&provider) == 0 {
                    return;
                }
            }
        };
        if tokio::time::timeout(RETIRE_BOUND, calls_end).await.is_err() {
            tracing::warn!("provider {} is shut down under running calls", provider.name());
        }
        provider.shut_down().await;
    });
}

/// Returns the part of `models` that takes effect only after a restart.
fn without_compat(models: &ModelsConfig) -> ModelsConfig {
    let mut models = models.clone();
    models.judge = None;
    models.by_name.values_mut().for_each(|model| model.tool_compat.clear());
    models.by_name.retain(|_, model| *model != ModelConfig::default());
    models
}

fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let (a, b) = (&old.sections, &new.sections);
    let mut changed = Vec::new();
    let mut check = |same: bool, what| {
        if !same {
            changed.push(what);
        }
    };
    check(a.defaults.calls.tool_timeout == b.defaults.calls.tool_timeout, "defaults.tool_timeout");
    check(a.defaults.calls.idle_timeout == b.defaults.calls.idle_timeout, "defaults.idle_timeout");
    check(
        a.defaults.calls.tool_response_max_bytes == b.defaults.calls.tool_response_max_bytes,
        "defaults.tool_response_max_bytes",
    );
    check(
        a.defaults.calls.whole_result_max_bytes == b.defaults.calls.whole_result_max_bytes,
        "defaults.whole_result_max_bytes",
    );
    check(a.defaults.calls.calls_per_turn == b.defaults.calls.calls_per_turn, "defaults.calls_per_turn");
    check(a.defaults.calls.ledger == b.defaults.calls.ledger, "defaults.ledger");
    check(a.defaults.repair_model == b.defaults.repair_model, "defaults.repair_model");
    check(
        a.defaults.calls.auto_background_after == b.defaults.calls.auto_background_after,
        "defaults.auto_background_after",
    );
    check(old.queues == new.queues, "queues");
    check(a.policy.guards == b.policy.guards, "policy.guards");
    check(a.outputs == b.outputs, "outputs");
    check(a.server == b.server, "server");
    let same_models = without_compat(&a.models) == without_compat(&b.models);
    check(same_models && old.model_endpoints == new.model_endpoints, "models");
    check(a.telemetry == b.telemetry, "telemetry");
    check(a.selection.judge_model == b.selection.judge_model, "selection.judge_model");
    check(a.selection.pinned == b.selection.pinned, "selection.pinned");
    check(a.selection.scorer == b.selection.scorer, "selection.scorer");
    check(a.selection.pick.min_score == b.selection.pick.min_score, "selection.min_score");
    check(a.selection.timeout == b.selection.timeout, "selection.timeout");
    check(old.root == new.root, "the workspace root");
    changed
}

/// Editors write in several steps, so a change counts once the files have been unchanged for this long.
const QUIET: Duration = Duration::from_millis(200);
/// Maximum symbolic links on the way to one file, as in the system.
const MAX_LINKS: usize = 40;
/// How often the search for files to watch is repeated when they change meanwhile.
const MAX_SEARCHES: usize = 8;

/// Reloads Toolwright's configuration whenever one of its files changes, and calls `report` with the result. Follows
/// symbolic links, and waits for files whose folder does not exist yet. Runs until it is dropped.
///
/// # Errors
/// [`Error::Watch`].
pub async fn watch(app: Arc<Toolwright>, report: impl Fn(Result<ReloadChanges, Error>) + Send) -> Result<(), Error> {
    let (changed, mut changes) = mpsc::channel::<()>(1);
    let points: Arc<Mutex<BTreeSet<PathBuf>>> = Arc::default();
    let watched = Arc::clone(&points);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let concerns_us = match event {
            Ok(event) if matches!(event.kind, EventKind::Access(_)) => false,
            Ok(event) => {
                let points = watched.lock().unwrap_or_else(PoisonError::into_inner);
                let goes = matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
                let is_folder = |path: &Path| points.iter().any(|point| point.parent() == Some(path));
                let is_point = |path: &Path| points.contains(path) || points.contains(&path.with_file_name(ANY_FILE));
                event.paths.iter().any(|path| is_point(path) || (goes && is_folder(path)))
            }
            // Events were lost: reload to be safe.
            Err(_) => true,
        };
        if concerns_us {
            // If the channel is full, a reload is already due.
            let _ = changed.try_send(());
        }
    })?;
    let mut folders = BTreeSet::new();
    make_folders(&app);
    follow(&files(&app), &points, &mut folders, &mut watcher)?;
    // The files may have changed since they were read first.
    if !app.config().is_current() {
        report(app.reload().await);
    }
    while changes.recv().await.is_some() {
        while tokio::time::timeout(QUIET, changes.recv()).await.is_ok_and(|change| change.is_some()) {}
        let before = files(&app);
        let mut look = |files: &BTreeSet<PathBuf>| {
            if let Err(error) = follow(files, &points, &mut folders, &mut watcher) {
                tracing::warn!("not all files of the configuration are watched for changes: {error}");
            }
        };
        look(&before);
        report(app.reload().await);
        make_folders(&app);
        let after = files(&app);
        if after != before {
            look(&after);
            // New files may have changed between their reading and the watching.
            if !app.config().is_current() {
                report(app.reload().await);
            }
        }
    }
    Ok(())
}

/// Returns every file from which the configuration may be read.
fn files(app: &Toolwright) -> BTreeSet<PathBuf> {
    app.config().watched().cloned().collect()
}

/// Creates the folders of configuration files in the state directory. Otherwise the state directory itself would be
/// watched, which changes with every call.
fn make_folders(app: &Toolwright) {
    let config = app.config();
    let ours = config.watched().filter(|file| file.starts_with(&config.state_dir));
    for folder in ours.filter_map(|file| file.parent()) {
        if let Err(error) = private_folder(folder) {
            tracing::debug!("{} is not made: {error}", folder.display());
        }
    }
}

/// Watches the folders of everything that affects the content of `files`. Folders, because editors replace files, and
/// missing ones may appear.
fn follow(
    files: &BTreeSet<PathBuf>,
    points: &Mutex<BTreeSet<PathBuf>>,
    folders: &mut BTreeSet<PathBuf>,
    watcher: &mut RecommendedWatcher,
) -> Result<(), notify::Error> {
    // The next search sees changes between this search and the watching.
    for _ in 0..MAX_SEARCHES {
        let found: BTreeSet<PathBuf> = files.iter().flat_map(|file| paths_to(file)).collect();
        let needed: BTreeSet<PathBuf> = found.iter().filter_map(|point| point.parent()).map(PathBuf::from).collect();
        *points.lock().unwrap_or_else(PoisonError::into_inner) = found;
        // A replaced folder has the same name, so all are watched again.
        for folder in folders.difference(&needed) {
            // A removed folder is no longer watched.
            let _ = watcher.unwatch(folder);
        }
        let mut settled = *folders == needed;
        for folder in &needed {
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                Err(notify::Error { kind: ErrorKind::PathNotFound, .. }) => settled = false,
                watched => watched?,
            }
        }
        *folders = needed;
        if settled {
            break;
        }
    }
    Ok(())
}

/// Returns every path whose change may change the target of `file`: the symbolic links on the way, and the file itself
/// or the first missing part.
fn paths_to(file: &Path) -> Vec<PathBuf> {
    let parts =
        |path: &Path| -> VecDeque<OsString> { path.components().map(|part| part.as_os_str().to_owned()).collect() };
    let mut rest = parts(file);
    let mut here = PathBuf::new();
    let mut points = Vec::new();
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == Component::ParentDir.as_os_str() {
            here.pop();
            continue;
        }
        let next = here.join(&part);
        match std::fs::symlink_metadata(&next) {
            Ok(metadata) if metadata.is_symlink() && links < MAX_LINKS => {
                links += 1;
                if let Ok(target) = std::fs::read_link(&next) {
                    // Joining an absolute target replaces `here`.
                    let mut through = parts(&target);
                    through.append(&mut rest);
                    rest = through;
                }
                points.push(next);
            }
            Ok(metadata) if metadata.is_dir() && !rest.is_empty() => here = next,
            _ => {
                points.push(next);
                break;
            }
        }
    }
    points
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn links_cycles_and_missing_folders_can_be_watched() {
        let folder = tempfile::tempdir().expect("folder");
        let root = std::fs::canonicalize(folder.path()).expect("root");
        let link = |from: &str, to: &str| std::os::unix::fs::symlink(to, root.join(from)).expect("link");
        std::fs::create_dir_all(root.join("v1/deep")).expect("folders");
        std::fs::write(root.join("v1/file"), "").expect("file");
        link("current", "v1");
        link("file", "v1/deep/../../current/file");
        link("round", "round");
        let check = |file: &str, expect: &[&str]| {
            let expect: Vec<PathBuf> = expect.iter().map(|path| root.join(path)).collect();
            let mut points = paths_to(&root.join(file));
            points.dedup();
            assert_eq!(points, expect, "{file}");
        };
        check("v1/file", &["v1/file"]);
        check("file", &["file", "current", "v1/file"]);
        check("none/of/this", &["none"]);
        check("v1/none", &["v1/none"]);
        check("round", &["round"]);
    }
}
