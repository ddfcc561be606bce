//! What a query asks for.

use std::borrow::Cow;
use std::collections::HashMap;

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
    /// Reads the clauses of a text: each stem counts once, as its best occurrence. `stands_for` says what
    /// stands for a word that is not a stop word; it is asked once a stem.
    pub(super) fn read<'t>(
        clauses: impl IntoIterator<Item = &'t str>,
        index: &LexicalIndex,
        mut stands_for: impl FnMut(&str) -> Group,
    ) -> Self {
        let mut query = Self::default();
        // Which group each stem has, if there is anything for it.
        let mut stems: HashMap<String, Option<usize>> = HashMap::new();
        for clause in clauses {
            let mut bag = Bag::new();
            let mut put = |stem: Cow<'_, str>, group: &mut dyn FnMut() -> Group, weight| {
                let number = *stems.entry(stem.into_owned()).or_insert_with(|| {
                    query.groups.push(Some(group()).filter(|group| !group.is_empty())?);
                    Some(query.groups.len() - 1)
                });
                bag.extend(number.map(|number| (number, weight)));
            };
            let mut before = String::new();
            each_word(clause, |word| {
                if is_stop_word(word) {
                    before.clear();
                    return;
                }
                put(stem(word), &mut || stands_for(word), 1.0);
                if before.len() > 1 && word.len() > 1 {
                    let whole = joined(&before, word);
                    put(stem(&whole), &mut || index.own(&whole), JOINED);
                }
                word.clone_into(&mut before);
            });
            query.whole.extend_from_slice(&bag);
            query.clauses.push(distinct(bag));
        }
        query.whole = distinct(query.whole);
        if query.clauses.len() == 1 {
            query.clauses.clear();
        }
        query
    }
}

/// Each group once, with the most it counts.
fn distinct(mut bag: Bag) -> Bag {
    bag.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
    bag.dedup_by_key(|(group, _)| *group);
    bag
}
