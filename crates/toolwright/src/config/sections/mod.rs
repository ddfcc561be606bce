//! Defines the sections of a configuration file, one type each, and reads them from the checked tree.

pub(super) mod check;
pub mod file;
pub(super) mod llm_tools;
pub(super) mod models;
pub(super) mod selection;
pub(super) mod servers;
pub(super) mod variables;
