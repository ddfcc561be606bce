//! Toolwright: the tool system of an LLM agent, everything between a model and the world.
//!
//! ```no_run
//! use toolwright::{Toolwright, serde_json::json, tool};
//!
//! /// Adds two numbers.
//! #[tool(namespace = "math", effects(read_only, open_world = false))]
//! async fn add(a: i64, b: i64) -> String {
//!     (a + b).to_string()
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let tw = Toolwright::builder().tool(Add).mcp_stdio("time", "uvx", ["mcp-server-time"]).build().await?;
//!     println!("{}", tw.call("math__add", json!({"a": 2, "b": 40})).await?.text());
//!     let report = tw.agent("openai/gpt-5-mini").task("What is 2 + 40, and what time is it in Oslo?").run().await?;
//!     println!("{}", report.answer);
//!     tw.shut_down().await;
//!     Ok(())
//! }
//! ```
//!
//! [`Toolwright::builder`] puts one together: tools of your own, MCP servers, REST endpoints, OpenAPI documents, a
//! policy, models. It keeps everything in memory and reads no configuration of the user, unless told to. Then
//!
//! - [`call`](Toolwright::call) calls a tool; [`tools`](Toolwright::tools), [`search`](Toolwright::search) and
//!   [`pick`](Toolwright::pick) find one,
//! - [`agent`](Toolwright::agent) lets a model work with them,
//! - [`serve`](Toolwright::serve) offers them to MCP clients,
//! - [`shut_down`](Toolwright::shut_down) ends running work properly. Dropping the last handle ends servers as well,
//!   without waiting for calls.
//!
//! The manual is in [`guide`]: [tools](guide::tools), [servers](guide::servers), [policy](guide::policy) and
//! [agents](guide::agents). Errors are one type, [`Error`].
//!
//! Most programs need only the root of this crate. Its parts are available too: [`core`] (definitions, checks, policy;
//! pure), [`runtime`] (executor, stores), [`providers`] (built-in tools, MCP servers, REST), [`models`] (model APIs),
//! [`agent`] (the loop), [`gateway`] (served over MCP and HTTP), and [`config`], [`app`], [`import`] and [`trust`], on
//! which the command `toolwright` is built.

pub mod app;
mod builder;
pub mod config;
mod error;
pub mod guide;
pub mod import;
mod jsonc;
mod private_file;
mod secrets;
mod serve;

pub use toolwright_agent as agent;
pub use toolwright_core as core;
pub use toolwright_gateway as gateway;
pub use toolwright_mcp as mcp;
pub use toolwright_models as models;
pub use toolwright_net as net;
pub use toolwright_oauth as oauth;
pub use toolwright_providers as providers;
pub use toolwright_runtime as runtime;
pub use toolwright_sandbox as sandbox;
pub use toolwright_search as search;
pub use toolwright_telemetry as telemetry;
pub use toolwright_textcalls as textcalls;

pub use app::{Agent, Conversation, Events, PickedTool, RequestAnswer, RequestConfig, RequestContext, Toolwright};
pub use builder::{Builder, Builtins};
pub use config::trust;
pub use error::Error;
pub use serve::{Ask, Serve, Serving, Transport, ViewsChanged, console_link};
pub use toolwright_agent::{Limits, PlannedCall, PlannedCalls, RunReport, Status, plan_calls};
pub use toolwright_core::policy::Rule;
pub use toolwright_core::{
    ApprovalDecision, ApprovalRequest, Approver, Cancel, Entry, ErrorKind, Event, Outcome, Profile, Tool, ToolContext,
    ToolError, ToolOutput,
};
pub use toolwright_gateway::Expose;
pub use toolwright_models::Api as ModelApi;

#[doc(hidden)]
pub use toolwright_core::__private;
#[doc(inline)]
pub use toolwright_macros::tool;
/// The crates for writing tools, in the versions that the traits here use.
pub use {async_trait::async_trait, schemars, serde, serde_json};

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
mod library_page {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tools.md")]
mod tools_page {}
