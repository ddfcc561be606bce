//! Text and identifiers cut into words: one way for documents and for queries.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::LazyLock;

use frostem::{Algorithm, Stemmer};

/// Bytes of one text that are read; the rest is ignored.
pub(crate) const MAX_TEXT: usize = 16 * 1024;
/// Characters of one word that are kept; the rest is ignored.
pub(crate) const MAX_WORD: usize = 64;

/// Calls `found` with every word of `text` in order, in lower case.
///
/// All other characters than letters and digits separate words. A run of letters and digits is cut where a capital
/// follows a small letter (`readFile`), before the last capital of an acronym (`HTTPServer`; `URLs` stays whole) and
/// between letters and digits (`base64`). Scripts that do not put spaces between words give pairs of neighbouring
/// characters. Only case is normalised.
pub(crate) fn each_word(text: &str, mut found: impl FnMut(&str)) {
    let text = &text[..text.floor_char_boundary(MAX_TEXT)];
    let mut lower = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c| script(c).is_some()) {
        rest = &rest[start..];
        let own = rest.chars().next().and_then(script);
        let end = rest.find(|c| script(c) != own).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        rest = after;
        if own == Some(Script::Unspaced) {
            pairs(run, &mut found);
        } else {
            parts(run, |part| found(lowered(part, &mut lower)));
        }
    }
}

/// Returns the stem of a lower-case word: Porter2 for English words, others unchanged.
pub(crate) fn stem(word: &str) -> Cow<'_, str> {
    static ENGLISH: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::new(Algorithm::English));
    // Porter2 gives it the stem of `conversion`; both words are frequent in descriptions of tools.
    if word == "conversation" || word == "conversations" {
        return Cow::Borrowed("conversation");
    }
    if word.len() > 2 && word.bytes().all(|b| b.is_ascii_lowercase()) {
        ENGLISH.stem(word)
    } else {
        Cow::Borrowed(word)
    }
}

/// Joins two neighbouring words, so that `data base` matches `database`.
pub(crate) fn joined(first: &str, second: &str) -> String {
    let mut both = [first, second].concat();
    if both.len() > MAX_WORD
        && let Some((end, _)) = both.char_indices().nth(MAX_WORD)
    {
        both.truncate(end);
    }
    both
}

/// Whether a lower-case word says nothing about the topic of a text.
pub(crate) fn is_stop_word(word: &str) -> bool {
    static WORDS: LazyLock<HashSet<&str, WordHasher>> = LazyLock::new(|| {
        let lines = include_str!("stop_words.txt").lines().filter(|line| !line.starts_with('#'));
        lines.flat_map(str::split_whitespace).collect()
    });
    WORDS.contains(word)
}

/// A fast hash of short words, FNV-1a. It does not withstand chosen words: for tables that are fixed or small.
pub(crate) type WordHasher = BuildHasherDefault<Fnv>;

pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Script {
    Spaced,
    Unspaced,
}

fn script(c: char) -> Option<Script> {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric().then_some(Script::Spaced);
    }
    match c {
        // Thai and Lao; Burmese; Hangul; Khmer; kana and Han.
        '\u{e00}'..='\u{eff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1100}'..='\u{11ff}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3040}'..='\u{30fa}'
        | '\u{30fc}'..='\u{318f}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}'
        | '\u{ff66}'..='\u{ff9f}'
        | '\u{20000}'..='\u{3ffff}' => Some(Script::Unspaced),
        // Combining accents, and the signs of the Indic scripts that are not letters by themselves.
        '\u{300}'..='\u{36f}' | '\u{900}'..='\u{963}' | '\u{966}'..='\u{dff}' => Some(Script::Spaced),
        _ => c.is_alphanumeric().then_some(Script::Spaced),
    }
}

fn pairs(run: &str, found: &mut impl FnMut(&str)) {
    let starts = || run.char_indices().map(|(at, _)| at);
    let ends = starts().skip(2).chain([run.len()]);
    for (start, end) in starts().zip(ends) {
        found(&run[start..end]);
    }
}

