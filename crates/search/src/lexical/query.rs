//! Parses a query, independent of any catalogue.

use std::collections::HashMap;
use std::ops::Range;

use super::words::{MAX_TEXT, WordHasher, each_word, is_stop_word, joined, stem};

/// Weight of a word in a literal: a tool is seldom about a value.
const LITERAL: f32 = 0.5;
/// Weight of two joined neighbouring words, in addition to their own, if a tool has them as one (`data base`).
const JOINED: f32 = 0.5;
/// Factor for the words of an earlier turn, per turn.
const DECAY: f32 = 0.5;
/// Number of turns that are read.
const MAX_TURNS: usize = 4;
/// Minimal number of different stems in a clause.
const MIN_CLAUSE: usize = 3;
/// Maximal number of clauses of a query; the last one includes the rest.
const MAX_CLAUSES: usize = 8;
/// Number of distinct stems of a query; further ones are ignored.
const MAX_TERMS: usize = 256;

/// A parsed query, for any number of indexes.
///
/// Its words are stemmed; stop words and repetitions are dropped, unless there are only stop words. Words in literals
/// (quotations, URLs, e-mail addresses) have half the weight, since they are values. Neighbours are joined, to find
/// `database` by `data base`. The query is cut into clauses of one task each, at the ends of sentences and lines and at
/// conjunctions such as `and then`, without a model: the clause of a task finds its tool, which the other tasks of the
/// whole query would hide. A text is read up to 16 KiB.
#[derive(Debug, Clone, Default)]
pub struct Query {
    terms: Vec<Term>,
    clauses: Vec<Vec<TermUse>>,
}

/// A stem of a query.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub(super) stem: Box<str>,
    /// The first word with this stem, in lower case.
    pub(super) word: Box<str>,
    /// Its weight in the whole query: the maximum of its uses, at most 1.
    pub(super) weight: f32,
    /// Whether it is two neighbouring words of the query, joined.
    pub(super) is_joined: bool,
}

/// A use of a query's term, by position, with its weight there.
#[derive(Debug, Clone, Copy)]
pub(super) struct TermUse {
    pub(super) term: usize,
    pub(super) weight: f32,
}

impl Query {
    /// Parses a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self::conversation(&[text])
    }

    /// Parses a conversation, oldest turn first. The weight of an earlier turn halves with each turn since, up to the
    /// third before the last. The clauses are those of the last turn.
    ///
    /// In a prototype, on the sets that `lexical/` is measured on, queries cut into two turns had an NDCG@10 of 77.1,
    /// 82.0 and 58.9; the second half alone had 58.2, 68.0 and 47.0. An unrelated turn before a whole query costs 2.7,
    /// 1.8 and 3.4 points.
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

    /// Number of clauses: 0 if it is blank, 1 for a single task.
    #[must_use]
    pub fn clauses(&self) -> usize {
        self.clauses.len()
    }

    pub(super) fn terms(&self) -> &[Term] {
        &self.terms
    }

    pub(super) fn each_clause(&self) -> &[Vec<TermUse>] {
        &self.clauses
    }
}

