//! Supervised child processes, for commands and for MCP servers on stdio.
//!
//! A child is a process tree: the command and all its descendants. The tree ends when the command ends (including its
//! background processes), when the [`SupervisedChild`] is dropped, and, on Linux, when this process dies, even by
//! SIGKILL. This covers processes that called setsid(2).

mod cgroup;
pub mod enforce;
#[cfg(not(target_os = "linux"))]
mod group;
pub mod nesting;
mod peer_process;
mod program;
pub mod protected;
mod tree;
#[cfg(target_os = "linux")]
mod watcher;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio_util::task::AbortOnDropHandle;
use toolwright_core::sandbox::{Enforcement, SandboxProfile};

#[cfg(not(target_os = "linux"))]
use group::{LifetimeGuard, harden, spawn as spawn_below};
#[cfg(target_os = "linux")]
use watcher::{LifetimeGuard, harden, spawn as spawn_below};

use enforce::{Placeholders, PreparedSandbox, Sandbox, Scratch};

use cgroup::TreeLimits;
pub use cgroup::use_control_groups;
use tree::Tree;

pub use nesting::{DEPTH_VARIABLE, is_nested, is_nested_process};
pub use peer_process::peer_process;
pub use program::{SpawnError, candidates, find_program, withheld_by_default};
pub use tree::ExceededLimit;

/// Time limit for waiting on a killed tree to be gone.
const KILL_BOUND: Duration = Duration::from_secs(8);

/// Keeps other processes of the same user from reading this process's memory and environment, which hold keys and
/// tokens: otherwise `cat /proc/$PPID/environ` would show them to every command that a tool runs.
///
/// Covers this process and its forks, not the programs they execute. Call it before the first
/// child is started. It disables core dumps and debuggers, except for root. Does nothing on systems other than Linux.
pub fn harden_self() {
    harden();
}

/// Standard input of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stdin {
    /// Empty: end of file at once.
    #[default]
    Null,
    /// Data written to [`SupervisedChild::stdin`].
    Piped,
}

/// Destination of the command's output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// A pipe each.
    #[default]
    Separate,
    /// Both into the pipe of standard output, in write order.
    Merged,
}

/// The file in a command's temporary folder in which it leaves something.
const LEFT: &str = ".left";

/// A command to be run under supervision.
#[derive(Debug)]
pub struct SupervisedCommand {
    program: OsString,
    arguments: Vec<OsString>,
    variables: Vec<Variable>,
    directory: Option<PathBuf>,
    stdin: Stdin,
    output: Output,
    sandbox: Option<Sandbox>,
    leaves: Option<OsString>,
}

/// A change of the inherited environment.
#[derive(Debug)]
enum Variable {
    Set(OsString, OsString),
    Removed(OsString),
    AllRemoved,
}

impl Variable {
    /// The `PATH` that it sets.
    fn path(&self) -> Option<&OsStr> {
        match self {
            Self::Set(name, value) if name == "PATH" => Some(value),
            _ => None,
        }
    }
}

