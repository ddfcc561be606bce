//! `conformance-fixture`: see `toolwright_testkit::conformance`.

use clap::Parser as _;
use toolwright_testkit::conformance;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    conformance::run(conformance::Options::parse()).await
}
