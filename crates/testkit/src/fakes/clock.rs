//! A clock for tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use toolwright_core::context::Clock;

/// A clock whose time of day or time spans a test sets.
#[derive(Debug)]
pub struct FakeClock {
    /// The time of day in milliseconds after the epoch; `None` for the system's.
    wall_ms: Option<AtomicU64>,
    /// The start of time spans and the seconds counted so far; `None` for the system's clock.
    ticks: Option<(Instant, AtomicU64)>,
}

impl FakeClock {
    /// Creates a clock that stands at `wall_ms` milliseconds after the epoch. Time spans are the system's.
    #[must_use]
    pub fn at(wall_ms: u64) -> Self {
        Self { wall_ms: Some(AtomicU64::new(wall_ms)), ticks: None }
    }

    /// Creates a clock at the epoch whose time spans grow by one second at every reading.
    #[must_use]
    pub fn ticking() -> Self {
        Self { ticks: Some((Instant::now(), AtomicU64::new(0))), ..Self::at(0) }
    }

    /// Creates a clock that shows the system's time.
    #[must_use]
    pub fn real() -> Self {
        Self { wall_ms: None, ticks: None }
    }

    /// Sets the time of day forward. Does nothing on a clock that shows the system's.
    pub fn pass(&self, time: Duration) {
        if let Some(wall) = &self.wall_ms {
            wall.fetch_add(millis(time), Ordering::SeqCst);
        }
    }

    /// Sets the time of day back. Does nothing on a clock that shows the system's.
    pub fn rewind(&self, time: Duration) {
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

    fn system_time(&self) -> SystemTime {
        match &self.wall_ms {
            Some(wall) => SystemTime::UNIX_EPOCH + Duration::from_millis(wall.load(Ordering::SeqCst)),
            None => SystemTime::now(),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
