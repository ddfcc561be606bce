//! Watching the configuration's files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::{EventKind, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use super::{House, HouseError, Reloaded};

/// Editors write in several steps: a change counts when the files have been quiet for so long.
const QUIET: Duration = Duration::from_millis(200);

/// Reloads the house's configuration whenever one of its files changes, and tells `report` what came of
/// it. Ends when the house is the only thing left to hold it, never by itself: spawn it, and drop the
/// task to stop. Folders that do not exist when it begins are not watched.
///
/// # Errors
/// When the system cannot watch files.
pub async fn watch(
    house: Arc<House>,
    report: impl Fn(Result<Reloaded, HouseError>) + Send,
) -> Result<(), notify::Error> {
    let files: BTreeSet<PathBuf> = house.config().candidates.iter().map(|layer| layer.path.clone()).collect();
    let (changed, mut changes) = mpsc::channel::<()>(1);
    let watched = files.clone();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let concerns_us = match event {
            Ok(event) if matches!(event.kind, EventKind::Access(_)) => false,
            Ok(event) => event.paths.iter().any(|path| watched.contains(path)),
            // Events were lost: better to look once too often.
            Err(_) => true,
        };
        if concerns_us {
            // A full channel means that a reload is due already.
            let _ = changed.try_send(());
        }
    })?;
    // Folders, not files: editors replace a file by another, and a missing one may appear.
    let folders: BTreeSet<PathBuf> = files.iter().filter_map(|file| file.parent()).map(PathBuf::from).collect();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
    }
    while changes.recv().await.is_some() {
        while tokio::time::timeout(QUIET, changes.recv()).await.is_ok_and(|change| change.is_some()) {}
        report(house.reload().await);
    }
    Ok(())
}
