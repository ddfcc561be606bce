//! Which files make up a configuration, and how they are laid over each other.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check::check;
use super::expand::Variables;
use super::node::{Data, Node};
use super::places::Places;
use super::problem::{Problem, Severity};
use super::schema;

/// Largest configuration file that is read.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// One place where a configuration may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The file.
    pub path: PathBuf,
    /// What kind of file.
    pub kind: LayerKind,
}

/// What a layer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// A file given with `--config`; it must exist.
    Given,
    /// A project's `toolwright.yaml`.
    Project,
    /// A project's `.mcp.json`, shared with other clients: unknown keys only warn.
    Foreign,
    /// The user's or the system's `toolwright.yaml`.
    Standing,
}

/// The user's file and the system's.
pub(crate) fn standing(variables: Variables<'_>) -> Vec<PathBuf> {
    user_file(variables).into_iter().chain([PathBuf::from("/etc/toolwright/toolwright.yaml")]).collect()
}

/// The user's own configuration; nowhere without a home.
#[must_use]
pub fn user_file(variables: Variables<'_>) -> Option<PathBuf> {
    Some(config_home(variables)?.join("toolwright/toolwright.yaml"))
}

/// The user's home folder.
pub(crate) fn home(variables: Variables<'_>) -> Option<PathBuf> {
    variables("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
}

pub(super) fn config_home(variables: Variables<'_>) -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    variables("XDG_CONFIG_HOME")
        .and_then(|path| absolute(path.into()))
        .or_else(|| home(variables).map(|home| home.join(".config")))
}

/// Checks the text of a layer, and notes its place. `None` when there is none.
pub(crate) fn read(
    layer: &Layer,
    text: std::io::Result<String>,
    places: &mut Places,
    problems: &mut Vec<Problem>,
) -> Option<Node> {
    let file: Arc<Path> = Arc::from(layer.path.as_path());
    let noted = |text: String| places.add(&layer.path).map(|()| text);
    let text = match text.and_then(noted) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && layer.kind != LayerKind::Given => return None,
        Err(error) => {
            let remedy = match error.kind() {
                std::io::ErrorKind::InvalidData => "save it as UTF-8",
                _ => "give the path of a readable file",
            };
            let message = format!("cannot be read: {error}");
            problems.push(Problem::with_file(Severity::Error, &layer.path, message, remedy));
            return None;
        }
    };
    checked(&text, &file, layer.kind, problems).map_err(|problem| problems.push(problem)).ok()
}

/// The text of a file as a tree that fits the schema; what does not fit is left out and told.
///
/// # Errors
/// Where it is no YAML or JSON.
pub(crate) fn checked(
    text: &str,
    file: &Arc<Path>,
    kind: LayerKind,
    problems: &mut Vec<Problem>,
) -> Result<Node, Problem> {
    let is_foreign = kind == LayerKind::Foreign;
    let mut node = Node::parse(text, file).map_err(|problem| match is_foreign {
        // Another program's broken file must not stop ours.
        true => Problem { severity: Severity::EntryDisabled, ..problem },
        false => problem,
    })?;
    if is_foreign {
        keep_servers(&mut node, problems);
    }
    check(&mut node, schema::checked(), problems);
    Ok(node)
}

/// Reads a configuration file, within its bound. A device or a pipe is none: a stranger's repository may have a link to
/// one, which never ends or never answers.
pub(crate) fn read_text(path: &Path) -> std::io::Result<String> {
    crate::private_file::read(path, crate::private_file::Others::Anything, MAX_FILE)
}

fn keep_servers(node: &mut Node, problems: &mut Vec<Problem>) {
    if let Data::Map(members) = &mut node.data {
        members.retain(|member| {
            let ours = matches!(member.key.as_str(), "mcpServers" | "mcp_servers");
            if !ours {
                let message = "only `mcpServers` is read from this file";
                problems.push(Problem::new(
                    Severity::Warning,
                    &member.at,
                    &member.key,
                    message,
                    "move other settings to toolwright.yaml",
                ));
            }
            ours
        });
    }
}

/// Lays `node` under what nearer files said: mappings key by key, entries whole, rules and tools of
/// a policy after the nearer ones.
pub(crate) fn lay_under(merged: &mut Node, node: Node) {
    let Data::Map(sections) = node.data else { return };
    for section in sections {
        let Data::Map(have) = &mut merged.data else { return };
        match have.iter_mut().find(|member| member.key == section.key) {
            None => have.push(section),
            Some(nearer) => lay_section_under(&mut nearer.value, section.value),
        }
    }
}

fn lay_section_under(nearer: &mut Node, farther: Node) {
    let (Data::Map(nearer), Data::Map(farther)) = (&mut nearer.data, farther.data) else { return };
    for member in farther {
        match nearer.iter_mut().find(|have| have.key == member.key) {
            None => nearer.push(member),
            // Of a policy.
            Some(have) if matches!(&*have.key, "rules" | "tools" | "guards") => {
                if let (Data::List(nearer), Data::List(more)) = (&mut have.value.data, member.value.data) {
                    nearer.extend(more);
                }
            }
            Some(_) => {}
        }
    }
}
