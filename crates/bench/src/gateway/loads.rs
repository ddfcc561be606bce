//! Loads of calls, the same for each target; targets take turns.

use std::time::Duration;

use toolwright_core::store::LedgerStore as _;

use super::call::{Call, EchoTool, LoadLimit, Times};
use super::choice::{BenchPart, Target};
use super::fixture::{ClientTransport, Fixture, Lane, Server, ServerAddress, everything_over_http};
use super::process::poll;
use super::report::{Report, Row};
use crate::Failure;
use crate::memory::rss_mb;
use crate::stats::percentile_us;

/// The most rounds of each target. Targets take turns, so that other load on the machine affects all of them.
const ROUNDS: u32 = 10;
/// Numbers of concurrent calls.
const LEVELS: [usize; 3] = [1, 16, 128];
/// The limits of the warm-up before the first round.
const WARM_UP: LoadLimit = LoadLimit { calls: 1000, time: Duration::from_millis(500) };
/// The time for the ledger and the spans to follow the answers.
const TRACE_TIMEOUT: Duration = Duration::from_secs(12);

/// A target under load.
struct LoadedTarget {
    target: Target,
    home: String,
    /// The lane and its call, or the reason why it takes no more calls.
    state: Result<(Lane, Call), String>,
    /// The process whose memory is reported.
    pid: Option<u32>,
    /// The number of answered calls.
    answered: usize,
    /// The times of this level.
    times: Times,
}

/// Measures targets in a part that makes calls. `limit` applies to each target at each level.
pub(super) fn run(
    fixture: &Fixture<'_>,
    part: BenchPart,
    targets: &[Target],
    limit: LoadLimit,
    report: &mut Report,
) -> Result<(), Failure> {
    let upstream = if part == BenchPart::Http { Some(everything_over_http(fixture.peers, fixture.dir)?) } else { None };
    let reach = match &upstream {
        Some((at, _)) => ServerAddress::Http(*at),
        None => ServerAddress::Command([fixture.peers.everything()?, vec!["stdio".to_owned()]].concat()),
    };
    let server = Server::of("everything", reach);
    let transport = if part == BenchPart::Stdio { ClientTransport::Stdio } else { ClientTransport::Http };
    let batches = fixture.collector.batches();
    let loaded = |target: &Target| {
        let home = format!("{}-{}", part.name(), target.name());
        let opened = fixture.open(*target, transport, std::slice::from_ref(&server), &home).and_then(|mut lane| {
            let call = lane.echo(EchoTool::Everything, &server)?;
            Ok((lane, call))
        });
        let own = opened.as_ref().ok().and_then(|(lane, _)| lane.id());
        let pid = own.or_else(|| upstream.as_ref()?.1.id().filter(|_| *target == Target::Direct));
        let state = opened.map_err(|error| error.to_string());
        LoadedTarget { target: *target, home, state, pid, answered: 0, times: Times::default() }
    };
    let mut lanes: Vec<LoadedTarget> = targets.iter().map(loaded).collect();
    for in_flight in LEVELS {
        level(&mut lanes, limit, in_flight);
        report_loads(part, &mut lanes, in_flight, report);
    }
    for lane in lanes.iter().filter(|lane| lane.target == Target::Toolwright && lane.state.is_ok()) {
        if let Err(error) = check_ledger_and_spans(fixture, lane, batches) {
            report.add(Row::failed(part.name().into(), lane.target.name().into(), error.to_string()));
        }
    }
    Ok(())
}

/// Loads each target in turn, for several rounds.
fn level(lanes: &mut [LoadedTarget], limit: LoadLimit, in_flight: usize) {
    // A round has at least as many calls as run at once.
    let rounds = u32::try_from(limit.calls / in_flight).map_or(ROUNDS, |rounds| rounds.clamp(1, ROUNDS));
    let share = LoadLimit { calls: (limit.calls / rounds as usize).max(in_flight), time: limit.time / rounds };
    for lane in &mut *lanes {
        lane.times = Times::default();
    }
    for round in 0..=rounds {
        for lane in &mut *lanes {
            let Ok((open, call)) = &mut lane.state else { continue };
            // A round takes at least as long as its slowest call, so slow targets get fewer rounds.
            if lane.times.elapsed >= limit.time {
                continue;
            }
            match open.front.load(call, if round == 0 { WARM_UP } else { share }, in_flight) {
                Ok(times) => {
                    lane.answered += times.each.len();
                    if round > 0 {
                        lane.times.each.extend(times.each);
                        lane.times.elapsed += times.elapsed;
                    }
                }
                Err(error) => lane.state = Err(format!("{error}, with {in_flight} in flight")),
            }
        }
    }
}

fn report_loads(part: BenchPart, lanes: &mut [LoadedTarget], in_flight: usize, report: &mut Report) {
    let mut base = None;
    for lane in lanes {
        let (path, target) = (part.name().to_owned(), lane.target.name().to_owned());
        let row = match &lane.state {
            Err(error) => Row::failed(path, target, error.clone()),
            Ok(_) => {
                let times = &mut lane.times;
                if lane.target == Target::Direct {
                    base = Some(percentile_us(&mut times.each, 0.5));
                }
                let row = Row::timed(path, target, &mut times.each, base);
                row.rate(times.each.len(), times.elapsed).rss_mb(lane.pid.map(rss_mb))
            }
        };
        report.add(row.in_flight(in_flight));
    }
}

/// Returns an error unless each answered call is in the ledger and spans were sent.
fn check_ledger_and_spans(fixture: &Fixture<'_>, lane: &LoadedTarget, batches: usize) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = toolwright_runtime::SqliteStore::open(&fixture.state(&lane.home))?;
    let mut calls = 0;
    let all_there = poll(TRACE_TIMEOUT, "not all calls came to the ledger", || {
        calls = runtime.block_on(store.totals())?.tool_calls;
        Ok((calls >= lane.answered as u64).then_some(()))
    });
    all_there.map_err(|error| format!("{error}: {calls} of {}", lane.answered))?;
    poll(TRACE_TIMEOUT, "no span came", || Ok((fixture.collector.batches() > batches).then_some(())))
}
