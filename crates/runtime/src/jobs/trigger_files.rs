//! Watches the files of a trigger. Notifications only signal that something has changed. Changes are found by comparing
//! states, so lost notifications and renames need no special handling.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use globset::{Glob, GlobSet, GlobSetBuilder};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use toolwright_core::store::WriteNotes;
use toolwright_core::trigger::{MAX_WAITING, Trigger};

use super::trigger_runner::PERIOD;
use super::triggers::TriggerManager;
use crate::store::agents::firings::FiringOffer;

/// The most files of one trigger that are checked.
const MAX_FILES: usize = 50_000;
/// The most files whose state is stored for the next process that watches.
const MAX_KEPT: usize = 5_000;
/// The most changes that one firing names.
const MAX_NAMED: usize = 200;
/// Polling interval if the system reports no changes.
const POLL: Duration = Duration::from_secs(5);
/// Further changes may delay a firing by up to this many times the debounce.
const MAX_DEBOUNCES: u32 = 10;

/// A running watch. Dropping it ends it.
#[derive(Debug)]
pub(super) struct FileWatch(JoinHandle<()>);

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl FileWatch {
    pub(super) fn start(
        manager: &Arc<TriggerManager>,
        trigger: &Trigger,
        root: &Path,
        globs: &[Glob],
        debounce: Duration,
    ) -> Self {
        let files = Arc::new(Files::new(root, globs));
        let (manager, id) = (Arc::clone(manager), trigger.id.clone());
        Self(tokio::spawn(async move { watch(&manager, &id, files, debounce).await }))
    }
}

async fn watch(manager: &TriggerManager, id: &str, files: Arc<Files>, debounce: Duration) {
    let changed = Arc::new(Notify::new());
    // Starts before the first scan, so that no change is missed in between.
    let watcher = files.notify(&changed);
    let stored_stamps = manager.store.files_seen(id).await.inspect_err(|error| tracing::warn!("trigger {id}: {error}"));
    let stored_stamps = stored_stamps.ok().flatten().and_then(|kept| serde_json::from_str(&kept).ok());
    // Changes made while no process watched are found at once.
    let mut waits = stored_stamps.is_none();
    let mut stamps = match stored_stamps {
        Some(stored_stamps) => stored_stamps,
        None => {
            let stamps = files.scan_files().await;
            if let Err(error) = manager.store.keep_files_seen(id, written(&stamps)).await {
                tracing::warn!("trigger {id}: {error}");
            }
            stamps
        }
    };
    loop {
        if std::mem::replace(&mut waits, true) {
            match &watcher {
                Some(_) => changed.notified().await,
                None => tokio::time::sleep(POLL).await,
            }
            let latest = Instant::now() + debounce * MAX_DEBOUNCES;
            while tokio::time::timeout(debounce, changed.notified()).await.is_ok() && Instant::now() < latest {}
        }
        let now = files.scan_files().await;
        let changes = changes(&stamps, &now);
        if changes.is_empty() {
            continue;
        }
        let hops = match manager.store.write_notes().await {
            Ok(notes) => files.hops(&changes, notes).await,
            Err(error) => {
                tracing::warn!("trigger {id}: {error}");
                0
            }
        };
        let (now_ms, mut was_logged) = (manager.clock.wall_ms(), false);
        let offered = loop {
            match manager.store.offer_change(id, now_ms, listed(&changes), written(&now), hops).await {
                Ok(FiringOffer::Full) => {
                    if !std::mem::replace(&mut was_logged, true) {
                        tracing::warn!(
                            "trigger {id}: {MAX_WAITING} firings wait, so this change waits until there is room"
                        );
                    }
                    tokio::time::sleep(PERIOD).await;
                }
                offered => break offered,
            }
        };
        match offered {
            Ok(_) => {
                stamps = now;
                manager.changed.notify_one();
            }
            // The changes will be found again.
            Err(error) => tracing::warn!("trigger {id}: {error}"),
        }
    }
}

/// Identifies the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FileStamp {
    /// Modification time, in nanoseconds since the epoch.
    modified: Option<u64>,
    bytes: u64,
    /// Unchanged by a rename.
    inode: u64,
}

type FileStamps = BTreeMap<String, FileStamp>;

