//! `scripted-model`: see `toolwright_testkit::model_server`.

use clap::Parser as _;
use toolwright_testkit::model_server;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    model_server::run(model_server::Options::parse()).await
}
