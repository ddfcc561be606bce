//! Which models do well with which tools: the file that `toolwright bench` writes, and over it what the configuration says.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolwright_core::select::Compat;
use toolwright_core::tool_id::ToolId;
use toolwright_eval::{CompatFile, MAX_COMPAT_BYTES};

use super::load::place;
use super::node::Node;
use super::problem::{Problem, Severity};
use super::stamp::Stamp;
use super::typed::ConfigFile;

/// The file beside the configuration.
const IN_ROOT: &str = "toolwright-compat.json";
/// The file in the state directory, in a folder of its own: who watches it is not woken by what else changes there.
const IN_STATE: &str = "models/compat.json";

/// Where it is said, and what.
#[derive(Debug, Clone, Default)]
pub struct CompatSource {
    /// The files that it may stand in, nearest first; the first that is there counts. Hot reload watches them.
    pub files: Vec<PathBuf>,
    /// What told their contents when they were read.
    pub(super) stamps: Vec<Stamp>,
    /// The one that counts, and where a benchmark writes: without any, the last.
    pub file: PathBuf,
    /// What it says.
    pub written: CompatFile,
    /// That, and over it the configuration's word.
    pub compat: Arc<Compat>,
}

/// Where to look.
pub(super) struct Places<'a> {
    /// The workspace root, where its file counts.
    pub(super) root: Option<&'a Path>,
    pub(super) state_dir: &'a Path,
    pub(super) merged: &'a Node,
}

pub(super) fn resolve(written: &ConfigFile, places: &Places<'_>, problems: &mut Vec<Problem>) -> CompatSource {
    let in_root = |file: &str| places.root.map(|root| root.join(file));
    let files: Vec<PathBuf> = match &written.llm.compat {
        Some(file) => in_root(file).into_iter().collect(),
        None => in_root(IN_ROOT).into_iter().chain([places.state_dir.join(IN_STATE)]).collect(),
    };
    let stamps = files.iter().map(|file| Stamp::of(file)).collect();
    let found = files.iter().find(|file| file.exists());
    let file = found.or(files.last()).cloned().unwrap_or_default();
    let of_file = match found.map(|file| read(file)) {
        None => CompatFile::default(),
        Some(Ok(read)) => read,
        Some(Err(error)) => {
            let remedy = "`toolwright bench` writes such files; until it is mended no model is recommended";
            problems.push(Problem::with_file(Severity::Warning, &file, error, remedy));
            CompatFile::default()
        }
    };
    for unused in &of_file.unused {
        let remedy = "mend it or take it out; it does not count, and the other entries do";
        problems.push(Problem::with_file(Severity::Warning, &file, unused.why.to_string(), remedy));
    }
    let operator = operator(written, places.merged, problems);
    let compat = Arc::new(of_file.compat(&operator));
    CompatSource { files, stamps, file, written: of_file, compat }
}

/// The text of a compat file, or why it has none.
///
/// # Errors
/// In words.
pub fn read(file: &Path) -> Result<CompatFile, String> {
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(|error| format!("it cannot be read: {error}"))?;
    let most = u64::try_from(MAX_COMPAT_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    opened.take(most).read_to_string(&mut text).map_err(|error| format!("it cannot be read: {error}"))?;
    CompatFile::parse(&text).map_err(|error| format!("it is no compat file: {error}"))
}

/// Model, tool and score of each `tool_compat`.
fn operator(written: &ConfigFile, merged: &Node, problems: &mut Vec<Problem>) -> Vec<(String, String, f64)> {
    let mut said = Vec::new();
    for (model, overrides) in &written.models.by_name {
        for (tool, score) in &overrides.tool_compat {
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
                said.push((model.clone(), tool.clone(), *score));
                continue;
            };
            let field = format!("models.{model}.tool_compat.{tool}");
            problems.push(Problem::new(Severity::Error, place(merged, "models", model), field, message, remedy));
        }
    }
    said
}
