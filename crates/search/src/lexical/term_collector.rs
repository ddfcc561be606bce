//! Turns documents into the numbers of an index.

use std::sync::Arc;

use super::Document;
use super::dictionary::{Dictionary, Term, WordId, number};
use super::fields::{Field, each_text, impact, occurrence};
use super::words::{each_word, is_stop_word, joined};

/// Data of one tool in an index.
pub(super) struct ToolTerms<'a> {
    /// Its words, each once.
    pub(super) words: &'a [WordId],
    /// The distinct stems of its name.
    pub(super) name: &'a [Term],
    /// The impact of each of its stems.
    pub(super) impacts: &'a [(Term, f32)],
}

/// Reads documents one after the other, reusing its buffers.
pub(super) struct TermCollector {
    dictionary: Arc<Dictionary>,
    fields: [FieldWords; Field::ALL.len()],
    words: Vec<WordId>,
    name: Vec<Term>,
    impacts: Vec<(Term, f32)>,
    /// For each word, the last document it was seen in. For each stem, its sum so far.
    seen: Vec<u32>,
    sums: Vec<f32>,
    documents: u32,
}

/// The words of one field, with repetitions.
#[derive(Default)]
struct FieldWords {
    own: Vec<WordId>,
    /// Joined neighbours, and stop words of a name. They do not count towards a field's length.
    unmeasured: Vec<WordId>,
}

impl TermCollector {
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

    /// The dictionary with all words that were read.
    pub(super) fn into_dictionary(mut self) -> Arc<Dictionary> {
        if !self.dictionary.is_sorted() {
            Arc::make_mut(&mut self.dictionary).sort();
        }
        self.dictionary
    }

    pub(super) fn read(&mut self, document: &Document<'_>) -> ToolTerms<'_> {
        self.take_fields(document);
        self.count()
    }

    fn take_fields(&mut self, document: &Document<'_>) {
        for FieldWords { own, unmeasured } in &mut self.fields {
            own.clear();
            unmeasured.clear();
        }
        let mut before = String::new();
        each_text(document, |field, text| {
            before.clear();
            each_word(text, |word| {
                let stops = is_stop_word(word);
                let into = &mut self.fields[field as usize];
                if !stops {
                    into.own.push(id_of(&mut self.dictionary, word));
                } else if field == Field::Name {
                    // For queries of stop words only.
                    into.unmeasured.push(id_of(&mut self.dictionary, word));
                }
                if !before.is_empty() && field.joins() && !(stops && field == Field::Description) {
                    into.unmeasured.push(id_of(&mut self.dictionary, &joined(&before, word)));
                }
                before.clear();
                if !stops || field != Field::Description {
                    before.push_str(word);
                }
            });
        });
    }

    fn count(&mut self) -> ToolTerms<'_> {
        self.documents += 1;
        self.seen.resize(self.dictionary.words(), 0);
        self.sums.resize(self.dictionary.terms(), 0.0);
        self.words.clear();
        self.impacts.clear();
        for field in Field::ALL {
            let FieldWords { own, unmeasured } = &self.fields[field as usize];
            let each = occurrence(field, own.len());
            for &word in own.iter().chain(unmeasured) {
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
        self.name.clear();
        for &word in &self.fields[Field::Name as usize].own {
            let term = self.dictionary.term_of(word);
            if !self.name.contains(&term) {
                self.name.push(term);
            }
        }
        ToolTerms { words: &self.words, name: &self.name, impacts: &self.impacts }
    }
}

fn id_of(dictionary: &mut Arc<Dictionary>, word: &str) -> WordId {
    match dictionary.find(word) {
        Some(id) => id,
        None => Arc::make_mut(dictionary).enter(word),
    }
}

/// Lists by position, in one buffer.
#[derive(Clone)]
pub(super) struct Rows<T> {
    /// End of each row.
    ends: Vec<u32>,
    items: Vec<T>,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { ends: Vec::new(), items: Vec::new() }
    }
}

impl<T: Copy> Rows<T> {
    pub(super) fn with_capacity(rows: usize, items: usize) -> Self {
        Self { ends: Vec::with_capacity(rows), items: Vec::with_capacity(items) }
    }

    /// Adds a row.
    pub(super) fn push(&mut self, row: impl IntoIterator<Item = T>) {
        self.items.extend(row);
        self.ends.push(number(self.items.len()));
    }

    /// A row; empty past the last.
    pub(super) fn get(&self, row: usize) -> &[T] {
        let Some(&end) = self.ends.get(row) else { return &[] };
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items[start as usize..end as usize]
    }

    pub(super) fn items(&self) -> usize {
        self.items.len()
    }

    pub(super) fn shrink(&mut self) {
        self.items.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Bytes of heap that they hold.
    pub(super) fn bytes(&self) -> usize {
        self.ends.capacity() * size_of::<u32>() + self.items.capacity() * size_of::<T>()
    }
}
