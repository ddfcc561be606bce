//! Which tools to show. Pure scoring over a snapshot.

mod document;
mod search;
pub mod sentences;
mod vectors;

pub use document::{Document, DocumentKey, Searchable};
pub use search::{SearchFilter, SearchHit, search};
pub use vectors::{MAX_DIMENSIONS, Quantized, Vectors};

/// A tool that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// Its position among the tools that were searched.
    pub index: usize,
    /// How well it fits; more is better.
    pub score: f32,
}
