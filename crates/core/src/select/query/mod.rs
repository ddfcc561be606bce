//! What a query asks for, before any catalogue is looked at.

mod chunks;
mod clauses;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;

use self::chunks::chunks;
use super::words::{MAX_TEXT, WordHasher, each_word, is_stop_word, joined, stem};

/// What a word counts in a literal: values are seldom what a tool is about.
const LITERAL: f32 = 0.5;
/// What two neighbouring words count, beside themselves, where a tool has them as one (`data base`).
const JOINED: f32 = 0.5;
/// What the words of an earlier turn count, against those of the next.
const DECAY: f32 = 0.5;
/// How many turns are read.
const MAX_TURNS: usize = 4;
/// Different words of other stems than these, to be a clause of its own.
const MIN_CLAUSE: usize = 3;
/// Clauses of a query; the last takes in all that follows.
const MAX_CLAUSES: usize = 8;
/// Different stems of a query; what follows is left out.
const MAX_TERMS: usize = 256;

/// A query, taken apart once for any number of indexes.
///
/// Its words are stemmed, and stop words and repetitions left out; of nothing but stop words, none is. Words in literals (quotations, URLs, e-mail
/// addresses) count half, since they are values. Neighbours are joined, to find `database` by `data base`. And
/// it is cut into clauses, of one task each, at the ends of sentences and lines and at conjunctions such as
/// `and then`, without a model: a tool for one task of several is found by that task's clause, where the whole
/// query would drown it. A text is read up to 16 KiB.
#[derive(Debug, Clone, Default)]
pub struct Query {
    terms: Vec<Term>,
    clauses: Vec<Vec<Use>>,
}

/// A stem that a query asks for.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub(super) stem: Box<str>,
    /// The word as it came first, in lower case.
    pub(super) word: Box<str>,
    /// What it counts in the whole query: the most of its uses, at most 1.
    pub(super) weight: f32,
    /// It is two words of the query, joined, and none of them.
    pub(super) is_joined: bool,
}

/// A term of a query, by position, and what it counts where it is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub(super) term: usize,
    pub(super) weight: f32,
}

impl Query {
    /// Takes a text apart.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self::conversation(&[text])
    }

    /// Takes a conversation apart, its last turn last. What was asked before counts half as much with each
    /// turn since, up to the third before the last. Clauses are those of the last turn.
    ///
    /// In a prototype, on the sets that `lexical/` is measured on, queries cut in halves as two turns are answered with
    /// an NDCG@10 of 77.1, 82.0 and 58.9, where the second half alone has 58.2, 68.0 and 47.0. A turn about something
    /// else before a whole query costs 2.7, 1.8 and 3.4 points.
    #[must_use]
    pub fn conversation(turns: &[&str]) -> Self {
        let mut turns = turns.iter().rev().take(MAX_TURNS);
        let Some(last) = turns.next() else { return Self::default() };
        let mut query = Self::read(last, false);
        let mut decay = 1.0;
        for turn in turns {
            decay *= DECAY;
            for term in Self::read(turn, false).terms {
                if query.terms.len() < MAX_TERMS && query.terms.iter().all(|own| own.stem != term.stem) {
                    query.terms.push(Term { weight: term.weight * decay, ..term });
                }
            }
        }
        if query.terms.is_empty() { Self::read(last, true) } else { query }
    }

    fn read(text: &str, keeps_stop_words: bool) -> Self {
        Reader { keeps_stop_words, ..Reader::default() }.read(&text[..text.floor_char_boundary(MAX_TEXT)])
    }

    /// How many clauses it has: 0 if it is blank, 1 for a single task.
    #[must_use]
    pub fn clauses(&self) -> usize {
        self.clauses.len()
    }

    pub(super) fn terms(&self) -> &[Term] {
        &self.terms
    }

    pub(super) fn each_clause(&self) -> &[Vec<Use>] {
        &self.clauses
    }
}

/// A word of a text.
struct Token {
    /// Its stem; nothing for a stop word that is left out.
    term: Option<usize>,
    /// The stem of the word before and this one, joined.
    joined: Option<usize>,
    /// What it counts.
    weight: f32,
    /// Whether it tells one task from another.
    is_content: bool,
}

