//! A priority queue: limits the calls that run, and the number and time of those that wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::ModelPriority;
use toolwright_core::tool_id::ToolId;

use super::QueueConfig;
use super::Rate;

/// By priority, how much later a waiter counts as having come: a lower one lets a higher one go first, yet nothing
/// that came long after it. See [`handicaps`].
const HANDICAPS: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(10), Duration::from_secs(20), Duration::from_secs(70)];
/// Holders that a refusal names.
const NAMED: usize = 5;

/// Who is in a queue.
pub(crate) trait Holder: Clone + std::fmt::Debug + Send + 'static {
    /// In words, for who has to wait.
    fn name(&self) -> &str;
}

impl Holder for ToolId {
    fn name(&self) -> &str {
        self.as_str()
    }
}

impl Holder for Arc<str> {
    fn name(&self) -> &str {
        self
    }
}

/// The queue for something of which there are only so many, for holders of type `H`, by which a refusal names
/// them.
#[derive(Debug)]
pub(crate) struct PriorityQueue<H: Holder = ToolId> {
    /// Its name for events and counters, like `db`.
    name: String,
    /// What is waited for in words, like "queue `db`".
    what: String,
    spec: QueueConfig,
    state: Mutex<State<H>>,
}

#[derive(Debug)]
struct State<H: Holder> {
    handicaps: [Duration; HANDICAPS.len()],
    /// The next caller's number; numbers are in the order of coming.
    next: u64,
    holders: HashMap<u64, H>,
    /// By priority.
    waiting: [BTreeMap<u64, Waiter<H>>; HANDICAPS.len()],
    rate: Option<Rate>,
    /// Nobody starts before.
    paused: Option<Instant>,
    /// Somebody will look again when the rate allows the next start.
    alarm: bool,
    closed: Option<CancelCause>,
}

/// The handicaps where nobody waits for longer than `wait_timeout`: those of [`HANDICAPS`], or a sixth of it for each
/// step down where that is less. The last has its turn in half of it, and none counts as long as the one above it.
fn handicaps(wait_timeout: Duration) -> [Duration; HANDICAPS.len()] {
    let mut step = Duration::ZERO;
    HANDICAPS.map(|handicap| {
        let most = step;
        step += wait_timeout / 6;
        handicap.min(most)
    })
}

#[derive(Debug)]
struct Waiter<H: Holder> {
    holder: H,
    since: Instant,
    turn: oneshot::Sender<Slot<H>>,
}

/// How a call may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitBounds {
    /// How long at most.
    pub(crate) limit: Duration,
    /// Beside how many others at most.
    pub(crate) others: usize,
}

/// A place at what the queue is for, given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot<H: Holder = ToolId> {
    queue: Arc<PriorityQueue<H>>,
    number: u64,
}

impl<H: Holder> Drop for Slot<H> {
    fn drop(&mut self) {
        self.queue.state().holders.remove(&self.number);
        self.queue.hand_out();
    }
}

/// A waiter's place in the queue, given up when dropped.
struct Place<'a, H: Holder> {
    queue: &'a PriorityQueue<H>,
    priority: ModelPriority,
    number: u64,
}

impl<H: Holder> Drop for Place<'_, H> {
    fn drop(&mut self) {
        self.queue.state().waiting[self.priority as usize].remove(&self.number);
    }
}

enum Entered<H: Holder> {
    At(Slot<H>),
    Waits(u64, oneshot::Receiver<Slot<H>>),
}

