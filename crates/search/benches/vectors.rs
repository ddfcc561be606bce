//! What it costs to hold a query's vector against those of 10,000 tools, and to put these together.
#![expect(missing_docs, reason = "a benchmark")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use toolwright_search::{
    Document, DocumentKey, LexicalIndex, Quantized, Query, Searchable, SemanticQuery, Vectors, auto, fuse,
};

const TOOLS: usize = 10_000;
const DIMENSIONS: usize = 384;

/// Numbers from -1 to 1 that look like chance.
fn numbers(seed: u32) -> impl Iterator<Item = f32> {
    std::iter::successors(Some(seed), |n| Some(n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)))
        .map(|n| f32::from((n >> 16).to_le_bytes()[0]) / 128.0 - 1.0)
}

/// A tool of a few words, each of which some hundreds of others have.
struct Tool(u32, String);

impl Searchable for Tool {
    fn key(&self) -> DocumentKey {
        DocumentKey(self.0.into(), 0)
    }

    fn document(&self) -> Document<'_> {
        Document { name: &self.1, ..Document::default() }
    }
}

fn tool(serial: u32) -> Tool {
    let letter = |number: u32| char::from(b'a' + (number % 26).to_le_bytes()[0]);
    let word = |number: u32| format!("w{}{}", letter(number), letter(number / 26));
    Tool(serial, [serial, serial * 7 + 1, serial * 31 + 2, serial / 26].map(word).join(" "))
}

fn benches(criterion: &mut Criterion) {
    let tools: Vec<Quantized> =
        (0..TOOLS).map(|n| Quantized::of(&numbers(n as u32).take(DIMENSIONS).collect::<Vec<_>>())).collect();
    let build = || Vectors::build(DIMENSIONS, tools.iter().cloned().map(Some));
    let vectors = build();
    let query: Vec<f32> = numbers(77).take(DIMENSIONS).collect();
    let mut scores = Vec::new();
    criterion.bench_function("scores of 10,000", |bencher| {
        bencher.iter(|| vectors.scores(black_box(&query), black_box(&mut scores)));
    });
    criterion.bench_function("the best 10 of 10,000", |bencher| {
        bencher.iter(|| vectors.rank(black_box(&query), 10, &|_| true));
    });
    let index = LexicalIndex::build(&(0..TOOLS as u32).map(tool).collect::<Vec<_>>(), None);
    let task = |n| tool(n).1;
    let meaning = Some(SemanticQuery { vectors: &vectors, query: &query });
    let asked = Query::new(&[task(5), task(500), task(5000), task(9000)].join(". "));
    assert_eq!(asked.clauses(), 4);
    let words = index.rank_clauses(&asked, 100, &|_| true);
    criterion.bench_function("words and meaning of 10,000 fused", |bencher| {
        bencher.iter(|| fuse(black_box(&words), meaning, TOOLS, 10, &|_| true));
    });
    criterion.bench_function("a fused query of 10,000, vector given", |bencher| {
        bencher.iter(|| auto(&index, black_box(&asked), meaning, 10, &|_| true));
    });
    criterion.bench_function("build of 10,000", |bencher| bencher.iter(build));
}

criterion_group!(group, benches);
criterion_main!(group);
