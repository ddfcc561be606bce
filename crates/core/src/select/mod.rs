//! Which tools to show. Pure scoring over a snapshot.

mod document;
mod exposure;
mod fuse;
mod lexical;
pub mod metrics;
mod search;
pub mod sentences;
mod summary;
mod tokens;
mod vectors;
mod words;

pub use document::{Document, DocumentKey, Searchable};
pub use exposure::{ASSUMED_WINDOW, CALL_ID, Choice, Cost, DESCRIBE_ID, Exposure, SEARCH_ID, choose};
pub use fuse::{LexicalRanking, Meaning, fuse};
pub use lexical::{LexicalIndex, Ranked};
pub use search::{SearchFilter, SearchHit, search};
pub use summary::{first_sentence, namespaces, summary};
pub(crate) use tokens::nameless_bytes;
pub use tokens::shown_tokens;
pub use vectors::{MAX_DIMENSIONS, Quantized, Vectors};
