//! Runs a call to its end, detached from cancellation of whoever waits for it.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::outcome::Outcome;

/// A call that somebody waits for. Dropped before its end, it is cancelled and goes on by itself until it has
/// ended and is in the ledger.
pub(super) struct Detached {
    call: Option<BoxFuture<'static, Outcome>>,
    cancel: Cancel,
    has_begun: bool,
}

impl Detached {
    /// A call that ends in good order once `cancel` fires.
    pub(super) fn new(cancel: Cancel, call: BoxFuture<'static, Outcome>) -> Self {
        Self { call: Some(call), cancel, has_begun: false }
    }
}

impl Future for Detached {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.has_begun = true;
        let Some(call) = self.call.as_mut() else { return Poll::Pending };
        let ended = call.as_mut().poll(context);
        if ended.is_ready() {
            self.call = None;
        }
        ended
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        let Some(call) = self.call.take().filter(|_| self.has_begun) else { return };
        // What is about to be a job, or has become one, goes on.
        self.cancel.cancel_from_above(CancelCause::CallerGone);
        // Otherwise the runtime itself is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(call);
        }
    }
}
