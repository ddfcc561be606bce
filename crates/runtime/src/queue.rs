//! Named queues: so many at once, first come first served, a bounded crowd that waits a bounded time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolwright_core::cancel::Cancel;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::name::ToolId;

/// One queue's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSpec {
    /// Calls that run at once, 1 at least.
    pub concurrent: usize,
    /// Calls that may wait; one more is refused.
    pub max_waiting: usize,
    /// How long a call may wait.
    pub wait_timeout: Duration,
}

impl Default for QueueSpec {
    /// min(64, 2 x cores) at once, 1,024 waiting, 60 seconds.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self { concurrent: (2 * cores).min(64), max_waiting: 1024, wait_timeout: Duration::from_secs(60) }
    }
}

/// A tool or provider names a queue that nobody defined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("queue `{name}` is not defined; define it under `queues`{}", known(.defined))]
pub struct UnknownQueue {
    /// The name.
    pub name: String,
    /// Those that are.
    pub defined: Vec<String>,
}

fn known(defined: &[String]) -> String {
    if defined.is_empty() { String::new() } else { format!(", or use one of: {}", defined.join(", ")) }
}

/// All queues. Calls without a queue of their own wait in one per provider, so that a provider that
/// hangs holds up nobody else.
#[derive(Debug, Default)]
pub struct Queues {
    named: BTreeMap<String, Arc<Queue>>,
    default: QueueSpec,
    by_provider: Mutex<HashMap<String, Arc<Queue>>>,
}

#[derive(Debug)]
struct Queue {
    name: String,
    spec: QueueSpec,
    slots: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    holders: Vec<ToolId>,
}

