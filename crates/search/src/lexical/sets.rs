//! How well tools are found, on sets of queries made by others: `TOOLWRIGHT_TEST_DATA` names their folder.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::Value;

use super::super::{Document, metrics};
use super::*;

struct Set {
    tools: Vec<Record>,
    queries: Vec<(String, Vec<usize>)>,
}

struct Record(Value);

impl Searchable for Record {
    fn key(&self) -> DocumentKey {
        DocumentKey(std::ptr::from_ref(&self.0) as u64, 0)
    }

    fn document(&self) -> Document<'_> {
        let text = |field: &str| self.0[field].as_str().unwrap_or_default();
        Document {
            name: text("name"),
            description: text("description"),
            parameters: self.0.get("parameters"),
            ..Document::default()
        }
    }
}

fn lines(folder: &std::path::Path, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join(file)).expect(file);
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

impl Set {
    fn read(folder: &std::path::Path) -> Self {
        let tools = lines(folder, "tools.jsonl");
        let positions: HashMap<_, _> =
            tools.iter().enumerate().map(|(at, tool)| (tool["id"].to_string(), at)).collect();
        let queries = lines(folder, "queries.jsonl").into_iter().map(|query| {
            let relevant = query["relevant"].as_array().expect("ids").iter().map(|id| positions[&id.to_string()]);
            (query["query"].as_str().expect("a text").to_owned(), relevant.collect())
        });
        Self { queries: queries.collect(), tools: tools.into_iter().map(Record).collect() }
    }

    /// Mean recall@5 and NDCG@10, in percent.
    fn measure(&self, rank: impl Fn(&str) -> Vec<Ranked>) -> (f64, f64) {
        let (mut recall, mut ndcg) = (0.0, 0.0);
        for (query, relevant) in &self.queries {
            let ranked: Vec<_> = rank(query).iter().map(|hit| hit.index).collect();
            recall += metrics::recall(&ranked, relevant, 5);
            ndcg += metrics::ndcg(&ranked, relevant, 10);
        }
        let share = 100.0 / self.queries.len() as f64;
        (recall * share, ndcg * share)
    }
}

#[test]
fn the_tools_of_known_queries_are_found() {
    let Some(folder) = std::env::var_os("TOOLWRIGHT_TEST_DATA").map(PathBuf::from) else { return };
    // Without clauses and with; and with clauses, but no word standing for another.
    for (name, words, clauses, bare) in [
        ("bfcl", (86.9, 80.5), (87.4, 80.6), (87.0, 80.1)),
        ("sealtools", (92.6, 94.2), (96.0, 96.2), (95.9, 96.1)),
        ("metatool", (70.5, 62.6), (70.4, 62.5), (65.6, 58.2)),
    ] {
        let set = Set::read(&folder.join("retrieval").join(name));
        let check = |ranker: &str, (recall, ndcg): (f64, f64), least: (f64, f64)| {
            println!("{name}, {ranker}: recall@5 {recall:.2}, NDCG@10 {ndcg:.2}");
            assert!(recall >= least.0 && ndcg >= least.1, "{name}: {recall} {ndcg}, {least:?} expected");
        };
        let index = LexicalIndex::build(&set.tools, None);
        let clauses_of = |index: &LexicalIndex, query: &str| index.rank_clauses(&Query::new(query), 10, &all).ranked;
        check("words", set.measure(|query| index.rank(query, 10, &all)), words);
        check("clauses", set.measure(|query| clauses_of(&index, query)), clauses);
        let index = LexicalIndex { synonyms: Synonyms::default(), ..index };
        check("no synonyms", set.measure(|query| clauses_of(&index, query)), bare);
    }
}

fn all(_: usize) -> bool {
    true
}
