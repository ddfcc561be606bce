//! Limits the disk space of stored outputs, selects those to delete, and remembers which sessions have outputs.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hashbrown::HashMap;
use toolwright_core::session::SessionId;
use toolwright_core::store::StoreError;

use super::failed;

/// Suffix of an output that is being written.
const PART: &str = "~part";
/// How long a new file without a lock is kept, because its creator may be about to lock it.
const NEW_FILE_GRACE: Duration = Duration::from_secs(60);
/// The part of the quota (one eighth) that may be stored before the directory is measured again, because other
/// processes store there too.
const MEASURED_FOR: u64 = 8;
/// The part of the quota (one sixteenth) that is freed beyond the need, so that not every write must make room.
const SPARE: u64 = 16;

/// The directory of outputs, and its limits.
#[derive(Debug)]
pub(super) struct Quota {
    dir: PathBuf,
    quota: u64,
    max_age: Duration,
    state: Mutex<State>,
    /// Which sessions have outputs.
    pub(super) looked: StoredSessions,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes in use; `None` until the directory has been measured.
    used: Option<u64>,
    /// Bytes stored since the measurement.
    since: u64,
}

impl Quota {
    pub(super) fn new(dir: PathBuf, quota: u64, max_age: Duration) -> Self {
        Self { dir, quota, max_age, state: Mutex::default(), looked: StoredSessions::default() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Refuses an output that is larger than the quota.
    pub(super) fn admits(&self, size: u64) -> Result<(), StoreError> {
        if size <= self.quota { Ok(()) } else { Err(self.full()) }
    }

    /// Reserves `size` bytes, and deletes the oldest outputs if necessary. Blocks on the file system.
    pub(super) fn take(&self, size: u64) -> Result<(), StoreError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let used = match state.used {
            Some(used) if used + size <= self.quota && state.since < self.quota / MEASURED_FOR => used,
            _ => {
                state.since = 0;
                self.make_room(size).map_err(failed("make room for an output"))?
            }
        };
        state.used = Some(used);
        if used + size > self.quota {
            return Err(self.full());
        }
        state.used = Some(used + size);
        state.since += size;
        Ok(())
    }

    /// Releases `size` bytes.
    pub(super) fn release(&self, size: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used = state.used.map(|used| used.saturating_sub(size));
    }

    /// Deletes expired outputs, and the oldest beyond the quota. Blocks on the file system.
    pub(super) fn sweep(&self) -> Result<(), StoreError> {
        // Nothing has been stored yet, and the directory is not created for this.
        if !self.dir.exists() {
            return Ok(());
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used = Some(self.make_room(0).map_err(failed("delete expired outputs"))?);
        state.since = 0;
        Ok(())
    }

    fn full(&self) -> StoreError {
        StoreError::Quota(format!(
            "the output is over the {} bytes that all stored outputs may have together (outputs.max_bytes)",
            self.quota
        ))
    }

    /// Deletes outputs that are too old, and then the oldest until `size` more bytes fit; returns the bytes in use.
    /// Files that are being written or read stay.
    fn make_room(&self, size: u64) -> std::io::Result<u64> {
        crate::private_dir(&self.dir)?;
        let now = SystemTime::now();
        let before = |age: Duration| now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let (expired, just_made) = (before(self.max_age), before(NEW_FILE_GRACE));
        let mut files = Vec::new();
        for folder in std::fs::read_dir(&self.dir)?.flatten() {
            let Ok(entries) = std::fs::read_dir(folder.path()) else { continue };
            for file in entries.flatten() {
                if let Ok(meta) = file.metadata() {
                    files.push((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), meta.len(), file.path()));
                }
            }
        }
        files.sort();
        let mut used: u64 = files.iter().map(|(_, size, _)| size).sum();
        let target = if used + size > self.quota {
            self.quota.saturating_sub(size).saturating_sub(self.quota / SPARE)
        } else {
            u64::MAX
        };
        for (modified, size, path) in files {
            let goes = if is_part(&path) { modified < just_made } else { modified < expired || used > target };
            if goes && remove_if_unlocked(&path) {
                used -= size;
            }
        }
        self.looked.forget();
        Ok(used)
    }
}

/// Returns whether the file is an unfinished output.
pub(super) fn is_part(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == PART)
}

/// Returns the path of `name` while it is being written.
pub(super) fn part(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.{PART}"))
}

/// Deletes a file that nobody has locked, and its folder if it was the last file.
fn remove_if_unlocked(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    // On file systems without locks, age and order decide.
    if matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)) || std::fs::remove_file(path).is_err() {
        return false;
    }
    if let Some(folder) = path.parent() {
        // Fails on purpose while the folder is not empty.
        let _ = std::fs::remove_dir(folder);
    }
    true
}

/// How long an answer is valid: other processes store and delete outputs too.
const HOLDS: Duration = Duration::from_secs(1);
/// The most sessions that are remembered.
const MAX: usize = 256;

/// Recent answers.
#[derive(Debug, Default)]
pub(super) struct StoredSessions(Mutex<StoredSessionsCache>);

#[derive(Debug, Default)]
struct StoredSessionsCache {
    by_session: HashMap<SessionId, (Instant, bool)>,
    /// The number of times that all answers were forgotten.
    forgotten: u64,
}

impl StoredSessions {
    /// Returns whether this session has outputs, by `look` unless there is a recent answer.
    pub(super) fn has(&self, session: &SessionId, look: impl FnOnce() -> bool) -> bool {
        let now = Instant::now();
        let before = {
            let cached = self.lock();
            match cached.by_session.get(session) {
                Some((at, has)) if now.saturating_duration_since(*at) < HOLDS => return *has,
                _ => cached.forgotten,
            }
        };
        let has = look();
        let mut cached = self.lock();
        // A look from before the last store is out of date.
        if cached.forgotten == before {
            if cached.by_session.len() >= MAX {
                cached.by_session.clear();
            }
            cached.by_session.insert(session.clone(), (now, has));
        }
        has
    }

    /// Forgets all answers, because outputs were stored or deleted.
    pub(super) fn forget(&self) {
        let mut cached = self.lock();
        cached.by_session.clear();
        cached.forgotten += 1;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, StoredSessionsCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
