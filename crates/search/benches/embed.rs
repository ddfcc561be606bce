//! What a text costs on this machine, by the model whose directory `TOOLWRIGHT_EMBEDDING_MODEL` names.
#![expect(clippy::expect_used, missing_docs, reason = "a benchmark")]

use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use toolwright_core::embedding::{Embedder as _, TextRole};
use toolwright_search::embed::SentenceTransformer;

const QUERY: &str = "which meetings do I have tomorrow before noon?";
/// Some fifty tokens, as many as most tools have.
const TOOL: &str = "create calendar event: Creates an event in the calendar of a user and invites the attendees. \
                    title: Title of the event. start: Start as an ISO 8601 date and time. attendees: Addresses of \
                    those who are invited.";

fn benches(criterion: &mut Criterion) {
    let Some(dir) = std::env::var_os("TOOLWRIGHT_EMBEDDING_MODEL") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    let mut group = criterion.benchmark_group("embed");
    group.sample_size(10);
    group.bench_function("load", |bencher| {
        bencher.iter(|| SentenceTransformer::load(Path::new(&dir)).expect("loads"));
    });
    let model = SentenceTransformer::load(Path::new(&dir)).expect("loads");
    let embed = |texts: &[&str]| runtime.block_on(model.embed(texts, TextRole::Tool)).expect("embeds");
    group.throughput(Throughput::Elements(1)).bench_function("query", |bencher| bencher.iter(|| embed(&[QUERY])));
    group.throughput(Throughput::Elements(64)).bench_function("tools", |bencher| bencher.iter(|| embed(&[TOOL; 64])));
}

criterion_group!(group, benches);
criterion_main!(group);
