//! Which tools to show. Pure scoring over a snapshot.

mod document;
mod exposure;
mod lexical;
mod query;
mod search;
mod summary;
mod words;

pub use document::{Document, DocumentKey, Searchable};
pub use exposure::{ASSUMED_WINDOW, CALL_ID, Choice, Cost, DESCRIBE_ID, Exposure, SEARCH_ID, choose};
pub use lexical::{LexicalIndex, LexicalRanking, Ranked};
pub use query::Query;
pub use search::{SearchFilter, SearchHit, search};
pub use summary::{first_sentence, namespaces, summary};
