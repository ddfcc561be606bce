//! Enforces the sandboxes described in [`toolwright_core::sandbox`]: built before the fork, applied between fork and
//! exec.
//!
//! There are two mechanisms. *Landlock and seccomp* work in the process itself and need no privileges and no extra
//! process, but cannot exclude a file from a writable folder, nor tell a chmod(2) inside the workspace
//! from one outside. Mounts can: a process with mount privileges makes them itself; otherwise
//! *bubblewrap* does, if installed, with an extra process and namespaces.
//! [`toolwright_core::sandbox::enforcement`] picks the mechanism that leaves fewer gaps. Under bubblewrap, SIGTERM
//! ends the command at once, and a command killed by signal N ends with exit code 128 + N.
//!
//! Children inherit all restrictions; nothing inside the sandbox can lift them.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::duration;
use toolwright_core::sandbox::{Enforcement, Mechanism, Restriction, SandboxProfile, enforcement};
use toolwright_core::setting::TimeSpan;

#[cfg(target_os = "linux")]
pub(crate) use enter::Entry;
#[cfg(target_os = "linux")]
pub(crate) use placeholders::Placeholders;
#[cfg(target_os = "linux")]
pub use support::support;

#[cfg(target_os = "linux")]
mod bubblewrap;
#[cfg(target_os = "linux")]
mod enter;
mod landlock_rules;
#[cfg(target_os = "linux")]
mod placeholders;
#[cfg(target_os = "linux")]
mod seccomp;
#[cfg(target_os = "linux")]
mod support;

/// Why the names of configuration are not all held.
#[cfg(target_os = "linux")]
const NAMES_OPEN: &str = "a file of Toolwright's configuration is a link, or is missing together with its folder: a command can put \
                          another there";

/// Empty: this system has no sandbox mechanism.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) struct Entry;

/// Empty: this system holds no names.
#[cfg(not(target_os = "linux"))]
#[derive(Debug, Default)]
pub(crate) struct Placeholders;

/// Returns empty support: no mechanism is implemented for this system.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn support() -> &'static toolwright_core::sandbox::SandboxSupport {
    use toolwright_core::sandbox::SandboxSupport;
    const NONE: SandboxSupport = SandboxSupport { landlock: 0, seccomp: false, mounts: false, bubblewrap: false };
    &NONE
}

/// The sandbox of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// The profile to enforce.
    pub profile: SandboxProfile,
    /// The workspace root. If it does not exist, nothing is granted.
    pub root: PathBuf,
    /// The operator's sandbox settings.
    pub settings: SandboxConfig,
}

/// What the operator has set for all sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// Refuses to start a process that this machine cannot sandbox completely. With `false` it starts, and `doctor`, a
    /// warning and the extras of each result report what is not enforced.
    pub strict: bool,
    /// Files and folders that every profile may read and run programs from. Only `pure` needs it. Relative to the
    /// workspace root; `~/` and `${VAR}` are filled in.
    // Absolute here.
    #[schemars(with = "Vec<String>", extend("x-variables" = "path"))]
    pub read: Vec<PathBuf>,
    /// Files and folders that `workspace` and `network` may write besides the workspace, like the caches of
    /// package managers. Written as in `read`.
    #[schemars(with = "Vec<String>", extend("x-variables" = "path"))]
    pub write: Vec<PathBuf>,
    /// Files and folders, absolute, that decide what runs, besides those known by name.
    #[serde(skip)]
    pub protected: Vec<PathBuf>,
    /// Limits of processes in a sandbox.
    pub limits: Limits,
}

/// Resource limits of sandboxed commands. `file_size`, `open_files` and `cpu` are inherited unless set.
// No process writes a core dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory, in bytes: of all processes of one start together, and the most that a single one may allocate.
    // Shared memory and files are not counted; what a single one may allocate is `RLIMIT_DATA`.
    #[schemars(with = "u64", range(min = 1_048_576))]
    pub memory: Option<u64>,
    /// Processes of one start.
    #[schemars(with = "u64", range(min = 1))]
    pub processes: Option<u64>,
    /// Largest file that a process may write, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size: Option<u64>,
    /// Files and sockets that a process may have open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16))]
    pub open_files: Option<u64>,
    /// CPU time, in whole seconds.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    #[schemars(with = "Option<TimeSpan>")]
    pub cpu: Option<Duration>,
}

impl Default for Limits {
    /// 4 GiB and 512 processes.
    fn default() -> Self {
        Self { memory: Some(4 << 30), processes: Some(512), file_size: None, open_files: None, cpu: None }
    }
}

