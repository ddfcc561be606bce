//! What a session has running, so that it can be cancelled.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use toolwright_core::cancel::{Cancel, CancelCause};

use super::message::{Id, RpcError};

/// Requests of one session that are running, by id.
#[derive(Debug)]
pub(crate) struct Running {
    /// Above all of theirs: a call that waits for its client to come back has no request.
    all: Cancel,
    by_id: Mutex<HashMap<Id, Cancel>>,
}

impl Default for Running {
    fn default() -> Self {
        Self { all: Cancel::new(), by_id: Mutex::default() }
    }
}

impl Running {
    /// A token for a call of this session.
    pub(crate) fn token(&self) -> Cancel {
        self.all.child()
    }

    /// Notes a request; it is forgotten when the guard goes.
    ///
    /// # Errors
    /// When a request of that id is running.
    pub(crate) fn enter(self: &Arc<Self>, id: &Id, cancel: &Cancel) -> Result<Entered, RpcError> {
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        if by_id.contains_key(id) {
            return Err(RpcError::new(RpcError::INVALID_REQUEST, "a request with this id is still running"));
        }
        by_id.insert(id.clone(), cancel.clone());
        Ok(Entered { running: Arc::clone(self), id: id.clone() })
    }

    /// Cancels one request on the client's behalf; one that has ended is no error.
    pub(crate) fn cancel(&self, id: &Id) {
        if let Some(cancel) = self.by_id.lock().unwrap_or_else(PoisonError::into_inner).get(id) {
            cancel.cancel(CancelCause::User);
        }
    }

    /// Cancels all requests: the client is gone.
    pub(crate) fn cancel_all(&self) {
        self.all.cancel(CancelCause::User);
    }

    /// Whether nothing runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// A request noted in [`Running`].
pub(crate) struct Entered {
    running: Arc<Running>,
    id: Id,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.running.by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}
