//! `console`: opens the web console of a running server.

use std::net::SocketAddr;

use clap::Args;
use serde_json::json;

use crate::app::{Global, usable};
use crate::exit::{Done, Exit, Failure};
use crate::terminal::screen::{open_page, print_json, print_text, say};
use crate::values::address;

#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// Where the server listens. Default: `server.http` of the configuration, 127.0.0.1:7117.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    http: Option<SocketAddr>,
    /// The server's token, where it was started with one.
    #[arg(long, env = "TOOLWRIGHT_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Prints the address only.
    #[arg(long)]
    print: bool,
}

pub(crate) async fn command(global: &Global, args: &ConsoleArgs) -> Done {
    let config = usable(global)?;
    let address = match args.http {
        Some(address) => address,
        None => {
            let written = &config.sections.server.http;
            written.parse().map_err(|error| Failure::usage(format!("server.http: `{written}`: {error}")))?
        }
    };
    let link = toolwright::console_link(&config, address, args.token.as_deref()).await.map_err(Failure::usage)?;
    if global.json {
        print_json(&json!({"url": link}))?;
    } else {
        print_text(&link)?;
    }
    if !args.print && !global.json {
        match link.parse() {
            Ok(url) if open_page(&url) => say("toolwright: opened in your browser; the address works once"),
            _ => say("toolwright: no browser could be opened; open the address yourself, it works once"),
        }
    }
    Ok(Exit::Ok)
}
