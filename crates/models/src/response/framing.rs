//! Events out of bytes, however they are framed.

mod json;
mod lines;
mod mend;
mod sse;

use toolwright_core::model::ModelError;

use json::JsonValues;
pub(crate) use mend::is_cut;
use sse::Sse;

/// The mark that ends the streams of some APIs.
pub(crate) const DONE: &[u8] = b"[DONE]";
/// What some writers put before any text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Takes the data of one event.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), ModelError>;

/// How the events of an answer are told apart.
#[derive(Debug)]
pub(crate) enum Framing {
    /// Not known before the first byte.
    Unknown,
    /// Server-sent events.
    Events(Sse),
    /// JSON values: one a line, in a list, or one alone.
    Json(JsonValues),
}

impl Framing {
    /// Server-sent events.
    pub(crate) fn events() -> Self {
        Self::Events(Sse::default())
    }

    /// JSON values.
    pub(crate) fn json() -> Self {
        Self::Json(JsonValues::default())
    }

    /// Whichever of the two the first byte says.
    pub(crate) fn detect() -> Self {
        Self::Unknown
    }

    /// Takes some bytes and hands the data of each event that is now complete to `each`.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], each: Each<'_>) -> Result<(), ModelError> {
        if let Self::Unknown = self {
            // No event begins with a byte of the mark, which may come in pieces.
            let blank = |byte: &u8| byte.is_ascii_whitespace() || BYTE_ORDER_MARK.contains(byte);
            bytes = &bytes[bytes.iter().take_while(|byte| blank(byte)).count()..];
            match bytes.first() {
                None => return Ok(()),
                Some(b'{' | b'[') => *self = Self::json(),
                Some(_) => *self = Self::events(),
            }
        }
        match self {
            Self::Unknown => Ok(()),
            Self::Events(sse) => sse.feed(bytes, each),
            Self::Json(values) => values.feed(bytes, each),
        }
    }

    /// Hands over a last event that has no end.
    pub(crate) fn finish(&mut self, each: Each<'_>) -> Result<(), ModelError> {
        match self {
            Self::Unknown => Ok(()),
            Self::Events(sse) => sse.finish(each),
            Self::Json(values) => values.finish(each),
        }
    }
}
