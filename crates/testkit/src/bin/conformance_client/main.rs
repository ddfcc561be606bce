//! `conformance-client URL`: the program under test of the MCP conformance suite's client leg.
//!
//! It is `providers/mcp` with a person who agrees to everything. The suite names a scenario in the environment and
//! passes the address of its server; the client lists the tools, calls each through the executor, and does whatever
//! else the scenario needs. The exit code is 1 if the tools cannot be listed or a call fails.

mod arguments;
mod person;
mod scenario;
mod session;

use std::error::Error;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: conformance-client URL")?;
    let scenario = scenario::Scenario::from_env()?;
    let session = session::Session::open(&url, &scenario).await?;
    let done = scenario.play(&session).await;
    session.close().await;
    done
}

/// Prints a line for the reader of the suite's output.
#[expect(clippy::print_stderr, reason = "the suite shows what its client says")]
fn report(line: &str) {
    eprintln!("{line}");
}
