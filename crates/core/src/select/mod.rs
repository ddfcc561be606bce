//! Which tools to show. Pure scoring over a snapshot.

mod document;
mod lexical;
mod search;
mod words;

pub use document::{Document, DocumentKey, Searchable};
pub use lexical::{LexicalIndex, Ranked};
pub use search::{SearchFilter, SearchHit, search};
