//! The progress display of a run: each call's start, progress and end on standard error, and the model's streamed
//! text on standard output.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use toolwright::core::Event;
use toolwright::core::error::labelled;
use toolwright::core::event::{CompactionLayer, Partial};
use toolwright::core::model::Usage;
use toolwright::core::model_repair::RepairOutcome;
use toolwright::core::session::CallId;
use toolwright::core::store::todo::TODO_ID;

use crate::terminal::markdown::Markdown;
use crate::terminal::screen::{
    BAD, DIM, GOOD, Screen, StatusLine, WARN, columns, one_line, prose, say, say_warning, size, stdout, styled,
};

/// The most characters of arguments and messages in a line.
const WIDTH: usize = 160;

/// The namespace of sources' requests to their client.
const CLIENT: &str = "client";

/// The target of the model's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextOutput {
    /// Standard output, as it arrives.
    Streamed,
    /// None: the caller prints the answer at the end.
    Held,
}

impl TextOutput {
    /// Returns `Streamed` for a person, and `Held` for a program, which wants only the answer.
    pub(crate) fn for_output(json: bool) -> Self {
        if !json && std::io::stdout().is_terminal() { Self::Streamed } else { Self::Held }
    }
}

/// The extent of the display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgressDetail {
    /// All events of a run.
    All,
    /// Delays and fallbacks only: requests to models that wait or are retried, and failed models or source questions.
    Delays,
}

/// A running progress display.
pub(crate) struct ProgressDisplay {
    stop: oneshot::Sender<()>,
    task: JoinHandle<(TextShown, TaskCost)>,
}

/// How much of the model's text was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextShown {
    /// All of it.
    Whole,
    /// Some is missing, because the screen was too slow.
    Gaps,
}

impl ProgressDisplay {
    /// Starts the display. `screen` is locked while a line is written.
    pub(crate) fn begin(events: Receiver<Arc<Event>>, text: TextOutput, screen: Arc<Screen>) -> Self {
        Self::with_detail(ProgressDetail::All, events, text, screen)
    }

    /// Starts the display of a single call, whose result the caller prints.
    pub(crate) fn of_call(events: Receiver<Arc<Event>>, screen: Arc<Screen>) -> Self {
        Self::with_detail(ProgressDetail::Delays, events, TextOutput::Held, screen)
    }

    fn with_detail(
        detail: ProgressDetail,
        events: Receiver<Arc<Event>>,
        text: TextOutput,
        screen: Arc<Screen>,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut writer = Writer {
                detail,
                text,
                screen: Arc::clone(&screen),
                markdown: Markdown::new(columns().unwrap_or(80)),
                progress: HashMap::new(),
                retried: String::new(),
                status: StatusLine::default(),
                cost: TaskCost::default(),
                shown: TextShown::Whole,
            };
            let mut events = EventStream::new(events, stopped);
            while let Some(event) = events.next().await {
                let _screen = screen.hold().await;
                match event {
                    Ok(event) => writer.show(Arc::unwrap_or_clone(event)),
                    Err(missed) => writer.missed(missed),
                }
            }
            writer.status.clear();
            writer.end_line();
            (writer.shown, writer.cost)
        });
        Self { stop, task }
    }

    /// Shows the remaining events, and ends.
    pub(crate) async fn end(self) -> (TextShown, TaskCost) {
        let _ = self.stop.send(());
        self.task.await.unwrap_or((TextShown::Gaps, TaskCost::default()))
    }
}

/// Events as they arrive until the stream is stopped, followed by those sent before.
pub(crate) struct EventStream {
    events: Receiver<Arc<Event>>,
    stopped: Option<oneshot::Receiver<()>>,
}

impl EventStream {
    pub(crate) fn new(events: Receiver<Arc<Event>>, stopped: oneshot::Receiver<()>) -> Self {
        Self { events, stopped: Some(stopped) }
    }

    /// Returns the next event, or how many were lost before it; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Arc<Event>, u64>> {
        if let Some(stopped) = &mut self.stopped {
            tokio::select! {
                event = self.events.recv() => return match event {
                    Ok(event) => Some(Ok(event)),
                    Err(RecvError::Lagged(missed)) => Some(Err(missed)),
                    Err(RecvError::Closed) => None,
                },
                _ = stopped => self.stopped = None,
            }
        }
        match self.events.try_recv() {
            Ok(event) => Some(Ok(event)),
            Err(TryRecvError::Lagged(missed)) => Some(Err(missed)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        }
    }
}

