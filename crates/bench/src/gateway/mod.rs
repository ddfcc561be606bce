//! What the gateway costs: the same call to the same server on several ways, side by side in one run, and how long it
//! takes to start.

mod front;
mod http;
mod lanes;
mod peers;
mod starts;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use self::front::{Process, Times, free_addr, wait_for};
use self::lanes::{Lane, Target, Yard};
use self::peers::Peers;
use crate::Failure;
use crate::memory::rss_mb;
use crate::stats::{per_second, percentile_ms};

/// Rounds that each lane is measured in, turn by turn, so that what else the machine does hits all alike.
const ROUNDS: usize = 4;
/// Calls under way at once.
const IN_FLIGHT: [usize; 3] = [1, 16, 128];

/// One way to one target.
#[derive(Serialize)]
pub(crate) struct Row {
    path: &'static str,
    target: String,
    in_flight: usize,
    p50_ms: f64,
    p99_ms: f64,
    calls_per_s: f64,
    /// Of the process in the middle.
    rss_mb: f64,
    /// Of the median to that of the direct way; 0 where there is none.
    ratio: f64,
}

/// Measures all ways with so many calls each, and starts. What is missing in `peers` is installed.
pub(crate) fn run(binary: &Path, peers: &Path, calls: usize) -> Result<Vec<Row>, Failure> {
    if !binary.exists() {
        return Err(format!("{} is not there; build it with cargo build --release", binary.display()).into());
    }
    let binary = &std::path::absolute(binary)?;
    let peers = &Peers::install(peers)?;
    let files = tempfile::tempdir()?;
    let dir = files.path();
    let upstream = free_addr()?;
    let server = peers.everything();
    let mut everything = Command::new(&server[0]);
    everything.args(&server[1..]).arg("streamableHttp").env("PORT", upstream.port().to_string());
    let _everything = Process::start(&mut everything)?;
    wait_for(upstream)?;
    let yard = Yard { binary, peers, dir, upstream, collector: collector()? };
    let mut rows = Vec::new();
    for target in [Target::Stdio, Target::HttpToStdio, Target::Http] {
        rows.extend(measure(target, yard.lanes(target)?, calls)?);
    }
    rows.extend(starts::run(binary, dir)?);
    Ok(rows)
}

fn measure(target: Target, mut lanes: Vec<Lane>, calls: usize) -> Result<Vec<Row>, Failure> {
    let mut rows: Vec<Row> = Vec::new();
    for in_flight in IN_FLIGHT {
        let mut measured: Vec<Result<Times, Failure>> = lanes.iter().map(|_| Ok(Times::default())).collect();
        // The first round warms caches and connections up.
        for round in 0..=ROUNDS {
            for (lane, times) in lanes.iter_mut().zip(&mut measured) {
                let Ok(sum) = times else { continue };
                match lane.front.load(&lane.params, (calls / ROUNDS).max(in_flight), in_flight) {
                    Ok(loaded) if round > 0 => {
                        sum.each.extend(loaded.each);
                        sum.elapsed += loaded.elapsed;
                    }
                    Ok(_) => {}
                    Err(error) => *times = Err(error),
                }
            }
        }
        let first = rows.len();
        for (lane, times) in lanes.iter().zip(measured) {
            let mut times = match times {
                Ok(times) => times,
                Err(error) if matches!(lane.path, "direct" | "toolwright") => return Err(error),
                Err(error) => {
                    eprintln!("toolwright-bench: {}, {}, {in_flight} in flight: {error}", lane.path, target.name());
                    continue;
                }
            };
            let count = times.each.len();
            let p50_ms = percentile_ms(&mut times.each, 0.5);
            let base = rows.get(first).map_or(p50_ms, |direct| direct.p50_ms);
            rows.push(Row {
                path: lane.path,
                target: target.name().to_owned(),
                in_flight,
                p50_ms,
                p99_ms: percentile_ms(&mut times.each, 0.99),
                calls_per_s: per_second(count, times.elapsed),
                rss_mb: rss_mb(lane.pid),
                ratio: (p50_ms / base * 100.0).round() / 100.0,
            });
        }
    }
    Ok(rows)
}

/// A receiver of spans that takes all and keeps nothing.
fn collector() -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 65536];
                let _ = stream.set_read_timeout(Some(Duration::from_secs(600)));
                while let Ok(1..) = stream.read(&mut buffer) {
                    // Whether a read was the end of a request does not matter to a client that sends one at a time.
                    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(addr)
}
