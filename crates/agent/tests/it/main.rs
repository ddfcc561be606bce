//! The driver over real parts: executor, catalogue, store on disk. Only the model is scripted.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod extract;
mod faults;
mod fixture;
mod native;
mod recording;
mod team;
mod turns;
