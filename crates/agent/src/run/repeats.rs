//! The loop guard: detects the same call with the same result repeated.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::json;
use toolwright_core::ContentBlock;
use toolwright_core::canonical::ContentHash;

use super::turn::TurnCall;

/// At this many repeats the model is warned.
const WARN_AT: u32 = 3;
/// At this many the run is stopped.
pub(super) const STOP_AT: u32 = 4;

/// How often each call with its result came since anything new did. A call or a result that was never
/// there before is progress and sets the counts back, so that tests may be run again after each edit,
/// while two calls that take turns without end are still found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Repeats(BTreeMap<ContentHash, u32>);

impl Repeats {
    /// Counts a turn whose calls are all answered, and adds the warning to results that earn it. A pair
    /// counts once a turn: the model has not seen the other results yet. Returns the wire name of a
    /// call that is to stop the run.
    pub(super) fn note_turn(&mut self, calls: &mut [TurnCall]) -> Option<String> {
        let pairs: Vec<ContentHash> = calls.iter().map(pair).collect();
        if pairs.iter().any(|pair| !self.0.contains_key(pair)) {
            self.0.values_mut().for_each(|count| *count = 0);
        }
        for pair in pairs.iter().collect::<BTreeSet<_>>() {
            *self.0.entry(*pair).or_default() += 1;
        }
        let mut looping = None;
        for (call, pair) in calls.iter_mut().zip(&pairs) {
            match self.0.get(pair).copied().unwrap_or_default() {
                WARN_AT => call.add_note(ContentBlock::text(format!(
                    "[toolwright notice] This call gave this very result {WARN_AT} times now. Once more and the run is stopped: do something else, or give your final answer."
                ))),
                count if count >= STOP_AT => looping = Some(call.wire_name.clone()),
                _ => {}
            }
        }
        looping
    }
}

fn pair(call: &TurnCall) -> ContentHash {
    let result = call.answer().map(|answer| (&answer.result.content, answer.result.is_error));
    ContentHash::of_value(&json!([call.wire_name, call.argument_value(), result]))
}
