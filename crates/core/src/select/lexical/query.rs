//! What a query asks for.

use super::super::words::{each_word, is_stop_word, joined, stem};
use super::LexicalIndex;
use super::dictionary::Term;

/// A stem that stands for a word of the query: 1 for the word's own, less for another.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) term: Term,
    pub(super) discount: f32,
}

/// What stands for one word of the query, its own stem first if any tool has it; never empty, and each stem once.
pub(super) type Group = Vec<Member>;

/// Some groups of a query, by number, with what each counts, at most 1.
pub(super) type Bag = Vec<(usize, f32)>;

/// A query, read against an index.
#[derive(Default)]
pub(super) struct Query {
    pub(super) groups: Vec<Group>,
    /// All groups.
    pub(super) whole: Bag,
    /// The groups of each clause, where there are several.
    pub(super) clauses: Vec<Bag>,
}

/// What two neighbouring words count when they are one word elsewhere (`data base`).
const JOINED: f32 = 0.5;

impl Query {
    /// Reads a text; `stands_for` says what stands for a word that is not a stop word.
    pub(super) fn read(text: &str, index: &LexicalIndex, mut stands_for: impl FnMut(&str) -> Group) -> Self {
        let mut query = Self::default();
        let mut stems: Vec<String> = Vec::new();
        let mut put = |stem: &str, group: &mut dyn FnMut() -> Group, weight| {
            if stems.iter().any(|own| own == stem) {
                return;
            }
            stems.push(stem.to_owned());
            let group = group();
            if !group.is_empty() {
                query.whole.push((query.groups.len(), weight));
                query.groups.push(group);
            }
        };
        let mut before = String::new();
        each_word(text, |word| {
            if is_stop_word(word) {
                before.clear();
                return;
            }
            put(&stem(word), &mut || stands_for(word), 1.0);
            if before.len() > 1 && word.len() > 1 {
                let whole = joined(&before, word);
                put(&stem(&whole), &mut || index.own(&whole), JOINED);
            }
            word.clone_into(&mut before);
        });
        query
    }
}
