//! Percentiles of measured times.

use std::time::Duration;

/// Returns the value below which `share` (0..1) of the times lie, in microseconds to one decimal.
pub(crate) fn percentile_us(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    // Counts are far below 2^52, and the result is an index within the slice.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "see above"
    )]
    let index = ((times.len().saturating_sub(1)) as f64 * share).round() as usize;
    let micros = times.get(index).map_or(0.0, Duration::as_secs_f64) * 1e6;
    (micros * 10.0).round() / 10.0
}

/// Returns the same in milliseconds.
pub(crate) fn percentile_ms(times: &mut [Duration], share: f64) -> f64 {
    (percentile_us(times, share) / 10.0).round() / 100.0
}

/// Returns `count` per second of `elapsed`, rounded.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) fn per_second(count: usize, elapsed: Duration) -> f64 {
    (count as f64 / elapsed.as_secs_f64()).round()
}
