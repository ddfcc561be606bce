//! Streams an output to disk in constant memory, under a new handle.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use toolwright_core::store::{OutputWriter, StoreError, StoredOutput};

use super::quota::{Quota, part};
use super::{blocking, failed, private_file};

/// Bytes that are buffered before they are written to disk.
const BUFFER: usize = 256 * 1024;
/// The most handles that are tried to find a free one: there are 2^40.
const MAX_ATTEMPTS: usize = 8;
const OPERATION: &str = "store an output";

/// An output in progress. It has a file once it is larger than the buffer.
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
    /// A write failed or was dropped, so the file has a gap.
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

    /// Writes the buffer to disk; at the `end`, the file gets its name.
    async fn flush(&mut self, end: End) -> Result<(), StoreError> {
        if self.broken {
            let lost = std::io::Error::other("an earlier part of it was not written");
            return Err(StoreError::failed(OPERATION, lost));
        }
        self.broken = true;
        let (room, existing_part) = (Arc::clone(&self.room), self.part.clone().zip(self.handle.clone()));
        let folder = room.dir().join(&self.folder);
        let suffix = self.media_type.clone();
        let mut buffer = std::mem::take(&mut self.buffer);
        let work = move || {
            let (part, handle) = match existing_part {
                Some(existing_part) => existing_part,
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
        let (part, handle, buffer) = blocking(OPERATION, work).await?;
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
        let lost = || StoreError::failed(OPERATION, std::io::Error::other("it has no file"));
        let handle = self.handle.take().ok_or_else(lost)?;
        let Tally { bytes, lines, .. } = self.tally;
        let (lines, tokens) = match self.media_type {
            Some(_) => (0, 0),
            None => (lines + u64::from(self.tally.amid_line), bytes.div_ceil(4)),
        };
        Ok(StoredOutput { handle, bytes, lines, tokens })
    }
}

/// The size of the text written so far.
#[derive(Default)]
struct Tally {
    bytes: u64,
    lines: u64,
    /// Whether the last line has no end yet.
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

/// A file that is being written. The last holder deletes it, unless it was kept.
struct Part {
    room: Arc<Quota>,
    path: PathBuf,
    file: File,
    taken: AtomicU64,
    is_kept: AtomicBool,
}

impl Part {
    /// Creates a file under a handle that no other output of its session has.
    fn create(room: &Arc<Quota>, folder: &Path) -> Result<(Arc<Self>, String), StoreError> {
        let mut attempts = 0..MAX_ATTEMPTS;
        loop {
            let handle = random_handle();
            let path = part(folder, &handle);
            let file =
                if is_taken(folder, &handle) { Err(ErrorKind::AlreadyExists.into()) } else { private_file(&path) };
            match file {
                Ok(file) => {
                    // The lock shows others that the file is in use; without locks its age does.
                    let _ = file.try_lock();
                    let (room, taken, is_kept) = (Arc::clone(room), AtomicU64::new(0), AtomicBool::new(false));
                    return Ok((Arc::new(Self { room, path, file, taken, is_kept }), handle));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists && attempts.next().is_some() => {}
                Err(error) => return Err(failed(OPERATION)(error)),
            }
        }
    }

    fn append(&self, bytes: &[u8]) -> Result<(), StoreError> {
        let size = bytes.len() as u64;
        self.room.take(size)?;
        self.taken.fetch_add(size, Ordering::Relaxed);
        (&self.file).write_all(bytes).map_err(failed(OPERATION))
    }

    fn keep(&self, path: &Path) -> Result<(), StoreError> {
        std::fs::rename(&self.path, path).map_err(failed(OPERATION))?;
        self.is_kept.store(true, Ordering::Relaxed);
        // A child process that is just starting has the file open until it executes its program. Without the unlock,
        // readers would think that the output is being deleted.
        let _ = self.file.unlock();
        self.room.looked.forget();
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.is_kept.load(Ordering::Relaxed) {
            return;
        }
        if std::fs::remove_file(&self.path).is_ok() {
            self.room.release(self.taken.load(Ordering::Relaxed));
        }
        if let Some(folder) = self.path.parent() {
            // Fails on purpose while the folder is not empty.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Digits and lower-case letters without those that look like others (Crockford's base 32).
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// The first character of a handle.
const FIRST: char = 'o';
/// The characters after the first, five bits each.
const LENGTH: usize = 8;

/// Returns a new unguessable handle. In rare cases another output has the same one.
fn random_handle() -> String {
    let (_, mut bits) = uuid::Uuid::new_v4().as_u64_pair();
    let mut handle = String::with_capacity(1 + LENGTH);
    handle.push(FIRST);
    for _ in 0..LENGTH {
        handle.push(char::from(ALPHABET[(bits & 31) as usize]));
        bits >>= 5;
    }
    handle
}

/// Returns whether a text can be a handle, and so a file name.
pub(super) fn is_handle(text: &str) -> bool {
    text.strip_prefix(FIRST).is_some_and(|rest| rest.len() == LENGTH && rest.bytes().all(|c| ALPHABET.contains(&c)))
}

/// Returns whether any output of this folder, finished or not, has the handle.
fn is_taken(folder: &Path, handle: &str) -> bool {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().as_encoded_bytes().starts_with(handle.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_short_and_no_paths() {
        let handles: std::collections::HashSet<String> = (0..1000).map(|_| random_handle()).collect();
        assert_eq!(handles.len(), 1000);
        assert!(handles.iter().all(|handle| handle.len() == 9 && is_handle(handle)));
        for text in ["", "o", "o1234567", "o123456789", "O12345678", "o../../..", "/12345678", "o1234567u", "o1234567é"]
        {
            assert!(!is_handle(text), "{text}");
        }
        let folder = tempfile::tempdir().expect("folder");
        for (file, handle) in [("o00000000", "o00000000"), ("o11111111.image~png", "o11111111")] {
            assert!(!is_taken(folder.path(), handle));
            std::fs::write(folder.path().join(file), "").expect("file");
            assert!(is_taken(folder.path(), handle), "{file}");
        }
        assert!(!is_taken(&folder.path().join("none"), "o00000000"));
    }
}
