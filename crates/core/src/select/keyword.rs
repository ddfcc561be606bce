//! The share of a query's words that a tool has.

use std::collections::HashMap;

use super::Ranked;
use super::document::{Document, Searchable as _};
use super::words::{each_word, is_stop_word};
use crate::catalogue::Snapshot;

/// The distinct words of a query, numbered.
struct Wanted(HashMap<String, usize>);

impl Wanted {
    fn of(query: &str) -> Self {
        let mut words = HashMap::new();
        each_word(query, |word| {
            if !is_stop_word(word) && !words.contains_key(word) {
                words.insert(word.to_owned(), words.len());
            }
        });
        Self(words)
    }
}

/// The tools that have any word of `query` in name, title, description or tags, best first, ties by position.
/// Words are compared in lower case and as they are, without endings taken off.
pub(crate) fn rank(query: &str, snapshot: &Snapshot, limit: usize, keep: &dyn Fn(usize) -> bool) -> Vec<Ranked> {
    let wanted = Wanted::of(query);
    // In which tool a word of the query was last seen, counted from 1.
    let mut seen = vec![0_usize; wanted.0.len()];
    let mut ranked = Vec::new();
    for (index, entry) in snapshot.list().iter().enumerate().filter(|(index, _)| keep(*index)) {
        let mut hits = 0_u16;
        each_text(&entry.document(), |text| {
            each_word(text, |word| {
                if let Some(&number) = wanted.0.get(word)
                    && seen[number] != index + 1
                {
                    seen[number] = index + 1;
                    hits = hits.saturating_add(1);
                }
            });
        });
        if hits > 0 {
            ranked.push(Ranked { index, score: f32::from(hits) / share_of(wanted.0.len()) });
        }
    }
    // A stable sort: ties stay in the order of registration.
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked.truncate(limit);
    ranked
}

fn each_text(document: &Document<'_>, mut found: impl FnMut(&str)) {
    [document.name, document.title, document.description]
        .into_iter()
        .chain(document.tags.iter().copied())
        .for_each(&mut found);
}

/// A query is bounded, and so are its words.
fn share_of(count: usize) -> f32 {
    f32::from(u16::try_from(count).unwrap_or(u16::MAX))
}
