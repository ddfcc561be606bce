//! Real processes, looked up in `/proc` by an argument that occurs nowhere else. The tests of other crates include this file.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Seconds for `sleep` with a fraction that no other test or run uses.
pub(crate) fn unique_sleep() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("600.{}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Pids of processes that have `argument` as one of their arguments; zombies have none.
pub(crate) fn pids_with(argument: &str) -> Vec<u32> {
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if arguments.split(|&byte| byte == 0).any(|part| part == argument.as_bytes()) {
            pids.push(pid);
        }
    }
    pids
}

/// Waits, a few seconds at most, until exactly `count` processes have the argument.
pub(crate) async fn wait_for_count(argument: &str, count: usize) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let pids = pids_with(argument);
        if pids.len() == count {
            return;
        }
        assert!(Instant::now() < end, "{} processes instead of {count}: {pids:?}", pids.len());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Highest resident memory of this process so far, in MiB.
pub(crate) fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("peak");
    line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).expect("kB") / 1024
}
