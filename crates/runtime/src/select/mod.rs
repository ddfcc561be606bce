//! Selection as it runs: scorers that take time, their limit, and what takes their place when they fail.

mod judge;
mod scores;
mod selector;

pub use judge::ModelJudge;
pub use selector::Selector;
