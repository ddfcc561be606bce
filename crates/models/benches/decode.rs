//! How fast answers are decoded: streams, repeated to 64 MB, in pieces of 16 KiB.
//!
//! The streams are the recordings of `TOOLWRIGHT_TEST_DATA` where it is set, else the fixtures of the tests.
//! The peer does the least that a client can: it splits the stream into events and parses each into a
//! [`serde_json::Value`], and makes nothing of it.

#![expect(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::Value;
use toolwright_models::{Api, Decoder};
use toolwright_testkit::test_data;

const TOTAL: usize = 64_000_000;
const CHUNK: usize = 16 << 10;

fn folders() -> Vec<PathBuf> {
    let fixtures = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let all = test_data("tool_calls/api_recordings").unwrap_or_else(fixtures);
    std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
}

/// The streams of `api` that end well, as server-sent events.
fn streams(api: Api) -> Vec<Vec<u8>> {
    let mark = match api {
        Api::OpenAiChat => "{\"id\":",
        Api::OpenAiResponses => "{\"type\":\"response.",
        Api::Anthropic => "{\"type\":\"message_start\"",
        Api::Gemini => "{\"candidates\":",
        Api::Ollama => return vec![lines()],
    };
    let mut files: Vec<PathBuf> = folders()
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .filter(|file| file.to_string_lossy().ends_with(".chunks.txt"))
        .map(|file| std::fs::read_to_string(file).unwrap())
        .filter(|text| text.starts_with(mark))
        .map(|text| {
            text.lines().filter(|line| !line.is_empty()).map(|line| format!("data: {line}\n\n")).collect::<String>()
        })
        .map(String::into_bytes)
        .filter(|stream| decode(api, stream).is_some())
        .collect()
}

/// There is no recording of this API; this is the form of its lines.
fn lines() -> Vec<u8> {
    let line = |content: &str, rest: &str| {
        format!(
            "{{\"model\":\"qwen3\",\"created_at\":\"2026-11-20T09:00:00.000000Z\",\"message\":{{\"role\":\"assistant\",\
             \"content\":\"{content}\"}}{rest}}}\n"
        )
    };
    let mut stream: String = (0..500).map(|n| line(&format!(" word{n}"), ",\"done\":false")).collect();
    stream.push_str(&line("", ",\"done\":true,\"done_reason\":\"stop\",\"prompt_eval_count\":26,\"eval_count\":83"));
    stream.into_bytes()
}

fn decode(api: Api, stream: &[u8]) -> Option<usize> {
    let mut decoder = Decoder::new(api);
    let mut sink = |event| drop(black_box(event));
    stream.chunks(CHUNK).for_each(|piece| decoder.feed(piece, &mut sink));
    decoder.end(&mut sink);
    decoder.finish().ok().map(|answer| answer.text.len())
}

fn parse_values(stream: &[u8]) -> usize {
    let mut held = Vec::new();
    let mut events = 0;
    for piece in stream.chunks(CHUNK) {
        held.extend_from_slice(piece);
        let mut start = 0;
        while let Some(end) = memchr::memchr(b'\n', &held[start..]) {
            let line = &held[start..start + end];
            let line = line.strip_prefix(b"data: ").unwrap_or(line);
            if !line.is_empty() && black_box(serde_json::from_slice::<Value>(line)).is_ok() {
                events += 1;
            }
            start += end + 1;
        }
        held.drain(..start);
    }
    events
}

fn bench(criterion: &mut Criterion) {
    for api in Api::ALL {
        let streams = streams(api);
        let size: usize = streams.iter().map(Vec::len).sum();
        let rounds = TOTAL.div_ceil(size);
        let mut group = criterion.benchmark_group(format!("decode/{api}"));
        group.throughput(Throughput::Bytes((size * rounds) as u64)).sample_size(10);
        group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
        let all = || (0..rounds).flat_map(|_| &streams);
        group.bench_function("toolwright", |bencher| {
            bencher.iter(|| all().map(|stream| decode(api, stream).unwrap()).sum::<usize>());
        });
        group.bench_function("peer: an untyped value for each event", |bencher| {
            bencher.iter(|| all().map(|stream| parse_values(stream)).sum::<usize>());
        });
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
