//! Changes several files together: all or none, even if the process is killed in between.
//!
//! New content is first written beside each file and then renamed into place. A journal names the files. It is
//! `.prepared` while they are written and `.committed` afterwards, and locked as long as its process lives. A process
//! that finds the journal of a dead one completes its work: prepared files are removed, committed ones are renamed.
//! This survives the death of a process, but not of the machine.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use toolwright_core::canonical::ContentHash;
use toolwright_core::error::ToolError;

use super::super::dir::Dir;
use super::super::guard::Target;
use super::super::{MAX_WHOLE_FILE, io_failure};
use crate::builtin::failed;

const PREPARED: &str = "prepared";
const COMMITTED: &str = "committed";
/// The most bytes of a journal that are read.
const MAX_JOURNAL: u64 = 4 * 1024 * 1024;

/// The folder of journals; without one the work of a killed process is not completed.
#[derive(Debug, Clone)]
pub(in crate::builtin::fs) struct Journals(Option<PathBuf>);

/// One file, with its old and new content.
pub(super) struct FileChange {
    pub(super) target: Target,
    pub(super) existing: Metadata,
    pub(super) old: Vec<u8>,
    pub(super) new: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Journal {
    files: Vec<JournalFile>,
}

#[derive(Serialize, Deserialize)]
struct JournalFile {
    /// The folder from which the file is opened, and the path below it.
    base: PathBuf,
    below: PathBuf,
    /// The file beside it with the new content.
    staged: String,
    old: ContentHash,
    new: ContentHash,
}

impl JournalFile {
    fn folder(&self) -> io::Result<(Dir, &OsStr)> {
        let name = self.below.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((Dir::root(&self.base)?.descend(self.below.parent().unwrap_or(&self.below))?, name))
    }
}

impl Journals {
    /// Keeps journals in `folder`, and completes those of dead processes there.
    pub(in crate::builtin::fs) fn new(folder: Option<PathBuf>) -> Self {
        let journals = Self(folder);
        journals.recover();
        journals
    }

    /// Changes all of the files, or none. Returns their new metadata, in order.
    ///
    /// # Errors
    /// Names the file that could not be written, or has changed since it was read; the others are unchanged.
    pub(super) fn commit(&self, files: &[FileChange]) -> Result<Vec<Metadata>, ToolError> {
        if let [file] = files {
            let written = file.check().and_then(|()| file.target.replace(&file.new, Some(&file.existing)));
            return written.map(|metadata| vec![metadata]).map_err(|error| file.failure(&error));
        }
        self.recover();
        let mut open = self.open(files)?;
        for (file, entry) in files.iter().zip(&open.journal.files) {
            let staged = entry.folder().and_then(|(folder, _)| folder.stage(&entry.staged, &file.new, &file.existing));
            staged.map_err(|error| file.failure(&error))?;
        }
        files.iter().try_for_each(|file| file.check().map_err(|error| file.failure(&error)))?;
        open.commit().map_err(|error| failed(format!("the journal of this edit cannot be written: {error}")))?;
        let mut written = Vec::with_capacity(files.len());
        for (place, (file, entry)) in files.iter().zip(&open.journal.files).enumerate() {
            // Checked again, because the previous renames took time.
            let folder = file.check().and_then(|()| entry.folder());
            let renamed = folder.and_then(|(folder, name)| folder.unstage(&entry.staged, name));
            match renamed {
                Ok(metadata) => written.push(metadata),
                Err(error) => {
                    let undone = files[..place].iter().zip(&written).rev();
                    let stuck = undone.filter(|(file, now)| file.target.replace(&file.old, Some(now)).is_err());
                    let stuck: Vec<_> = stuck.map(|(file, _)| file.target.relative_text()).collect();
                    let message = file.failure(&error);
                    return Err(if stuck.is_empty() {
                        message
                    } else {
                        failed(format!(
                            "{message}; these files are changed and could not be put back: {}",
                            stuck.join(", ")
                        ))
                    });
                }
            }
        }
        Ok(written)
    }

    /// Writes a locked journal.
    fn open(&self, files: &[FileChange]) -> Result<OpenEdit, ToolError> {
        let fail = |error: io::Error| failed(format!("the journal of this edit cannot be written: {error}"));
        let mut random = tempfile::Builder::new();
        random.prefix("edit-").rand_bytes(12);
        let Some(folder) = &self.0 else {
            // Used only for its name.
            let name = random.tempfile().map_err(fail)?;
            return Ok(OpenEdit { journal: journal(files, name.path()).map_err(fail)?, file: None });
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(fail)?;
        let mut file = random.tempfile_in(folder).map_err(fail)?;
        let journal = journal(files, file.path()).map_err(fail)?;
        file.write_all(&serde_json::to_vec(&journal).map_err(|error| fail(error.into()))?).map_err(fail)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| fail(error.into()))?;
        let path = file.path().with_extension(PREPARED);
        let file = file.persist(&path).map_err(|error| fail(error.error))?;
        Ok(OpenEdit { journal, file: Some((path, file)) })
    }

