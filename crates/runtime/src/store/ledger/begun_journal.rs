//! The journal of operations that begin: each is in it before its call is dispatched. A line in a file costs one system
//! call; a commit of the database costs two task switches. An operation that outlives its batch gets a row of the table
//! `begun`, so the journal holds the last batches only. The lock of a journal shows that its process is alive.

use std::borrow::Cow;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use toolwright_core::arguments::Provenance;
use toolwright_core::operation::{Lineage, Op, OpId, OpKind, ParentSessions, TraceId};
use toolwright_core::session::{CallId, SessionId};
use toolwright_core::store::{LedgerEntry, RUNNING};

use crate::store::is_in_memory;

/// The folder of the journals, beside the database.
const FOLDER: &str = "begun";
/// Suffixes of a journal's two files. The first is locked while its process lives.
const SUFFIXES: [&str; 2] = ["0", "1"];

/// The journal of one store. Its two files take turns: one is written while the batch with the other's operations is
/// committed.
#[derive(Debug)]
pub(in crate::store) struct BegunJournal {
    /// `None` for a database in memory, whose operations nobody could read later.
    folder: Option<PathBuf>,
    files: Option<JournalFiles>,
    /// Whether each file has lines.
    has_lines: [bool; 2],
    /// The file that is written.
    active: usize,
}

#[derive(Debug)]
struct JournalFiles {
    paths: [PathBuf; 2],
    files: [Arc<File>; 2],
}

impl BegunJournal {
    /// Creates the journal of the database at `path`. Its files are created at its first line.
    pub(in crate::store) fn of(path: &Path) -> Self {
        let folder = (!is_in_memory(path)).then(|| folder_of(path));
        Self { folder, files: None, has_lines: [false; 2], active: 0 }
    }

    /// Returns the file for the line of an operation ([`line`]), `None` for a database in memory. The caller writes the
    /// line with [`append`], and holds the file until then.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(in crate::store) fn file(&mut self) -> io::Result<Option<Arc<File>>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let files = match &mut self.files {
            Some(files) => files,
            none => none.insert(JournalFiles::create(folder)?),
        };
        self.has_lines[self.active] = true;
        Ok(Some(Arc::clone(&files.files[self.active])))
    }

    /// Ends the lines of a batch that is about to be committed: later ones go to the other file, if that is empty.
    pub(in crate::store) fn cut(&mut self) {
        if self.has_lines[self.active] && !self.has_lines[1 - self.active] {
            self.active = 1 - self.active;
        }
    }

    /// Drops the lines of batches that are committed.
    pub(in crate::store) fn committed(&mut self) {
        let other = 1 - self.active;
        if !self.has_lines[other] {
            return;
        }
        if let Some(files) = &self.files {
            // What stays is compared with the ledger when it is read.
            let is_being_written = Arc::strong_count(&files.files[other]) > 1;
            if is_being_written {
                return;
            }
            if let Err(error) = files.files[other].set_len(0) {
                tracing::debug!("{}: {error}", files.paths[other].display());
                return;
            }
        }
        self.has_lines[other] = false;
    }

    /// Removes the files, once everything is committed.
    pub(in crate::store) fn remove(&mut self) {
        if let Some(files) = self.files.take() {
            remove(&files.paths);
        }
        self.has_lines = [false; 2];
    }
}

