//! `serve`: clients of the running program.

mod facade_kills;
pub(crate) mod gateway;
mod serve;
#[cfg(feature = "telemetry")]
mod telemetry;
mod transports;
pub(crate) mod views;
