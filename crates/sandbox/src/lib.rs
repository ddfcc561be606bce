//! Supervised child processes, for commands and for MCP servers on stdio.
//!
//! A child is a tree: the command and whatever it starts. The tree ends with the command (what a command
//! leaves in the background ends when the command does), when the [`SupervisedChild`] is dropped, and, on
//! Linux, when this process dies, even by SIGKILL; processes that called setsid(2) included.

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
use group::{Lifeline, harden, spawn as spawn_below};
#[cfg(target_os = "linux")]
use watcher::{Lifeline, harden, spawn as spawn_below};

use enforce::{Placeholders, Prepared, Sandbox, Scratch};

pub use cgroup::use_control_groups;
use tree::{Tree, TreeLimits};

pub use nesting::{DEPTH_VARIABLE, is_nested, is_nested_process};
pub use peer_process::peer_process;
pub use program::{SpawnError, candidates, find_program, withheld_by_default};
pub use tree::Exceeded;

/// How long a killed tree may take to be gone before its end is no longer waited for.
const KILL_BOUND: Duration = Duration::from_secs(8);

/// Keeps other processes of the same user from reading this one's memory and environment, where keys and
/// tokens are: without it `cat /proc/$PPID/environ` shows them to every command that a tool runs.
///
/// Holds for this process and its forks, not for the programs they execute; call it before the first
/// child is started. It costs core dumps and debuggers: neither is possible any more, except for root,
/// whom nothing is kept from. On systems other than Linux nothing happens.
pub fn harden_self() {
    harden();
}

/// What the command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stdin {
    /// Nothing: end of file at once.
    #[default]
    Null,
    /// What is written to [`SupervisedChild::stdin`].
    Piped,
}

/// Where the command's two output streams go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// A pipe each.
    #[default]
    Separate,
    /// Both into the pipe of standard output, in the order in which they are written.
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
    /// Runs `program`, looked up in `PATH` unless it contains a slash. Inherits the environment and the
    /// working directory; reads nothing.
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

    /// Takes the inherited variables away whose names match one of the patterns (see
    /// [`withheld_by_default`]). Variables set after this stay.
    #[must_use]
    pub fn withhold(mut self, patterns: &[String]) -> Self {
        self.variables.extend(program::matching(patterns).map(Variable::Removed));
        self
    }

    /// Sets variables over the inherited ones.
    #[must_use]
    pub fn envs(mut self, variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>) -> Self {
        let set = variables.into_iter().map(|(name, value)| (name.as_ref().to_owned(), value.as_ref().to_owned()));
        self.variables.extend(set.map(|(name, value)| Variable::Set(name, value)));
        self
    }

    /// Takes one inherited variable away.
    #[must_use]
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.variables.push(Variable::Removed(name.as_ref().to_owned()));
        self
    }

    /// Inherits no variable and forgets those set so far.
    #[must_use]
    pub fn env_clear(mut self) -> Self {
        self.variables.push(Variable::AllRemoved);
        self
    }

    /// Runs in this directory. A relative program path is looked up from there. In the sandbox profile
    /// `pure`, which has no other place, the command runs in its temporary folder.
    #[must_use]
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// What it reads.
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Where it writes.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Keeps it, and all that it starts, in a sandbox. `TMPDIR` then names a folder of its own.
    #[must_use]
    pub fn sandbox(mut self, sandbox: Sandbox) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// Names in this variable a file that the command may write, for [`SupervisedChild::left`].
    #[must_use]
    pub fn leaves(mut self, variable: impl Into<OsString>) -> Self {
        self.leaves = Some(variable.into());
        self
    }

    /// As [`SupervisedCommand::spawn`], on a thread that may wait: a worker of the runtime has others to serve meanwhile.
    /// Once nobody waits for it any more it is not started, or killed if it has been.
    ///
    /// # Errors
    /// As there.
    pub async fn spawn_aside(self) -> Result<SupervisedChild, SpawnError> {
        let program = self.program.to_string_lossy().into_owned();
        let started = AbortOnDropHandle::new(tokio::task::spawn_blocking(move || self.spawn()));
        started.await.unwrap_or_else(|ended| Err(SpawnError::Failed { program, source: io::Error::other(ended) }))
    }

    /// Starts it. Must be called inside a Tokio runtime. Takes a millisecond and more, since the memory's tables are copied
    /// for the new process; with a sandbox it touches the disk.
    ///
    /// # Errors
    /// [`SpawnError`] tells what is missing apart, with a remedy; nothing is left running.
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
            Some(Prepared { entry, enforcement, placeholders, .. }) => {
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

    /// Builds the sandbox. What it changes is the program, which becomes a path, and the directory.
    fn prepare(&mut self) -> Result<Option<Prepared>, SpawnError> {
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

    fn command(&self, prepared: Option<&Prepared>) -> Command {
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
        // Last: nothing that is configured overrides it.
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
    /// Takes what the command reads, when it is [`Stdin::Piped`]. Drop it to give end of file.
    pub stdin: Option<ChildStdin>,
    /// What the command writes. Ends when the command does, whoever else holds the pipe.
    pub stdout: Option<ChildStdout>,
    /// What the command writes to standard error; `None` for [`Output::Merged`].
    pub stderr: Option<ChildStderr>,
    /// What holds of its sandbox, and what does not; `None` without one.
    pub enforcement: Option<Enforcement>,
    child: Child,
    tree: Arc<Tree>,
    /// Dropped last, when the end of the tree has been asked for.
    scratch: Option<Scratch>,
}

impl SupervisedChild {
    /// Process id of the tree's root, for logs: on Linux that of the guardian, whose child is the watcher of the
    /// command.
    /// `None` once it has been waited for.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the end of the command and of its tree. Cancel-safe; may be called again. Read the
    /// output meanwhile: a full pipe keeps the command from ending.
    ///
    /// # Errors
    /// Of the operating system; none is known to occur.
    pub async fn wait(&mut self) -> io::Result<Exit> {
        let status = self.child.wait().await?;
        self.tree.ended();
        Ok(status.into())
    }

    /// What the command, which has ended, wrote into the file of [`SupervisedCommand::leaves`], `max` bytes and one more at
    /// most; `None`: nothing. What it put there that is no ordinary file is not followed.
    pub async fn left(&self, max: usize) -> Option<Vec<u8>> {
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

    /// Asks the command's process group to end (SIGTERM), kills the tree after `grace`, and waits for its
    /// end, at most `grace` and some seconds. Standard input is closed first.
    ///
    /// # Errors
    /// Of the operating system, or `TimedOut` when something in the tree cannot be killed.
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
    pub fn exceeded(&self) -> Option<Exceeded> {
        self.tree.exceeded()
    }
}

impl Drop for SupervisedChild {
    fn drop(&mut self) {
        self.tree.kill();
    }
}

/// How a command ended: exactly one of the two is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code.
    pub code: Option<i32>,
    /// Signal that killed it.
    pub signal: Option<i32>,
}

impl Exit {
    /// Whether it ended with code 0.
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