/// Writes a line at the end of a journal's file, in one system call: others write to it at the same time.
///
/// # Errors
/// The file cannot be written, or took a part of the line.
pub(in crate::store) fn append(file: Option<&File>, line: &[u8]) -> io::Result<()> {
    let Some(mut file) = file else { return Ok(()) };
    if file.write(line)? == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

impl JournalFiles {
    fn create(folder: &Path) -> io::Result<Self> {
        static STORES: AtomicU64 = AtomicU64::new(0);
        crate::private_dir(folder)?;
        let name =
            format!("{}-{}-{}", std::process::id(), super::super::now_ms(), STORES.fetch_add(1, Ordering::Relaxed));
        let paths = SUFFIXES.map(|suffix| folder.join(format!("{name}.{suffix}")));
        // It gets its name once it is locked, so no other process takes it for one of a dead process.
        let unlocked = folder.join(format!("{name}.new"));
        let files = [open(&unlocked)?, open(&paths[1])?];
        files[0].try_lock().map_err(|error| match error {
            TryLockError::Error(error) => error,
            TryLockError::WouldBlock => io::Error::from(io::ErrorKind::WouldBlock),
        })?;
        std::fs::rename(&unlocked, &paths[0])?;
        Ok(Self { paths, files: files.map(Arc::new) })
    }
}

fn folder_of(database: &Path) -> PathBuf {
    database.with_file_name(FOLDER)
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    // The lines hold arguments.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn remove(paths: &[PathBuf; 2]) {
    // The locked file goes last: without it, nobody would find the other.
    for path in paths.iter().rev() {
        if let Err(error) = std::fs::remove_file(path) {
            tracing::debug!("{}: {error}", path.display());
        }
    }
}

/// Trace, parent, run, turn and the sessions above: a [`Lineage`] without keys.
type LineageValues = (u128, Option<u64>, Option<Arc<str>>, u32, Option<Arc<ParentSessions>>);

/// What is known of an operation when it begins: an array, whose values need no keys. The other fields of its entry have
/// no value yet. Its arguments follow it, which are JSON already.
#[derive(Serialize, Deserialize)]
struct Line<'a>(
    /// Id of the operation.
    u64,
    LineageValues,
    /// When it began, in milliseconds since 1970.
    u64,
    Cow<'a, SessionId>,
    /// Its principal.
    Arc<str>,
    OpKind,
    Option<Cow<'a, CallId>>,
    /// Name of what it calls.
    Arc<str>,
    /// Its waits in microseconds: for slots and locks, and for people.
    (u64, u64),
    /// Characters of its input.
    u64,
    /// Whether a schema has validated its arguments.
    bool,
    /// Who admitted it, and the answer of a person.
    (Cow<'a, str>, Option<Cow<'a, str>>),
    /// How its arguments came about, unless they are as written.
    Option<Cow<'a, Provenance>>,
);

/// Usual length of a line, so that it seldom grows.
const USUAL_LENGTH: usize = 512;

/// Returns the line of an operation for the journal of the database at `path`; nothing for one in memory. It begins with
/// its line break, so that a line that a full disk cut short spoils no other.
///
/// # Errors
/// The entry is not JSON.
pub(in crate::store) fn line(path: &Path, entry: &LedgerEntry) -> serde_json::Result<Vec<u8>> {
    if is_in_memory(path) {
        return Ok(Vec::new());
    }
    let arguments = entry.arguments.as_deref().unwrap_or_default();
    let mut line = Vec::with_capacity(USUAL_LENGTH + arguments.len());
    line.push(b'\n');
    let Lineage { trace, parent, run, turn, within } = &entry.op.lineage;
    let fields = Line(
        entry.op.id.get(),
        (trace.get(), parent.map(OpId::get), run.clone(), *turn, within.clone()),
        entry.at_ms,
        Cow::Borrowed(&entry.session),
        Arc::clone(&entry.principal),
        entry.kind,
        entry.call.as_ref().map(Cow::Borrowed),
        Arc::clone(&entry.name),
        (entry.wait_us, entry.person_us),
        entry.characters_in,
        entry.validated,
        (Cow::Borrowed(&entry.decided_by), entry.approval.as_deref().map(Cow::Borrowed)),
        Some(&entry.provenance).filter(|provenance| !provenance.is_plain()).map(Cow::Borrowed),
    );
    serde_json::to_writer(&mut line, &fields)?;
    line.extend_from_slice(arguments.as_bytes());
    Ok(line)
}

