//! What it costs to check a call as a model wrote it, beside the least that any check must do: parsing the
//! text and validating the value.
#![expect(clippy::expect_used, missing_docs, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use toolwright_core::catalogue::{Listing, RegisteredTool};
use toolwright_core::{
    CallId, Caller, Principal, ProviderKind, RawArguments, Snapshot, StaticProvider, ToolCall, ToolDefinition, ToolId,
    check,
};

/// An edit of a file: the size and shape of most calls.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File to change, relative to the workspace."},
            "old": {"type": "string", "minLength": 1},
            "new": {"type": "string"},
            "replace_all": {"type": "boolean", "default": false},
            "mode": {"enum": ["strict", "partial", "best_effort"], "default": "strict"},
            "lines": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 2},
        },
        "required": ["path", "old", "new"],
        "additionalProperties": false,
    })
}

const WRITTEN: &str = r#"{"path": "crates/core/src/lib.rs", "old": "pub mod plan;\n", "new": "pub mod plan;\npub mod pointer;\n", "replace_all": false, "lines": [12, 40]}"#;
const MISTYPED: &str = r#"{"path": "crates/core/src/lib.rs", "old": "pub mod plan;\n", "new": "pub mod plan;\npub mod pointer;\n", "replace_all": "false", "lines": ["12", 40]}"#;

fn benches(criterion: &mut Criterion) {
    let id = ToolId::parse("fs:edit@1.0.0").expect("id");
    let tool = RegisteredTool::own(ToolDefinition::new(id, "", Some(schema()))).expect("registers");
    let nobody = StaticProvider::new("fs", ProviderKind::Native, Vec::new()).expect("registers");
    let listing = Listing { provider: Arc::new(nobody), tools: vec![tool], error: None, withheld: Vec::new() };
    let snapshot = Snapshot::build(&[listing]);
    let owner = Principal::owner();
    let call =
        |arguments: &str| ToolCall::new(CallId::new("call_1"), "fs__edit", RawArguments::Text(arguments.to_owned()));
    let mut group = criterion.benchmark_group("check");
    for (name, written) in [("a valid call", WRITTEN), ("a call with two values of the wrong type", MISTYPED)] {
        check(call(written), &snapshot, Caller::of(&owner)).expect("valid");
        group.bench_function(name, |bencher| {
            let run = |call| check(black_box(call), &snapshot, Caller::of(&owner)).is_ok();
            bencher.iter_batched(|| call(written), run, BatchSize::SmallInput);
        });
    }
    let validator = jsonschema::validator_for(&schema()).expect("compiles");
    group.bench_function("peer: serde_json and jsonschema alone", |bencher| {
        bencher.iter(|| {
            let value: Value = serde_json::from_str(black_box(WRITTEN)).expect("json");
            validator.is_valid(&value)
        });
    });
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
