//! Vectors of texts, cached on disk.
//!
//! One file per model: a header of [`HEADER`] bytes (magic, then the number of dimensions) and records of equal
//! size after it, each the hash of a text, a quantised vector and a checksum, all little-endian. Records are
//! only appended, under the file's lock. Anything else was left by a crash and is ignored.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use toolwright_core::embedding::MAX_DIMENSIONS;

use crate::Quantized;
use toolwright_core::tool_id::short_hash;

/// The SHA-256 of a text.
pub(super) type TextKey = [u8; 32];

const MAGIC: &[u8; 8] = b"twvector";
const HEADER: usize = MAGIC.len() + 4;
/// Bytes of a record besides its numbers: hash, scale, checksum.
const RECORD_OVERHEAD: usize = 32 + 4 + 4;
/// Maximal file size; beyond it the older half is dropped.
const MAX_FILE: u64 = 256 << 20;
/// Number of attempts to lock, with a wait in between: others hold the lock for one write.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_WAIT: Duration = Duration::from_millis(10);

/// The file of one model.
#[derive(Debug)]
pub(super) struct VectorCache {
    path: PathBuf,
    max: u64,
}

impl VectorCache {
    /// The file in `dir` for the model of that id. Does not open it.
    pub(super) fn new(dir: &Path, model: &str) -> Self {
        let name = model.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' });
        let name: String = name.take(48).collect();
        Self { path: dir.join(format!("{name}-{}.vectors", short_hash(model, 16))), max: MAX_FILE }
    }

    /// Reads the cached vectors of these texts. Blocks. A missing or unreadable file
    /// counts as empty.
    pub(super) fn read(&self, wanted: &HashSet<TextKey>) -> HashMap<TextKey, Quantized> {
        let mut found = HashMap::new();
        if let Err(error) = self.read_into(wanted, &mut found)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!("kept vectors in {}: {error}", self.path.display());
        }
        found
    }

    /// Forgets all of them. Blocks.
    pub(super) fn clear(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!("kept vectors in {}: {error}", self.path.display());
        }
    }

    fn read_into(&self, wanted: &HashSet<TextKey>, found: &mut HashMap<TextKey, Quantized>) -> io::Result<()> {
        let mut file = BufReader::with_capacity(1 << 18, File::open(&self.path)?.take(self.max));
        let Some(dimensions) = dimensions(&mut file)? else { return Ok(()) };
        let mut record = vec![0; RECORD_OVERHEAD + dimensions];
        loop {
            match file.read_exact(&mut record) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
                // The hash comes first, so that other records are skipped early.
                Ok(()) => found.extend(decode(&record, wanted)),
            }
        }
    }

    /// Appends vectors, all of one length. Blocks. If the file has vectors of another length, they are removed.
    ///
    /// # Errors
    /// The system's error; the file is no worse than before.
    pub(super) fn append(&self, vectors: &[(TextKey, Quantized)]) -> io::Result<()> {
        let Some(size) = vectors.first().map(|(_, vector)| vector.numbers.len()) else { return Ok(()) };
        if let Some(dir) = self.path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.path)?;
        lock(&file)?;
        let record = (RECORD_OVERHEAD + size) as u64;
        let mut end = file.metadata()?.len();
        if dimensions(&mut file)? != Some(size) {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(MAGIC)?;
            file.write_all(&u32::try_from(size).unwrap_or_default().to_le_bytes())?;
            end = HEADER as u64;
        }
        // A partial record left by a crash would misalign all following ones.
        end -= (end - HEADER as u64) % record;
        let bytes: Vec<u8> = vectors.iter().flat_map(|(hash, vector)| encode(hash, vector)).collect();
        if end + bytes.len() as u64 > self.max {
            end = keep_newer_half(&mut file, end, record)?;
        }
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        // The lock ends with the file.
        file.write_all(&bytes)
    }
}

/// Reads the number of dimensions from a file's header; `None` without a header.
fn dimensions(file: &mut impl io::Read) -> io::Result<Option<usize>> {
    let mut header = [0; HEADER];
    match file.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let (magic, size) = header.split_at(MAGIC.len());
    let size = size.iter().rev().fold(0, |size, &byte| size << 8 | usize::from(byte));
    Ok((magic == MAGIC && (1..=MAX_DIMENSIONS).contains(&size)).then_some(size))
}

fn lock(file: &File) -> io::Result<()> {
    for _ in 0..LOCK_ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_WAIT),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "another process keeps its lock"))
}

/// Moves the newer half of the records to the start; returns the new end. A crash meanwhile leaves whole
/// records, some of them twice.
fn keep_newer_half(file: &mut File, end: u64, record: u64) -> io::Result<u64> {
    let kept = (end - HEADER as u64) / record / 2 * record;
    let mut newer = Vec::with_capacity(usize::try_from(kept).unwrap_or_default());
    file.seek(SeekFrom::Start(end - kept))?;
    file.take(kept).read_to_end(&mut newer)?;
    file.seek(SeekFrom::Start(HEADER as u64))?;
    file.write_all(&newer)?;
    Ok(HEADER as u64 + kept)
}

