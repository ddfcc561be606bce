//! The lexical index, whatever tools say of themselves and people search for: an index that took over from
//! another ranks like a new one, and filtering first or last is the same.
#![no_main]

use std::borrow::Cow;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolwright_fuzz::{parameters, text};
use toolwright_search::{Document, DocumentKey, LexicalIndex, Ranked, Searchable};

struct Tool<'a> {
    number: u64,
    name: &'a str,
    text: &'a str,
    schema: &'a Value,
}

impl Searchable for Tool<'_> {
    fn key(&self) -> DocumentKey {
        DocumentKey(self.number, 0)
    }

    fn document(&self) -> Document<'_> {
        Document {
            name: self.name,
            description: self.text,
            parameters: Some(self.schema),
            examples: std::slice::from_ref(self.schema),
            server_description: Cow::Borrowed(self.text),
            ..Document::default()
        }
    }
}

fn bits(hits: Vec<Ranked>) -> Vec<(usize, u32)> {
    hits.iter().map(|hit| (hit.index, hit.score.to_bits())).collect()
}

fuzz_target!(|data: &[u8]| {
    let ([split, gone], written) = parameters(data);
    let written = text(written);
    // Each line is a tool, and some are schemas; the last is the query.
    let lines: Vec<&str> = written.lines().take(64).collect();
    let Some((query, lines)) = lines.split_last() else { return };
    let schemas: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap_or_default()).collect();
    let tool = |n: usize| {
        let (name, text) = lines[n].split_once(' ').unwrap_or((lines[n], ""));
        Tool { number: n as u64, name, text, schema: &schemas[n] }
    };
    let before: Vec<Tool<'_>> = (0..split.min(lines.len())).map(tool).collect();
    let after: Vec<Tool<'_>> = (0..lines.len()).filter(|n| *n != gone).map(tool).collect();

    let updated = LexicalIndex::build(&after, Some(&LexicalIndex::build(&before, None)));
    let new = LexicalIndex::build(&after, None);
    for rank in [LexicalIndex::rank, LexicalIndex::rank_typed] {
        let all = rank(&updated, query, usize::MAX, &|_| true);
        assert!(all.iter().all(|hit| hit.score > 0.0 && hit.score.is_finite()));
        assert!(all.is_sorted_by(|a, b| a.score > b.score || a.score == b.score && a.index < b.index));
        assert_eq!(bits(all.clone()), bits(rank(&new, query, usize::MAX, &|_| true)));
        let odd: Vec<Ranked> = all.into_iter().filter(|hit| hit.index % 2 == 1).take(3).collect();
        assert_eq!(bits(odd), bits(rank(&updated, query, 3, &|index| index % 2 == 1)));
    }
});