impl Limits {
    /// Describes the limits of each start and what enforces them, for the operator.
    #[must_use]
    pub fn of_trees(&self) -> String {
        if cfg!(not(target_os = "linux")) {
            return "limits: none on this system".to_owned();
        }
        let processes = self.processes.map(|most| format!("{most} processes"));
        let memory = self.memory.map(|most| format!("{} MiB of memory", most >> 20));
        let all: Vec<String> = processes.into_iter().chain(memory).collect();
        let by = match super::cgroup::in_use() {
            Ok(files) => format!("by control groups ({files})"),
            Err(why) => format!("counted ten times a second, RLIMIT_DATA and RLIMIT_NPROC (no control groups: {why})"),
        };
        format!("limits: {} for each start, {by}", all.join(" and "))
    }
}

/// Everything that one start needs, made before the fork.
#[derive(Debug)]
pub(crate) struct PreparedSandbox {
    /// Which parts of the profile are enforced, and how.
    pub(crate) enforcement: Enforcement,
    /// The sandbox's temporary folder; `None` without a mechanism.
    pub(crate) scratch: Option<Scratch>,
    /// Program and arguments that come before the command's own.
    pub(crate) wrapper: Vec<OsString>,
    /// Restrictions that the child applies between fork and exec.
    pub(crate) entry: Option<Entry>,
    /// Placeholders for configuration files that do not exist.
    pub(crate) placeholders: Placeholders,
}

impl Sandbox {
    /// How the profile is enforced on this machine.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        enforcement(self.profile, support())
    }

    /// Builds the sandbox for a start of `program`, a path, in `directory`. Touches the disk.
    ///
    /// # Errors
    /// The kernel refuses a mechanism that it reported as available. The command never starts less protected than
    /// reported.
    pub(crate) fn prepare(&self, program: &Path, directory: Option<&Path>) -> io::Result<PreparedSandbox> {
        let enforcement = self.enforcement();
        let mut prepared = PreparedSandbox {
            enforcement,
            scratch: None,
            wrapper: Vec::new(),
            entry: None,
            placeholders: Placeholders::default(),
        };
        if prepared.enforcement.mechanism == Mechanism::None {
            return Ok(prepared);
        }
        let scratch = Scratch::new()?;
        self.build(program, directory, scratch.path(), &mut prepared)?;
        prepared.scratch = Some(scratch);
        Ok(prepared)
    }

    #[cfg(target_os = "linux")]
    fn build(
        &self,
        program: &Path,
        directory: Option<&Path>,
        scratch: &Path,
        prepared: &mut PreparedSandbox,
    ) -> io::Result<()> {
        let filter = seccomp::program(self.profile)?;
        let mut entry = Entry::new(&self.settings.limits);
        self.hold_names(prepared)?;
        let directory = std::env::current_dir()?.join(directory.unwrap_or(Path::new("")));
        if prepared.enforcement.mechanism == Mechanism::Bubblewrap {
            let filter = seccomp::as_file(filter)?;
            prepared.wrapper = bubblewrap::arguments(self, program, scratch, &directory, filter.as_ref());
            entry.inherit_file(filter);
        } else {
            entry.restrict(landlock_rules::ruleset(self, program, scratch)?, filter);
            if support().mounts {
                entry.remount(enter::Mounts::of(self, scratch, &directory)?);
            }
        }
        prepared.entry = Some(entry);
        Ok(())
    }

    /// Creates placeholders for missing configuration files, if mounts protect the existing ones.
    #[cfg(target_os = "linux")]
    fn hold_names(&self, prepared: &mut PreparedSandbox) -> io::Result<()> {
        let enforcement = &mut prepared.enforcement;
        let Some(at) = enforcement.enforced.iter().position(|(wall, _)| *wall == Restriction::Protected) else {
            return Ok(());
        };
        let root = self.root.canonicalize().unwrap_or_else(|_| self.root.clone());
        let names = crate::protected::configuration_in(&root, &self.settings.protected);
        let (placeholders, complete) = Placeholders::hold(&names)?;
        prepared.placeholders = placeholders;
        if !complete {
            enforcement.enforced.remove(at);
            enforcement.not_enforced.push((Restriction::Protected, NAMES_OPEN));
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_self, reason = "the signature is that of Linux")]
    fn build(&self, _: &Path, _: Option<&Path>, _: &Path, _: &mut PreparedSandbox) -> io::Result<()> {
        Ok(())
    }
}

/// Tries to remove it, and the wait between them: a tree that is being killed may still write.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// A folder that only the user may enter, removed in the background when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> io::Result<Self> {
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("toolwright-").permissions(private).tempdir()?;
        // Canonical, because rules apply to the real path.
        folder.keep().canonicalize().map(Self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        let remove = move || {
            for _ in 0..TRIES {
                match std::fs::remove_dir_all(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => std::thread::sleep(PAUSE),
                    _ => return,
                }
            }
            tracing::warn!(path = %path.display(), "a temporary folder could not be removed");
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
