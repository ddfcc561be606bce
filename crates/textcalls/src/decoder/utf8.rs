//! Text out of bytes that are cut anywhere.

/// Decodes UTF-8, with U+FFFD for what is none.
#[derive(Debug, Default)]
pub(super) struct Utf8 {
    /// The beginning of a character.
    cut: Vec<u8>,
}

impl Utf8 {
    /// Adds the characters that `bytes` completes to `out`.
    pub(super) fn feed(&mut self, bytes: &[u8], out: &mut String) {
        if self.cut.is_empty() {
            return self.decode(bytes, out);
        }
        let mut whole = std::mem::take(&mut self.cut);
        whole.extend_from_slice(bytes);
        self.decode(&whole, out);
    }

    /// Adds what was cut at the end.
    pub(super) fn finish(&mut self, out: &mut String) {
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
    fn any_cut_gives_what_a_lossy_reading_of_the_whole_gives() {
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
