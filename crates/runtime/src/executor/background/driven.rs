//! The sessions whose runs this process drives, with the terms of their calls: what a run left as a job when its process
//! died goes on under them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use toolwright_core::session::SessionId;

use crate::executor::RunContext;

#[derive(Default)]
pub(in crate::executor) struct DrivenSessions {
    terms: Mutex<HashMap<SessionId, RunContext>>,
    /// Tells that there is another.
    pub(in crate::executor) changed: Notify,
}

impl DrivenSessions {
    fn terms(&self) -> MutexGuard<'_, HashMap<SessionId, RunContext>> {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::executor) fn get(&self, session: &SessionId) -> Option<RunContext> {
        self.terms().get(session).cloned()
    }

    pub(in crate::executor) fn sessions(&self) -> Vec<SessionId> {
        self.terms().keys().cloned().collect()
    }

    pub(in crate::executor) fn enter(self: &Arc<Self>, run: RunContext) -> DrivenSession {
        let session = run.session.id.clone();
        self.terms().insert(session.clone(), run);
        self.changed.notify_one();
        DrivenSession { of: Arc::clone(self), session }
    }
}

/// While it lives, jobs of its session whose process died go on under the terms of its run.
#[must_use = "dropped, the session is driven no more"]
pub struct DrivenSession {
    of: Arc<DrivenSessions>,
    session: SessionId,
}

impl fmt::Debug for DrivenSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrivenSession").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Drop for DrivenSession {
    fn drop(&mut self) {
        self.of.terms().remove(&self.session);
    }
}
