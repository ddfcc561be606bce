//! The firing times (slots) of timers and schedules, across changes to and from daylight saving time.
//!
//! Times of a clock follow their time zone. A fixed time that a change of the clock skips comes at the end of the gap, one
//! that it repeats comes once, at its first pass. A pattern with a wildcard or step in its hours or minutes follows the
//! clock as it runs: it skips the gap, and comes in both passes. Intervals know no clock.

use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{CatchUp, TriggerError};
use crate::ContentHash;

/// Slots that are caught up with at most.
pub const MAX_CATCH_UP: u32 = 1000;
/// Age up to which a slot is on time, or the interval if that is shorter.
const ON_TIME_MS: u64 = 60_000;

/// The slots of a timer or a schedule.
#[derive(Debug, Clone)]
pub enum Timetable {
    /// Each interval after an origin, and the origin itself if it is immediate.
    Every {
        /// Milliseconds from one slot to the next.
        interval_ms: u64,
        /// Milliseconds since the epoch.
        origin_ms: u64,
        /// Whether the origin is a slot.
        immediate: bool,
    },
    /// Times in a time zone that match a pattern.
    Clock {
        /// The pattern.
        cron: Box<Cron>,
        /// The zone.
        zone: TimeZone,
    },
}

/// The slots that are due, and the time up to which slots were searched.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DueSlots {
    /// Milliseconds since the epoch, the earliest first.
    pub slots: Vec<u64>,
    /// The time up to which slots were examined; the next call starts there.
    pub cursor: u64,
}

/// The names of the time zones.
pub fn zone_names() -> impl Iterator<Item = String> {
    jiff::tz::db().available().map(|name| name.as_str().to_owned())
}

impl Timetable {
    /// The times of a cron expression with five fields, in a time zone.
    ///
    /// # Errors
    /// [`TriggerError`] for an expression that is invalid or never matches, and for an unknown zone.
    pub fn clock(expression: &str, zone: &str) -> Result<Self, TriggerError> {
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser
            .parse(expression)
            .map_err(|error| TriggerError::Cron { expression: expression.to_owned(), why: error.to_string() })?;
        let zone = TimeZone::get(zone).map_err(|_| TriggerError::unknown_zone(zone))?;
        let times = Self::Clock { cron: Box::new(cron), zone };
        match times.next(0) {
            Some(_) => Ok(times),
            None => Err(TriggerError::NeverFires { expression: expression.to_owned() }),
        }
    }

    /// The first slot after this time.
    #[must_use]
    pub fn next(&self, after_ms: u64) -> Option<u64> {
        match self {
            Self::Every { interval_ms, origin_ms, immediate } => {
                if after_ms < *origin_ms {
                    return origin_ms.checked_add(if *immediate { 0 } else { *interval_ms });
                }
                let passed = (after_ms - origin_ms) / interval_ms;
                origin_ms.checked_add(passed.checked_add(1)?.checked_mul(*interval_ms)?)
            }
            Self::Clock { cron, zone } => {
                let after = Timestamp::from_millisecond(i64::try_from(after_ms).ok()?).ok()?.to_zoned(zone.clone());
                let next = cron.find_next_occurrence(&after, false).ok()?;
                u64::try_from(next.timestamp().as_millisecond()).ok()
            }
        }
    }

    /// The last slot that is not after this time.
    #[must_use]
    pub fn last(&self, until_ms: u64) -> Option<u64> {
        match self {
            Self::Every { interval_ms, origin_ms, immediate } => {
                let passed = until_ms.checked_sub(*origin_ms)? / interval_ms;
                (passed > 0 || *immediate).then(|| origin_ms + passed * interval_ms)
            }
            Self::Clock { cron, zone } => {
                let until = Timestamp::from_millisecond(i64::try_from(until_ms).ok()?).ok()?.to_zoned(zone.clone());
                let last = cron.find_previous_occurrence(&until, true).ok()?;
                u64::try_from(last.timestamp().as_millisecond() / 1000 * 1000).ok()
            }
        }
    }

    /// Returns the slots after `cursor` up to `now`, as `catch_up` allows. A slot of the last minute is on time and
    /// always fires. At most [`MAX_CATCH_UP`] past slots are examined.
    #[must_use]
    pub fn due(&self, cursor: u64, now_ms: u64, catch_up: CatchUp) -> DueSlots {
        let (missed, most) = match catch_up {
            CatchUp::None => (0, MAX_CATCH_UP),
            CatchUp::One => (1, MAX_CATCH_UP),
            CatchUp::All(most) => (most.min(MAX_CATCH_UP), MAX_CATCH_UP),
        };
        let on_time = match self {
            Self::Every { interval_ms, .. } => ON_TIME_MS.min(*interval_ms),
            Self::Clock { .. } => ON_TIME_MS,
        };
        let (mut slots, mut overdue) = (Vec::new(), 0);
        let mut until = now_ms;
        while let Some(slot) = self.last(until).filter(|slot| *slot > cursor) {
            let is_overdue = now_ms - slot > on_time;
            // The last of all counts as caught up with, too.
            overdue += u32::from(is_overdue || catch_up == CatchUp::One);
            if (is_overdue && overdue > missed) || slots.len() as u64 >= u64::from(most) {
                break;
            }
            slots.push(slot);
            let Some(before) = slot.checked_sub(1) else { break };
            until = before;
        }
        slots.reverse();
        DueSlots { slots, cursor: cursor.max(now_ms) }
    }
}

