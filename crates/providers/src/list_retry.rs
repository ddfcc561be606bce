//! Lists again: after failures with growing pauses, and when a list has become old.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use toolwright_core::backoff::Backoff;
use toolwright_core::catalogue::ChangeNotifier;

/// The pauses after consecutive failures.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(300) };

/// Requests further lists. Inactive before [`ListRetry::listen`] and after [`ListRetry::close`].
#[derive(Default)]
pub(crate) struct ListRetry(Mutex<State>);

#[derive(Default)]
struct State {
    notify: Option<ChangeNotifier>,
    /// Number of consecutive failures.
    failures: u32,
    /// The task that waits for the pause to end.
    pending: Option<AbortHandle>,
    closed: bool,
}

impl ListRetry {
    /// From now on requests lists through `notify`.
    pub(crate) fn listen(&self, notify: ChangeNotifier) {
        self.state().notify = Some(notify);
    }

    /// Begins a list. If the attempt is dropped without success, the list is requested again.
    pub(crate) fn attempt(&self) -> ListAttempt<'_> {
        ListAttempt { retry: self, has_succeeded: false }
    }

    /// Stops all requests.
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

    fn retry_after_pause(&mut self, pause: Duration) {
        self.forget_pending();
        // Without a runtime the program is ending.
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

/// A list in progress.
pub(crate) struct ListAttempt<'a> {
    retry: &'a ListRetry,
    has_succeeded: bool,
}

impl ListAttempt<'_> {
    /// Ends the attempt with success. The list is requested again after `next`, if given.
    pub(crate) fn succeeded(mut self, next: Option<Duration>) {
        self.has_succeeded = true;
        let mut state = self.retry.state();
        state.failures = 0;
        match next {
            Some(next) => state.retry_after_pause(next),
            None => state.forget_pending(),
        }
    }
}

impl Drop for ListAttempt<'_> {
    fn drop(&mut self) {
        if self.has_succeeded {
            return;
        }
        let mut state = self.retry.state();
        state.failures = state.failures.saturating_add(1);
        let pause = BACKOFF.pause(state.failures);
        state.retry_after_pause(pause);
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
        assert!(begun.elapsed() >= BACKOFF.first);
        // A success replaces the waiting request.
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