impl SupervisedCommand {
    /// A command for `program`, looked up in `PATH` unless it contains a slash. It inherits the environment and the
    /// working directory; its standard input is empty.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            directory: None,
            stdin: Stdin::default(),
            output: Output::default(),
            sandbox: None,
            leaves: None,
        }
    }

    /// Appends arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments.extend(args.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Removes inherited variables whose names match one of the patterns (see
    /// [`withheld_by_default`]). Variables set after this stay.
    #[must_use]
    pub fn withhold(mut self, patterns: &[String]) -> Self {
        self.variables.extend(program::matching(patterns).map(Variable::Removed));
        self
    }

    /// Sets variables in addition to the inherited ones.
    #[must_use]
    pub fn envs(mut self, variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>) -> Self {
        let set = variables.into_iter().map(|(name, value)| (name.as_ref().to_owned(), value.as_ref().to_owned()));
        self.variables.extend(set.map(|(name, value)| Variable::Set(name, value)));
        self
    }

    /// Removes one inherited variable.
    #[must_use]
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.variables.push(Variable::Removed(name.as_ref().to_owned()));
        self
    }

    /// Inherits no variables and removes those set so far.
    #[must_use]
    pub fn env_clear(mut self) -> Self {
        self.variables.push(Variable::AllRemoved);
        self
    }

    /// Sets the working directory. A relative program path is looked up from there. In the sandbox profile
    /// `pure` the command runs in its temporary folder instead.
    #[must_use]
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sets the standard input.
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Sets the destination of output.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Runs it and its descendants in a sandbox. `TMPDIR` then names a private folder.
    #[must_use]
    pub fn sandbox(mut self, sandbox: Sandbox) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// Names in this variable a file that the command may write, for [`SupervisedChild::read_output_file`].
    #[must_use]
    pub fn output_file(mut self, variable: impl Into<OsString>) -> Self {
        self.leaves = Some(variable.into());
        self
    }

    /// Like [`SupervisedCommand::spawn`], but on a blocking thread, so that runtime workers stay free.
    /// If the future is dropped, the command is not started, or killed if it was.
    ///
    /// # Errors
    /// As [`SupervisedCommand::spawn`].
    pub async fn spawn_blocking_thread(self) -> Result<SupervisedChild, SpawnError> {
        let program = self.program.to_string_lossy().into_owned();
        let started = AbortOnDropHandle::new(tokio::task::spawn_blocking(move || self.spawn()));
        started.await.unwrap_or_else(|ended| Err(SpawnError::Failed { program, source: io::Error::other(ended) }))
    }

    /// Starts the command. Must be called inside a Tokio runtime. Takes a millisecond or more, because fork copies the
    /// page tables; with a sandbox it touches the disk.
    ///
    /// # Errors
    /// [`SpawnError`] says which precondition is missing, with a remedy; nothing is left running.
    pub fn spawn(mut self) -> Result<SupervisedChild, SpawnError> {
        let mut prepared = self.prepare()?;
        let mut scratch = prepared.as_mut().and_then(|prepared| prepared.scratch.take());
        if let Some(variable) = self.leaves.take() {
            let folder = match scratch.take() {
                Some(folder) => folder,
                None => Scratch::new().map_err(|error| {
                    SpawnError::explain(&self.program, self.directory.as_deref(), SandboxProfile::Full, error)
                })?,
            };
            self.variables.push(Variable::Set(variable, folder.path().join(LEFT).into()));
            scratch = Some(folder);
        }
        let mut command = self.command(prepared.as_ref());
        let profile = self.sandbox.as_ref().map_or(SandboxProfile::Full, |sandbox| sandbox.profile);
        let explain = |error: io::Error| SpawnError::explain(&self.program, self.directory.as_deref(), profile, error);
        command.stdin(match self.stdin {
            Stdin::Null => Stdio::null(),
            Stdin::Piped => Stdio::piped(),
        });
        let merged = match self.output {
            Output::Separate => {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                None
            }
            Output::Merged => {
                let (reader, writer) = io::pipe().map_err(explain)?;
                command.stdout(writer.try_clone().map_err(explain)?).stderr(writer);
                Some(std::process::ChildStdout::from(OwnedFd::from(reader)))
            }
        };
        let merged = merged.map(ChildStdout::from_std).transpose().map_err(explain)?;
        let mut limits = TreeLimits::default();
        let (entry, enforcement, placeholders) = match prepared {
            Some(PreparedSandbox { entry, enforcement, placeholders, .. }) => {
                if let Some(Sandbox { settings, .. }) = &self.sandbox {
                    limits = TreeLimits { processes: settings.limits.processes, memory: settings.limits.memory };
                }
                (entry, Some(enforcement), placeholders)
            }
            None => (None, None, Placeholders::default()),
        };
        let leaf = cgroup::leaf(limits).map(Arc::new);
        let (mut child, lifeline) = spawn_below(command, entry, placeholders, leaf.clone()).map_err(explain)?;
        Ok(SupervisedChild {
            stdin: child.stdin.take(),
            stdout: merged.or_else(|| child.stdout.take()),
            stderr: child.stderr.take(),
            enforcement,
            tree: Tree::new(child.id(), lifeline, limits, leaf),
            child,
            scratch,
        })
    }

    /// Builds the sandbox. Replaces the program with a path, and sets the directory.
    fn prepare(&mut self) -> Result<Option<PreparedSandbox>, SpawnError> {
        let Some(sandbox) = self.sandbox.as_ref().filter(|sandbox| sandbox.profile != SandboxProfile::Full) else {
            return Ok(None);
        };
        let profile = sandbox.profile;
        if let (true, Some(gaps)) = (sandbox.settings.strict, sandbox.enforcement().gaps()) {
            return Err(SpawnError::Unenforced { gaps });
        }
        let name = self.program.to_string_lossy().into_owned();
        let found = match self.variables.iter().rev().find_map(Variable::path) {
            Some(path) => program::find_in(path, &self.program, self.directory.as_deref()),
            None => find_program(&self.program, self.directory.as_deref()),
        };
        let program = found.ok_or_else(|| {
            SpawnError::explain(&self.program, self.directory.as_deref(), profile, io::ErrorKind::NotFound.into())
        })?;
        let directory = if profile == SandboxProfile::Pure { None } else { self.directory.as_deref() };
        let prepared = sandbox.prepare(&program, directory).map_err(|source| SpawnError::Sandbox {
            program: name,
            profile,
            source,
        })?;
        if let (true, Some(gaps)) = (sandbox.settings.strict, prepared.enforcement.gaps()) {
            return Err(SpawnError::Unenforced { gaps });
        }
        self.program = program.into();
        if let Some(scratch) = &prepared.scratch {
            if profile == SandboxProfile::Pure {
                self.directory = Some(scratch.path().to_owned());
            }
            for name in ["TMPDIR", "TMP", "TEMP"] {
                self.variables.push(Variable::Set(name.into(), scratch.path().into()));
            }
        }
        Ok(Some(prepared))
    }

    fn command(&self, prepared: Option<&PreparedSandbox>) -> Command {
        let wrapper = prepared.map_or(&[][..], |prepared| &prepared.wrapper);
        let line: Vec<&OsString> = wrapper.iter().chain([&self.program]).chain(&self.arguments).collect();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]);
        for variable in &self.variables {
            match variable {
                Variable::Set(name, value) => command.env(name, value),
                Variable::Removed(name) => command.env_remove(name),
                Variable::AllRemoved => command.env_clear(),
            };
        }
        // Set last, so that no configured variable overrides it.
        command.env(DEPTH_VARIABLE, nesting::depth().saturating_add(1).to_string());
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }
}

