//! Folders held open by descriptor: every `fs` tool reads, lists and writes through them.
//!
//! A path is judged first (see `guard`), with all its links resolved. It is opened here from the workspace root down, and no
//! link is followed on the way, at the end or in between. Whoever swaps a folder for a link after the judgement makes the
//! call fail; nothing outside is read or written.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// How a folder is opened: to go on from there. Only Linux does that without the right to list it.
const FOLDER: OFlags = {
    let folder = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    #[cfg(target_os = "linux")]
    let folder = folder.union(OFlags::PATH);
    folder
};

/// How a file is made that must be new.
const NEW_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Names that are tried for a temporary file.
const TEMPORARY_NAMES: usize = 64;

/// An open folder.
#[derive(Debug)]
pub(super) struct Dir(OwnedFd);

/// What an entry of a folder is, links not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Folder,
    Link,
    Other,
}

impl From<FileType> for Kind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Folder,
            FileType::Symlink => Self::Link,
            _ => Self::Other,
        }
    }
}

impl Dir {
    /// Opens a folder by a path that is trusted: a root.
    pub(super) fn root(path: &Path) -> io::Result<Self> {
        Ok(Self(fs::openat(CWD, path, FOLDER, Mode::empty())?))
    }

    /// Opens a folder below this one, by a path of plain names. An empty path is this folder.
    pub(super) fn descend(&self, below: &Path) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if !below.as_os_str().is_empty() {
            use rustix::fs::ResolveFlags;
            let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            match fs::openat2(&self.0, below, FOLDER, Mode::empty(), how) {
                // Linux before 5.6, or a container that does not know the call.
                Err(Errno::NOSYS | Errno::PERM) => {}
                opened => return opened.map(Self).map_err(explained),
            }
        }
        self.walk(below, Self::folder)
    }

    /// As [`Dir::descend`]; folders that do not exist are made.
    pub(super) fn descend_or_create(&self, below: &Path) -> io::Result<Self> {
        match self.descend(below) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        self.walk(below, |folder, name| match folder.folder(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match fs::mkdirat(&folder.0, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => folder.folder(name),
                    Err(error) => Err(error.into()),
                }
            }
            opened => opened,
        })
    }

    /// Goes down name by name.
    fn walk(&self, below: &Path, step: impl Fn(&Self, &OsStr) -> io::Result<Self>) -> io::Result<Self> {
        let mut folder = Self(self.0.try_clone()?);
        for part in below.components() {
            let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
            folder = step(&folder, name)?;
        }
        Ok(folder)
    }

    /// Opens a folder in this one.
    pub(super) fn folder(&self, name: &OsStr) -> io::Result<Self> {
        fs::openat(&self.0, name, FOLDER, Mode::empty()).map(Self).map_err(explained)
    }

    /// What an entry is.
    pub(super) fn kind(&self, name: &OsStr) -> io::Result<Kind> {
        let found = fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(found.st_mode).into())
    }

    /// Opens a regular file for reading. Anything else (a directory, a pipe, a device) could block or never end.
    pub(super) fn file(&self, name: &OsStr) -> io::Result<(File, Metadata)> {
        let irregular = || io::Error::other("it is not a regular file");
        match self.kind(name)? {
            // A device is not even opened: for some that is an act.
            Kind::File => {}
            Kind::Folder => return Err(io::ErrorKind::IsADirectory.into()),
            Kind::Link => return Err(explained(Errno::LOOP)),
            Kind::Other => return Err(irregular()),
        }
        // It may be another one by now: a pipe without a writer must not block.
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(fs::openat(&self.0, name, how, Mode::empty()).map_err(explained)?);
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok((file, metadata)) } else { Err(irregular()) }
    }

    /// Where a link points.
    pub(super) fn link(&self, name: &OsStr) -> io::Result<PathBuf> {
        let target = fs::readlinkat(&self.0, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// What is in it, in order of names: at most `limit` entries, whichever come first.
    pub(super) fn entries(&self, limit: usize) -> io::Result<Vec<(OsString, Kind)>> {
        let mut all = Vec::new();
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for entry in fs::Dir::new(fs::openat(&self.0, ".", how, Mode::empty())?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Not every file system tells. What is gone by now is nothing.
                FileType::Unknown => self.kind(name).unwrap_or(Kind::Other),
                kind => kind.into(),
            };
            all.push((name.to_owned(), kind));
            if all.len() >= limit {
                break;
            }
        }
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(all)
    }

    /// Puts new content in the place of a file, whole or not at all: writes a temporary file beside it and renames that, so
    /// readers see the old file or the new one. An `existing` file keeps its permissions (not its owner, nor its hard
    /// links); a new one gets the usual ones and must still be new.
    pub(super) fn replace(&self, name: &OsStr, bytes: &[u8], existing: Option<&Metadata>) -> io::Result<Metadata> {
        let mut temporary = Temporary::in_folder(self)?;
        temporary.file.write_all(bytes)?;
        match existing {
            Some(metadata) => {
                temporary.file.set_permissions(metadata.permissions())?;
                fs::renameat(&self.0, &temporary.name, &self.0, name)?;
            }
            None => self.rename_to_new(&temporary.name, name)?,
        }
        temporary.renamed = true;
        temporary.file.metadata()
    }

    /// Writes new content of a file to `staged` beside it, which must be new, with the file's permissions.
    pub(super) fn stage(&self, staged: &str, bytes: &[u8], existing: &Metadata) -> io::Result<()> {
        let mut file = File::from(fs::openat(&self.0, staged, NEW_FILE, Mode::from_raw_mode(0o600))?);
        file.write_all(bytes)?;
        file.set_permissions(existing.permissions())
    }

    /// Puts what was staged in the place of a file.
    pub(super) fn unstage(&self, staged: &str, name: &OsStr) -> io::Result<Metadata> {
        let (file, _) = self.file(OsStr::new(staged))?;
        fs::renameat(&self.0, staged, &self.0, name)?;
        file.metadata()
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Renames within this folder, unless the new name is taken.
    fn rename_to_new(&self, name: &OsStr, new: &OsStr) -> io::Result<()> {
        #[cfg(any(target_os = "linux", target_vendor = "apple"))]
        match fs::renameat_with(&self.0, name, &self.0, new, fs::RenameFlags::NOREPLACE) {
            // Not every file system can.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            renamed => return Ok(renamed?),
        }
        fs::linkat(&self.0, name, &self.0, new, AtFlags::empty())?;
        Ok(fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }
}

/// A file that is removed unless it has been renamed.
struct Temporary<'d> {
    folder: &'d Dir,
    name: OsString,
    file: File,
    renamed: bool,
}

impl<'d> Temporary<'d> {
    fn in_folder(folder: &'d Dir) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..TEMPORARY_NAMES {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = OsString::from(format!(".toolwright-{}-{number}", std::process::id()));
            // 0666 is what programs ask for; the umask takes away what the user does not want.
            match fs::openat(&folder.0, &name, NEW_FILE, Mode::from_raw_mode(0o666)) {
                Ok(file) => return Ok(Self { folder, name, file: file.into(), renamed: false }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // Whoever has removed it first has done the same.
            let _ = fs::unlinkat(&self.folder.0, &self.name, AtFlags::empty());
        }
    }
}

/// Says what it means that a folder, resolved a moment ago, cannot be opened as one.
fn explained(error: Errno) -> io::Error {
    match error {
        Errno::LOOP | Errno::NOTDIR | Errno::XDEV => {
            io::Error::other("a part of the path was replaced by a link or a file meanwhile: call again")
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_walk_by_name_follows_no_link_either() {
        let outer = tempfile::tempdir().expect("folder");
        let root = outer.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).expect("folders");
        symlink(outer.path(), root.join("a/out")).expect("link");
        symlink("b", root.join("a/in")).expect("link");
        let dir = Dir::root(&root).expect("root");
        let opened = |below: &str| dir.walk(Path::new(below), Dir::folder).is_ok();
        assert!(opened("") && opened("a/b"));
        for below in ["a/out", "a/out/root", "a/in", "..", "a/../..", "/", "gone"] {
            assert!(!opened(below), "{below}");
            assert!(dir.descend(Path::new(below)).is_err(), "{below}");
        }
    }

    #[test]
    fn new_files_replace_none() {
        let folder = tempfile::tempdir().expect("folder");
        let dir = Dir::root(folder.path()).expect("root");
        let name = OsStr::new("a");
        dir.replace(name, b"one", None).expect("written");
        let (_, metadata) = dir.file(name).expect("opens");
        assert_eq!(dir.replace(name, b"two", None).expect_err("taken").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(folder.path().join("a")).expect("file"), b"one");
        dir.replace(name, b"three", Some(&metadata)).expect("written");
        assert_eq!(std::fs::read(folder.path().join("a")).expect("file"), b"three");
        assert_eq!(dir.entries(9).expect("listed"), [(OsString::from("a"), Kind::File)]);
    }
}