/// The files of a trigger.
#[derive(Debug)]
struct Files {
    root: PathBuf,
    globs: GlobSet,
    /// The folders that contain them.
    folders: Vec<PathBuf>,
}

impl Files {
    fn new(root: &Path, globs: &[Glob]) -> Self {
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(glob.clone());
        }
        let mut folders: Vec<PathBuf> = globs.iter().map(|glob| root.join(folder_of(glob.glob()))).collect();
        folders.sort();
        folders.dedup_by(|inner, outer| inner.starts_with(outer));
        Self { root: root.to_owned(), globs: set.build().unwrap_or_else(|_| GlobSet::empty()), folders }
    }

    /// Watches the folders; `None` if that is not possible.
    fn notify(self: &Arc<Self>, changed: &Arc<Notify>) -> Option<RecommendedWatcher> {
        let (files, notify) = (Arc::clone(self), Arc::clone(changed));
        let on_event = move |event: notify::Result<notify::Event>| {
            // An error may have lost events, so it counts as a change.
            let matters = event.map_or(true, |event| {
                event.need_rescan() || (!event.kind.is_access() && event.paths.iter().any(|path| files.concerns(path)))
            });
            if matters {
                notify.notify_one();
            }
        };
        let watched = notify::recommended_watcher(on_event).and_then(|mut watcher| {
            for folder in &self.folders {
                // A folder that does not exist yet is watched through its nearest existing parent.
                let exists = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(&self.root);
                watcher.watch(exists, RecursiveMode::Recursive)?;
            }
            Ok(watcher)
        });
        watched.inspect_err(|error| tracing::warn!("files are looked at every {}s: {error}", POLL.as_secs())).ok()
    }

    /// Returns whether a change at this path may affect one of its files. A folder or removed path may.
    fn concerns(&self, path: &Path) -> bool {
        path.strip_prefix(&self.root).is_ok_and(|path| self.globs.is_match(path)) || !path.is_file()
    }

    async fn scan_files(self: &Arc<Self>) -> FileStamps {
        let files = Arc::clone(self);
        tokio::task::spawn_blocking(move || files.scan()).await.unwrap_or_default()
    }

    /// Returns the most hops before one of these changes.
    async fn hops(self: &Arc<Self>, changes: &[Change], notes: WriteNotes) -> u32 {
        let root = self.root.canonicalize().unwrap_or_else(|_| self.root.clone());
        let paths: Vec<PathBuf> = changes.iter().map(|change| root.join(&change.path)).collect();
        let hops = move || paths.iter().map(|path| notes.hops(path, changed_ms(path))).max().unwrap_or_default();
        tokio::task::spawn_blocking(hops).await.unwrap_or_default()
    }

    fn scan(&self) -> FileStamps {
        let mut stamps = FileStamps::new();
        for folder in self.folders.iter().filter(|folder| folder.exists()) {
            let mut walk = ignore::WalkBuilder::new(folder);
            walk.standard_filters(false).follow_links(false).filter_entry(|entry| entry.file_name() != ".git");
            for entry in walk.build().filter_map(Result::ok) {
                let Ok(path) = entry.path().strip_prefix(&self.root) else { continue };
                if !self.globs.is_match(path) {
                    continue;
                }
                let Some(metadata) = entry.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
                if stamps.len() >= MAX_FILES {
                    tracing::warn!("a trigger looks at {MAX_FILES} files at most; narrow its globs");
                    return stamps;
                }
                stamps.insert(path.to_string_lossy().into_owned(), stamp(&metadata));
            }
        }
        stamps
    }
}

fn stamp(metadata: &std::fs::Metadata) -> FileStamp {
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(metadata);
    #[cfg(not(unix))]
    let inode = 0;
    let modified = modified(metadata).and_then(|time| u64::try_from(time.as_nanos()).ok());
    FileStamp { modified, bytes: metadata.len(), inode }
}

fn modified(metadata: &std::fs::Metadata) -> Option<Duration> {
    metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()
}