/// Reads a line, with its line break or without. `None` for one that was cut short.
pub(in crate::store) fn read(line: &[u8]) -> Option<LedgerEntry> {
    let mut values = serde_json::Deserializer::from_slice(line).into_iter::<Line<'_>>();
    let Line(id, lineage, at_ms, session, principal, kind, call, name, waits, characters_in, validated, admitted, how) =
        values.next()?.ok()?;
    let arguments = std::str::from_utf8(&line[values.byte_offset()..]).ok()?;
    if !arguments.is_empty() && serde_json::from_str::<IgnoredAny>(arguments).is_err() {
        return None;
    }
    let (trace, parent, run, turn, within) = lineage;
    let lineage = Lineage { trace: TraceId::new(trace), parent: parent.map(OpId::new), run, turn, within };
    Some(LedgerEntry {
        status: Cow::Borrowed(RUNNING),
        call: call.map(Cow::into_owned),
        wait_us: waits.0,
        person_us: waits.1,
        characters_in,
        validated,
        decided_by: Cow::Owned(admitted.0.into_owned()),
        approval: admitted.1.map(|approval| Cow::Owned(approval.into_owned())),
        provenance: how.map(Cow::into_owned).unwrap_or_default(),
        arguments: (!arguments.is_empty()).then(|| arguments.into()),
        ..LedgerEntry::new(Op { id: OpId::new(id), lineage }, at_ms, session.into_owned(), principal, kind, name)
    })
}

/// The journal of a dead process, locked by this one.
pub(in crate::store) struct DeadJournal {
    paths: [PathBuf; 2],
    /// Holds the lock.
    _file: File,
    /// The operations in it. Some may have ended, and be in the ledger.
    pub(in crate::store) entries: Vec<LedgerEntry>,
}

impl DeadJournal {
    /// Removes its files, once its operations are in the ledger.
    pub(in crate::store) fn remove(self) {
        remove(&self.paths);
    }
}

/// Returns the journals that dead processes left beside the database at this path.
pub(in crate::store) fn dead_journals(database: &Path) -> Vec<DeadJournal> {
    let Ok(files) = std::fs::read_dir(folder_of(database)) else { return Vec::new() };
    let is_locked_file = |path: &PathBuf| path.extension().is_some_and(|suffix| suffix == SUFFIXES[0]);
    files.flatten().map(|file| file.path()).filter(is_locked_file).filter_map(read_abandoned).collect()
}