/// A running tree. Dropping it kills the tree; the kill is not waited for.
#[derive(Debug)]
pub struct SupervisedChild {
    /// The command's standard input, when it is [`Stdin::Piped`]. Drop it to give end of file.
    pub stdin: Option<ChildStdin>,
    /// The command's standard output. Ends when the command does, even if another process holds the pipe.
    pub stdout: Option<ChildStdout>,
    /// The command's standard error; `None` for [`Output::Merged`].
    pub stderr: Option<ChildStderr>,
    /// Which parts of its sandbox are enforced; `None` without a sandbox.
    pub enforcement: Option<Enforcement>,
    child: Child,
    tree: Arc<Tree>,
    /// Dropped last, after the end of the tree was requested.
    scratch: Option<Scratch>,
}

impl SupervisedChild {
    /// Process id of the tree's root, for logs. On Linux this is the guardian, whose child is the watcher of the
    /// command. `None` after the tree was waited for.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the end of the command and its tree. Cancel-safe; may be called again. Read the
    /// output meanwhile: a full pipe keeps the command from ending.
    ///
    /// # Errors
    /// The operating system's error; none is known to occur.
    pub async fn wait(&mut self) -> io::Result<Exit> {
        let status = self.child.wait().await?;
        self.tree.ended();
        Ok(status.into())
    }

    /// Reads at most `max + 1` bytes of the file named by [`SupervisedCommand::output_file`], after the command has ended.
    /// `None` if there is none, or if it is not an ordinary file.
    pub async fn read_output_file(&self, max: usize) -> Option<Vec<u8>> {
        let path = self.scratch.as_ref()?.path().join(LEFT);
        let read = move || {
            use std::io::Read as _;
            use std::os::unix::fs::OpenOptionsExt as _;

            use rustix::fs::OFlags;
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
            let flags = i32::try_from(flags.bits()).ok()?;
            let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
            let mut left = Vec::new();
            file.metadata().ok().filter(std::fs::Metadata::is_file)?;
            file.take(max as u64 + 1).read_to_end(&mut left).ok()?;
            Some(left)
        };
        tokio::task::spawn_blocking(read).await.ok()?
    }

    /// Closes standard input, sends SIGTERM to the command's process group, kills the tree after `grace`, and waits for
    /// its end, at most `grace` and some seconds.
    ///
    /// # Errors
    /// The operating system's error, or `TimedOut` when a process in the tree cannot be killed.
    pub async fn terminate(&mut self, grace: Duration) -> io::Result<Exit> {
        self.stdin = None;
        self.tree.request_end();
        if let Ok(ended) = tokio::time::timeout(grace, self.wait()).await {
            return ended;
        }
        self.kill_tree();
        tokio::time::timeout(KILL_BOUND, self.wait()).await?
    }

    /// Kills the whole tree at once, without waiting: see [`SupervisedChild::wait`].
    pub fn kill_tree(&mut self) {
        self.tree.kill();
    }

    /// The limit for whole trees that it went over, if it was ended for that.
    #[must_use]
    pub fn exceeded(&self) -> Option<ExceededLimit> {
        self.tree.exceeded()
    }
}

impl Drop for SupervisedChild {
    fn drop(&mut self) {
        self.tree.kill();
    }
}

/// How a command ended: exactly one of the two fields is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code.
    pub code: Option<i32>,
    /// Signal that killed it.
    pub signal: Option<i32>,
}

impl Exit {
    /// Whether the command ended with code 0.
    #[must_use]
    pub fn success(self) -> bool {
        self.code == Some(0)
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: status.signal() }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "killed by signal {signal}"),
            (None, None) => f.write_str("ended in an unknown way"),
        }
    }
}
