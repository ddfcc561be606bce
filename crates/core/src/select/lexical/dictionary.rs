//! The words of a catalogue and their stems.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::words::stem;

/// A word, by number.
pub(super) type WordId = u32;
/// A stem, by number: what words are compared by.
pub(super) type Term = u32;

/// Numbers for words and for their stems. It only grows; indexes that need nothing new share it.
#[derive(Clone, Default)]
pub(super) struct Dictionary {
    words: Vec<Word>,
    by_text: HashMap<Arc<str>, WordId>,
    terms: HashMap<Arc<str>, Term>,
}

#[derive(Clone)]
pub(super) struct Word {
    pub(super) text: Arc<str>,
    pub(super) term: Term,
}

impl Dictionary {
    /// The number of a word.
    pub(super) fn find(&self, text: &str) -> Option<WordId> {
        self.by_text.get(text).copied()
    }

    /// The number that a word gets.
    pub(super) fn enter(&mut self, text: &str) -> WordId {
        if let Some(id) = self.find(text) {
            return id;
        }
        let text: Arc<str> = text.into();
        let stem = stem(&text);
        let next = number(self.terms.len());
        let term = match self.terms.get(&*stem) {
            Some(&term) => term,
            None => {
                let stem = if *stem == *text { Arc::clone(&text) } else { stem.into() };
                self.terms.insert(stem, next);
                next
            }
        };
        let id = number(self.words.len());
        self.words.push(Word { text: Arc::clone(&text), term });
        self.by_text.insert(text, id);
        id
    }

    /// The stem of a word, if any word has it.
    pub(super) fn term(&self, text: &str) -> Option<Term> {
        match self.find(text) {
            Some(id) => Some(self.term_of(id)),
            None => self.terms.get(&*stem(text)).copied(),
        }
    }

    pub(super) fn term_of(&self, word: WordId) -> Term {
        self.words[word as usize].term
    }

    /// All words; a word's place is its number.
    pub(super) fn words(&self) -> &[Word] {
        &self.words
    }

    /// How many stems there are.
    pub(super) fn terms(&self) -> usize {
        self.terms.len()
    }

    /// Bytes of heap that it holds.
    pub(super) fn bytes(&self) -> usize {
        // Texts stand beside two counts; a map keeps a byte of its own beside each place, and fills 7 of 8.
        let text = |text: &Arc<str>| text.len() + 2 * size_of::<usize>();
        let map = |capacity: usize| capacity * 8 / 7 * (size_of::<(Arc<str>, u32)>() + 1);
        self.words.capacity() * size_of::<Word>()
            + self.words.iter().map(|word| text(&word.text)).sum::<usize>()
            + self.terms.keys().map(text).sum::<usize>()
            + map(self.by_text.capacity())
            + map(self.terms.capacity())
    }
}

/// A count as a number of four bytes: tools and words are far fewer than 2^32.
pub(super) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
