//! What it costs to check a plan of 50 calls that refer to each other.
#![expect(clippy::expect_used, missing_docs, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use toolwright_core::catalogue::{Listing, ProviderKind, RegisteredTool};
use toolwright_core::plan::{PlanContext, PlanDocument, check_plan};
use toolwright_core::{
    Policy, Principal, Profile, Session, SessionId, Snapshot, StaticProvider, ToolDefinition, ToolId,
};

fn benches(criterion: &mut Criterion) {
    let schema = json!({
        "type": "object",
        "properties": {"from": {"type": "string"}, "to": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["from"],
    });
    let id = ToolId::parse("x:step@1.0.0").expect("id");
    let mut tool = ToolDefinition::new(id, "", Some(schema));
    tool.output_schema =
        Some(json!({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}));
    let provider = Arc::new(StaticProvider::new("x", ProviderKind::Native, Vec::new()).expect("a provider"));
    let tools = vec![RegisteredTool::own(tool).expect("registers")];
    let snapshot = Snapshot::build(&[Listing { provider, tools, error: None, withheld: Vec::new() }]);
    let call = |index: usize| match index {
        0..10 => json!({"_tool": "x__step", "_outputPath": format!("v{index}"), "from": "Oslo", "to": "Turin"}),
        _ => json!({
            "_tool": "x__step",
            "_outputPath": format!("v{index}"),
            "from": format!("†state.v{}.name", index - 10),
            "to": format!("†state.v{}.name || \"Oslo\"", index - 5),
            "n": format!("†state.v{}.n", index - 1),
        }),
    };
    let plan = PlanDocument::of_value((0..50).map(call).collect::<Value>()).expect("a plan");
    let session = Session { id: SessionId::new("s"), principal: Principal::owner(), root: "/work".into(), agent: None };
    let policy = Policy::of(Profile::Ask);
    let context = PlanContext {
        snapshot: &snapshot,
        session: &session,
        policy: Some(&policy),
        request: None,
        variables: None,
        max_cost: None,
    };
    assert!(check_plan(&plan, &context).is_valid());
    criterion.bench_function("check a plan of 50 calls", |bencher| {
        bencher.iter(|| check_plan(black_box(&plan), &context).is_valid());
    });
}

criterion_group!(all, benches);
criterion_main!(all);
