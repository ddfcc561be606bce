//! What a process holds.

/// Resident memory of a process in MiB, from /proc; 0 where there is none.
pub(crate) fn rss_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    (kib.unwrap_or(0.0) / 102.4).round() / 10.0
}
