//! The order in which the calls of one connection, or of one turn, use what they share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::workspace::WorkspaceGuard;

/// How a call uses what calls share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedUse {
    /// It only reads the workspace, concurrently with other readers.
    Reads,
    /// It is exclusive in the workspace.
    Writes,
    /// It uses a state outside the workspace, after the ordered calls before it.
    Ordered,
}

impl SharedUse {
    /// Returns whether a call may run although an earlier one, which uses this, has not ended. Writers may: they take the
    /// lock in order.
    fn passes(self, earlier: Self) -> bool {
        use SharedUse::{Ordered, Reads, Writes};
        match (self, earlier) {
            (Reads, Reads) | (Writes, Writes) => true,
            (Reads, Writes) | (Writes, Reads) | (Ordered, Ordered) => false,
            (Ordered, _) | (_, Ordered) => true,
        }
    }
}

/// The order of the calls of one connection, or of one turn: a writing call waits for the readers before it, a reading
/// call for the writers before it, writers take the lock in order, and an ordered call waits for the ordered calls before
/// it. Calls of other orders are not waited for. A call leaves its order when it ends, asks a question, goes to the
/// background or uses nothing that calls share.
#[derive(Debug, Clone)]
pub struct CallOrder(Arc<watch::Sender<Calls>>);

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    /// How each call uses what calls share; `None` if not known yet.
    open: BTreeMap<u64, Option<SharedUse>>,
}

impl Default for CallOrder {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Calls::default())))
    }
}

impl CallOrder {
    /// Returns the turn of a call that has just arrived. Calls arrive in the order of calls to this method.
    #[must_use]
    pub fn arrive(&self) -> Arc<WorkspaceTurn> {
        let mut number = 0;
        self.change(|calls| {
            number = calls.next;
            calls.next += 1;
            calls.open.insert(number, None);
            // No call waits for a later one.
            false
        });
        Arc::new(WorkspaceTurn { order: Some((self.clone(), number)), lock: Mutex::default() })
    }

    /// Changes the calls, and wakes those that wait if `change` returns true. One that begins to wait meanwhile sees the
    /// change.
    fn change(&self, change: impl FnOnce(&mut Calls) -> bool) {
        self.0.send_if_modified(|calls| change(calls) && self.0.receiver_count() > 0);
    }
}

/// The place of one call in its order, and its lock on the workspace.
#[derive(Debug, Default)]
pub struct WorkspaceTurn {
    order: Option<(CallOrder, u64)>,
    lock: Mutex<Option<WorkspaceGuard>>,
}

impl WorkspaceTurn {
    fn lock(&self) -> MutexGuard<'_, Option<WorkspaceGuard>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets later calls pass.
    pub(crate) fn leave_order(&self) {
        if let Some((order, number)) = &self.order {
            order.change(|calls| calls.open.remove(number).is_some());
        }
    }

    /// Lets later calls pass, and releases the workspace.
    pub(crate) fn release(&self) {
        self.leave_order();
        let guard = self.lock().take();
        drop(guard);
    }

    /// Records what this call uses, for later calls.
    pub(crate) fn note(&self, usage: SharedUse) {
        if let Some((order, number)) = &self.order {
            order.change(|calls| match calls.open.get_mut(number) {
                Some(noted) => noted.replace(usage) != Some(usage),
                None => false,
            });
        }
    }

    /// Waits until each earlier call has ended or is known to use what this one can pass.
    pub(crate) async fn after_others(&self, usage: SharedUse) {
        let Some((order, number)) = &self.order else { return };
        let is_next = |calls: &Calls| {
            !calls.open.contains_key(number)
                || calls.open.range(..number).all(|(_, other)| other.is_some_and(|other| usage.passes(other)))
        };
        // The sender lives as long as this order.
        let _ = order.0.subscribe().wait_for(is_next).await;
    }

    pub(crate) fn hold(&self, guard: WorkspaceGuard) {
        *self.lock() = Some(guard);
    }
}

impl Drop for WorkspaceTurn {
    fn drop(&mut self) {
        self.leave_order();
    }
}

/// A turn that ends on drop.
#[derive(Debug)]
pub(crate) struct HeldTurn(pub(crate) Arc<WorkspaceTurn>);

impl Drop for HeldTurn {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn calls_wait_for_others_before_them() {
        use SharedUse::{Ordered, Reads, Writes};
        // What the first two calls use, if known, and whether a third may continue that reads, writes, or is ordered.
        let check = |before: [Option<SharedUse>; 2], reads: bool, writes: bool, ordered: bool| {
            for (usage, may_run) in [(Reads, reads), (Writes, writes), (Ordered, ordered)] {
                let order = CallOrder::default();
                let [first, second, third] = [order.arrive(), order.arrive(), order.arrive()];
                for (turn, usage) in [(&first, before[0]), (&second, before[1])] {
                    usage.inspect(|usage| turn.note(*usage));
                }
                assert_eq!(third.after_others(usage).now_or_never().is_some(), may_run, "{before:?} {usage:?}");
                first.leave_order();
                drop(second);
                assert!(third.after_others(usage).now_or_never().is_some());
            }
        };
        check([None, None], false, false, false);
        check([Some(Reads), Some(Reads)], true, false, true);
        check([Some(Writes), Some(Writes)], false, true, true);
        check([Some(Writes), None], false, false, false);
        check([Some(Writes), Some(Reads)], false, false, true);
        check([Some(Ordered), Some(Reads)], true, false, false);
        check([Some(Writes), Some(Ordered)], false, true, false);
    }
}