/// Returns the journal whose locked file this is, unless its process is alive or another process is reading it.
fn read_abandoned(path: PathBuf) -> Option<DeadJournal> {
    let mut file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
    file.try_lock().ok()?;
    // Another process may have settled it before this one had the lock.
    if !path.exists() {
        return None;
    }
    let other = path.with_extension(SUFFIXES[1]);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    bytes.extend(std::fs::read(&other).unwrap_or_default());
    let entries = bytes.split(|byte| *byte == b'\n').filter_map(read).collect();
    Some(DeadJournal { paths: [path, other], _file: file, entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> LedgerEntry {
        let op = Lineage::named("s").begin(OpId::new(id));
        let entry = LedgerEntry::new(op, 1, SessionId::new("s"), "owner".into(), OpKind::Tool, "x:t@1.0.0".into());
        LedgerEntry { status: RUNNING.into(), ..entry }
    }

    impl BegunJournal {
        pub(in crate::store) fn write(&mut self, line: &[u8]) {
            let file = self.file().expect("file");
            append(file.as_deref(), line).expect("written");
        }

        /// Writes to this file instead. Returns the journal's own, whose lock shows that the process is alive.
        pub(in crate::store) fn write_to(&mut self, path: &Path) -> [Arc<File>; 2] {
            let open = |_| Arc::new(OpenOptions::new().append(true).open(path).expect("open"));
            let files = &mut self.files.as_mut().expect("it has been written").files;
            std::mem::replace(files, [0, 1].map(open))
        }
    }

    fn line_of(id: u64) -> Vec<u8> {
        line(Path::new("db"), &entry(id)).expect("line")
    }

    #[test]
    fn a_line_reads_back_unchanged() {
        let long = LedgerEntry {
            call: Some(CallId::new("c")),
            wait_us: 1,
            person_us: 2,
            characters_in: 3,
            validated: true,
            decided_by: "a rule".into(),
            approval: Some("always".into()),
            provenance: Provenance { repaired: true, ..Provenance::default() },
            arguments: Some("{\"a\":\"\\n\"}".into()),
            ..entry(1)
        };
        let cut = line(Path::new("db"), &long).expect("line");
        assert_eq!(read(&cut[1..cut.len() - 1]), None, "its end is missing");
        let within = ParentSessions { parent: SessionId::new("p"), root: SessionId::new("r") };
        let lineage = Lineage {
            parent: Some(OpId::new(2)),
            run: Some("run".into()),
            turn: 3,
            within: Some(within.into()),
            ..entry(1).op.lineage
        };
        let long = LedgerEntry { op: lineage.begin(OpId::new(1)), ..long };
        for entry in [entry(u64::MAX), long] {
            let line = line(Path::new("db"), &entry).expect("line");
            assert_eq!((line[0], read(&line[1..])), (b'\n', Some(entry)));
        }
    }

    /// Returns the operations in the journals of dead processes.
    fn found(database: &Path) -> Vec<u64> {
        let mut found: Vec<_> = dead_journals(database)
            .iter()
            .flat_map(|journal| &journal.entries)
            .map(|entry| entry.op.id.get())
            .collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn a_journal_is_read_after_its_process() {
        let dir = tempfile::tempdir().expect("dir");
        let database = dir.path().join("db");
        let mut journal = BegunJournal::of(&database);
        for id in 1..=3 {
            journal.write(&line_of(id));
        }
        assert_eq!(found(&database), [0; 0], "its process is alive");
        drop(journal);
        assert_eq!(found(&database), [1, 2, 3]);
        dead_journals(&database).into_iter().for_each(DeadJournal::remove);
        assert_eq!(std::fs::read_dir(folder_of(&database)).expect("folder").count(), 0);
    }

    #[test]
    fn committed_batches_leave_the_journal() {
        let dir = tempfile::tempdir().expect("dir");
        let database = dir.path().join("db");
        let mut journal = BegunJournal::of(&database);
        journal.write(&line_of(1));
        journal.cut();
        journal.write(&line_of(2));
        // The commit fails, so the next batch has both.
        journal.cut();
        journal.write(&line_of(3));
        journal.committed();
        journal.write(&line_of(4));
        drop(journal);
        assert_eq!(found(&database), [2, 3, 4]);
    }

    #[test]
    fn a_file_being_written_is_emptied_later() {
        let dir = tempfile::tempdir().expect("dir");
        let database = dir.path().join("db");
        let mut journal = BegunJournal::of(&database);
        let file = journal.file().expect("file");
        journal.cut();
        journal.committed();
        append(file.as_deref(), &line_of(1)).expect("written");
        drop(file);
        journal.write(&line_of(2));
        journal.committed();
        drop(journal);
        assert_eq!(found(&database), [2]);
    }

    #[test]
    fn a_cut_line_leaves_others_readable() {
        let dir = tempfile::tempdir().expect("dir");
        let database = dir.path().join("db");
        let mut journal = BegunJournal::of(&database);
        journal.write(&line_of(1));
        journal.write(&line_of(2)[..40]);
        journal.write(&line_of(3));
        drop(journal);
        assert_eq!(found(&database), [1, 3]);
    }

    #[test]
    fn a_database_in_memory_has_no_journal() {
        let memory = Path::new(crate::store::MEMORY);
        let mut journal = BegunJournal::of(memory);
        journal.write(&line(memory, &entry(1)).expect("line"));
        assert!(journal.files.is_none());
    }
}
