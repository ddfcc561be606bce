//! The manual, with one page per subject.
//!
//! - [`tools`]: tools of your own, calls, results and errors
//! - [`servers`]: MCP servers, REST endpoints, OpenAPI documents, settings
//! - [`policy`]: what may run, who is asked
//! - [`agents`]: models that work with tools
//!
//! Every example is compiled with the library; those that need no network run, too.

pub mod agents;
pub mod policy;
pub mod servers;
pub mod tools;
