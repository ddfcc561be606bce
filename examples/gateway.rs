//! The gateway within a program: your tools for any MCP client, over HTTP.
//!
//! `cargo run -p toolwright --example gateway -- 127.0.0.1:7117`, then `claude mcp add --transport http mine URL`.

#![expect(clippy::print_stdout, reason = "an example prints where it listens")]

use toolwright::{Toolwright, tool};

/// Greets somebody.
#[tool(namespace = "greet", effects(read_only, open_world = false))]
async fn hello(name: String) -> String {
    format!("Hello, {name}!")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let tw = Toolwright::builder().tool(Hello).build().await?;
    let gateway = tw.serve().http(&address).await?;
    println!("{}", gateway.url());
    tokio::signal::ctrl_c().await?;
    gateway.shut_down().await?;
    tw.shut_down().await;
    Ok(())
}
