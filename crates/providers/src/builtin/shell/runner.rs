//! One run, from the command line to the result.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;
use tokio::time::Instant;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::sandbox::{Enforcement, Mechanism, SandboxProfile, Wall};

use super::printed::Printed;
use crate::builtin::{BuiltinOptions, failed};
use toolwright_sandbox::protected::{is_own, written_since};
use toolwright_sandbox::sandbox::{Sandbox, SandboxConfig};
use toolwright_sandbox::{Output, Stdin, SupervisedChild, SupervisedCommand};

/// Longest time a caller may ask for.
pub(super) const MAX_TIMEOUT_MS: u64 = 600_000;
/// Time to end after SIGTERM; below the grace that the executor leaves a cancelled tool.
const TERM_GRACE: Duration = Duration::from_millis(500);
/// Longest argument that Linux passes to a program, in bytes (`MAX_ARG_STRLEN`, without its final zero).
const MAX_ARGUMENT: usize = 128 * 1024 - 1;
/// Protected files that are named of those that a command wrote.
const MAX_WRITTEN: usize = 20;

/// Time that a call may take at most: the longest a caller may ask for, and what an end takes.
pub(super) fn longest() -> Duration {
    Duration::from_millis(MAX_TIMEOUT_MS) + 2 * TERM_GRACE + super::printed::DRAIN
}

/// Runs command lines behind one profile.
pub(super) struct Runner {
    profile: SandboxProfile,
    settings: SandboxConfig,
    withheld_env: Vec<String>,
    /// Whether it was said that walls are missing.
    told: AtomicBool,
}

/// What is to be run.
pub(super) struct Start {
    pub(super) program: OsString,
    pub(super) arguments: Vec<String>,
    /// The tool's own argument that holds the code.
    pub(super) code_name: &'static str,
    pub(super) directory: Option<String>,
    pub(super) stdin: Option<String>,
    pub(super) timeout_ms: u64,
    /// Folders that the program needs, for profiles that read little else.
    pub(super) readable: Vec<PathBuf>,
}

impl Runner {
    pub(super) fn new(profile: SandboxProfile, options: &BuiltinOptions) -> Self {
        let mut settings = options.shell.sandbox.clone();
        settings.protected.extend(options.protected.iter().cloned());
        Self { profile, settings, withheld_env: options.withheld_env.clone(), told: AtomicBool::new(false) }
    }

    pub(super) fn profile(&self) -> SandboxProfile {
        self.profile
    }

    pub(super) fn withheld_env(&self) -> &[String] {
        &self.withheld_env
    }

    /// Runs it to its end, or until its time is up or the call is cancelled.
    pub(super) async fn run(&self, start: Start, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let limit = Limit::of(start.timeout_ms, context);
        let began = SystemTime::now();
        let mut child = self.start(start, context).await?;
        let enforcement = child.enforcement.take().unwrap_or_else(|| unrestricted(self.profile));
        self.tell_gaps(&enforcement, context);
        let held = enforcement.enforced.iter().any(|(wall, _)| *wall == Wall::Protected);
        let mut printed = Printed::new(child.stdout.take(), context);
        let ended = printed.follow(&mut child, limit.end).await;
        if ended.is_err() {
            // Its result does not matter: dropping the child kills what is left.
            let _ = child.terminate(TERM_GRACE).await;
        }
        let (written, is_cut) = self.written(began, held, context).await;
        match ended {
            Ok(exit) => {
                printed.drain().await;
                let mut output = printed.into_result(exit).await.with_extra("sandbox", enforcement.to_json());
                if let Some(exceeded) = child.exceeded() {
                    output.is_error = true;
                    output.content.push(ContentBlock::text(format!("[toolwright ended the command: {exceeded}]")));
                }
                if !written.is_empty() {
                    output = output.with_extra("protected_written", json!(written));
                }
                if is_cut {
                    output = output.with_extra("protected_search_cut", json!(true));
                }
                Ok(output)
            }
            Err(stop) => {
                printed.drain().await;
                Err(printed.into_error(stop, limit.set).await)
            }
        }
    }

