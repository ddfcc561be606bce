//! Watches the resources of a running soak from /proc.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

/// The number of samples, if the time is long enough.
const SAMPLES: u32 = 60;
/// The fraction of the samples that are warm-up: one in this many.
const WARM_UP: usize = 5;

/// The resources in use at one moment.
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

/// Observes this process and the processes with its mark.
pub(super) struct Watch {
    mark: String,
}

impl Watch {
    /// Creates a watch. `mark` is in the environment or on the command line of every process of the load.
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

    /// Returns the number of marked processes that still run after `timeout`.
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
            // A process that has ended in the meantime has neither file.
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
    /// Plans as many samples as fit in `time`, at least a second apart.
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

    /// Returns the medians of the first and the last third after the warm-up.
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
