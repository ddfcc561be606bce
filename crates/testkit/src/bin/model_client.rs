//! `model-client`: our model client as a process, for tests that compare its requests with those of other clients.

use std::io::{self, BufRead as _, Write as _};

use clap::Parser as _;
use serde_json::{Value, json};
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{IgnoreModelEvents, ModelClient as _, ModelRequest};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient};

/// Sends the requests on standard input, one `ModelRequest` as JSON a line, and answers each with a line:
/// `{"response"}` or `{"error": {"kind", "message", "partial"}}`.
#[derive(clap::Parser)]
#[command(name = "model-client")]
struct Options {
    /// The API, in the word of a configuration
    #[arg(long)]
    api: String,
    /// Base URL of the API
    #[arg(long)]
    base_url: String,
    /// Key
    #[arg(long)]
    key: String,
    /// Model, without its provider
    #[arg(long)]
    model: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let Options { api, base_url, key, model } = Options::parse();
    let api: Api = serde_json::from_value(Value::String(api)).map_err(io::Error::other)?;
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("peer", api, base_url).with_key(key));
    let client = HttpModelClient::new(endpoints);
    let model = format!("peer/{model}");
    for line in io::stdin().lock().lines() {
        let request: ModelRequest = serde_json::from_str(&line?).map_err(io::Error::other)?;
        let answer = match client.complete(&model, &request, &IgnoreModelEvents, &Cancel::new()).await {
            Ok(response) => json!({"response": response}),
            Err(error) => json!({
                "error": {"kind": error.kind.as_str(), "message": error.message, "partial": error.partial},
            }),
        };
        writeln!(io::stdout(), "{answer}")?;
        io::stdout().flush()?;
    }
    Ok(())
}
