//! What it costs to search a thousand tools, to index them, and to follow a change of fifty.
#![expect(missing_docs, reason = "a benchmark")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use toolwright_search::{Document, DocumentKey, LexicalIndex, Searchable};

struct Tool {
    serial: u64,
    name: String,
    description: String,
    parameters: Value,
}

impl Searchable for Tool {
    fn key(&self) -> DocumentKey {
        DocumentKey(self.serial, 0)
    }

    fn document(&self) -> Document<'_> {
        Document {
            name: &self.name,
            description: &self.description,
            parameters: Some(&self.parameters),
            ..Document::default()
        }
    }
}

const VERBS: &str = "create read update delete list search send convert schedule cancel";
const NOUNS: &str = "
    account address alarm album alert article asset backup bank bill board book branch bucket budget calendar
    camera campaign card cart channel chart city client cluster comment commit company contact container
    contract coupon course currency customer dashboard database device diagram document domain email event exam
    expense flight folder form forecast friend game group hotel image invoice issue item job journal label lead
    lesson link log map meeting message metric movie note order page patient payment photo playlist podcast
    policy post price product project query recipe record report route schema score secret session sheet song
    stock student task team ticket user video
";

fn tools() -> Vec<Tool> {
    let (verbs, nouns): (Vec<_>, Vec<_>) = (VERBS.split_whitespace().collect(), NOUNS.split_whitespace().collect());
    let tool = |n: usize| {
        let (verb, noun, other) = (verbs[n % 10], nouns[n / 10], nouns[(n * 7 + 3) % 100]);
        Tool {
            serial: n as u64,
            name: format!("{verb}_{noun}"),
            description: format!("Use this to {verb} a {noun}, given the {other} it belongs to."),
            parameters: json!({"type": "object", "properties": {
                format!("{noun}_id"): {"type": "string", "description": format!("Which {noun} to {verb}")},
                other: {"type": "string", "description": format!("The {other} of the {noun}")},
            }}),
        }
    };
    (0..1000).map(tool).collect()
}

fn benches(criterion: &mut Criterion) {
    let tools = tools();
    let index = LexicalIndex::build(&tools, None);
    let query = "Please send the customer's invoice and schedule a meeting about the payment";
    let mut group = criterion.benchmark_group("select");
    group.bench_function("rank", |bencher| bencher.iter(|| index.rank(black_box(query), 10, &|_| true)));
    group.bench_function("rank as typed", |bencher| {
        bencher.iter(|| index.rank_typed(black_box("shcedule meet"), 10, &|_| true));
    });
    group.bench_function("build", |bencher| bencher.iter(|| LexicalIndex::build(black_box(&tools), None)));
    let mut changed = self::tools();
    changed.iter_mut().skip(500).take(50).for_each(|tool| tool.serial += 1000);
    group.bench_function("follow a change", |bencher| {
        bencher.iter(|| LexicalIndex::build(black_box(&changed), Some(&index)));
    });
    group.finish();
}

criterion_group!(select, benches);
criterion_main!(select);
