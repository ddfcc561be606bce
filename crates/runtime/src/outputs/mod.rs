//! Large outputs as files: one folder a session, private to the user, bounded in size and age. The folder also has the
//! response cache, and the token budget of results in a conversation.

pub(crate) mod cache;
pub(crate) mod context_budget;
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
use read::OpenedOutput;
use writer::Writer;

/// The limit on all outputs together, in bytes; the oldest are deleted first.
const DEFAULT_QUOTA: u64 = 1 << 30;
/// The age at which outputs are deleted.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often a long-lived process looks for expired outputs.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

/// Outputs in a directory, in a folder for each session. A handle (`o` and eight characters) is looked up in the folder
/// of the requesting session, so that another session's handle, an absolute path or `..` is not found.
///
/// Several processes may share a directory. Each counts its own writes and measures the whole from time to time, so
/// they may exceed the quota by an eighth of it for each process.
#[derive(Debug)]
pub struct OutputFiles {
    room: Arc<Quota>,
}

impl OutputFiles {
    /// Creates a store under `dir`, which is created with the first output: at most 1 GiB, 30 days.
    #[must_use]
    pub fn new(dir: PathBuf) -> Arc<Self> {
        Self::with_limits(dir, DEFAULT_QUOTA, DEFAULT_MAX_AGE)
    }

    /// Like [`OutputFiles::new`], with other limits.
    #[must_use]
    pub fn with_limits(dir: PathBuf, quota: u64, max_age: Duration) -> Arc<Self> {
        Arc::new(Self { room: Arc::new(Quota::new(dir, quota, max_age)) })
    }

    /// Deletes expired outputs and those beyond the quota, now and every hour until the store is dropped. Must be
    /// called within a Tokio runtime.
    pub fn start_sweeping(self: &Arc<Self>) {
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
        work: impl FnOnce(OpenedOutput) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let missing = || StoreError::NotFound(format!("output {}", handle.chars().take(100).collect::<String>()));
        if !writer::is_handle(handle) {
            return Err(missing());
        }
        let (folder, file) = (self.room.dir().join(session_folder(session)), handle.to_owned());
        let answer = blocking("read an output", move || {
            let Some(opened) = OpenedOutput::find(&folder, &file)? else { return Ok(None) };
            work(opened).map(Some).map_err(failed("read an output"))
        });
        answer.await?.ok_or_else(missing)
    }

    async fn slice(
        &self,
        session: &SessionId,
        handle: &str,
        work: impl FnOnce(&mut OpenedOutput) -> std::io::Result<OutputSlice> + Send + 'static,
    ) -> Result<OutputSlice, StoreError> {
        let read = move |mut opened: OpenedOutput| match opened.binary()? {
            Some(binary) => Ok(Err(binary)),
            None => work(&mut opened).map(Ok),
        };
        self.opened(session, handle, read)
            .await?
            .map_err(|(media_type, bytes)| StoreError::Binary { media_type, bytes })
    }
}

/// Returns `session-<uuid>`, with the uuid derived from the session id's hash.
fn session_folder(session: &SessionId) -> String {
    let hash = short_hash(session.as_str(), 32);
    format!("session-{}-{}-{}-{}-{}", &hash[..8], &hash[8..12], &hash[12..16], &hash[16..20], &hash[20..])
}

/// Runs file operations on a blocking thread.
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
        // An output that cannot fit anyway must not cause others to be deleted.
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

/// Creates a file and its folder, readable by the user alone.
fn private_file(path: &Path) -> std::io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut again = 2;
    loop {
        path.parent().map_or(Ok(()), crate::private_dir)?;
        match options.open(path) {
            // Another process has just removed the empty folder.
            Err(error) if error.kind() == ErrorKind::NotFound && again > 0 => again -= 1,
            opened => return opened,
        }
    }
}

