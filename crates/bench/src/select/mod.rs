//! Tool search over one catalogue for each set of queries, on one thread, compared with other search engines.

mod catalogue;
#[cfg(feature = "peers")]
mod peers;
mod synthetic_vectors;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use toolwright_search::{LexicalIndex, Query, SemanticQuery, auto};

use self::catalogue::{QuerySet, Record};
use crate::Failure;
use crate::stats::{percentile_ms, percentile_us};

/// The most results of a query.
const LIMIT: usize = 10;
/// The tools of the changed server, and how many changes are timed.
const UPDATE: usize = 50;
const UPDATES: usize = 40;
/// How often each query runs; the shortest time counts, to exclude other load on the machine.
const ROUNDS: usize = 3;

/// The times of one engine.
#[derive(Serialize)]
pub(crate) struct Row {
    engine: &'static str,
    set: &'static str,
    tools: usize,
    queries: usize,
    build_ms: f64,
    /// The time to update the index after one server of 50 tools changed; only ours can.
    update_ms: Option<f64>,
    p50_us: f64,
    p99_us: f64,
    bytes: Option<u64>,
}

/// An engine that is ready, with the cost of building it.
struct Engine<'a> {
    name: &'static str,
    build: Duration,
    update_ms: Option<f64>,
    bytes: Option<u64>,
    /// Returns the number of tools found.
    search: Box<dyn Fn(&str) -> usize + 'a>,
}

/// Times every engine on `count` tools: those of the test data in `data`, or generated ones.
pub(crate) fn run(data: Option<&Path>, count: usize) -> Result<Vec<Row>, Failure> {
    let tools = catalogue::tools(data, count)?;
    let sets = catalogue::query_sets(data, &tools)?;
    let any = |_| true;
    let (build, index) = timed(|| LexicalIndex::build(&tools, None));
    let update_ms = Some(percentile_ms(&mut updates(&tools, &index), 0.5));
    let bytes = Some(u64::try_from(index.bytes())?);
    let mut rows = Vec::new();
    let mut time = |engine: Engine<'_>| rows.extend(sets.iter().map(|set| row(&engine, tools.len(), set)));

    let search = |query: &str| auto(&index, &Query::new(query), None, LIMIT, &any).len();
    time(Engine { name: "auto", build, update_ms, bytes, search: Box::new(search) });

    let (own, vectors) = timed(|| synthetic_vectors::vectors(tools.len()));
    let near = synthetic_vectors::vector(0);
    let search = |query: &str| {
        let meaning = SemanticQuery { vectors: &vectors, query: &near };
        auto(&index, &Query::new(query), Some(meaning), LIMIT, &any).len()
    };
    let bytes_of_both = bytes.zip(u64::try_from(vectors.bytes()).ok()).map(|(words, vectors)| words + vectors);
    let name = "auto, the query's vector given";
    time(Engine { name, build: build + own, update_ms: None, bytes: bytes_of_both, search: Box::new(search) });

    let search = |query: &str| index.rank_typed(query, LIMIT, &any).len();
    time(Engine { name: "typed", build, update_ms: None, bytes, search: Box::new(search) });

    #[cfg(feature = "peers")]
    {
        let (build, tantivy) = timed(|| peers::Tantivy::build(&tools));
        let tantivy = tantivy?;
        let search = |query: &str| tantivy.search(query, LIMIT);
        time(Engine { name: "tantivy", build, update_ms: None, bytes: tantivy.bytes(), search: Box::new(search) });

        let (build, bm25) = timed(|| peers::Bm25::build(&tools));
        let search = |query: &str| bm25.search(query, LIMIT);
        time(Engine { name: "bm25", build, update_ms: None, bytes: None, search: Box::new(search) });
    }
    Ok(rows)
}

fn row(engine: &Engine<'_>, tools: usize, set: &QuerySet) -> Row {
    let mut times = times(&set.queries, &engine.search);
    Row {
        engine: engine.name,
        set: set.name,
        tools,
        queries: set.queries.len(),
        build_ms: percentile_ms(&mut [engine.build], 0.5),
        update_ms: engine.update_ms,
        p50_us: percentile_us(&mut times, 0.5),
        p99_us: percentile_us(&mut times, 0.99),
        bytes: engine.bytes,
    }
}

/// Returns the shortest time of each query.
fn times(queries: &[String], search: impl Fn(&str) -> usize) -> Vec<Duration> {
    let mut times = vec![Duration::MAX; queries.len()];
    for _ in 0..ROUNDS {
        for (query, best) in queries.iter().zip(&mut times) {
            *best = timed(|| std::hint::black_box(search(query))).0.min(*best);
        }
    }
    times
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
