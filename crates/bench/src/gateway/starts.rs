//! Starts: many servers until all their tools are listed, a server that starts at its first call, and a server with
//! many tools.

use std::time::{Duration, Instant};

use super::call::{Call, EchoTool};
use super::choice::{BenchPart, Target};
use super::fixture::{ClientTransport, Fixture, Lane, Server, ServerAddress};
use super::report::{Report, Row};
use crate::Failure;
use crate::stats::percentile_us;

/// Timed runs of each kind.
const RUNS: usize = 5;
/// Numbers of servers.
const SERVERS: [usize; 3] = [1, 10, 50];
/// The tools that one server adds to its usual few.
const TOOLS: usize = 1000;
/// How often the tools are listed.
const LISTS: usize = 20;
/// The start-up time of the lazy server.
const SLOW_START_MS: u64 = 300;
/// The pause before a gateway's memory is read.
const SETTLE: Duration = Duration::from_millis(300);
/// The time after which a target gets no further runs; earlier ones count.
const MAX_TARGET_TIME: Duration = Duration::from_secs(5);

/// Returns the transport that a gateway of this kind offers when it is started.
fn gateway_transport(target: Target) -> ClientTransport {
    match target {
        Target::CrateProxy | Target::PyProxy | Target::McpHub => ClientTransport::Http,
        _ => ClientTransport::Stdio,
    }
}

fn testkit(args: &[String]) -> ServerAddress {
    let program = toolwright_testkit::bin("misbehaving-mcp").to_string_lossy().into_owned();
    ServerAddress::Command([vec![program], args.to_vec()].concat())
}

/// The times of one kind of start so far.
struct StartedTarget {
    target: Target,
    label: &'static str,
    times: Result<Vec<Duration>, String>,
    rss_mb: Option<f64>,
}

impl StartedTarget {
    fn of(target: Target, label: &'static str) -> Self {
        Self { target, label, times: Ok(Vec::new()), rss_mb: None }
    }

    /// Runs once more, unless it has failed or has taken long enough.
    fn again(&mut self, run: impl FnOnce() -> Result<(Duration, Option<f64>), Failure>) {
        let Ok(times) = &mut self.times else { return };
        if times.iter().sum::<Duration>() > MAX_TARGET_TIME {
            return;
        }
        match run() {
            Ok((time, rss_mb)) => {
                times.push(time);
                self.rss_mb = rss_mb;
            }
            Err(error) => self.times = Err(error.to_string()),
        }
    }
}

fn report_starts(path: &str, all: Vec<StartedTarget>, report: &mut Report) {
    let mut base = None;
    for started in all {
        let target = format!("{}{}", started.target.name(), started.label);
        let row = match started.times {
            Err(error) => Row::failed(path.to_owned(), target, error),
            Ok(mut times) => {
                if started.target == Target::Direct {
                    base = Some(percentile_us(&mut times, 0.5));
                }
                Row::timed(path.to_owned(), target, &mut times, base).rss_mb(started.rss_mb)
            }
        };
        report.add(row);
    }
}

const COLD: &str = ", nothing cached";

/// Times from `exec` until the `echo` of each server is listed.
pub(super) fn starts(fixture: &Fixture<'_>, targets: &[Target], report: &mut Report) {
    for count in SERVERS {
        let path = format!("start-{count}");
        let servers: Vec<Server> = (0..count).map(|n| Server::of(&format!("s{n}"), testkit(&[]))).collect();
        let mut all: Vec<StartedTarget> = Vec::new();
        for target in targets {
            if *target == Target::Toolwright {
                all.push(StartedTarget::of(*target, COLD));
            }
            all.push(StartedTarget::of(*target, ""));
        }
        for run in 0..=RUNS {
            for started in &mut all {
                // An uncounted run: it fills Toolwright's cache and brings the files of the others into memory.
                let target = started.target;
                let home = match started.label {
                    COLD => format!("{path}-cold-{run}"),
                    _ => format!("{path}-{}", target.name()),
                };
                let timed = || {
                    if target == Target::Direct {
                        all_at_once(fixture, &servers)
                    } else {
                        through(fixture, target, &servers, &home)
                    }
                };
                match run {
                    0 if started.label == COLD => {}
                    0 => started.times = timed().map(|_| Vec::new()).map_err(|error| error.to_string()),
                    _ => started.again(timed),
                }
            }
        }
        report_starts(&path, all, report);
    }
}

