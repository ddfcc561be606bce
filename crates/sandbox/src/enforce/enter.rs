//! Sets up the child between fork and exec: limits, the view of the file system, Landlock and seccomp. It makes system
//! calls only, on data that was prepared before the fork.
#![expect(unsafe_code, reason = "between fork and exec only raw system calls are allowed")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{io, ptr};

use toolwright_core::sandbox::{Area, Grant, Restriction};

use super::seccomp::Instruction;
use super::{Limits, Sandbox, landlock_rules};
use crate::protected::{ancestor_folders, existing_in};

/// Capabilities that root keeps: those over files, users and its own processes, and ports below 1024.
/// Others would circumvent walls, such as reading any process's memory (CAP_PERFMON).
const KEPT: [libc::c_ulong; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 10];
/// Threads allowed per process, for the user's other programs and those of the command.
const ROOM: u64 = 8;
/// More than any kernel knows.
const CAPABILITIES: libc::c_ulong = 64;

/// The walls of one start, ready to apply.
#[derive(Debug)]
pub(crate) struct Entry {
    limits: Vec<(Resource, u64)>,
    processes: Option<u64>,
    mounts: Option<Mounts>,
    ruleset: Option<OwnedFd>,
    filter: &'static [Instruction],
    handed_over: Option<File>,
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

impl Entry {
    /// An entry with only limits.
    pub(super) fn new(limits: &Limits) -> Self {
        let limits_of_tree = limits.processes;
        let set = [
            (libc::RLIMIT_CORE, Some(0)),
            (libc::RLIMIT_DATA, limits.memory),
            (libc::RLIMIT_FSIZE, limits.file_size),
            (libc::RLIMIT_NOFILE, limits.open_files),
            (libc::RLIMIT_CPU, limits.cpu.map(|time| time.as_secs().max(1))),
        ];
        let limits = set.into_iter().filter_map(|(resource, limit)| Some((resource, limit?))).collect();
        Self { limits, processes: limits_of_tree, mounts: None, ruleset: None, filter: &[], handed_over: None }
    }

    /// Adds a Landlock ruleset and a filter of system calls.
    pub(super) fn restrict(&mut self, ruleset: Option<OwnedFd>, filter: &'static [Instruction]) {
        (self.ruleset, self.filter) = (ruleset, filter);
    }

    /// Sets the mount view.
    pub(super) fn remount(&mut self, mounts: Option<Mounts>) {
        self.mounts = mounts;
    }

    /// Adds a file that the program inherits, under the number that it has now.
    pub(super) fn inherit_file(&mut self, file: Option<File>) {
        self.handed_over = file;
    }

    /// Applies all restrictions to this process. Makes system calls only: it allocates nothing and takes no lock, so it
    /// may run between fork and exec.
    ///
    /// # Errors
    /// The kernel's error. Restrictions applied before it stay.
    pub(crate) fn enter(&self) -> io::Result<()> {
        // SAFETY: plain system calls on descriptors and memory that `self` owns; the structures are values of
        // this frame and outlive the calls that read them.
        unsafe {
            for &(resource, limit) in &self.limits {
                let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                check(libc::getrlimit(resource, &raw mut now))?;
                // The limit cannot be set above the hard limit.
                let limit = now.rlim_max.min(limit);
                check(libc::setrlimit(resource, &libc::rlimit { rlim_cur: limit, rlim_max: limit }))?;
            }
            if let Some(processes) = self.processes {
                limit_user(processes)?;
            }
            if let Some(file) = &self.handed_over {
                check(libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0))?;
            }
            // Mounts come first: the later restrictions forbid mounting.
            if let Some(mounts) = &self.mounts {
                mounts.enter()?;
            }
            if self.ruleset.is_none() && self.filter.is_empty() {
                return Ok(());
            }
            for capability in (0..CAPABILITIES).filter(|capability| !KEPT.contains(capability)) {
                // Fails if the process has no capabilities anyway.
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
            // Set-user-ID programs would leave the sandbox; both calls below require this.
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            if let Some(ruleset) = &self.ruleset {
                check(libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0))?;
            }
            if let Ok(len @ 1..) = u16::try_from(self.filter.len()) {
                let program = libc::sock_fprog { len, filter: self.filter.as_ptr().cast_mut() };
                let install = libc::SECCOMP_SET_MODE_FILTER;
                check(libc::syscall(libc::SYS_seccomp, install, 0, &raw const program))?;
            }
            Ok(())
        }
    }
}

