//! A call's turn: its slot in a queue, then the lock of its workspace root.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use toolwright_core::call::ValidCall;
use toolwright_core::definition::Concurrency;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;

use super::account::{Account, micros};
use super::{Executor, RunContext};
use crate::queue::Slot;

/// One lock per workspace root, so that file and shell changes never race (SPEC section 8).
#[derive(Debug, Default)]
pub(super) struct RootLocks {
    locks: Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

/// How long a call waits for an exclusive lock.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// A wait that has begun.
struct Wait {
    queue: String,
    since: Instant,
}

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
    pub(super) async fn turn(
        &self,
        call: &ValidCall,
        run: &RunContext,
        account: &mut Account,
    ) -> Result<Held, ToolError> {
        if call.entry.provider.awaits_others(call.entry.id()) {
            return Ok(Held::default());
        }
        let slot = self.slot(call, run, account).await?;
        let lock = self.lock(call, run, account).await?;
        Ok(Held { _slot: Some(slot), _lock: lock })
    }

    async fn slot(&self, call: &ValidCall, run: &RunContext, account: &mut Account) -> Result<Slot, ToolError> {
        let definition = call.entry.definition();
        let mut wait = None;
        let on_wait = |queue: &str| wait = Some(self.waits(call, account, queue));
        let provider = call.entry.provider.name();
        let queue = definition.queue.as_deref();
        let slot = self.options.queues.acquire(queue, provider, &definition.id, &run.cancel, on_wait).await;
        if let Some(wait) = wait {
            self.waited(call, account, wait, slot.is_ok());
        }
        slot
    }

    async fn lock(
        &self,
        call: &ValidCall,
        run: &RunContext,
        account: &mut Account,
    ) -> Result<Option<OwnedMutexGuard<()>>, ToolError> {
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
        let wait = self.waits(call, account, "the workspace lock");
        let locked = tokio::select! {
            guard = lock.lock_owned() => Ok(Some(guard)),
            cause = run.cancel.cancelled() => Err(ToolError::canceled(cause)),
            () = tokio::time::sleep(LOCK_WAIT) => {
                let message = format!("another exclusive tool held the lock of {} for {LOCK_WAIT:?}", run.session.root.display());
                Err(ToolError::new(ErrorKind::LimitExceeded, message).retryable())
            }
        };
        self.waited(call, account, wait, locked.is_ok());
        locked
    }

    fn waits(&self, call: &ValidCall, account: &Account, queue: &str) -> Wait {
        let services = &self.options.services;
        let (op, id, tool) = (&account.op, &call.id, call.entry.id());
        services.events.tell(|| Event::ToolWait {
            op: op.clone(),
            call: id.clone(),
            tool: tool.clone(),
            queue: queue.to_owned(),
        });
        Wait { queue: queue.to_owned(), since: services.clock.now() }
    }

    fn waited(&self, call: &ValidCall, account: &mut Account, wait: Wait, ok: bool) {
        let services = &self.options.services;
        let waited = services.clock.now().saturating_duration_since(wait.since);
        account.wait += waited;
        let (op, id, tool) = (&account.op, &call.id, call.entry.id());
        services.events.tell(|| Event::ToolWaited {
            op: op.clone(),
            call: id.clone(),
            tool: tool.clone(),
            queue: wait.queue,
            ok,
            wait_us: micros(waited),
        });
    }
}
