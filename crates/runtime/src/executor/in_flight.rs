//! The calls in flight: how they are counted, made jobs by a person, and stopped when the application closes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::Notify;
use tokio::time::Instant;
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Provider;
use toolwright_core::error::ToolError;
use toolwright_core::operation::OpId;
use toolwright_core::session::SessionId;

use super::{Executor, RunContext};

/// What a call that was abandoned takes, at most, to enter the ledger.
const LEDGER_TIME: Duration = Duration::from_secs(1);
/// How often whoever closes the application looks whether calls have ended.
const LOOK: Duration = Duration::from_millis(5);

/// Calls under way, by operation.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    calls: HashMap<OpId, Arc<CallInFlight>>,
    is_closed: bool,
    /// How long running calls get to end once the application is closed.
    grace: Duration,
}

/// A call under way.
#[derive(Debug)]
pub(super) struct CallInFlight {
    /// Providers are compared by identity: an old and a new one of the same name are two.
    provider: usize,
    cancel: Cancel,
    session: SessionId,
    /// Whether another process may run it again.
    is_repeatable: bool,
    /// Whether it can become a job.
    is_promotable: AtomicBool,
    /// Told when somebody wants it to be one.
    wanted: Notify,
}

impl CallInFlight {
    /// Lets it become a job at somebody's wish for as long as the guard lives.
    pub(super) fn promotable(&self) -> Promotable<'_> {
        self.is_promotable.store(true, Ordering::Release);
        Promotable(self)
    }

    fn is_promotable(&self) -> bool {
        self.is_promotable.load(Ordering::Acquire)
    }
}

/// A call that can become a job.
pub(super) struct Promotable<'a>(&'a CallInFlight);

impl Promotable<'_> {
    /// Waits until somebody wants it to be a job.
    pub(super) async fn wanted(&self) {
        self.0.wanted.notified().await;
    }
}

impl Drop for Promotable<'_> {
    fn drop(&mut self) {
        self.0.is_promotable.store(false, Ordering::Release);
    }
}

impl InFlight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call until the guard is dropped.
    pub(super) fn enter(self: &Arc<Self>, op: OpId, call: &ValidCall, run: &RunContext) -> Entered {
        let call = Arc::new(CallInFlight {
            provider: identity(&call.entry.provider),
            cancel: run.cancel.clone(),
            session: run.session.id.clone(),
            is_repeatable: call.entry.is_repeatable(),
            is_promotable: AtomicBool::new(false),
            wanted: Notify::new(),
        });
        self.state().calls.insert(op, Arc::clone(&call));
        Entered { calls: Arc::clone(self), op, call }
    }

    /// Lets no call begin any more.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
    }

    /// Whether calls may begin.
    ///
    /// # Errors
    /// `canceled`, retryable, once the application is closed.
    pub(super) fn is_open(&self) -> Result<(), ToolError> {
        if self.state().is_closed { Err(ToolError::canceled(CancelCause::Shutdown).retryable()) } else { Ok(()) }
    }

    /// How long a call that was cancelled for `cause` may take to stop by itself.
    pub(super) fn grace(&self, cause: CancelCause, usual: Duration) -> Duration {
        if cause == CancelCause::Shutdown { usual.max(self.state().grace) } else { usual }
    }

    /// Cancels all calls and waits until they have ended, at most for `grace`. Returns how many have not.
    pub(super) async fn stop(&self, grace: Duration) -> usize {
        let running: Vec<_> = {
            let mut state = self.state();
            state.is_closed = true;
            state.grace = grace;
            state.calls.values().cloned().collect()
        };
        running.iter().for_each(|call| call.cancel.cancel(CancelCause::Shutdown));
        // Calls are abandoned at the end of the grace and then still have to enter the ledger.
        let until = Instant::now() + grace + LEDGER_TIME;
        loop {
            let left = self.state().calls.len();
            if left == 0 || Instant::now() >= until {
                return left;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn promote(&self, wanted: impl Fn(&CallInFlight) -> bool) -> Vec<Arc<CallInFlight>> {
        let is_wanted = |call: &&Arc<CallInFlight>| call.is_promotable() && wanted(call);
        let calls: Vec<_> = self.state().calls.values().filter(is_wanted).cloned().collect();
        calls.iter().for_each(|call| call.wanted.notify_one());
        calls
    }
}

impl Executor {
    /// Calls of this very provider that are under way, waiting ones included.
    #[must_use]
    pub fn calls_on(&self, provider: &Arc<dyn Provider>) -> usize {
        let provider = identity(provider);
        self.in_flight.state().calls.values().filter(|call| call.provider == provider).count()
    }

    /// Lets every running call of a session go on as a job, on behalf of a person: whoever waits for one gets its job's id.
    /// Returns how many there are. Never to be done at a model's wish.
    pub fn promote_all(&self, session: &SessionId) -> usize {
        self.in_flight.promote(|call| call.session == *session).len()
    }

    /// Lets every running call go on as a job that another process may run again, so that it can be left to one: whoever
    /// waits for such a call gets the job's id. Waits at most `limit` until they have it. Returns how many became jobs.
    /// For a process that is ending.
    pub async fn hand_over(&self, limit: Duration) -> usize {
        let wanted = self.in_flight.promote(|call| call.is_repeatable);
        let until = Instant::now() + limit;
        loop {
            // What does not become a job in time is cancelled like the others.
            let left = wanted.iter().filter(|call| call.is_promotable()).count();
            if left == 0 || Instant::now() >= until {
                return wanted.len() - left;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A call that is counted.
#[derive(Debug)]
pub(super) struct Entered {
    calls: Arc<InFlight>,
    op: OpId,
    pub(super) call: Arc<CallInFlight>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.calls.state().calls.remove(&self.op);
    }
}

fn identity(provider: &Arc<dyn Provider>) -> usize {
    Arc::as_ptr(provider).cast::<()>().addr()
}
