//! The folders that a server up to 2025-11-25 may work in, where it asks while no call runs: many ask right after the
//! handshake and never again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use toolwright_core::roots::Roots;

use super::peer::Peer;

/// How long an answer waits for a client that is to tell, below what servers wait for one (SDKs: 60 s).
const CLIENT: Duration = Duration::from_secs(20);
/// How long the first call of a connection waits for a server that is known to ask.
const FIRST: Duration = Duration::from_secs(2);

/// What one server is told of folders.
pub(crate) struct Folders {
    roots: Arc<Roots>,
    /// Whether the server asks for them before it is called.
    are_asked_for: AtomicBool,
    /// Whether that is known of this process.
    is_known: AtomicBool,
}

impl Folders {
    /// These.
    pub(crate) fn new(roots: Arc<Roots>) -> Arc<Self> {
        Arc::new(Self { roots, are_asked_for: AtomicBool::new(false), is_known: AtomicBool::new(false) })
    }

    /// Notes whether the server asked before it was called.
    pub(crate) fn asked_for(&self, did_ask: bool) {
        self.is_known.store(true, Ordering::Relaxed);
        self.are_asked_for.store(did_ask, Ordering::Relaxed);
    }

    /// Notes that it did in an earlier run, which this one may know better.
    pub(crate) fn were_asked_for(&self) {
        if !self.is_known.load(Ordering::Relaxed) {
            self.are_asked_for.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it did the last time.
    pub(crate) fn are_asked_for(&self) -> bool {
        self.are_asked_for.load(Ordering::Relaxed)
    }

    /// Whether there are any to tell outside of calls.
    pub(crate) fn are_known(&self) -> bool {
        self.roots.are_known()
    }

    /// `ListRootsResult`; `None` where nothing is told. Of a client that does not come in time there are no folders; they
    /// are told when it has.
    pub(crate) async fn now(&self) -> Option<Value> {
        tokio::time::timeout(CLIENT, self.roots.known()).await.unwrap_or_else(|_| Some(Roots::none()))
    }

    /// Has a new connection told: of changes as long as it is there; and now, where its server is known to ask, which is
    /// waited for. Must be called inside a runtime.
    pub(crate) async fn told_to(&self, peer: &Arc<Peer>) {
        let (roots, inbox, peer_of) = (Arc::clone(&self.roots), Arc::clone(&peer.inbox), Arc::downgrade(peer));
        let mut seen = roots.version();
        // Nobody may wait for this to its end: of a connection that is given up nothing is left.
        let given_up = CancellationToken::new();
        let unless_held = given_up.clone().drop_guard();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = inbox.over.cancelled() => return,
                    () = given_up.cancelled() => return,
                    newer = roots.newer_than(seen) => seen = newer,
                }
                let Some(peer) = peer_of.upgrade() else { return };
                if let Err(error) = peer.notify("notifications/roots/list_changed", None).await {
                    tracing::debug!(server = &*inbox.listener.server, "a change of folders was not told: {error:?}");
                }
            }
        });
        if self.are_asked_for() && self.are_known() {
            let inbox = &peer.inbox;
            tokio::select! {
                () = inbox.has_folders() => {}
                () = inbox.over.cancelled() => {}
                () = tokio::time::sleep(FIRST) => if !inbox.has_asked_for_folders() {
                    tracing::debug!(server = &*inbox.listener.server, "it did not ask for folders this time");
                    self.asked_for(false);
                },
            }
        }
        unless_held.disarm();
    }
}
