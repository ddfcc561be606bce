//! `eval select`: measures how well queries find the tools that they need.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright::search::metrics::{complete, ndcg, percentile, recall};

use super::SelectArgs;
use super::cases::{self, Case};
use super::rank::Ranker;
use crate::app::{Global, read};
use crate::develop::catalogue_file::CatalogueFile;
use crate::exit::{Done, Exit};
use crate::terminal::screen::{print_json, print_text, size};
use crate::terminal::table::{Table, name};

/// The places that any figure looks at.
const DEPTH: usize = 10;
/// Queries that are answered before any is timed.
const WARM_UP: usize = 50;

pub(super) async fn command(global: &Global, args: &SelectArgs) -> Done {
    let file = CatalogueFile::read(&args.catalogue)?;
    let cases = cases::read(&args.cases, &file.positions())?;
    let kept = read(global)?.state_dir.join("vectors");
    let ranker = Ranker::new(file.snapshot(), args.scorer, args.embeddings.as_deref(), &kept).await?;
    drop(file);
    for Case { query, .. } in cases.iter().take(WARM_UP) {
        ranker.rank(query, ranker.embed(query).await?.as_deref(), DEPTH);
    }
    let (mut tally, mut halves) = (Tally::default(), [Tally::default(), Tally::default()]);
    for Case { half, query, relevant } in &cases {
        let start = Instant::now();
        let vector = ranker.embed(query).await?;
        let embedded = Instant::now();
        let ranked = ranker.rank(query, vector.as_deref(), DEPTH);
        let (embedding, ranking) = (embedded - start, embedded.elapsed());
        for tally in [&mut tally, &mut halves[*half]] {
            tally.add(&ranked, relevant, embedding, ranking);
        }
    }
    let figures = Figures {
        tools: ranker.tools(),
        index_time: ranker.index_time,
        index_bytes: ranker.bytes(),
        vectors_time: ranker.meaning().map(|meaning| meaning.time),
        ..tally.figures()
    };
    let halves = args.halves.then(|| halves.map(Tally::figures));
    if global.json {
        let mut answer = figures.json();
        if let Some(halves) = &halves {
            answer["halves"] = halves.iter().map(Figures::quality).collect();
        }
        print_json(&answer)?;
    } else {
        figures.print()?;
        halves.iter().flatten().try_for_each(Figures::print_half)?;
    }
    Ok(Exit::Ok)
}

/// Sums over queries.
#[derive(Debug, Default)]
struct Tally {
    sums: Figures,
    times: Vec<f64>,
    embed_times: Vec<f64>,
}

/// What is measured. Shares are from 0 to 1, times of a query in microseconds.
#[derive(Debug, Default)]
struct Figures {
    queries: usize,
    tools: usize,
    recall: [f64; DEPTHS.len()],
    ndcg: f64,
    complete: f64,
    p50: f64,
    p99: f64,
    embed_p50: f64,
    index_time: Duration,
    index_bytes: usize,
    /// Of the tools, where there are embeddings.
    vectors_time: Option<Duration>,
}

/// The depths of recall.
const DEPTHS: [usize; 4] = [1, 3, 5, 10];

impl Tally {
    fn add(&mut self, ranked: &[usize], relevant: &[usize], embedding: Duration, ranking: Duration) {
        let sums = &mut self.sums;
        sums.queries += 1;
        for (sum, k) in sums.recall.iter_mut().zip(DEPTHS) {
            *sum += recall(ranked, relevant, k);
        }
        sums.ndcg += ndcg(ranked, relevant, 10);
        sums.complete += f64::from(u8::from(complete(ranked, relevant, 5)));
        self.times.push(ranking.as_secs_f64() * 1e6);
        self.embed_times.push(embedding.as_secs_f64() * 1e6);
    }

    fn figures(mut self) -> Figures {
        self.times.sort_unstable_by(f64::total_cmp);
        self.embed_times.sort_unstable_by(f64::total_cmp);
        let mean = |sum: f64| sum / self.sums.queries.max(1) as f64;
        Figures {
            recall: self.sums.recall.map(mean),
            ndcg: mean(self.sums.ndcg),
            complete: mean(self.sums.complete),
            p50: percentile(&self.times, 0.5),
            p99: percentile(&self.times, 0.99),
            embed_p50: percentile(&self.embed_times, 0.5),
            ..self.sums
        }
    }
}

impl Figures {
    /// What depends on nothing but the rankings.
    fn quality(&self) -> Value {
        let [r1, r3, r5, r10] = self.recall;
        json!({
            "n": self.queries,
            "recall@1": r1,
            "recall@3": r3,
            "recall@5": r5,
            "recall@10": r10,
            "ndcg@10": self.ndcg,
            "complete@5": self.complete,
        })
    }

    fn json(&self) -> Value {
        let mut figures = self.quality();
        figures["tools"] = self.tools.into();
        figures["p50_us"] = tenths(self.p50).into();
        figures["p99_us"] = tenths(self.p99).into();
        figures["index_ms"] = tenths(milliseconds(self.index_time)).into();
        figures["index_bytes"] = self.index_bytes.into();
        if let Some(time) = self.vectors_time {
            figures["vectors_ms"] = tenths(milliseconds(time)).into();
            figures["embed_p50_us"] = tenths(self.embed_p50).into();
        }
        figures
    }

    fn print_half(&self) -> std::io::Result<()> {
        let [_, _, r5, _] = self.recall.map(|share| 100.0 * share);
        let ndcg = 100.0 * self.ndcg;
        print_text(&format!("a half of {} queries: recall@5 {r5:.1} %, ndcg@10 {ndcg:.1} %", self.queries))
    }

    fn print(&self) -> std::io::Result<()> {
        print_text(&format!("{} queries, {} tools", self.queries, self.tools))?;
        let mut table = Table::new(["measure", "value>"]);
        let mut row = |measure: &str, value: String| table.row([name(measure), value.into()]);
        for (k, share) in DEPTHS.iter().zip(self.recall) {
            row(&format!("recall@{k}"), format!("{:.1} %", 100.0 * share));
        }
        row("ndcg@10", format!("{:.1} %", 100.0 * self.ndcg));
        row("complete@5", format!("{:.1} %", 100.0 * self.complete));
        row("a query (p50)", format!("{:.0} µs", self.p50));
        row("a query (p99)", format!("{:.0} µs", self.p99));
        row("time of the index", format!("{:.1} ms", milliseconds(self.index_time)));
        row("size of the index", size(self.index_bytes));
        if let Some(time) = self.vectors_time {
            row("vectors of the tools", format!("{:.0} ms", milliseconds(time)));
            row("vector of a query (p50)", format!("{:.0} µs", self.embed_p50));
        }
        table.print()
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// One place after the point.
fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
