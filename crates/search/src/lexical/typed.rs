//! Queries as a person types them: the last word may be half a word, and any word mistyped.

use super::LexicalIndex;
use super::Query;
use super::dictionary::WordId;
use super::score::{Group, Member, Plan};
use super::words::each_word;

/// What a word counts that has so many errors.
const MISTYPED: [f32; 3] = [1.0, 0.6, 0.4];
/// What a word counts whose beginning was typed, at most: the less, the more of it is missing.
const BEGUN: f32 = 0.8;
/// A single letter is the beginning of too much.
const MIN_PREFIX: usize = 2;
/// How many words of a query are looked for among all words: each takes a while.
const MAX_CORRECTED: usize = 8;
/// How many words may stand for one.
const MAX_MEMBERS: usize = 16;

impl Plan {
    pub(super) fn typed(text: &str, index: &LexicalIndex) -> Self {
        let unfinished = text.ends_with(char::is_alphanumeric);
        let mut last = String::new();
        each_word(text, |word| word.clone_into(&mut last));
        let mut left = MAX_CORRECTED;
        let plan = Self::new(&Query::new(text), index, |term| {
            let mut group = index.own(&term.stem);
            if term.is_joined {
                return group;
            }
            if unfinished && *term.word == *last {
                index.completions(&term.word, &mut group);
            }
            if group.is_empty() && left > 0 {
                left -= 1;
                index.corrections(&term.word, &mut group);
            }
            group
        });
        Self { clauses: Vec::new(), ..plan }
    }
}

impl LexicalIndex {
    /// Adds the stems of words that begin with `word`.
    fn completions(&self, word: &str, group: &mut Group) {
        let typed = word.chars().count();
        if typed < MIN_PREFIX {
            return;
        }
        let words = self.dictionary.with_prefix(word).iter().filter(|&&id| self.is_used(id));
        let share = |id| typed as f32 / self.dictionary.text(id).chars().count() as f32;
        let found = words.map(|&id| (id, BEGUN * share(id))).collect();
        self.add(found, group);
    }

    /// Adds the stems of words that `word` is with a few errors: none in three letters, one in seven, or two.
    fn corrections(&self, word: &str, group: &mut Group) {
        let errors = match word.chars().count() {
            0..=3 => return,
            4..=7 => 1,
            _ => 2,
        };
        let about = self.dictionary.about(word, errors).filter(|(id, _)| self.is_used(*id));
        let found = about.filter_map(|(id, text)| Some((id, *MISTYPED.get(strsim::osa_distance(word, text))?)));
        self.add(found.collect(), group);
    }

    /// Adds the stems of the best of some words; of equally good ones, the first by their letters.
    fn add(&self, mut words: Vec<(WordId, f32)>, group: &mut Group) {
        let text = |word: &(WordId, f32)| self.dictionary.text(word.0);
        words.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| text(a).cmp(text(b))));
        for (word, discount) in words {
            let term = self.dictionary.term_of(word);
            if group.len() < MAX_MEMBERS && group.iter().all(|member| member.term != term) {
                group.push(Member { term, discount });
            }
        }
    }
}
