//! The share of a query's words that a tool has.

use std::collections::HashMap;

use super::Ranked;
use super::document::{Document, Searchable as _};
use super::words::{Kind, each_word, is_stop_word};
use crate::catalogue::Snapshot;

/// The distinct words of a query. A word that is cut (`GitHub`) counts as had where a tool has its parts, or
/// has it whole (`github`).
struct Wanted {
    count: usize,
    /// What a tool's word stands for, by numbers of words.
    by_text: HashMap<String, Vec<usize>>,
}

impl Wanted {
    fn of(query: &str) -> Self {
        let mut wanted = Self { count: 0, by_text: HashMap::new() };
        // The parts of the run that is being read, with their lengths.
        let mut parts: Vec<(usize, Option<usize>)> = Vec::new();
        each_word(query, |word, kind| match kind {
            Kind::Part if is_stop_word(word) => parts.push((word.len(), None)),
            Kind::Part => {
                let number = wanted.number(word);
                parts.push((word.len(), Some(number)));
            }
            Kind::Compound => {
                let mut rest = word.len();
                let own: Vec<usize> = parts
                    .iter()
                    .rev()
                    .take_while(|(length, _)| {
                        let inside = *length <= rest;
                        rest = rest.saturating_sub(*length);
                        inside && *length > 0
                    })
                    .filter_map(|(_, number)| *number)
                    .collect();
                wanted.by_text.entry(word.to_owned()).or_default().extend(own);
                parts.clear();
            }
        });
        wanted
    }

    fn number(&mut self, word: &str) -> usize {
        if let Some(number) = self.by_text.get(word).and_then(|numbers| numbers.first()) {
            return *number;
        }
        let number = self.count;
        self.by_text.insert(word.to_owned(), vec![number]);
        self.count += 1;
        number
    }
}

/// The tools that have any word of `query` in name, title, description or tags, best first, ties by position.
/// Words are compared in lower case and as they are, without endings taken off.
pub(crate) fn rank(query: &str, snapshot: &Snapshot, limit: usize, keep: &dyn Fn(usize) -> bool) -> Vec<Ranked> {
    let wanted = Wanted::of(query);
    // In which tool a word of the query was last seen, counted from 1.
    let mut seen = vec![0_usize; wanted.count];
    let mut ranked = Vec::new();
    for (index, entry) in snapshot.list().iter().enumerate().filter(|(index, _)| keep(*index)) {
        let mut hits = 0_u16;
        each_text(&entry.document(), |text| {
            each_word(text, |word, _| {
                for &number in wanted.by_text.get(word).into_iter().flatten() {
                    if seen[number] != index + 1 {
                        seen[number] = index + 1;
                        hits = hits.saturating_add(1);
                    }
                }
            });
        });
        if hits > 0 {
            ranked.push(Ranked { index, score: f32::from(hits) / share_of(wanted.count) });
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