/// Calls `found` with every part of a run.
fn parts(run: &str, mut found: impl FnMut(&str)) {
    let mut start = 0;
    let mut chars = run.char_indices().peekable();
    let mut before = None;
    while let Some((at, c)) = chars.next() {
        let own = Shape::of(c);
        let cut = match before {
            None => false,
            Some(before) if (before == Shape::Digit) != (own == Shape::Digit) => true,
            Some(Shape::Small) => own == Shape::Capital,
            Some(_) => {
                let next = chars.peek().map(|(_, c)| Shape::of(*c));
                own == Shape::Capital && next == Some(Shape::Small) && !is_plural(&run[at + c.len_utf8()..])
            }
        };
        if cut {
            found(&run[start..at]);
            start = at;
        }
        before = Some(own);
    }
    found(&run[start..]);
}

/// Whether the rest after an acronym is only its plural ending.
fn is_plural(rest: &str) -> bool {
    rest.strip_prefix('s').is_some_and(|rest| rest.chars().next().map(Shape::of) != Some(Shape::Small))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Digit,
    Capital,
    Small,
}

impl Shape {
    fn of(c: char) -> Self {
        if c.is_numeric() {
            Self::Digit
        } else if c.is_uppercase() {
            Self::Capital
        } else {
            Self::Small
        }
    }
}

fn lowered<'a>(word: &str, into: &'a mut String) -> &'a str {
    into.clear();
    if word.is_ascii() {
        into.push_str(&word[..word.len().min(MAX_WORD)]);
        into.make_ascii_lowercase();
        return into;
    }
    into.extend(word.chars().take(MAX_WORD).flat_map(char::to_lowercase));
    into
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        each_word(text, |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn identifiers_and_prose_are_tokenised_alike() {
        for (text, expect) in [
            ("", ""),
            ("-- __ ,", ""),
            ("read_file", "read file"),
            ("get-user.by.ID", "get user by id"),
            ("readFileLines", "read file lines"),
            ("PascalCase", "pascal case"),
            ("HTTPServer", "http server"),
            ("parseJSON", "parse json"),
            ("URLs of APIs", "urls of apis"),
            ("URLShortener", "url shortener"),
            ("base64 s3 k8s", "base 64 s 3 k 8 s"),
            ("sha256Of4Files", "sha 256 of 4 files"),
            ("GitHub's don't", "git hub s don t"),
            ("2026-11-20", "2026 11 20"),
            ("Über-Straße ÉCOLE", "über straße école"),
            ("İstanbul", "i\u{307}stanbul"),
            ("Привет, МИР", "привет мир"),
            ("हिन्दी भाषा", "हिन्दी भाषा"),
            ("天気予報", "天気 気予 予報"),
            ("図", "図"),
            ("PDFを開く", "pdf を開 開く"),
            ("날씨 API", "날씨 api"),
            ("😀 ok", "ok"),
        ] {
            assert_eq!(words(text).join(" "), expect, "{text}");
        }
    }

    #[test]
    fn stems_are_english_and_leave_the_rest() {
        for (word, expect) in [
            ("files", "file"),
            ("calculating", "calcul"),
            ("calculator", "calcul"),
            ("weather", "weather"),
            ("is", "is"),
            ("conversion", "convers"),
            ("conversations", "conversation"),
            ("école", "école"),
            ("64", "64"),
        ] {
            assert_eq!(stem(word), expect, "{word}");
        }
    }

    #[test]
    fn long_words_and_texts_are_cut() {
        assert_eq!(words(&"x".repeat(1000)), ["x".repeat(MAX_WORD)]);
        assert_eq!(words(&"é ".repeat(MAX_TEXT)).len(), MAX_TEXT / 3);
    }

    #[test]
    fn stop_words_match_nothing() {
        assert!(is_stop_word("the") && is_stop_word("please") && !is_stop_word("file") && !is_stop_word("#"));
    }
}
