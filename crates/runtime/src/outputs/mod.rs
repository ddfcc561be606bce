//! Large outputs as files: one folder a session, private to the user, bounded in size and age.

mod quota;
mod read;
mod writer;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::session::SessionId;
use toolwright_core::store::{LineRange, OpenOutput, OutputSlice, OutputStore, OutputWriter, StoreError, StoredOutput};
use toolwright_core::tool_id::short_hash;

use quota::Quota;
use read::Opened;
use writer::Writer;

/// All outputs together, in bytes; the oldest go first.
const DEFAULT_QUOTA: u64 = 1 << 30;
/// Outputs older than this are deleted.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often a process that goes on looks for outputs that have expired.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

/// Outputs in a directory, in a folder for each session. A handle (`o` and eight characters) is looked up in the
/// folder of the session that asks, so that another session's handle, an absolute path or `..` is simply not found.
///
/// Several processes may share a directory. Each counts what it stores itself and measures the whole anew
/// from time to time, so together they may be over the quota by an eighth of it for each process.
#[derive(Debug)]
pub struct OutputFiles {
    room: Arc<Quota>,
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
        Arc::new(Self { room: Arc::new(Quota::new(dir, quota, max_age)) })
    }

    /// Deletes what has expired and what is over the quota, and does so again every hour for as long as the
    /// store is held. Must be called within a Tokio runtime.
    pub fn keep_swept(self: &Arc<Self>) {
        let store = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(room) = store.upgrade().map(|store| Arc::clone(&store.room)) {
                let swept = blocking("delete expired outputs", move || room.sweep()).await;
                if let Err(error) = swept {
                    tracing::warn!("{error}");
                }
                tokio::time::sleep(SWEEP_EVERY).await;
            }
        });
    }

    fn start(&self, session: &SessionId, media_type: Option<&str>) -> Writer {
        Writer::new(Arc::clone(&self.room), &session_folder(session), media_type)
    }

    async fn opened<T: Send + 'static>(
        &self,
        session: &SessionId,
        handle: &str,
        work: impl FnOnce(Opened) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let missing = || StoreError::NotFound(format!("output {}", handle.chars().take(100).collect::<String>()));
        if !writer::is_handle(handle) {
            return Err(missing());
        }
        let (folder, file) = (self.room.dir().join(session_folder(session)), handle.to_owned());
        let answer = blocking("read an output", move || {
            let Some(opened) = Opened::find(&folder, &file)? else { return Ok(None) };
            work(opened).map(Some).map_err(failed("read an output"))
        });
        answer.await?.ok_or_else(missing)
    }

    async fn slice(
        &self,
        session: &SessionId,
        handle: &str,
        work: impl FnOnce(&mut Opened) -> std::io::Result<OutputSlice> + Send + 'static,
    ) -> Result<OutputSlice, StoreError> {
        let read = move |mut opened: Opened| match opened.binary()? {
            Some(binary) => Ok(Err(binary)),
            None => work(&mut opened).map(Ok),
        };
        self.opened(session, handle, read)
            .await?
            .map_err(|(media_type, bytes)| StoreError::Binary { media_type, bytes })
    }
}

/// `session-<uuid>`, the uuid made of the session id's hash.
fn session_folder(session: &SessionId) -> String {
    let hash = short_hash(session.as_str(), 32);
    format!("session-{}-{}-{}-{}-{}", &hash[..8], &hash[8..12], &hash[12..16], &hash[16..20], &hash[20..])
}

/// Runs file work off the async threads.
async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StoreError::failed(doing, error))?
}

fn failed(doing: &'static str) -> impl Fn(std::io::Error) -> StoreError {
    move |error| StoreError::failed(doing, error)
}

#[async_trait]
impl OutputStore for OutputFiles {
    async fn put(&self, session: &SessionId, bytes: &[u8]) -> Result<StoredOutput, StoreError> {
        // Nothing else is deleted for what cannot fit anyway.
        self.room.admits(bytes.len() as u64)?;
        let mut writer = Box::new(self.start(session, None));
        writer.write(bytes).await?;
        writer.finish().await
    }

    async fn put_artifact(
        &self,
        session: &SessionId,
        bytes: &[u8],
        media_type: &str,
    ) -> Result<StoredOutput, StoreError> {
        self.room.admits(bytes.len() as u64)?;
        let mut writer = Box::new(self.start(session, Some(media_type)));
        writer.write(bytes).await?;
        writer.finish().await
    }

    async fn writer(&self, session: &SessionId) -> Result<Box<dyn OutputWriter>, StoreError> {
        Ok(Box::new(self.start(session, None)))
    }

    async fn read(
        &self,
        session: &SessionId,
        handle: &str,
        offset: u64,
        limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        self.slice(session, handle, move |opened| opened.bytes(offset, limit)).await
    }

    async fn read_lines(
        &self,
        session: &SessionId,
        handle: &str,
        range: LineRange,
        limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        self.slice(session, handle, move |opened| opened.lines(range, limit)).await
    }

    async fn open(&self, session: &SessionId, handle: &str) -> Result<OpenOutput, StoreError> {
        self.opened(session, handle, |mut opened| {
            let binary = opened.binary()?.map(|(media_type, _)| media_type);
            Ok(OpenOutput { bytes: opened.len(), binary, reader: opened.into_reader() })
        })
        .await
    }

    fn has_outputs(&self, session: &SessionId) -> bool {
        self.room.looked.has(session, || {
            let Ok(files) = std::fs::read_dir(self.room.dir().join(session_folder(session))) else { return false };
            files.flatten().any(|file| !quota::is_part(&file.path()))
        })
    }
}

/// Makes a directory, and those above it, readable by the user alone.
pub(crate) fn private_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Makes a file, readable by the user alone, and its folder.
fn private_file(path: &Path) -> std::io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut again = 2;
    loop {
        path.parent().map_or(Ok(()), private_dir)?;
        match options.open(path) {
            // Somebody has just removed the folder because it was empty.
            Err(error) if error.kind() == ErrorKind::NotFound && again > 0 => again -= 1,
            opened => return opened,
        }
    }
}

#[cfg(all(test, unix))]
mod tests;
