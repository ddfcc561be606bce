//! Commands that make, check and trust a configuration, and what is said of a broken one.

mod clients;
pub(crate) mod config;
mod config_messages;
mod doctor;
mod edit;
mod foreign_definitions;
mod import;
mod oauth;
mod secrets;
mod trust;
