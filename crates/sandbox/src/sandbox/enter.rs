//! What the child does between fork and exec: system calls on what was made before the fork.
#![expect(unsafe_code, reason = "between fork and exec only raw system calls are allowed")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::Limits;
use super::mounts::Mounts;
use super::seccomp::Instruction;

/// Capabilities that root keeps: those over files, users and its own processes, and ports below 1024.
/// Others are ways around walls; reading any process's memory (CAP_PERFMON) is one.
const KEPT: [libc::c_ulong; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 10];
/// Threads that the user's other programs, and those of the command, may start besides its processes, for each of these.
const ROOM: u64 = 8;
/// More than any kernel knows.
const CAPABILITIES: libc::c_ulong = 64;

/// The walls of one start, ready to be put on.
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
    /// Limits alone.
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

    /// Adds another view of the file system.
    pub(super) fn remount(&mut self, mounts: Option<Mounts>) {
        self.mounts = mounts;
    }

    /// Adds a file that the program inherits, under the number that it has now.
    pub(super) fn hand_over(&mut self, file: Option<File>) {
        self.handed_over = file;
    }

    /// Puts all of it on. Makes system calls only: it allocates nothing and takes no lock, so it may run
    /// between fork and exec.
    ///
    /// # Errors
    /// Of the kernel. What was put on by then stays on.
    pub(crate) fn enter(&self) -> io::Result<()> {
        // SAFETY: plain system calls on descriptors and memory that `self` owns; the structures are values of
        // this frame and outlive the calls that read them.
        unsafe {
            for &(resource, limit) in &self.limits {
                let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                check(libc::getrlimit(resource, &raw mut now))?;
                // Above the hard limit there is nothing to be had.
                let limit = now.rlim_max.min(limit);
                check(libc::setrlimit(resource, &libc::rlimit { rlim_cur: limit, rlim_max: limit }))?;
            }
            if let Some(processes) = self.processes {
                limit_user(processes)?;
            }
            if let Some(file) = &self.handed_over {
                check(libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0))?;
            }
            // First of all: what follows forbids it.
            if let Some(mounts) = &self.mounts {
                mounts.enter()?;
            }
            if self.ruleset.is_none() && self.filter.is_empty() {
                return Ok(());
            }
            for capability in (0..CAPABILITIES).filter(|capability| !KEPT.contains(capability)) {
                // Refused to whoever has none anyway.
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
            // Programs that run as another user would leave the sandbox; both calls below ask for this.
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
