//! Reads the memory and processor time of a process.

use std::time::Duration;

/// Returns the resident memory of a process in MiB from /proc; 0 if it is not there.
pub(crate) fn rss_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    (kib.unwrap_or(0.0) / 102.4).round() / 10.0
}

/// Returns the processor time of this process so far from /proc; zero if it is not there.
pub(crate) fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold any character, user and system time are the 12th and 13th field, in hundredths of
    // a second.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
