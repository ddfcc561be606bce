//! An MCP server as a child process: its tools, and one call.
//!
//! `cargo run -p toolwright --example mcp_server` runs `uvx mcp-server-time`. Another server, tool and arguments:
//! `cargo run -p toolwright --example mcp_server -- TOOL JSON COMMAND [ARGUMENT]...`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use toolwright::Toolwright;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let tool = arguments.next().unwrap_or_else(|| "get_current_time".to_owned());
    let json = arguments.next().unwrap_or_else(|| r#"{"timezone": "Europe/Oslo"}"#.to_owned());
    let command = arguments.next().unwrap_or_else(|| "uvx".to_owned());
    let rest: Vec<String> = arguments.collect();
    let rest = if rest.is_empty() && command == "uvx" { vec!["mcp-server-time".to_owned()] } else { rest };

    let tw = Toolwright::builder().mcp_stdio("server", command, rest).build().await?;
    for tool in tw.tools().await {
        println!("{}: {}", tool.wire_name, tool.definition().description);
    }
    let outcome = tw.call(&format!("server__{tool}"), toolwright::serde_json::from_str(&json)?).await?;
    println!("{}", outcome.text());
    tw.shut_down().await;
    Ok(())
}
