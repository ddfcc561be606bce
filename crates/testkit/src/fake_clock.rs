//! The clock of tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use toolwright_core::context::Clock;

/// A clock whose time of day, or whose spans, are what a test says.
#[derive(Debug)]
pub struct FakeClock {
    /// The time of day; `None`: the system's.
    wall_ms: Option<AtomicU64>,
    /// Where spans begin, and how many seconds were counted; `None`: the system's.
    ticks: Option<(Instant, AtomicU64)>,
}

impl FakeClock {
    /// A clock at so many milliseconds after the epoch. Spans are measured by the system's clock.
    #[must_use]
    pub fn at(wall_ms: u64) -> Self {
        Self { wall_ms: Some(AtomicU64::new(wall_ms)), ticks: None }
    }

    /// A clock on which a second passes whenever somebody looks, at the epoch.
    #[must_use]
    pub fn ticking() -> Self {
        Self { ticks: Some((Instant::now(), AtomicU64::new(0))), ..Self::at(0) }
    }

    /// The system's clocks.
    #[must_use]
    pub fn real() -> Self {
        Self { wall_ms: None, ticks: None }
    }

    /// Sets it on. One that shows the system's time of day stays.
    pub fn pass(&self, time: Duration) {
        if let Some(wall) = &self.wall_ms {
            wall.fetch_add(millis(time), Ordering::SeqCst);
        }
    }

    /// Sets it back. One that shows the system's time of day stays.
    pub fn set_back(&self, time: Duration) {
        if let Some(wall) = &self.wall_ms {
            wall.fetch_sub(millis(time), Ordering::SeqCst);
        }
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Instant {
        match &self.ticks {
            Some((start, ticks)) => *start + Duration::from_secs(ticks.fetch_add(1, Ordering::SeqCst)),
            None => Instant::now(),
        }
    }

    fn wall(&self) -> SystemTime {
        match &self.wall_ms {
            Some(wall) => SystemTime::UNIX_EPOCH + Duration::from_millis(wall.load(Ordering::SeqCst)),
            None => SystemTime::now(),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
