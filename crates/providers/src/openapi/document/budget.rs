//! The budget for the work on one document, and the parts that texts and values take of it.

use std::cell::Cell;

use serde_json::Value;

/// The most parts of the tools of one document: schemas, members of bodies, and texts.
const MAX_PARTS: usize = 500_000;
/// The most schemas, properties and media types that are examined for the bodies and answers of one document.
const MAX_DOCUMENT_STEPS: usize = 20_000_000;
/// Bytes of text that count as one part.
const TEXT: usize = 128;

/// The remaining budget of one document.
#[derive(Debug)]
pub(in crate::openapi) struct Budget {
    parts: Cell<usize>,
    steps: Cell<usize>,
}

impl Budget {
    /// Creates the full budget of one document.
    pub(in crate::openapi) const fn new() -> Self {
        Self { parts: Cell::new(MAX_PARTS), steps: Cell::new(MAX_DOCUMENT_STEPS) }
    }

    /// Takes parts. A request for more than is left uses up the budget, so that later ones fail too.
    ///
    /// # Errors
    /// The budget is used up.
    pub(in crate::openapi) fn take(&self, parts: usize) -> Result<(), String> {
        let exceeded = || {
            format!(
                "the tools of its document have more than {MAX_PARTS} parts together: filter operations out, or split it"
            )
        };
        take(&self.parts, parts).ok_or_else(exceeded)
    }

    /// Returns the remaining budget, for [giving back](Self::give_back) what is taken later and not kept.
    pub(in crate::openapi) fn mark(&self) -> usize {
        self.parts.get()
    }

    /// Returns what was taken since this mark, because it is not kept. Steps are not returned.
    pub(in crate::openapi) fn rewind(&self, mark: usize) {
        let left = self.parts.get();
        if left > 0 {
            let has_time = self.look(mark.saturating_sub(left)).is_ok();
            self.parts.set(if has_time { mark } else { 0 });
        }
    }

    /// Takes steps, as [`Budget::take`] takes parts.
    ///
    /// # Errors
    /// The steps are used up.
    pub(in crate::openapi) fn look(&self, steps: usize) -> Result<(), String> {
        let exceeded = || {
            format!(
                "it takes more than {MAX_DOCUMENT_STEPS} steps to read the bodies of its document: filter operations out"
            )
        };
        take(&self.steps, steps).ok_or_else(exceeded)
    }
}

fn take(cell: &Cell<usize>, count: usize) -> Option<()> {
    let left = cell.get().checked_sub(count);
    cell.set(left.unwrap_or(0));
    // The last part is never given, so that an exhausted budget also refuses requests for zero.
    left.filter(|left| *left > 0).map(drop)
}

/// Returns the parts of a text.
pub(in crate::openapi) fn of_text(text: &str) -> usize {
    text.len() / TEXT
}

/// Returns the parts of a value that is copied, besides the one that contains it.
pub(in crate::openapi) fn of_value(value: &Value) -> usize {
    let (mut parts, mut waiting) = (0_usize, vec![value]);
    while let Some(value) = waiting.pop() {
        match value {
            Value::String(text) => parts = parts.saturating_add(of_text(text)),
            Value::Array(items) => {
                parts = parts.saturating_add(items.len());
                waiting.extend(items);
            }
            Value::Object(members) => {
                parts = parts.saturating_add(members.len());
                parts = members.keys().fold(parts, |parts, key| parts.saturating_add(of_text(key)));
                waiting.extend(members.values());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn large_schemas_use_up_the_budget() {
        let budget = Budget::new();
        assert_eq!(budget.take(MAX_PARTS - 2), Ok(()));
        assert_eq!((budget.take(1), budget.take(0)), (Ok(()), Ok(())));
        assert!(budget.take(1).expect_err("spent").contains("more than 500000 parts"));
        assert!(budget.take(0).is_err() && budget.look(1).is_ok());
    }

    #[test]
    fn returned_budget_still_counts_as_steps() {
        let budget = Budget::new();
        for _ in 0..(MAX_DOCUMENT_STEPS / 400_000 - 1) {
            let mark = budget.mark();
            budget.take(400_000).expect("given back each time");
            budget.rewind(mark);
        }
        let mark = budget.mark();
        budget.take(400_000).expect("given back each time");
        budget.rewind(mark);
        assert!(budget.take(1).is_err(), "for ever is too long");
        budget.rewind(mark);
        assert!(budget.take(1).is_err(), "what is spent is spent");
    }

    #[test]
    fn values_have_the_parts_of_their_contents() {
        for (value, expect) in [
            (json!(1), 0),
            (json!("x".repeat(TEXT - 1)), 0),
            (json!("x".repeat(3 * TEXT)), 3),
            (json!([1, [2, {"a": null}]]), 5),
            (json!({"x".repeat(TEXT): "y".repeat(TEXT)}), 3),
        ] {
            assert_eq!(of_value(&value), expect, "{value}");
        }
    }
}
