use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::queue::Priority;

const LONG: Duration = Duration::from_secs(3600);

fn queue_config(concurrent: usize) -> QueueConfig {
    QueueConfig { concurrent, per_minute: None, max_waiting: 10_000, wait_timeout: LONG }
}

fn queue(config: QueueConfig) -> Arc<PriorityQueue> {
    PriorityQueue::<ToolId>::new("q", "queue `q`".into(), config)
}

fn tool() -> ToolId {
    ToolId::parse("x:t@1.0.0").expect("id")
}

/// Waiters in the queue, each on its own task, which record their names on their turns.
struct Waiters {
    queue: Arc<PriorityQueue>,
    cancel: Cancel,
    order: Arc<Mutex<Vec<usize>>>,
    ended: tokio::task::JoinSet<Result<(), ToolError>>,
}

impl Waiters {
    fn at(queue: &Arc<PriorityQueue>) -> Self {
        Self { queue: Arc::clone(queue), cancel: Cancel::new(), order: Arc::default(), ended: Default::default() }
    }

    async fn come(&mut self, name: usize, priority: impl Into<ModelPriority>, stays: Duration) {
        let priority = priority.into();
        let (queue, cancel, order) = (Arc::clone(&self.queue), self.cancel.clone(), Arc::clone(&self.order));
        self.ended.spawn(async move {
            let (_slot, _) = queue.take(&tool(), priority, &cancel, |_| ()).await?;
            order.lock().expect("lock").push(name);
            tokio::time::sleep(stays).await;
            Ok(())
        });
        tokio::task::yield_now().await;
    }

