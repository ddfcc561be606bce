//! The program at the other end of a connection, as far as it matters: whether it may decide in the owner's name.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::OnceCell;
use toolwright_core::session::PeerProcess;

/// Tells which program is at `peer`, the other end of a connection to `local` on this machine. May block.
pub type LookUpPeer = fn(peer: SocketAddr, local: SocketAddr) -> PeerProcess;

/// One connection. Every request carries that which it came over.
#[derive(Debug, Clone)]
pub(crate) struct Connection(Arc<Ends>);

#[derive(Debug)]
struct Ends {
    peer: SocketAddr,
    local: SocketAddr,
    look_up: LookUpPeer,
    found: OnceCell<PeerProcess>,
}

impl Connection {
    pub(crate) fn new(peer: SocketAddr, local: SocketAddr, look_up: LookUpPeer) -> Self {
        Self(Arc::new(Ends { peer, local, look_up, found: OnceCell::new() }))
    }

    /// Which program is at its other end; looked up once.
    pub(crate) async fn process(&self) -> PeerProcess {
        let Ends { peer, local, look_up, .. } = *self.0;
        let look_up = move || look_up(peer, local);
        let found = self
            .0
            .found
            .get_or_init(|| async { tokio::task::spawn_blocking(look_up).await.unwrap_or(PeerProcess::Unknown) });
        *found.await
    }
}