/// A second line against trees that grow faster than they are counted: the kernel counts the processes of the user, so the
/// limit leaves room for all that run now. It does not hold for root.
///
/// # Safety
/// Between fork and exec.
unsafe fn limit_user(processes: u64) -> io::Result<()> {
    // SAFETY: plain system calls on values of this frame; an all-zero `sysinfo` is a valid value.
    unsafe {
        let mut system: libc::sysinfo = std::mem::zeroed();
        check(libc::sysinfo(&raw mut system))?;
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        check(libc::getrlimit(libc::RLIMIT_NPROC, &raw mut now))?;
        let limit = now.rlim_max.min(u64::from(system.procs).saturating_add(processes.saturating_mul(ROOM)));
        check(libc::setrlimit(libc::RLIMIT_NPROC, &libc::rlimit { rlim_cur: limit, rlim_max: limit }))
    }
}

fn check(result: impl Into<i64>) -> io::Result<()> {
    if result.into() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `MOUNT_ATTR_RDONLY` of mount_setattr(2)
const READ_ONLY: u64 = 1;
/// `AT_RECURSIVE`: with all mounts below.
const RECURSIVE: libc::c_int = 0x8000;

/// A mount view with few writable places, ready to apply, for a process that may mount:
/// root, unless a container forbids it. Others need bubblewrap.
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
    /// The mount view of a profile that protects files inside its workspace; `None` for profiles that need no
    /// mounts. The command continues in `directory`, an absolute path.
    ///
    /// # Errors
    /// `InvalidInput` for a path with a zero byte.
    pub(super) fn of(sandbox: &Sandbox, scratch: &Path, directory: &Path) -> io::Result<Option<Self>> {
        if !sandbox.profile.restrictions().contains(&Restriction::Protected) {
            return Ok(None);
        }
        let areas = sandbox.profile.grants().iter().filter_map(|grant| match grant {
            Grant::Write(area) if *area != Area::Devices => Some(*area),
            _ => None,
        });
        let mut writable: Vec<PathBuf> = areas.flat_map(|area| landlock_rules::paths(area, sandbox, scratch)).collect();
        let root = sandbox.root.canonicalize().unwrap_or_else(|_| sandbox.root.clone());
        let protected = existing_in(&root, &sandbox.settings.protected);
        // A mount point cannot be renamed.
        writable.extend(ancestor_folders(&root, &protected));
        Ok(Some(Self {
            writable: c_strings(writable.iter().filter(|path| can_be_written(path)))?,
            protected: c_strings(protected.iter())?,
            directory: c_string(directory)?,
        }))
    }

    /// A view without writable places, to test whether views can be made.
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
            // Writable places become separate mounts first, because read-only is an attribute of mounts.
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
            // The current directory still belongs to the old view.
            check(libc::chdir(self.directory.as_ptr()))
        }
    }
}

/// Makes a place a separate mount, with everything mounted below it.
///
/// # Safety
/// In a mount namespace that nobody else uses.
unsafe fn bind(place: &CStr) -> io::Result<()> {
    let flags = libc::MS_BIND | libc::MS_REC;
    // SAFETY: the string outlives the call.
    check(unsafe { libc::mount(place.as_ptr(), place.as_ptr(), ptr::null(), flags, ptr::null()) })
}

/// Changes attributes of a mount.
///
/// # Safety
/// In a mount namespace that nobody else uses.
unsafe fn set_attributes(place: &CStr, set: u64, clear: u64, flags: libc::c_int) -> io::Result<()> {
    let attributes = Attributes { set, clear, propagation: 0, user_namespace: 0 };
    let (attributes, size) = (&raw const attributes, size_of::<Attributes>());
    // SAFETY: the string and the structure outlive the call, which gets the structure's size.
    let result =
        unsafe { libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, place.as_ptr(), flags, attributes, size) };
    check(result)
}

/// Whether the place exists on a writable mount. The sandbox must not make a read-only place writable.
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
