//! What selection needs beyond pure scoring.

mod tool_vectors;
mod vector_cache;

pub use tool_vectors::ToolVectors;
