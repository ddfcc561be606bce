//! Starting: many servers until all their tools are listed, a server that starts at its first call, many tools.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::Row;
use super::front::{Front, Pipe, call_params};
use crate::Failure;
use crate::memory::rss_mb;
use crate::stats::percentile_ms;

/// Starts of each kind that are timed.
const RUNS: usize = 5;
/// Tools of one server of `many`; each has `echo` and others besides.
const MANY_TOOLS: usize = 1000;
/// How long the server that starts at its first call takes to start.
const SLOW_START: u64 = 300;

/// Rows of starts: the first with an empty state directory, then from cached lists.
pub(super) fn run(binary: &Path, dir: &Path) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let server = toolwright_testkit::bin("misbehaving-mcp");
    for servers in [1, 10, 50] {
        let place = Place::new(binary, dir, &format!("start-{servers}"))?;
        let entries = (0..servers).map(|n| (format!("s{n}"), json!({"command": server})));
        place.write(entries.collect())?;
        let mut cold = vec![place.time_until_listed(servers)?];
        rows.push(row(format!("start, {servers} servers, first"), &mut cold, 0.0));
        let (mut warm, mut rss) = (Vec::new(), 0.0);
        for _ in 0..RUNS {
            let (time, memory) = place.started(servers)?;
            warm.push(time);
            rss = memory;
        }
        rows.push(row(format!("start, {servers} servers, cached"), &mut warm, rss));
    }
    rows.extend(lazy(binary, dir)?);
    let place = Place::new(binary, dir, "tools")?;
    let many = MANY_TOOLS.to_string();
    place.write([("many".to_owned(), json!({"command": server, "args": ["--many", many]}))].into_iter().collect())?;
    let (time, rss) = place.started(MANY_TOOLS)?;
    rows.push(row(format!("start, {MANY_TOOLS} tools"), &mut [time], rss));
    Ok(rows)
}

/// The first call to a server that is not running yet, whose tools are known; and the server's own start.
fn lazy(binary: &Path, dir: &Path) -> Result<Vec<Row>, Failure> {
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let place = Place::new(binary, dir, "lazy")?;
    let slow = SLOW_START.to_string();
    let entry = json!({"command": server, "args": ["--slow-start", slow], "lazy": true});
    place.write([("s".to_owned(), entry)].into_iter().collect())?;
    place.time_until_listed(1)?;
    let (mut alone, mut through) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let started = Instant::now();
        let mut direct = Front::Pipe(Pipe::open(Command::new(&server).args(["--slow-start", &slow]))?);
        direct.load(&call_params("echo", &json!({"text": "hello"})), 1, 1)?;
        alone.push(started.elapsed());
        let mut front = place.open()?;
        let tool = front.tool("echo")?;
        let called = Instant::now();
        front.load(&call_params(&tool, &json!({"text": "hello"})), 1, 1)?;
        through.push(called.elapsed());
    }
    Ok(vec![
        row(format!("first call, server of {slow} ms alone"), &mut alone, 0.0),
        row(format!("first call, lazy server of {slow} ms"), &mut through, 0.0),
    ])
}

fn row(target: String, times: &mut [Duration], rss_mb: f64) -> Row {
    Row {
        path: "toolwright",
        target,
        in_flight: 1,
        p50_ms: percentile_ms(times, 0.5),
        p99_ms: percentile_ms(times, 0.99),
        calls_per_s: 0.0,
        rss_mb,
        ratio: 0.0,
    }
}

/// A configuration with a state directory of its own.
struct Place<'a> {
    binary: &'a Path,
    dir: std::path::PathBuf,
}

impl<'a> Place<'a> {
    fn new(binary: &'a Path, dir: &Path, name: &str) -> Result<Self, Failure> {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir)?;
        Ok(Self { binary, dir })
    }

    fn write(&self, servers: Map<String, Value>) -> Result<(), Failure> {
        Ok(std::fs::write(self.dir.join("toolwright.yaml"), json!({"mcpServers": servers}).to_string())?)
    }

    fn open(&self) -> Result<Front, Failure> {
        let mut command = Command::new(self.binary);
        command.args(["serve", "--stdio", "--config"]).arg(self.dir.join("toolwright.yaml"));
        command.env("TOOLWRIGHT_STATE_DIR", self.dir.join("state")).current_dir(&self.dir);
        Ok(Front::Pipe(Pipe::open(&mut command)?))
    }

    /// From `exec` until so many tools, built-in ones not counted, are listed at the least.
    fn time_until_listed(&self, tools: usize) -> Result<Duration, Failure> {
        self.started(tools).map(|(time, _)| time)
    }

    /// The time, and the memory a little later.
    fn started(&self, tools: usize) -> Result<(Duration, f64), Failure> {
        let started = Instant::now();
        let mut front = self.open()?;
        // Every server has several tools, and there are built-in ones: enough is more than one a server.
        while front.tools()? < tools * 2 {
            if started.elapsed() > Duration::from_secs(60) {
                return Err("the tools were never listed".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let time = started.elapsed();
        std::thread::sleep(Duration::from_millis(500));
        let Front::Pipe(pipe) = &front else { return Ok((time, 0.0)) };
        Ok((time, rss_mb(pipe.id())))
    }
}
