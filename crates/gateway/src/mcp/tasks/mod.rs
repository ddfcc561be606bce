//! Calls that go on as tasks after their first answer: a client looks at them, and has their results, later.
//!
//! Under a task is a call like any other, through the executor. Up to 2025-11-25 a client says which call is to be one.
//! A client with the extension of 2026-07-28 is answered so whenever a call takes longer than a moment. A task belongs
//! to its session, ends with it, and is kept for its time only.

mod client;
mod methods;
mod task;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwright_core::session::Session;

use crate::mcp::message::RpcError;

pub(crate) use client::{TaskClient, TaskProgress, Way};
pub(crate) use methods::{serves, wished};
pub(crate) use task::Task;

/// Tasks of one session.
const MAX_OF_SESSION: usize = 64;
/// Tasks of all sessions together.
const MAX_TASKS: usize = 1024;

/// All tasks, by id.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<HashMap<String, Arc<Task>>>);

impl Tasks {
    /// Keeps a task until its time is up; if it still runs then, it is cancelled.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn keep(self: &Arc<Self>, task: &Arc<Task>) -> Result<(), RpcError> {
        {
            let mut all = self.lock();
            // Nobody can ask for those of a session that is over.
            all.retain(|_, task| !task.is_orphan());
            let of_session = all.values().filter(|other| other.is_of(&task.session)).count();
            if of_session >= MAX_OF_SESSION || all.len() >= MAX_TASKS {
                let message = format!("a session has at most {MAX_OF_SESSION} tasks, and all have {MAX_TASKS}");
                return Err(RpcError::new(RpcError::BUSY, message));
            }
            all.insert(task.id.clone(), Arc::clone(task));
        }
        let (tasks, id, expires) = (Arc::downgrade(self), task.id.clone(), task.expires);
        tokio::spawn(async move {
            tokio::time::sleep_until(expires).await;
            if let Some(tasks) = tasks.upgrade() {
                tasks.forget(&id);
            }
        });
        Ok(())
    }

    /// A task of this session.
    ///
    /// # Errors
    /// It has none of this id.
    pub(super) fn find(&self, session: &Session, id: Option<&str>) -> Result<Arc<Task>, RpcError> {
        let id = id.ok_or_else(|| RpcError::invalid_params("a `taskId` is needed"))?;
        let found = self.lock().get(id).filter(|task| task.is_of(session)).cloned();
        found.ok_or_else(|| RpcError::invalid_params("there is no such task, or its time is up"))
    }

    /// The tasks of a session, the oldest first.
    pub(super) fn of(&self, session: &Session) -> Vec<Arc<Task>> {
        let mut tasks: Vec<_> = self.lock().values().filter(|task| task.is_of(session)).cloned().collect();
        tasks.sort_by_key(|task| (task.created, task.expires));
        tasks
    }

    /// Ends a task and keeps nothing of it.
    pub(super) fn forget(&self, id: &str) {
        let task = self.lock().remove(id);
        if let Some(task) = task {
            task.expire();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Task>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
