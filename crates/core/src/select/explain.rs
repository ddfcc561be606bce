//! Where the words of a query stand in a tool.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::document::Document;
use super::lexical::{Field, each_text};
use super::words::{each_word, is_stop_word, stem};

/// The words of a query's turns, by their stems.
pub(super) struct Words(HashMap<String, String>);

/// Those that a tool has, field by field.
pub(super) struct Found(Vec<(Field, Vec<String>)>);

impl Words {
    /// All but stop words; these where there are no others.
    pub(super) fn of(turns: &[&str]) -> Self {
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

    pub(super) fn found_in(&self, document: &Document<'_>) -> Found {
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
        Found(found)
    }
}

impl Found {
    /// Whether any of them says what the tool is for: in prose a word may stand for anything.
    pub(super) fn is_outside_prose(&self) -> bool {
        self.0.iter().any(|(field, _)| !field.is_prose())
    }

    pub(super) fn in_words(&self) -> String {
        if self.0.is_empty() {
            return "by related words or in meaning: no word of the query stands in it".into();
        }
        let field = |(field, words): &(Field, Vec<String>)| format!("{} in the {}", words.join(", "), field.name());
        self.0.iter().map(field).collect::<Vec<_>>().join("; ")
    }

    /// The words of each field, and what the scorer adds.
    pub(super) fn details(self, scorer: Option<Value>) -> Value {
        let words: Map<String, Value> =
            self.0.into_iter().map(|(field, words)| (field.name().into(), words.into())).collect();
        match scorer {
            Some(scorer) => json!({"words": words, "scorer": scorer}),
            None => json!({"words": words}),
        }
    }
}
