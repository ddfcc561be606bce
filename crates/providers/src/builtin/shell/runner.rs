//! One run of a command: start, bounded capture of its output, the reason it was stopped, and the result.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;
use tokio::time::Instant;
use toolwright_core::cancel::CancelCause;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::output::CUT;
use toolwright_core::sandbox::{Enforcement, Mechanism, Restriction, SandboxProfile};
use toolwright_sandbox::enforce::{Sandbox, SandboxConfig};
use toolwright_sandbox::protected::{is_own, written_since};
use toolwright_sandbox::{Output, Stdin, SupervisedChild, SupervisedCommand};

use crate::builtin::shell::command_output::CommandOutput;
use crate::builtin::shell::session::{LEFT, MAX_STATE, STATE, Session};
use crate::builtin::{BuiltinOptions, failed};

/// The longest timeout that a caller may set.
pub(super) const MAX_TIMEOUT_MS: u64 = 600_000;
/// Time to end after SIGTERM; below the executor's grace for a cancelled tool.
const TERM_GRACE: Duration = Duration::from_millis(500);
/// The longest argument that Linux passes to a program, in bytes (`MAX_ARG_STRLEN` without the final zero).
const MAX_ARGUMENT: usize = 128 * 1024 - 1;
/// The most protected files, written by a command, that are named.
const MAX_WRITTEN: usize = 20;

/// Returns the longest time of a call: the longest timeout, and the time to end.
pub(super) fn longest() -> Duration {
    Duration::from_millis(MAX_TIMEOUT_MS) + 2 * TERM_GRACE + super::command_output::DRAIN
}

/// Runs commands in one sandbox profile.
pub(super) struct Runner {
    profile: SandboxProfile,
    settings: SandboxConfig,
    withheld_env: Vec<String>,
    /// Whether the warning about missing sandbox features was given.
    has_warned: AtomicBool,
}

/// A command to run.
pub(super) struct CommandSpec<'a> {
    pub(super) program: OsString,
    pub(super) arguments: Vec<String>,
    /// The name of the tool's argument with the code.
    pub(super) code_name: &'static str,
    pub(super) directory: Option<String>,
    pub(super) stdin: Option<String>,
    pub(super) timeout_ms: u64,
    /// Folders that the program needs, for profiles that allow little else.
    pub(super) readable: Vec<PathBuf>,
    /// The session whose state it continues.
    pub(super) session: Option<Session<'a>>,
}

impl Runner {
    pub(super) fn new(profile: SandboxProfile, options: &BuiltinOptions) -> Self {
        let mut settings = options.shell.sandbox.clone();
        settings.protected.extend(options.protected.iter().cloned());
        Self { profile, settings, withheld_env: options.withheld_env.clone(), has_warned: AtomicBool::new(false) }
    }

    pub(super) fn profile(&self) -> SandboxProfile {
        self.profile
    }

    pub(super) fn withheld_env(&self) -> &[String] {
        &self.withheld_env
    }

