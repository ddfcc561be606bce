//! An agent: a model that works on a task with your tools.
//!
//! `OPENAI_API_KEY=... cargo run -p toolwright --example agent -- "What is 2 + 40?"`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use toolwright::{Toolwright, tool};

/// Adds two numbers.
#[tool(namespace = "math", effects(read_only, open_world = false))]
async fn add(a: i64, b: i64) -> String {
    (a + b).to_string()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let task = std::env::args().nth(1).unwrap_or_else(|| "What is 2 + 40?".to_owned());
    let tw = Toolwright::builder().tool(Add).build().await?;
    let report = tw.agent("openai/gpt-5-mini").task(task).run().await?;
    println!("{}", report.answer);
    tw.shut_down().await;
    Ok(())
}