impl<H: Holder> PriorityQueue<H> {
    pub(crate) fn new(name: impl Into<String>, what: String, spec: QueueConfig) -> Arc<Self> {
        let rate = spec.per_minute.map(Rate::new);
        let state = State {
            handicaps: handicaps(spec.wait_timeout),
            next: 0,
            holders: HashMap::new(),
            waiting: std::array::from_fn(|_| BTreeMap::new()),
            rate,
            paused: None,
            alarm: false,
            closed: None,
        };
        Arc::new(Self { name: name.into(), what, spec, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody is at it or waits for it.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let state = self.state();
        state.holders.is_empty() && state.waiting.iter().all(BTreeMap::is_empty)
    }

    /// Lets nobody start before `until`, which the one whom the queue is for has asked for.
    pub(crate) fn pause(&self, until: Instant) {
        let mut state = self.state();
        state.paused = state.paused.max(Some(until));
    }

    /// Ends all waits with this cause and lets nobody in any more.
    pub(crate) fn close(&self, cause: CancelCause) {
        let waiting = {
            let mut state = self.state();
            state.closed.get_or_insert(cause);
            std::mem::take(&mut state.waiting)
        };
        // Their senders go: each waiter finds its queue closed.
        drop(waiting);
    }

    /// How calls may wait here.
    pub(crate) fn bounds(&self) -> WaitBounds {
        WaitBounds { limit: self.spec.wait_timeout, others: self.spec.max_waiting }
    }

    /// [`PriorityQueue::take_within`] the queue's own bounds.
    ///
    /// # Errors
    /// As [`PriorityQueue::take_within`].
    pub(crate) async fn take(
        self: &Arc<Self>,
        holder: &H,
        priority: impl Into<ModelPriority>,
        cancel: &Cancel,
        on_wait: impl FnOnce(&str),
    ) -> Result<(Slot<H>, Duration), ToolError> {
        self.take_within(self.bounds(), holder, priority, cancel, on_wait).await
    }

    /// Takes a slot, waiting within these bounds; returns how long that took. `on_wait` is told the queue's name before
    /// a wait. Cancel-safe: a caller that goes gives up its place or slot.
    ///
    /// # Errors
    /// `limit_exceeded`, naming the queue and its holders, when too many wait, none of them of a lower priority, when one
    /// of a higher priority took the place of this one in a full queue, or when the wait is over its limit;
    /// `canceled` when the token fires or the queue is closed. All are retryable: nothing was dispatched.
    pub(crate) async fn take_within(
        self: &Arc<Self>,
        bounds: WaitBounds,
        holder: &H,
        priority: impl Into<ModelPriority>,
        cancel: &Cancel,
        on_wait: impl FnOnce(&str),
    ) -> Result<(Slot<H>, Duration), ToolError> {
        let priority = priority.into();
        if let Some(cause) = cancel.cause() {
            return Err(ToolError::canceled(cause).retryable());
        }
        let (number, mut turn) = match self.enter(holder, priority, bounds.others)? {
            Entered::At(slot) => return Ok((slot, Duration::ZERO)),
            Entered::Waits(number, turn) => (number, turn),
        };
        // Dropped before `turn`: who is out of the queue cannot be given a slot any more.
        let _place = Place { queue: self, priority, number };
        let since = Instant::now();
        on_wait(&self.name);
        // A call of low priority may be alone with a rate that lets nobody start yet.
        self.hand_out();
        tokio::select! {
            // A slot that comes together with the cancel is given back.
            biased;
            cause = cancel.cancelled() => Err(ToolError::canceled(cause).retryable()),
            slot = &mut turn => match slot {
                Ok(slot) => Ok((slot, since.elapsed())),
                Err(_) => Err(self.evicted()),
            },
            () = tokio::time::sleep(bounds.limit) => Err(self.refusal(&self.state(), &format!(
                "{} was not free within {}", self.what, duration::format(bounds.limit)
            ))),
        }
    }

    fn enter(self: &Arc<Self>, holder: &H, priority: ModelPriority, others: usize) -> Result<Entered<H>, ToolError> {
        // Dropped when the state is not locked any more: that tells its waiter.
        let _evicted;
        let mut state = self.state();
        if let Some(cause) = state.closed {
            return Err(ToolError::canceled(cause).retryable());
        }
        let number = state.next;
        state.next += 1;
        let now = Instant::now();
        if state.waiting.iter().all(BTreeMap::is_empty) && self.room(&mut state, now).is_ok() {
            state.admit(number, holder.clone(), now);
            return Ok(Entered::At(Slot { queue: Arc::clone(self), number }));
        }
        if state.waiting.iter().map(BTreeMap::len).sum::<usize>() >= others {
            _evicted = match state.evict_below(priority as usize) {
                Some(waiter) => waiter,
                None => return Err(self.refusal(&state, &self.full(others))),
            };
        }
        let (sender, turn) = oneshot::channel();
        state.waiting[priority as usize].insert(number, Waiter { holder: holder.clone(), since: now, turn: sender });
        Ok(Entered::Waits(number, turn))
    }

    /// Whether one more may start.
    ///
    /// # Errors
    /// When that may change by time alone.
    fn room(&self, state: &mut State<H>, now: Instant) -> Result<(), Option<Instant>> {
        if state.holders.len() >= self.spec.concurrent.max(1) {
            return Err(None);
        }
        if let Some(until) = state.paused.filter(|&until| until > now) {
            return Err(Some(until));
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
        while let Some(priority) = state.next_waiter() {
            if let Err(until) = self.room(&mut state, now) {
                if let Some(until) = until {
                    self.set_alarm(&mut state, until);
                }
                break;
            }
            let Some((number, waiter)) = state.waiting[priority].pop_first() else { break };
            state.admit(number, waiter.holder, now);
            unclaimed.extend(waiter.turn.send(Slot { queue: Arc::clone(self), number }).err());
        }
        drop(state);
    }

    fn set_alarm(self: &Arc<Self>, state: &mut State<H>, until: Instant) {
        // Without a runtime nobody waits any more.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !std::mem::replace(&mut state.alarm, true) {
            let queue = Arc::downgrade(self);
            runtime.spawn(async move {
                tokio::time::sleep_until(until).await;
                if let Some(queue) = queue.upgrade() {
                    queue.state().alarm = false;
                    queue.hand_out();
                }
            });
        }
    }

    fn full(&self, others: usize) -> String {
        format!("{} is full: {others} calls wait already", self.what)
    }

    /// Why a waiter has lost its place.
    fn evicted(&self) -> ToolError {
        let state = self.state();
        match state.closed {
            Some(cause) => ToolError::canceled(cause).retryable(),
            None => self
                .refusal(&state, &format!("{}, and one of a higher priority came", self.full(self.spec.max_waiting))),
        }
    }

    fn refusal(&self, state: &State<H>, what: &str) -> ToolError {
        let holders: Vec<&str> = state.holders.values().take(NAMED).map(Holder::name).collect();
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

impl<H: Holder> State<H> {
    fn admit(&mut self, number: u64, holder: H, now: Instant) {
        self.holders.insert(number, holder);
        if let Some(rate) = &mut self.rate {
            rate.note_start(now);
        }
    }

    /// Takes the newest waiter of the lowest priority out of the queue, if that is lower than `priority`.
    fn evict_below(&mut self, priority: usize) -> Option<Waiter<H>> {
        let lower = self.waiting.iter_mut().skip(priority + 1).rev();
        lower.filter_map(BTreeMap::pop_last).map(|(_, waiter)| waiter).next()
    }

    /// The priority whose first waiter is next.
    fn next_waiter(&self) -> Option<usize> {
        let first =
            self.waiting.iter().zip(self.handicaps).enumerate().filter_map(|(priority, (waiting, handicap))| {
                let (_, waiter) = waiting.first_key_value()?;
                Some((waiter.since + handicap, priority))
            });
        first.min().map(|(_, priority)| priority)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
