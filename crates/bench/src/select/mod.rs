//! The lexical search engine, beside two others, over the same catalogue and queries, on one thread.

mod catalogue;
mod peers;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use toolwright_core::select::LexicalIndex;

use self::catalogue::Record;
use self::peers::{Bm25, Tantivy};
use crate::Failure;
use crate::stats::{percentile_ms, percentile_us};

/// Results asked for.
const LIMIT: usize = 10;
/// Tools of the server that changes, and how often it does.
const UPDATE: usize = 50;
const UPDATES: usize = 40;

/// What one engine took.
#[derive(Serialize)]
pub(crate) struct Row {
    engine: &'static str,
    tools: usize,
    queries: usize,
    build_ms: f64,
    /// An index after one server of 50 tools changed; only ours follows a change like that.
    update_ms: Option<f64>,
    p50_us: f64,
    p99_us: f64,
    bytes: Option<u64>,
}

/// Times every engine on `count` tools: those in the directory `data` of test data, or generated ones.
pub(crate) fn run(data: Option<&Path>, count: usize) -> Result<Vec<Row>, Failure> {
    let tools = catalogue::tools(data, count)?;
    let queries = catalogue::queries(data, &tools)?;
    let row = |engine, build: Duration, update_ms, mut times: Vec<Duration>, bytes| Row {
        engine,
        tools: tools.len(),
        queries: queries.len(),
        build_ms: percentile_ms(&mut [build], 0.5),
        update_ms,
        p50_us: percentile_us(&mut times, 0.5),
        p99_us: percentile_us(&mut times, 0.99),
        bytes,
    };

    let (build, index) = timed(|| LexicalIndex::build(&tools, None));
    let own = times(&queries, |query| index.rank(query, LIMIT, &|_| true).len());
    let typed = times(&queries, |query| index.rank_typed(query, LIMIT, &|_| true).len());
    let bytes = u64::try_from(index.bytes())?;
    let update = percentile_ms(&mut updates(&tools, &index), 0.5);
    let mut rows = vec![row("toolwright", build, Some(update), own, Some(bytes))];
    rows.push(row("toolwright, typed", build, None, typed, Some(bytes)));

    let (build, tantivy) = timed(|| Tantivy::build(&tools));
    let tantivy = tantivy?;
    let took = times(&queries, |query| tantivy.search(query, LIMIT));
    rows.push(row("tantivy", build, None, took, tantivy.bytes()));

    let (build, bm25) = timed(|| Bm25::build(&tools));
    rows.push(row("bm25", build, None, times(&queries, |query| bm25.search(query, LIMIT)), None));
    Ok(rows)
}

/// The time of each query, after a round that warms up.
fn times(queries: &[String], search: impl Fn(&str) -> usize) -> Vec<Duration> {
    for query in queries {
        std::hint::black_box(search(query));
    }
    queries.iter().map(|query| timed(|| std::hint::black_box(search(query))).0).collect()
}

fn updates(tools: &[Record], index: &LexicalIndex) -> Vec<Duration> {
    let starts = (0..UPDATES).map(|n| n * tools.len() / UPDATES);
    let changed = starts.map(|start| catalogue::changed(tools, start, UPDATE));
    changed.map(|changed| timed(|| LexicalIndex::build(&changed, Some(index))).0).collect()
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed(), done)
}
