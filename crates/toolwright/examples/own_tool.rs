//! A tool of one's own beside the built-in ones, called the way a model's call runs.
//!
//! `cargo run -p toolwright --example own_tool -- "some text"`

use std::sync::Arc;

use toolwright::core::catalogue::ProviderKind;
use toolwright::core::{CallId, Profile, RawArguments, StaticProvider, ToolCall};
use toolwright::schemars::JsonSchema;
use toolwright::serde::Serialize;
use toolwright::{House, config::LoadOptions, tool};

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
    let house = House::load(LoadOptions { cwd: std::env::current_dir()?, ..LoadOptions::default() }).await?;
    let tools = StaticProvider::new("text", ProviderKind::Native, vec![Arc::new(Count)])?;
    house.catalogue().add_provider(Arc::new(tools)).await?;
    house.catalogue().refresh("text").await;

    let text = std::env::args().nth(1).unwrap_or_else(|| "the quick brown fox".to_owned());
    let call = ToolCall {
        id: CallId::new("1"),
        name: "text__count".into(),
        arguments: RawArguments::Value(serde_json::json!({"text": text})),
    };
    let outcome = house.call(call, Profile::Owner).await;
    #[expect(clippy::print_stdout, reason = "an example prints its result")]
    {
        println!("{}", outcome.text());
    }
    house.shut_down().await;
    Ok(())
}
