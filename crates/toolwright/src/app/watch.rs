//! Watches the configuration files for changes.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::event::ModifyKind;
use notify::{ErrorKind, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use super::{Error, Reloaded, Toolwright};
use crate::trust::private_folder;

/// Editors write in several steps: a change counts when the files have been quiet for so long.
const QUIET: Duration = Duration::from_millis(200);
/// Symbolic links that are followed on the way to one file; the system stops at as many.
const MAX_LINKS: usize = 40;
/// How often what is watched is looked for again when it changes under the search.
const MAX_SEARCHES: usize = 8;

/// Reloads Toolwright's configuration whenever one of its files changes, and tells `report` what came of
/// it. Symbolic links are followed, and files whose folder does not exist yet are waited for. Ends when
/// Toolwright is the only thing left to hold it, never by itself: spawn it, and drop the task to stop.
///
/// # Errors
/// When the system cannot watch files.
pub async fn watch(app: Arc<Toolwright>, report: impl Fn(Result<Reloaded, Error>) + Send) -> Result<(), notify::Error> {
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
                event.paths.iter().any(|path| points.contains(path) || (goes && is_folder(path)))
            }
            // Events were lost: better to look once too often.
            Err(_) => true,
        };
        if concerns_us {
            // A full channel means that a reload is due already.
            let _ = changed.try_send(());
        }
    })?;
    let mut folders = BTreeSet::new();
    make_folders(&app);
    follow(&files(&app), &points, &mut folders, &mut watcher)?;
    // What changed between the first reading and now was seen by nobody.
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
        }
    }
    Ok(())
}

/// Every file that the configuration is, or may be, read from.
fn files(app: &Toolwright) -> BTreeSet<PathBuf> {
    app.config().watched().cloned().collect()
}

/// Makes the folders of files that may come to be in the state directory. It would be watched in their place, and changes
/// with every call.
fn make_folders(app: &Toolwright) {
    let config = app.config();
    let ours = config.watched().filter(|file| file.starts_with(&config.state_dir));
    for folder in ours.filter_map(|file| file.parent()) {
        if let Err(error) = private_folder(folder) {
            tracing::debug!("{} is not made: {error}", folder.display());
        }
    }
}

/// Watches the folders of everything that decides what `files` hold. Folders, not files: editors
/// replace a file by another, and a missing one may appear.
fn follow(
    files: &BTreeSet<PathBuf>,
    points: &Mutex<BTreeSet<PathBuf>>,
    folders: &mut BTreeSet<PathBuf>,
    watcher: &mut RecommendedWatcher,
) -> Result<(), notify::Error> {
    // What changes between the search and the watching is seen by the next search.
    for _ in 0..MAX_SEARCHES {
        let found: BTreeSet<PathBuf> = files.iter().flat_map(|file| way_to(file)).collect();
        let wanted: BTreeSet<PathBuf> = found.iter().filter_map(|point| point.parent()).map(PathBuf::from).collect();
        *points.lock().unwrap_or_else(PoisonError::into_inner) = found;
        // A folder that was replaced is another one, though its name is the same: all are watched anew.
        for folder in folders.difference(&wanted) {
            // One that is gone is not watched any more.
            let _ = watcher.unwatch(folder);
        }
        let mut settled = *folders == wanted;
        for folder in &wanted {
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                Err(notify::Error { kind: ErrorKind::PathNotFound, .. }) => settled = false,
                watched => watched?,
            }
        }
        *folders = wanted;
        if settled {
            break;
        }
    }
    Ok(())
}

/// Every path whose change may change what `file` leads to: the symbolic links on the way, and at its
/// end the file itself or the first part that is missing.
fn way_to(file: &Path) -> Vec<PathBuf> {
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
                    // An absolute target replaces `here` when it is joined.
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
    fn links_missing_folders_and_loops_end_where_something_can_be_watched() {
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
            let mut points = way_to(&root.join(file));
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
