//! Which files make up a configuration, how they are laid over each other, and what they are called.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::agents::{is_agent_folder, paths_in, project_folders};
use super::check::{check, schema};
use super::node::{At, Data, Node, Problem, Severity};
use super::variables::Variables;
use crate::trust::{Judged, TrustStore, judge};

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
    /// A project's folder of agent files.
    ProjectAgents,
    /// Another folder of agent files.
    StandingAgents,
}

impl LayerKind {
    /// Whether it belongs to a project, and needs approval.
    #[must_use]
    pub fn is_of_project(self) -> bool {
        matches!(self, Self::Project | Self::Foreign | Self::ProjectAgents)
    }
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
    check(&mut node, schema(), problems);
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

/// The files of a project, by name.
const NAMES: [(&str, LayerKind); 2] = [("toolwright.yaml", LayerKind::Project), (".mcp.json", LayerKind::Foreign)];

/// What kind of project file has this name, if any.
pub(crate) fn project_kind(file: &Path) -> Option<LayerKind> {
    let name = file.file_name()?;
    if is_agent_folder(file) {
        return Some(LayerKind::ProjectAgents);
    }
    NAMES.iter().find(|(known, _)| name == *known).map(|(_, kind)| *kind)
}

/// The files of a project.
#[derive(Debug, Default)]
pub(crate) struct Project {
    /// Every place that was looked at, nearest first.
    pub(crate) candidates: Vec<Layer>,
    /// The files that are there, or were and still hold, in that order.
    pub(crate) judged: Vec<Judged>,
    /// These places, and where their approvals are kept, as they were before they were read.
    pub(crate) stamps: Vec<(PathBuf, Stamp)>,
}

/// Looks for a project's files. Those of the nearest folder count in which something is approved: a file that nobody
/// has approved does not take the place of one farther up. Folders of agent files count in all folders.
pub(crate) fn find_project(cwd: &Path, variables: Variables<'_>, store: &TrustStore) -> Project {
    let mut project = Project::default();
    let home = home(variables).map(|home| std::fs::canonicalize(&home).unwrap_or(home));
    let mut is_found = false;
    for folder in folders(cwd, home.as_deref(), |folder| folder.join(".git").exists()) {
        let mut holds = false;
        let files = NAMES.iter().filter(|_| !is_found).map(|(name, kind)| (folder.join(name), *kind));
        let has_configuration = !is_found && folder.join(NAMES[0].0).exists();
        let agents = project_folders(&folder, has_configuration).map(|path| (path, LayerKind::ProjectAgents));
        // The user's own are no project's.
        let agents =
            agents.filter(|(path, _)| home.as_ref().is_none_or(|home| path.parent() != Some(&home.join(".claude"))));
        for (path, kind) in files.chain(agents) {
            let watched = if kind == LayerKind::ProjectAgents { paths_in(&path) } else { vec![path.clone()] };
            project.stamps.extend(watched.into_iter().chain([store.record_of(&path)]).map(Stamp::noted));
            let judged = judge(&path, store);
            let is_in_force = judged.as_ref().is_some_and(|judged| judged.in_force.is_some());
            holds |= kind != LayerKind::ProjectAgents && is_in_force;
            project.judged.extend(judged);
            project.candidates.push(Layer { path, kind });
        }
        is_found |= holds;
    }
    project
}

/// The folders that are looked into, nearest first: up to the root of the repository, else to the last one below the
/// home folder. Elsewhere only the current folder is: what is above it may be anybody's. The home folder itself is
/// looked into from there only: as the workspace it would be all that its owner has.
fn folders(cwd: &Path, home: Option<&Path>, is_repository: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let is_below_home = home.is_some_and(|home| cwd.starts_with(home));
    let above: Vec<&Path> = cwd.ancestors().take_while(|folder| Some(*folder) != home).collect();
    let count = match above.iter().position(|folder| is_repository(folder)) {
        Some(repository) => repository + 1,
        None if is_below_home => above.len(),
        None => 1,
    };
    let found: Vec<PathBuf> = above.into_iter().take(count).map(Path::to_owned).collect();
    if found.is_empty() { vec![cwd.to_owned()] } else { found }
}

/// Where the system says what a process has opened, each under another name.
const OPENED: &str = "/proc";

/// The names of the files that were read, by their paths.
#[derive(Debug)]
pub(crate) struct Places {
    /// The paths of the user's file and the system's.
    standing: Vec<PathBuf>,
    names: BTreeMap<PathBuf, String>,
}

impl Places {
    /// No file yet.
    pub(crate) fn beside(standing: Vec<PathBuf>) -> Self {
        Self { standing, names: BTreeMap::new() }
    }

