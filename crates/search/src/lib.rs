//! Tool selection: which tools of a catalogue to show, and how others find them.
//!
//! A [`Selector`] picks the tools that fit a query, by words ([`LexicalIndex`]), by meaning ([`ToolVectors`]) or by a
//! custom [`Scorer`]; [`ToolFinder`] and [`searchable`] offer the search to models as tools.

mod compat;
mod compat_file;
#[cfg(feature = "embeddings")]
pub mod embed;
mod lexical;
mod pick;
pub mod ranking_metrics;
mod rule_search;
mod selector;
mod snapshot_index;
mod tools;
mod vectors;

pub use compat::{Compat, CompatQuery, FIT, fit_tools};
pub use compat_file::{CompatFile, MAX_COMPAT_BYTES, MeasuredCompat, ToolCompat, UnusedEntry};
pub use lexical::{Document, DocumentKey, LexicalIndex, LexicalRanking, Query, Ranked, Searchable};
pub use pick::judge;
pub use pick::scorer::{Cascade, Method, Score, Scorer, ScorerError};
pub use pick::{
    Exclusion, Pick, PickConfig, PickInput, PickOptions, PickRun, Picked, Provenance, REQUIRES, Ranking, ScorerNote,
};
pub use rule_search::{SearchFilter, SearchHit, search, search_or_similar, similar};
pub use selector::{Selector, VectorSource};
pub use snapshot_index::SnapshotIndex;
pub use tools::{FoundTools, ToolFinder, first_sentence, searchable, summary};
pub use toolwright_core::catalogue::namespaces;
pub use vectors::{Fusion, HYBRID_DEPTH, Hybrid, Quantized, SemanticQuery, ToolVectors, Vectors, auto, combine, fuse};
