//! Which files are a project's configuration: the nearest from the current folder upward that somebody has approved.

use std::path::{Path, PathBuf};

use super::expand::Variables;
use super::layers::{Layer, LayerKind, home};
use super::stamp::Stamp;
use crate::trust::{Judged, TrustStore, judge};

/// The files of a project, by name.
const NAMES: [(&str, LayerKind); 2] = [("toolwright.yaml", LayerKind::Project), (".mcp.json", LayerKind::Foreign)];

/// What kind of project file has this name, if any.
pub(crate) fn project_kind(file: &Path) -> Option<LayerKind> {
    let name = file.file_name()?;
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
/// has approved does not take the place of one farther up.
pub(crate) fn find(cwd: &Path, variables: Variables<'_>, store: &TrustStore) -> Project {
    let mut project = Project::default();
    let home = home(variables).map(|home| std::fs::canonicalize(&home).unwrap_or(home));
    for folder in folders(cwd, home.as_deref(), |folder| folder.join(".git").exists()) {
        let mut holds = false;
        for (name, kind) in NAMES {
            let path = folder.join(name);
            project.stamps.extend([path.clone(), store.record_of(&path)].map(Stamp::noted));
            let judged = judge(&path, store);
            holds |= judged.as_ref().is_some_and(|judged| judged.in_force.is_some());
            project.judged.extend(judged);
            project.candidates.push(Layer { path, kind });
        }
        if holds {
            break;
        }
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