struct Writer {
    detail: ProgressDetail,
    text: TextOutput,
    screen: Arc<Screen>,
    /// The part of the model's text that was not shown.
    markdown: Markdown,
    /// The last report of each call, so that equal reports are shown once.
    progress: HashMap<CallId, String>,
    /// The reason of the last retry of a request to a model.
    retried: String,
    /// The progress of a call.
    status: StatusLine,
    /// The cost of requests to models, and whether it is complete.
    cost: TaskCost,
    shown: TextShown,
}

/// The cost of a task, as far as prices are known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TaskCost {
    usd: f64,
    /// Whether the price of some requests is unknown.
    is_open: bool,
}

impl TaskCost {
    pub(crate) fn add(&mut self, other: Self) {
        self.usd += other.usd;
        self.is_open |= other.is_open;
    }
}

impl std::fmt::Display for TaskCost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.usd > 0.0, self.is_open) {
            (true, false) => write!(f, ", ${:.4}", self.usd),
            (true, true) => write!(f, ", at least ${:.4}", self.usd),
            (false, _) => Ok(()),
        }
    }
}

/// Describes evicted results, of which `kept` can be read by a handle.
fn eviction_text(results: u64, kept: u64) -> String {
    match (kept, results.saturating_sub(kept)) {
        (kept, 0) => format!("{kept} old results were replaced by handles"),
        (0, gone) => format!("{gone} old results were removed and not kept"),
        (kept, gone) => format!("{kept} old results were replaced by handles, {gone} were removed"),
    }
}

/// Returns the message about lost events. For a single call hardly any would have been shown, so there is no message.
fn gap(detail: ProgressDetail, missed: u64) -> Option<String> {
    (detail == ProgressDetail::All).then(|| format!("{missed} events were too fast to be shown"))
}

/// Returns whether an event explains why a call takes long, or why a result differs from the request.
fn is_delay(event: &Event) -> bool {
    match event {
        Event::ModelWait { .. } | Event::ModelRetried { .. } | Event::Fallback { .. } => true,
        // An intermediate result, if the end takes long. It is shown in the status line, and disappears.
        Event::ToolPartial { .. } => true,
        // A source's request to a model is a separate call, and the source is not told why it failed.
        Event::ToolFinished { ok: false, tool: Some(tool), .. } => tool.namespace() == CLIENT,
        _ => false,
    }
}

