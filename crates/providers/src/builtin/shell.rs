//! `shell:bash`: one command line, in a tree of processes that ends with the call.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStdout;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use toolwright_core::cancel::CancelCause;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Partial;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::output::head_and_tail;
use toolwright_core::tool::Tool;

use super::capture::Capture;
use super::{define, failed, parse};
use crate::process::{Exit, Output, SupervisedChild, SupervisedCommand};

/// Longest time a caller may ask for.
const MAX_TIMEOUT_MS: u64 = 600_000;
/// Time to end after SIGTERM; below the grace that the executor leaves a cancelled tool.
const TERM_GRACE: Duration = Duration::from_millis(500);
/// Wait for the rest of the output after the command's end.
const DRAIN: Duration = Duration::from_secs(1);
/// Least time between two progress reports.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Most bytes of one progress report; older ones are left out.
const REPORT_BYTES: usize = 4096;
/// Text of a failed call's output that its error carries, in bytes.
const ERROR_OUTPUT: usize = 4000;

pub(super) struct Bash {
    withheld_env: Vec<String>,
}

#[derive(Deserialize)]
struct Arguments {
    command: String,
    timeout_ms: u64,
    cwd: Option<String>,
}

impl Bash {
    pub(super) fn new(withheld_env: Vec<String>) -> Self {
        Self { withheld_env }
    }

    fn start(&self, arguments: &Arguments, context: &ToolContext) -> Result<SupervisedChild, ToolError> {
        let directory = context.resolve_path(arguments.cwd.as_deref().unwrap_or(""));
        SupervisedCommand::new("bash")
            .withhold(&self.withheld_env)
            .args(["-c", &arguments.command])
            .current_dir(directory)
            .output(Output::Merged)
            .spawn()
            .map_err(|error| failed(error.to_string()).with_source(error))
    }
}

#[async_trait]
impl Tool for Bash {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "shell:bash@1.0.0",
            "Run a shell command",
            "Runs a command with bash in the workspace root and returns what it prints: standard output and \
             standard error as one text, in the order of writing. A failed command also reports its exit code. \
             Each call is a new shell: directory changes and variables do not carry over. Nothing can be typed \
             in, so use flags that do not ask. What the command leaves running in the background is stopped \
             when it ends. Prefer the fs tools for reading, searching and editing files.",
            Effects::UNKNOWN,
            json!({
                "command": {"type": "string", "minLength": 1, "description": "The command line, as for `bash -c`."},
                "timeout_ms": {
                    "type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS, "default": 120_000,
                    "description": "Milliseconds after which the command and all it started are killed.",
                },
                "cwd": {"type": "string", "description": "Directory to run in; relative to the workspace root, which is the default."},
            }),
            &["command"],
        );
        definition.concurrency = Concurrency::Exclusive;
        definition.body_argument = Some("command".into());
        definition.timeout = Some(Duration::from_millis(MAX_TIMEOUT_MS) + 2 * TERM_GRACE + DRAIN);
        definition.examples = vec![
            json!({"command": "git status --short"}),
            json!({"command": "cargo test 2>&1 | tail -n 40", "timeout_ms": 300_000}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Arguments = parse(arguments)?;
        let limit = Limit::of(&arguments, context);
        let mut child = self.start(&arguments, context)?;
        let mut printed = Printed::new(child.stdout.take(), context);
        match printed.follow(&mut child, limit.end).await {
            Ok(exit) => {
                printed.drain().await;
                Ok(result(exit, printed.capture))
            }
            Err(stop) => {
                // Its result does not matter: dropping the child kills what is left.
                let _ = child.terminate(TERM_GRACE).await;
                printed.drain().await;
                Err(stop.into_error(limit.set, printed.capture))
            }
        }
    }
}

/// How long a command may run: what its caller asked for, or what the call has, whichever ends first.
struct Limit {
    end: Instant,
    /// As it was set. By the time a command starts, less of the call's own limit is left.
    set: Duration,
}

