//! Explains a pick by the query's words that the tool has, and computes their share.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use toolwright_core::catalogue::Snapshot;

use super::fields::{Field, each_text};
use super::words::{each_word, is_stop_word, stem};
use super::{Document, Ranked, Searchable as _};

/// The words of a query's turns, by stem.
pub(crate) struct QueryWords(HashMap<String, String>);

/// The query's words that a tool has, by field.
pub(crate) struct MatchedWords(Vec<(Field, Vec<String>)>);

impl QueryWords {
    /// All words except stop words; only stop words if there are no others.
    pub(crate) fn of(turns: &[&str]) -> Self {
        let read = |takes: &dyn Fn(&str) -> bool| {
            let mut words = HashMap::new();
            for turn in turns {
                each_word(turn, |word| {
                    if takes(word) {
                        words.entry(stem(word).into_owned()).or_insert_with(|| word.to_owned());
                    }
                });
            }
            words
        };
        let words = read(&|word| !is_stop_word(word));
        Self(if words.is_empty() { read(&|_| true) } else { words })
    }

    pub(crate) fn found_in(&self, document: &Document<'_>) -> MatchedWords {
        let mut found: Vec<(Field, Vec<String>)> = Vec::new();
        each_text(document, |field, text| {
            each_word(text, |word| {
                let Some(word) = self.0.get(stem(word).as_ref()) else { return };
                let at = found.iter().position(|(known, _)| *known == field).unwrap_or_else(|| {
                    found.push((field, Vec::new()));
                    found.len() - 1
                });
                if !found[at].1.contains(word) {
                    found[at].1.push(word.clone());
                }
            });
        });
        MatchedWords(found)
    }
}

impl MatchedWords {
    /// Whether any word is outside of prose, in which a word may mean anything.
    pub(crate) fn is_outside_prose(&self) -> bool {
        self.0.iter().any(|(field, _)| !field.is_prose())
    }

    pub(crate) fn in_words(&self) -> String {
        if self.0.is_empty() {
            return "by related words or in meaning: no word of the query stands in it".into();
        }
        let field = |(field, words): &(Field, Vec<String>)| format!("{} in the {}", words.join(", "), field.name());
        self.0.iter().map(field).collect::<Vec<_>>().join("; ")
    }

    /// Returns the words of each field, and the scorer's details.
    pub(crate) fn details(self, scorer: Option<Value>) -> Value {
        let words: Map<String, Value> =
            self.0.into_iter().map(|(field, words)| (field.name().into(), words.into())).collect();
        match scorer {
            Some(scorer) => json!({"words": words, "scorer": scorer}),
            None => json!({"words": words}),
        }
    }
}

/// Returns the tools that have a word of `query` in name, title, description or tags, best first, ties by position.
/// Words are compared in lower case without stemming; stop words are ignored.
pub(crate) fn by_shared_words(
    query: &str,
    snapshot: &Snapshot,
    limit: usize,
    keep: &dyn Fn(usize) -> bool,
) -> Vec<Ranked> {
    let mut wanted: HashMap<String, usize> = HashMap::new();
    each_word(query, |word| {
        let number = wanted.len();
        if !is_stop_word(word) {
            wanted.entry(word.to_owned()).or_insert(number);
        }
    });
    // The tool that each word was last seen in, counted from 1.
    let mut seen = vec![0_usize; wanted.len()];
    let mut ranked = Vec::new();
    for (index, entry) in snapshot.list().iter().enumerate().filter(|(index, _)| keep(*index)) {
        let mut hits = 0;
        each_written(&entry.document(), |text| {
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

fn each_written(document: &Document<'_>, mut found: impl FnMut(&str)) {
    let Document { name, title, description, tags, .. } = document;
    [*name, *title, *description].into_iter().chain(tags.iter().copied()).for_each(&mut found);
}

/// A query is bounded, and so are its words.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn share(hits: usize, count: usize) -> f32 {
    hits as f32 / count as f32
}
