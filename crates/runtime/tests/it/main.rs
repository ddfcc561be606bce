//! The executor and the live catalogue, with real tools, a real store and real time.
#![expect(clippy::expect_used, clippy::panic, reason = "tests")]

mod by_model;
mod cache;
mod catalogue;
mod checking;
mod endings;
mod executor;
mod fixture;
mod foreign;
mod inbox;
mod inner;
mod jobs;
mod model_retries;
mod output;
mod pick;
mod pins;
mod plans;
mod recorded;
mod recovery;
mod requests;
mod routes;
mod select;
mod session_log;
mod state;
mod trigger_channels;
mod trigger_kills;
mod triggers;
mod workspace;
