//! Finds `old_string` in a file and replaces it. Pure, and on bytes: the rest of the file is unchanged, with its
//! encoding, byte order mark and line ends.
//!
//! The text is first searched exactly, then with ever looser equivalences. The first grade with a match is used, and
//! every difference between the two texts is reported. Nothing is matched by similarity.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use memchr::memmem;
use similar::{Algorithm, DiffTag, capture_diff_slices};

/// Tab widths that are tried, the usual ones first.
const TAB_WIDTHS: [usize; 4] = [4, 2, 8, 3];
/// The most lines that are named if there are several matches.
const MAX_NAMED: usize = 20;
/// The least non-space characters of a replacement that can be recognised as already applied.
const MIN_APPLIED: usize = 8;
const BOM: &[u8] = "\u{feff}".as_bytes();

/// A difference between the matched and the wanted text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Difference {
    LineEnds,
    FinalNewline,
    TrailingSpace,
    Tabs,
    Unicode,
}

impl Difference {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::LineEnds => "line_ends",
            Self::FinalNewline => "final_newline",
            Self::TrailingSpace => "trailing_space",
            Self::Tabs => "tabs",
            Self::Unicode => "unicode",
        }
    }
}

/// The text to replace, and its replacement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replacement<'a> {
    pub(super) old: &'a str,
    pub(super) new: &'a str,
    pub(super) all: bool,
}

/// A file after a replacement.
#[derive(Debug)]
pub(super) struct EditedFile {
    pub(super) bytes: Vec<u8>,
    /// Lines of the new content at which replacements begin.
    pub(super) at_lines: Vec<u64>,
    /// The differences of the matched text; empty for an exact match.
    pub(super) differences: BTreeSet<Difference>,
}

impl EditedFile {
    /// Returns the grade of the match, as results report it.
    pub(super) fn matched_with(&self) -> Vec<&'static str> {
        match self.differences.is_empty() {
            true => vec!["exact"],
            false => self.differences.iter().map(|difference| difference.as_str()).collect(),
        }
    }
}

/// The reason why nothing is replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MatchError {
    /// Both texts are the same.
    Same,
    /// The file is not UTF-8, and the new text is not ASCII.
    Encoding,
    /// The old text occurs `count` times, at these lines (at most [`MAX_NAMED`]).
    Several { lines: Vec<u64>, count: usize, differences: BTreeSet<Difference> },
    /// The old text is missing, and the new one is present, at this line.
    Applied { line: u64 },
    /// The old text is missing.
    Nothing,
}

/// Replaces text in a file.
///
/// # Errors
/// [`MatchError`]; the file is unchanged.
pub(super) fn replace(bytes: &[u8], wanted: Replacement<'_>) -> Result<EditedFile, MatchError> {
    let Replacement { old, new, all } = wanted;
    if old == new {
        return Err(MatchError::Same);
    }
    let text = std::str::from_utf8(bytes).ok();
    if text.is_none() && !new.is_ascii() {
        return Err(MatchError::Encoding);
    }
    let Some(found) = find(bytes, old, text.is_some(), all) else {
        let applied = new.chars().filter(|c| !c.is_whitespace()).count() >= MIN_APPLIED;
        return Err(match applied.then(|| find(bytes, new, text.is_some(), true)).flatten() {
            Some(found) => MatchError::Applied { line: line_at(bytes, found.places[0].start) },
            None => MatchError::Nothing,
        });
    };
    let differences = |place: &Range<usize>| differences(old, &bytes[place.clone()]);
    if found.places.len() > 1 && !all {
        return Err(MatchError::Several {
            lines: found.places.iter().take(MAX_NAMED).map(|place| line_at(bytes, place.start)).collect(),
            count: found.places.len(),
            differences: found.places.iter().flat_map(differences).collect(),
        });
    }
    let crlf = ends_lines_with_crlf(bytes);
    let mut edited =
        EditedFile { bytes: Vec::with_capacity(bytes.len()), at_lines: Vec::new(), differences: BTreeSet::new() };
    let (mut line, mut done) = (1, 0);
    for place in found.places {
        edited.bytes.extend_from_slice(&bytes[done..place.start]);
        line += line_ends(&bytes[done..place.start]);
        edited.at_lines.push(line);
        let matched = &bytes[place.clone()];
        let put = put_in_place(matched, old, new, crlf, found.tab_width);
        line += line_ends(&put);
        edited.bytes.extend_from_slice(&put);
        edited.differences.extend(self::differences(old, matched));
        done = place.end;
    }
    edited.bytes.extend_from_slice(&bytes[done..]);
    // A change of line ends that the file keeps is no change.
    if edited.bytes == bytes { Err(MatchError::Same) } else { Ok(edited) }
}

