//! One waiting line: so many run at once, the others wait in order, a bounded crowd for a bounded time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::name::ToolId;

use super::rate::Rate;
use super::{Priority, QueueSpec};

/// A background call counts as if it had come this much later: what is interactive goes first, yet nothing that
/// came long after it.
const HANDICAP: Duration = Duration::from_secs(10);
/// Holders that a refusal names.
const NAMED: usize = 5;

/// A line in front of something of which there are only so many.
#[derive(Debug)]
pub(crate) struct Line {
    /// Its name for events and counters, like `db`.
    name: String,
    /// What is waited for in words, like "queue `db`".
    what: String,
    spec: QueueSpec,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The next caller's number; numbers are in the order of coming.
    next: u64,
    holders: HashMap<u64, ToolId>,
    /// By priority.
    waiting: [BTreeMap<u64, Waiter>; 2],
    /// The highest number that was let in, by priority.
    newest: [u64; 2],
    /// How often a lower one was let in after it.
    overtaken: u64,
    rate: Option<Rate>,
    /// Somebody will look again when the rate allows the next start.
    alarm: bool,
    closed: Option<CancelCause>,
}

#[derive(Debug)]
struct Waiter {
    tool: ToolId,
    since: Instant,
    turn: oneshot::Sender<Slot>,
}

/// A place at what the line is for, given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    line: Arc<Line>,
    number: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.line.state().holders.remove(&self.number);
        self.line.hand_out();
    }
}

/// A waiter's place in the line, given up when dropped.
struct Place<'a> {
    line: &'a Line,
    priority: Priority,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.line.state().waiting[self.priority as usize].remove(&self.number);
    }
}

enum Entered {
    At(Slot),
    Waits(u64, oneshot::Receiver<Slot>),
}

