//! JSON-RPC batches: several messages at once, as an array.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::protocol::message::{RefusedMessage, RpcError, unreadable};

/// Messages that one batch may hold.
pub const MAX_BATCH: usize = 64;

/// Whether this is, or starts like, a batch of messages; [`batch`] reads it.
#[must_use]
pub fn is_batch(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"[")
}

/// Splits a batch (JSON-RPC 2.0, "Batch") of at most [`MAX_BATCH`] messages, each still to be
/// [parsed](crate::protocol::message::parse). Only a peer of [`BATCHING`](crate::protocol::revision::BATCHING) may send
/// one.
///
/// # Errors
/// [`RefusedMessage`]: it is not JSON, empty, or over the bound.
pub fn batch(bytes: &[u8]) -> Result<Vec<&RawValue>, RefusedMessage> {
    let mut messages = Vec::new();
    let taken = each_of_batch(bytes, |message| {
        if messages.len() == MAX_BATCH {
            return Err(format!("a batch holds at most {MAX_BATCH} messages"));
        }
        messages.push(message);
        Ok(())
    });
    taken.map_err(|error| unreadable(&error))?;
    if messages.is_empty() {
        let error = RpcError::new(RpcError::INVALID_REQUEST, "a batch holds at least one message");
        return Err(RefusedMessage { id: None, error });
    }
    Ok(messages)
}

/// Passes on the messages of a batch as they are read, until one is refused.
///
/// # Errors
/// It is no array, or broken; the message after those already passed on is refused for this reason.
pub fn each_of_batch<'a>(
    bytes: &'a [u8],
    each: impl FnMut(&'a RawValue) -> Result<(), String>,
) -> Result<(), serde_json::Error> {
    struct BatchVisitor<F>(F);

    impl<'de, F: FnMut(&'de RawValue) -> Result<(), String>> Visitor<'de> for BatchVisitor<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a batch of messages")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut all: A) -> Result<(), A::Error> {
            while let Some(message) = all.next_element()? {
                (self.0)(message).map_err(A::Error::custom)?;
            }
            Ok(())
        }
    }

    let mut json = serde_json::Deserializer::from_slice(bytes);
    json.deserialize_seq(BatchVisitor(each))?;
    json.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_split_within_its_bound() {
        let check = |text: &str, expect: Result<&[&str], i64>| {
            let found = batch(text.as_bytes()).map_err(|refused| refused.error.code);
            let found = found.map(|all| all.into_iter().map(RawValue::get).collect::<Vec<_>>());
            assert_eq!(found, expect.map(<[&str]>::to_vec), "{text:.80}");
            assert!(is_batch(text.as_bytes()) || expect.is_err(), "{text:.80}");
        };
        check(r#" [{"id":1}, 5]"#, Ok(&[r#"{"id":1}"#, "5"]));
        check("[]", Err(RpcError::INVALID_REQUEST));
        check("[{}", Err(RpcError::PARSE));
        check("{}", Err(RpcError::INVALID_REQUEST));
        let of = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        check(&of(MAX_BATCH), Ok(&["1"; MAX_BATCH]));
        check(&of(MAX_BATCH + 1), Err(RpcError::INVALID_REQUEST));
    }
}
