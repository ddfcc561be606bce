//! The order inside an answer. A conversation holds an answer's text, its calls and its opaque data as
//! three lists; APIs want the data back at the place where it stood, so every item is kept with the
//! length of the text and the number of the calls before it.

use serde_json::{Value, json};

use crate::history::LegalCall;

/// `item` with its place: how much text and how many calls stood before it, and how much of the text that
/// follows is its own, in bytes.
pub(crate) fn placed(item: Value, text: usize, calls: usize, own: usize) -> Value {
    json!({"after": {"text": text, "calls": calls}, "own": own, "item": item})
}

/// One piece of an answer, in the order in which they stood.
pub(crate) enum Piece<'a> {
    /// Text, never empty.
    Text(&'a str),
    /// A call, and its number in the answer.
    Call(usize, &'a LegalCall<'a>),
    /// Opaque data.
    Item(&'a Value),
}

/// The pieces of an answer. A place that the conversation does not have any more is moved to the nearest
/// one that it has; data without a place comes first.
pub(crate) fn pieces<'a>(text: &'a str, calls: &'a [LegalCall<'a>], opaque: &[&'a Value]) -> Vec<Piece<'a>> {
    let mut out = Vec::with_capacity(calls.len() + opaque.len() + 1);
    let (mut said, mut called) = (0, 0);
    for data in opaque {
        let count =
            |key| data.pointer(key).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let until = text.floor_char_boundary(count("/after/text").min(text.len()));
        let calls_before = count("/after/calls").min(calls.len());
        advance(&mut out, text, &mut said, until);
        let next = calls.iter().enumerate().take(calls_before).skip(called);
        out.extend(next.map(|(number, call)| Piece::Call(number, call)));
        called = called.max(calls_before);
        match data.get("item") {
            Some(item) if data.get("after").is_some() => out.push(Piece::Item(item)),
            _ => out.push(Piece::Item(data)),
        }
        said = text.floor_char_boundary(said.saturating_add(count("/own")).min(text.len()));
    }
    advance(&mut out, text, &mut said, text.len());
    out.extend(calls.iter().enumerate().skip(called).map(|(number, call)| Piece::Call(number, call)));
    out
}

fn advance<'a>(out: &mut Vec<Piece<'a>>, text: &'a str, said: &mut usize, until: usize) {
    if *said < until {
        out.push(Piece::Text(&text[*said..until]));
        *said = until;
    }
}