impl Writer {
    fn show(&mut self, event: Event) {
        if let Event::ModelFinished { cost_usd, usage, .. } = &event {
            let is_open = cost_usd.is_none() && *usage != Usage::default();
            self.cost.add(TaskCost { usd: cost_usd.unwrap_or_default(), is_open });
        }
        if self.detail == ProgressDetail::Delays && !is_delay(&event) {
            return;
        }
        match event {
            Event::ModelText { text, .. } => self.model_text(&text),
            Event::ToolStarted { tool, arguments, .. } => {
                let name = self.screen.name(&tool);
                self.line(format_args!(
                    "{} {name} {}",
                    styled(DIM, "→"),
                    styled(DIM, one_line(&arguments.to_string(), WIDTH))
                ));
            }
            Event::ToolWait { tool, queue, .. } => {
                let name = self.screen.name(&tool);
                self.line(styled(DIM, format_args!("  {name} waits for {queue}")))
            }
            Event::ToolPartial { tool, partial: Partial::Text(list), .. } if tool.as_str() == TODO_ID => {
                for item in list.lines() {
                    self.line(styled(DIM, format_args!("  {}", one_line(item, WIDTH))));
                }
            }
            Event::ToolPartial { call, tool, partial, .. } => {
                let report = match partial {
                    Partial::Progress { progress, total, message, .. } => {
                        let of = total.map(|total| format!("/{total}")).unwrap_or_default();
                        format!("{progress}{of} {}", message.unwrap_or_default())
                    }
                    Partial::Text(text) => text,
                };
                let report = one_line(report.trim(), WIDTH);
                if !report.is_empty() && self.progress.get(&call) != Some(&report) {
                    let name = self.screen.name(&tool);
                    self.end_line();
                    self.status.show(&format!("  {name}: {report}"));
                    self.progress.insert(call, report);
                }
            }
            Event::ToolFinished { call, tool, refused, ok, error, message, latency_us, characters_out, .. } => {
                let latency_ms = latency_us / 1000;
                self.progress.remove(&call);
                // A call that never started has not been shown yet.
                let asked = refused.as_ref().map(|refused| format!("{} {}", refused.name, refused.arguments));
                let name = match (asked, &tool) {
                    (Some(asked), _) => one_line(&asked, WIDTH),
                    (None, Some(tool)) => self.screen.name(tool),
                    (None, None) => call.to_string(),
                };
                if ok {
                    self.line(format_args!(
                        "{} {name} {}",
                        styled(GOOD, "✓"),
                        styled(DIM, format_args!("{latency_ms} ms, {}", size(characters_out)))
                    ));
                } else {
                    let kind = error.map(|kind| kind.as_str()).unwrap_or_default();
                    let why = one_line(&labelled(kind, &message.unwrap_or_default()), WIDTH);
                    self.line(format_args!(
                        "{} {name} {} {why}",
                        styled(BAD, "✗"),
                        styled(DIM, format_args!("{latency_ms} ms"))
                    ));
                }
            }
            Event::ModelWait { model, queue, .. } => {
                self.line(styled(DIM, format_args!("  {model} waits for {queue}")));
            }
            Event::ModelRetried { model, message, again_in_ms, .. } => {
                let again = format!("{model}: again in {again_in_ms} ms");
                // The end of a run reports the final failure of a model, so repeating it is unnecessary.
                let why =
                    if message == self.retried { String::new() } else { format!(": {}", one_line(&message, WIDTH)) };
                match self.detail {
                    ProgressDetail::All => self.status.show(&format!("{again}{why}")),
                    ProgressDetail::Delays => self.line(styled(WARN, format_args!("{again}{why}"))),
                }
                self.retried = message;
            }
            Event::ProviderChanged { provider, error: Some(error), .. } => {
                self.warn(&one_line(&format!("{provider}: {error}"), 4 * WIDTH));
            }
            Event::Fallback { what, from, to, reason } => {
                let text = one_line(&format!("{what}: {to} in place of {from}: {reason}"), 4 * WIDTH);
                self.warn(&text);
            }
            Event::PinNotice { raw_name, provider, message, .. } => {
                self.warn(&one_line(&format!("{provider}: {raw_name} is {message}"), 4 * WIDTH));
            }
            // Every command reports it in the same way.
            Event::Warning { code, .. } if code == "replayed" => {}
            Event::Compacted { layer, before, after, results, kept, messages, .. } => {
                let what = match layer {
                    CompactionLayer::Truncate => eviction_text(results, kept),
                    CompactionLayer::Summarize => format!("{messages} messages were put together"),
                    CompactionLayer::ForceFinal => "the next turn is the last".into(),
                };
                self.line(styled(DIM, format_args!("  room in the conversation: {what}, {before} to {after} tokens")));
            }
            Event::Warning { message, .. } => self.warn(&one_line(&message, 4 * WIDTH)),
            Event::CallRepair { tool, record, .. } => {
                let name = self.screen.name(&tool);
                let came = match record.end {
                    RepairOutcome::Accepted => "were repaired by",
                    RepairOutcome::Rejected(_) | RepairOutcome::Failed(_) => "could not be repaired by",
                };
                self.line(styled(DIM, format_args!("  the arguments of {name} {came} {}", record.model)));
            }
            // The end of the run reports a model's failure; other ends are not shown.
            _ => {}
        }
    }

    fn model_text(&mut self, text: &str) {
        if self.text == TextOutput::Held || text.is_empty() {
            return;
        }
        let shown = self.markdown.push(&prose(text));
        self.put(&shown);
    }

    fn put(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.status.clear();
        let mut out = stdout();
        // If the reader has gone, the run continues for its effects and its transcript.
        let _ = write!(out, "{text}");
        let _ = out.flush();
    }

    fn line(&mut self, line: impl std::fmt::Display) {
        self.status.clear();
        self.end_line();
        say(line);
    }

    fn warn(&mut self, message: &str) {
        self.status.clear();
        self.end_line();
        say_warning(message);
    }

    fn end_line(&mut self) {
        let rest = self.markdown.end();
        self.put(&rest);
    }

    fn missed(&mut self, missed: u64) {
        self.shown = TextShown::Gaps;
        if let Some(gap) = gap(self.detail, missed) {
            self.warn(&gap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_of_a_single_call_are_silent() {
        for (detail, expect) in
            [(ProgressDetail::All, Some("7 events were too fast to be shown")), (ProgressDetail::Delays, None)]
        {
            assert_eq!(gap(detail, 7).as_deref(), expect, "{detail:?}");
        }
    }

    #[test]
    fn compaction_notice_counts_only_kept_handles() {
        for (results, kept, expect) in [
            (3, 3, "3 old results were replaced by handles"),
            (3, 0, "3 old results were removed and not kept"),
            (3, 2, "2 old results were replaced by handles, 1 were removed"),
        ] {
            assert_eq!(eviction_text(results, kept), expect);
        }
    }
}
