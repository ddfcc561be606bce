//! Awaited calls that a person may turn into jobs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::Notify;
use toolwright_core::call::ValidCall;
use toolwright_core::session::{CallId, SessionId};

use super::JobManager;

type Key = (SessionId, CallId);

/// The calls that can become jobs.
#[derive(Debug, Default)]
pub(super) struct Calls {
    running: Mutex<HashMap<Key, Running>>,
    /// Told whenever one has ended, or become a job.
    left: Notify,
}

#[derive(Debug)]
struct Running {
    wanted: Arc<Notify>,
    /// Whether another process may run it again.
    is_repeatable: bool,
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
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
        if calls.get(&self.key).is_some_and(|running| Arc::ptr_eq(&running.wanted, &self.wanted)) {
            calls.remove(&self.key);
        }
        drop(calls);
        self.calls.left.notify_waiters();
    }
}

impl JobManager {
    /// Lets a running call go on as a job, on behalf of a person: whoever waits for it gets the job's id. Returns
    /// whether there is such a call. Never to be done at a model's wish.
    pub fn promote(&self, session: &SessionId, call: &CallId) -> bool {
        let calls = self.calls.lock();
        let found = calls.get(&(session.clone(), call.clone()));
        found.inspect(|running| running.wanted.notify_one()).is_some()
    }

    /// As [`JobManager::promote`], for every running call of a session. Returns how many there are.
    pub fn promote_all(&self, session: &SessionId) -> usize {
        let calls = self.calls.lock();
        let of_session = calls.iter().filter(|((of, _), _)| of == session);
        of_session.map(|(_, running)| running.wanted.notify_one()).count()
    }

    /// Lets every running call go on as a job that another process may run again, so that it can be left to one:
    /// whoever waits for such a call gets the job's id. Waits at most `limit` until they have it. Returns how many
    /// became jobs. For a process that is ending.
    pub async fn hand_over(&self, limit: Duration) -> usize {
        let wanted: Vec<(Key, Arc<Notify>)> = {
            let calls = self.calls.lock();
            let repeatable = calls.iter().filter(|(_, running)| running.is_repeatable);
            repeatable.map(|(key, running)| (key.clone(), Arc::clone(&running.wanted))).collect()
        };
        wanted.iter().for_each(|(_, wanted)| wanted.notify_one());
        let left = || {
            let calls = self.calls.lock();
            let runs = |(key, wanted): &&(Key, Arc<Notify>)| {
                calls.get(key).is_some_and(|running| Arc::ptr_eq(&running.wanted, wanted))
            };
            wanted.iter().filter(runs).count()
        };
        let all = async {
            loop {
                let told = self.calls.left.notified();
                tokio::pin!(told);
                told.as_mut().enable();
                if left() == 0 {
                    return;
                }
                told.await;
            }
        };
        // What does not become a job in time is cancelled like the others.
        let _ = tokio::time::timeout(limit, all).await;
        wanted.len() - left()
    }

    /// Notes that a call of this session runs which can become a job.
    pub(crate) fn promotable(&self, session: &SessionId, call: &ValidCall) -> Promotable<'_> {
        let (key, wanted) = ((session.clone(), call.id.clone()), Arc::new(Notify::new()));
        let running = Running { wanted: Arc::clone(&wanted), is_repeatable: call.entry.is_repeatable() };
        self.calls.lock().insert(key.clone(), running);
        Promotable { calls: &self.calls, key, wanted }
    }
}