    /// Completes the work of dead processes.
    fn recover(&self) {
        let entries = self.0.as_deref().map(std::fs::read_dir).into_iter().flatten().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let committed = match path.extension().and_then(OsStr::to_str) {
                Some(PREPARED) => false,
                Some(COMMITTED) => true,
                _ => continue,
            };
            match take(&path) {
                Ok(Some((journal, _lock))) => {
                    journal.files.iter().for_each(|entry| {
                        if let Err(error) = finish(entry, committed)
                            && error.kind() != io::ErrorKind::NotFound
                        {
                            tracing::warn!(file = %entry.below.display(), "a file of an interrupted edit stays as it is: {error}");
                        }
                    });
                    let _ = std::fs::remove_file(&path);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), "an interrupted edit cannot be looked at: {error}")
                }
            }
        }
    }
}

/// Opens and locks the journal at `path`; `None` if its process lives, or it is done.
fn take(path: &Path) -> io::Result<Option<(Journal, File)>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    // Its process may have continued between reading the name and locking.
    let inode = file.metadata()?.ino();
    if !std::fs::metadata(path).is_ok_and(|now| now.ino() == inode) {
        return Ok(None);
    }
    let mut text = Vec::new();
    (&file).take(MAX_JOURNAL).read_to_end(&mut text)?;
    Ok(Some((serde_json::from_slice(&text)?, file)))
}

/// Renames committed files, or removes prepared ones.
fn finish(entry: &JournalFile, committed: bool) -> io::Result<()> {
    let (folder, name) = entry.folder()?;
    let hash = |name: &OsStr| -> io::Result<ContentHash> {
        let mut bytes = Vec::new();
        folder.file(name)?.0.take(MAX_WHOLE_FILE + 1).read_to_end(&mut bytes)?;
        Ok(ContentHash::of_bytes(&bytes))
    };
    let staged = OsStr::new(&entry.staged);
    if hash(staged)? == entry.new && committed && hash(name).is_ok_and(|now| now == entry.old) {
        return folder.unstage(&entry.staged, name).map(drop);
    }
    folder.remove(staged)?;
    if committed { Err(io::Error::other("it was changed meanwhile")) } else { Ok(()) }
}

fn journal(files: &[FileChange], named: &Path) -> io::Result<Journal> {
    let id = named.file_name().and_then(OsStr::to_str).unwrap_or("edit").trim_start_matches('.');
    let files = files.iter().enumerate().map(|(number, file)| {
        let (base, below) = file.target.base_path()?;
        let [old, new] = [&file.old, &file.new].map(|bytes| ContentHash::of_bytes(bytes));
        Ok(JournalFile {
            base: base.to_owned(),
            below: below.to_owned(),
            staged: format!(".toolwright-{id}-{number}"),
            old,
            new,
        })
    });
    Ok(Journal { files: files.collect::<io::Result<_>>()? })
}

/// An edit in progress. Its remaining files are removed on drop.
struct OpenEdit {
    journal: Journal,
    file: Option<(PathBuf, File)>,
}

impl OpenEdit {
    fn commit(&mut self) -> io::Result<()> {
        if let Some((path, _)) = &mut self.file {
            let committed = path.with_extension(COMMITTED);
            std::fs::rename(&*path, &committed)?;
            *path = committed;
        }
        Ok(())
    }
}

impl Drop for OpenEdit {
    fn drop(&mut self) {
        for entry in &self.journal.files {
            // Most are renamed already.
            let _ = entry.folder().and_then(|(folder, _)| folder.remove(OsStr::new(&entry.staged)));
        }
        if let Some((path, _)) = &self.file {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl FileChange {
    /// Fails if the file has changed since it was read.
    fn check(&self) -> io::Result<()> {
        let (file, _) = self.target.open()?;
        let mut now = Vec::new();
        file.take(MAX_WHOLE_FILE + 1).read_to_end(&mut now)?;
        if now == self.old { Ok(()) } else { Err(io::Error::other("it was changed meanwhile: read it again")) }
    }

    fn failure(&self, error: &io::Error) -> ToolError {
        io_failure("write", &self.target.written, error)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::guard::{PathGuard, Paths};
    use super::*;
    use toolwright_core::{Principal, Session, SessionId};

    #[test]
    fn files_changed_meanwhile_stop_the_whole_edit() {
        for names in [&["b"][..], &["a", "b"]] {
            let root = tempfile::tempdir().expect("folder");
            let session = Session {
                id: SessionId::new("s"),
                principal: Principal::owner(),
                root: root.path().to_owned(),
                agent: None,
            };
            let paths = Paths::new(PathGuard::Block, &[]);
            let change = |name: &&str| {
                std::fs::write(root.path().join(name), "old").expect("file");
                let target = paths.admit(&session, name).expect("admitted");
                let (_, existing) = target.open().expect("opens");
                FileChange { target, existing, old: b"old".to_vec(), new: b"new".to_vec() }
            };
            let changes: Vec<_> = names.iter().map(change).collect();
            std::fs::write(root.path().join("b"), "theirs").expect("file");
            let error = Journals::new(None).commit(&changes).expect_err("changed");
            assert!(error.message().contains("`b`: it was changed meanwhile"), "{}", error.message());
            let found = |name: &&str| std::fs::read_to_string(root.path().join(name)).expect("file");
            let expect = ["old", "theirs"];
            assert_eq!(names.iter().map(found).collect::<Vec<_>>(), expect[2 - names.len()..]);
            assert_eq!(std::fs::read_dir(root.path()).expect("folder").count(), names.len(), "nothing staged stays");
        }
    }
}
