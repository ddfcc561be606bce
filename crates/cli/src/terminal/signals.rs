//! Ctrl-C, SIGTERM and Ctrl-\.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use toolwright::Toolwright;
use toolwright::core::{Cancel, CancelCause, SessionId};

use crate::exit::Exit;
use crate::terminal::screen::{is_interactive, say};

/// How long a server may take to end before whoever waits for it at a terminal is told why.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a signal means while something runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// Work is cancelled; a second signal ends the process at once.
    Cancels,
    /// Nothing more is begun, and what runs ends by itself; a second signal ends the process at once.
    Finishes,
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
        match first {
            First::Cancels => say("cancelling; once more to stop at once"),
            First::Finishes => say("finishing what runs; once more to stop at once"),
            // A server that ends as it is told to has nothing to say, unless somebody waits for it.
            First::ShutsDown => {
                tokio::select! {
                    _ = next_signal() => std::process::exit(i32::from(Exit::Cancelled.code())),
                    () = tokio::time::sleep(PATIENCE) => {}
                }
                if is_interactive() {
                    say("calls are still running and get their time; once more to stop at once");
                }
            }
        }
        next_signal().await;
        std::process::exit(i32::from(Exit::Cancelled.code()));
    });
    watch.abort_handle()
}

/// At a terminal, Ctrl-\ (SIGQUIT) lets the running calls of a session go on as background jobs: the person's word,
/// never the model's.
pub(crate) fn background_on_quit(app: &Arc<Toolwright>, session: &SessionId) {
    if !is_interactive() {
        return;
    }
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut quit) = signal(SignalKind::quit()) else { return };
        let (app, session) = (Arc::clone(app), session.clone());
        tokio::spawn(async move {
            while quit.recv().await.is_some() {
                match app.jobs().promote_all(&session) {
                    0 => say("no call is running"),
                    count => say(format_args!(
                        "{count} running calls go on in the background; `toolwright jobs ls` lists them"
                    )),
                }
            }
        });
    }
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
