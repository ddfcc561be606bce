//! What may be said of any decoded answer.

use std::collections::HashSet;

use toolwright_core::model::ModelResponse;

/// Asserts that an answer of `bytes` on the wire is not larger than what it says there, with room for what is
/// kept twice, and that each call has an id of its own.
///
/// # Panics
/// If it is not so.
pub fn assert_bounded(answer: &ModelResponse, bytes: usize) {
    let opaque: usize = answer.opaque.iter().map(|data| data.data.to_string().len()).sum();
    let calls: usize = answer.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
    let others: usize = answer.other_calls.iter().map(|call| call.input.to_string().len()).sum();
    let size = answer.text.len() + answer.reasoning.len() + opaque + calls + others;
    assert!(size <= 16 * bytes + 1024, "{bytes} bytes become {size}");
    let ids: HashSet<_> = answer.calls.iter().map(|call| &call.id).collect();
    assert!(ids.len() == answer.calls.len() && !ids.iter().any(|id| id.is_empty()), "{:?}", answer.calls);
}
