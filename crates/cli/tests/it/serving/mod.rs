//! `serve`: clients of the running program.

pub(crate) mod gateway;
mod serve;
#[cfg(feature = "telemetry")]
mod telemetry;
mod transports;
pub(crate) mod views;
