//! A rate limit: a number of starts in any sixty seconds.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(60);

/// The starts of the last minute: as many entries as may be in it, and no more.
#[derive(Debug)]
pub(super) struct Rate {
    limit: usize,
    starts: VecDeque<Instant>,
}

impl Rate {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), starts: VecDeque::new() }
    }

    /// When the next may start, if not now.
    pub(super) fn blocked_until(&mut self, now: Instant) -> Option<Instant> {
        while self.starts.front().is_some_and(|&start| now.saturating_duration_since(start) >= WINDOW) {
            self.starts.pop_front();
        }
        if self.starts.len() < self.limit { None } else { self.starts.front().map(|&start| start + WINDOW) }
    }

    pub(super) fn note_start(&mut self, now: Instant) {
        self.starts.push_back(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_minute_has_more_starts_than_allowed() {
        let (mut rate, begin) = (Rate::new(2), Instant::now());
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        for (now, blocked_until) in
            [(0, None), (10, None), (20, Some(60)), (59, Some(60)), (60, None), (61, Some(70)), (70, None)]
        {
            let blocked = rate.blocked_until(at(now));
            assert_eq!(blocked, blocked_until.map(at), "{now}");
            if blocked.is_none() {
                rate.note_start(at(now));
            }
            assert!(rate.starts.len() <= 2);
        }
    }
}
