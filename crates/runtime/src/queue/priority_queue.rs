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

/// For each priority, how much later a waiter counts as having arrived. A lower priority lets a higher one go first,
/// but not one that arrives much later. See [`priority_delays`].
const PRIORITY_DELAYS: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(10), Duration::from_secs(20), Duration::from_secs(70)];
/// The most holders that a refusal names.
const NAMED: usize = 5;

/// A holder of a slot in a queue.
pub(crate) trait QueueMember: Clone + std::fmt::Debug + Send + 'static {
    /// Returns its name for waiters.
    fn name(&self) -> &str;
}

impl QueueMember for ToolId {
    fn name(&self) -> &str {
        self.as_str()
    }
}

impl QueueMember for Arc<str> {
    fn name(&self) -> &str {
        self
    }
}

/// A queue for a limited resource. A refusal names the holders, of type `H`.
#[derive(Debug)]
pub(crate) struct PriorityQueue<H: QueueMember = ToolId> {
    /// Its name for events and counters, like `db`.
    name: String,
    /// The resource in words, like "queue `db`".
    what: String,
    config: QueueConfig,
    state: Mutex<State<H>>,
}

#[derive(Debug)]
struct State<H: QueueMember> {
    priority_delays: [Duration; PRIORITY_DELAYS.len()],
    /// The number of the next caller. Numbers are in the order of arrival.
    next: u64,
    holders: HashMap<u64, H>,
    /// Waiters by priority.
    waiting: [BTreeMap<u64, Waiter<H>>; PRIORITY_DELAYS.len()],
    rate: Option<Rate>,
    /// No call starts before this time.
    paused: Option<Instant>,
    /// Whether a task will check again when the rate allows the next start.
    alarm: bool,
    closed: Option<CancelCause>,
}

/// Returns the delays for a queue with this `wait_timeout`: those of [`PRIORITY_DELAYS`], but at most a sixth of it per
/// step down. So the lowest priority gets its turn within half of it.
fn priority_delays(wait_timeout: Duration) -> [Duration; PRIORITY_DELAYS.len()] {
    let mut step = Duration::ZERO;
    PRIORITY_DELAYS.map(|priority_delay| {
        let most = step;
        step += wait_timeout / 6;
        priority_delay.min(most)
    })
}

#[derive(Debug)]
struct Waiter<H: QueueMember> {
    holder: H,
    since: Instant,
    turn: oneshot::Sender<Slot<H>>,
}

/// The limits of a call's wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitBounds {
    /// The longest wait.
    pub(crate) limit: Duration,
    /// The most other waiters.
    pub(crate) others: usize,
}

/// A slot of the resource, released on drop.
#[derive(Debug)]
pub(crate) struct Slot<H: QueueMember = ToolId> {
    queue: Arc<PriorityQueue<H>>,
    number: u64,
}

impl<H: QueueMember> Drop for Slot<H> {
    fn drop(&mut self) {
        self.queue.state().holders.remove(&self.number);
        self.queue.grant_free_slots();
    }
}

/// A waiter's place in the queue, given up on drop.
struct WaiterPlace<'a, H: QueueMember> {
    queue: &'a PriorityQueue<H>,
    priority: ModelPriority,
    number: u64,
}

impl<H: QueueMember> Drop for WaiterPlace<'_, H> {
    fn drop(&mut self) {
        self.queue.state().waiting[self.priority as usize].remove(&self.number);
    }
}

enum EnterResult<H: QueueMember> {
    At(Slot<H>),
    Waits(u64, oneshot::Receiver<Slot<H>>),
}

