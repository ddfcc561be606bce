//! What a running call holds: its queue slot, then the lock of its workspace root.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::CancelCause;
use toolwright_core::definition::Concurrency;
use toolwright_core::error::ToolError;
use toolwright_core::event::Event;

use super::call_record::{CallRecord, micros};
use super::elicitation_pause::PausableSlot;
use super::{Executor, RunContext};
use crate::queue::{PriorityQueue, QueueSpec, Slot};

/// One lock per workspace root, so that file and shell changes never race: a queue with one
/// place.
#[derive(Debug, Default)]
pub(super) struct RootLocks {
    state: Mutex<Locks>,
}

#[derive(Debug, Default)]
struct Locks {
    by_root: HashMap<PathBuf, Arc<PriorityQueue>>,
    closed: Option<CancelCause>,
}

impl RootLocks {
    fn of(&self, root: &Path) -> Arc<PriorityQueue> {
        let mut locks = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = locks.by_root.get(root) {
            return Arc::clone(queue);
        }
        locks.by_root.retain(|_, queue| Arc::strong_count(queue) > 1);
        let spec = QueueSpec { concurrent: 1, per_minute: None, ..QueueSpec::default() };
        let queue = PriorityQueue::new("exclusive", format!("the exclusive lock of {}", root.display()), spec);
        if let Some(cause) = locks.closed {
            queue.close(cause);
        }
        locks.by_root.insert(root.to_owned(), Arc::clone(&queue));
        queue
    }

    /// Ends all waits and lets nobody in any more.
    pub(super) fn close(&self, cause: CancelCause) {
        let mut locks = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        locks.closed.get_or_insert(cause);
        locks.by_root.values().for_each(|queue| queue.close(cause));
    }
}

/// What a running call holds until it has ended.
#[derive(Debug, Default)]
pub(super) struct Held {
    _lock: Option<Slot>,
    /// Given back while the call only waits for its client.
    pub(super) place: Option<Arc<PausableSlot>>,
}

impl Executor {
    /// Waits for the call's slot and lock. Both go with the running tool and are given back when it has
    /// ended, even if its caller is gone before. A tool that awaits other calls gets neither: they may need
    /// what it would hold.
    pub(super) async fn take_slot(
        &self,
        call: &ValidCall,
        run: &RunContext,
        record: &mut CallRecord,
    ) -> Result<Held, ToolError> {
        let (definition, provider) = (call.entry.definition(), &call.entry.provider);
        if provider.awaits_others(call.entry.id()) {
            return Ok(Held::default());
        }
        let queue = self.options.queues.queue_of(definition.queue.as_deref(), provider.name())?;
        let slot = self.wait(&queue, call, run, record).await?;
        let lock = match definition.concurrency {
            Concurrency::Safe => None,
            Concurrency::Exclusive => {
                let lock = self.locks.of(&run.session.root);
                Some(self.wait(&lock, call, run, record).await?)
            }
        };
        Ok(Held { _lock: lock, place: Some(PausableSlot::new(queue, slot)) })
    }

    async fn wait(
        &self,
        queue: &Arc<PriorityQueue>,
        call: &ValidCall,
        run: &RunContext,
        record: &mut CallRecord,
    ) -> Result<Slot, ToolError> {
        let (tool, events) = (call.entry.id(), &self.options.services.events);
        let about = || (record.op.clone(), call.id.clone(), tool.clone());
        let mut waits_for = None;
        let tell = |queue: &str| {
            waits_for = Some(queue.to_owned());
            events.tell_routine(|| {
                let (op, call, tool) = about();
                Event::ToolWait { op, call, tool, queue: queue.to_owned() }
            });
        };
        let began = tokio::time::Instant::now();
        let taken = queue.take(tool, run.priority, &run.cancel, tell).await;
        let waited = taken.as_ref().map_or_else(|_| began.elapsed(), |(_, waited)| *waited);
        if let Some(queue) = waits_for {
            events.tell_end(taken.is_ok(), || {
                let (op, call, tool) = about();
                Event::ToolWaited { op, call, tool, queue, ok: taken.is_ok(), wait_us: micros(waited) }
            });
        }
        record.waited += waited;
        taken.map(|(slot, _)| slot)
    }
}
