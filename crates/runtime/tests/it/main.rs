//! The executor and the live catalogue, with real tools, a real store and real time.
#![expect(clippy::expect_used, clippy::panic, reason = "tests")]

mod background;
mod calls;
mod catalogue;
mod fixture;
mod models;
mod pins;
mod values;
