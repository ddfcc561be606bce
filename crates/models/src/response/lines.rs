//! Lines out of bytes that arrive cut anywhere. Ends are LF, CR or CR LF, as event streams allow;
//! JSON text holds none of them unescaped, so NDJSON is read by the same rule.

use toolwright_core::model::{ModelError, ModelErrorKind};

/// The longest line, and the longest event, in bytes.
pub(super) const MAX_LINE: usize = 16 << 20;

/// An incremental line splitter that holds at most [`MAX_LINE`] bytes.
#[derive(Debug, Default)]
pub(super) struct Lines {
    held: Vec<u8>,
    after_cr: bool,
}

impl Lines {
    /// Takes some bytes and hands each line that is now complete, without its end, to `each`.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        each: &mut impl FnMut(&[u8]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        if std::mem::take(&mut self.after_cr) {
            if bytes.is_empty() {
                self.after_cr = true;
                return Ok(());
            }
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr::memchr2(b'\r', b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if bytes[end] == b'\r' {
                self.after_cr = rest.is_empty();
                bytes = rest.strip_prefix(b"\n").unwrap_or(rest);
            } else {
                bytes = rest;
            }
            if self.held.is_empty() {
                each(line)?;
            } else {
                self.hold(line)?;
                let taken = each(&self.held);
                self.held.clear();
                taken?;
            }
        }
        self.hold(bytes)
    }

    /// Hands over a last line that has no end, and says whether there was one.
    pub(super) fn finish(
        &mut self,
        each: &mut impl FnMut(&[u8]) -> Result<(), ModelError>,
    ) -> Result<bool, ModelError> {
        let rest = std::mem::take(&mut self.held);
        if rest.is_empty() {
            return Ok(false);
        }
        each(&rest)?;
        Ok(true)
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        if self.held.len() + bytes.len() > MAX_LINE {
            return Err(too_long());
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }
}

/// The error for a line or event past its bound.
pub(super) fn too_long() -> ModelError {
    ModelError::new(
        ModelErrorKind::BadResponse,
        format!("the stream holds an event of more than {} MiB", MAX_LINE >> 20),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, chunk: usize) -> Vec<String> {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        let mut each = |line: &[u8]| {
            out.push(String::from_utf8_lossy(line).into_owned());
            Ok(())
        };
        for piece in text.as_bytes().chunks(chunk) {
            lines.feed(piece, &mut each).expect("lines");
        }
        lines.finish(&mut each).expect("last line");
        out
    }

    #[test]
    fn every_line_end_at_every_chunking() {
        for chunk in 1..12 {
            assert_eq!(split("a\nbc\r\n\r\nd\re\n\nlast", chunk), ["a", "bc", "", "d", "e", "", "last"], "{chunk}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused_at_the_bound() {
        let mut lines = Lines::default();
        let block = vec![b'x'; 1 << 20];
        let refused = (0..20).find_map(|_| lines.feed(&block, &mut |_| Ok(())).err()).expect("bounded");
        assert_eq!(refused.kind, ModelErrorKind::BadResponse);
        assert!(lines.held.len() <= MAX_LINE);
    }
}
