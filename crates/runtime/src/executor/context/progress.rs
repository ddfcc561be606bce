//! The progress of a running call, its time limits, and its wait for one of them.

use super::options::ExecutorOptions;
use super::run_context::{PromotedTo, RunContext};
use serde_json::Map;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use toolwright_core::Services;
use toolwright_core::catalogue::{Entry, ProviderKind};
use toolwright_core::context::PartialSink;
use toolwright_core::definition::Mode;
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::{Event, EventDetail, Partial};
use toolwright_core::operation::Op;
use toolwright_core::redact::StreamRedactor;
use toolwright_core::session::CallId;

/// The shortest pause between two checks of the limits of a call that waits for its client.
const ASKING_STEP: Duration = Duration::from_millis(50);

/// The limits of one call, excluding waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::executor) struct CallTimeLimits {
    /// Whatever it does.
    pub(in crate::executor) absolute: Option<Duration>,
    /// Time without a progress report.
    pub(in crate::executor) idle: Option<Duration>,
    /// How often it is retried if that is safe.
    pub(in crate::executor) retries: u32,
}

/// The limit that a call reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::executor) enum ReachedLimit {
    Absolute,
    Idle,
}

impl CallTimeLimits {
    /// Returns the limits of a call. Sub-agents are exempt from the global limits, because their own calls have limits.
    /// Tools that await other calls are exempt from the global idle limit.
    pub(in crate::executor) fn of(entry: &Entry, run: &RunContext, options: &ExecutorOptions) -> Self {
        let (tool, provider) = (entry.definition(), entry.provider.limits());
        let is_agent = entry.provider.kind() == ProviderKind::Agent;
        // A tool that awaits other calls reports no progress meanwhile; those calls have their own limits.
        let awaits_others = is_agent || entry.provider.awaits_others(entry.id());
        let global = Some(options.defaults.tool_timeout).filter(|_| !is_agent);
        let global_idle = options.defaults.idle_timeout.filter(|_| !awaits_others);
        let idle = tool.idle_timeout.or(provider.idle_timeout).or(global_idle);
        Self {
            absolute: run.timeout.or(tool.timeout).or(provider.timeout).or(global),
            // A stateful job is silent while it waits for input, and that wait has its own limit.
            idle: idle.filter(|_| run.job.is_none() || tool.mode != Mode::Stateful),
            retries: tool.retries.or(provider.retries).unwrap_or(0),
        }
    }

    /// Returns whether a call may run longer than `span`.
    pub(in crate::executor) fn allow(&self, span: Duration) -> bool {
        [self.absolute, self.idle].into_iter().flatten().all(|limit| limit > span)
    }

    /// Waits until the call has reached a limit.
    pub(in crate::executor) async fn wait_for_limit(&self, entry: &Entry, progress: &CallProgress) -> ToolError {
        let reached = loop {
            match progress.time_left(self) {
                None => std::future::pending().await,
                Some((Duration::ZERO, reached)) => break reached,
                Some((left, _)) => tokio::time::sleep(left).await,
            }
        };
        let (did_not, model, limit) = match reached {
            ReachedLimit::Absolute => ("finish within", "timeout after", self.absolute),
            ReachedLimit::Idle => ("report progress for", "timeout: no progress for", self.idle),
        };
        let limit = duration::format(limit.unwrap_or_default());
        ToolError::new(ErrorKind::Timeout, format!("{} did not {did_not} {limit}", entry.id()))
            .with_model_message(format!("{model} {limit}"))
    }
}

/// Progress of one call: for the events, and for its caller.
pub(in crate::executor) struct CallProgress {
    services: Arc<Services>,
    op: Op,
    call: CallId,
    entry: Arc<Entry>,
    also: Progress,
    /// The call's text, streamed through redaction because a secret may span several pieces.
    text: Mutex<StreamRedactor>,
    began: Instant,
    asking: Mutex<QuestionTimers>,
    /// Milliseconds from the start to the last activity.
    last_activity: AtomicU64,
    attempts: AtomicU32,
}

/// How long questions were open.
#[derive(Debug, Default)]
struct QuestionTimer {
    /// The number of open questions.
    open: usize,
    /// When the first of them was opened.
    since: Option<Instant>,
    /// The sum of finished waits.
    waited: Duration,
}

impl QuestionTimer {
    fn opens(&mut self) {
        self.open += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    fn closes(&mut self) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0
            && let Some(since) = self.since.take()
        {
            self.waited += since.elapsed();
        }
    }

