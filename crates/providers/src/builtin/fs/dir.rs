//! Folders held open by descriptor: every `fs` tool reads, lists and writes through them.
//!
//! A path is first checked with all its links resolved (see `guard`). It is then opened here from the workspace root
//! down without following any link. If a folder is replaced by a link after the check, the call fails; nothing outside
//! is read or written.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Flags for opening a folder to continue from it. Only Linux allows that without permission to list it.
const FOLDER: OFlags = {
    let folder = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    #[cfg(target_os = "linux")]
    let folder = folder.union(OFlags::PATH);
    folder
};

/// Flags for creating a file that must be new.
const NEW_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The most names that are tried for a temporary file.
const TEMPORARY_NAMES: usize = 64;

/// An open folder.
#[derive(Debug)]
pub(super) struct Dir(OwnedFd);

/// The type of a folder's entry, with links not followed.
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
    /// Opens a trusted folder: a root.
    pub(super) fn root(path: &Path) -> io::Result<Self> {
        Ok(Self(fs::openat(CWD, path, FOLDER, Mode::empty())?))
    }

    /// Opens a folder below this one, by a path of plain names. An empty path opens this folder.
    pub(super) fn descend(&self, below: &Path) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if !below.as_os_str().is_empty() {
            use rustix::fs::ResolveFlags;
            let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            match fs::openat2(&self.0, below, FOLDER, Mode::empty(), how) {
                // Linux before 5.6, or a container that blocks the call.
                Err(Errno::NOSYS | Errno::PERM) => {}
                opened => return opened.map(Self).map_err(explained),
            }
        }
        self.walk(below, Self::folder)
    }

    /// Like [`Dir::descend`], but creates missing folders.
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

    /// Descends name by name.
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

    /// Returns the type of an entry.
    pub(super) fn kind(&self, name: &OsStr) -> io::Result<Kind> {
        let found = fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(found.st_mode).into())
    }

    /// Opens a regular file for reading. Anything else (a directory, a pipe, a device) could block or never end.
    pub(super) fn file(&self, name: &OsStr) -> io::Result<(File, Metadata)> {
        let irregular = || io::Error::other("it is not a regular file");
        match self.kind(name)? {
            // A device is not opened at all, because for some devices that has an effect.
            Kind::File => {}
            Kind::Folder => return Err(io::ErrorKind::IsADirectory.into()),
            Kind::Link => return Err(explained(Errno::LOOP)),
            Kind::Other => return Err(irregular()),
        }
        // The entry may have been replaced: a pipe without a writer must not block.
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(fs::openat(&self.0, name, how, Mode::empty()).map_err(explained)?);
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok((file, metadata)) } else { Err(irregular()) }
    }

    /// Returns the target of a link.
    pub(super) fn link(&self, name: &OsStr) -> io::Result<PathBuf> {
        let target = fs::readlinkat(&self.0, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Returns at most `limit` entries in order of names; which ones, if there are more, is arbitrary.
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
                // Not every file system reports the type. A vanished entry counts as `Other`.
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

    /// Replaces the content of a file atomically: writes a temporary file beside it and renames that. An `existing`
    /// file keeps its permissions, but not its owner or hard links; a new one gets the usual permissions and must still
    /// be new.
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

    /// Writes new content to the new file `staged` beside a file, with the file's permissions.
    pub(super) fn stage(&self, staged: &str, bytes: &[u8], existing: &Metadata) -> io::Result<()> {
        let mut file = File::from(fs::openat(&self.0, staged, NEW_FILE, Mode::from_raw_mode(0o600))?);
        file.write_all(bytes)?;
        file.set_permissions(existing.permissions())
    }

    /// Replaces a file by its staged content.
    pub(super) fn unstage(&self, staged: &str, name: &OsStr) -> io::Result<Metadata> {
        let (file, _) = self.file(OsStr::new(staged))?;
        fs::renameat(&self.0, staged, &self.0, name)?;
        file.metadata()
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Renames within this folder, unless the new name exists.
    fn rename_to_new(&self, name: &OsStr, new: &OsStr) -> io::Result<()> {
        #[cfg(any(target_os = "linux", target_vendor = "apple"))]
        match fs::renameat_with(&self.0, name, &self.0, new, fs::RenameFlags::NOREPLACE) {
            // Not every file system supports it.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            renamed => return Ok(renamed?),
        }
        fs::linkat(&self.0, name, &self.0, new, AtFlags::empty())?;
        Ok(fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }
}

/// A file that is removed unless it was renamed.
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
            // 0666 is the usual mode; the umask restricts it.
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
            // If it was removed already, the result is the same.
            let _ = fs::unlinkat(&self.folder.0, &self.name, AtFlags::empty());
        }
    }
}

/// Explains an error of opening a folder that was resolved a moment ago.
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
    fn a_folder_walk_follows_no_links() {
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
