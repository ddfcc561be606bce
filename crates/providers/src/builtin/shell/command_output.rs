//! The output of a running command: collected, stored once it is long, and reported while it grows.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStdout;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use toolwright_core::cancel::CancelCause;
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::event::{Event, Partial};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::output::{head_and_tail, stored_note};
use toolwright_core::store::{OutputWriter, StoreError, StoredOutput};
use toolwright_sandbox::{Exit, SupervisedChild};

use crate::builtin::shell::runner::{Capture, StopCause};

/// How long the rest of the output is awaited after the command's end.
pub(super) const DRAIN: Duration = Duration::from_secs(1);
/// The largest difference between the executor's clock and ours.
const CLOCKS_DIFFER: Duration = Duration::from_millis(100);
/// The least time between two progress reports.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// The most bytes of one progress report; older ones are left out.
const REPORT_BYTES: usize = 4096;
/// The most bytes of output in the error of a failed call.
const ERROR_OUTPUT: usize = 4000;
/// The bytes of one read, which a pipe can hold.
const READ: usize = 64 * 1024;
/// Bytes of the preview of stored output, the most that the message about it shows.
const PREVIEW: usize = 1600;
/// The least bytes of it under a small limit.
const LEAST: usize = 120;
/// Bytes reserved for the text around a preview, or around the ends of cut output.
const FRAME_BYTES: usize = 500;

/// The output of one command, in at most twice the limit of memory.
pub(super) struct CommandOutput<'a> {
    pipe: Option<ChildStdout>,
    buffer: Vec<u8>,
    capture: Capture,
    stored: OutputSpill,
    unreported: Vec<u8>,
    context: &'a ToolContext,
}

impl<'a> CommandOutput<'a> {
    pub(super) fn new(pipe: Option<ChildStdout>, context: &'a ToolContext) -> Self {
        Self {
            pipe,
            buffer: vec![0; READ],
            capture: Capture::new(context.max_output),
            stored: OutputSpill::default(),
            unreported: Vec::new(),
            context,
        }
    }

    /// Collects output until the command has ended or must be stopped.
    pub(super) async fn follow(&mut self, child: &mut SupervisedChild, end: Instant) -> Result<Exit, StopCause> {
        let mut report = interval_at(Instant::now() + REPORT_EVERY, REPORT_EVERY);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let context = self.context;
        loop {
            // Output is taken after the choice, so that none is lost if another branch wins.
            let read = tokio::select! {
                read = read_some(&mut self.pipe, &mut self.buffer), if self.pipe.is_some() => read,
                exit = child.wait() => return exit.map_err(StopCause::Lost),
                cause = context.cancel.cancelled() => return Err(match cause {
                    // The executor's clock was first: the time limit of the call, or its limit of silence.
                    CancelCause::Deadline if Instant::now() + CLOCKS_DIFFER >= end => StopCause::TimedOut,
                    CancelCause::Deadline => StopCause::Silent,
                    cause => StopCause::Canceled(cause),
                }),
                () = sleep_until(end) => return Err(StopCause::TimedOut),
                _ = report.tick(), if !self.unreported.is_empty() => {
                    self.report();
                    continue;
                }
            };
            self.take(read).await;
        }
    }

    /// Collects the rest in the pipe after the end of the process tree.
    pub(super) async fn drain(&mut self) {
        let end = Instant::now() + DRAIN;
        while self.pipe.is_some() {
            let next = tokio::time::timeout_at(end, read_some(&mut self.pipe, &mut self.buffer));
            // Only a process that could not be killed still holds the pipe.
            let Ok(read) = next.await else { return };
            self.take(read).await;
        }
    }

    /// Takes the first `read` bytes of the buffer; 0 marks the end of the output.
    async fn take(&mut self, read: usize) {
        if read == 0 {
            self.pipe = None;
            return;
        }
        let bytes = &self.buffer[..read];
        self.unreported.extend_from_slice(bytes);
        let excess = self.unreported.len().saturating_sub(REPORT_BYTES);
        self.unreported.drain(..excess);
        if self.capture.fits(bytes.len()) {
            self.capture.push(bytes);
            return;
        }
        self.stored.append(self.capture.whole(), bytes, self.context).await;
        self.capture.push(bytes);
    }

