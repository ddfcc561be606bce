//! `conformance-client URL`: the program under test of the MCP conformance suite's client leg.
//!
//! It is `providers/mcp` with a person who agrees to everything: the suite names a scenario in its environment and
//! gives the address of its server; the client lists what is there, calls each tool through the executor, and uses
//! whatever else the scenario needs. Exit code 1 if the server cannot be listed or a call fails on the way.

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

/// Says something to whoever reads the suite's output.
#[expect(clippy::print_stderr, reason = "the suite shows what its client says")]
fn report(line: &str) {
    eprintln!("{line}");
}