fn encode(key: &TextKey, vector: &Quantized) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD_OVERHEAD + vector.numbers.len());
    record.extend_from_slice(key);
    record.extend_from_slice(&vector.scale.to_le_bytes());
    record.extend(vector.numbers.iter().flat_map(|number| number.to_le_bytes()));
    record.extend_from_slice(&check_sum(&record).to_le_bytes());
    record
}

fn decode(record: &[u8], wanted: &HashSet<TextKey>) -> Option<(TextKey, Quantized)> {
    let (key, rest) = record.split_first_chunk::<32>()?;
    wanted.get(key)?;
    let (scale, rest) = rest.split_first_chunk::<4>()?;
    let (numbers, sum) = rest.split_last_chunk::<4>()?;
    let scale = f32::from_le_bytes(*scale);
    let is_whole = check_sum(&record[..record.len() - 4]) == u32::from_le_bytes(*sum) && scale.is_finite();
    let numbers = numbers.iter().map(|&byte| i8::from_le_bytes([byte])).collect();
    is_whole.then_some((*key, Quantized { scale, numbers }))
}

/// FNV-1a. It guards against crashes, not against people.
fn check_sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(number: u8) -> (TextKey, Quantized) {
        ([number; 32], Quantized { scale: f32::from(number), numbers: vec![number.cast_signed(); 3].into() })
    }

    fn cache(dir: &Path) -> VectorCache {
        VectorCache { max: 1024, ..VectorCache::new(dir, "a/model") }
    }

    fn check(cache: &VectorCache, expect: &[u8]) {
        let found = cache.read(&(0..=255).map(|n| [n; 32]).collect());
        let mut numbers: Vec<u8> = found.keys().map(|key| key[0]).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, expect);
        assert!(expect.iter().all(|&n| found[&[n; 32]] == vector(n).1));
    }

    #[test]
    fn added_vectors_are_visible_to_other_processes() {
        let dir = tempfile::tempdir().unwrap();
        check(&cache(dir.path()), &[]);
        cache(dir.path()).append(&[]).unwrap();
        cache(dir.path()).append(&[vector(1), vector(2)]).unwrap();
        cache(dir.path()).append(&[vector(3)]).unwrap();
        check(&cache(dir.path()), &[1, 2, 3]);
        check(&VectorCache::new(dir.path(), "a:model"), &[]);
        let some = cache(dir.path()).read(&HashSet::from([[2; 32], [9; 32]]));
        assert_eq!(some.len(), 1);
    }

    /// The file after `damage`, then after one more vector.
    fn check_damaged(damage: impl Fn(&mut Vec<u8>), before: &[u8], after: &[u8]) {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        cache.append(&[vector(1), vector(2)]).unwrap();
        let mut bytes = std::fs::read(&cache.path).unwrap();
        damage(&mut bytes);
        std::fs::write(&cache.path, bytes).unwrap();
        check(&cache, before);
        cache.append(&[vector(3)]).unwrap();
        check(&cache, after);
    }

    #[test]
    fn leftovers_of_crashes_are_ignored() {
        check_damaged(|bytes| bytes.truncate(bytes.len() - 1), &[1], &[1, 3]);
        check_damaged(|bytes| bytes.extend([7; 20]), &[1, 2], &[1, 2, 3]);
        check_damaged(|bytes| bytes[HEADER + 33] ^= 1, &[2], &[2, 3]);
        for length in 0..=HEADER {
            check_damaged(|bytes| bytes.truncate(length), &[], &[3]);
        }
        check_damaged(|bytes| bytes[0] = 0, &[], &[3]);
        check_damaged(|bytes| bytes[MAGIC.len()] = 0, &[], &[3]);
        check_damaged(|bytes| bytes[MAGIC.len()..HEADER].fill(0xff), &[], &[3]);
    }

    #[test]
    fn vectors_of_another_length_make_room() {
        let dir = tempfile::tempdir().unwrap();
        cache(dir.path()).append(&[vector(1)]).unwrap();
        let longer = ([5; 32], Quantized { scale: 5.0, numbers: vec![5; 4].into() });
        cache(dir.path()).append(std::slice::from_ref(&longer)).unwrap();
        let found = cache(dir.path()).read(&HashSet::from([[1; 32], [5; 32]]));
        assert_eq!(found, HashMap::from([longer]));
    }

    #[test]
    fn the_file_is_bounded_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        for number in 0..100 {
            cache.append(&[vector(number)]).unwrap();
            assert!(std::fs::metadata(&cache.path).unwrap().len() <= cache.max);
        }
        let found = cache.read(&(0..100).map(|n| [n; 32]).collect());
        assert!(found.len() > 9 && found.contains_key(&[99; 32]) && !found.contains_key(&[0; 32]));
    }

    #[test]
    fn concurrent_writers_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let cache = VectorCache::new(dir.path(), "m");
                scope.spawn(move || (0..20).for_each(|n| cache.append(&[vector(writer * 20 + n)]).unwrap()));
            }
        });
        check(&VectorCache::new(dir.path(), "m"), &(0..80).collect::<Vec<_>>());
    }
}
