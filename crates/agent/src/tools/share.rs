//! Fits the results of a batch under one size cap. Every result stays readable; large ones are shortened.

use serde_json::{Value, json};
use toolwright_core::context::ToolContext;
use toolwright_core::output::head_and_tail;

/// What became of one item.
pub(super) struct ItemResult {
    pub(super) id: String,
    pub(super) tool: String,
    pub(super) ok: bool,
    /// Output, or error.
    pub(super) text: String,
}

impl ItemResult {
    fn into_json(self) -> Value {
        let Self { id, tool, ok, text } = self;
        if ok {
            json!({"id": id, "tool": tool, "ok": ok, "output": text})
        } else {
            json!({"id": id, "tool": tool, "ok": ok, "error": text})
        }
    }
}

/// The results as JSON, whose text is within the call's cap: texts that are over their share of it are stored, and
/// what is cut of them names the handle.
pub(super) async fn fit(mut results: Vec<ItemResult>, context: &ToolContext) -> Vec<Value> {
    let sizes: Vec<usize> = results.iter().map(|result| escaped(&result.text)).collect();
    let around: usize = results.iter().map(|result| result.around()).sum();
    let share = share(&sizes, context.max_output.saturating_sub(around + 2));
    for (result, size) in results.iter_mut().zip(sizes) {
        if size > share {
            result.text = shortened(&result.text, share, context).await;
        }
    }
    results.into_iter().map(ItemResult::into_json).collect()
}

impl ItemResult {
    /// Bytes of its JSON without the text, a comma included.
    fn around(&self) -> usize {
        escaped(&self.id) + escaped(&self.tool) + r#"{"id":"","ok":false,"output":"","tool":""},"#.len()
    }
}

/// The largest size that every text may have so that together they are within `room`: what small ones leave
/// goes to the others.
fn share(sizes: &[usize], room: usize) -> usize {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    let mut room = room;
    for (index, size) in sorted.iter().enumerate() {
        let fair = room / (sorted.len() - index);
        if *size > fair {
            return fair;
        }
        room -= size;
    }
    usize::MAX
}

/// `text` in at most about `max` bytes of JSON, with the handle under which all of it is stored.
async fn shortened(text: &str, max: usize, context: &ToolContext) -> String {
    let note = match context.services.outputs.put(&context.session.id, text.as_bytes()).await {
        Ok(stored) => {
            format!("\n[all {} bytes: output__read {{\"handle\": \"{}\"}}]", stored.bytes, stored.handle)
        }
        Err(error) => {
            tracing::warn!("a large result of a batch was cut, not stored: {error}");
            String::new()
        }
    };
    let mut room = max.saturating_sub(escaped(&note));
    loop {
        let cut = head_and_tail(text, room) + &note;
        let size = escaped(&cut);
        if size <= max || room == 0 {
            return cut;
        }
        // Escapes, and the line that says how much was cut, take room too.
        room = room.saturating_sub((size - max).max(room / 8).max(1));
    }
}

/// Bytes of `text` inside a JSON string.
fn escaped(text: &str) -> usize {
    let extra = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..0x20 => 5,
        _ => 0,
    };
    text.len() + text.bytes().map(extra).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_small_results_leave_goes_to_large_ones() {
        for (sizes, room, expect) in [
            (vec![10, 20], 100, usize::MAX),
            (vec![10, 1000], 100, 90),
            (vec![1000, 1000], 100, 50),
            (vec![5, 60, 60], 100, 47),
            (vec![], 0, usize::MAX),
            (vec![1], 0, 0),
        ] {
            assert_eq!(share(&sizes, room), expect, "{sizes:?} in {room}");
        }
    }

    proptest! {
        #[test]
        fn shares_are_within_the_room(sizes in proptest::collection::vec(0usize..5000, 0..60), room in 0usize..20_000) {
            let share = share(&sizes, room);
            prop_assert!(sizes.iter().map(|&size| size.min(share)).sum::<usize>() <= room);
        }

        #[test]
        fn escaped_sizes_are_those_of_the_json(text in "\\PC{0,40}|[\\x00-\\x1f\"\\\\]{0,20}") {
            prop_assert_eq!(escaped(&text) + 2, serde_json::to_string(&text).unwrap().len());
        }
    }
}