/// Places of a text, and the tab width, if that was needed.
struct TextMatches {
    places: Vec<Range<usize>>,
    tab_width: Option<usize>,
}

/// Returns the starts of `wanted` in `text`. Places that are all replaced do not overlap. Otherwise overlapping ones
/// count too, because any of them may be meant.
fn starts(text: &[u8], wanted: &[u8], all: bool) -> Vec<usize> {
    let finder = memmem::Finder::new(wanted);
    let mut starts: Vec<usize> = finder.find_iter(text).collect();
    if let &[first] = starts.as_slice()
        && !all
    {
        let end = (first + 2 * wanted.len()).min(text.len());
        let mut from = first + 1;
        while starts.len() < MAX_NAMED
            && let Some(next) = text.get(from..end).and_then(|rest| finder.find(rest))
        {
            starts.push(from + next);
            from += next + 1;
        }
    }
    starts
}

fn find(bytes: &[u8], old: &str, is_text: bool, all: bool) -> Option<TextMatches> {
    let exact: Vec<_> = starts(bytes, old.as_bytes(), all).into_iter().map(|start| start..start + old.len()).collect();
    if !exact.is_empty() {
        return Some(TextMatches { places: exact, tab_width: None });
    }
    let none = FoldOptions { trailing_space: false, tab_width: None, unicode: false };
    let trailing = FoldOptions { trailing_space: true, ..none };
    let tabs = TAB_WIDTHS.map(|width| FoldOptions { tab_width: Some(width), ..trailing });
    let unicode = FoldOptions { unicode: true, ..trailing };
    let loosest = TAB_WIDTHS.map(|width| FoldOptions { tab_width: Some(width), ..unicode });
    let grades = [none, trailing].into_iter().chain(tabs).chain([unicode]).chain(loosest);
    let has_tabs = [bytes, old.as_bytes()].iter().any(|text| text.contains(&b'\t'));
    // A file that is not text has no characters to fold.
    let folds_unicode = is_text && !(bytes.is_ascii() && old.is_ascii());
    let is_of_use = |fold: &FoldOptions| (has_tabs || fold.tab_width.is_none()) && (folds_unicode || !fold.unicode);
    grades.filter(is_of_use).find_map(|fold| {
        let places = fold.find(bytes, old, all);
        (!places.is_empty()).then_some(TextMatches { places, tab_width: fold.tab_width })
    })
}

/// The ignored differences, in addition to line ends.
#[derive(Debug, Clone, Copy)]
struct FoldOptions {
    trailing_space: bool,
    /// Tabs at the beginning of lines equal this many spaces.
    tab_width: Option<usize>,
    /// Typographic quotes, dashes and spaces equal those of ASCII.
    unicode: bool,
}

/// Folded text, with the position of each byte in the original.
struct FoldedText {
    text: Vec<u8>,
    /// The start of each byte in the original; `usize::MAX` inside a replacement of one original.
    starts: Vec<usize>,
    end: usize,
}