impl Limit {
    fn of(arguments: &Arguments, context: &ToolContext) -> Self {
        let started = Instant::now();
        let wanted = Duration::from_millis(arguments.timeout_ms);
        match context.deadline.map(Instant::from) {
            Some(end) if end < started + wanted => Self { end, set: context.limit.unwrap_or(end - started) },
            _ => Self { end: started + wanted, set: wanted },
        }
    }
}

/// Why a command was not left to end by itself.
enum Stop {
    TimedOut,
    Canceled(CancelCause),
    Lost(std::io::Error),
}

impl Stop {
    fn into_error(self, limit: Duration, capture: Capture) -> ToolError {
        let error = match self {
            Self::TimedOut => {
                let limit = toolwright_core::duration::format(limit);
                let message = format!("the command ran longer than {limit}; it and all it had started were killed");
                ToolError::new(ErrorKind::Timeout, message)
            }
            Self::Canceled(cause) => ToolError::canceled(cause),
            Self::Lost(source) => {
                ToolError::new(ErrorKind::InternalError, format!("the end of the command is unknown: {source}"))
                    .with_source(source)
            }
        };
        let text = capture.into_text();
        let shown = head_and_tail(text.trim_end(), ERROR_OUTPUT);
        let shown = if shown.is_empty() { "nothing" } else { &shown };
        let message = format!("{error}. It had printed: {shown}");
        error.with_model_message(message)
    }
}

/// What goes back for a command that ended by itself.
fn result(exit: Exit, capture: Capture) -> ToolOutput {
    let bytes = capture.total();
    let text = capture.into_text();
    let output = if exit.success() {
        ToolOutput::text(if text.is_empty() { "(no output)".to_owned() } else { text })
    } else {
        let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        ToolOutput::failure(format!("{text}{gap}{exit}"))
    };
    output.with_extra("exit_code", exit.code).with_extra("signal", exit.signal).with_extra("bytes", bytes)
}

/// The command's output as it comes: collected, and reported while it grows.
struct Printed<'a> {
    pipe: Option<ChildStdout>,
    capture: Capture,
    unreported: Vec<u8>,
    context: &'a ToolContext,
}

impl<'a> Printed<'a> {
    fn new(pipe: Option<ChildStdout>, context: &'a ToolContext) -> Self {
        Self { pipe, capture: Capture::default(), unreported: Vec::new(), context }
    }

    /// Collects until the command has ended or must be stopped.
    async fn follow(&mut self, child: &mut SupervisedChild, end: Instant) -> Result<Exit, Stop> {
        let mut report = interval_at(Instant::now() + REPORT_EVERY, REPORT_EVERY);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let context = self.context;
        loop {
            tokio::select! {
                () = self.read_some(), if self.pipe.is_some() => {}
                exit = child.wait() => return exit.map_err(Stop::Lost),
                cause = context.cancel.cancelled() => return Err(match cause {
                    // The executor's clock was first.
                    CancelCause::Deadline => Stop::TimedOut,
                    cause => Stop::Canceled(cause),
                }),
                () = sleep_until(end) => return Err(Stop::TimedOut),
                _ = report.tick(), if !self.unreported.is_empty() => self.report(),
            }
        }
    }

    /// Collects what is left in the pipe after the end of the tree.
    async fn drain(&mut self) {
        let rest = async {
            while self.pipe.is_some() {
                self.read_some().await;
            }
        };
        // Only a process that could not be killed still holds the pipe.
        let _ = tokio::time::timeout(DRAIN, rest).await;
    }

    /// One read; at the end of the output the pipe is dropped. Cancel-safe.
    async fn read_some(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut buffer = [0; 16 * 1024];
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => self.pipe = None,
            Ok(read) => {
                self.capture.push(&buffer[..read]);
                self.unreported.extend_from_slice(&buffer[..read]);
                let excess = self.unreported.len().saturating_sub(REPORT_BYTES);
                self.unreported.drain(..excess);
            }
        }
    }

    fn report(&mut self) {
        // A character that is not complete yet waits for the next report.
        let complete = match std::str::from_utf8(&self.unreported) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.unreported.len(),
        };
        if complete > 0 {
            let text = String::from_utf8_lossy(&self.unreported[..complete]).into_owned();
            self.unreported.drain(..complete);
            self.context.partials.send(Partial::Text(text));
        }
    }
}
