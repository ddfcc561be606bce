//! The turns of one run: what is shown to the model, and what its calls come to.

mod budget;
pub(crate) mod compaction;
mod context;
mod dispatch;
mod exposure;
pub(crate) mod long_conversations;
mod prompt_cache;
mod rate_limits;
pub(crate) mod resume;
mod runs;
mod usage;
