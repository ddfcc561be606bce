//! How fast calls written into text are decoded, in pieces of 16 KiB.

#![expect(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::json;
use toolwright_core::model::{RawToolCall, RequestTool};
use toolwright_textcalls::{Choice, Format, Options, TextDecoder, by_name};

const TOTAL: usize = 16_000_000;
const CHUNK: usize = 16 << 10;

/// An answer in `format`: prose and a call every so often.
fn written(format: &Format) -> String {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}});
    let tools = [RequestTool { name: "fs__read".into(), parameters: schema, ..RequestTool::default() }];
    let call = RawToolCall {
        id: "call_0".into(),
        name: "fs__read".into(),
        arguments: r#"{"path":"src/main.rs","lines":20}"#.into(),
    };
    let prose = "The next thing to look at is how the entry point sets up what it needs. ".repeat(20);
    format!("{prose}\n{}", format.write_call(&call, &tools))
}

fn decode_text(choice: Choice, text: &[u8]) -> usize {
    let mut decoder = TextDecoder::new(choice, Options::default());
    let mut sink = |event| drop(black_box(event));
    text.chunks(CHUNK).for_each(|piece| decoder.feed(piece, &mut sink));
    decoder.finish(&mut sink);
    text.len()
}

/// Text formats, each answer by itself, beside the least that a reader of plain text does: to check that
/// it is UTF-8 and keep it.
fn bench(criterion: &mut Criterion) {
    for name in ["hermes", "qwen3-coder", "mistral", "harmony", "bracket"] {
        let format = by_name(name).unwrap();
        let answer = written(format).into_bytes();
        let rounds = TOTAL.div_ceil(answer.len());
        let mut group = criterion.benchmark_group(format!("decode_text/{name}"));
        group.throughput(Throughput::Bytes((answer.len() * rounds) as u64)).sample_size(10);
        group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
        for (reader, choice) in [("toolwright", Choice::Format(format)), ("toolwright, auto", Choice::Auto)] {
            group.bench_function(reader, |bencher| {
                bencher.iter(|| (0..rounds).map(|_| decode_text(choice, &answer)).sum::<usize>());
            });
        }
        group.bench_function("peer: the text as it is", |bencher| {
            bencher.iter(|| {
                (0..rounds).map(|_| black_box(String::from_utf8_lossy(&answer).into_owned()).len()).sum::<usize>()
            });
        });
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