impl FoldOptions {
    fn find(self, bytes: &[u8], old: &str, all: bool) -> Vec<Range<usize>> {
        let file = self.fold(bytes);
        let wanted = self.fold(old.as_bytes());
        // Space at the end of the last line counts as trailing only if the file's line ends there too.
        let to_line_end = self.trailing_space && old.ends_with([' ', '\t', '\r']);
        if wanted.text.is_empty() {
            return Vec::new();
        }
        let place = |start: usize, end: usize| {
            let begin = *file.starts.get(start).filter(|&&begin| begin != usize::MAX)?;
            let at_line_end = matches!(file.text.get(end), None | Some(b'\n'));
            let finish = match file.starts.get(end) {
                // Text folded away at the end belongs to the match only if the caller wrote such text.
                Some(&finish) if finish != usize::MAX && to_line_end && at_line_end => finish,
                None if to_line_end => file.end,
                Some(&usize::MAX) => return None,
                _ => file.after(end - 1, bytes),
            };
            (!to_line_end || at_line_end).then_some(begin..finish)
        };
        let mut places: Vec<Range<usize>> = Vec::new();
        for start in starts(&file.text, &wanted.text, all) {
            places.extend(place(start, start + wanted.text.len()));
        }
        if places.is_empty()
            && let Some(head) = wanted.text.strip_suffix(b"\n")
            && !head.is_empty()
            && file.text.ends_with(head)
        {
            // The last line of the file has no end.
            places.extend(place(file.text.len() - head.len(), file.text.len()));
        }
        places
    }

    fn fold(self, bytes: &[u8]) -> FoldedText {
        let mut folded = FoldedText { text: Vec::with_capacity(bytes.len()), starts: Vec::new(), end: bytes.len() };
        let mut at = 0;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.fold_line(line, at, &mut folded);
            at += line.len();
        }
        folded
    }

    fn fold_line(self, line: &[u8], at: usize, folded: &mut FoldedText) {
        let (content, ended) = match line {
            [content @ .., b'\r', b'\n'] | [content @ .., b'\n'] => (content, true),
            content => (content, false),
        };
        let kept = if self.trailing_space { content.trim_ascii_end() } else { content };
        let indent = kept.iter().take_while(|&&byte| matches!(byte, b' ' | b'\t')).count();
        let mut column = 0;
        for (place, &byte) in kept[..indent].iter().enumerate() {
            match self.tab_width {
                Some(width) if byte == b'\t' => {
                    for first in 0..width - column % width {
                        folded.push(b' ', if first == 0 { at + place } else { usize::MAX });
                    }
                    column += width - column % width;
                }
                _ => {
                    folded.push(byte, at + place);
                    column += 1;
                }
            }
        }
        self.fold_text(&kept[indent..], at + indent, folded);
        if ended {
            folded.push(b'\n', at + kept.len());
        }
    }

    fn fold_text(self, text: &[u8], at: usize, folded: &mut FoldedText) {
        match std::str::from_utf8(text) {
            Ok(characters) if self.unicode => {
                for (place, character) in characters.char_indices() {
                    let mut buffer = [0; 4];
                    let plain = plain(character).encode_utf8(&mut buffer);
                    for (offset, byte) in plain.bytes().enumerate() {
                        folded.push(byte, if offset == 0 { at + place } else { usize::MAX });
                    }
                }
            }
            _ => text.iter().enumerate().for_each(|(place, &byte)| folded.push(byte, at + place)),
        }
    }
}

impl FoldedText {
    fn push(&mut self, byte: u8, start: usize) {
        self.text.push(byte);
        self.starts.push(start);
    }