    async fn order(self) -> Vec<usize> {
        self.ended.join_all().await.into_iter().for_each(|ended| ended.expect("had its turn"));
        self.order.lock().expect("lock").clone()
    }
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_and_interactive_before_background() {
    let queue = queue(queue_config(1));
    let mut waiters = Waiters::at(&queue);
    for (name, priority) in [
        (0, Priority::Background),
        (1, Priority::Background),
        (2, Priority::Interactive),
        (3, Priority::Background),
        (4, Priority::Interactive),
    ] {
        waiters.come(name, priority, Duration::from_secs(1)).await;
    }
    assert_eq!(waiters.order().await, [0, 2, 4, 1, 3]);
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn background_calls_do_not_starve() {
    let queue = queue(queue_config(1));
    let mut waiters = Waiters::at(&queue);
    waiters.come(0, Priority::Interactive, Duration::from_secs(5)).await;
    waiters.come(100, Priority::Background, Duration::from_secs(5)).await;
    for name in 1..20 {
        waiters.come(name, Priority::Interactive, Duration::from_secs(5)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let order = waiters.order().await;
    let turn = order.iter().position(|&name| name == 100).expect("had its turn");
    assert!((5..=7).contains(&turn), "after those of its first ten seconds: {order:?}");
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_holds_for_every_priority() {
    let queue = queue(QueueConfig { per_minute: Some(2), ..queue_config(10) });
    let mut waiters = Waiters::at(&queue);
    let begun = Instant::now();
    for name in 0..5 {
        waiters.come(name, Priority::Background, Duration::ZERO).await;
    }
    assert_eq!(waiters.order().await, [0, 1, 2, 3, 4]);
    assert_eq!(begun.elapsed().as_secs(), 120);
}

#[tokio::test(start_paused = true)]
async fn refusals_name_the_queue_and_its_holders() {
    let queue = queue(QueueConfig { max_waiting: 1, wait_timeout: Duration::from_millis(30), ..queue_config(1) });
    let cancel = Cancel::new();
    let tool = tool();
    let take = || queue.take(&tool, Priority::Interactive, &cancel, |name| assert_eq!(name, "q"));
    let (held, waited) = take().await.expect("free");
    assert_eq!(waited, Duration::ZERO);
    let (timed_out, full) = tokio::join!(take(), take());
    for (error, why) in [(timed_out, "within 30ms"), (full, "1 calls wait already")] {
        let error = error.expect_err("refused");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::LimitExceeded, true));
        for part in ["`q`", "held by x:t@1.0.0", why] {
            assert!(error.message().contains(part), "{part}: {error}");
        }
    }
    drop(held);
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn both_priorities_together_fill_the_line() {
    let queue = queue(QueueConfig { max_waiting: 2, ..queue_config(1) });
    let mut waiters = Waiters::at(&queue);
    for (name, priority) in [Priority::Interactive, Priority::Background, Priority::Interactive].into_iter().enumerate()
    {
        waiters.come(name, priority, Duration::from_secs(1)).await;
    }
    let refused = queue.take(&tool(), Priority::Background, &Cancel::new(), |_| ()).await.expect_err("full");
    assert!(refused.message().contains("2 calls wait already"), "{refused}");
    assert_eq!(waiters.order().await, [0, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_evicts_from_a_full_queue() {
    use ModelPriority::{Background, Interactive, Low, Retry};
    // The waiters, the newcomer, and whose place it takes; `None`: nobody's, so it is refused.
    for (waiting, comes, evicted) in [
        ([Low, Low, Low], Interactive, Some(2)),
        ([Low, Background, Interactive], Background, Some(0)),
        ([Background, Low, Background], Interactive, Some(1)),
        ([Background, Background, Interactive], Interactive, Some(1)),
        ([Interactive, Interactive, Low], Retry, Some(2)),
        ([Interactive, Interactive, Interactive], Retry, Some(2)),
        ([Interactive, Interactive, Background], Background, None),
        ([Interactive, Background, Background], Low, None),
        ([Retry, Retry, Retry], Retry, None),
    ] {
        let queue = queue(QueueConfig { max_waiting: 3, ..queue_config(1) });
        let (tool, cancel) = (tool(), Cancel::new());
        let take = |priority| Box::pin(queue.take(&tool, priority, &cancel, |_| ()));
        let held = take(Interactive).await.expect("free");
        let mut waits = Vec::from(waiting.map(take));
        for wait in &mut waits {
            assert!(futures_util::poll!(wait.as_mut()).is_pending());
        }
        waits.push(take(comes));
        let refused = evicted.unwrap_or(3);
        assert_eq!(futures_util::poll!(waits[3].as_mut()).is_ready(), refused == 3, "{waiting:?} {comes:?}");
        if refused < 3 {
            let error = waits[refused].as_mut().await.expect_err("it has lost its place");
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::LimitExceeded, true));
            for part in ["3 calls wait already", "one of a higher priority came", "held by x:t@1.0.0"] {
                assert!(error.message().contains(part), "{part}: {error}");
            }
        }
        drop(waits.remove(refused));
        for wait in &mut waits {
            assert!(futures_util::poll!(wait.as_mut()).is_pending(), "the others stay: {waiting:?} {comes:?}");
        }
        drop(held);
        let all =
            futures_util::future::join_all(waits.into_iter().map(async |wait| drop(wait.await.expect("its turn"))));
        assert_eq!(all.await.len(), 3);
        assert!(queue.is_idle());
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_gets_no_free_slot() {
    let queue = queue(queue_config(1));
    let (tool, cancel) = (tool(), Cancel::new());
    let held = queue.take(&tool, Priority::Interactive, &cancel, |_| ()).await.expect("free");
    let mut waits = Box::pin(queue.take(&tool, Priority::Interactive, &cancel, |_| ()));
    assert!(futures_util::poll!(waits.as_mut()).is_pending());
    // Its turn and the cancel both arrive before the waiter runs.
    drop(held);
    cancel.cancel(CancelCause::User);
    assert_eq!(waits.await.expect_err("cancelled").cancel_cause(), Some(CancelCause::User));
    let timed_out = queue.take(&tool, Priority::Interactive, &cancel, |_| ()).await;
    assert_eq!(timed_out.expect_err("cancelled").cancel_cause(), Some(CancelCause::User));
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn waits_end_by_cancel_close_and_drop() {
    for (cause, ends) in [
        (CancelCause::User, (|waiters, cause| waiters.cancel.cancel(cause)) as fn(&Waiters, CancelCause)),
        (CancelCause::Shutdown, |waiters, cause| waiters.queue.close(cause)),
    ] {
        let queue = queue(queue_config(1));
        let held = queue.take(&tool(), Priority::Interactive, &Cancel::new(), |_| ()).await.expect("free");
        let mut waiters = Waiters::at(&queue);
        for name in 0..3 {
            waiters.come(name, Priority::Interactive, LONG).await;
        }
        ends(&waiters, cause);
        for ended in std::mem::take(&mut waiters.ended).join_all().await {
            let error = ended.expect_err("ended");
            assert_eq!((error.cancel_cause(), error.is_retryable()), (Some(cause), true), "nothing was dispatched");
        }
        drop(held);
        assert!(queue.is_idle());
    }
    let queue = queue(queue_config(1));
    let held = queue.take(&tool(), Priority::Interactive, &Cancel::new(), |_| ()).await.expect("free");
    let mut waiters = Waiters::at(&queue);
    waiters.come(0, Priority::Interactive, LONG).await;
    // It gets the slot, but never runs.
    drop(held);
    waiters.ended.abort_all();
    while waiters.ended.join_next().await.is_some() {}
    assert!(queue.is_idle(), "a slot that nobody took is free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_never_exceed_three_slots() {
    static NOW: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let queue = queue(queue_config(3));
    let cancel = Cancel::new();
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..10_000 {
        let (queue, cancel) = (Arc::clone(&queue), cancel.clone());
        calls.spawn(async move {
            let Ok(_slot) = queue.take(&tool(), Priority::Interactive, &cancel, |_| ()).await else { return };
            MOST.fetch_max(NOW.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            NOW.fetch_sub(1, Ordering::SeqCst);
            // Some leave before the others had their turn.
            if n == 5_000 {
                cancel.cancel(CancelCause::User);
            }
        });
    }
    calls.join_all().await;
    assert!(MOST.load(Ordering::SeqCst) <= 3);
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn priorities_are_in_order_and_none_starves() {
    let queue = queue(queue_config(1));
    let mut waiters = Waiters::at(&queue);
    use ModelPriority::{Background, Interactive, Low, Retry};
    waiters.come(0, Interactive, Duration::from_secs(1)).await;
    for (name, priority) in [(4, Low), (3, Background), (2, Interactive), (1, Retry)] {
        waiters.come(name, priority, Duration::from_secs(1)).await;
    }
    assert_eq!(waiters.order().await, [0, 1, 2, 3, 4]);

    let mut waiters = Waiters::at(&queue);
    waiters.come(0, Retry, Duration::from_secs(2)).await;
    waiters.come(100, Low, Duration::from_secs(2)).await;
    for name in 1..60 {
        waiters.come(name, Retry, Duration::from_secs(2)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let order = waiters.order().await;
    let turn = order.iter().position(|&name| name == 100).expect("had its turn");
    assert!((34..=38).contains(&turn), "after those of its first seventy seconds: {turn}");
}

#[tokio::test(start_paused = true)]
async fn every_priority_starts_within_the_longest_wait() {
    use ModelPriority::{Background, Interactive, Low, Retry};
    for wait in [12, 20, 60, 69, 140, 300].map(Duration::from_secs) {
        let queue = self::queue(QueueConfig { wait_timeout: wait, ..queue_config(1) });
        let mut waiters = Waiters::at(&queue);
        for (name, priority) in [(0, Low), (4, Low), (3, Background), (2, Interactive), (1, Retry)] {
            waiters.come(name, priority, Duration::from_secs(1)).await;
        }
        assert_eq!(waiters.order().await, [0, 1, 2, 3, 4], "within {wait:?} the higher goes first");
        for (low, high) in [(Low, Retry), (Low, Background), (Background, Retry), (Interactive, Retry)] {
            // Each call takes a second, and a waiter of the higher priority is always present.
            let queue = self::queue(QueueConfig { wait_timeout: wait, ..queue_config(1) });
            let mut waiters = Waiters::at(&queue);
            waiters.come(0, high, Duration::from_secs(1)).await;
            waiters.come(1, high, Duration::from_secs(1)).await;
            waiters.come(100, low, Duration::from_secs(1)).await;
            for name in 2..2 * wait.as_secs() as usize {
                tokio::time::sleep(Duration::from_secs(1)).await;
                waiters.come(name, high, Duration::from_secs(1)).await;
            }
            let order = waiters.order().await;
            let turn = order.iter().position(|&name| name == 100).expect("had its turn");
            assert!(turn as u64 <= wait.as_secs() / 2 + 3, "{low:?} behind {high:?} within {wait:?}: {turn}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_pause_delays_all_callers() {
    let queue = queue(queue_config(1));
    let begun = Instant::now();
    queue.pause(begun + Duration::from_secs(5));
    queue.pause(begun + Duration::from_secs(3));
    let mut waiters = Waiters::at(&queue);
    waiters.come(0, Priority::Interactive, Duration::from_secs(1)).await;
    waiters.come(1, Priority::Interactive, Duration::from_secs(1)).await;
    tokio::time::sleep(Duration::from_millis(5500)).await;
    queue.pause(begun + Duration::from_secs(10));
    assert_eq!(waiters.order().await, [0, 1]);
    assert_eq!(begun.elapsed().as_secs(), 11);
}
