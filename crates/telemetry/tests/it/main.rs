//! The crate through its public parts.
#![expect(clippy::expect_used, clippy::panic, reason = "tests")]
#![cfg_attr(feature = "otlp", expect(clippy::unwrap_used, reason = "tests"))]

mod exposition;
mod metrics;
mod observer;
#[cfg(feature = "otlp")]
mod otlp;
mod spans;
mod support;