#[cfg(all(test, unix))]
#[expect(clippy::expect_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn session(name: &str) -> SessionId {
        SessionId::new(name)
    }

    fn store(quota: u64) -> (tempfile::TempDir, Arc<OutputFiles>) {
        let dir = tempfile::tempdir().expect("dir");
        let store = OutputFiles::with_limits(dir.path().join("outputs"), quota, DEFAULT_MAX_AGE);
        (dir, store)
    }

    fn files(store: &OutputFiles) -> Vec<PathBuf> {
        let folders = std::fs::read_dir(store.room.dir()).into_iter().flatten().flatten();
        folders
            .flat_map(|folder| std::fs::read_dir(folder.path()).expect("folder"))
            .flatten()
            .map(|f| f.path())
            .collect()
    }

    #[tokio::test]
    async fn a_handle_reads_back_at_character_boundaries() {
        let (_dir, store) = store(DEFAULT_QUOTA);
        let text = "aé\nz\n".repeat(1000);
        let stored = store.put(&session("s"), text.as_bytes()).await.expect("put");
        assert_eq!((stored.bytes, stored.lines, stored.tokens), (6000, 2000, 1500));
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
    async fn lines_read_back_within_their_bytes() {
        let (_dir, store) = store(DEFAULT_QUOTA);
        let stored = store.put(&session("s"), "one\ntwo\nthrée\nfour".as_bytes()).await.expect("put");
        assert_eq!(stored.lines, 4);
        for (first, count, limit, expect, next) in [
            (1, 1, 100, "one\n", 4),
            (2, 2, 100, "two\nthrée\n", 15),
            (4, 9, 100, "four", 19),
            (3, 2, 4, "thré", 13),
            (9, 1, 100, "", 19),
            (1, 0, 100, "", 0),
        ] {
            let slice = store.read_lines(&session("s"), &stored.handle, LineRange { first, count }, limit).await;
            let slice = slice.expect("lines");
            assert_eq!((slice.text.as_str(), slice.next_offset), (expect, next), "{first} {count} {limit}");
        }
    }

    #[tokio::test]
    async fn foreign_and_crafted_handles_are_not_found() {
        let (_dir, store) = store(DEFAULT_QUOTA);
        let stored = store.put(&session("a"), b"x").await.expect("put");
        let (folder, file) = (session_folder(&session("a")), &stored.handle);
        for handle in [
            format!("../{folder}/{file}"),
            format!("{folder}/{file}"),
            format!("/{folder}/{file}"),
            file.to_uppercase(),
            format!("{file}/"),
            "/etc/passwd".to_owned(),
            String::new(),
        ] {
            assert!(matches!(store.read(&session("a"), &handle, 0, 9).await, Err(StoreError::NotFound(_))), "{handle}");
            assert!(matches!(store.open(&session("a"), &handle).await, Err(StoreError::NotFound(_))), "{handle}");
        }
        assert!(matches!(store.read(&session("b"), &stored.handle, 0, 9).await, Err(StoreError::NotFound(_))));
        assert!(store.has_outputs(&session("a")) && !store.has_outputs(&session("b")));
    }

    #[tokio::test]
    async fn files_are_private_and_the_oldest_make_room() {
        let (_dir, store) = store(100);
        let root = store.room.dir().to_owned();
        let old = store.put(&session("s"), &[b'a'; 60]).await.expect("put");
        let mode = |path: PathBuf| std::fs::metadata(path).expect("meta").permissions().mode() & 0o777;
        assert_eq!(
            (mode(root.clone()), mode(root.join(session_folder(&session("s"))).join(&old.handle))),
            (0o700, 0o600)
        );
        let new = store.put(&session("s"), &[b'b'; 60]).await.expect("put");
        assert!(store.read(&session("s"), &old.handle, 0, 9).await.is_err());
        assert_eq!(store.read(&session("s"), &new.handle, 0, 9).await.expect("read").text, "bbbbbbbbb");
        assert!(matches!(store.put(&session("s"), &[0; 101]).await, Err(StoreError::Quota(_))));
        assert!(store.read(&session("s"), &new.handle, 0, 9).await.is_ok(), "nothing went for what cannot fit");
    }

    #[tokio::test]
    async fn a_streamed_output_is_counted_and_read_back() {
        let (_dir, store) = store(DEFAULT_QUOTA);
        let mut writer = store.writer(&session("s")).await.expect("writer");
        let line = format!("{}\n", "x".repeat(99));
        for _ in 0..10_000 {
            writer.write(line.as_bytes()).await.expect("write");
        }
        assert!(!store.has_outputs(&session("s")), "it has no handle yet");
        let during = store.put(&session("s"), b"meanwhile").await.expect("a stream holds nobody up");
        assert!(store.has_outputs(&session("s")), "it was looked for just before");
        let stored = writer.finish().await.expect("finish");
        assert_eq!((stored.bytes, stored.lines, stored.tokens), (1_000_000, 10_000, 250_000));
        let slice = store.read(&session("s"), &stored.handle, 999_900, 200).await.expect("read");
        assert_eq!(slice.text, line);
        assert_eq!(store.read(&session("s"), &during.handle, 0, 99).await.expect("read").text, "meanwhile");
    }

    #[tokio::test]
    async fn an_unfinished_stream_leaves_nothing() {
        let (_dir, store) = store(1_000_000);
        for _ in 0..3 {
            let mut writer = store.writer(&session("s")).await.expect("writer");
            writer.write(&[b'x'; 900_000]).await.expect("write");
            assert_eq!(files(&store).len(), 1);
            store.room.sweep().expect("sweep");
            drop(writer);
            assert!(files(&store).is_empty(), "{:?}", files(&store));
        }
        let mut writer = store.writer(&session("s")).await.expect("writer");
        let over = writer.write(&[b'x'; 2_000_000]).await;
        assert!(matches!(over, Err(StoreError::Quota(_))), "{over:?}");
        assert!(writer.finish().await.is_err(), "an output with a hole is none");
        assert!(files(&store).is_empty());
    }

    #[tokio::test]
    async fn a_sweep_keeps_outputs_being_read() {
        let (_dir, store) = store(DEFAULT_QUOTA);
        let put = async |text: &str| store.put(&session("s"), text.as_bytes()).await.expect("put").handle;
        let (expired, held, fresh) = (put("expired").await, put("held").await, put("fresh").await);
        let folder = store.room.dir().join(session_folder(&session("s")));
        let age = |handle: &str| {
            let file = std::fs::File::options().write(true).open(folder.join(handle)).expect("file");
            file.set_modified(std::time::SystemTime::now() - DEFAULT_MAX_AGE * 2).expect("age");
        };
        age(&expired);
        age(&held);
        let reading = store.open(&session("s"), &held).await.expect("open");
        store.room.sweep().expect("sweep");
        let there = async |handle: &str| store.read(&session("s"), handle, 0, 9).await.is_ok();
        assert_eq!((there(&expired).await, there(&held).await, there(&fresh).await), (false, true, true));
        drop(reading);
        store.room.sweep().expect("sweep");
        assert!(!there(&held).await);
    }

    #[tokio::test]
    async fn artifacts_keep_their_media_type() {
        let (_dir, store) = store(DEFAULT_QUOTA);
        let stored = store.put_artifact(&session("s"), &[0x89, b'P', 0, 1], "image/png; x=y").await.expect("put");
        assert_eq!((stored.bytes, stored.lines, stored.tokens), (4, 0, 0));
        match store.read(&session("s"), &stored.handle, 0, 9).await {
            Err(StoreError::Binary { media_type, bytes }) => assert_eq!((&*media_type, bytes), ("image/png", 4)),
            other => panic!("{other:?}"),
        }
        let mut open = store.open(&session("s"), &stored.handle).await.expect("open");
        let mut bytes = Vec::new();
        open.reader.read_to_end(&mut bytes).expect("bytes");
        assert_eq!((bytes.as_slice(), open.binary.as_deref()), ([0x89, b'P', 0, 1].as_slice(), Some("image/png")));
        let odd = store.put_artifact(&session("s"), &[0; 99], "../../x").await.expect("put");
        assert!(matches!(store.read(&session("s"), &odd.handle, 0, 9).await, Err(StoreError::Binary { .. })));
        let raw = store.put(&session("s"), &[0; 99]).await.expect("put");
        assert!(matches!(store.read(&session("s"), &raw.handle, 0, 9).await, Err(StoreError::Binary { .. })));
    }
}
