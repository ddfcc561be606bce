//! Texts by number.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

/// A set of texts, numbered in the order they came. All stand in one string: a copy costs a few long copies.
#[derive(Clone, Default)]
pub(super) struct Interner {
    text: String,
    /// Where each text ends.
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

/// A count as a number of four bytes: what is counted here is held in memory, and far fewer than 2^32.
pub(super) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
