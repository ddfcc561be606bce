//! Finding tools: what selection needs beyond pure scoring.

mod tool_vectors;
mod tools;
mod vector_cache;

pub use tool_vectors::ToolVectors;
pub use tools::{LexicalFinder, ToolFinder, searchable};
