//! Measures the overhead of the gateway: makes the same call to the same server in several ways, side by side in one
//! run, and times the start.

mod call;
mod choice;
mod fixture;
mod front;
mod http;
mod loads;
mod peers;
mod pipe;
mod process;
mod report;
mod starts;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum as _;

use self::call::LoadLimit;
use self::choice::{BenchPart, Target};
use self::fixture::{Collector, Fixture};
use self::peers::Peers;
use self::report::Report;
pub(crate) use self::report::Row;
use crate::Failure;

/// What is measured, and how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Targets to measure; `direct` is always measured, since all ratios are to it. Default: all.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "TARGET,…")]
    only: Vec<Target>,
    /// Parts to run. Default: all.
    #[arg(long = "path", value_enum, value_delimiter = ',', value_name = "PART,…")]
    path: Vec<BenchPart>,
    /// Calls to time at the most, of each target with 1, 16 and 128 at once.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Seconds that they may take at the most.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Directory of the peers. What is not there is installed with npm, pip and cargo.
    #[arg(long, env = "TOOLWRIGHT_BENCH_PEERS", default_value = "target/bench-peers")]
    peers: PathBuf,
}

impl Options {
    fn parts(&self) -> Vec<BenchPart> {
        if self.path.is_empty() { BenchPart::value_variants().to_vec() } else { self.path.clone() }
    }

    fn limit(&self) -> LoadLimit {
        LoadLimit { calls: self.calls as usize, time: Duration::from_secs(self.seconds.into()) }
    }
}

/// Runs the chosen parts and prints each row on standard error as it comes. A target that fails has a row with the
/// reason. Returns an error if the benchmark cannot go on.
pub(crate) fn run(binary: &Path, options: &Options) -> Result<Vec<Row>, Failure> {
    if !binary.exists() {
        return Err(format!("{} is not there; build it with cargo build --release", binary.display()).into());
    }
    let binary = &std::path::absolute(binary)?;
    let parts = options.parts();
    let peers = &Peers::within(&options.peers)?;
    install(peers, &parts, &options.only)?;
    let files = tempfile::tempdir()?;
    let collector = &Collector::start()?;
    let fixture = &Fixture { binary, peers, dir: files.path(), collector };
    let mut report = Report::default();
    for part in parts {
        let targets = part.chosen(&options.only);
        match part {
            BenchPart::Stdio | BenchPart::HttpStdio | BenchPart::Http => {
                loads::run(fixture, part, &targets, options.limit(), &mut report)?;
            }
            BenchPart::Starts => starts::starts(fixture, &targets, &mut report),
            BenchPart::Lazy => starts::lazy(fixture, &targets, &mut report),
            BenchPart::Memory => starts::memory(fixture, &targets, &mut report),
        }
    }
    Ok(report.rows())
}

/// Installs each program that the run needs, and names each peer that cannot be installed; its rows then show the
/// failure.
fn install(peers: &Peers, parts: &[BenchPart], only: &[Target]) -> Result<(), Failure> {
    if parts.iter().any(|part| matches!(part, BenchPart::Stdio | BenchPart::HttpStdio | BenchPart::Http)) {
        peers.install_everything()?;
    }
    for target in Target::value_variants() {
        if parts.iter().any(|part| part.chosen(only).contains(target))
            && let Err(error) = peers.install(*target)
        {
            eprintln!("toolwright-bench: {error}");
        }
    }
    Ok(())
}
