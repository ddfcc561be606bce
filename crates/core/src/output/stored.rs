//! Describes outputs that were stored or cut, in the place of their text; and sets the size limit of results for MCP
//! clients.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::truncate;
use crate::definition::ToolDefinition;
use crate::definition::passthrough::LISTED_FIELDS;

/// Key in a note for further stored outputs of the same result.
const MORE: &str = "more";
/// Maximal bytes of a preview: a call can read the rest.
const MAX_PREVIEW: usize = 2048;

/// Start of a [`stored_message`].
const STORED: &str = "toolwright stored this result";

/// Separator between the description of a stored output and its preview.
const SHOWN: &str = "\nBeginning and end:\n\n";

/// Facts about a stored output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredOutput {
    /// `o` and eight characters; the only way to name it, within its session.
    pub handle: String,
    /// Bytes.
    pub bytes: u64,
    /// Lines.
    pub lines: u64,
    /// Tokens, estimated at four bytes each.
    pub tokens: u64,
}

/// The tools by which a caller can use a stored output, by the caller's names for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputReaders {
    /// The tool that reads ranges of it.
    pub read: Option<String>,
    /// The tool that searches it.
    pub grep: Option<String>,
    /// The tool that answers a question about it.
    pub extract: Option<String>,
}

impl OutputReaders {
    /// Whether no tool can read a handle.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Tells how to read `handle`: a sentence without its full stop.
    #[must_use]
    pub fn advice(&self, handle: &str) -> String {
        let read =
            self.read.as_ref().map(|name| format!("read it with {name} {{\"handle\": \"{handle}\", \"offset\": 0}}"));
        let grep = self.grep.as_ref().map(|name| format!("search it with {name} {{\"handle\": …, \"pattern\": …}}"));
        let extract = self.extract.as_ref().map(|name| format!("ask it with {name} {{\"handle\": …, \"extract\": …}}"));
        let ways: Vec<String> = [read, grep, extract].into_iter().flatten().collect();
        let mut advice = ways.join("; ");
        if let Some(first) = advice.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        advice
    }
}

/// Returns the text that replaces an output over its cap of `max` bytes: about as long as the cap, and always
/// short. With a cap of 0 there is no preview.
#[must_use]
pub fn stored_message(stored: &StoredOutput, text: &str, max: usize, readers: &OutputReaders) -> String {
    let StoredOutput { handle, bytes, lines, tokens } = stored;
    let head = format!(
        "{STORED} because of its size: {bytes} bytes, {lines} lines, about {tokens} tokens. \
         Handle: {handle}\n{}.",
        readers.advice(handle)
    );
    if max == 0 {
        return head;
    }
    let preview = truncate(text, max.saturating_sub(head.len()).clamp(200, MAX_PREVIEW).min(max));
    format!("{head}{SHOWN}{preview}")
}

/// Removes the preview from a [`stored_message`], for readers who have the output; other text is unchanged.
#[must_use]
pub fn without_preview(message: &str) -> &str {
    match message.split_once(SHOWN) {
        Some((words, _)) if words.starts_with(STORED) => words,
        _ => message,
    }
}

/// Returns the text that replaces an output over its cap of `max` bytes that was not stored, with the reason `why`.
#[must_use]
pub fn cut_message(text: &str, max: usize, why: &str) -> String {
    let note = format!(
        "\n\n[toolwright cut this result of {} bytes to its cap of {max} bytes and did not keep the rest: {why}]",
        text.len()
    );
    // Leaves room for the inner marker; under a small cap some text is shown nevertheless.
    truncate(text, max.saturating_sub(note.len() + 80).max(max / 2)) + &note
}

/// The structured form of [`stored_message`], for `_meta` and extras.
#[must_use]
pub fn stored_note(stored: &StoredOutput) -> Value {
    json!({
        "handle": stored.handle,
        "reason": "size_limit_exceeded",
        "bytes": stored.bytes,
        "lines": stored.lines,
        "tokens": stored.tokens,
    })
}

/// Adds a note on a stored output under `key`: several parts of one result may be stored. The first is
/// a [`stored_note`], with the others in its field `more`.
pub fn add_note(extras: &mut Map<String, Value>, key: &str, note: Value) {
    match extras.get_mut(key).and_then(Value::as_object_mut) {
        Some(first) => match first.get_mut(MORE).and_then(Value::as_array_mut) {
            Some(more) => more.push(note),
            None => drop(first.insert(MORE.to_owned(), Value::Array(vec![note]))),
        },
        None => drop(extras.insert(key.to_owned(), note)),
    }
}

/// Returns all outputs of a note; see [`add_note`].
#[must_use]
pub fn outputs_of_note(note: &Value) -> Vec<StoredOutput> {
    let more = note.get(MORE).and_then(Value::as_array).into_iter().flatten();
    std::iter::once(note).chain(more).filter_map(|note| StoredOutput::deserialize(note).ok()).collect()
}

