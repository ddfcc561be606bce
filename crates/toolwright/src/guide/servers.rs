//! Servers: tools that other programs run.
//!
//! # MCP servers
//!
//! A server over stdio is a child process; a server at an address speaks HTTP. Both are connected when their tools are
//! first needed, started again after a crash, and ended with the program:
//!
//! ```no_run
//! use toolwright::{Toolwright, serde_json::json};
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder()
//!     .mcp_stdio("time", "uvx", ["mcp-server-time"])
//!     .mcp_url("docs", "https://mcp.example.com/mcp")
//!     .build()
//!     .await?;
//! let now = tw.call("time__get_current_time", json!({"timezone": "Europe/Oslo"})).await?;
//! println!("{}", now.text());
//! tw.shut_down().await;
//! # Ok(()) }
//! ```
//!
//! [`Toolwright::connect`](crate::Toolwright::connect) connects all of them and reports which are missing:
//!
//! ```
//! use toolwright::Toolwright;
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder().mcp_stdio("gone", "/no/such/program", [""; 0]).build().await?;
//! let error = tw.connect().await.expect_err("it cannot start");
//! assert!(error.to_string().starts_with("gone has no tools: "));
//! # tw.shut_down().await;
//! # Ok(()) }
//! ```
//!
//! # Everything else that can be set
//!
//! The builder has methods for common settings. All others have the same shape as in `toolwright.yaml`, and override
//! earlier ones; `${NAME}` is a variable of the environment:
//!
//! ```
//! use toolwright::{Toolwright, serde_json::json};
//!
//! let builder = Toolwright::builder()
//!     .mcp_url("github", "https://api.githubcopilot.com/mcp/")
//!     .settings(json!({
//!         "mcp_servers": {"github": {
//!             "headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"},
//!             "tools_allowed": ["issue_*"],
//!         }},
//!         "defaults": {"tool_timeout": "60s"},
//!     }));
//! ```
//!
//! [`Builder::config`](crate::Builder::config) reads a file, which settings in code override. An error in code fails
//! the build and names the field.
//!
//! # HTTP endpoints
//!
//! An HTTP endpoint becomes a tool with a few lines:
//!
//! ```
//! use toolwright::{Toolwright, serde_json::json};
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder()
//!     .rest("weather", json!({
//!         "description": "The weather of a city",
//!         "url": "https://api.example.com/weather/${parameters.city}",
//!         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
//!     }))
//!     .build()
//!     .await?;
//! assert_eq!(tw.tools().await[0].wire_name, "rest__weather");
//! # tw.shut_down().await;
//! # Ok(()) }
//! ```
//!
//! [`Builder::openapi`](crate::Builder::openapi) makes a tool of each operation of an OpenAPI document. Neither can
//! reach private and loopback addresses, unless `web.allowed_hosts` or the entry allows them.
//!
//! # Serving
//!
//! [`Toolwright::serve`](crate::Toolwright::serve) is the other direction: all these tools behind one MCP address, for
//! any client.
//!
//! ```
//! use toolwright::Toolwright;
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder().builtins(["fs__read"]).build().await?;
//! let gateway = tw.serve().http("127.0.0.1:0").await?;
//! println!("claude mcp add --transport http mine {}", gateway.url());
//! gateway.shut_down().await?;
//! tw.shut_down().await;
//! # Ok(()) }
//! ```
