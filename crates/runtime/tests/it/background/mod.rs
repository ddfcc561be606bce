//! What goes on without its caller: jobs, questions, triggers.

mod inbox;
pub(crate) mod jobs;
mod recovery;
mod trigger_channels;
mod trigger_kills;
pub(crate) mod triggers;
