//! Which tools to show. Pure scoring over a snapshot.

mod document;
mod search;

pub use document::{Document, DocumentKey, Searchable};
pub use search::{SearchFilter, SearchHit, search};
