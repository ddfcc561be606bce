//! A call's turn: its slot in a queue, then the lock of its workspace root.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use toolwright_core::call::ValidCall;
use toolwright_core::definition::Concurrency;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;

use super::{Executor, RunContext};
use crate::queue::Slot;

/// One lock per workspace root, so that file and shell changes never race (SPEC section 8).
#[derive(Debug, Default)]
pub(super) struct RootLocks {
    locks: Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

/// How long a call waits for an exclusive lock.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// What a running call holds until it has ended.
#[derive(Debug, Default)]
pub(super) struct Held {
    _slot: Option<Slot>,
    _lock: Option<OwnedMutexGuard<()>>,
}

impl Executor {
    /// Waits for the call's slot and lock. Both go with the running tool and are given back when it has
    /// ended, even if its caller is gone before. A tool that awaits other calls gets neither: they may need
    /// what it would hold.
    pub(super) async fn turn(&self, call: &ValidCall, run: &RunContext) -> Result<Held, ToolError> {
        if call.entry.provider.awaits_others(call.entry.id()) {
            return Ok(Held::default());
        }
        let slot = self.slot(call, run).await?;
        let lock = self.lock(call, run).await?;
        Ok(Held { _slot: Some(slot), _lock: lock })
    }

    async fn slot(&self, call: &ValidCall, run: &RunContext) -> Result<Slot, ToolError> {
        let definition = call.entry.definition();
        let on_wait = |queue: &str| self.waits(call, queue);
        let provider = call.entry.provider.name();
        self.options.queues.acquire(definition.queue.as_deref(), provider, &definition.id, &run.cancel, on_wait).await
    }

    async fn lock(&self, call: &ValidCall, run: &RunContext) -> Result<Option<OwnedMutexGuard<()>>, ToolError> {
        if call.entry.definition().concurrency != Concurrency::Exclusive {
            return Ok(None);
        }
        let lock = {
            let mut locks = self.locks.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(run.session.root.clone()).or_default())
        };
        if let Ok(guard) = Arc::clone(&lock).try_lock_owned() {
            return Ok(Some(guard));
        }
        self.waits(call, "the workspace lock");
        tokio::select! {
            guard = lock.lock_owned() => Ok(Some(guard)),
            cause = run.cancel.cancelled() => Err(ToolError::canceled(cause)),
            () = tokio::time::sleep(LOCK_WAIT) => {
                let message = format!("another exclusive tool held the lock of {} for {LOCK_WAIT:?}", run.session.root.display());
                Err(ToolError::new(ErrorKind::LimitExceeded, message).retryable())
            }
        }
    }

    fn waits(&self, call: &ValidCall, queue: &str) {
        let (call_id, tool) = (call.id.clone(), call.entry.id().clone());
        self.options.services.events.emit(Event::ToolWait { call: call_id, tool, queue: queue.to_owned() });
    }
}
