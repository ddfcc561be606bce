//! Finds the files of a configuration and merges them in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::folders::{paths_in, project_folders};
use super::files::node::{Data, Node, Problem, Severity};
use super::files::{FileNames, FileStamp, Layer, LayerKind, NAMES, Variables, home};
use super::sections::check::checked;
use crate::trust::{ProjectTrust, TrustStore, judge};

/// Checks the text of a layer, and records its place. `None` if it does not exist.
pub(crate) fn read(
    layer: &Layer,
    text: std::io::Result<String>,
    places: &mut FileNames,
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

/// Merges `node` below nearer files: mappings key by key, entries as a whole, and rules and tools of a policy after the
/// nearer ones.
pub(crate) fn merge_below(merged: &mut Node, node: Node) {
    let Data::Map(sections) = node.data else { return };
    for section in sections {
        let Data::Map(have) = &mut merged.data else { return };
        match have.iter_mut().find(|member| member.key == section.key) {
            None => have.push(section),
            Some(nearer) => merge_section_below(&mut nearer.value, section.value),
        }
    }
}

fn merge_section_below(nearer: &mut Node, farther: Node) {
    let (Data::Map(nearer), Data::Map(farther)) = (&mut nearer.data, farther.data) else { return };
    for member in farther {
        match nearer.iter_mut().find(|have| have.key == member.key) {
            None => nearer.push(member),
            // Lists of a policy.
            Some(have) if matches!(&*have.key, "rules" | "tools" | "guards") => {
                if let (Data::List(nearer), Data::List(more)) = (&mut have.value.data, member.value.data) {
                    nearer.extend(more);
                }
            }
            Some(_) => {}
        }
    }
}

/// The files of a project.
#[derive(Debug, Default)]
pub(crate) struct Project {
    /// Every place that was searched, nearest first.
    pub(crate) candidates: Vec<Layer>,
    /// The files that exist, or that existed and still apply, in that order.
    pub(crate) trust: Vec<ProjectTrust>,
    /// These places, and those of their approvals, with their stamps from before they were read.
    pub(crate) stamps: Vec<(PathBuf, FileStamp)>,
}

/// Finds a project's files: those of the nearest folder with an approved file, so that an unapproved file does not hide
/// one farther up. Folders of agents and skills are used in all folders.
pub(crate) fn find_project(cwd: &Path, variables: Variables<'_>, store: &TrustStore) -> Project {
    let mut project = Project::default();
    let home = home(variables).map(|home| std::fs::canonicalize(&home).unwrap_or(home));
    let mut is_found = false;
    for folder in folders(cwd, home.as_deref(), |folder| folder.join(".git").exists()) {
        let mut holds = false;
        let files = NAMES.iter().filter(|_| !is_found).map(|(name, kind)| (folder.join(name), *kind));
        let has_configuration = !is_found && folder.join(NAMES[0].0).exists();
        let folders = project_folders(&folder, has_configuration);
        let folders = folders.map(|(path, kind)| (path, LayerKind::ProjectFolder(kind)));
        // The user's own folders do not belong to a project.
        let folders =
            folders.filter(|(path, _)| home.as_ref().is_none_or(|home| path.parent() != Some(&home.join(".claude"))));
        for (path, kind) in files.chain(folders) {
            let watched = match kind {
                LayerKind::ProjectFolder(kind) => paths_in(kind, &path),
                _ => vec![path.clone()],
            };
            project.stamps.extend(watched.into_iter().chain([store.record_of(&path)]).map(FileStamp::noted));
            let judged = judge(&path, store);
            let is_in_force = judged.as_ref().is_some_and(|judged| judged.in_force.is_some());
            holds |= !matches!(kind, LayerKind::ProjectFolder(_)) && is_in_force;
            project.trust.extend(judged);
            project.candidates.push(Layer { path, kind });
        }
        is_found |= holds;
    }
    project
}

/// Returns the folders to search, nearest first: up to the root of the repository, else to the last one below the home
/// folder. Elsewhere only the current folder, because those above may be anybody's. The home folder is searched only if
/// it is the current one, because as a workspace it would contain everything that the user has.
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
}
