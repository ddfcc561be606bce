//! The share of a query's words that a tool has.

use std::collections::HashMap;

use super::Ranked;
use super::document::{Document, Searchable as _};
use super::words::{each_word, is_stop_word};
use crate::catalogue::Snapshot;

/// The tools that have any word of `query` in name, title, description or tags, best first, ties by position.
/// Words are compared in lower case and as they are, without endings taken off; stop words do not count.
pub(super) fn rank(query: &str, snapshot: &Snapshot, limit: usize, keep: &dyn Fn(usize) -> bool) -> Vec<Ranked> {
    let mut wanted: HashMap<String, usize> = HashMap::new();
    each_word(query, |word| {
        let number = wanted.len();
        if !is_stop_word(word) {
            wanted.entry(word.to_owned()).or_insert(number);
        }
    });
    // In which tool each of them was last seen, counted from 1.
    let mut seen = vec![0_usize; wanted.len()];
    let mut ranked = Vec::new();
    for (index, entry) in snapshot.list().iter().enumerate().filter(|(index, _)| keep(*index)) {
        let mut hits = 0;
        each_text(&entry.document(), |text| {
            each_word(text, |word| {
                if let Some(&number) = wanted.get(word)
                    && std::mem::replace(&mut seen[number], index + 1) != index + 1
                {
                    hits += 1;
                }
            });
        });
        if hits > 0 {
            ranked.push(Ranked { index, score: share(hits, wanted.len()) });
        }
    }
    // A stable sort: ties stay in the order of registration.
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked.truncate(limit);
    ranked
}

fn each_text(document: &Document<'_>, mut found: impl FnMut(&str)) {
    let Document { name, title, description, tags, .. } = document;
    [*name, *title, *description].into_iter().chain(tags.iter().copied()).for_each(&mut found);
}

/// A query is bounded, and so are its words.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn share(hits: usize, count: usize) -> f32 {
    hits as f32 / count as f32
}
