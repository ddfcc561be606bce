//! Watches the resources that a running soak uses, from /proc.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Samples in all, if the time is long enough for that.
const SAMPLES: u32 = 60;
/// The part of the samples that warming up takes.
const WARM_UP: usize = 5;

/// What was used at one moment.
#[derive(Clone, Serialize)]
pub(super) struct Sample {
    seconds: f64,
    pub(super) rss_mb: f64,
    pub(super) descriptors: f64,
    processes: usize,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, rss_mb, descriptors, processes } = self;
        write!(f, "{seconds:>8.1} s  {rss_mb:>7.1} MiB  {descriptors:>4} descriptors  {processes:>3} processes")
    }
}

/// Looks at this process and at those that carry its mark.
pub(super) struct Watch {
    mark: String,
}

impl Watch {
    /// `mark` is in the environment or on the command line of everything that the load starts.
    pub(super) fn new(mark: &str) -> Self {
        Self { mark: mark.to_owned() }
    }

    pub(super) fn sample(&self, elapsed: Duration) -> Sample {
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Sample {
            seconds: (elapsed.as_secs_f64() * 10.0).round() / 10.0,
            rss_mb: crate::memory::rss_mb(std::process::id()),
            descriptors: f64::from(u32::try_from(open).unwrap_or(u32::MAX)),
            processes: self.processes(),
        }
    }

    /// Marked processes that are still there after `timeout`.
    pub(super) async fn left_within(&self, timeout: Duration) -> usize {
        let end = Instant::now() + timeout;
        loop {
            let left = self.processes();
            if left == 0 || Instant::now() >= end {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn processes(&self) -> usize {
        let own = std::process::id().to_string();
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let others = all.filter(|process| {
            let name = process.file_name();
            name.to_str().is_some_and(|name| name != own && name.bytes().all(|byte| byte.is_ascii_digit()))
        });
        let marked = |file: &str, process: &std::fs::DirEntry| {
            // One that has ended meanwhile has neither.
            let text = std::fs::read(process.path().join(file)).unwrap_or_default();
            text.windows(self.mark.len()).any(|part| part == self.mark.as_bytes())
        };
        others.filter(|process| marked("environ", process) || marked("cmdline", process)).count()
    }
}

/// All samples of a soak.
pub(super) struct Samples {
    pause: Duration,
    all: Vec<Sample>,
}

impl Samples {
    /// As many as there should be in `time`, at least a second apart.
    pub(super) fn over(time: Duration) -> Self {
        Self { pause: (time / SAMPLES).max(Duration::from_secs(1)), all: Vec::new() }
    }

    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    pub(super) fn add(&mut self, sample: Sample) {
        self.all.push(sample);
    }

    pub(super) fn into_all(self) -> Vec<Sample> {
        self.all
    }

    /// Medians of the first and the last third after warming up.
    pub(super) fn thirds(&self, of: impl Fn(&Sample) -> f64) -> (f64, f64) {
        let warm = &self.all[self.all.len() / WARM_UP..];
        let third = warm.len().div_ceil(3);
        let median = |samples: &[Sample]| {
            let mut values: Vec<f64> = samples.iter().map(&of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        (median(&warm[..third]), median(&warm[warm.len() - third..]))
    }
}
