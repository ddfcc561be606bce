//! The words of a catalogue and their stems.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

use super::words::stem;

/// Number of a word.
pub(super) type WordId = u32;
/// Number of a stem; words are compared by stem.
pub(super) type Term = u32;

/// Numbers of words and stems. It only grows; indexes without new words share it.
#[derive(Clone, Default)]
pub(super) struct Dictionary {
    words: Interner,
    stems: Interner,
    /// The stem and the letters of each word.
    entries: Vec<(Term, LetterSet)>,
    /// The words in the order of their letters.
    sorted: Vec<WordId>,
}

impl Dictionary {
    /// Returns the number of a word, if known.
    pub(super) fn find(&self, word: &str) -> Option<WordId> {
        self.words.find(word)
    }

    /// Adds a word and returns its number. New words are in order only after [`Dictionary::sort`].
    pub(super) fn enter(&mut self, word: &str) -> WordId {
        let id = self.words.enter(word);
        if id as usize == self.entries.len() {
            let term = self.stems.enter(&stem(word));
            self.entries.push((term, LetterSet::of(word)));
        }
        id
    }

    pub(super) fn is_sorted(&self) -> bool {
        self.sorted.len() == self.words.len()
    }

    /// Sorts in the words added since the last call.
    pub(super) fn sort(&mut self) {
        let old = std::mem::take(&mut self.sorted);
        let mut new: Vec<WordId> = (number(old.len())..number(self.words.len())).collect();
        new.sort_unstable_by_key(|&word| self.words.get(word));
        let mut sorted = Vec::with_capacity(self.words.len());
        let mut rest = &old[..];
        for word in new {
            let text = self.words.get(word);
            let (before, after) = rest.split_at(rest.partition_point(|&old| self.words.get(old) < text));
            sorted.extend_from_slice(before);
            sorted.push(word);
            rest = after;
        }
        sorted.extend_from_slice(rest);
        self.sorted = sorted;
    }

    /// Returns a stem, if any word has it.
    pub(super) fn find_stem(&self, stem: &str) -> Option<Term> {
        self.stems.find(stem)
    }

    pub(super) fn stem(&self, term: Term) -> &str {
        self.stems.get(term)
    }

    pub(super) fn term_of(&self, word: WordId) -> Term {
        self.entries[word as usize].0
    }

    /// The words that begin with `prefix`, in the order of their letters.
    pub(super) fn with_prefix(&self, prefix: &str) -> &[WordId] {
        let from = &self.sorted[self.sorted.partition_point(|&word| self.words.get(word) < prefix)..];
        &from[..from.partition_point(|&word| self.words.get(word).starts_with(prefix))]
    }

    /// Returns words within so many typing errors of `word`, with few false ones.
    pub(super) fn about(&self, word: &str, errors: u32) -> impl Iterator<Item = (WordId, &str)> {
        let letters = LetterSet::of(word);
        let length = word.len();
        iter_near(&self.entries, letters, errors)
            .map(|id| (id, self.words.get(id)))
            // An error changes the length by one letter, of four bytes at most.
            .filter(move |(_, text)| text.len().abs_diff(length) <= errors as usize * 4)
    }

    pub(super) fn text(&self, word: WordId) -> &str {
        self.words.get(word)
    }

    /// Number of words.
    pub(super) fn words(&self) -> usize {
        self.words.len()
    }

    /// Number of stems.
    pub(super) fn terms(&self) -> usize {
        self.stems.len()
    }

    /// Bytes of heap that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.words.bytes()
            + self.stems.bytes()
            + self.entries.capacity() * size_of::<(Term, LetterSet)>()
            + self.sorted.capacity() * size_of::<WordId>()
    }
}

fn iter_near(entries: &[(Term, LetterSet)], letters: LetterSet, errors: u32) -> impl Iterator<Item = WordId> {
    std::iter::zip(entries, 0..).filter(move |((_, own), _)| own.may_be(letters, errors)).map(|(_, id)| id)
}

/// The letters of a word, as bits; several letters share one.
#[derive(Clone, Copy)]
struct LetterSet(u32);

impl LetterSet {
    fn of(word: &str) -> Self {
        Self(word.chars().fold(0, |bits, c| bits | 1 << (u32::from(c) % 32)))
    }

    /// Whether `errors` edits can turn one word into the other: each removes a letter, adds one, or both.
    fn may_be(self, other: Self, errors: u32) -> bool {
        (self.0 ^ other.0).count_ones() <= 2 * errors
    }
}

/// A set of texts, numbered in insertion order. All are in one string, so that a copy needs few large copies.
#[derive(Clone, Default)]
pub(super) struct Interner {
    text: String,
    /// End of each text.
    ends: Vec<u32>,
    numbers: HashTable<u32>,
    hasher: RandomState,
}

impl Interner {
    /// The number of a text, if it has one.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        self.numbers.find(self.hasher.hash_one(text), |&number| self.get(number) == text).copied()
    }

    /// The number that a text gets.
    pub(super) fn enter(&mut self, text: &str) -> u32 {
        if let Some(number) = self.find(text) {
            return number;
        }
        let number = number(self.ends.len());
        self.text.push_str(text);
        self.ends.push(self::number(self.text.len()));
        let Self { text: whole, ends, numbers, hasher } = self;
        numbers.insert_unique(hasher.hash_one(text), number, |&number| hasher.hash_one(span(whole, ends, number)));
        number
    }

    /// The text of a number that was given out.
    pub(super) fn get(&self, number: u32) -> &str {
        span(&self.text, &self.ends, number)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of heap that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>() + self.numbers.allocation_size()
    }
}

fn span<'a>(text: &'a str, ends: &[u32], number: u32) -> &'a str {
    let start = number.checked_sub(1).map_or(0, |before| ends[before as usize]);
    &text[start as usize..ends[number as usize] as usize]
}

/// Converts a count to 32 bits: counted objects are in memory, and far fewer than 2^32.
pub(super) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
