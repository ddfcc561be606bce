//! Ctrl-C and SIGTERM.

use tokio::task::AbortHandle;
use toolwright::core::{Cancel, CancelCause};

use super::exit::Exit;
use super::screen::say;

/// What a signal means while something runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// Work is cancelled; a second signal ends the process at once.
    Cancels,
    /// The server shuts down; a second signal ends the process at once.
    ShutsDown,
}

/// Cancels `cancel` at the first signal, until the watch is aborted. Children of a process that is
/// ended at once are ended by their watchers.
pub(crate) fn watch(cancel: Cancel, first: First) -> AbortHandle {
    let watch = tokio::spawn(async move {
        let cause = next_signal().await;
        let cause = if first == First::ShutsDown { CancelCause::Shutdown } else { cause };
        cancel.cancel(cause);
        if first == First::Cancels {
            say("cancelling; once more to stop at once");
        }
        next_signal().await;
        std::process::exit(i32::from(Exit::Cancelled.code()));
    });
    watch.abort_handle()
}

/// Waits for the next signal.
pub(crate) async fn next_signal() -> CancelCause {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            return tokio::select! {
                _ = tokio::signal::ctrl_c() => CancelCause::User,
                _ = terminate.recv() => CancelCause::Shutdown,
            };
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        // Without signals nothing is ever cancelled this way.
        std::future::pending::<()>().await;
    }
    CancelCause::User
}
