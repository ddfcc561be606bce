//! Measures the cold start: the time from `exec` to the ready line, and the memory at that point.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use crate::Failure;
use crate::memory::rss_mb;
use crate::stats::percentile_ms;

#[derive(Serialize)]
pub(crate) struct Row {
    what: &'static str,
    servers: usize,
    runs: usize,
    p50_ms: f64,
    p99_ms: f64,
    idle_rss_mb: f64,
}

pub(crate) fn run(binary: &Path, runs: usize, servers: usize) -> Result<Vec<Row>, Failure> {
    let dir = tempfile::tempdir()?;
    let config = dir.path().join("toolwright.yaml");
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let entry = |n: usize| (format!("s{n}"), json!({"command": server, "args": ["--slow-start", "1000"]}));
    let entries: serde_json::Map<_, _> = (0..servers).map(entry).collect();
    std::fs::write(&config, json!({"mcpServers": entries}).to_string())?;

    let mut times = Vec::with_capacity(runs);
    let mut rss = 0.0;
    for _ in 0..runs.max(1) {
        let started = Instant::now();
        let mut child = Command::new(binary)
            .args(["serve", "--http", "127.0.0.1:0", "--config"])
            .arg(&config)
            .env("TOOLWRIGHT_STATE_DIR", dir.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}; build it with cargo build --release", binary.display()))?;
        let stderr = BufReader::new(child.stderr.take().ok_or("no stderr")?);
        let ready = stderr.lines().map_while(Result::ok).any(|line| line.starts_with("toolwright: ready "));
        times.push(started.elapsed());
        std::thread::sleep(Duration::from_millis(300));
        rss = rss_mb(child.id());
        child.kill()?;
        child.wait()?;
        if !ready {
            return Err("it ended without saying that it was ready".into());
        }
    }
    let (p50_ms, p99_ms) = (percentile_ms(&mut times, 0.5), percentile_ms(&mut times, 0.99));
    Ok(vec![Row { what: "exec to ready", servers, runs, p50_ms, p99_ms, idle_rss_mb: rss }])
}
