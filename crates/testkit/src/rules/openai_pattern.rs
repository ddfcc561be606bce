//! OpenAI: rules for regular expressions in schemas of functions and of answers, strict or not.

use serde_json::Value;

use super::walk::nodes;
use super::{Report, rules};

rules! { ALL:
    PATTERN = "openai/pattern",
        "a pattern has no look-around and no back-reference, and is one that Python's `re` compiles",
        "400 «Invalid JSON schema: regex lookaround is not supported. Found at $.properties…pattern» (vercel/ai#21037, \
         can1357/oh-my-pi#2784), also of `text.format.schema` (existential-birds/daydream#304); patterns with `\\p` \
         (BerriAI/litellm#40485)";
}

/// Checks every pattern of a schema, including `patternProperties`.
pub(super) fn check(schema: &Value, path: &str, report: &mut Report) {
    for node in nodes(schema, path) {
        let named = node.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
        let patterns = node.get("pattern").and_then(Value::as_str).into_iter();
        for pattern in patterns.chain(named.map(|(name, _)| name.as_str())) {
            if let Some(why) = refused(pattern) {
                report.add(&PATTERN, &node.path, format!("regex {why} is not supported: {pattern}"));
            }
        }
    }
}

/// Returns the part of a pattern that is refused.
fn refused(pattern: &str) -> Option<&'static str> {
    let mut escaped = false;
    for (at, c) in pattern.char_indices() {
        let rest = &pattern[at + c.len_utf8()..];
        match c {
            _ if escaped => {
                escaped = false;
                match c {
                    '1'..='9' | 'k' => return Some("back-reference"),
                    'p' | 'P' => return Some("class by property"),
                    _ => {}
                }
            }
            '\\' => escaped = true,
            '(' if ["?=", "?!", "?<=", "?<!"].iter().any(|around| rest.starts_with(around)) => {
                return Some("lookaround");
            }
            '(' if rest.starts_with("?<") => return Some("named group"),
            _ => {}
        }
    }
    regex::Regex::new(pattern).is_err().then_some("syntax")
}
