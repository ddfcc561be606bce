//! Selection as it runs: scorers that take time and what takes their place when they fail, vectors, and the tools
//! that find others.

mod judge;
mod scores;
mod selector;
mod tool_vectors;
mod tools;
mod vector_cache;

pub use judge::ModelJudge;
pub use selector::{Selector, VectorSource};
pub use tool_vectors::ToolVectors;
pub use tools::{ToolFinder, searchable};
