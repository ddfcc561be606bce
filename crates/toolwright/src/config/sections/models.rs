//! `models`: endpoints of models, their settings, and which ones work well with which tools.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::exposure::{Exposure, ExposureSetting};
use toolwright_core::model::Prices;
use toolwright_core::tool_id::ToolId;
use toolwright_models::{Endpoint, ModelOverrides};
use toolwright_runtime::TrafficConfig;
use toolwright_search::{Compat, CompatFile, MAX_COMPAT_BYTES};

use super::check::endpoint_schema;
use super::file::{ConfigFile, Entries};
use super::variables::ResolveScope;
use crate::config::files::FileStamp;
use crate::config::files::node::{Member, Node, Problem, Severity, SourceLocation};

/// `models`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelsConfig {
    /// The model of `run` and `chat` where `--model` names none: `provider/model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// The model that judges rubrics in `toolwright bench`: `provider/model`. Default: `default`, unless that is one of
    /// the measured models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
    /// Names that agents may use for models, like `sonnet`, each with its `provider/model`.
    pub aliases: IndexMap<String, String>,
    /// Endpoints for model requests, by the name before the first `/` of a model id. Endpoints from environment
    /// variables exist besides.
    #[serde(skip_serializing)]
    pub(in crate::config) endpoints: Entries<Endpoint>,
    /// How requests to a model are made: by model id (`provider/model`), or by the name of its provider for
    /// all of its models. The nearer name counts.
    #[serde(flatten, skip_serializing)]
    pub by_name: IndexMap<String, ModelConfig>,
}

/// How requests to a model are made.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct ModelConfig {
    /// What is sent.
    #[serde(flatten)]
    pub requests: ModelOverrides,
    /// When it is sent.
    #[serde(flatten)]
    pub traffic: TrafficConfig,
    /// How tools are shown to it; overrides `selection.exposure`. `deferred` here also declares that its endpoint
    /// supports deferred tools, if Toolwright does not know so.
    pub exposure: Option<ExposureSetting>,
    /// Its `tokenizer.json`, or the directory with it, relative to the workspace root: it counts the tokens of
    /// conversations that come near the window, and is read when first needed. Default: tokens are estimated, and the
    /// API's reports correct the estimate.
    #[schemars(with = "Option<String>", extend("x-variables" = "setting"))]
    pub tokenizer: Option<PathBuf>,
    /// Its prices, in US dollars for a million tokens. Without them the cost of its requests is unknown. Changing it
    /// needs a restart.
    pub prices: Option<Prices>,
    /// Your scores for how well it works with tools, from 0 to 1, by tool id. They override what `toolwright bench`
    /// measured. Below 0.8 it is not recommended for the tool. Takes effect without a restart.
    pub tool_compat: IndexMap<String, f64>,
}

/// Reads an endpoint and expands its variables; `None`, with the reason among the problems, if it is unusable.
pub(in crate::config) fn endpoint(member: &mut Member, scope: &mut ResolveScope<'_>) -> Option<Endpoint> {
    let (name, at, entry) = (member.key.clone(), member.at.clone(), format!("models.endpoints.{}", member.key));
    let before = scope.problems.len();
    if name.is_empty() || name.contains('/') {
        scope.leave_out(&at, &entry, "a provider's name may not be empty or contain `/`".into(), "rename it");
    }
    let endpoint: Option<Endpoint> = scope.entry(member, endpoint_schema(), "models.endpoints");
    if let Some(Err(error)) = endpoint.as_ref().map(|endpoint| url::Url::parse(&endpoint.base_url)) {
        let message = format!("it is not an address: {error}");
        scope.leave_out(&at, &format!("{entry}.base_url"), message, "write it like https://host/v1");
    }
    endpoint.filter(|_| scope.problems.len() == before).map(|endpoint| Endpoint { provider: name, ..endpoint })
}

/// Reads how requests to a model are made. Sizes and limits that it lacks are taken from its provider's entry in `all`.
/// `None`, with the reason among the problems, if they are invalid.
pub(in crate::config) fn overrides(
    name: &str,
    all: &IndexMap<String, ModelConfig>,
    at: &SourceLocation,
    problems: &mut Vec<Problem>,
) -> Option<ModelOverrides> {
    let model = all.get(name)?;
    let mut overrides = model.requests.clone();
    if let Some(provider) = name.split_once('/').and_then(|(provider, _)| all.get(provider)) {
        overrides = overrides.or(&provider.requests);
    }
    if let Err((field, why)) = overrides.settings.check() {
        let place = format!("models.{name}.{field}");
        problems.push(Problem::new(Severity::Error, at, place, why, "fix it, or remove it".to_owned()));
        return None;
    }
    // A setting for a model implies that its endpoint supports it.
    overrides.tool_search = (model.exposure == Some(ExposureSetting::Fixed(Exposure::Deferred))).then_some(true);
    Some(overrides)
}