    fn total(&self) -> Duration {
        self.waited + self.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

/// The questions of a call.
#[derive(Debug, Default)]
struct QuestionTimers {
    /// Questions to its client: a person, a model or a program.
    all: QuestionTimer,
    /// Questions to a person.
    person: QuestionTimer,
}

impl CallProgress {
    pub(in crate::executor) fn new(
        services: &Arc<Services>,
        op: &Op,
        call: &CallId,
        entry: &Arc<Entry>,
        also: Progress,
    ) -> Arc<Self> {
        Arc::new(Self {
            services: Arc::clone(services),
            op: op.clone(),
            call: call.clone(),
            entry: Arc::clone(entry),
            also,
            text: Mutex::new(StreamRedactor::new(Arc::clone(&services.redactor))),
            began: Instant::now(),
            asking: Mutex::default(),
            last_activity: AtomicU64::new(0),
            attempts: AtomicU32::new(0),
        })
    }

    /// Records a new attempt, which counts as activity.
    pub(in crate::executor) fn note_attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.record_activity();
    }

    /// Returns how often the call was dispatched.
    pub(in crate::executor) fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    fn emit(&self, partial: Partial) {
        let (op, call, tool) = (self.op.clone(), self.call.clone(), self.entry.id().clone());
        self.services.events.emit(Event::ToolPartial { op, call, tool, partial });
    }

    fn is_watched(&self) -> bool {
        self.services.events.event_detail() >= EventDetail::Brief
    }

    /// Passes on text without secrets.
    fn pass_text(&self, to_caller: bool, take: impl FnOnce(&mut StreamRedactor) -> String) {
        let text = take(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
        if text.is_empty() {
            return;
        }
        if to_caller {
            self.also.send(Partial::Text(text.clone()));
        }
        if self.is_watched() {
            self.emit(Partial::Text(text));
        }
    }

    fn record_activity(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_activity.fetch_max(since, Ordering::Relaxed);
    }

    fn asking(&self) -> MutexGuard<'_, QuestionTimers> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a question to the call's client is open. The call's limits are paused.
    pub(super) fn question_opened(&self, person: bool) {
        let mut asking = self.asking();
        asking.all.opens();
        if person {
            asking.person.opens();
        }
    }

    /// Records that a question was answered or given up, which counts as activity.
    pub(super) fn is_answered(&self, person: bool) {
        let mut asking = self.asking();
        asking.all.closes();
        if person {
            asking.person.closes();
        }
        drop(asking);
        self.record_activity();
    }

    /// Returns how long it waited for a person.
    pub(in crate::executor) fn person_wait(&self) -> Duration {
        self.asking().person.total()
    }

    /// Returns how long the call has only waited for its client, and whether it does so now.
    fn waited(&self) -> (Duration, bool) {
        let asking = &self.asking().all;
        (asking.total(), asking.since.is_some())
    }

    /// Returns how long the call has been running, including waits for its client.
    pub(in crate::executor) fn running_for(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the time until the call reaches a limit, and which one; `None` if it has no limit. Waits for the call's
    /// client do not count; during one, call this again after the returned time.
    pub(super) fn time_left(&self, limits: &CallTimeLimits) -> Option<(Duration, ReachedLimit)> {
        let ((waited, asks), ran) = (self.waited(), self.began.elapsed());
        let absolute = limits.absolute.map(|limit| (limit + waited).saturating_sub(ran));
        let absolute = absolute.map(|left| if asks && !left.is_zero() { left.max(ASKING_STEP) } else { left });
        let last_activity = Duration::from_millis(self.last_activity.load(Ordering::Relaxed));
        let idle = limits.idle.map(|limit| match asks {
            true => limit.max(ASKING_STEP),
            false => (last_activity + limit).saturating_sub(ran),
        });
        let both = [(absolute, ReachedLimit::Absolute), (idle, ReachedLimit::Idle)];
        both.into_iter().filter_map(|(left, reached)| Some((left?, reached))).min_by_key(|(left, _)| *left)
    }
}

impl PartialSink for CallProgress {
    fn send(&self, partial: Partial) {
        self.record_activity();
        match partial {
            Partial::Text(text) => {
                let to_log = self.also.accepts_unredacted();
                let to_caller = !to_log && self.also.has_receiver();
                if to_caller || self.is_watched() {
                    self.pass_text(to_caller, |stream| stream.push(&text));
                }
                if to_log {
                    self.also.send(Partial::Text(text));
                }
            }
            Partial::Progress { progress, total, message, more } => {
                let redacted = self.is_watched().then(|| {
                    let message = message.as_ref().map(|message| self.services.redactor.redact(message).into_owned());
                    Partial::Progress { progress, total, message, more: Map::new() }
                });
                self.also.send(Partial::Progress { progress, total, message, more });
                if let Some(redacted) = redacted {
                    self.emit(redacted);
                }
            }
        }
    }

    fn accepts_unredacted(&self) -> bool {
        true
    }
}

impl Drop for CallProgress {
    /// Passes on the text that was held back.
    fn drop(&mut self) {
        self.pass_text(!self.also.accepts_unredacted(), StreamRedactor::finish);
    }
}

/// The target of a call's progress: its caller, or the log of the job that it has become.
pub(in crate::executor) struct Progress {
    became: Option<PromotedTo>,
    caller: Option<Arc<dyn PartialSink>>,
}

impl Progress {
    /// Returns the target for the call `id` under these terms.
    pub(in crate::executor) fn of(id: &CallId, run: &RunContext) -> Self {
        Self { became: run.became.clone(), caller: run.partials.as_ref().map(|make| make(id)) }
    }

    fn sink(&self) -> Option<Arc<dyn PartialSink>> {
        let log = self.became.as_ref().and_then(|became| became.job()).map(|job| Arc::clone(&job.log));
        log.or_else(|| self.caller.clone())
    }

    fn has_receiver(&self) -> bool {
        self.sink().is_some()
    }
}

impl PartialSink for Progress {
    fn send(&self, partial: Partial) {
        if let Some(sink) = self.sink() {
            sink.send(partial);
        }
    }

    fn accepts_unredacted(&self) -> bool {
        self.sink().is_some_and(|sink| sink.accepts_unredacted())
    }
}