    async fn start(&self, start: Start, context: &ToolContext) -> Result<SupervisedChild, ToolError> {
        if let Some(long) = start.arguments.iter().find(|argument| argument.len() > MAX_ARGUMENT) {
            let message = format!(
                "`{}`, or one of its arguments, has {} bytes, and a program takes {MAX_ARGUMENT} at most: write it to a \
                 file with fs__write and run that",
                start.code_name,
                long.len(),
            );
            return Err(ToolError::new(ErrorKind::InvalidParameters, message));
        }
        let mut settings = self.settings.clone();
        settings.read.extend(start.readable);
        let root = context.session.root.clone();
        let mut child = SupervisedCommand::new(start.program)
            .withhold(&self.withheld_env)
            .args(&start.arguments)
            .current_dir(context.resolve_path(start.directory.as_deref().unwrap_or("")))
            .stdin(if start.stdin.is_some() { Stdin::Piped } else { Stdin::Null })
            .output(Output::Merged)
            .sandbox(Sandbox { profile: self.profile, root, settings })
            .spawn_aside()
            .await
            .map_err(|error| failed(error.to_string()).with_source(error))?;
        if let (Some(pipe), Some(text)) = (child.stdin.take(), start.stdin) {
            tokio::spawn(feed(pipe, text));
        }
        Ok(child)
    }

    /// What a command that may write the workspace only has written of what decides what runs: a sandbox cannot hold names
    /// that do not exist yet, nor those in deeper folders. Says it. And whether there was too much to look at all of it.
    async fn written(&self, began: SystemTime, held: bool, context: &ToolContext) -> (Vec<String>, bool) {
        if !matches!(self.profile, SandboxProfile::Workspace | SandboxProfile::Network) {
            return (Vec::new(), false);
        }
        let root = context.session.root.clone();
        let found = tokio::task::spawn_blocking(move || written_since(&root, began)).await.unwrap_or_default();
        // At the root the names of our own configuration were held, by files that may still be going.
        let was_held = |path: &PathBuf| held && is_own(path) && path.components().count() == 1;
        let written = found.paths.iter().filter(|path| !was_held(path));
        let mut written: Vec<String> = written.map(|path| path.to_string_lossy().into_owned()).collect();
        if written.is_empty() {
            return (written, found.is_cut);
        }
        let more = written.len().saturating_sub(MAX_WRITTEN);
        written.truncate(MAX_WRITTEN);
        if more > 0 {
            written.push(format!("and {more} more"));
        }
        let message = format!(
            "a command in the sandbox `{}` wrote what decides what runs or what agents are told: {}; look at it before you \
             use it",
            self.profile,
            written.join(", ")
        );
        context.services.events.emit(Event::Warning { code: "protected_written".into(), message });
        (written, found.is_cut)
    }

    /// Says once what this machine cannot enforce.
    fn tell_gaps(&self, enforcement: &Enforcement, context: &ToolContext) {
        if let Some(message) = enforcement.gaps()
            && !self.told.swap(true, Ordering::Relaxed)
        {
            context.services.events.emit(Event::Warning { code: "sandbox_incomplete".into(), message });
        }
    }
}

/// Writes what the program reads; ends with the program at the latest, whose end closes the pipe.
async fn feed(mut pipe: ChildStdin, text: String) {
    // A program that does not read it all is none of our business.
    let _ = pipe.write_all(text.as_bytes()).await;
}

fn unrestricted(profile: SandboxProfile) -> Enforcement {
    Enforcement { profile, mechanism: Mechanism::None, enforced: Vec::new(), not_enforced: Vec::new() }
}

/// How long a command may run: what its caller asked for, or what the call has, whichever ends first.
struct Limit {
    end: Instant,
    /// As it was set. By the time a command starts, less of the call's own limit is left.
    set: Duration,
}

impl Limit {
    fn of(timeout_ms: u64, context: &ToolContext) -> Self {
        let started = Instant::now();
        let wanted = Duration::from_millis(timeout_ms);
        match context.deadline.map(Instant::from) {
            Some(end) if end < started + wanted => Self { end, set: context.limit.unwrap_or(end - started) },
            _ => Self { end: started + wanted, set: wanted },
        }
    }
}
