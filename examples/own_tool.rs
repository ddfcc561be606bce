//! A tool that is written in Rust, called by its name.
//!
//! `cargo run -p toolwright --example own_tool -- "some text"`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use toolwright::schemars::JsonSchema;
use toolwright::serde::Serialize;
use toolwright::serde_json::json;
use toolwright::{Toolwright, tool};

#[derive(Serialize, JsonSchema)]
#[serde(crate = "toolwright::serde")]
#[schemars(crate = "toolwright::schemars")]
struct Counts {
    words: usize,
    characters: usize,
}

/// Counts the words and characters of a text.
#[tool(namespace = "text", effects(read_only, open_world = false), examples = [{"text": "one two"}])]
async fn count(
    /// The text.
    text: String,
) -> Counts {
    Counts { words: text.split_whitespace().count(), characters: text.chars().count() }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = std::env::args().nth(1).unwrap_or_else(|| "the quick brown fox".to_owned());
    let tw = Toolwright::builder().tool(Count).build().await?;
    println!("{}", tw.call("text__count", json!({ "text": text })).await?.text());
    tw.shut_down().await;
    Ok(())
}
