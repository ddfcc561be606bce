//! What the tools of a server and its other methods share: its connections, and what is known of its tools.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwright_core::cancel::CancelCause;
use toolwright_core::client::AskStyle;
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::event::McpPeer;

use super::config::McpServerSpec;
use super::connection::Connection;
use super::connection::listener::Listener;
use super::connection::managed::WaitPolicy;
use super::connection::pool::{ConnectionPool, Lent};
use super::connection::subscription::Followed;
use super::exchange::transport;
use super::listing::Facts;

/// One server.
pub(crate) struct Source {
    /// What is configured.
    pub(crate) spec: Arc<McpServerSpec>,
    /// Its connections.
    pub(crate) pool: ConnectionPool,
    /// Takes what it says by itself.
    pub(crate) listener: Arc<Listener>,
    /// Its resources that are followed.
    pub(crate) followed: Arc<Followed>,
    facts: Mutex<Arc<Facts>>,
}

/// Which of a server's connections a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionChoice {
    /// That of the call's session, where each has its own, or else one on which the server asks in this style.
    OfSession(AskStyle),
    /// The one that outlives sessions.
    Shared,
}

impl Source {
    /// A server that is not connected yet.
    pub(crate) fn new(
        spec: Arc<McpServerSpec>,
        pool: ConnectionPool,
        listener: Arc<Listener>,
        followed: Arc<Followed>,
    ) -> Arc<Self> {
        Arc::new(Self { spec, pool, listener, followed, facts: Mutex::default() })
    }

    /// The server as calls are told of it.
    pub(crate) fn peer(&self) -> McpPeer {
        let version = self.pool.shared.current().map(|connection| Cow::Borrowed(connection.server().version));
        McpPeer { server: Arc::clone(&self.listener.server), protocol_version: version, session: None }
    }

    /// What the last list told of its tools beyond their definitions.
    pub(crate) fn facts(&self) -> Arc<Facts> {
        Arc::clone(&self.locked())
    }

    /// Keeps what a list told.
    pub(crate) fn keep(&self, facts: Facts) {
        *self.locked() = Arc::new(facts);
    }

    fn locked(&self) -> MutexGuard<'_, Arc<Facts>> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` on the connection that goes this way, until the call is cancelled. One that ran into its time limit
    /// has the server probed; one that was given up before has it watched, as callers' limits may be shorter than ours.
    ///
    /// # Errors
    /// Those of `work`; there is no connection; the call was cancelled.
    pub(crate) async fn during<T, W>(
        &self,
        context: &ToolContext,
        choice: ConnectionChoice,
        work: impl FnOnce(Arc<Connection>) -> W,
    ) -> Result<T, ToolError>
    where
        W: Future<Output = Result<T, ToolError>>,
    {
        let name = &self.spec.name;
        let failed = |reason: String| transport(name, &reason).retryable();
        let connection = async {
            match choice {
                ConnectionChoice::OfSession(ask_style) => {
                    let of_session = context.client.session_ask_style();
                    self.pool.connection(&context.session.id, ask_style, of_session).await
                }
                ConnectionChoice::Shared => self.pool.shared.connection(WaitPolicy::FailFast).await.map(Lent::from),
            }
        };
        let mut cancelled = std::pin::pin!(context.cancel.cancelled());
        // Held to the end: what the call works with is not ended for being unused.
        let lent = tokio::select! {
            biased;
            cause = &mut cancelled => return Err(ToolError::canceled(cause)),
            lent = connection => lent.map_err(failed)?,
        };
        let connection = &lent.connection;
        let cause = {
            let work = std::pin::pin!(work(Arc::clone(connection)));
            tokio::select! {
                biased;
                cause = cancelled => cause,
                result = work => return result,
            }
        };
        // The call has let go of the server, which is told so before it is probed.
        match cause {
            CancelCause::Deadline => connection.probe(),
            CancelCause::Shutdown => {}
            CancelCause::User | CancelCause::CallerGone | CancelCause::Sibling | CancelCause::RunLimit => {
                connection.watch();
            }
        }
        Err(ToolError::canceled(cause))
    }
}