/// Key in a listed tool's `_meta`: number of characters above which Claude Code stores a result in a file instead of
/// showing it to its model.
pub const MAX_RESULT_CHARS: &str = "anthropic/maxResultSizeChars";
/// Claude Code's maximum for that key.
const MOST_CHARS: usize = 500_000;

/// Default cap on the text of a result to an MCP client, in bytes. Ordinary results of the reference servers are
/// smaller (a source file of 40 KiB, a log of 50 commits, a commit, the tree of a package). So is the least that
/// clients show whole by default: 50,000 characters in Claude Code, 50 KiB in opencode. Codex itself cuts at 10,000
/// tokens.
const CLIENT_MAX_BYTES: usize = 48 * 1024;

/// The cap on the text of a tool's results for MCP clients, in bytes: larger than the default if the tool's server
/// announces larger results.
#[must_use]
pub fn client_max_bytes(definition: &ToolDefinition) -> usize {
    let meta = definition.meta.get(LISTED_FIELDS).and_then(|listed| listed.get("_meta"));
    let announced = meta.and_then(|meta| meta.get(MAX_RESULT_CHARS)).and_then(Value::as_u64);
    let announced = announced.and_then(|chars| usize::try_from(chars).ok()).unwrap_or_default();
    announced.clamp(CLIENT_MAX_BYTES, MOST_CHARS)
}

/// Returns the value of [`MAX_RESULT_CHARS`] for a tool whose text is capped at so many bytes. Claude Code counts a
/// structured result as JSON, which is longer than the text, so the value is doubled.
#[must_use]
pub fn announced_chars(max_bytes: usize) -> usize {
    max_bytes.saturating_mul(2).min(MOST_CHARS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::tool_id::ToolId;

    #[test]
    fn note_lists_all_stored_outputs() {
        let (mut extras, all) = (Map::new(), ["s/1", "s/2", "s/3"]);
        for handle in all {
            add_note(&mut extras, "k", stored_note(&StoredOutput { handle: handle.into(), ..stored() }));
        }
        assert_eq!((&extras["k"]["handle"], extras["k"]["more"].as_array().map(Vec::len)), (&json!("s/1"), Some(2)));
        let reported: Vec<String> = outputs_of_note(&extras["k"]).into_iter().map(|stored| stored.handle).collect();
        assert_eq!(reported, all);
        assert!(outputs_of_note(&json!({"bytes": 1})).is_empty());
    }

    fn stored() -> StoredOutput {
        StoredOutput { handle: "o7k2m9xq4".into(), bytes: 50_000, lines: 10, tokens: 12_500 }
    }

    #[test]
    fn stored_message_names_handle_size_and_tools() {
        let text = "x".repeat(50_000);
        let readers =
            OutputReaders { read: Some("output__read".into()), grep: Some("output__grep".into()), extract: None };
        for (max, most) in [(12_288, 2600), (1000, 1100), (0, 400)] {
            let message = stored_message(&stored(), &text, max, &readers);
            assert!(message.len() < most, "{}", message.len());
            for part in [
                "o7k2m9xq4",
                "50000 bytes",
                "10 lines",
                "12500 tokens",
                "Read it with output__read {\"handle\": \"o7k2m9xq4\"",
            ] {
                assert!(message.contains(part), "{part} in {message}");
            }
            assert!(message.contains("search it with output__grep") && !message.contains("ask it"));
            assert_eq!(message.contains("toolwright cut"), max > 0);
        }
        assert_eq!(stored_note(&stored())["reason"], "size_limit_exceeded");
    }

    #[test]
    fn unstored_output_is_cut_with_a_note() {
        let cut = cut_message(&"y".repeat(5000), 1000, "there is no room");
        assert!(cut.len() <= 1000 && cut.contains("of 5000 bytes") && cut.ends_with("there is no room]"), "{cut}");
        assert!(OutputReaders::default().is_empty());
    }

    #[test]
    fn an_announced_result_size_raises_the_limit() {
        let check = |announced: Value, expect: usize| {
            let id = ToolId::parse("x:t@1.0.0").expect("id");
            let mut definition = ToolDefinition::new(id, "d", None);
            definition.meta.insert(LISTED_FIELDS.into(), json!({"_meta": {MAX_RESULT_CHARS: announced}}));
            assert_eq!(client_max_bytes(&definition), expect, "{announced}");
        };
        check(json!(200_000), 200_000);
        check(json!(9_000_000), MOST_CHARS);
        for least in [json!(1000), json!(-1), json!("200000"), json!(null), json!(1e300)] {
            check(least, CLIENT_MAX_BYTES);
        }
        assert_eq!((announced_chars(CLIENT_MAX_BYTES), announced_chars(usize::MAX)), (98_304, MOST_CHARS));
    }
}
