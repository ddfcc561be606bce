//! Tools: writing them, calling them, finding them.
//!
//! # A function becomes a tool
//!
//! [`#[tool]`](macro@crate::tool) makes a tool of an async function. The doc comment is what a model reads, each
//! parameter is an argument, and the namespace is the prefix of the name that models use:
//!
//! ```
//! use toolwright::{Toolwright, serde_json::json, tool};
//!
//! /// Adds two numbers.
//! #[tool(namespace = "math", effects(read_only, open_world = false))]
//! async fn add(
//!     /// First number.
//!     a: i64,
//!     /// Second number.
//!     b: i64,
//! ) -> String {
//!     (a + b).to_string()
//! }
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder().tool(Add).build().await?;
//! assert_eq!(tw.call("math__add", json!({"a": 2, "b": 40})).await?.text(), "42");
//! # tw.shut_down().await;
//! # Ok(()) }
//! ```
//!
//! `effects` declares what a call may do. The default is the worst case: a tool without `effects` may destroy anything
//! anywhere, and policy asks about it. For a tool that is not known at compile time, implement [`Tool`](crate::Tool).
//!
//! # Arguments and results
//!
//! Arguments are checked against the schema of the tool before it runs. Frequent small mistakes of models are repaired:
//! a number in quotes, a missing default. A struct as the result is structured, and its schema is the tool's output
//! schema:
//!
//! ```
//! use toolwright::{Toolwright, schemars::JsonSchema, serde::Serialize, serde_json::json, tool};
//!
//! #[derive(Serialize, JsonSchema)]
//! #[serde(crate = "toolwright::serde")]
//! #[schemars(crate = "toolwright::schemars")]
//! struct Counts {
//!     words: usize,
//! }
//!
//! /// Counts words.
//! #[tool(namespace = "text", effects(read_only, open_world = false))]
//! async fn count(text: String) -> Counts {
//!     Counts { words: text.split_whitespace().count() }
//! }
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder().tool(Count).build().await?;
//! let outcome = tw.call("text__count", json!({"text": "one two"})).await?;
//! assert_eq!(outcome.structured, Some(json!({"words": 2})));
//! # tw.shut_down().await;
//! # Ok(()) }
//! ```
//!
//! # Errors
//!
//! A failed call is an error that contains the whole outcome. There are a few kinds of errors, which are the same for
//! every transport:
//!
//! ```
//! use toolwright::{ErrorKind, Toolwright, serde_json::json};
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder().build().await?;
//! let error = tw.call("math__add", json!({})).await.expect_err("there is no such tool");
//! let kind = error.outcome().and_then(|outcome| outcome.error.as_ref()).map(|error| error.kind());
//! assert_eq!(kind, Some(ErrorKind::UnknownTool));
//! # tw.shut_down().await;
//! # Ok(()) }
//! ```
//!
//! A tool of your own fails with [`ToolError`](crate::ToolError), or with any error that converts into it.
//!
//! # Finding tools
//!
//! [`Toolwright::tools`](crate::Toolwright::tools) lists all, [`Toolwright::search`](crate::Toolwright::search) finds
//! by words, and [`Toolwright::pick`](crate::Toolwright::pick) picks the few that fit a task:
//!
//! ```
//! # use toolwright::{Toolwright, tool};
//! # /// Adds two numbers.
//! # #[tool(namespace = "math")]
//! # async fn add(a: i64, b: i64) -> String { (a + b).to_string() }
//! # /// Sends a letter by post.
//! # #[tool(namespace = "mail")]
//! # async fn send(to: String) -> String { to }
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder().tool(Add).tool(Send).build().await?;
//! let picked = tw.pick("post a letter", 1).await;
//! assert_eq!(picked[0].tool.wire_name, "mail__send");
//! # tw.shut_down().await;
//! # Ok(()) }
//! ```