    /// Notes a file that is read.
    ///
    /// # Errors
    /// When its folder cannot be found. Its sources must not get another name for that: they would count as new.
    pub(crate) fn add(&mut self, file: &Path) -> std::io::Result<()> {
        let found = place(file, Some(&folder_of(file)?));
        // The folders of some homes are links that lead elsewhere after each change of the home. Where these files are
        // looked for stays.
        let is_it = |path: &&PathBuf| *path == file || place(path, folder_of(path).ok().as_deref()) == found;
        let standing = self.standing.iter().find(is_it).map(|path| path.components().collect());
        let name: PathBuf = standing.unwrap_or(found);
        self.names.insert(file.to_owned(), name.to_string_lossy().into_owned());
        Ok(())
    }

    /// The names of all files.
    pub(crate) fn all(&self) -> Vec<String> {
        self.names.values().cloned().collect()
    }

    /// The name of the file in which something was written.
    pub(crate) fn of(&self, at: &At) -> String {
        self.names.get(&*at.file).cloned().unwrap_or_else(|| at.file.to_string_lossy().into_owned())
    }
}

fn folder_of(file: &Path) -> std::io::Result<PathBuf> {
    let folder = file.parent().unwrap_or(file);
    std::fs::canonicalize(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}

/// A file by its folder, of which `found` is the name without links. The file may be a link itself: what it leads to may be
/// elsewhere after each change of it.
fn place(file: &Path, found: Option<&Path>) -> PathBuf {
    match (found.filter(|folder| !folder.starts_with(OPENED)), file.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => file.components().collect(),
    }
}

/// When a file was written, its size, and which file it is; nothing where there is none. Links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(Option<(Option<SystemTime>, u64, (u64, u64))>);

impl Stamp {
    /// A path and its stamp as of now.
    pub(crate) fn noted(path: PathBuf) -> (PathBuf, Self) {
        let stamp = Self::of(&path);
        (path, stamp)
    }

    /// The stamp of a path as of now.
    pub(crate) fn of(path: &Path) -> Self {
        let metadata = std::fs::metadata(path).ok();
        Self(metadata.map(|metadata| (metadata.modified().ok(), metadata.len(), identity(&metadata))))
    }
}

#[cfg(unix)]
fn identity(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_end_at_the_repository_or_below_home() {
        let check = |cwd: &str, repository: &str, expect: &[&str]| {
            let found = folders(Path::new(cwd), Some(Path::new("/home/me")), |folder| folder == Path::new(repository));
            assert_eq!(found, expect.iter().map(PathBuf::from).collect::<Vec<_>>(), "{cwd} {repository}");
        };
        check("/home/me/a/b", "/home/me/a", &["/home/me/a/b", "/home/me/a"]);
        check("/home/me/a/b", "", &["/home/me/a/b", "/home/me/a"]);
        check("/home/me/a/b", "/home/me", &["/home/me/a/b", "/home/me/a"]);
        check("/home/me", "", &["/home/me"]);
        check("/srv/a/b", "/srv/a", &["/srv/a/b", "/srv/a"]);
        check("/tmp/a/b", "", &["/tmp/a/b"]);
    }

    #[test]
    fn files_have_one_name_by_any_path() {
        for (file, folder, expect) in [
            ("/home/me/p/toolwright.yaml", Some("/home/me/p"), "/home/me/p/toolwright.yaml"),
            ("/link/./toolwright.yaml", Some("/home/me/p"), "/home/me/p/toolwright.yaml"),
            // What a shell gives a process to read is called the same in each.
            ("/dev/fd/63", Some("/proc/4711/fd"), "/dev/fd/63"),
            ("/gone/./x.yaml", None, "/gone/x.yaml"),
        ] {
            assert_eq!(place(Path::new(file), folder.map(Path::new)), Path::new(expect), "{file}");
        }
    }
}
