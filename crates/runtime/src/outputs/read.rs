//! Reads a stored output by byte or line ranges.

use std::fs::{File, TryLockError};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use toolwright_core::output::is_binary;
use toolwright_core::store::{LineRange, OutputSlice, ReadSeek, StoreError};

use super::failed;

/// Bytes at the beginning that decide whether the output is text.
const SAMPLE: usize = 8192;
/// The most characters of a media type in a file name.
const MAX_SUFFIX: usize = 100;

/// An open stored output, which is not deleted while it is open.
pub(super) struct OpenedOutput {
    file: File,
    bytes: u64,
    media_type: Option<String>,
}

impl OpenedOutput {
    /// Finds the output `name` in a session's folder; file names of artifacts end with their media type.
    pub(super) fn find(folder: &Path, name: &str) -> Result<Option<Self>, StoreError> {
        let failed = failed("read an output");
        let (file, media_type) = match File::open(folder.join(name)) {
            Ok(file) => (file, None),
            Err(error) if error.kind() == ErrorKind::NotFound => match artifact(folder, name) {
                Some((file, media_type)) => (file, Some(media_type)),
                None => return Ok(None),
            },
            Err(error) => return Err(failed(error)),
        };
        // A process with an exclusive lock is deleting it.
        if matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
            return Ok(None);
        }
        let bytes = file.metadata().map_err(failed)?.len();
        Ok(Some(Self { file, bytes, media_type }))
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes
    }

    pub(super) fn into_reader(self) -> Box<dyn ReadSeek> {
        Box::new(self.file)
    }

    /// Returns media type and size, if it is not text.
    pub(super) fn binary(&mut self) -> std::io::Result<Option<(String, u64)>> {
        if let Some(media_type) = &self.media_type {
            return Ok(Some((media_type.clone(), self.bytes)));
        }
        let mut sample = Vec::new();
        (&self.file).take(SAMPLE as u64).read_to_end(&mut sample)?;
        self.file.rewind()?;
        Ok(is_binary(&sample).then(|| ("application/octet-stream".to_owned(), self.bytes)))
    }

    /// Returns the text of about `limit` bytes from `offset`, at character boundaries.
    pub(super) fn bytes(&mut self, offset: u64, limit: usize) -> std::io::Result<OutputSlice> {
        let start = offset.min(self.bytes);
        self.file.seek(SeekFrom::Start(start))?;
        // Four bytes more than requested, because a UTF-8 character is at most that long.
        let mut bytes = Vec::with_capacity(limit.min(1 << 20) + 4);
        (&self.file).take(limit as u64 + 4).read_to_end(&mut bytes)?;
        let continues = |byte: u8| byte & 0xC0 == 0x80;
        let first = bytes.iter().take(4).position(|&byte| !continues(byte)).unwrap_or(0);
        let mut end = bytes.len().min(limit.max(first + 1));
        while end < bytes.len() && continues(bytes[end]) {
            end += 1;
        }
        let text = String::from_utf8_lossy(&bytes[first.min(end)..end]).into_owned();
        Ok(OutputSlice { text, next_offset: start + end as u64, total_bytes: self.bytes })
    }

    /// Returns the text of the lines of `range`, within about `limit` bytes.
    pub(super) fn lines(&mut self, range: LineRange, limit: usize) -> std::io::Result<OutputSlice> {
        self.file.rewind()?;
        let mut reader = BufReader::with_capacity(64 * 1024, &self.file);
        let (mut line, mut start) = (1, 0u64);
        while line < range.first {
            let skipped = reader.skip_until(b'\n')?;
            if skipped == 0 {
                break;
            }
            start += skipped as u64;
            line += 1;
        }
        let mut bytes = 0usize;
        for _ in 0..range.count {
            let left = limit.saturating_sub(bytes);
            if left == 0 {
                break;
            }
            let read = reader.by_ref().take(left as u64).skip_until(b'\n')?;
            if read == 0 {
                break;
            }
            bytes += read;
        }
        if bytes == 0 {
            return Ok(OutputSlice { text: String::new(), next_offset: start, total_bytes: self.bytes });
        }
        self.bytes(start, bytes)
    }
}

/// Finds the artifact `name` in a session's folder, and its media type.
fn artifact(folder: &Path, name: &str) -> Option<(File, String)> {
    let found = std::fs::read_dir(folder).ok()?.flatten().find_map(|file| {
        let file_name = file.file_name().into_string().ok()?;
        let suffix = file_name.strip_prefix(name)?.strip_prefix('.')?;
        (suffix.contains('~')).then(|| (file.path(), suffix.replacen('~', "/", 1)))
    })?;
    Some((File::open(found.0).ok()?, found.1))
}

/// Returns a media type as the end of a file name.
pub(super) fn media_suffix(media_type: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    match essence.split_once('/') {
        Some((kind, of)) if essence.len() <= MAX_SUFFIX && kind.chars().chain(of.chars()).all(legal) => {
            format!("{kind}~{of}")
        }
        _ => "application~octet-stream".into(),
    }
}
