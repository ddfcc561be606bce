//! Tool selection: which tools of a catalogue to show, and how others find them.
//!
//! A [`Selector`] picks the tools that fit a query, by words ([`LexicalIndex`]), by meaning ([`ToolVectors`]) or by a
//! [`Scorer`] of somebody else; [`ToolFinder`] and [`searchable`] offer that to models as tools.

mod admit;
mod document;
#[cfg(feature = "embeddings")]
pub mod embed;
mod explain;
mod fuse;
mod index;
pub mod judge;
mod lexical;
pub mod metrics;
mod pick;
mod query;
mod scorer;
mod search;
mod selector;
pub mod sentences;
#[cfg(test)]
mod testing;
mod tool_vectors;
mod tools;
mod vector_cache;
mod vectors;
mod words;

pub use admit::{Exclusion, REQUIRES};
pub use document::{Document, DocumentKey, Searchable};
pub use fuse::{Fusion, HYBRID_DEPTH, Hybrid, Meaning, auto, combine, fuse};
pub use index::SearchIndex;
pub use lexical::{LexicalIndex, LexicalRanking, Ranked};
pub use pick::{Note, Pick, PickInput, PickOptions, Picked, Picking, Provenance, Ranking};
pub use query::Query;
pub use scorer::{Cascade, Method, Score, Scorer, ScorerError, Scores};
pub use search::{SearchFilter, SearchHit, search, search_or_similar, similar};
pub use selector::{Selector, VectorSource};
pub use tool_vectors::ToolVectors;
pub use tools::{ToolFinder, first_sentence, namespaces, searchable, summary};
pub use vectors::{Quantized, Vectors};