    /// Runs it until it ends, its time is up or the call is cancelled.
    pub(super) async fn run(&self, mut start: CommandSpec<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let session = start.session.take();
        let limit = Limit::of(start.timeout_ms, context);
        let began = SystemTime::now();
        let mut child = self.start(start, session.as_ref(), context).await?;
        let enforcement = child.enforcement.take().unwrap_or_else(|| unrestricted(self.profile));
        self.warn_unenforced(&enforcement, context);
        let held = enforcement.enforced.iter().any(|(wall, _)| *wall == Restriction::Protected);
        let mut printed = CommandOutput::new(child.stdout.take(), context);
        let ended = printed.follow(&mut child, limit.end).await;
        if ended.is_err() {
            // The result does not matter: dropping the child kills the rest.
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
                if let Some(session) = &session {
                    session.keep(child.read_output_file(MAX_STATE).await, &mut output);
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

    async fn start(
        &self,
        start: CommandSpec<'_>,
        session: Option<&Session<'_>>,
        context: &ToolContext,
    ) -> Result<SupervisedChild, ToolError> {
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
        let mut command = SupervisedCommand::new(start.program).withhold(&self.withheld_env);
        if let Some(session) = session {
            command = command.envs([(STATE, session.state())]).output_file(LEFT);
        }
        let mut child = command
            .args(&start.arguments)
            .current_dir(context.resolve_path(start.directory.as_deref().unwrap_or("")))
            .stdin(if start.stdin.is_some() { Stdin::Piped } else { Stdin::Null })
            .output(Output::Merged)
            .sandbox(Sandbox { profile: self.profile, root, settings })
            .spawn_blocking_thread()
            .await
            .map_err(|error| failed(error.to_string()).with_source(error))?;
        if let (Some(pipe), Some(text)) = (child.stdin.take(), start.stdin) {
            tokio::spawn(feed(pipe, text));
        }
        Ok(child)
    }

    /// Reports protected files in the workspace that a command has written, if it may write only the workspace: a
    /// sandbox cannot block names that do not exist yet, nor those in deeper folders. Also returns whether there were
    /// too many files to check.
    async fn written(&self, began: SystemTime, held: bool, context: &ToolContext) -> (Vec<String>, bool) {
        if !matches!(self.profile, SandboxProfile::Workspace | SandboxProfile::Network) {
            return (Vec::new(), false);
        }
        let root = context.session.root.clone();
        let found = tokio::task::spawn_blocking(move || written_since(&root, began)).await.unwrap_or_default();
        // At the root, placeholder files blocked the names of our configuration, and these may still be vanishing.
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
            "a command in the sandbox `{}` wrote files that decide what runs or what agents are told: {}; check them \
             before you use them",
            self.profile,
            written.join(", ")
        );
        context.services.events.emit(Event::Warning { code: "protected_written".into(), message });
        (written, found.is_cut)
    }

    /// Warns once of what this machine cannot enforce.
    fn warn_unenforced(&self, enforcement: &Enforcement, context: &ToolContext) {
        if let Some(message) = enforcement.gaps()
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            context.services.events.emit(Event::Warning { code: "sandbox_incomplete".into(), message });
        }
    }
}

/// Writes the program's input. Ends with the program at the latest, because its end closes the pipe.
async fn feed(mut pipe: ChildStdin, text: String) {
    // A program need not read all of it.
    let _ = pipe.write_all(text.as_bytes()).await;
}

fn unrestricted(profile: SandboxProfile) -> Enforcement {
    Enforcement { profile, mechanism: Mechanism::None, enforced: Vec::new(), not_enforced: Vec::new() }
}

/// The time limit of a command: the caller's timeout or the call's limit, whichever ends first.
struct Limit {
    end: Instant,
    /// The limit as set. When a command starts, part of the call's limit is used up.
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

pub(super) enum StopCause {
    TimedOut,
    /// It printed nothing for longer than a call may be silent.
    Silent,
    Canceled(CancelCause),
    Lost(std::io::Error),
}

impl StopCause {
    pub(super) fn into_error(self, limit: Duration) -> ToolError {
        match self {
            Self::TimedOut => {
                let limit = toolwright_core::duration::format(limit);
                let message = format!("the command ran longer than {limit}; it and all it had started were killed");
                ToolError::new(ErrorKind::Timeout, message)
            }
            Self::Silent => {
                let message = "the command printed nothing for too long; it and all it had started were killed";
                ToolError::new(ErrorKind::Timeout, message)
            }
            Self::Canceled(cause) => ToolError::canceled(cause),
            Self::Lost(source) => {
                ToolError::new(ErrorKind::InternalError, format!("the end of the command is unknown: {source}"))
                    .with_source(source)
            }
        }
    }
}

/// The most bytes that are kept of the end.
const TAIL: usize = 1024 * 1024;

/// Collects a byte stream of any length: whole while it is within the limit, then only its two ends.
#[derive(Debug)]
pub(super) struct Capture {
    max: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    /// Creates it with a limit of `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { max, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    /// Returns whether it is still whole with `more` bytes.
    pub(super) fn fits(&self, more: usize) -> bool {
        self.total + more as u64 <= self.max as u64
    }

