//! Placeholder files for Toolwright configuration that does not exist yet. A mount needs a file to cover: while a
//! sandboxed command runs, an empty configuration holds each name, and a read-only mount over it keeps the command from
//! creating the file. The watcher removes it when the command's tree has ended.
//!
//! Several commands may need the same placeholder. Each holds a shared lock (flock(2)) on it until it ends; the last
//! one, which gets the exclusive lock, removes it. The next command takes over placeholders left by a crash.
#![expect(unsafe_code, reason = "the watcher may only make raw system calls")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Content of a placeholder: an empty configuration in YAML and JSON that no person would write.
const CONTENT: &[u8; 64] = b"{}                                                             \n";
/// Attempts to hold a name while another command is removing its placeholder.
const TRIES: usize = 8;
/// Pause between attempts while another process holds the exclusive lock to remove a placeholder.
const BUSY: std::time::Duration = std::time::Duration::from_millis(10);

/// The placeholders of one start, in order of their descriptors.
#[derive(Debug, Default)]
pub(crate) struct Placeholders(Vec<Placeholder>);

#[derive(Debug)]
struct Placeholder {
    file: File,
    path: CString,
    identity: (u64, u64),
}

/// State of a name after an attempt to hold it.
enum NameState {
    Placeholder(File),
    /// The file exists, or the command cannot create it either.
    Needless,
    /// The command can make one.
    Open,
}

impl Placeholders {
    /// Holds the missing files among `names`. Also returns `false` if some cannot be held: their folder is missing
    /// too, or they are links, which the command can replace.
    pub(super) fn hold(names: &[PathBuf]) -> io::Result<(Self, bool)> {
        let (mut all, mut complete) = (Vec::new(), true);
        for path in names {
            match held(path)? {
                NameState::Placeholder(file) => {
                    let metadata = file.metadata()?;
                    let identity = (metadata.dev(), metadata.ino());
                    all.push(Placeholder { file, path: CString::new(path.as_os_str().as_bytes())?, identity });
                }
                NameState::Needless => {}
                NameState::Open => complete = false,
            }
        }
        all.sort_by_key(|placeholder| placeholder.file.as_raw_fd());
        Ok((Self(all), complete))
    }

    /// Moves the descriptors to the numbers from `first` on, and returns the number after them.
    ///
    /// # Safety
    /// Only in the watcher: closes whatever has these numbers.
    pub(crate) unsafe fn gather(&self, first: RawFd) -> RawFd {
        let mut next = first;
        for placeholder in &self.0 {
            // In ascending order, no target overwrites a descriptor that is still to be moved.
            // SAFETY: plain system calls.
            unsafe { libc::dup2(placeholder.file.as_raw_fd(), next) };
            next += 1;
        }
        next
    }

    /// Removes placeholders that no other command holds. Makes system calls only.
    ///
    /// # Safety
    /// Only in the watcher, after [`Placeholders::gather`] with the same `first`.
    pub(crate) unsafe fn remove(&self, first: RawFd) {
        for (descriptor, placeholder) in (first..).zip(&self.0) {
            // SAFETY: plain system calls on values that outlive them; an all-zero `stat` is a valid value.
            unsafe {
                let mut now: libc::stat = std::mem::zeroed();
                let path = placeholder.path.as_ptr();
                if libc::flock(descriptor, libc::LOCK_EX | libc::LOCK_NB) == 0
                    && libc::lstat(path, &raw mut now) == 0
                    && (now.st_dev as u64, now.st_ino as u64) == placeholder.identity
                    && now.st_size as usize == CONTENT.len()
                {
                    libc::unlink(path);
                }
            }
        }
    }
}

fn held(path: &Path) -> io::Result<NameState> {
    for _ in 0..TRIES {
        if path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_symlink()) {
            return Ok(NameState::Open);
        }
        let made = OpenOptions::new().write(true).create_new(true).mode(0o444).open(path);
        let file = match made {
            Ok(mut file) => {
                file.write_all(CONTENT)?;
                file
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let Ok(file) =
                    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
                else {
                    return Ok(NameState::Needless);
                };
                file
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(NameState::Open),
            Err(_) => return Ok(NameState::Needless),
        };
        // Do not wait for a lock on the project's own file: anyone who can read it may hold the lock indefinitely.
        if !is_placeholder(&file, path)? {
            return Ok(NameState::Needless);
        }
        if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            std::thread::sleep(BUSY);
            continue;
        }
        // It may have been given back before it was locked.
        let (mine, there) = (file.metadata()?, path.symlink_metadata());
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (mine.dev(), mine.ino())) {
            return Ok(if is_placeholder(&file, path)? { NameState::Placeholder(file) } else { NameState::Needless });
        }
    }
    Ok(NameState::Open)
}

fn is_placeholder(file: &File, path: &Path) -> io::Result<bool> {
    if file.metadata()?.len() != CONTENT.len() as u64 || !file.metadata()?.is_file() {
        return Ok(false);
    }
    let mut content = Vec::with_capacity(CONTENT.len());
    File::open(path)?.take(CONTENT.len() as u64).read_to_end(&mut content)?;
    Ok(content == CONTENT)
}
