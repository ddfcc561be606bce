//! Which tools to show. Pure scoring over a snapshot.

mod admit;
mod compat;
mod directory;
mod document;
mod exact;
mod explain;
mod exposure;
mod fuse;
mod hybrid;
pub mod judge;
mod keyword;
mod lexical;
pub mod metrics;
mod pick;
mod query;
mod scorer;
mod search;
pub mod sentences;
mod summary;
mod tokens;
mod vectors;
mod words;

pub use admit::{Exclusion, REQUIRES};
pub use compat::{Compat, FIT, Find, find};
pub(crate) use directory::Directory;
pub(crate) use document::Source;
pub use document::{Document, DocumentKey, Searchable};
pub use exposure::{
    ASSUMED_WINDOW, CALL_ID, Choice, Cost, DESCRIBE_ID, Exposure, ExposureChoice, SEARCH_ID, Showing, choose,
};
pub use fuse::{Meaning, auto, fuse};
pub use hybrid::{Fusion, HYBRID_DEPTH, Hybrid, combine};
pub use lexical::{LexicalIndex, LexicalRanking, Ranked};
pub use pick::{Note, Pick, PickInput, PickOptions, Picked, Picking, Provenance, Ranking};
pub use query::Query;
pub use scorer::{Cascade, Method, Score, Scorer, ScorerError, Scores};
pub use search::{SearchFilter, SearchHit, search, search_or_similar, similar};
pub use summary::{first_sentence, namespaces, summary};
pub(crate) use tokens::nameless_bytes;
pub use tokens::shown_tokens;
pub use vectors::{MAX_DIMENSIONS, Quantized, Vectors};