impl Line {
    pub(crate) fn new(name: impl Into<String>, what: String, spec: QueueSpec) -> Arc<Self> {
        let rate = spec.per_minute.map(Rate::new);
        Arc::new(Self { name: name.into(), what, spec, state: Mutex::new(State { rate, ..State::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody is at it or waits for it.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let state = self.state();
        state.holders.is_empty() && state.waiting.iter().all(BTreeMap::is_empty)
    }

    /// Calls that were let in after one of their priority that had come later: none, if the line is one.
    pub(crate) fn overtaken(&self) -> u64 {
        self.state().overtaken
    }

    /// Ends all waits with this cause and lets nobody in any more.
    pub(crate) fn close(&self, cause: CancelCause) {
        let waiting = {
            let mut state = self.state();
            state.closed.get_or_insert(cause);
            std::mem::take(&mut state.waiting)
        };
        // Their senders go: each waiter finds its line closed.
        drop(waiting);
    }

    /// Takes a slot, waiting in line if need be; returns how long that took. `on_wait` is told the line's name before
    /// a wait. Cancel-safe: a caller that goes gives up its place or slot.
    ///
    /// # Errors
    /// `limit_exceeded`, naming the line and its holders, when too many wait or the wait is over its limit;
    /// `canceled` when the token fires or the line is closed. All are retryable: nothing was dispatched.
    pub(crate) async fn take(
        self: &Arc<Self>,
        tool: &ToolId,
        priority: Priority,
        cancel: &Cancel,
        on_wait: impl FnOnce(&str),
    ) -> Result<(Slot, Duration), ToolError> {
        if let Some(cause) = cancel.cause() {
            return Err(ToolError::canceled(cause));
        }
        let (number, mut turn) = match self.enter(tool, priority)? {
            Entered::At(slot) => return Ok((slot, Duration::ZERO)),
            Entered::Waits(number, turn) => (number, turn),
        };
        // Dropped before `turn`: who is out of the line cannot be given a slot any more.
        let _place = Place { line: self, priority, number };
        let since = Instant::now();
        on_wait(&self.name);
        // A call of low priority may be alone with a rate that lets nobody start yet.
        self.hand_out();
        tokio::select! {
            // A slot that comes together with the cancel is given back.
            biased;
            cause = cancel.cancelled() => Err(ToolError::canceled(cause)),
            slot = &mut turn => match slot {
                Ok(slot) => Ok((slot, since.elapsed())),
                Err(_) => Err(ToolError::canceled(self.state().closed.unwrap_or(CancelCause::Shutdown))),
            },
            () = tokio::time::sleep(self.spec.wait_timeout) => Err(self.refusal(&self.state(), &format!(
                "{} was not free within {}", self.what, duration::format(self.spec.wait_timeout)
            ))),
        }
    }

    fn enter(self: &Arc<Self>, tool: &ToolId, priority: Priority) -> Result<Entered, ToolError> {
        let mut state = self.state();
        if let Some(cause) = state.closed {
            return Err(ToolError::canceled(cause));
        }
        let number = state.next;
        state.next += 1;
        let now = Instant::now();
        if state.waiting.iter().all(BTreeMap::is_empty) && self.room(&mut state, now).is_ok() {
            state.let_in(number, priority as usize, tool.clone(), now);
            return Ok(Entered::At(Slot { line: Arc::clone(self), number }));
        }
        if state.waiting.iter().map(BTreeMap::len).sum::<usize>() >= self.spec.max_waiting {
            let what = format!("{} is full: {} calls wait already", self.what, self.spec.max_waiting);
            return Err(self.refusal(&state, &what));
        }
        let (sender, turn) = oneshot::channel();
        state.waiting[priority as usize].insert(number, Waiter { tool: tool.clone(), since: now, turn: sender });
        Ok(Entered::Waits(number, turn))
    }

    /// Whether one more may start.
    ///
    /// # Errors
    /// When that may change by time alone.
    fn room(&self, state: &mut State, now: Instant) -> Result<(), Option<Instant>> {
        if state.holders.len() >= self.spec.concurrent.max(1) {
            return Err(None);
        }
        match state.rate.as_mut().and_then(|rate| rate.blocked_until(now)) {
            Some(until) => Err(Some(until)),
            None => Ok(()),
        }
    }

    /// Gives what is free to those whose turn it is.
    fn hand_out(self: &Arc<Self>) {
        // Of waiters that have just gone. Dropped when the state is not locked any more: that gives them back.
        let mut unclaimed = Vec::new();
        let mut state = self.state();
        let now = Instant::now();
        while let Some(priority) = state.next_in_line() {
            if let Err(until) = self.room(&mut state, now) {
                if let Some(until) = until {
                    self.set_alarm(&mut state, until);
                }
                break;
            }
            let Some((number, waiter)) = state.waiting[priority].pop_first() else { break };
            state.let_in(number, priority, waiter.tool, now);
            unclaimed.extend(waiter.turn.send(Slot { line: Arc::clone(self), number }).err());
        }
        drop(state);
    }

    fn set_alarm(self: &Arc<Self>, state: &mut State, until: Instant) {
        // Without a runtime nobody waits any more.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !std::mem::replace(&mut state.alarm, true) {
            let line = Arc::downgrade(self);
            runtime.spawn(async move {
                tokio::time::sleep_until(until).await;
                if let Some(line) = line.upgrade() {
                    line.state().alarm = false;
                    line.hand_out();
                }
            });
        }
    }

    fn refusal(&self, state: &State, what: &str) -> ToolError {
        let holders: Vec<&str> = state.holders.values().take(NAMED).map(ToolId::as_str).collect();
        let more = state.holders.len().saturating_sub(NAMED);
        let held = match (holders.is_empty(), more) {
            (true, _) => "nobody".to_owned(),
            (false, 0) => holders.join(", "),
            (false, more) => format!("{} and {more} more", holders.join(", ")),
        };
        let rate = self.spec.per_minute.map(|limit| format!("; {limit} may start in a minute")).unwrap_or_default();
        ToolError::new(ErrorKind::LimitExceeded, format!("{what}; held by {held}{rate}")).retryable()
    }
}

impl State {
    fn let_in(&mut self, number: u64, priority: usize, tool: ToolId, now: Instant) {
        let newest = &mut self.newest[priority];
        self.overtaken += u64::from(number < *newest);
        *newest = number.max(*newest);
        self.holders.insert(number, tool);
        if let Some(rate) = &mut self.rate {
            rate.note_start(now);
        }
    }

    /// The priority whose first waiter is next.
    fn next_in_line(&self) -> Option<usize> {
        let since = |priority: Priority| self.waiting[priority as usize].values().next().map(|waiter| waiter.since);
        let next = match (since(Priority::Interactive), since(Priority::Background)) {
            (Some(interactive), Some(background)) if background + HANDICAP < interactive => Priority::Background,
            (Some(_), _) => Priority::Interactive,
            (None, Some(_)) => Priority::Background,
            (None, None) => return None,
        };
        Some(next as usize)
    }
}

#[cfg(test)]
mod tests;
