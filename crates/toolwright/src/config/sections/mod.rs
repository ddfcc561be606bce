//! What a configuration file may say: one type for each section, and how the tree that was read becomes them.

pub(super) mod check;
pub(super) mod delegates;
pub mod file;
pub(super) mod llm_tools;
pub(super) mod models;
pub(super) mod servers;
pub(super) mod variables;
