//! `toolwright-bench`: times the code side by side with comparable programs, in one run.
//!
//! The figures are for reading; no test asserts a time.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints its results and progress"
)]

mod agents;
mod app;
mod context;
mod exec;
mod facades;
mod gateway;
mod jobs;
mod memory;
mod plans;
mod queue;
mod select;
mod soak;
mod start;
mod stats;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;

/// The error of a benchmark.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(name = "toolwright-bench", version, about = "Times Toolwright, side by side with what it is compared with")]
struct Cli {
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    /// The program to time.
    #[arg(long, global = true, default_value = "target/release/toolwright")]
    binary: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Cold start to ready and idle memory, with built-ins only and with MCP servers.
    Start {
        /// Starts to time.
        #[arg(long, default_value_t = 20)]
        runs: usize,
        /// MCP servers to configure besides; each takes a second to start.
        #[arg(long, default_value_t = 0)]
        servers: usize,
    },
    /// The executor around a tool that does nothing: everything on, in this process.
    Exec {
        /// Calls to time.
        #[arg(long, default_value_t = 50_000)]
        calls: usize,
    },
    /// Agents inside calls, over a scripted model that answers at once: the time of each, and the memory of many at once.
    Agents {
        /// Runs to time.
        #[arg(long, default_value_t = 2_000)]
        runs: usize,
        /// Runs at once.
        #[arg(long, default_value_t = 200)]
        live: usize,
    },
    /// The APIs of OpenAI and Anthropic over a scripted model that answers at once: the time that they add to the first
    /// token, many streams at once, and memory over many requests.
    Facades {
        /// Streams to time, one after the other.
        #[arg(long, default_value_t = 500)]
        runs: usize,
        /// Streams at once.
        #[arg(long, default_value_t = 200)]
        streams: usize,
        /// Requests over which memory is measured.
        #[arg(long, default_value_t = 10_000)]
        requests: usize,
    },
    /// Calls in line for three places: how many at once, in which order, memory, and how fast all are cancelled.
    Queue {
        /// Calls in line.
        #[arg(long, default_value_t = 10_000)]
        calls: usize,
    },
    /// The gateway beside the direct way, a relay of two `cat`s, a naive proxy on the official SDK and pinned peers.
    ///
    /// Calls to the reference server `everything` over stdio and HTTP, 1, 16 and 128 at once; starts with 1, 10 and 50
    /// servers; the first call to a lazy server; memory with 1,000 tools. Rows come on standard error as they are
    /// measured, the table or the JSON on standard output at the end. Exit code 1 if the gateway failed.
    Gateway(gateway::Options),
    /// Background jobs, every second of which may run again, in processes that are killed every second: what became
    /// of each id that was told, and what ran twice.
    Jobs {
        /// Jobs to begin.
        #[arg(long, default_value_t = 1_000)]
        jobs: usize,
        /// How long processes are killed.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// The process that `jobs` kills.
    #[command(hide = true)]
    JobsWorker(jobs::Worker),
    /// Mixed load on the executor, a quarter of it failing, hanging, flooding and dying. Exit code 1 if memory or
    /// descriptors grow, a process is left behind, or the ledger has not the calls that were made.
    Soak {
        /// How long.
        #[arg(long, default_value_t = 60.0)]
        minutes: f64,
    },
    /// Long conversations with a scripted model that counts for itself and refuses what does not fit: overflows, facts
    /// that are still known at the end, and what making room costs in tokens and in the provider's cache.
    Context(context::Options),
    /// Turns and tokens of work that is planned first, beside work call by call, on real requests with a scripted model.
    Plans {
        /// Directory with `plans/plans.jsonl` and `plans/tools.jsonl`.
        #[arg(long, env = "TOOLWRIGHT_TEST_DATA")]
        data: Option<PathBuf>,
    },
    /// Tool search on one thread: by words, with made-up vectors, and as typed; with the feature `peers` beside
    /// `tantivy` and `bm25`.
    Select {
        /// Tools to search among.
        #[arg(long, default_value_t = 10_000)]
        tools: usize,
        /// Directory with `mcp_catalogue/tools.jsonl` and, for `bfcl`, `sealtools` and `metatool`,
        /// `retrieval/*/queries.jsonl`; without it, the catalogue is generated.
        #[arg(long, env = "TOOLWRIGHT_TEST_DATA")]
        data: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Start { runs, servers } => {
            start::run(&cli.binary, runs, servers).and_then(|rows| print(&rows, cli.json))
        }
        Command::Soak { minutes } => match soak::run(minutes, cli.json) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Command::Exec { calls } => exec::run(calls).and_then(|rows| print(&rows, cli.json)),
        Command::Agents { runs, live } => agents::run(runs, live).and_then(|rows| print(&rows, cli.json)),
        Command::Facades { runs, streams, requests } => {
            facades::run(&cli.binary, runs, streams, requests).and_then(|rows| print(&rows, cli.json))
        }
        Command::Queue { calls } => queue::run(calls).and_then(|rows| print(&rows, cli.json)),
        Command::Gateway(options) => match gateway::run(&cli.binary, &options) {
            Ok(rows) if rows.iter().any(gateway::Row::is_fault) => {
                print(&rows, cli.json).and(Err("the gateway failed: see the rows with an error".into()))
            }
            rows => rows.and_then(|rows| print(&rows, cli.json)),
        },
        Command::Jobs { jobs, seconds } => jobs::run(jobs, seconds).and_then(|rows| print(&rows, cli.json)),
        Command::Context(options) => context::run(&options).and_then(|rows| print(&rows, cli.json)),
        Command::JobsWorker(worker) => jobs::work(&worker),
        Command::Plans { data } => plans::run(data.as_deref()).and_then(|rows| print(&rows, cli.json)),
        Command::Select { tools, data } => select::run(data.as_deref(), tools).and_then(|rows| print(&rows, cli.json)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("toolwright-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn cell(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => "-".to_owned(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Prints rows as JSON, or as a table with the rows' fields as columns.
fn print<T: Serialize>(rows: &[T], json: bool) -> Result<(), Failure> {
    let values = rows.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&values)?);
        return Ok(());
    }
    let mut lines: Vec<Vec<String>> = Vec::new();
    if let Some(first) = values.first().and_then(|value| value.as_object()) {
        lines.push(first.keys().cloned().collect());
    }
    for value in values.iter().filter_map(|value| value.as_object()) {
        lines.push(value.values().map(cell).collect());
    }
    let columns = lines.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns).map(|n| lines.iter().map(|line| line[n].len()).max().unwrap_or(0)).collect();
    for line in lines {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        println!("{}", cells.join("  ").trim_end());
    }
    Ok(())
}
