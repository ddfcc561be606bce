//! Cancellation: a tree of tokens that remember why. Runtime-free.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use event_listener::Event as Wakeup;
use serde::{Deserialize, Serialize};

/// The cause of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelCause {
    /// A person, or the client that made the call.
    User,
    /// Another call of the same turn ended the turn.
    Sibling,
    /// The process is shutting down.
    Shutdown,
    /// The run's own limit (wall time, money, turns) was reached.
    RunLimit,
    /// The call reached its time limit.
    Deadline,
    /// The waiting caller is gone, without a reason.
    CallerGone,
}

impl CancelCause {
    /// The cause in words.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::User => "by the user",
            Self::Sibling => "because a call of the same turn ended it",
            Self::Shutdown => "because Toolwright is shutting down",
            Self::RunLimit => "because the run reached a limit",
            Self::Deadline => "because its time was up",
            Self::CallerGone => "because nobody waits for it any more",
        }
    }
}

/// A cancellation token. Clones share state; children are cancelled with their parent, never the
/// other way round. The first cause wins.
#[derive(Clone)]
pub struct Cancel {
    inner: Arc<Inner>,
}

struct Inner {
    cause: OnceLock<CancelCause>,
    /// The cause inherited from the parent.
    from_above: OnceLock<CancelCause>,
    wakeup: Wakeup,
    parent: Option<Cancel>,
    /// Detached from parent cancellation.
    is_apart: AtomicBool,
    children: Mutex<Children>,
}

/// Child tokens to wake besides the own waiters.
#[derive(Default)]
struct Children {
    all: Vec<Weak<Inner>>,
    /// Length at which dead children are pruned next.
    full: usize,
}

/// Prune dead children only past this count.
const PRUNE_THRESHOLD: usize = 32;

impl Children {
    fn add(&mut self, child: Weak<Inner>) {
        if self.all.len() >= self.full {
            self.all.retain(|child| child.strong_count() > 0);
            self.full = (2 * self.all.len()).max(PRUNE_THRESHOLD);
        }
        self.all.push(child);
    }
}

impl Inner {
    /// Wakes waiters of this token and its descendants.
    fn wake(&self) {
        self.wakeup.notify(usize::MAX);
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner).all.clone();
        for child in children.iter().filter_map(Weak::upgrade) {
            child.wake();
        }
    }
}

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}

impl Cancel {
    /// A token with no parent.
    #[must_use]
    pub fn new() -> Self {
        Self::with_parent(None)
    }

    /// A token that is also cancelled when `self` is.
    #[must_use]
    pub fn child(&self) -> Self {
        let child = Self::with_parent(Some(self.clone()));
        self.inner.children.lock().unwrap_or_else(PoisonError::into_inner).add(Arc::downgrade(&child.inner));
        child
    }

    fn with_parent(parent: Option<Cancel>) -> Self {
        let inner = Inner {
            cause: OnceLock::new(),
            from_above: OnceLock::new(),
            wakeup: Wakeup::new(),
            parent,
            is_apart: AtomicBool::new(false),
            children: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Detaches this signal and its descendants from past and future cancellation of the parent, until it
    /// [joins](Self::join_parent) it again. Causes already observed are kept.
    pub fn leave_parent(&self) {
        self.inner.is_apart.store(true, Ordering::SeqCst);
    }

    /// Applies cancellation of the parent again, including any since it was detached.
    pub fn join_parent(&self) {
        self.inner.is_apart.store(false, Ordering::SeqCst);
        if self.is_cancelled() {
            self.inner.wake();
        }
    }

    /// Cancels this token and its descendants. Later causes are ignored.
    pub fn cancel(&self, cause: CancelCause) {
        if self.inner.cause.set(cause).is_ok() {
            self.inner.wake();
        }
    }

    /// Cancels this token and its descendants as its parent would: that does not count while it is apart. Later causes are
    /// ignored.
    pub fn cancel_as_parent(&self, cause: CancelCause) {
        if self.inner.from_above.set(cause).is_ok() {
            self.inner.wake();
        }
    }

    /// The cause, once cancelled: the own one, else the nearest cancelled ancestor's.
    #[must_use]
    pub fn cause(&self) -> Option<CancelCause> {
        let mut inner = &self.inner;
        loop {
            if let Some(cause) = inner.cause.get() {
                return Some(*cause);
            }
            if inner.is_apart.load(Ordering::SeqCst) {
                return None;
            }
            if let Some(cause) = inner.from_above.get() {
                return Some(*cause);
            }
            inner = &inner.parent.as_ref()?.inner;
        }
    }

    /// Whether it is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cause().is_some()
    }

    /// Waits until it is cancelled. Cancel-safe.
    pub async fn cancelled(&self) -> CancelCause {
        loop {
            // Listen first, look second: a cancel between the two is not missed.
            let woken = self.inner.wakeup.listen();
            if let Some(cause) = self.cause() {
                return cause;
            }
            woken.await;
        }
    }
}

/// Cancels a token when it is dropped, with [`CancelCause::CallerGone`], unless it is disarmed before.
#[derive(Debug)]
#[must_use = "dropped at once, it cancels at once"]
pub struct CancelOnDrop(Option<Cancel>);

impl CancelOnDrop {
    /// A guard of this token.
    pub fn new(cancel: &Cancel) -> Self {
        Self(Some(cancel.clone()))
    }

