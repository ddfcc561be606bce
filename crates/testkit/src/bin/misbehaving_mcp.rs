//! `misbehaving-mcp`: see `toolwright_testkit::misbehaving`.

use std::process::ExitCode;

use clap::Parser as _;
use toolwright_testkit::misbehaving;

#[tokio::main]
async fn main() -> std::io::Result<ExitCode> {
    misbehaving::run(misbehaving::Options::parse()).await
}