/// A word of a text.
struct Token {
    /// Its stem; `None` for a dropped stop word.
    term: Option<usize>,
    /// The stem of the previous word and this one, joined.
    joined: Option<usize>,
    /// Its weight.
    weight: f32,
    /// Whether it distinguishes tasks.
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
        let mut clauses = clauses(&chunks, |part| self.is_specific(starts[part.start]..starts[part.end]));
        if let Some(surplus) = clauses.len().checked_sub(MAX_CLAUSES).filter(|surplus| *surplus > 0) {
            clauses[MAX_CLAUSES - 1].end = clauses[MAX_CLAUSES - 1 + surplus].end;
            clauses.truncate(MAX_CLAUSES);
        }
        let clauses = clauses.into_iter().map(|part| self.uses(starts[part.start]..starts[part.end]));
        let clauses: Vec<_> = clauses.filter(|uses| !uses.is_empty()).collect();
        let mut terms = self.terms;
        for &TermUse { term, weight } in clauses.iter().flatten() {
            terms[term].weight = terms[term].weight.max(weight);
        }
        Query { terms, clauses }
    }

    /// Adds the next word; `before` is the previous one, if the two can be joined.
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

    /// Returns the position of a word's stem, unless there are too many.
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

    fn is_specific(&self, tokens: Range<usize>) -> bool {
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

    /// Returns each term of a clause once, with its maximal weight there.
    fn uses(&self, tokens: Range<usize>) -> Vec<TermUse> {
        let mut uses: Vec<TermUse> = Vec::new();
        let mut put = |term: Option<usize>, weight: f32| {
            let Some(term) = term else { return };
            match uses.iter_mut().find(|own| own.term == term) {
                Some(own) => own.weight = own.weight.max(weight),
                None => uses.push(TermUse { term, weight }),
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

/// Maximal characters of a literal: a quotation mark without another one near is ignored.
const MAX_LITERAL: usize = 200;

/// Bytes of an e-mail address, at most (RFC 5321: 64 before the `@`, 255 behind it).
const MAX_ADDRESS: usize = 320;

/// A piece of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk<'a> {
    pub(super) text: &'a str,
    /// A value rather than words about a task: it is in quotation marks, or a URL, or an e-mail address.
    pub(super) is_literal: bool,
    pub(super) before: WordSeparator,
}

/// The separator before a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WordSeparator {
    None,
    Space,
    Line,
}

/// Every chunk of a text in order. A chunk ends at white space, after a semicolon, and at a literal.
pub(super) fn chunks(text: &str) -> impl Iterator<Item = Chunk<'_>> {
    let mut rest = text;
    let mut inside = false;
    std::iter::from_fn(move || {
        let trimmed = rest.trim_start();
        let (space, text) = rest.split_at(rest.len() - trimmed.len());
        let before = match space {
            "" => WordSeparator::None,
            _ if space.contains('\n') => WordSeparator::Line,
            _ => WordSeparator::Space,
        };
        let literal = literal(text, inside && before == WordSeparator::None).or_else(|| address(text));
        let length = literal.unwrap_or_else(|| plain(text));
        let (chunk, after) = text.split_at(length);
        rest = after;
        inside = chunk.ends_with(char::is_alphanumeric);
        (!chunk.is_empty()).then_some(Chunk { text: chunk, is_literal: literal.is_some(), before })
    })
}

/// Returns the length of a chunk that does not begin with a literal.
fn plain(text: &str) -> usize {
    let mut inside = false;
    for (at, c) in text.char_indices() {
        if c.is_whitespace() || (at > 0 && literal(&text[at..], inside).is_some()) {
            return at;
        }
        if c == ';' {
            return at + 1;
        }
        inside = c.is_alphanumeric();
    }
    text.len()
}

/// Returns the length of the quotation or URL at the start of `text`, if any; `inside` a word, `'` is an apostrophe.
fn literal(text: &str, inside: bool) -> Option<usize> {
    match text.chars().next()? {
        '"' => quoted(text, '"'),
        '`' => quoted(text, '`'),
        '“' => quoted(text, '”'),
        '\'' if !inside => {
            let length = quoted(text, '\'')?;
            let quotation = &text[1..length - 1];
            let is_word_next = text[length..].starts_with(|c: char| c.is_lowercase());
            (quotation.trim() == quotation && !is_word_next).then_some(length)
        }
        'h' => {
            let rest = text.strip_prefix("http")?;
            let rest = rest.strip_prefix('s').unwrap_or(rest).strip_prefix("://")?;
            let address = rest.find(char::is_whitespace).unwrap_or(rest.len());
            (address > 0).then_some(text.len() - rest.len() + address)
        }
        _ => None,
    }
}

/// The length of a quotation that `close` closes.
fn quoted(text: &str, close: char) -> Option<usize> {
    let mut chars = text.char_indices().skip(1).take(MAX_LITERAL + 1);
    let (end, _) = chars.find(|(_, c)| *c == close)?;
    let open = text.chars().next().map_or(0, char::len_utf8);
    (end > open).then_some(end + close.len_utf8())
}

/// Returns the length of the e-mail address at the start of `text`, if any.
fn address(text: &str) -> Option<usize> {
    let near = &text[..text.floor_char_boundary(MAX_ADDRESS)];
    let chunk = &near[..near.find(|c: char| c.is_whitespace() || c == ';').unwrap_or(near.len())];
    let (user, host) = chunk.split_once('@')?;
    let (domain, rest) = host.rsplit_once('.')?;
    (!user.is_empty() && !domain.is_empty() && !rest.is_empty()).then_some(chunk.len())
}

/// Separators of tasks. A mere `and` is not included: it joins objects of one task as often.
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
/// A full stop after one of these, or after a single letter, does not end a sentence.
const ABBREVIATIONS: &[&str] = &["Mr", "Mrs", "Ms", "Dr", "St", "vs", "etc", "No", "Inc", "Ltd", "Co", "Jr", "Sr"];

/// Splits a text into clauses, as ranges of its chunks; `says_enough` tells whether some chunks are a complete
/// task. It is cut at the ends of sentences and lines, at semicolons and before numbers (`2)`); then the
/// sentences are cut at conjunctions. An incomplete clause stays with the one before it.
pub(super) fn clauses(chunks: &[Chunk<'_>], is_specific: impl Fn(&Range<usize>) -> bool) -> Vec<Range<usize>> {
    let sentences = cut(0..chunks.len(), &breaks(chunks, sentence_break), &is_specific);
    let conjunctions = breaks(chunks, conjunction);
    sentences.into_iter().flat_map(|sentence| cut(sentence, &conjunctions, &is_specific)).collect()
}

/// Returns the breaks between chunks, as ranges of separating chunks, which may be empty.
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
    is_specific: &impl Fn(&Range<usize>) -> bool,
) -> Vec<Range<usize>> {
    let inside = &breaks[breaks.partition_point(|one| one.start < range.start)..];
    let inside = &inside[..inside.partition_point(|one| one.end <= range.end)];
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut start = range.start;
    for one in inside.iter().chain([&(range.end..range.end)]) {
        let part = std::mem::replace(&mut start, one.end)..one.start;
        match parts.last_mut() {
            _ if part.is_empty() => {}
            Some(last) if !is_specific(&part) || !is_specific(last) => last.end = part.end,
            _ => parts.push(part),
        }
    }
    parts
}

fn sentence_break(chunks: &[Chunk<'_>], at: usize) -> Option<usize> {
    let (before, own) = (chunks[at - 1], chunks[at]);
    if is_number(own.text) && own.before != WordSeparator::None {
        return Some(1);
    }
    let ends = own.before == WordSeparator::Line
        || !before.is_literal
            && (before.text.ends_with(';') || own.before == WordSeparator::Space && ends_sentence(before.text));
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
    if chunks[at].is_literal || chunks[at].before == WordSeparator::None {
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

/// Whether it is that word, in any case, with or without punctuation after it.
fn is_word(text: &str, word: &str) -> bool {
    bare(text).eq_ignore_ascii_case(word)
}

fn bare(text: &str) -> &str {
    text.trim_end_matches([',', ':', '.'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the clauses of a text as lists of stems: weight 1 plain, weight 1/2 in brackets, without joined ones.
    fn read(text: &str) -> Vec<String> {
        let query = Query::new(text);
        let clause = |uses: &Vec<TermUse>| {
            let own = uses.iter().filter(|one| !query.terms[one.term].is_joined);
            let stems = own.map(|one| match one.weight {
                1.0 => query.terms[one.term].stem.to_string(),
                _ => format!("({})", query.terms[one.term].stem),
            });
            stems.collect::<Vec<_>>().join(" ")
        };
        query.clauses.iter().map(clause).collect()
    }

    fn joins(text: &str) -> Vec<String> {
        let query = Query::new(text);
        let used = query.terms.iter().filter(|term| term.is_joined && term.weight > 0.0);
        used.map(|term| format!("{} {}", term.word, term.weight)).collect()
    }

    #[test]
    fn query_tasks_are_separated() {
        let two: &[&str] = &["find cheap flight pari", "book quiet hotel room"];
        for (text, expect) in [
            ("", &[][..]),
            ("the of and", &["the of and"]),
            ("Find cheap flights to Paris", &["find cheap flight pari"]),
            ("Find cheap flights to Paris. Book a quiet hotel room", two),
            (
                "Find cheap flights to Paris! (\"Soon.\") Book a quiet hotel room",
                &["find cheap flight pari", "(soon) book quiet hotel room"],
            ),
            ("Find cheap flights to Paris\nBook a quiet hotel room", two),
            ("Find cheap flights to Paris; book a quiet hotel room", two),
            ("Find cheap flights to Paris and then book a quiet hotel room", two),
            ("Find cheap flights to Paris, and book a quiet hotel room", two),
            ("Find cheap flights to Paris. Finally, book a quiet hotel room", two),
            ("Find cheap flights to Paris, as well as book a quiet hotel room", two),
            (
                "1) Find cheap flights to Paris 2) Book a quiet hotel room",
                &["1 find cheap flight pari", "book quiet hotel room"],
            ),
            ("Find cheap flights and trains, then go", &["find cheap flight train go"]),
            ("Find cheap flights for Dr. Smith and J. Doe", &["find cheap flight dr smith j doe"]),
            (
                "Find cheap flights to Paris, e.g. book a quiet hotel room",
                &["find cheap flight pari e g book quiet hotel room"],
            ),
        ] {
            assert_eq!(read(text), expect, "{text}");
        }
    }

    #[test]
    fn quoted_values_have_half_weight() {
        for (text, expect) in [
            ("send \"see you. Then we go\" to bob@example.com", "send (see) (go) (bob) (exampl) (com)"),
            ("open https://example.com/a/b; close", "open (https) (exampl) (com) (b) close"),
            ("say 'good morning', don't shout", "say (good) (morn) shout"),
            ("the user's name isn't 'Ann'", "user name (ann)"),
            ("run `ls -l` and “echo”", "run (ls) (l) (echo)"),
            ("a \"file\" is a file", "file"),
            ("5\" pipes", "5 pipe"),
            ("\"\" '' ``", ""),
            ("mail a@b or @c.d", "mail b c"),
        ] {
            assert_eq!(read(text).join(" | "), expect, "{text}");
        }
    }

    #[test]
    fn neighbours_are_joined() {
        for (text, expect) in [
            ("weather forecast", &["weatherforecast 0.5"][..]),
            ("get the weather", &[]),
            ("type c tools", &[]),
            ("say \"good morning\" world", &["goodmorning 0.25"]),
            (
                "list new log files. Then delete all very old archives",
                &["listnew 0.5", "newlog 0.5", "logfiles 0.5", "oldarchives 0.5"],
            ),
        ] {
            assert_eq!(joins(text), expect, "{text}");
        }
    }

    #[test]
    fn earlier_turns_count_less() {
        let query = Query::conversation(&["lost", "weather", "maps", "files in Paris", "weather in Paris"]);
        let weights: Vec<_> =
            query.terms.iter().filter(|term| !term.is_joined).map(|term| (&*term.stem, term.weight)).collect();
        assert_eq!(weights, [("weather", 1.0), ("pari", 1.0), ("file", 0.5), ("map", 0.25)]);
        assert_eq!(query.clauses(), 1);
        assert_eq!(Query::conversation(&[]).clauses(), 0);
    }

    #[test]
    fn stop_words_count_only_alone() {
        for (turns, expect) in [
            (&["get"][..], "get"),
            (&["Show me."], "show me"),
            (&["show the map"], "map"),
            (&["the weather", "show me more"], "weather"),
            (&["what is this", "show me"], "show me"),
            (&["the weather", ""], "weather"),
            (&["?"], ""),
        ] {
            let query = Query::conversation(turns);
            let stems: Vec<_> = query.terms.iter().filter(|term| !term.is_joined).map(|term| &*term.stem).collect();
            assert_eq!(stems.join(" "), expect, "{turns:?}");
        }
    }

    #[test]
    fn a_long_query_is_cut() {
        let tasks: String = (0..500).map(|n| format!("find{n} cheap{n} flight{n}. ")).collect();
        let query = Query::new(&tasks);
        assert!(query.clauses() <= MAX_CLAUSES && query.terms.len() <= MAX_TERMS);
        assert_eq!(query.clauses(), MAX_CLAUSES);
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(text in r#"([a-z@.'"“” \n;,)(`]|and then |\PC){0,80}"#) {
            let cut: String = chunks(&text).map(|chunk| chunk.text).collect();
            let black = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(black(&cut), black(&text));
            let query = Query::new(&text);
            prop_assert!(query.terms.iter().all(|term| (0.0..=1.0).contains(&term.weight)));
        }
    }
}
