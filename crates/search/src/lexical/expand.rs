//! Expands the words of a query: with synonyms, and, for a word that no tool has, with words of the same beginning. In
//! queries typed by a person, the last word may be incomplete, and any word mistyped.
//!
//! Another word has a lower weight than the word itself, and a lower one still if it only belongs to the same topic;
//! the weight is higher if no tool has the word itself.

use std::collections::HashMap;
use std::iter;
use std::sync::{Arc, LazyLock};

use super::dictionary::{Dictionary, Term, WordId, number};
use super::query;
use super::score::{Group, Member, Plan};
use super::term_collector::Rows;
use super::words::{WordHasher, each_word, stem};
use super::{LexicalIndex, Query};

/// Weight of a word by its number of errors.
const MISTYPED: [f32; 3] = [1.0, 0.6, 0.4];
/// Maximal weight of a completed word; it decreases with the number of missing letters.
const BEGUN: f32 = 0.8;
/// A single letter is the beginning of too much.
const MIN_PREFIX: usize = 2;
/// Number of a query's words that are corrected: each correction takes a while.
const MAX_CORRECTED: usize = 8;
/// Minimal length of a task's word in which one letter may be wrong.
const MIN_CHANGED: usize = 6;
/// Maximal number of members of a group.
const MAX_MEMBERS: usize = 16;
/// Weights of a synonym, and of a word of the same topic.
const KNOWN: [f32; 2] = [0.5, 0.25];
/// The same, for a word that no tool has.
const UNKNOWN: [f32; 2] = [0.75, 0.4];
/// Weight of a word with the same beginning, times the share of common letters.
const BEGINNING: f32 = 0.5;
/// Minimal length of words with the same beginning, and length of that beginning.
const MIN_LETTERS: usize = 4;
/// If neither word is a prefix of the other: minimal common letters, and their share of both.
const MIN_COMMON: usize = 5;
const MIN_SHARE: f32 = 0.6;
/// Number of words with the same first letters that are examined.
const MAX_SAME_PREFIX: usize = 512;
/// Maximal number of other words in a group.
const MAX_OTHERS: usize = 12;
/// A word in more than this share of tools, or in more than so many in a small catalogue, is too common to replace
/// another word.
const COMMON_SHARE: f32 = 0.1;
const COMMON: f32 = 50.0;

/// Closeness of two words.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    Synonym,
    Topic,
}

/// Related words, as stems by number.
struct Table {
    numbers: HashMap<Box<str>, u32, WordHasher>,
    others: Rows<(u32, Tier)>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| Table::read(include_str!("synonyms.txt")));

impl Table {
    fn read(text: &str) -> Self {
        let mut numbers = HashMap::default();
        let mut pairs = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let tier = match words.next() {
                Some("=") => Tier::Synonym,
                Some("~") => Tier::Topic,
                _ => continue,
            };
            let group: Vec<u32> = words
                .map(|word| {
                    let next = number(numbers.len());
                    *numbers.entry(Box::from(&*stem(word))).or_insert(next)
                })
                .collect();
            let both = group.iter().flat_map(|&one| group.iter().map(move |&other| (one, other)));
            pairs.extend(both.filter(|(one, other)| one != other).map(|(one, other)| (one, other, tier)));
        }
        // Keep the closer of two tiers.
        pairs.sort_unstable();
        pairs.dedup_by_key(|(one, other, _)| (*one, *other));
        let mut others = Rows::default();
        let mut pairs = pairs.into_iter().peekable();
        for one in 0..number(numbers.len()) {
            others.push(iter::from_fn(|| pairs.next_if(|pair| pair.0 == one)).map(|(_, other, tier)| (other, tier)));
        }
        Self { numbers, others }
    }
}

/// The stems of the table, in the terms of a dictionary.
#[derive(Clone, Default)]
pub(super) struct Synonyms(Arc<[Option<Term>]>);

impl Synonyms {
    pub(super) fn of(dictionary: &Dictionary) -> Self {
        if dictionary.terms() == 0 {
            return Self::default();
        }
        let mut terms = vec![None; TABLE.numbers.len()];
        for (stem, &number) in &TABLE.numbers {
            terms[number as usize] = dictionary.find_stem(stem);
        }
        Self(terms.into())
    }

