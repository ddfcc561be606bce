//! Calls that somebody waits for, and that a person may make a job of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use toolwright_core::session::{CallId, SessionId};

use super::JobManager;

type Key = (SessionId, CallId);

/// The calls that can become jobs.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<HashMap<Key, Arc<Notify>>>);

impl Calls {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that can become a job for as long as this lives.
#[derive(Debug)]
pub(crate) struct Promotable<'a> {
    calls: &'a Calls,
    key: Key,
    wanted: Arc<Notify>,
}

impl Promotable<'_> {
    /// Waits until somebody wants it to be a job.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

impl Drop for Promotable<'_> {
    fn drop(&mut self) {
        let mut calls = self.calls.lock();
        // Another call of the same name may stand in its place.
        if calls.get(&self.key).is_some_and(|wanted| Arc::ptr_eq(wanted, &self.wanted)) {
            calls.remove(&self.key);
        }
    }
}

impl JobManager {
    /// Lets a running call go on as a job, on behalf of a person: whoever waits for it gets the job's id. Returns
    /// whether there is such a call. Never to be done at a model's wish.
    pub fn promote(&self, session: &SessionId, call: &CallId) -> bool {
        let calls = self.calls.lock();
        let found = calls.get(&(session.clone(), call.clone()));
        found.inspect(|wanted| wanted.notify_one()).is_some()
    }

    /// As [`JobManager::promote`], for every running call of a session. Returns how many there are.
    pub fn promote_all(&self, session: &SessionId) -> usize {
        let calls = self.calls.lock();
        let of_session = calls.iter().filter(|((of, _), _)| of == session);
        of_session.map(|(_, wanted)| wanted.notify_one()).count()
    }

    /// Notes that a call runs which can become a job.
    pub(crate) fn promotable(&self, session: &SessionId, call: &CallId) -> Promotable<'_> {
        let (key, wanted) = ((session.clone(), call.clone()), Arc::new(Notify::new()));
        self.calls.lock().insert(key.clone(), Arc::clone(&wanted));
        Promotable { calls: &self.calls, key, wanted }
    }
}
