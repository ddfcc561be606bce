//! The order in which a catalogue answers a query: what `pick` goes by, without its cut.

use clap::ValueEnum;
use toolwright::core::Snapshot;

/// A scorer by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ScorerName {
    /// BM25 over the fields of a tool.
    Bm25,
    /// The best that there is without a model.
    Auto,
}

/// Positions of the first `limit` tools for `query`, best first.
pub(super) fn rank(scorer: ScorerName, snapshot: &Snapshot, query: &str, limit: usize) -> Vec<usize> {
    let ranked = match scorer {
        ScorerName::Bm25 | ScorerName::Auto => snapshot.lexical().rank(query, limit, &|_| true),
    };
    ranked.iter().map(|ranked| ranked.index).collect()
}
