//! What the gateway costs: the same echo call to the same stdio server on three paths, in one run.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use crate::Failure;
use crate::jsonrpc::Client;
use crate::stats::{per_second, percentile_ms};

#[derive(Serialize)]
pub(crate) struct Row {
    path: &'static str,
    target: &'static str,
    p50_ms: f64,
    p99_ms: f64,
    calls_per_s: f64,
    rss_mb: f64,
    ratio: f64,
}

pub(crate) fn run(binary: &Path, calls: usize) -> Result<Vec<Row>, Failure> {
    let dir = tempfile::tempdir()?;
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let config = dir.path().join("toolwright.yaml");
    std::fs::write(&config, json!({"mcpServers": {"m": {"command": server}}}).to_string())?;
    let mut direct = Command::new(&server);
    let mut relay = Command::new("sh");
    relay.args(["-c", "cat | \"$0\" | cat"]).arg(&server);
    let mut ours = Command::new(binary);
    ours.args(["serve", "--stdio", "--config"]).arg(&config).env("TOOLWRIGHT_STATE_DIR", dir.path().join("state"));

    let mut rows: Vec<Row> = Vec::new();
    for (path, tool, command) in
        [("direct", "echo", &mut direct), ("two cats", "echo", &mut relay), ("toolwright", "m__echo", &mut ours)]
    {
        let mut client = Client::connect(command)?;
        client.wait_for_tool(tool)?;
        let mut times = time_calls(&mut client, tool, calls)?;
        let elapsed: Duration = times.iter().sum();
        let p50_ms = percentile_ms(&mut times, 0.5);
        let base = rows.first().map_or(p50_ms, |first| first.p50_ms);
        rows.push(Row {
            path,
            target: "stdio echo",
            p50_ms,
            p99_ms: percentile_ms(&mut times, 0.99),
            calls_per_s: per_second(calls, elapsed),
            rss_mb: client.rss_mb(),
            ratio: (p50_ms / base * 100.0).round() / 100.0,
        });
    }
    Ok(rows)
}

fn time_calls(client: &mut Client, tool: &str, calls: usize) -> Result<Vec<Duration>, Failure> {
    let params = json!({"name": tool, "arguments": {"text": "hello"}});
    let mut times = Vec::with_capacity(calls);
    for n in 0..calls + 100 {
        let started = Instant::now();
        let result = client.request("tools/call", &params)?;
        if result["isError"] == true {
            return Err(format!("{tool} failed: {result}").into());
        }
        // The first hundred warm caches and connections up.
        if n >= 100 {
            times.push(started.elapsed());
        }
    }
    Ok(times)
}
