//! Toolwright: the tool system of an LLM agent, everything between a model and the world.
//!
//! One crate to depend on. [`House`] puts a configuration together: catalogue, executor, stores. The
//! parts are there by themselves too: [`core`] (definitions, checks, policy; pure), [`runtime`] (executor,
//! stores), [`providers`] (built-in tools, MCP servers, REST), [`models`] (model APIs), [`agent`] (the
//! loop), [`server`] (the MCP gateway). [`tool`] makes a tool of an async function.
//!
//! ```no_run
//! use toolwright::{House, config::LoadOptions, core};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let house = House::load(LoadOptions { cwd: std::env::current_dir()?, ..LoadOptions::default() }).await?;
//! let call = core::ToolCall {
//!     id: core::CallId::new("1"),
//!     name: "fs__read".into(),
//!     arguments: core::RawArguments::Value(serde_json::json!({"path": "README.md"})),
//! };
//! let outcome = house.call(call, core::Profile::Owner).await;
//! println!("{}", outcome.text());
//! house.shut_down().await;
//! # Ok(())
//! # }
//! ```

pub mod config;
pub mod house;
pub mod import;
pub mod trust;

pub use toolwright_agent as agent;
pub use toolwright_core as core;
pub use toolwright_mcp as mcp;
pub use toolwright_models as models;
pub use toolwright_providers as providers;
pub use toolwright_runtime as runtime;
pub use toolwright_server as server;
pub use toolwright_telemetry as telemetry;

pub use house::{House, HouseError};
pub use toolwright_agent::{PlannedCall, PlannedCalls, plan_calls};

#[doc(hidden)]
pub use toolwright_core::__private;
#[doc(inline)]
pub use toolwright_macros::tool;
/// What tools are written with, in the versions that the traits here are written against.
pub use {async_trait::async_trait, schemars, serde, serde_json};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/tools.md")]
mod tools_page {}
