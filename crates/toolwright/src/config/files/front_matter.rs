//! Front matter: the YAML between two `---` lines at the top of a file of an agent, a skill or an LLM tool.

use std::path::Path;
use std::sync::Arc;

use super::node::{Node, Problem};

/// Splits a file into front matter and text.
///
/// # Errors
/// Says which `---` line is missing.
pub(in crate::config) fn split(text: &str) -> Result<(&str, &str), String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    if first.trim_end() != "---" {
        return Err("it does not begin with a line `---` of front matter".to_owned());
    }
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Ok((&rest[..at], &rest[at + line.len()..]));
        }
        at += line.len();
    }
    Err("its front matter does not end with a line `---`".to_owned())
}

/// Parses the front matter, with lines counted from the top of the file.
pub(in crate::config) fn front_matter(front: &str, file: &Arc<Path>) -> Result<Node, Problem> {
    let numbered = |text: &str| format!("\n{text}");
    Node::parse(&numbered(front), file).or_else(|problem| {
        // Claude Code writes and accepts unquoted descriptions with colons.
        let quoted = quoted(front);
        if quoted == front { Err(problem) } else { Node::parse(&numbered(&quoted), file).map_err(|_| problem) }
    })
}

/// Quotes the text in lines `key: text`, if it is unquoted and YAML would misread it.
fn quoted(front: &str) -> String {
    let line = |line: &str| {
        let text = line.trim_end();
        let (key, value) = text.split_once(':')?;
        let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        let value = value.strip_prefix(' ')?.trim();
        let is_plain = !value.starts_with(['"', '\'', '[', '{', '|', '>', '&', '!', '#']);
        let needs_quotes = value.contains(": ")
            || value.contains(" #")
            || value.ends_with(':')
            || value.starts_with(['*', '@', '`', '%']);
        (is_key && is_plain && needs_quotes).then(|| format!("{key}: '{}'\n", value.replace('\'', "''")))
    };
    front.split_inclusive('\n').map(|text| line(text).unwrap_or_else(|| text.to_owned())).collect()
}