impl Queue {
    fn new(name: String, spec: QueueSpec) -> Arc<Self> {
        let slots = Arc::new(Semaphore::new(spec.concurrent.max(1)));
        Arc::new(Self { name, spec, slots, state: Mutex::default() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holders(&self) -> String {
        let holders: Vec<String> = self.state().holders.iter().take(5).map(ToString::to_string).collect();
        if holders.is_empty() { "nobody".into() } else { holders.join(", ") }
    }
}

/// A slot of a queue, given back when dropped.
#[derive(Debug)]
pub struct Slot {
    queue: Arc<Queue>,
    holder: ToolId,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if let Some(index) = state.holders.iter().position(|holder| *holder == self.holder) {
            state.holders.swap_remove(index);
        }
    }
}

/// Counts a waiter for as long as it waits, however that ends.
struct Waiting<'a>(&'a Queue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

impl Queues {
    /// The configured queues; one called `default` sets what providers without a queue get.
    #[must_use]
    pub fn new(specs: BTreeMap<String, QueueSpec>) -> Self {
        let default = specs.get("default").cloned().unwrap_or_default();
        let named = specs.into_iter().map(|(name, spec)| (name.clone(), Queue::new(name, spec))).collect();
        Self { named, default, by_provider: Mutex::default() }
    }

    /// Checks a binding at start-up.
    ///
    /// # Errors
    /// [`UnknownQueue`] with the names that exist.
    pub fn check(&self, name: &str) -> Result<(), UnknownQueue> {
        if self.named.contains_key(name) {
            return Ok(());
        }
        Err(UnknownQueue { name: name.to_owned(), defined: self.named.keys().cloned().collect() })
    }

    fn queue(&self, name: Option<&str>, provider: &str) -> Arc<Queue> {
        if let Some(queue) = name.and_then(|name| self.named.get(name)) {
            return Arc::clone(queue);
        }
        let mut by_provider = self.by_provider.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = by_provider.get(provider) {
            return Arc::clone(queue);
        }
        let queue = Queue::new(format!("default of {provider}"), self.default.clone());
        by_provider.insert(provider.to_owned(), Arc::clone(&queue));
        queue
    }

    /// Takes a slot, waiting in line if need be. `on_wait` is told the queue's name before a wait.
    ///
    /// # Errors
    /// `limit_exceeded`, naming the queue and its holders, when too many wait or the wait is over its
    /// limit; `canceled` when the token fires. All are retryable: nothing was dispatched.
    pub async fn acquire(
        &self,
        name: Option<&str>,
        provider: &str,
        tool: &ToolId,
        cancel: &Cancel,
        on_wait: impl FnOnce(&str),
    ) -> Result<Slot, ToolError> {
        let queue = self.queue(name, provider);
        let permit = match Arc::clone(&queue.slots).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => wait(&queue, cancel, on_wait).await?,
        };
        queue.state().holders.push(tool.clone());
        Ok(Slot { queue, holder: tool.clone(), _permit: permit })
    }
}

async fn wait(
    queue: &Arc<Queue>,
    cancel: &Cancel,
    on_wait: impl FnOnce(&str),
) -> Result<OwnedSemaphorePermit, ToolError> {
    let refused = |what: String| {
        let message = format!("{what}; running now: {}", queue.holders());
        ToolError::new(ErrorKind::LimitExceeded, message).retryable()
    };
    {
        let mut state = queue.state();
        if state.waiting >= queue.spec.max_waiting {
            drop(state);
            return Err(refused(format!(
                "queue `{}` is full: {} calls wait already",
                queue.name, queue.spec.max_waiting
            )));
        }
        state.waiting += 1;
    }
    let _waiting = Waiting(queue);
    on_wait(&queue.name);
    tokio::select! {
        permit = Arc::clone(&queue.slots).acquire_owned() => {
            permit.map_err(|error| ToolError::new(ErrorKind::InternalError, "the queue is closed").with_source(error))
        }
        cause = cancel.cancelled() => Err(ToolError::canceled(cause)),
        () = tokio::time::sleep(queue.spec.wait_timeout) => {
            let limit = toolwright_core::duration::format(queue.spec.wait_timeout);
            Err(refused(format!("no slot in queue `{}` within {limit}", queue.name)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::cancel::CancelCause;

    fn queues(concurrent: usize, max_waiting: usize, wait_ms: u64) -> Arc<Queues> {
        let spec = QueueSpec { concurrent, max_waiting, wait_timeout: Duration::from_millis(wait_ms) };
        Arc::new(Queues::new(BTreeMap::from([("q".to_owned(), spec)])))
    }

    fn tool() -> ToolId {
        ToolId::parse("x:t@1.0.0").expect("id")
    }

    #[tokio::test]
    async fn a_queue_is_fifo_and_bounded() {
        let queues = queues(1, 2, 5_000);
        let cancel = Cancel::new();
        let first = queues.acquire(Some("q"), "p", &tool(), &cancel, |_| ()).await.expect("slot");
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for n in 0..2 {
            let (queues, cancel, order) = (Arc::clone(&queues), cancel.clone(), Arc::clone(&order));
            waiters.push(tokio::spawn(async move {
                let _slot = queues.acquire(Some("q"), "p", &tool(), &cancel, |_| ()).await.expect("slot");
                order.lock().expect("lock").push(n);
            }));
            tokio::task::yield_now().await;
        }
        let refused = queues.acquire(Some("q"), "p", &tool(), &cancel, |_| ()).await.expect_err("full");
        assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
        assert!(refused.message().contains("`q`") && refused.message().contains("x:t@1.0.0"), "{refused}");
        drop(first);
        for waiter in waiters {
            waiter.await.expect("waiter");
        }
        assert_eq!(*order.lock().expect("lock"), [0, 1]);
        drop(queues.acquire(Some("q"), "p", &tool(), &cancel, |_| ()).await.expect("all slots came back"));
    }

    #[tokio::test]
    async fn waits_end_by_time_and_by_cancel() {
        let queues = queues(1, 10, 30);
        let cancel = Cancel::new();
        let _held = queues.acquire(Some("q"), "p", &tool(), &cancel, |_| ()).await.expect("slot");
        let late =
            queues.acquire(Some("q"), "p", &tool(), &cancel, |name| assert_eq!(name, "q")).await.expect_err("late");
        assert!(late.message().contains("within 30ms"), "{late}");
        cancel.cancel(CancelCause::Shutdown);
        let canceled = queues.acquire(Some("q"), "p", &tool(), &cancel, |_| ()).await.expect_err("canceled");
        assert_eq!(canceled.cancel_cause(), Some(CancelCause::Shutdown));
    }

    #[tokio::test]
    async fn providers_without_a_queue_do_not_share_one() {
        let queues = Queues { default: QueueSpec { concurrent: 1, ..QueueSpec::default() }, ..Queues::default() };
        let cancel = Cancel::new();
        let _a = queues.acquire(None, "a", &tool(), &cancel, |_| ()).await.expect("slot");
        let _b = queues.acquire(None, "b", &tool(), &cancel, |_| panic!("b must not wait for a")).await.expect("slot");
        assert!(queues.check("nope").expect_err("unknown").to_string().contains("nope"));
    }
}
