//! Events whose last brackets were lost, as some relays send them.

use serde_json::error::Category;
use toolwright_core::model::ModelError;

use super::Each;

/// The deepest nesting that is closed.
const MAX_DEPTH: usize = 128;

/// Hands `data` to `each`, and once more with its brackets closed if nothing but these was missing.
pub(super) fn or_mended(data: &[u8], each: Each<'_>) -> Result<(), ModelError> {
    match each(data) {
        Err(error) if is_cut(&error) => match closed(data) {
            // What stays broken is what it was: cut.
            Some(whole) => each(&whole).map_err(|mended| if mended.source.is_some() { error } else { mended }),
            None => Err(error),
        },
        taken => taken,
    }
}

/// Whether an event failed because it ends too early.
pub(crate) fn is_cut(error: &ModelError) -> bool {
    let source = error.source.as_deref().and_then(|source| source.downcast_ref::<serde_json::Error>());
    source.is_some_and(|source| source.classify() == Category::Eof)
}

/// `data` with the brackets closed that it leaves open; `None` when it ends within a text.
fn closed(data: &[u8]) -> Option<Vec<u8>> {
    let mut open = Vec::new();
    let mut nesting = Nesting::default();
    for &byte in data {
        match nesting.step(byte) {
            Step::Open => open.push(if byte == b'{' { b'}' } else { b']' }),
            Step::Close => drop(open.pop()),
            Step::None => {}
        }
        if open.len() > MAX_DEPTH {
            return None;
        }
    }
    (!nesting.in_text).then(|| data.iter().copied().chain(open.into_iter().rev()).collect())
}

/// What a byte does to the nesting of JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Opens a bracket.
    Open,
    /// Closes one.
    Close,
    /// Neither.
    None,
}

/// Follows JSON byte by byte, as far as its brackets go.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    in_text: bool,
    escaped: bool,
}

impl Nesting {
    /// The next byte.
    pub(super) fn step(&mut self, byte: u8) -> Step {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return Step::None;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => return Step::Open,
            b'}' | b']' => return Step::Close,
            _ => {}
        }
        Step::None
    }
}