    fn report(&mut self) {
        // An incomplete character waits for the next report.
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

    /// Returns the result of a command that ended by itself.
    pub(super) async fn into_result(self, exit: Exit) -> ToolOutput {
        let (bytes, max) = (self.capture.total(), self.context.max_output);
        let (text, note) = match self.stored.finish().await {
            FullOutput::Whole => (self.capture.into_text(), None),
            FullOutput::Stored(stored) => {
                let room = max.saturating_sub(FRAME_BYTES).clamp(max.min(LEAST), PREVIEW);
                (self.capture.into_head_and_tail(room, ""), Some(stored_note(&stored)))
            }
            FullOutput::Cut(why) => {
                let why = format!(", since they could not be stored: {why}");
                (self.capture.into_head_and_tail(max.saturating_sub(FRAME_BYTES), &why), None)
            }
        };
        let output = if exit.success() {
            ToolOutput::text(if text.is_empty() { "(no output)".to_owned() } else { text })
        } else {
            let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            ToolOutput::failure(format!("{text}{gap}{exit}"))
        };
        let output =
            output.with_extra("exit_code", exit.code).with_extra("signal", exit.signal).with_extra("bytes", bytes);
        note.into_iter().fold(output, |output, note| output.with_extra("tool_output", note))
    }

    /// Returns the error of a command that was stopped, with its output.
    pub(super) async fn into_error(self, stop: StopCause, limit: Duration) -> ToolError {
        let error = stop.into_error(limit);
        let (whole, shown) = match self.stored.finish().await {
            FullOutput::Whole => (String::new(), self.capture.into_text()),
            FullOutput::Stored(stored) => (
                format!(
                    " All {} bytes are stored: read them with output__read {{\"handle\": \"{}\", \"offset\": 0}}.",
                    stored.bytes, stored.handle
                ),
                self.capture.into_head_and_tail(ERROR_OUTPUT, ""),
            ),
            FullOutput::Cut(why) => {
                let why = format!(", since they could not be stored: {why}");
                (String::new(), self.capture.into_head_and_tail(ERROR_OUTPUT, &why))
            }
        };
        let shown = head_and_tail(shown.trim_end(), ERROR_OUTPUT);
        let shown = if shown.is_empty() { "nothing" } else { &shown };
        let message = format!("{error}.{whole} It had printed: {shown}");
        error.with_model_message(message)
    }
}

/// Reads once; 0 at the end of the output, or without output. Cancel-safe.
async fn read_some(pipe: &mut Option<ChildStdout>, buffer: &mut [u8]) -> usize {
    match pipe {
        Some(pipe) => pipe.read(buffer).await.unwrap_or(0),
        None => 0,
    }
}

/// The place of the output during the run.
#[derive(Default)]
pub(super) enum OutputSpill {
    /// Not stored yet: it is within the limit.
    #[default]
    Unneeded,
    /// All of it goes into the store.
    Open(Box<dyn OutputWriter>),
    /// The store failed. The rest is only counted.
    Failed(String),
}

/// The place of the full output at the end.
pub(super) enum FullOutput {
    /// All of it in memory.
    Whole,
    /// All of it in the store.
    Stored(StoredOutput),
    /// Not stored, for this reason; only the beginning and the end are in memory.
    Cut(String),
}

impl OutputSpill {
    /// Appends bytes; the first time, also the earlier ones.
    pub(super) async fn append(&mut self, before: &[u8], bytes: &[u8], context: &ToolContext) {
        let result = match self {
            Self::Unneeded => self.open(before, bytes, context).await,
            Self::Open(writer) => writer.write(bytes).await,
            Self::Failed(_) => return,
        };
        if let Err(error) = result {
            let message = format!("the output of call {} was cut, not stored: {error}", context.call_id);
            context.services.events.emit(Event::Warning { code: "output_not_stored".into(), message });
            // Dropping the writer discards what was written.
            *self = Self::Failed(error.to_string());
        }
    }

    async fn open(&mut self, before: &[u8], bytes: &[u8], context: &ToolContext) -> Result<(), StoreError> {
        let mut writer = context.services.outputs.writer(&context.session.id).await?;
        writer.write(before).await?;
        writer.write(bytes).await?;
        *self = Self::Open(writer);
        Ok(())
    }

    pub(super) async fn finish(self) -> FullOutput {
        match self {
            Self::Unneeded => FullOutput::Whole,
            Self::Open(writer) => {
                writer.finish().await.map_or_else(|error| FullOutput::Cut(error.to_string()), FullOutput::Stored)
            }
            Self::Failed(why) => FullOutput::Cut(why),
        }
    }
}