    /// Returns the end, in the original, of what the byte at `last` represents.
    fn after(&self, last: usize, bytes: &[u8]) -> usize {
        let begin = self.starts[..=last].iter().rev().copied().find(|&start| start != usize::MAX).unwrap_or_default();
        if self.text[last] == b'\n' {
            // The line end may have two bytes, and follow folded space.
            return memchr::memchr(b'\n', &bytes[begin..]).map_or(self.end, |end| begin + end + 1);
        }
        let width = bytes[begin..].iter().skip(1).take_while(|&&byte| byte & 0xC0 == 0x80).count();
        match std::str::from_utf8(&bytes[begin..(begin + 1 + width).min(bytes.len())]) {
            Ok(_) => begin + 1 + width,
            Err(_) => begin + 1,
        }
    }
}

/// Returns the plain character that a person would type instead.
fn plain(character: char) -> char {
    match character {
        '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}' | '\u{2032}' => '\'',
        '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{201f}' | '\u{2033}' => '"',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}

/// Returns the differences between the matched and the wanted text, line by line.
fn differences(old: &str, matched: &[u8]) -> BTreeSet<Difference> {
    let mut all = BTreeSet::new();
    if old.as_bytes() == matched {
        return all;
    }
    if old.ends_with('\n') && !matched.ends_with(b"\n") {
        all.insert(Difference::FinalNewline);
    }
    for (old, found) in old.as_bytes().split(|&b| b == b'\n').zip(matched.split(|&b| b == b'\n')) {
        let ([old, found], [old_cr, found_cr]) =
            ([old, found].map(without_cr), [old, found].map(|l| l.ends_with(b"\r")));
        if old_cr != found_cr {
            all.insert(Difference::LineEnds);
        }
        let [old_kept, found_kept] = [old, found].map(<[u8]>::trim_ascii_end);
        if old[old_kept.len()..] != found[found_kept.len()..] {
            all.insert(Difference::TrailingSpace);
        }
        let [old_indent, found_indent] = [old_kept, found_kept].map(indent_of);
        if old_indent != found_indent {
            all.insert(Difference::Tabs);
        }
        if old_kept[old_indent.len()..] != found_kept[found_indent.len()..] {
            all.insert(Difference::Unicode);
        }
    }
    all
}

/// Adapts the new text to this file: lines that the edit does not change stay byte for byte, new ones get the file's
/// line ends and indentation.
fn put_in_place(matched: &[u8], old: &str, new: &str, crlf: bool, tab_width: Option<usize>) -> Vec<u8> {
    if old.as_bytes() == matched && (old.contains('\r') || !(crlf && new.contains('\n'))) {
        return keeping_bom(matched, Cow::Borrowed(new.as_bytes())).into_owned();
    }
    let new =
        if matched.ends_with(b"\n") || !old.ends_with('\n') { new } else { new.strip_suffix('\n').unwrap_or(new) };
    let old = if matched.ends_with(b"\n") { old } else { old.strip_suffix('\n').unwrap_or(old) };
    let lines = |text| -> Vec<&[u8]> { <[u8]>::split(text, |&byte| byte == b'\n').map(without_cr).collect() };
    let (old_lines, new_lines) = (lines(old.as_bytes()), lines(new.as_bytes()));
    let found: Vec<&[u8]> = matched.split(|&byte| byte == b'\n').collect();
    let line_end: &[u8] = if crlf { b"\r\n" } else { b"\n" };
    let to_tabs = found.iter().any(|line| indent_of(line).contains(&b'\t'));
    let last = new_lines.len() - 1;
    let mut out = Vec::with_capacity(new.len());
    let mut push = |place: usize, line: &[u8], own_end: Option<&[u8]>| {
        out.extend_from_slice(line);
        if place < last {
            out.extend_from_slice(own_end.unwrap_or(line_end));
        }
    };
    for op in capture_diff_slices(Algorithm::Myers, &old_lines, &new_lines) {
        let (from, to) = (op.old_range(), op.new_range());
        for (offset, place) in to.clone().enumerate() {
            let at = from.start + offset;
            match (op.tag(), found.get(at)) {
                (DiffTag::Equal, Some(&line)) => {
                    let end: &[u8] = if line.ends_with(b"\r") { b"\r\n" } else { b"\n" };
                    push(place, without_cr(line), (at + 1 < found.len()).then_some(end));
                }
                (DiffTag::Replace, Some(&line)) if from.len() == to.len() => {
                    let kept = keep_ends(without_cr(line), old_lines[at], new_lines[place]);
                    push(place, &indented(&kept, to_tabs, tab_width), None);
                }
                _ => push(place, &indented(new_lines[place], to_tabs, tab_width), None),
            }
        }
    }
    keeping_bom(matched, Cow::Owned(out)).into_owned()
}

/// Returns `new` with the parts at both ends that it shares with `old` as the file's line has them.
fn keep_ends<'a>(line: &[u8], old: &[u8], new: &'a [u8]) -> Cow<'a, [u8]> {
    let (Ok(line), Ok(old_text), Ok(new_text)) =
        (std::str::from_utf8(line), std::str::from_utf8(old), std::str::from_utf8(new))
    else {
        return Cow::Borrowed(new);
    };
    let [line, old_kept] = [line, old_text].map(str::trim_end);
    let is_same = |a: &str, b: &str| a.chars().map(plain).eq(b.chars().map(plain));
    // Only characters that map one to one can be kept; indentation that differs is converted.
    let (indent, new_indent) = (indent_of(old_kept.as_bytes()).len(), indent_of(new).len());
    let line_indent = indent_of(line.as_bytes()).len();
    let (line_text, old_text, new_text) = (&line[line_indent..], &old_kept[indent..], &new_text[new_indent..]);
    if line_text == old_text || !is_same(line_text, old_text) {
        return Cow::Borrowed(new);
    }
    let line: Vec<char> = line_text.chars().collect();
    let old: Vec<char> = old_text.chars().collect();
    let new_characters: Vec<char> = new_text.chars().collect();
    let head = old.iter().zip(&new_characters).take_while(|(a, b)| a == b).count();
    let room = old.len().min(new_characters.len()) - head;
    let tail = old.iter().rev().zip(new_characters.iter().rev()).take(room).take_while(|(a, b)| a == b).count();
    let mut kept: String = String::from_utf8_lossy(&new[..new_indent]).into_owned();
    kept.extend(&line[..head]);
    kept.extend(&new_characters[head..new_characters.len() - tail]);
    kept.extend(&line[line.len() - tail..]);
    Cow::Owned(kept.into_bytes())
}

