//! The executor and the live catalogue, with real tools, a real store and real time.
#![expect(clippy::expect_used, clippy::panic, reason = "tests")]

mod catalogue;
mod checking;
mod executor;
mod house;
mod output;
mod pick;
mod select;
