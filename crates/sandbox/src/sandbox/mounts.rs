//! A view of the file system in which only some places can be written: for a process that may mount, which
//! is root where no container keeps it from that. Others need bubblewrap for it.
#![expect(unsafe_code, reason = "between fork and exec only raw system calls are allowed")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;

use toolwright_core::sandbox::{Area, Grant, Wall};

use super::{Sandbox, places};
use crate::protected::{existing_in, folders_between};

/// `MOUNT_ATTR_RDONLY` of mount_setattr(2)
const READ_ONLY: u64 = 1;
/// `AT_RECURSIVE`: with all mounts below.
const RECURSIVE: libc::c_int = 0x8000;

/// The view, ready to be made.
#[derive(Debug)]
pub(super) struct Mounts {
    writable: Vec<CString>,
    protected: Vec<CString>,
    directory: CString,
}

/// `struct mount_attr` of mount_setattr(2)
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

impl Mounts {
    /// The view of a profile that protects files inside its workspace; `None` for others, whose walls stand
    /// without it. The command goes on in `directory`, absolute.
    ///
    /// # Errors
    /// `InvalidInput` for a path with a zero byte.
    pub(super) fn of(sandbox: &Sandbox, scratch: &Path, directory: &Path) -> io::Result<Option<Self>> {
        if !sandbox.profile.walls().contains(&Wall::Protected) {
            return Ok(None);
        }
        let areas = sandbox.profile.grants().iter().filter_map(|grant| match grant {
            Grant::Write(area) if *area != Area::Devices => Some(*area),
            _ => None,
        });
        let mut writable: Vec<PathBuf> = areas.flat_map(|area| places::paths(area, sandbox, scratch)).collect();
        let root = sandbox.root.canonicalize().unwrap_or_else(|_| sandbox.root.clone());
        let protected = existing_in(&root, &sandbox.settings.protected);
        // What is a mount of its own cannot be renamed.
        writable.extend(folders_between(&root, &protected));
        Ok(Some(Self {
            writable: c_strings(writable.iter().filter(|path| can_be_written(path)))?,
            protected: c_strings(protected.iter())?,
            directory: c_string(directory)?,
        }))
    }

    /// A view without a place to write, to see whether views can be made.
    pub(super) fn probe() -> Self {
        Self { writable: Vec::new(), protected: Vec::new(), directory: c"/".to_owned() }
    }

    /// Makes it, for this process and its children. Makes system calls only, so it may run between fork and
    /// exec.
    ///
    /// # Errors
    /// `PermissionDenied` for a process that may not mount.
    pub(super) fn enter(&self) -> io::Result<()> {
        // SAFETY: plain system calls on strings that `self` owns.
        unsafe {
            check(libc::unshare(libc::CLONE_NEWNS))?;
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            check(libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), flags, ptr::null()))?;
            // What stays writable becomes a mount of its own first: read-only is said of mounts.
            for place in &self.writable {
                bind(place)?;
            }
            set_attributes(c"/", READ_ONLY, 0, RECURSIVE)?;
            for place in &self.writable {
                set_attributes(place, 0, READ_ONLY, 0)?;
            }
            for file in &self.protected {
                bind(file)?;
                set_attributes(file, READ_ONLY, 0, RECURSIVE)?;
            }
            // The current directory is still that of the old view.
            check(libc::chdir(self.directory.as_ptr()))
        }
    }
}

/// Makes a place a mount of its own, with what is mounted below it.
///
/// # Safety
/// In a mount namespace that nobody else uses.
unsafe fn bind(place: &CStr) -> io::Result<()> {
    let flags = libc::MS_BIND | libc::MS_REC;
    // SAFETY: the string outlives the call.
    check(unsafe { libc::mount(place.as_ptr(), place.as_ptr(), ptr::null(), flags, ptr::null()) })
}

/// # Safety
/// In a mount namespace that nobody else uses.
unsafe fn set_attributes(place: &CStr, set: u64, clear: u64, flags: libc::c_int) -> io::Result<()> {
    let attributes = Attributes { set, clear, propagation: 0, user_namespace: 0 };
    let (attributes, size) = (&raw const attributes, size_of::<Attributes>());
    // SAFETY: the string and the structure outlive the call, which is told its size.
    let result =
        unsafe { libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, place.as_ptr(), flags, attributes, size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the place exists and is on a mount that can be written: a sandbox must not open one that is not.
fn can_be_written(path: &Path) -> bool {
    let Ok(path) = c_string(path) else { return false };
    // SAFETY: an all-zero `statvfs` is a valid value; the call fills it, and both outlive the call.
    unsafe {
        let mut status: libc::statvfs = std::mem::zeroed();
        libc::statvfs(path.as_ptr(), &raw mut status) == 0 && status.f_flag & libc::ST_RDONLY == 0
    }
}

fn c_strings<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> io::Result<Vec<CString>> {
    paths.map(|path| c_string(path)).collect()
}

fn c_string(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