/// Returns the file of a model's tokenizer. A missing file is reported, because tokens are then estimated.
pub(in crate::config) fn tokenizer(
    name: &str,
    model: &ModelConfig,
    at: &SourceLocation,
    scope: &mut ResolveScope<'_>,
) -> Option<PathBuf> {
    let path = model.tokenizer.as_ref().filter(|path| !path.as_os_str().is_empty())?;
    let path = scope.root.join(path);
    let file = if path.is_dir() { path.join("tokenizer.json") } else { path };
    if !file.is_file() {
        let message = format!("there is no file {}: its tokens are estimated", file.display());
        let remedy = "give the path of the model's tokenizer.json";
        scope.problems.push(Problem::new(Severity::Warning, at, format!("models.{name}.tokenizer"), message, remedy));
        return None;
    }
    Some(file)
}

/// The file beside the configuration.
const IN_ROOT: &str = "toolwright-compat.json";
/// The file in the state directory, in a separate folder, so that watching it causes no wake-ups for other changes.
const IN_STATE: &str = "models/compat.json";

/// The source of the compat table, and its content.
#[derive(Debug, Clone, Default)]
pub struct CompatSource {
    /// The files that may contain it, nearest first; the first existing one is used. Hot reload watches them.
    pub files: Vec<PathBuf>,
    /// The stamps of these files from before they were read.
    pub(in crate::config) stamps: Vec<FileStamp>,
    /// The file that is used, and to which a benchmark writes; if none exists, the last one.
    pub file: PathBuf,
    /// Its content.
    pub written: CompatFile,
    /// Its content, overridden by the configuration.
    pub compat: Arc<Compat>,
}

/// Reads the compat table; `root` is the workspace root, whose file counts.
pub(in crate::config) fn compat(
    written: &ConfigFile,
    root: Option<&Path>,
    state_dir: &Path,
    merged: &Node,
    problems: &mut Vec<Problem>,
) -> CompatSource {
    let in_root = |file: &str| root.map(|root| root.join(file));
    let files: Vec<PathBuf> = match &written.llm.compat {
        Some(file) => in_root(file).into_iter().collect(),
        None => in_root(IN_ROOT).into_iter().chain([state_dir.join(IN_STATE)]).collect(),
    };
    let stamps = files.iter().map(|file| FileStamp::of(file)).collect();
    let found = files.iter().find(|file| file.exists());
    let file = found.or(files.last()).cloned().unwrap_or_default();
    let of_file = match found.map(|file| read_compat(file)) {
        None => CompatFile::default(),
        Some(Ok(read)) => read,
        Some(Err(error)) => {
            let remedy = "`toolwright bench` writes such files; until it is fixed no model is recommended";
            problems.push(Problem::with_file(Severity::Warning, &file, error, remedy));
            CompatFile::default()
        }
    };
    for unused in &of_file.unused {
        let remedy = "fix or remove it; it is ignored, and the other entries count";
        problems.push(Problem::with_file(Severity::Warning, &file, unused.why.to_string(), remedy));
    }
    let operator = operator(written, merged, problems);
    let compat = Arc::new(of_file.compat(&operator));
    CompatSource { files, stamps, file, written: of_file, compat }
}

/// Reads a compat file.
///
/// # Errors
/// A message.
pub fn read_compat(file: &Path) -> Result<CompatFile, String> {
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(|error| format!("it cannot be read: {error}"))?;
    let most = u64::try_from(MAX_COMPAT_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    opened.take(most).read_to_string(&mut text).map_err(|error| format!("it cannot be read: {error}"))?;
    CompatFile::parse(&text).map_err(|error| format!("it is no compat file: {error}"))
}

/// Returns model, tool and score of each `tool_compat`.
fn operator(written: &ConfigFile, merged: &Node, problems: &mut Vec<Problem>) -> Vec<(String, String, f64)> {
    let mut operator_scores = Vec::new();
    for (model, config) in &written.models.by_name {
        for (tool, score) in &config.tool_compat {
            let (message, remedy) = if !model.contains('/') {
                (format!("`{model}` is no model but a provider"), "write it under provider/model")
            } else if ToolId::parse(tool).is_err() {
                (
                    format!("`{tool}` is no tool id"),
                    "write it like llm:summarize@1.0.0; `toolwright tools ls --json` has the ids",
                )
            } else if !(0.0..=1.0).contains(score) {
                (format!("{score} is not within 0 and 1"), "write a share, like 0.95")
            } else {
                operator_scores.push((model.clone(), tool.clone(), *score));
                continue;
            };
            let field = format!("models.{model}.tool_compat.{tool}");
            problems.push(Problem::new(Severity::Error, merged.place("models", model), field, message, remedy));
        }
    }
    operator_scores
}
