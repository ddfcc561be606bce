//! Documents read into the numbers an index is made of.

use std::sync::Arc;

use super::super::Document;
use super::super::words::{Kind, each_word, is_stop_word};
use super::bm25f::{Field, impact, occurrence};
use super::dictionary::{Dictionary, Term, WordId};
use super::fields::each_text;

/// What an index knows of one tool.
pub(super) struct Reading<'a> {
    /// Its words, each once.
    pub(super) words: &'a [WordId],
    /// The stems of its name, in order.
    pub(super) name: &'a [Term],
    /// What each of its stems counts, each once.
    pub(super) impacts: &'a [(Term, f32)],
}

/// Reads documents one after the other; its buffers are used again.
pub(super) struct Intake {
    dictionary: Arc<Dictionary>,
    /// The words of each field, as often as they occur, and how many of them make its length.
    fields: [(Vec<WordId>, usize); Field::ALL.len()],
    words: Vec<WordId>,
    name: Vec<Term>,
    impacts: Vec<(Term, f32)>,
    /// Per word: the last document it was seen in. Per stem: what it counts so far.
    seen: Vec<u32>,
    sums: Vec<f32>,
    documents: u32,
}

impl Intake {
    pub(super) fn new(dictionary: Arc<Dictionary>) -> Self {
        Self {
            dictionary,
            fields: Default::default(),
            words: Vec::new(),
            name: Vec::new(),
            impacts: Vec::new(),
            seen: Vec::new(),
            sums: Vec::new(),
            documents: 0,
        }
    }

    pub(super) fn into_dictionary(self) -> Arc<Dictionary> {
        self.dictionary
    }

    pub(super) fn read(&mut self, document: &Document<'_>) -> Reading<'_> {
        let Self { dictionary, fields, .. } = self;
        for (words, length) in &mut *fields {
            words.clear();
            *length = 0;
        }
        each_text(document, |field, text| {
            let (words, length) = &mut fields[field as usize];
            each_word(text, |word, kind| {
                if let Some(id) = dictionary.find(word).or_else(|| enter(dictionary, word)) {
                    words.push(id);
                    *length += usize::from(kind == Kind::Part);
                }
            });
        });
        self.count()
    }

    fn count(&mut self) -> Reading<'_> {
        self.documents += 1;
        self.seen.resize(self.dictionary.words().len(), 0);
        self.sums.resize(self.dictionary.terms(), 0.0);
        self.words.clear();
        self.impacts.clear();
        self.name.clear();
        for field in Field::ALL {
            let (words, length) = &self.fields[field as usize];
            let each = occurrence(field, *length);
            for &word in words {
                let term = self.dictionary.term_of(word);
                if std::mem::replace(&mut self.seen[word as usize], self.documents) != self.documents {
                    self.words.push(word);
                }
                if self.sums[term as usize] == 0.0 {
                    self.impacts.push((term, 0.0));
                }
                self.sums[term as usize] += each;
            }
        }
        for (term, sum) in &mut self.impacts {
            *sum = impact(std::mem::take(&mut self.sums[*term as usize]));
        }
        let name = &self.fields[Field::Name as usize].0;
        self.name.extend(name.iter().map(|&word| self.dictionary.term_of(word)));
        Reading { words: &self.words, name: &self.name, impacts: &self.impacts }
    }
}

fn enter(dictionary: &mut Arc<Dictionary>, word: &str) -> Option<WordId> {
    (!is_stop_word(word)).then(|| Arc::make_mut(dictionary).enter(word))
}
