//! The driver over real parts: executor, catalogue, store on disk. Only the model is scripted.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod budget;
mod compaction;
mod dispatch;
mod exposure;
mod extract;
mod faults;
mod fixture;
mod guarded;
mod jobs;
mod long;
mod many;
mod mended;
mod own_tools;
mod plan;
mod prefix;
mod recorded;
mod resume;
mod runs;
mod used;
