//! The calls in flight, and how they are stopped when the application closes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::Notify;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Provider;
use toolwright_core::error::ToolError;
use toolwright_core::operation::OpId;

/// Calls under way, by operation.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    state: Mutex<State>,
    /// Told when the last call has ended.
    idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    calls: HashMap<OpId, Call>,
    is_closed: bool,
    /// How long running calls get to end once the application is closed.
    grace: Duration,
}

#[derive(Debug)]
struct Call {
    /// Providers are compared by identity: an old and a new one of the same name are two.
    provider: usize,
    cancel: Cancel,
}

impl InFlight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call until the guard is dropped.
    pub(super) fn enter(self: &Arc<Self>, op: OpId, provider: &Arc<dyn Provider>, cancel: &Cancel) -> Entered {
        let call = Call { provider: identity(provider), cancel: cancel.clone() };
        self.state().calls.insert(op, call);
        Entered { calls: Arc::clone(self), op }
    }

    /// The calls under way on this very provider.
    pub(super) fn count(&self, provider: &Arc<dyn Provider>) -> usize {
        let provider = identity(provider);
        self.state().calls.values().filter(|call| call.provider == provider).count()
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
        let running: Vec<Cancel> = {
            let mut state = self.state();
            state.is_closed = true;
            state.grace = grace;
            state.calls.values().map(|call| call.cancel.clone()).collect()
        };
        running.iter().for_each(|cancel| cancel.cancel(CancelCause::Shutdown));
        let ended = async {
            loop {
                let told = self.idle.notified();
                tokio::pin!(told);
                told.as_mut().enable();
                if self.state().calls.is_empty() {
                    return;
                }
                told.await;
            }
        };
        // Calls are abandoned at the end of the grace and then still have to enter the ledger.
        let _ = tokio::time::timeout(grace + LEDGER_TIME, ended).await;
        self.state().calls.len()
    }
}

/// What a call that was abandoned takes, at most, to enter the ledger.
const LEDGER_TIME: Duration = Duration::from_secs(1);

/// A call under way.
#[derive(Debug)]
pub(super) struct Entered {
    calls: Arc<InFlight>,
    op: OpId,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let is_idle = {
            let mut state = self.calls.state();
            state.calls.remove(&self.op);
            state.calls.is_empty()
        };
        if is_idle {
            self.calls.idle.notify_waiters();
        }
    }
}

fn identity(provider: &Arc<dyn Provider>) -> usize {
    Arc::as_ptr(provider).cast::<()>().addr()
}