    /// Ends the guard without cancelling.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            cancel.cancel(CancelCause::CallerGone);
        }
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.cause()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn parent_cancels_children_not_the_reverse() {
        let parent = Cancel::new();
        let child = parent.child();
        let other = parent.child();
        child.cancel(CancelCause::Sibling);
        assert_eq!((parent.cause(), other.cause()), (None, None));
        assert!(other.cancelled().now_or_never().is_none());
        parent.cancel(CancelCause::Shutdown);
        parent.cancel(CancelCause::User);
        assert_eq!(other.cancelled().now_or_never(), Some(CancelCause::Shutdown));
        assert_eq!(child.cause(), Some(CancelCause::Sibling));
    }

    #[test]
    fn exited_children_are_forgotten() {
        let parent = Cancel::new();
        let kept: Vec<Cancel> = (0..10).map(|_| parent.child()).collect();
        for _ in 0..10_000 {
            drop(parent.child());
        }
        assert!(parent.inner.children.lock().expect("children").all.len() <= PRUNE_THRESHOLD);
        let waits = kept[9].child();
        let mut waiting = Box::pin(waits.cancelled());
        assert!((&mut waiting).now_or_never().is_none());
        parent.cancel(CancelCause::Shutdown);
        assert_eq!(waiting.now_or_never(), Some(CancelCause::Shutdown));
    }

    #[test]
    fn detached_child_ignores_parent_until_it_rejoins() {
        let parent = Cancel::new();
        let child = parent.child();
        let below = child.child();
        let mut waiting = Box::pin(below.cancelled());
        child.leave_parent();
        parent.cancel(CancelCause::User);
        assert!((&mut waiting).now_or_never().is_none());
        assert_eq!((child.cause(), below.cause()), (None, None));
        child.join_parent();
        assert_eq!(waiting.now_or_never(), Some(CancelCause::User));
        let other = parent.child();
        other.leave_parent();
        other.cancel_as_parent(CancelCause::CallerGone);
        assert_eq!(other.cause(), None);
        other.cancel(CancelCause::Shutdown);
        assert_eq!(other.cause(), Some(CancelCause::Shutdown), "its own cause counts");
        let alone = Cancel::new();
        alone.leave_parent();
        alone.cancel_as_parent(CancelCause::CallerGone);
        alone.join_parent();
        assert_eq!(alone.cause(), Some(CancelCause::CallerGone));
    }

    #[test]
    fn a_waiting_task_is_woken() {
        let parent = Cancel::new();
        let child = parent.child();
        let waiter =
            std::thread::spawn(move || futures_util::future::FutureExt::boxed(async move { child.cancelled().await }));
        let future = waiter.join().expect("thread");
        parent.cancel(CancelCause::User);
        assert_eq!(future.now_or_never(), Some(CancelCause::User));
    }

    #[test]
    fn a_dropped_guard_cancels_unless_disarmed() {
        let cancel = Cancel::new();
        CancelOnDrop::new(&cancel).disarm();
        assert_eq!(cancel.cause(), None);
        drop(CancelOnDrop::new(&cancel));
        assert_eq!(cancel.cause(), Some(CancelCause::CallerGone));
    }
}
