//! Prints the rows of the report as they come.

use std::time::Duration;

use serde::Serialize;

use super::choice::Target;
use crate::stats::{per_second, percentile_us};

/// One target in one part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The way to the server (`stdio`, `http-stdio`, `http`), or the part that was timed.
    path: String,
    /// The gateway between client and server.
    target: String,
    /// Concurrent calls.
    in_flight: Option<usize>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    calls_per_s: Option<f64>,
    /// Resident memory of the gateway in MiB; on the direct way, of the server.
    rss_mb: Option<f64>,
    /// The median divided by that of the direct way.
    ratio: Option<f64>,
    /// The reason why there are no figures.
    error: Option<String>,
}

impl Row {
    /// Creates a row with these times. The ratio is to the median `base`, in microseconds.
    pub(super) fn timed(path: String, target: String, times: &mut [Duration], base: Option<f64>) -> Self {
        let p50 = percentile_us(times, 0.5);
        Self {
            p50_ms: Some(rounded(p50 / 1e3, 1e3)),
            p99_ms: Some(rounded(percentile_us(times, 0.99) / 1e3, 1e3)),
            ratio: base.filter(|base| *base > 0.0).map(|base| rounded(p50 / base, 1e2)),
            ..Self::empty(path, target)
        }
    }

    /// Creates a row without figures.
    pub(super) fn failed(path: String, target: String, error: String) -> Self {
        Self { error: Some(error), ..Self::empty(path, target) }
    }

    fn empty(path: String, target: String) -> Self {
        let (in_flight, p50_ms, p99_ms, calls_per_s, rss_mb, ratio, error) = Default::default();
        Self { path, target, in_flight, p50_ms, p99_ms, calls_per_s, rss_mb, ratio, error }
    }

    /// Sets the number of concurrent calls.
    pub(super) fn in_flight(mut self, in_flight: usize) -> Self {
        self.in_flight = Some(in_flight);
        self
    }

    /// Sets the rate of `calls` in this time.
    pub(super) fn rate(mut self, calls: usize, elapsed: Duration) -> Self {
        self.calls_per_s = Some(per_second(calls, elapsed));
        self
    }

    /// Sets the resident memory in MiB.
    pub(super) fn rss_mb(mut self, rss_mb: Option<f64>) -> Self {
        self.rss_mb = rss_mb;
        self
    }

    /// Whether this row reports a failure of Toolwright or of the direct way.
    pub(crate) fn is_fault(&self) -> bool {
        let ours = [Target::Direct, Target::Toolwright].map(Target::name);
        self.error.is_some() && ours.iter().any(|name| self.target.starts_with(name))
    }
}

fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// All rows so far.
#[derive(Default)]
pub(super) struct Report(Vec<Row>);

impl Report {
    /// Adds a row and prints it on standard error.
    pub(super) fn add(&mut self, row: Row) {
        let what = format!("{:<10} {:<27}", row.path, row.target);
        match &row.error {
            Some(error) => eprintln!("{what} {error}"),
            None => {
                let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
                eprintln!(
                    "{what} {:>3} in flight: p50 {} ms, p99 {} ms, {} calls/s, {} MiB, {} x direct",
                    row.in_flight.map_or_else(|| "-".to_owned(), |count| count.to_string()),
                    number(row.p50_ms),
                    number(row.p99_ms),
                    number(row.calls_per_s),
                    number(row.rss_mb),
                    number(row.ratio),
                );
            }
        }
        self.0.push(row);
    }

    /// Returns the rows.
    pub(super) fn rows(self) -> Vec<Row> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(micros: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        micros.into_iter().map(Duration::from_micros).collect()
    }

    #[test]
    fn ratios_are_of_medians() {
        let check = |micros: &[u64], base: Option<f64>, expect: (f64, f64, Option<f64>)| {
            let row = Row::timed("stdio".into(), "direct".into(), &mut times(micros.iter().copied()), base);
            assert_eq!((row.p50_ms, row.p99_ms, row.ratio), (Some(expect.0), Some(expect.1), expect.2), "{micros:?}");
        };
        check(&[300, 100, 200], Some(100.0), (0.2, 0.3, Some(2.0)));
        check(&[186], Some(104.0), (0.186, 0.186, Some(1.79)));
        check(&[186], None, (0.186, 0.186, None));
        check(&[186], Some(0.0), (0.186, 0.186, None));
        let hundred: Vec<u64> = (1..=101).collect();
        check(&hundred, None, (0.051, 0.1, None));
    }

    #[test]
    fn errors_of_own_targets_are_faults() {
        let check = |target: &str, error: Option<&str>, expect: bool| {
            let row = Row { error: error.map(str::to_owned), ..Row::empty("http".into(), target.into()) };
            assert_eq!(row.is_fault(), expect, "{target} {error:?}");
        };
        check("toolwright", None, false);
        check("toolwright", Some("dead"), true);
        check("toolwright, nothing cached", Some("dead"), true);
        check("direct", Some("dead"), true);
        check("fastmcp", Some("dead"), false);
    }
}
