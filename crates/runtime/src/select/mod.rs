<<<<<<< HEAD
//! What selection needs beyond pure scoring.

mod tool_vectors;
mod vector_cache;

pub use tool_vectors::ToolVectors;
=======
//! Finding tools: what needs a runtime of selection.

mod tools;

pub use tools::{LexicalFinder, ToolFinder, searchable};
>>>>>>> expose
