//! Large outputs as files: one folder a session, private to the user, bounded in size and age.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::Mutex;
use toolwright_core::name::short_hash;
use toolwright_core::session::SessionId;
use toolwright_core::store::{OutputSlice, OutputStore, StoreError, StoredOutput};

/// All outputs together, in bytes; the oldest go first.
const DEFAULT_QUOTA: u64 = 1 << 30;
/// Outputs older than this are deleted.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Outputs in a directory. Handles are `session-<uuid>/<file-uuid>`, where the first part follows from
/// the session, so that another session's handle, an absolute path or `..` is simply not found.
#[derive(Debug)]
pub struct OutputFiles {
    dir: PathBuf,
    quota: u64,
    max_age: Duration,
    /// Bytes in use; `None` until the directory has been measured.
    used: Arc<Mutex<Option<u64>>>,
}

impl OutputFiles {
    /// Outputs under `dir`, which is made when the first one is stored: at most 1 GiB, 30 days.
    #[must_use]
    pub fn new(dir: PathBuf) -> Arc<Self> {
        Self::with_limits(dir, DEFAULT_QUOTA, DEFAULT_MAX_AGE)
    }

    /// As [`OutputFiles::new`] with other limits.
    #[must_use]
    pub fn with_limits(dir: PathBuf, quota: u64, max_age: Duration) -> Arc<Self> {
        Arc::new(Self { dir, quota, max_age, used: Arc::default() })
    }

    fn find(&self, session: &SessionId, handle: &str) -> Option<PathBuf> {
        let (folder, file) = handle.split_once('/')?;
        let legal = folder == session_folder(session) && uuid::Uuid::try_parse(file).is_ok() && file.len() == 36;
        legal.then(|| self.dir.join(folder).join(file))
    }
}

/// `session-<uuid>`, the uuid made of the session id's hash.
fn session_folder(session: &SessionId) -> String {
    let hash = short_hash(session.as_str(), 32);
    format!("session-{}-{}-{}-{}-{}", &hash[..8], &hash[8..12], &hash[12..16], &hash[16..20], &hash[20..])
}

async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| StoreError::failed(doing, error)),
        Err(error) => Err(StoreError::failed(doing, error)),
    }
}

#[async_trait]
impl OutputStore for OutputFiles {
    async fn put(&self, session: &SessionId, bytes: &[u8]) -> Result<StoredOutput, StoreError> {
        let size = bytes.len() as u64;
        if size > self.quota {
            return Err(StoreError::Quota(format!(
                "an output of {size} bytes is over the store's quota of {} bytes",
                self.quota
            )));
        }
        let handle = format!("{}/{}", session_folder(session), uuid::Uuid::new_v4());
        let (dir, path, data) = (self.dir.clone(), self.dir.join(&handle), bytes.to_vec());
        let (quota, max_age) = (self.quota, self.max_age);
        // The lock is held over the write: room is made for one output at a time.
        let mut used = self.used.lock().await;
        let before = *used;
        let after = blocking("store an output", move || {
            let mut in_use = match before {
                Some(known) if known + size <= quota => known,
                _ => make_room(&dir, quota - size, max_age)?,
            };
            write_private(&path, &data)?;
            in_use += size;
            Ok(in_use)
        })
        .await?;
        *used = Some(after);
        let lines = bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
            + u64::from(!bytes.ends_with(b"\n") && !bytes.is_empty());
        Ok(StoredOutput { handle, bytes: size, lines, tokens: size.div_ceil(4) })
    }

    async fn read(
        &self,
        session: &SessionId,
        handle: &str,
        offset: u64,
        limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        let missing = || StoreError::NotFound(format!("output {handle}"));
        let path = self.find(session, handle).ok_or_else(missing)?;
        match tokio::fs::try_exists(&path).await {
            Ok(true) => blocking("read an output", move || read_slice(&path, offset, limit)).await,
            _ => Err(missing()),
        }
    }

    fn has_outputs(&self, session: &SessionId) -> bool {
        self.dir.join(session_folder(session)).exists()
    }
}

fn read_slice(path: &Path, offset: u64, limit: usize) -> std::io::Result<OutputSlice> {
    let mut file = std::fs::File::open(path)?;
    let total_bytes = file.metadata()?.len();
    let start = offset.min(total_bytes);
    file.seek(SeekFrom::Start(start))?;
    // Four bytes more than asked for: no UTF-8 character is longer.
    let mut bytes = Vec::with_capacity(limit.min(1 << 20) + 4);
    file.take(limit as u64 + 4).read_to_end(&mut bytes)?;
    let continues = |byte: u8| byte & 0xC0 == 0x80;
    let first = bytes.iter().take(4).position(|&byte| !continues(byte)).unwrap_or(0);
    let mut end = bytes.len().min(limit.max(first + 1));
    while end < bytes.len() && continues(bytes[end]) {
        end += 1;
    }
    let text = String::from_utf8_lossy(&bytes[first.min(end)..end]).into_owned();
    Ok(OutputSlice { text, next_offset: start + end as u64, total_bytes })
}