#[derive(Default)]
struct Reader {
    keeps_stop_words: bool,
    terms: Vec<Term>,
    /// At most [`MAX_TERMS`].
    numbers: HashMap<Box<str>, usize, WordHasher>,
    tokens: Vec<Token>,
}

impl Reader {
    fn read(mut self, text: &str) -> Query {
        let chunks: Vec<_> = chunks(text).collect();
        let mut starts = Vec::with_capacity(chunks.len() + 1);
        let mut before = String::new();
        let mut is_literal = false;
        for chunk in &chunks {
            starts.push(self.tokens.len());
            if chunk.is_literal || is_literal {
                before.clear();
            }
            is_literal = chunk.is_literal;
            each_word(chunk.text, |word| self.token(word, &mut before, is_literal));
        }
        starts.push(self.tokens.len());
        let mut clauses = clauses::clauses(&chunks, |part| self.says_enough(starts[part.start]..starts[part.end]));
        if let Some(surplus) = clauses.len().checked_sub(MAX_CLAUSES).filter(|surplus| *surplus > 0) {
            clauses[MAX_CLAUSES - 1].end = clauses[MAX_CLAUSES - 1 + surplus].end;
            clauses.truncate(MAX_CLAUSES);
        }
        let clauses = clauses.into_iter().map(|part| self.uses(starts[part.start]..starts[part.end]));
        let clauses: Vec<_> = clauses.filter(|uses| !uses.is_empty()).collect();
        let mut terms = self.terms;
        for &Use { term, weight } in clauses.iter().flatten() {
            terms[term].weight = terms[term].weight.max(weight);
        }
        Query { terms, clauses }
    }

    /// Takes the next word; `before` is the one before, if the two can be joined.
    fn token(&mut self, word: &str, before: &mut String, is_literal: bool) {
        let weight = if is_literal { LITERAL } else { 1.0 };
        if is_stop_word(word) && !self.keeps_stop_words {
            before.clear();
            return self.tokens.push(Token { term: None, joined: None, weight, is_content: false });
        }
        let is_content = !is_literal && !word.chars().all(char::is_numeric);
        let term = self.term(word, false);
        let is_long = word.chars().nth(1).is_some();
        let joined = (is_long && !before.is_empty()).then(|| self.term(&joined(before, word), true)).flatten();
        self.tokens.push(Token { term, joined, weight, is_content });
        before.clear();
        if is_long {
            before.push_str(word);
        }
    }

    /// The position of a word's stem, unless there are too many.
    fn term(&mut self, word: &str, is_joined: bool) -> Option<usize> {
        let stem = stem(word);
        if let Some(&term) = self.numbers.get(&*stem) {
            if self.terms[term].is_joined && !is_joined {
                self.terms[term] = Term { stem: stem.into(), word: word.into(), weight: 0.0, is_joined };
            }
            return Some(term);
        }
        let term = self.terms.len();
        (term < MAX_TERMS).then(|| {
            self.numbers.insert(stem.as_ref().into(), term);
            self.terms.push(Term { stem: stem.into(), word: word.into(), weight: 0.0, is_joined });
            term
        })
    }

    fn says_enough(&self, tokens: Range<usize>) -> bool {
        let mut found = [usize::MAX; MIN_CLAUSE];
        let mut count = 0;
        for term in self.tokens[tokens].iter().filter(|token| token.is_content).filter_map(|token| token.term) {
            if !found.contains(&term) {
                found[count] = term;
                count += 1;
                if count == MIN_CLAUSE {
                    return true;
                }
            }
        }
        false
    }

    /// Each term of a clause once, with the most that it counts there.
    fn uses(&self, tokens: Range<usize>) -> Vec<Use> {
        let mut uses: Vec<Use> = Vec::new();
        let mut put = |term: Option<usize>, weight: f32| {
            let Some(term) = term else { return };
            match uses.iter_mut().find(|own| own.term == term) {
                Some(own) => own.weight = own.weight.max(weight),
                None => uses.push(Use { term, weight }),
            }
        };
        for (at, token) in self.tokens[tokens].iter().enumerate() {
            put(token.term, token.weight);
            if at > 0 {
                put(token.joined, token.weight * JOINED);
            }
        }
        uses
    }
}