/// Converts the line's indentation to that of a file with tabs of `tab_width`, if that was needed for the match.
fn indented(line: &[u8], to_tabs: bool, tab_width: Option<usize>) -> Cow<'_, [u8]> {
    let Some(width) = tab_width else { return Cow::Borrowed(line) };
    let indent = indent_of(line);
    let columns =
        indent.iter().fold(0, |column, &byte| if byte == b'\t' { column + width - column % width } else { column + 1 });
    let (tabs, spaces) = if to_tabs { (columns / width, columns % width) } else { (0, columns) };
    let mut out = vec![b'\t'; tabs];
    out.resize(tabs + spaces, b' ');
    out.extend_from_slice(&line[indent.len()..]);
    Cow::Owned(out)
}

/// Keeps a byte order mark that was matched.
fn keeping_bom<'a>(matched: &[u8], new: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
    if matched.starts_with(BOM) && !new.starts_with(BOM) { [BOM, &new].concat().into() } else { new }
}

fn indent_of(line: &[u8]) -> &[u8] {
    &line[..line.iter().take_while(|&&byte| matches!(byte, b' ' | b'\t')).count()]
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn line_at(bytes: &[u8], at: usize) -> u64 {
    1 + line_ends(&bytes[..at])
}

fn line_ends(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// Returns whether most lines of the file end with CR LF.
fn ends_lines_with_crlf(bytes: &[u8]) -> bool {
    let crlf = memmem::find_iter(bytes, b"\r\n").count() as u64;
    2 * crlf > line_ends(bytes)
}
