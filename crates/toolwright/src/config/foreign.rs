//! What other clients' keys of a server's entry mean here, for files that are pasted in and for those that are imported.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::check::check;
use super::node::Node;
use super::schema;

/// Another client's `timeout` of one call: numbers under 1000 are seconds, others milliseconds. `None` for 0, which is no
/// limit that a call can keep.
pub(crate) fn timeout(written: u64) -> Option<Duration> {
    match written {
        0 => None,
        1..1000 => Some(Duration::from_secs(written)),
        _ => Some(Duration::from_millis(written)),
    }
}

/// Whether an entry of `mcpServers` with this key, in snake case, and this value is read without a word about it.
pub(crate) fn is_understood(key: &str, value: &Value) -> bool {
    let file: Arc<Path> = Arc::from(Path::new(""));
    let text = json!({"mcp_servers": {"entry": {key: value}}}).to_string();
    let Ok(mut node) = Node::parse(&text, &file) else { return false };
    let mut problems = Vec::new();
    check(&mut node, schema::checked(), &mut problems);
    problems.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_entry_takes_is_understood() {
        for (key, value, expect) in [
            ("lazy", json!(true), true),
            ("request_timeout", json!("5s"), true),
            ("tools", json!(["search"]), true),
            ("lazy", json!("perhaps"), false),
            ("request_timeout", json!("soon"), false),
            ("settings", json!({"a": 1}), false),
        ] {
            assert_eq!(is_understood(key, &value), expect, "{key}: {value}");
        }
    }
}