fn through(
    fixture: &Fixture<'_>,
    target: Target,
    servers: &[Server],
    home: &str,
) -> Result<(Duration, Option<f64>), Failure> {
    let started = Instant::now();
    let mut lane = fixture.open(target, gateway_transport(target), servers, home)?;
    lane.front.listed("echo", servers.len())?;
    let time = started.elapsed();
    std::thread::sleep(SETTLE);
    Ok((time, lane.rss_mb()))
}

/// Starts all servers at once, as a client without a gateway does.
fn all_at_once(fixture: &Fixture<'_>, servers: &[Server]) -> Result<(Duration, Option<f64>), Failure> {
    let started = Instant::now();
    let lanes: Vec<Result<Lane, Failure>> = std::thread::scope(|scope| {
        let one = |server| {
            let mut lane =
                fixture.open(Target::Direct, ClientTransport::Stdio, std::slice::from_ref(server), "start-direct")?;
            lane.front.listed("echo", 1)?;
            Ok(lane)
        };
        let each: Vec<_> = servers.iter().map(|server| scope.spawn(move || one(server))).collect();
        each.into_iter().map(|one| one.join().map_err(|_| "a thread panicked")?).collect()
    });
    let time = started.elapsed();
    let lanes = lanes.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok((time, if let [lane] = lanes.as_slice() { lane.rss_mb() } else { None }))
}

/// Times the first call to a server that is not running yet but whose tools are known, compared with starting and
/// calling it directly.
pub(super) fn lazy(fixture: &Fixture<'_>, targets: &[Target], report: &mut Report) {
    let reach = testkit(&["--slow-start".to_owned(), SLOW_START_MS.to_string()]);
    let server = Server { lazy: true, ..Server::of("s", reach) };
    let mut all: Vec<StartedTarget> = targets.iter().map(|target| StartedTarget::of(*target, "")).collect();
    for run in 0..=RUNS {
        for started in &mut all {
            let target = started.target;
            let timed = || first_call(fixture, target, &server);
            match run {
                0 => started.times = timed().map(|_| Vec::new()).map_err(|error| error.to_string()),
                _ => started.again(timed),
            }
        }
    }
    report_starts(BenchPart::Lazy.name(), all, report);
}

/// Times one call: directly from `exec` on, through a running gateway only the call.
fn first_call(fixture: &Fixture<'_>, target: Target, server: &Server) -> Result<(Duration, Option<f64>), Failure> {
    let spawned = Instant::now();
    let mut lane = fixture.open(
        target,
        ClientTransport::Stdio,
        std::slice::from_ref(server),
        &format!("lazy-{}", target.name()),
    )?;
    if target == Target::Direct {
        lane.call_once(&Call::mcp("echo", EchoTool::Testkit))?;
        return Ok((spawned.elapsed(), lane.rss_mb()));
    }
    let call = lane.echo(EchoTool::Testkit, server)?;
    std::thread::sleep(SETTLE);
    let called = Instant::now();
    lane.call_once(&call)?;
    Ok((called.elapsed(), lane.rss_mb()))
}

/// Lists many tools, and reads the memory afterwards.
pub(super) fn memory(fixture: &Fixture<'_>, targets: &[Target], report: &mut Report) {
    let server = Server::of("m", testkit(&["--many".to_owned(), TOOLS.to_string()]));
    let mut all: Vec<StartedTarget> = targets.iter().map(|target| StartedTarget::of(*target, "")).collect();
    for started in &mut all {
        let target = started.target;
        let opened = fixture.open(
            target,
            gateway_transport(target),
            std::slice::from_ref(&server),
            &format!("memory-{}", target.name()),
        );
        let listed = opened.and_then(|mut lane| {
            lane.front.listed("many_", TOOLS)?;
            let call = lane.echo(EchoTool::Testkit, &server)?;
            lane.call_once(&call)?;
            Ok(lane)
        });
        let mut lane = match listed {
            Ok(lane) => lane,
            Err(error) => {
                started.times = Err(error.to_string());
                continue;
            }
        };
        for _ in 0..LISTS {
            started.again(|| timed_list(&mut lane));
        }
        std::thread::sleep(SETTLE);
        started.rss_mb = lane.rss_mb();
    }
    report_starts(BenchPart::Memory.name(), all, report);
}

fn timed_list(lane: &mut Lane) -> Result<(Duration, Option<f64>), Failure> {
    let started = Instant::now();
    let count = lane.front.names()?.len();
    if count < TOOLS { Err(format!("{count} tools are listed").into()) } else { Ok((started.elapsed(), None)) }
}
