//! What it costs to hold a query's vector against those of 10,000 tools, and to put these together.
#![expect(missing_docs, reason = "a benchmark")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use toolwright_core::select::{Quantized, Vectors};

const TOOLS: usize = 10_000;
const DIMENSIONS: usize = 384;

/// Numbers from -1 to 1 that look like chance.
fn numbers(seed: u32) -> impl Iterator<Item = f32> {
    std::iter::successors(Some(seed), |n| Some(n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)))
        .map(|n| f32::from((n >> 16).to_le_bytes()[0]) / 128.0 - 1.0)
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
    criterion.bench_function("build of 10,000", |bencher| bencher.iter(build));
}

criterion_group!(group, benches);
criterion_main!(group);