    /// Returns all bytes, while it is whole.
    pub(super) fn whole(&self) -> &[u8] {
        &self.head
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(self.max - self.head.len()));
        self.head.extend_from_slice(first);
        let keep = self.max.min(TAIL);
        self.tail.extend(&rest[rest.len().saturating_sub(keep)..]);
        let excess = self.tail.len().saturating_sub(keep);
        self.tail.drain(..excess);
    }

    /// Returns the number of bytes so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the whole output as text; mentions what cannot be shown.
    pub(super) fn into_text(self) -> String {
        readable(&self.head)
    }

    /// Returns beginning and end as text in about `room` bytes; between them, how much is missing and `why`.
    pub(super) fn into_head_and_tail(mut self, room: usize, why: &str) -> String {
        let tail = skip_cut_character(self.tail.make_contiguous());
        let mut room = room;
        if std::str::from_utf8(whole_characters(&self.head)).is_err() || std::str::from_utf8(tail).is_err() {
            // A byte that is not text takes three as text.
            room /= 3;
        }
        let head = whole_characters(&self.head[..self.head.len().min(room * 2 / 3)]);
        let tail = skip_cut_character(&tail[tail.len().saturating_sub(room / 3)..]);
        if is_binary(head) || is_binary(tail) {
            return format!("[binary data, {} bytes, not shown]", self.total);
        }
        let cut = self.total - (head.len() + tail.len()) as u64;
        let total = self.total;
        format!("{}\n{CUT}{cut} of {total} bytes here{why} …]\n{}", readable(head), readable(tail))
    }
}

/// Returns bytes as text. Binary data is only mentioned.
fn readable(bytes: &[u8]) -> String {
    if is_binary(bytes) {
        return format!("[binary data, {} bytes, not shown]", bytes.len());
    }
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.contains(&0) && std::str::from_utf8(bytes).is_err()
}

/// Removes a character that is cut at the end.
fn whole_characters(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

/// Removes the rest of a character that is cut at the beginning.
fn skip_cut_character(bytes: &[u8]) -> &[u8] {
    let rest = bytes.iter().take(3).take_while(|&&byte| byte & 0xC0 == 0x80).count();
    &bytes[rest..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(max: usize, chunks: &[&[u8]]) -> Capture {
        let mut capture = Capture::new(max);
        chunks.iter().for_each(|chunk| capture.push(chunk));
        capture
    }

    #[test]
    fn output_within_the_limit_is_kept_whole() {
        let check = |chunks: &[&[u8]], expect: &str| assert_eq!(collect(100, chunks).into_text(), expect);
        check(&[], "");
        check(&["ä".as_bytes().split_at(1).0, "ä".as_bytes().split_at(1).1], "ä");
        check(&[&[b'x'; 99], b"y"], &format!("{}y", "x".repeat(99)));
        check(&[b"a\xffb"], "a\u{fffd}b");
        check(&[b"a\0b"], "a\0b");
        check(&[b"\x7fELF\0\xff"], "[binary data, 6 bytes, not shown]");
    }

    #[test]
    fn long_output_keeps_both_ends() {
        let text = collect(600, &[b"begin", &[b'x'; 5000], b"end"]).into_head_and_tail(300, ", since");
        assert!(text.starts_with("beginxx") && text.ends_with("xxend"), "{text}");
        assert!(text.contains("[… toolwright cut 4708 of 5008 bytes here, since …]"), "{text}");
        // Characters that a cut would split are removed.
        let text = collect(600, &["ä".repeat(3001).as_bytes(), b"!"]).into_head_and_tail(301, "");
        assert!(!text.contains('\u{fffd}') && text.ends_with("ä!"), "{text}");
        let text = collect(600, &[&[0xff; 5000]]).into_head_and_tail(300, "");
        assert!(text.len() < 500, "{}", text.len());
        let text = collect(600, &[&[0, 0xff].repeat(4000)]).into_head_and_tail(300, "");
        assert_eq!(text, "[binary data, 8000 bytes, not shown]");
    }

    #[test]
    fn pieces_may_exceed_what_is_kept() {
        let capture = collect(10, &[&[b'x'; 100_000]]);
        assert_eq!((capture.head.len(), capture.tail.len(), capture.total()), (10, 10, 100_000));
        assert!(!capture.fits(1) && collect(10, &[b"12345"]).fits(5));
    }
}
