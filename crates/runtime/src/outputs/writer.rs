//! Streams an output to disk in constant memory.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use toolwright_core::store::{OutputWriter, StoreError, StoredOutput};

use super::quota::{Quota, part};
use super::{blocking, failed, handle, private_file};

/// Bytes that are gathered before they go to the disk.
const BUFFER: usize = 256 * 1024;
/// Handles that are tried until one is free: there are 2^40.
const MAX_ATTEMPTS: usize = 8;
const DOING: &str = "store an output";

/// One output on its way. It has a file once there is more of it than fits the buffer.
pub(super) struct Writer {
    room: Arc<Quota>,
    /// `session-<uuid>`.
    folder: String,
    /// The handle, once it has a file.
    handle: Option<String>,
    media_type: Option<String>,
    part: Option<Arc<Part>>,
    buffer: Vec<u8>,
    tally: Tally,
    /// A write failed or was dropped amid: there is a hole.
    broken: bool,
}

impl Writer {
    pub(super) fn new(room: Arc<Quota>, folder: &str, media_type: Option<&str>) -> Self {
        Self {
            room,
            folder: folder.to_owned(),
            handle: None,
            media_type: media_type.map(super::read::media_suffix),
            part: None,
            buffer: Vec::new(),
            tally: Tally::default(),
            broken: false,
        }
    }

    /// Takes the buffer to the disk; `last` gives the file its name.
    async fn flush(&mut self, end: End) -> Result<(), StoreError> {
        if self.broken {
            let lost = std::io::Error::other("an earlier part of it was not written");
            return Err(StoreError::failed(DOING, lost));
        }
        self.broken = true;
        let (room, known) = (Arc::clone(&self.room), self.part.clone().zip(self.handle.clone()));
        let folder = room.dir().join(&self.folder);
        let suffix = self.media_type.clone();
        let mut buffer = std::mem::take(&mut self.buffer);
        let work = move || {
            let (part, handle) = match known {
                Some(known) => known,
                None => Part::create(&room, &folder)?,
            };
            part.append(&buffer)?;
            buffer.clear();
            if end == End::Finished {
                let name = suffix.map_or_else(|| handle.clone(), |suffix| format!("{handle}.{suffix}"));
                part.keep(&folder.join(name))?;
            }
            Ok((part, handle, buffer))
        };
        let (part, handle, buffer) = blocking(DOING, work).await?;
        (self.part, self.handle, self.buffer, self.broken) = (Some(part), Some(handle), buffer, false);
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    More,
    Finished,
}

#[async_trait]
impl OutputWriter for Writer {
    async fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.tally.count(bytes);
        loop {
            let (now, rest) = bytes.split_at(bytes.len().min(BUFFER - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            if rest.is_empty() {
                return Ok(());
            }
            bytes = rest;
            self.flush(End::More).await?;
        }
    }

    async fn finish(mut self: Box<Self>) -> Result<StoredOutput, StoreError> {
        self.flush(End::Finished).await?;
        let lost = || StoreError::failed(DOING, std::io::Error::other("it has no file"));
        let handle = self.handle.take().ok_or_else(lost)?;
        let Tally { bytes, lines, .. } = self.tally;
        let (lines, tokens) = match self.media_type {
            Some(_) => (0, 0),
            None => (lines + u64::from(self.tally.amid_line), bytes.div_ceil(4)),
        };
        Ok(StoredOutput { handle, bytes, lines, tokens })
    }
}

/// What has been written so far.
#[derive(Default)]
struct Tally {
    bytes: u64,
    lines: u64,
    /// The last line has no end yet.
    amid_line: bool,
}

impl Tally {
    fn count(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        self.bytes += bytes.len() as u64;
        self.lines += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.amid_line = *last != b'\n';
    }
}

/// A file that is being written. It goes with its last holder, unless it was kept.
struct Part {
    room: Arc<Quota>,
    path: PathBuf,
    file: File,
    taken: AtomicU64,
    kept: AtomicBool,
}

impl Part {
    /// A new one under a handle that no other output of its session has.
    fn create(room: &Arc<Quota>, folder: &Path) -> Result<(Arc<Self>, String), StoreError> {
        let mut attempts = 0..MAX_ATTEMPTS;
        loop {
            let handle = handle::random();
            let path = part(folder, &handle);
            let file = if handle::is_taken(folder, &handle) {
                Err(ErrorKind::AlreadyExists.into())
            } else {
                private_file(&path)
            };
            match file {
                Ok(file) => {
                    // Tells those who make room that somebody writes here; where locks do not exist, its age does.
                    let _ = file.try_lock();
                    let (room, taken, kept) = (Arc::clone(room), AtomicU64::new(0), AtomicBool::new(false));
                    return Ok((Arc::new(Self { room, path, file, taken, kept }), handle));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists && attempts.next().is_some() => {}
                Err(error) => return Err(failed(DOING)(error)),
            }
        }
    }

    fn append(&self, bytes: &[u8]) -> Result<(), StoreError> {
        let size = bytes.len() as u64;
        self.room.take(size)?;
        self.taken.fetch_add(size, Ordering::Relaxed);
        (&self.file).write_all(bytes).map_err(failed(DOING))
    }

    fn keep(&self, path: &Path) -> Result<(), StoreError> {
        std::fs::rename(&self.path, path).map_err(failed(DOING))?;
        self.kept.store(true, Ordering::Relaxed);
        self.room.looked.forget();
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.kept.load(Ordering::Relaxed) {
            return;
        }
        if std::fs::remove_file(&self.path).is_ok() {
            self.room.give_back(self.taken.load(Ordering::Relaxed));
        }
        if let Some(folder) = self.path.parent() {
            // Fails while the folder holds anything, which is the point.
            let _ = std::fs::remove_dir(folder);
        }
    }
}
