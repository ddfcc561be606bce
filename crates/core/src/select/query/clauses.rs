//! Where one task of a query ends and the next begins.

use std::ops::Range;

use super::chunks::{Chunk, Gap};

/// What stands between two tasks. A mere `and` does not: it is found between the objects of one task as often.
const CONJUNCTIONS: &[&[&str]] = &[
    &["and", "then"],
    &["and", "also"],
    &["and", "finally"],
    &["and", "additionally"],
    &["and", "lastly"],
    &["then"],
    &["also"],
    &["finally"],
    &["additionally"],
    &["furthermore"],
    &["moreover"],
    &["afterwards"],
    &["followed", "by"],
    &["after", "that"],
    &["as", "well", "as"],
    &["plus"],
    &["along", "with"],
];
/// A full stop after one of these, or after a single letter, ends no sentence.
const ABBREVIATIONS: &[&str] = &["Mr", "Mrs", "Ms", "Dr", "St", "vs", "etc", "No", "Inc", "Ltd", "Co", "Jr", "Sr"];

/// The clauses of a text, as ranges of its chunks; `says_enough` tells whether some chunks are a task of their
/// own. It is cut at the ends of sentences and lines, at semicolons and before numbers (`2)`); then the
/// sentences at conjunctions. What says too little stays with what comes before it.
pub(super) fn clauses(chunks: &[Chunk<'_>], says_enough: impl Fn(&Range<usize>) -> bool) -> Vec<Range<usize>> {
    let sentences = cut(0..chunks.len(), &breaks(chunks, sentence_break), &says_enough);
    let conjunctions = breaks(chunks, conjunction);
    sentences.into_iter().flat_map(|sentence| cut(sentence, &conjunctions, &says_enough)).collect()
}

/// Every break between chunks: the chunks that make it, which belong to no side of it; there may be none.
fn breaks(chunks: &[Chunk<'_>], at: impl Fn(&[Chunk<'_>], usize) -> Option<usize>) -> Vec<Range<usize>> {
    let mut breaks = Vec::new();
    let mut next = 1;
    while next < chunks.len() {
        let length = at(chunks, next);
        breaks.extend(length.map(|length| next..next + length));
        next += length.unwrap_or(0).max(1);
    }
    breaks
}

fn cut(
    range: Range<usize>,
    breaks: &[Range<usize>],
    says_enough: &impl Fn(&Range<usize>) -> bool,
) -> Vec<Range<usize>> {
    let inside = &breaks[breaks.partition_point(|one| one.start < range.start)..];
    let inside = &inside[..inside.partition_point(|one| one.end <= range.end)];
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut start = range.start;
    for one in inside.iter().chain([&(range.end..range.end)]) {
        let part = std::mem::replace(&mut start, one.end)..one.start;
        match parts.last_mut() {
            _ if part.is_empty() => {}
            Some(last) if !says_enough(&part) || !says_enough(last) => last.end = part.end,
            _ => parts.push(part),
        }
    }
    parts
}

fn sentence_break(chunks: &[Chunk<'_>], at: usize) -> Option<usize> {
    let (before, own) = (chunks[at - 1], chunks[at]);
    if is_number(own.text) && own.before != Gap::None {
        return Some(1);
    }
    let ends = own.before == Gap::Line
        || !before.is_literal && (before.text.ends_with(';') || own.before == Gap::Space && ends_sentence(before.text));
    ends.then_some(0)
}

/// Whether it is the number of a step: `2)`, `(2)`.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('(').unwrap_or(text).strip_suffix(')');
    digits.is_some_and(|digits| (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()))
}

fn ends_sentence(text: &str) -> bool {
    let text = text.trim_end_matches(['"', '\'', ')', ']']);
    let Some(word) = text.strip_suffix('.') else { return text.ends_with(['!', '?']) };
    let word = word.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let is_letter = word.len() == 1 && word.bytes().all(|b| b.is_ascii_alphabetic());
    !is_letter && !ABBREVIATIONS.contains(&word)
}

fn conjunction(chunks: &[Chunk<'_>], at: usize) -> Option<usize> {
    if chunks[at].is_literal || chunks[at].before == Gap::None {
        return None;
    }
    let own = bare(chunks[at].text);
    let found = CONJUNCTIONS.iter().filter(|words| own.eq_ignore_ascii_case(words[0])).find(|words| {
        let others = chunks.get(at + 1..at + words.len());
        others.is_some_and(|others| std::iter::zip(others, &words[1..]).all(|(chunk, word)| is_word(chunk.text, word)))
    });
    let is_listed = !chunks[at - 1].is_literal && chunks[at - 1].text.ends_with(',');
    found.map(|words| words.len()).or_else(|| (is_listed && chunks[at].text.eq_ignore_ascii_case("and")).then_some(1))
}

/// Whether it is that word, in any case, with or without a mark after it.
fn is_word(text: &str, word: &str) -> bool {
    bare(text).eq_ignore_ascii_case(word)
}

fn bare(text: &str) -> &str {
    text.trim_end_matches([',', ':', '.'])
}
