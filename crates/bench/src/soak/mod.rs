//! Mixed load for a chosen time, a quarter of it failing, hanging, flooding and dying. Resource use must stay flat, no
//! process may be left, and the ledger must have every call.

mod load;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use toolwright_core::store::LedgerStore as _;

use crate::Failure;
use load::{CallCounts, Load};
use watch::{Sample, Samples, Watch};

/// The concurrent calls.
const LANES: usize = 8;
/// The pause of a lane between two calls, so that the ledger keeps every call of an hour's soak.
const REST: Duration = Duration::from_millis(20);
/// The time for processes to end after the load.
const EXIT_TIMEOUT: Duration = Duration::from_secs(15);

/// The result of a soak.
#[derive(Serialize)]
struct Verdict {
    minutes: f64,
    calls: u64,
    calls_by_status: BTreeMap<String, u64>,
    ledger_by_status: BTreeMap<String, u64>,
    rss_mb_first_third: f64,
    rss_mb_last_third: f64,
    descriptors_first_third: f64,
    descriptors_last_third: f64,
    processes_left: usize,
    /// The faults found; empty if the soak passed.
    faults: Vec<String>,
}

/// Puts the executor under load for `minutes` and prints samples and verdict. Returns false if there is a fault.
pub(crate) fn run(minutes: f64, json: bool) -> Result<bool, Failure> {
    let time = Duration::try_from_secs_f64(minutes * 60.0)?;
    expect_panics();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (samples, verdict) = runtime.block_on(soak(time, json))?;
    if json {
        println!("{:#}", json!({"samples": samples, "verdict": verdict}));
    } else {
        crate::print(&[&verdict], true)?;
    }
    Ok(verdict.faults.is_empty())
}

/// Silences the panics that are part of the load.
fn expect_panics() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(load::PANIC) {
            others(panic);
        }
    }));
}

async fn soak(time: Duration, quiet: bool) -> Result<(Vec<Sample>, Verdict), Failure> {
    let load = Arc::new(Load::new().await?);
    let watch = Watch::new(load.mark());
    let started = Instant::now();
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..LANES {
        let load = Arc::clone(&load);
        lanes.spawn(async move { work(&load, lane, started + time).await });
    }
    let mut samples = Samples::over(time);
    while started.elapsed() < time {
        tokio::time::sleep(samples.pause().min(time.saturating_sub(started.elapsed()))).await;
        let sample = watch.sample(started.elapsed());
        if !quiet {
            println!("{sample}");
        }
        samples.add(sample);
    }
    let mut made = CallCounts::default();
    for of_lane in lanes.join_all().await {
        made.add(of_lane);
    }
    load.end().await;
    let processes_left = watch.left_within(EXIT_TIMEOUT).await;
    load.store().flush().await?;
    let ledger = load.store().totals().await?.by_status.remove("tool").unwrap_or_default();
    let verdict = judge(time, made, ledger, &samples, processes_left);
    Ok((samples.into_all(), verdict))
}

/// Makes one lane's calls, one after another, until the time is over.
async fn work(load: &Load, lane: usize, end: Instant) -> CallCounts {
    let mut made = CallCounts::default();
    let mut turn = 0;
    while Instant::now() < end {
        made.note(&load.call(lane, turn).await);
        turn += 1;
        tokio::time::sleep(REST).await;
    }
    made
}

fn judge(
    time: Duration,
    made: CallCounts,
    ledger: BTreeMap<String, u64>,
    samples: &Samples,
    processes_left: usize,
) -> Verdict {
    let (rss, descriptors) = (samples.thirds(|sample| sample.rss_mb), samples.thirds(|sample| sample.descriptors));
    let mut faults = Vec::new();
    // The allocator decides when it returns freed memory to the system.
    if rss.1 > (rss.0 * 1.1).max(rss.0 + 8.0) {
        faults.push(format!("memory grew from {} to {} MiB", rss.0, rss.1));
    }
    if descriptors.1 > descriptors.0 + 8.0 {
        faults.push(format!("open descriptors grew from {} to {}", descriptors.0, descriptors.1));
    }
    if processes_left > 0 {
        faults.push(format!("{processes_left} processes were left behind"));
    }
    if made.by_status != ledger {
        faults.push("the ledger has not the calls that were made".into());
    }
    let missing = load::STATUSES.iter().filter(|status| !made.by_status.contains_key(**status));
    faults.extend(missing.map(|status| format!("no call ended as {status}: the load was not what it should be")));
    Verdict {
        minutes: (time.as_secs_f64() / 6.0).round() / 10.0,
        calls: made.by_status.values().sum(),
        calls_by_status: made.by_status,
        ledger_by_status: ledger,
        rss_mb_first_third: rss.0,
        rss_mb_last_third: rss.1,
        descriptors_first_third: descriptors.0,
        descriptors_last_third: descriptors.1,
        processes_left,
        faults,
    }
}
