//! How large the results of tools may be that MCP clients get.

use serde_json::Value;

use crate::definition::ToolDefinition;
use crate::definition::passthrough::LISTED_FIELDS;

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
    use super::*;
    use crate::tool_id::ToolId;
    use serde_json::json;

    #[test]
    fn a_server_that_announces_larger_results_is_cut_later() {
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
