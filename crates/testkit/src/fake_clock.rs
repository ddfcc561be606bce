//! A clock that a test sets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use toolwright_core::context::Clock;

/// A clock whose time of day is what it is set to. Spans are measured by the system's clock.
#[derive(Debug)]
pub struct FakeClock(AtomicU64);

impl FakeClock {
    /// A clock at so many milliseconds after the epoch.
    #[must_use]
    pub fn at(wall_ms: u64) -> Self {
        Self(AtomicU64::new(wall_ms))
    }

    /// Sets it on.
    pub fn pass(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Sets it back.
    pub fn set_back(&self, time: Duration) {
        self.0.fetch_sub(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}
