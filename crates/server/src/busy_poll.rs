//! Busy polling: for a moment after each call the runtime looks for what comes next instead of sleeping.
//!
//! A core that sleeps takes some tens of microseconds to wake, and forgets what it had in its caches: a call from a
//! client to a source and back has four such hops, which cost more than the gateway's own work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Keeps a worker of the runtime awake for a while after it was last [stirred](Self::stir), as long as that is worth
/// it: where stirs are further apart than that, it soon sleeps at once, until two come close together again.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    state: Arc<State>,
}

/// All in nanoseconds. Stirs at the same time may each think that they were the last, which costs a nap at most.
#[derive(Debug)]
struct State {
    /// What times count from.
    start: Instant,
    /// The longest window.
    longest: u64,
    /// How long a stir keeps awake now.
    window: AtomicU64,
    /// When the last stir was.
    stirred: AtomicU64,
    /// A worker is awake.
    is_awake: AtomicBool,
}

impl BusyPoll {
    /// Stays awake for `longest` at most; never if that is zero.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            state: Arc::new(State {
                start: Instant::now(),
                longest: nanos(longest),
                window: AtomicU64::new(0),
                stirred: AtomicU64::new(0),
                is_awake: AtomicBool::new(false),
            }),
        }
    }

    /// A call has come or has ended. Must be called inside a runtime.
    pub(crate) fn stir(&self) {
        let state = &self.state;
        if state.longest == 0 {
            return;
        }
        let now = state.now();
        let gap = now.saturating_sub(state.stirred.swap(now, Ordering::SeqCst));
        let window = next_window(state.window.load(Ordering::Relaxed), gap, state.longest);
        state.window.store(window, Ordering::Relaxed);
        if window > 0 && !state.is_awake.swap(true, Ordering::SeqCst) {
            tokio::spawn(stay_awake(Arc::clone(state)));
        }
    }
}

impl State {
    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }

    fn is_over(&self) -> bool {
        let until = self.stirred.load(Ordering::SeqCst).saturating_add(self.window.load(Ordering::Relaxed));
        self.now() >= until
    }
}

/// How long to stay awake after a stir that came `gap` after the last: a gap that was short enough to wait through
/// brings the longest window, each other one halves it, and below an eighth there is none.
const fn next_window(window: u64, gap: u64, longest: u64) -> u64 {
    if gap <= longest {
        longest
    } else if window / 2 < longest / 8 {
        0
    } else {
        window / 2
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A worker whose only task yields looks for events and timers without waiting for them, and runs what they wake.
async fn stay_awake(state: Arc<State>) {
    loop {
        while !state.is_over() {
            tokio::task::yield_now().await;
        }
        state.is_awake.store(false, Ordering::SeqCst);
        // Who stirred just before that has left it to this task.
        if state.is_over() || state.is_awake.swap(true, Ordering::SeqCst) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_stays_awake_only_where_the_next_comes_soon() {
        for (window, gap, expect) in [
            (0, 1, 200),
            (0, 200, 200),
            (0, 201, 0),
            (200, 201, 100),
            (100, u64::MAX, 50),
            (50, 1_000, 25),
            (25, 1_000, 0),
            (25, 10, 200),
        ] {
            assert_eq!(next_window(window, gap, 200), expect, "{window} {gap}");
        }
    }

    #[tokio::test]
    async fn nobody_stays_awake_without_a_window_or_after_it() {
        let never = BusyPoll::new(Duration::ZERO);
        never.stir();
        never.stir();
        assert!(!never.state.is_awake.load(Ordering::SeqCst));
        let poll = BusyPoll::new(Duration::from_millis(5));
        // The last stir was never: nothing says yet that a next one comes soon.
        std::thread::sleep(Duration::from_millis(10));
        poll.stir();
        assert!(!poll.state.is_awake.load(Ordering::SeqCst));
        poll.stir();
        assert!(poll.state.is_awake.load(Ordering::SeqCst));
        let ended = async {
            while poll.state.is_awake.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ended).await.expect("its window ends");
        poll.stir();
        poll.stir();
        assert!(poll.state.is_awake.load(Ordering::SeqCst), "and another begins");
    }
}
