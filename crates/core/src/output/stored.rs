//! Describes outputs that were stored or cut, in the place of their text; and sets the size limit of results for MCP
//! clients.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::truncate;
use crate::definition::ToolDefinition;
use crate::definition::passthrough::LISTED_FIELDS;

/// Where a note has those of what else was stored of the same result.
const MORE: &str = "more";
/// Bytes of a preview at most: what follows is a call away.
const MAX_PREVIEW: usize = 2048;

/// How a [`stored_message`] begins.
const STORED: &str = "toolwright stored this result";

/// What stands between the words about a stored output and what is shown of it.
const SHOWN: &str = "\nBeginning and end:\n\n";

/// What is known of a stored output.
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

/// The tools by which a caller can go on with a stored output, by the names that it knows them under.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readers {
    /// Reads ranges.
    pub read: Option<String>,
    /// Searches.
    pub grep: Option<String>,
    /// Has a question answered.
    pub extract: Option<String>,
}

impl Readers {
    /// Whether a handle would be of no use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How to go on with `handle`, in words: a sentence without its full stop.
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

/// What takes the place of an output that is over its cap of `max` bytes: about so many at most itself, and short
/// in any case. With a cap of 0 there is no preview.
#[must_use]
pub fn stored_message(stored: &StoredOutput, text: &str, max: usize, readers: &Readers) -> String {
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

/// A [`stored_message`] without its preview, and any other text as it is: for readers who have the output itself.
#[must_use]
pub fn without_preview(message: &str) -> &str {
    match message.split_once(SHOWN) {
        Some((words, _)) if words.starts_with(STORED) => words,
        _ => message,
    }
}

/// What takes the place of an output that is over its cap of `max` bytes and was not stored; `why`, in words.
#[must_use]
pub fn cut_message(text: &str, max: usize, why: &str) -> String {
    let note = format!(
        "\n\n[toolwright cut this result of {} bytes to its cap of {max} bytes and did not keep the rest: {why}]",
        text.len()
    );
    // Room for the marker inside, too; under a small cap something is shown all the same.
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

/// Adds the note of a stored output to those under `key`: of one result several parts may be stored. The first stands
/// there as [`stored_note`] gives it, with the others, as many, in its field `more`.
pub fn add_note(extras: &mut Map<String, Value>, key: &str, note: Value) {
    match extras.get_mut(key).and_then(Value::as_object_mut) {
        Some(first) => match first.get_mut(MORE).and_then(Value::as_array_mut) {
            Some(more) => more.push(note),
            None => drop(first.insert(MORE.to_owned(), Value::Array(vec![note]))),
        },
        None => drop(extras.insert(key.to_owned(), note)),
    }
}

/// All that a note tells of; see [`add_note`].
#[must_use]
pub fn noted_outputs(note: &Value) -> Vec<StoredOutput> {
    let more = note.get(MORE).and_then(Value::as_array).into_iter().flatten();
    std::iter::once(note).chain(more).filter_map(|note| StoredOutput::deserialize(note).ok()).collect()
}

/// The key in a listed tool's `_meta` under which a server says how many characters its results may have before Claude
/// Code keeps them in a file instead of showing them to its model.
pub const MAX_RESULT_CHARS: &str = "anthropic/maxResultSizeChars";
/// What Claude Code takes at most under that key.
const MOST_CHARS: usize = 500_000;

/// Cap on the text of a result that goes to an MCP client, in bytes, where neither configuration nor the tool's server
/// says another. Ordinary results of the reference servers are smaller (a source file of 40 KiB, a log of 50 commits, a
/// commit, the tree of a package), and so is the least that clients show whole by default: 50,000 characters in Claude
/// Code, 50 KiB in opencode. Codex cuts at 10,000 tokens by itself.
const CLIENT_MAX_BYTES: usize = 48 * 1024;

/// The cap on the text of a tool's results for MCP clients, in bytes: more than the default where the server of the
/// tool announces that they are larger.
#[must_use]
pub fn client_max_bytes(definition: &ToolDefinition) -> usize {
    let meta = definition.meta.get(LISTED_FIELDS).and_then(|listed| listed.get("_meta"));
    let announced = meta.and_then(|meta| meta.get(MAX_RESULT_CHARS)).and_then(Value::as_u64);
    let announced = announced.and_then(|chars| usize::try_from(chars).ok()).unwrap_or_default();
    announced.clamp(CLIENT_MAX_BYTES, MOST_CHARS)
}

/// What is announced under [`MAX_RESULT_CHARS`] for a tool whose text is capped at so many bytes. Claude Code counts a
/// structured result as JSON, in which a text is longer: so it is twice as much.
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
        let reported: Vec<String> = noted_outputs(&extras["k"]).into_iter().map(|stored| stored.handle).collect();
        assert_eq!(reported, all);
        assert!(noted_outputs(&json!({"bytes": 1})).is_empty());
    }

    fn stored() -> StoredOutput {
        StoredOutput { handle: "o7k2m9xq4".into(), bytes: 50_000, lines: 10, tokens: 12_500 }
    }

    #[test]
    fn stored_message_names_handle_size_and_tools() {
        let text = "x".repeat(50_000);
        let readers = Readers { read: Some("output__read".into()), grep: Some("output__grep".into()), extract: None };
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
        assert!(Readers::default().is_empty());
    }

    #[test]
    fn announced_result_size_raises_the_cap() {
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
