//! What a decision of policy costs by itself, by the number of rules, beside the least that any such list must do:
//! holding a name against the pattern of each rule.
#![expect(clippy::expect_used, missing_docs, reason = "a benchmark")]

use std::hint::black_box;
use std::path::Path;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Value, json};
use toolwright_core::pattern::glob_match;
use toolwright_core::policy::{Effect, HintTrust, PolicyQuery};
use toolwright_core::{Policy, Principal, Profile, ToolDefinition, ToolId};

const COUNTS: [usize; 3] = [1, 100, 10_000];

/// So many rules, of which the last one alone is meant: none before it may be passed over.
fn policy(count: usize, rule: impl Fn(usize) -> Value) -> Policy {
    let mut rules: Vec<Value> = (1..count).map(rule).collect();
    rules.push(json!({"effect": "deny", "tool": "fs:write"}));
    serde_json::from_value(json!({"profile": "ask", "rules": rules})).expect("a policy")
}

fn benches(criterion: &mut Criterion) {
    let id = ToolId::parse("fs:write@1.0.0").expect("id");
    let definition = ToolDefinition::new(id, "", None);
    let (principal, arguments) = (Principal::owner(), json!({"path": "src/lib.rs", "content": "x"}));
    let query = PolicyQuery {
        definition: &definition,
        trust: HintTrust::Trusted,
        principal: &principal,
        root: Path::new("/work"),
        scope: toolwright_core::catalogue::CallScope::Workspace,
        unvalidated: None,
        arguments: &arguments,
        request: None,
        tainted: &[],
    };
    let mut group = criterion.benchmark_group("policy");
    let none = Policy::of(Profile::Ask);
    group.bench_function("no rule, the profile", |bencher| bencher.iter(|| none.decide(black_box(&query))));
    for count in COUNTS {
        group.throughput(Throughput::Elements(count as u64));
        let pattern = |number: usize| format!("server_{number}:*");
        let by_name = policy(count, |number| json!({"effect": "ask", "tool": pattern(number)}));
        // Each is about the tool, so that the arguments are looked at once a rule.
        let by_argument = policy(
            count,
            |number| json!({"effect": "ask", "tool": "fs:*", "when": format!("args.path == \"src/file_{number}.rs\"")}),
        );
        for (name, policy) in [("rules by name", &by_name), ("rules by argument", &by_argument)] {
            assert_eq!(policy.decide(&query).effect, Effect::Deny);
            group.bench_with_input(BenchmarkId::new(name, count), policy, |bencher, policy| {
                bencher.iter(|| policy.decide(black_box(&query)));
            });
        }
        let patterns: Vec<String> = (1..=count).map(pattern).collect();
        group.bench_with_input(BenchmarkId::new("peer: a pattern a rule", count), &patterns, |bencher, patterns| {
            let name = definition.id.as_str();
            bencher.iter(|| patterns.iter().any(|pattern| glob_match(pattern, black_box(name))));
        });
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
