//! Finding tools: what needs a runtime of selection.

mod tools;

pub use tools::{LexicalFinder, ToolFinder, searchable};
