//! What it costs to encode a request with 1,000 tools, from their schemas to the bytes that are sent: with the
//! views made for it, and with those of a request before it; beside copying the schemas and a round trip
//! through text, which is the least that a client without views of its own does.
//! `TOOLWRIGHT_TEST_DATA` names the folder of the catalogue; without it a few schemas are repeated.

#![expect(missing_docs, reason = "the macros of criterion")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use toolwright_core::model::{Message, ModelRequest, RequestTool};
use toolwright_models::dialect::{Dialect, translate};
use toolwright_models::{Api, EncodedTools, EncodedToolsCache, encode_with};
use toolwright_testkit::test_data;

const TOOLS: usize = 1_000;

fn schemas() -> Vec<Value> {
    let lines = test_data("mcp_catalogue/tools.jsonl").and_then(|file| std::fs::read_to_string(file).ok());
    let tools =
        lines.iter().flat_map(|lines| lines.lines()).filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut schemas: Vec<Value> = tools.map(|mut tool| tool["inputSchema"].take()).filter(Value::is_object).collect();
    if schemas.is_empty() {
        schemas = vec![
            json!({"type": "object", "properties": {}}),
            json!({"type": "object", "required": ["path"], "properties": {
                "path": {"type": "string", "description": "The file, relative to the project"},
                "limit": {"type": "integer", "minimum": 1, "default": 100, "description": "Lines at most"},
                "encoding": {"type": "string", "enum": ["utf-8", "latin-1"]},
            }}),
            json!({"type": "object", "required": ["query"], "additionalProperties": false, "properties": {
                "query": {"type": "string", "title": "Query"},
                "filters": {"type": "array", "items": {"$ref": "#/$defs/Filter"}},
                "owner": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            }, "$defs": {"Filter": {"type": "object", "required": ["field"], "properties": {
                "field": {"type": "string"}, "value": {"type": ["string", "number"]},
            }}}}),
        ];
    }
    schemas
}

fn encode(criterion: &mut Criterion) {
    let schemas = schemas();
    let tools: Arc<[RequestTool]> = schemas
        .iter()
        .cycle()
        .take(TOOLS)
        .enumerate()
        .map(|(at, schema)| RequestTool {
            name: format!("tool_{at}"),
            parameters: schema.clone(),
            ..RequestTool::default()
        })
        .collect();
    let request = ModelRequest {
        system: "Be brief.".into(),
        messages: vec![Message::user("What is there?")],
        tools: Arc::clone(&tools),
        ..ModelRequest::default()
    };
    let bytes = |shown: &EncodedTools| encode_with(black_box(&request), "model", shown).bytes();
    let cache = EncodedToolsCache::default();
    let mut group = criterion.benchmark_group("encode_1000_tools");
    group.sample_size(30);
    for api in Api::ALL {
        let shown = |dialect, strict| EncodedTools::of(api, Arc::new(translate(dialect, black_box(&tools), strict)));
        let dialect = api.dialect();
        group.bench_function(format!("{api}/translated"), |bencher| {
            bencher.iter(|| translate(dialect, black_box(&tools), false));
        });
        group.bench_function(format!("{api}/uncached"), |bencher| {
            bencher.iter(|| bytes(&shown(dialect, false)));
        });
        if matches!(dialect, Dialect::OpenAi | Dialect::Anthropic) {
            group.bench_function(format!("{api}/uncached_strict"), |bencher| {
                bencher.iter(|| bytes(&shown(dialect, true)));
            });
        }
        group.bench_function(format!("{api}/cached"), |bencher| {
            bencher.iter(|| bytes(&cache.get(api, black_box(&tools), false)));
        });
    }
    group.bench_function("peer_clone", |bencher| {
        bencher.iter(|| tools.iter().map(|tool| tool.parameters.clone()).collect::<Vec<Value>>());
    });
    group.bench_function("peer_round_trip", |bencher| {
        bencher.iter(|| {
            let copy = |tool: &RequestTool| serde_json::from_str::<Value>(&tool.parameters.to_string()).ok();
            tools.iter().map(copy).collect::<Vec<Option<Value>>>()
        });
    });
    group.finish();
}

criterion_group!(benches, encode);
criterion_main!(benches);
