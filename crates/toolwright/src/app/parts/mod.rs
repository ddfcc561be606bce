//! Makes the parts of an instance of its configuration: providers, executor, tool selection, telemetry.

pub(super) mod build;
mod delegates;
mod frames;
pub(super) mod llm_tools;
pub(super) mod select;
pub(super) mod telemetry;
