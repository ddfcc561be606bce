//! Scans text that arrives in chunks: characters, markers, and the end of JSON and the like.

/// Where a [`Scan`] stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanStop {
    /// At the end of the text; the value continues.
    More,
    /// The value ends before this place.
    End(usize),
    /// At a byte outside of texts that may begin a marker.
    Watched(usize),
}

/// Follows the brackets and texts of one value that begins with a bracket.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    at: usize,
    depth: usize,
    quote: Option<u8>,
    /// Quotation marks.
    quotes: &'static [u8],
    /// Bytes that are reported outside of texts.
    watched: [Option<u8>; 2],
}

impl Scan {
    /// A scan of JSON from `at`; the first bytes of `watched` markers are reported.
    pub(crate) fn json(at: usize, watched: [Option<&str>; 2]) -> Self {
        let first = |marker: Option<&str>| marker.and_then(|marker| marker.bytes().next());
        Self { at, depth: 0, quote: None, quotes: b"\"", watched: watched.map(first) }
    }

    /// A scan of Python from `at`.
    pub(crate) fn python(at: usize) -> Self {
        Self { at, depth: 0, quote: None, quotes: b"\"'", watched: [None, None] }
    }

    /// A scan of code, which reports comments.
    pub(crate) fn code() -> Self {
        Self { watched: [Some(b'#'), None], ..Self::python(0) }
    }

    /// Whether a bracket or a text is open.
    pub(crate) fn is_open(&self) -> bool {
        self.depth > 0 || self.quote.is_some()
    }

    /// Its position.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Skips a watched byte.
    pub(crate) fn skip(&mut self) {
        self.at += 1;
    }

    /// Continues to the end of the value.
    pub(crate) fn run(&mut self, text: &str) -> ScanStop {
        let bytes = text.as_bytes();
        while self.at < bytes.len() {
            if let Some(quote) = self.quote {
                let Some(next) = memchr::memchr2(quote, b'\\', &bytes[self.at..]) else {
                    self.at = bytes.len();
                    break;
                };
                let next = self.at + next;
                if bytes[next] == b'\\' {
                    if next + 1 >= bytes.len() {
                        self.at = next;
                        return ScanStop::More;
                    }
                    self.at = next + 2;
                } else {
                    self.quote = None;
                    self.at = next + 1;
                }
                continue;
            }
            let byte = bytes[self.at];
            match byte {
                b'{' | b'[' | b'(' => self.depth += 1,
                b'}' | b']' | b')' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.at += 1;
                        return ScanStop::End(self.at);
                    }
                }
                _ if self.quotes.contains(&byte) => self.quote = Some(byte),
                _ if self.watched.contains(&Some(byte)) => return ScanStop::Watched(self.at),
                _ => {}
            }
            self.at += 1;
        }
        ScanStop::More
    }
}

/// Whether `text` begins with `marker`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrefixMatch {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// It is too short to decide.
    Perhaps,
}

/// Whether `text` begins with `marker`.
pub(crate) fn begins(text: &str, marker: &str) -> PrefixMatch {
    if text.starts_with(marker) {
        PrefixMatch::Yes
    } else if marker.starts_with(text) {
        PrefixMatch::Perhaps
    } else {
        PrefixMatch::No
    }
}

/// The length of the white space that `text` begins with.
pub(crate) fn whitespace_len(text: &str) -> usize {
    text.len() - text.trim_ascii_start().len()
}

/// Decodes UTF-8, with U+FFFD for invalid bytes.
#[derive(Debug, Default)]
pub(crate) struct Utf8 {
    /// The beginning of a character.
    cut: Vec<u8>,
}

impl Utf8 {
    /// Adds the characters that `bytes` completes to `out`.
    pub(crate) fn feed(&mut self, bytes: &[u8], out: &mut String) {
        if self.cut.is_empty() {
            return self.decode(bytes, out);
        }
        let mut whole = std::mem::take(&mut self.cut);
        whole.extend_from_slice(bytes);
        self.decode(&whole, out);
    }

    /// Adds the part cut at the end.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if !std::mem::take(&mut self.cut).is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn decode(&mut self, mut bytes: &[u8], out: &mut String) {
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(text) => return out.push_str(text),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            out.push_str(std::str::from_utf8(valid).unwrap_or_default());
            match error.error_len() {
                Some(len) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    bytes = &rest[len..];
                }
                None => {
                    self.cut.extend_from_slice(rest);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_at_its_closing_bracket() {
        let check = |text: &str, expect| {
            let mut whole = Scan::json(0, [Some("</x>"), None]);
            assert_eq!(whole.run(text), expect, "{text}");
            let mut cut = Scan::json(0, [Some("</x>"), None]);
            let mut last = ScanStop::More;
            for (at, _) in text.char_indices().skip(1) {
                last = cut.run(&text[..at]);
                if last != ScanStop::More {
                    break;
                }
            }
            if last == ScanStop::More {
                last = cut.run(text);
            }
            assert_eq!(last, expect, "{text}, byte by byte");
        };
        check(r#"{"a": [1, "}\"]</x>"]} rest"#, ScanStop::End(22));
        check(r#"{"a": {"b": 1} </x>"#, ScanStop::Watched(15));
        check(r#"{"a": "it's"}"#, ScanStop::End(13));
        check(r#"{"a": "\\"}"#, ScanStop::End(11));
        check(r#"{"a": "open"#, ScanStop::More);
    }

    #[test]
    fn any_cut_decodes_like_the_whole() {
        for bytes in
            [&b"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z"[..], b"\xff\xc3(\xe2\x82x\xf0\x9f\x98", b"\xed\xa0\x80"]
        {
            for size in 1..=bytes.len() {
                let (mut utf8, mut out) = (Utf8::default(), String::new());
                bytes.chunks(size).for_each(|chunk| utf8.feed(chunk, &mut out));
                utf8.finish(&mut out);
                assert_eq!(out, String::from_utf8_lossy(bytes), "{bytes:?} by {size}");
            }
        }
    }
}