/// Returns the start time of a slot spread over `jitter`: the same in every process.
pub(super) fn with_jitter(trigger: &str, slot_ms: u64, jitter: Option<Duration>) -> u64 {
    let span = jitter.map_or(0, |jitter| u64::try_from(jitter.as_millis()).unwrap_or(0));
    if span == 0 {
        return slot_ms;
    }
    let hash = ContentHash::of_bytes(format!("{trigger} {slot_ms}").as_bytes());
    let spread = hash.as_bytes()[..8].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    slot_ms.saturating_add(spread % span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> u64 {
        text.parse::<Timestamp>().expect("a time").as_millisecond().cast_unsigned()
    }

    fn iso(ms: u64) -> String {
        Timestamp::from_millisecond(ms.cast_signed()).expect("a time").to_string()
    }

    /// The slots of a day, forwards; checks that backwards gives the same.
    fn slots(expression: &str, zone: &str, from: &str, to: &str) -> Vec<String> {
        let times = Timetable::clock(expression, zone).expect("legal");
        let (from, to) = (ms(from), ms(to));
        let forwards: Vec<u64> =
            std::iter::successors(times.next(from), |slot| times.next(*slot)).take_while(|slot| *slot <= to).collect();
        let mut backwards: Vec<u64> = std::iter::successors(times.last(to), |slot| times.last(*slot - 1))
            .take_while(|slot| *slot > from)
            .collect();
        backwards.reverse();
        assert_eq!(forwards, backwards, "{expression}");
        forwards.into_iter().map(iso).collect()
    }

    #[test]
    fn fixed_times_fire_once_at_clock_changes() {
        let check = |expression: &str, from: &str, to: &str, expect: &[&str]| {
            assert_eq!(slots(expression, "Europe/Oslo", from, to), expect, "{expression}");
        };
        // In spring 02:00 becomes 03:00: the slot of 02:30 comes when the gap ends.
        let spring = ["2026-03-28T02:00:00Z", "2026-03-30T02:00:00Z"];
        check("30 2 * * *", spring[0], spring[1], &["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
        // In autumn 03:00 becomes 02:00: the slot of 02:30 comes only once, at its first pass.
        let autumn = ["2026-10-24T02:00:00Z", "2026-10-26T02:00:00Z"];
        check("30 2 * * *", autumn[0], autumn[1], &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
        // Patterns with wildcards follow the clock.
        check(
            "0 * * * *",
            "2026-03-29T00:30:00Z",
            "2026-03-29T02:00:00Z",
            &["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"],
        );
        check(
            "30 * * * *",
            "2026-10-24T23:45:00Z",
            "2026-10-25T02:00:00Z",
            &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"],
        );
        check("0 7 * * MON-FRI", "2026-10-23T12:00:00Z", "2026-10-27T00:00:00Z", &["2026-10-26T06:00:00Z"]);
    }

    #[test]
    fn intervals_count_from_their_origin() {
        let times = |immediate| Timetable::Every { interval_ms: 10, origin_ms: 100, immediate };
        for (after, plain, immediate) in
            [(0, 110, 100), (99, 110, 100), (100, 110, 110), (109, 110, 110), (110, 120, 120)]
        {
            assert_eq!((times(false).next(after), times(true).next(after)), (Some(plain), Some(immediate)), "{after}");
        }
        for (until, plain, immediate) in [(99, None, None), (100, None, Some(100)), (119, Some(110), Some(110))] {
            assert_eq!((times(false).last(until), times(true).last(until)), (plain, immediate), "{until}");
        }
    }

    #[test]
    fn missed_slots_are_caught_up_as_configured() {
        const MINUTE: u64 = 60_000;
        let times = Timetable::Every { interval_ms: 10 * MINUTE, origin_ms: 0, immediate: false };
        let check = |cursor: u64, now: u64, catch_up: CatchUp, expect: &[u64]| {
            let due = times.due(cursor * MINUTE, now * MINUTE, catch_up);
            let slots: Vec<u64> = due.slots.iter().map(|slot| slot / MINUTE).collect();
            assert_eq!((slots.as_slice(), due.cursor), (expect, now * MINUTE), "{cursor} {now} {catch_up:?}");
        };
        // The slot is on time.
        check(5, 10, CatchUp::None, &[10]);
        check(10, 10, CatchUp::All(9), &[]);
        // Three passed, and the last is on time, or is not.
        check(5, 30, CatchUp::None, &[30]);
        check(5, 35, CatchUp::None, &[]);
        check(5, 30, CatchUp::One, &[30]);
        check(5, 35, CatchUp::One, &[30]);
        check(5, 35, CatchUp::All(2), &[20, 30]);
        check(5, 35, CatchUp::All(9), &[10, 20, 30]);
        let long = times.due(0, 1_000_000 * MINUTE, CatchUp::All(u32::MAX));
        assert_eq!(long.slots.len(), 1000, "no longer than the bound");
    }

    #[test]
    fn jitter_is_the_same_everywhere_and_bounded() {
        let jitter = Some(Duration::from_secs(30));
        let spread: Vec<u64> = (0..20).map(|slot| with_jitter("t", slot * 60_000, jitter) - slot * 60_000).collect();
        assert!(
            spread.iter().all(|overdue| *overdue < 30_000) && spread.iter().any(|overdue| *overdue != spread[0]),
            "{spread:?}"
        );
        assert_eq!(with_jitter("t", 60_000, jitter), with_jitter("t", 60_000, jitter));
        assert_eq!(with_jitter("t", 7, None), 7);
    }
}