fn write_private(path: &Path, data: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        private_dir(folder)?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(data)
}

/// Makes a directory, and those above it, readable by the user alone.
pub(crate) fn private_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Deletes what is too old, then the oldest until `room` bytes suffice; returns the bytes in use.
fn make_room(dir: &Path, room: u64, max_age: Duration) -> std::io::Result<u64> {
    private_dir(dir)?;
    let mut files = Vec::new();
    for folder in std::fs::read_dir(dir)?.flatten() {
        let Ok(entries) = std::fs::read_dir(folder.path()) else { continue };
        for file in entries.flatten() {
            if let Ok(meta) = file.metadata() {
                files.push((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), meta.len(), file.path()));
            }
        }
    }
    files.sort();
    let mut used: u64 = files.iter().map(|(_, size, _)| size).sum();
    let oldest = SystemTime::now().checked_sub(max_age).unwrap_or(SystemTime::UNIX_EPOCH);
    for (modified, size, path) in files {
        if modified >= oldest && used <= room {
            break;
        }
        if std::fs::remove_file(&path).is_ok() {
            used -= size;
        }
        if let Some(folder) = path.parent() {
            // Fails while the folder holds anything, which is the point.
            let _ = std::fs::remove_dir(folder);
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str) -> SessionId {
        SessionId::new(name)
    }

    #[tokio::test]
    async fn a_handle_reads_back_by_range_and_at_character_boundaries() {
        let dir = tempfile::tempdir().expect("dir");
        let store = OutputFiles::new(dir.path().join("outputs"));
        let text = "aé\nz\n".repeat(1000);
        let stored = store.put(&session("s"), text.as_bytes()).await.expect("put");
        assert_eq!((stored.bytes, stored.lines), (6000, 2000));
        let mut whole = String::new();
        let mut offset = 0;
        while offset < stored.bytes {
            let slice = store.read(&session("s"), &stored.handle, offset, 101).await.expect("read");
            assert!(slice.next_offset > offset);
            whole.push_str(&slice.text);
            offset = slice.next_offset;
        }
        assert_eq!(whole, text);
        assert_eq!(store.read(&session("s"), &stored.handle, 99_999, 10).await.expect("read").text, "");
    }

    #[tokio::test]
    async fn foreign_and_crafted_handles_are_not_found() {
        let dir = tempfile::tempdir().expect("dir");
        let store = OutputFiles::new(dir.path().join("outputs"));
        let stored = store.put(&session("a"), b"x").await.expect("put");
        let (folder, file) = stored.handle.split_once('/').expect("handle");
        for handle in [
            format!("../{folder}/{file}"),
            format!("{folder}/../{folder}/{file}"),
            format!("/{folder}/{file}"),
            format!("{folder}/{{{file}}}"),
            format!("{folder}/"),
            "/etc/passwd".to_owned(),
            String::new(),
        ] {
            assert!(matches!(store.read(&session("a"), &handle, 0, 9).await, Err(StoreError::NotFound(_))), "{handle}");
        }
        assert!(matches!(store.read(&session("b"), &stored.handle, 0, 9).await, Err(StoreError::NotFound(_))));
        assert!(store.has_outputs(&session("a")) && !store.has_outputs(&session("b")));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn files_are_private_and_the_oldest_make_room() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("dir");
        let root = dir.path().join("outputs");
        let store = OutputFiles::with_limits(root.clone(), 100, DEFAULT_MAX_AGE);
        let old = store.put(&session("s"), &[b'a'; 60]).await.expect("put");
        let mode = |path: PathBuf| std::fs::metadata(path).expect("meta").permissions().mode() & 0o777;
        assert_eq!((mode(root.clone()), mode(root.join(&old.handle))), (0o700, 0o600));
        let new = store.put(&session("s"), &[b'b'; 60]).await.expect("put");
        assert!(store.read(&session("s"), &old.handle, 0, 9).await.is_err());
        assert_eq!(store.read(&session("s"), &new.handle, 0, 9).await.expect("read").text, "bbbbbbbbb");
        assert!(matches!(store.put(&session("s"), &[0; 101]).await, Err(StoreError::Quota(_))));
    }
}
