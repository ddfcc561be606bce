//! Fetches a list again: after a failure with growing pauses, and when its content grows old.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use toolwright_core::catalogue::ChangeNotifier;

/// The pauses after failures in a row, in seconds; the last one stays.
const PAUSES: [u64; 7] = [1, 2, 5, 10, 30, 60, 300];

/// What asks again. Nothing is asked for before [`ListRetry::listen`] and after [`ListRetry::close`].
#[derive(Default)]
pub(crate) struct ListRetry(Mutex<State>);

#[derive(Default)]
struct State {
    notify: Option<ChangeNotifier>,
    /// Failed lists in a row.
    failures: usize,
    /// The one that waits for its pause to end.
    pending: Option<AbortHandle>,
    closed: bool,
}

impl ListRetry {
    /// Asks `notify` from here on.
    pub(crate) fn listen(&self, notify: ChangeNotifier) {
        self.state().notify = Some(notify);
    }

    /// A list begins. Dropped before it succeeded, it is asked for again.
    pub(crate) fn attempt(&self) -> Attempt<'_> {
        Attempt { retry: self, has_succeeded: false }
    }

    /// Nothing is asked for from here on.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.forget_pending();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget_pending(&mut self) {
        if let Some(pending) = self.pending.take() {
            pending.abort();
        }
    }

    fn ask_after(&mut self, pause: Duration) {
        self.forget_pending();
        // Outside of a runtime everything is over.
        let (Some(notify), Ok(runtime), false) =
            (self.notify.clone(), tokio::runtime::Handle::try_current(), self.closed)
        else {
            return;
        };
        let pending = runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            notify();
        });
        self.pending = Some(pending.abort_handle());
    }
}

impl Drop for ListRetry {
    fn drop(&mut self) {
        self.close();
    }
}

/// A list under way.
pub(crate) struct Attempt<'a> {
    retry: &'a ListRetry,
    has_succeeded: bool,
}

impl Attempt<'_> {
    /// It came to what was wanted, which is due again after `next` if that is said.
    pub(crate) fn succeeded(mut self, next: Option<Duration>) {
        self.has_succeeded = true;
        let mut state = self.retry.state();
        state.failures = 0;
        match next {
            Some(next) => state.ask_after(next),
            None => state.forget_pending(),
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.has_succeeded {
            return;
        }
        let mut state = self.retry.state();
        let pause = PAUSES.get(state.failures).or(PAUSES.last()).copied().unwrap_or_default();
        state.failures = state.failures.saturating_add(1);
        state.ask_after(Duration::from_secs(pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn failed_and_expired_lists_are_requested_again() {
        let retry = ListRetry::default();
        let (asked, mut asks) = mpsc::unbounded_channel();
        retry.listen(Arc::new(move || {
            let _ = asked.send(());
        }));
        let begun = Instant::now();
        drop(retry.attempt());
        asks.recv().await.expect("asked");
        assert!(begun.elapsed() >= Duration::from_secs(PAUSES[0]));
        // A success takes the place of what waited.
        drop(retry.attempt());
        assert_eq!(retry.state().failures, 2);
        retry.attempt().succeeded(Some(Duration::from_millis(10)));
        asks.recv().await.expect("asked");
        assert_eq!(retry.state().failures, 0);
        for _ in 0..20 {
            drop(retry.attempt());
        }
        retry.attempt().succeeded(None);
        assert!(retry.state().pending.is_none());
        retry.close();
        drop(retry.attempt());
        assert!(retry.state().pending.is_none() && asks.try_recv().is_err());
    }
}
