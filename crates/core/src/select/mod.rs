//! Which tools to show. Pure scoring over a snapshot.

mod document;
mod lexical;
pub mod metrics;
mod search;
mod tokens;
mod words;

pub use document::{Document, DocumentKey, Searchable};
pub use lexical::{LexicalIndex, Ranked};
pub use search::{SearchFilter, SearchHit, search};
pub(crate) use tokens::nameless_bytes;
pub use tokens::shown_tokens;
