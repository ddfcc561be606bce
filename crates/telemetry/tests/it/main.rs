//! The crate through its public parts.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod exposition;
mod metrics;
mod observer;
#[cfg(feature = "otlp")]
mod otlp;
mod spans;
mod support;