impl<H: QueueMember> PriorityQueue<H> {
    pub(crate) fn new(name: impl Into<String>, what: String, config: QueueConfig) -> Arc<Self> {
        let rate = config.per_minute.map(Rate::new);
        let state = State {
            priority_delays: priority_delays(config.wait_timeout),
            next: 0,
            holders: HashMap::new(),
            waiting: std::array::from_fn(|_| BTreeMap::new()),
            rate,
            paused: None,
            alarm: false,
            closed: None,
        };
        Arc::new(Self { name: name.into(), what, config, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether nobody holds a slot or waits.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let state = self.state();
        state.holders.is_empty() && state.waiting.iter().all(BTreeMap::is_empty)
    }

    /// Lets no call start before `until`, as the resource has asked.
    pub(crate) fn pause(&self, until: Instant) {
        let mut state = self.state();
        state.paused = state.paused.max(Some(until));
    }

    /// Ends all waits with this cause and admits nobody any more.
    pub(crate) fn close(&self, cause: CancelCause) {
        let waiting = {
            let mut state = self.state();
            state.closed.get_or_insert(cause);
            std::mem::take(&mut state.waiting)
        };
        // Dropping the senders shows each waiter that its queue is closed.
        drop(waiting);
    }

    /// Returns the limits of waits here.
    pub(crate) fn bounds(&self) -> WaitBounds {
        WaitBounds { limit: self.config.wait_timeout, others: self.config.max_waiting }
    }

    /// Like [`PriorityQueue::take_within`], with the queue's own limits.
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

    /// Takes a slot, waiting within these limits; returns how long that took. `on_wait` gets the queue's name before a
    /// wait. Cancel-safe: a dropped caller gives up its place or slot.
    ///
    /// # Errors
    /// `limit_exceeded`, naming the queue and its holders: too many wait and none of them has a lower priority, a
    /// waiter of higher priority took this one's place in a full queue, or the wait reached its limit. `canceled` if
    /// the token fires or the queue is closed. All are retryable, because nothing was dispatched.
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
            EnterResult::At(slot) => return Ok((slot, Duration::ZERO)),
            EnterResult::Waits(number, turn) => (number, turn),
        };
        // Dropped before `turn`: a waiter outside of the queue cannot be given a slot any more.
        let _place = WaiterPlace { queue: self, priority, number };
        let since = Instant::now();
        on_wait(&self.name);
        // A call of low priority may be the only waiter while the rate allows no start.
        self.grant_free_slots();
        tokio::select! {
            // A slot that arrives together with the cancel is released.
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

    fn enter(
        self: &Arc<Self>,
        holder: &H,
        priority: ModelPriority,
        others: usize,
    ) -> Result<EnterResult<H>, ToolError> {
        // Dropped after the state is unlocked, which wakes the waiter.
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
            return Ok(EnterResult::At(Slot { queue: Arc::clone(self), number }));
        }
        if state.waiting.iter().map(BTreeMap::len).sum::<usize>() >= others {
            _evicted = match state.evict_lower_priority(priority as usize) {
                Some(waiter) => waiter,
                None => return Err(self.refusal(&state, &self.full(others))),
            };
        }
        let (sender, turn) = oneshot::channel();
        state.waiting[priority as usize].insert(number, Waiter { holder: holder.clone(), since: now, turn: sender });
        Ok(EnterResult::Waits(number, turn))
    }

    /// Checks whether one more may start.
    ///
    /// # Errors
    /// The time after which to check again, if only time can change it.
    fn room(&self, state: &mut State<H>, now: Instant) -> Result<(), Option<Instant>> {
        if state.holders.len() >= self.config.concurrent.max(1) {
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

    /// Gives free slots to the next waiters.
    fn grant_free_slots(self: &Arc<Self>) {
        // Slots for waiters that have just left. Dropped after the state is unlocked, which releases them.
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
        // Without a runtime there are no waiters any more.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !std::mem::replace(&mut state.alarm, true) {
            let queue = Arc::downgrade(self);
            runtime.spawn(async move {
                tokio::time::sleep_until(until).await;
                if let Some(queue) = queue.upgrade() {
                    queue.state().alarm = false;
                    queue.grant_free_slots();
                }
            });
        }
    }

    fn full(&self, others: usize) -> String {
        format!("{} is full: {others} calls wait already", self.what)
    }

    /// Returns the error of a waiter that has lost its place.
    fn evicted(&self) -> ToolError {
        let state = self.state();
        match state.closed {
            Some(cause) => ToolError::canceled(cause).retryable(),
            None => self
                .refusal(&state, &format!("{}, and one of a higher priority came", self.full(self.config.max_waiting))),
        }
    }

    fn refusal(&self, state: &State<H>, what: &str) -> ToolError {
        let holders: Vec<&str> = state.holders.values().take(NAMED).map(QueueMember::name).collect();
        let more = state.holders.len().saturating_sub(NAMED);
        let held = match (holders.is_empty(), more) {
            (true, _) => "nobody".to_owned(),
            (false, 0) => holders.join(", "),
            (false, more) => format!("{} and {more} more", holders.join(", ")),
        };
        let rate = self.config.per_minute.map(|limit| format!("; {limit} may start in a minute")).unwrap_or_default();
        ToolError::new(ErrorKind::LimitExceeded, format!("{what}; held by {held}{rate}")).retryable()
    }
}

impl<H: QueueMember> State<H> {
    fn admit(&mut self, number: u64, holder: H, now: Instant) {
        self.holders.insert(number, holder);
        if let Some(rate) = &mut self.rate {
            rate.note_start(now);
        }
    }

    /// Removes the newest waiter of the lowest priority from the queue, if that is lower than `priority`.
    fn evict_lower_priority(&mut self, priority: usize) -> Option<Waiter<H>> {
        let lower = self.waiting.iter_mut().skip(priority + 1).rev();
        lower.filter_map(BTreeMap::pop_last).map(|(_, waiter)| waiter).next()
    }

    /// Returns the priority whose first waiter is next.
    fn next_waiter(&self) -> Option<usize> {
        let first = self.waiting.iter().zip(self.priority_delays).enumerate().filter_map(
            |(priority, (waiting, priority_delay))| {
                let (_, waiter) = waiting.first_key_value()?;
                Some((waiter.since + priority_delay, priority))
            },
        );
        first.min().map(|(_, priority)| priority)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