    /// Returns the words that can replace a stem.
    fn alternatives(&self, stem: &str) -> impl Iterator<Item = (Term, Tier)> {
        let others = TABLE.numbers.get(stem).map_or(&[][..], |&number| TABLE.others.get(number as usize));
        others.iter().filter_map(|&(other, tier)| Some(((*self.0.get(other as usize)?)?, tier)))
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl LexicalIndex {
    /// Returns the group of a word: its own stem, and a few others. Joined neighbours must be known words.
    pub(super) fn expanded(&self, word: &query::Term) -> Group {
        let own = self.own(&word.stem);
        let is_known = !own.is_empty();
        let mut group = Group::new();
        if word.is_joined && !is_known {
            return group;
        }
        let tiers = if is_known { KNOWN } else { UNKNOWN };
        let tools = self.len() as f32;
        let most = (COMMON_SHARE * tools).max(COMMON);
        let mut put = |term: Term, discount: f32| {
            let uses = self.uses_of(term);
            if uses == 0 || uses as f32 > most {
                return;
            }
            match group.iter_mut().find(|member| member.term == term) {
                Some(member) => member.discount = member.discount.max(discount),
                None => group.push(Member { term, discount }),
            }
        };
        self.synonyms.alternatives(&word.stem).for_each(|(term, tier)| put(term, tiers[tier as usize]));
        if !is_known {
            self.similar_stems(&word.stem, &mut put);
        }
        group.sort_unstable_by(|a, b| {
            let uses = |member: &Member| self.uses_of(member.term);
            let text = |member: &Member| self.dictionary.stem(member.term);
            b.discount.total_cmp(&a.discount).then_with(|| uses(a).cmp(&uses(b))).then_with(|| text(a).cmp(text(b)))
        });
        group.truncate(MAX_OTHERS);
        group.splice(0..0, own);
        group
    }

    /// Reports the stems that begin like `stem`.
    fn similar_stems(&self, stem: &str, put: &mut impl FnMut(Term, f32)) {
        let is_word = |text: &str| text.chars().all(char::is_alphabetic) && text.chars().nth(MIN_LETTERS - 1).is_some();
        if !is_word(stem) {
            return;
        }
        let end = stem.char_indices().nth(MIN_LETTERS).map_or(stem.len(), |(end, _)| end);
        let words = self.dictionary.with_prefix(&stem[..end]).iter().filter(|&&word| self.is_used(word));
        for &word in words.take(MAX_SAME_PREFIX) {
            let term = self.dictionary.term_of(word);
            let other = self.dictionary.stem(term);
            if !is_word(other) {
                continue;
            }
            let common = iter::zip(stem.chars(), other.chars()).take_while(|(a, b)| a == b).count();
            let (own, other) = (stem.chars().count(), other.chars().count());
            let share = 2.0 * common as f32 / (own + other) as f32;
            if common == own.min(other) || common >= MIN_COMMON && share >= MIN_SHARE {
                put(term, BEGINNING * share);
            }
        }
    }
}

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
                index.corrections(&term.word, |_, _| true, &mut group);
            }
            group
        });
        Self { clauses: Vec::new(), ..plan }
    }

    /// Returns only corrections of words that no tool has. Words that tools have were searched before.
    pub(super) fn mistyped(text: &str, index: &LexicalIndex) -> Self {
        let mut left = MAX_CORRECTED;
        let plan = Self::new(&Query::new(text), index, |term| {
            let mut group = Group::new();
            if left > 0 && !term.is_joined && index.own(&term.stem).is_empty() {
                left -= 1;
                index.corrections(&term.word, is_likely_typo, &mut group);
            }
            group
        });
        Self { clauses: Vec::new(), ..plan }
    }
}

/// Whether a word of a task is likely a misspelling of another one that is one error away. Many short words are one
/// letter from a word of another meaning (`cake`, `case`): for those, only two swapped letters and a missing or surplus
/// inner letter count.
fn is_likely_typo(word: &str, other: &str) -> bool {
    let (count, ends) =
        (|word: &str| word.chars().count(), |word: &str| (word.chars().next(), word.chars().next_back()));
    if count(word) >= MIN_CHANGED {
        return true;
    }
    let (own, others) = (ends(word), ends(other));
    let is_swap = count(word) == count(other) && strsim::levenshtein(word, other) == 2;
    own.0 == others.0 && (is_swap || (count(word) != count(other) && own.1 == others.1))
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

    /// Adds the stems of words within a few errors of `word` that `may_be` accepts: no error up to three letters, one
    /// up to seven, else two.
    fn corrections(&self, word: &str, may_be: impl Fn(&str, &str) -> bool, group: &mut Group) {
        let errors = match word.chars().count() {
            0..=3 => return,
            4..=7 => 1,
            _ => 2,
        };
        let about = self.dictionary.about(word, errors).filter(|(id, _)| self.is_used(*id));
        let about = about.filter(|(_, text)| may_be(word, text));
        let worth = MISTYPED.get(..=errors as usize).unwrap_or_default();
        let found = about.filter_map(|(id, text)| Some((id, *worth.get(strsim::osa_distance(word, text))?)));
        self.add(found.collect(), group);
    }

    /// Adds the stems of the best of some words; of equal ones, the first alphabetically.
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