/// Returns when a file got its content and name; for a removed file, when its folder last changed.
fn changed_ms(path: &Path) -> u64 {
    let Some(metadata) = path.ancestors().find_map(|path| path.symlink_metadata().ok()) else { return 0 };
    #[cfg(unix)]
    let changed = {
        use std::os::unix::fs::MetadataExt as _;
        // A file that is renamed or copied may keep the time of its content.
        metadata.ctime().saturating_mul(1000).saturating_add(metadata.ctime_nsec() / 1_000_000).max(0).cast_unsigned()
    };
    #[cfg(not(unix))]
    let changed = modified(&metadata).and_then(|time| u64::try_from(time.as_millis()).ok()).unwrap_or_default();
    changed
}

/// Serializes the state of the files for the next process that watches; `None` if there are too many.
fn written(stamps: &FileStamps) -> Option<String> {
    (stamps.len() <= MAX_KEPT).then(|| serde_json::to_string(stamps).ok())?
}

/// Returns the folder of a glob: everything before its first special part.
fn folder_of(glob: &str) -> PathBuf {
    let parts: Vec<&str> = glob.split('/').collect();
    let plain = |part: &&&str| !part.contains(['*', '?', '[', '{']) && **part != ".";
    let fixed: Vec<&str> = parts.iter().take(parts.len().saturating_sub(1)).take_while(plain).copied().collect();
    fixed.iter().collect()
}

/// A file that has changed, and how, in words.
#[derive(Debug)]
struct Change {
    path: String,
    text: String,
}

impl Change {
    fn new(path: &str, how: &str) -> Self {
        Self { path: path.to_owned(), text: format!("{how} {path}") }
    }
}

/// Returns the changes between two scans.
fn changes(before: &FileStamps, now: &FileStamps) -> Vec<Change> {
    let removed: Vec<_> = before.iter().filter(|(path, _)| !now.contains_key(*path)).collect();
    let came_from =
        |new: &FileStamp| removed.iter().find(|(_, old)| new.inode != 0 && *old == new).map(|(path, _)| *path);
    let mut changes = Vec::new();
    let mut renamed = Vec::new();
    for (path, stamp) in now {
        match before.get(path) {
            Some(old) if old == stamp => {}
            Some(_) => changes.push(Change::new(path, "modified")),
            None => match came_from(stamp) {
                Some(old) => {
                    renamed.push(old);
                    changes.push(Change::new(path, &format!("renamed {old} to")));
                }
                None => changes.push(Change::new(path, "created")),
            },
        }
    }
    let gone = removed.iter().filter(|(path, _)| !renamed.contains(path));
    changes.extend(gone.map(|(path, _)| Change::new(path, "removed")));
    changes
}

fn listed(changes: &[Change]) -> String {
    let mut text = changes.iter().take(MAX_NAMED).map(|change| &*change.text).collect::<Vec<_>>().join("\n");
    let more = changes.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        text.push_str(&format!("\nand {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_by_comparing() {
        let stamp = |bytes, inode| FileStamp { modified: None, bytes, inode };
        let seen =
            |files: &[(&str, FileStamp)]| files.iter().map(|(path, stamp)| ((*path).to_owned(), *stamp)).collect();
        let check = |before: &[(&str, FileStamp)], now: &[(&str, FileStamp)], expect: &[&str]| {
            let changes = changes(&seen(before), &seen(now));
            assert_eq!(changes.iter().map(|change| &*change.text).collect::<Vec<_>>(), expect);
        };
        check(&[("a", stamp(1, 1))], &[("a", stamp(1, 1))], &[]);
        check(&[("a", stamp(1, 1))], &[("a", stamp(2, 1))], &["modified a"]);
        check(&[("a", stamp(1, 1))], &[("b", stamp(1, 1))], &["renamed a to b"]);
        check(&[("a", stamp(1, 1))], &[("b", stamp(1, 2))], &["created b", "removed a"]);
    }

    #[test]
    fn only_the_folders_of_globs_are_watched() {
        for (glob, folder) in [("src/**/*.rs", "src"), ("*.md", ""), ("./a.txt", ""), ("a/b/c.txt", "a/b")] {
            assert_eq!(folder_of(glob), Path::new(folder), "{glob}");
        }
        let globs = ["src/a/*.rs", "src/**", "docs/*"].map(|glob| Glob::new(glob).expect("a glob"));
        let files = Files::new(Path::new("/r"), &globs);
        assert_eq!(files.folders, [Path::new("/r/docs"), Path::new("/r/src")]);
    }
}
