//! Matches requests with recorded ones, and finds where two differ.

use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::ModelRequest;
use toolwright_core::redact::MARK;

/// Replacement of a redacted number.
const QUOTED_MARK: &str = "\"[secret]\"";
/// Characters around a difference that are quoted.
const QUOTED: usize = 60;

/// The key of a request before redaction: messages, names of the tools and output format.
pub(super) fn key_of_request(request: &ModelRequest) -> Value {
    let names: Vec<_> = request.tools.iter().map(|tool| &tool.name).collect();
    json!({"messages": request.messages, "tools": names, "output": request.output})
}

/// The key of a recorded request.
pub(super) fn key_of_recorded(request: &Value) -> Value {
    let names: Vec<_> = tools(request).map(|tool| tool["name"].clone()).collect();
    json!({"messages": request["messages"], "tools": names, "output": request["output"]})
}

/// The hash of a redacted system prompt.
pub(super) fn system(prompt: &str) -> ContentHash {
    ContentHash::of_value(&Value::from(prompt))
}

/// The hash of the system prompt of a recorded request.
pub(super) fn system_of_recorded(request: &Value) -> ContentHash {
    system(request["system"].as_str().unwrap_or_default())
}

/// Whether a recorded value matches a requested one. A recorded `[secret]` matches any text, because the
/// redactor may know other secrets now.
pub(super) fn fits(recorded: &Value, asked: &Value) -> bool {
    match (recorded, asked) {
        (Value::String(recorded), Value::String(asked)) => text_fits(recorded, asked),
        (Value::String(recorded), Value::Number(_)) => recorded == MARK,
        (Value::Array(recorded), Value::Array(asked)) => {
            recorded.len() == asked.len() && recorded.iter().zip(asked).all(|(recorded, asked)| fits(recorded, asked))
        }
        (Value::Object(recorded), Value::Object(asked)) => {
            recorded.len() == asked.len()
                && recorded.iter().all(|(key, value)| match asked.get(key) {
                    Some(asked) => fits(value, asked),
                    None => {
                        key.contains(MARK)
                            && asked.iter().any(|(name, asked)| text_fits(key, name) && fits(value, asked))
                    }
                })
        }
        (recorded, asked) => recorded == asked,
    }
}

fn text_fits(recorded: &str, asked: &str) -> bool {
    // A number in JSON text was replaced with a string.
    let quoted = recorded.contains(QUOTED_MARK).then(|| recorded.replace(QUOTED_MARK, MARK));
    let recorded = quoted.as_deref().unwrap_or(recorded);
    let Some((first, rest)) = recorded.split_once(MARK) else { return recorded == asked };
    let Some(mut asked) = asked.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = rest.split(MARK).collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some((_, after)) = asked.split_once(piece) else { return false };
        asked = after;
    }
    asked.ends_with(last)
}

/// Whether a recorded request declares deferred tools.
pub(super) fn has_deferred(request: &Value) -> bool {
    tools(request).any(|tool| tool["exposed"] == "deferred")
}

/// The names of the tools in a recorded request that the provider runs itself.
pub(super) fn natives(request: &Value) -> impl Iterator<Item = &str> {
    tools(request).filter(|tool| tool["native"].is_object()).filter_map(|tool| tool["name"].as_str())
}

fn tools(request: &Value) -> impl Iterator<Item = &Value> {
    request["tools"].as_array().into_iter().flatten()
}

/// Similarity of two requests, most important criterion first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Similarity {
    /// Messages that they have in common from the beginning.
    messages: usize,
    /// Number of equal ones among system prompt, output format and tools.
    same_settings: u8,
    /// Common leading characters of the next message's texts.
    characters: usize,
}

/// Compares a recorded request with a new one; `same_system`: their system prompts are equal.
pub(super) fn similarity(recorded: &Value, asked: &Value, same_system: bool) -> Similarity {
    let both = || messages(recorded).iter().zip(messages(asked));
    let common = both().take_while(|(recorded, asked)| fits(recorded, asked)).count();
    let is_same = |name: &str| fits(&recorded[name], &asked[name]);
    let same_settings = [same_system, is_same("output"), is_same("tools")].into_iter().map(u8::from).sum();
    let characters = both().nth(common).map_or(0, |(recorded, asked)| common_prefix_len(recorded, asked));
    Similarity { messages: common, same_settings, characters }
}

/// The common leading characters of the texts of two values, summed up.
fn common_prefix_len(recorded: &Value, asked: &Value) -> usize {
    match (recorded, asked) {
        (Value::String(recorded), Value::String(asked)) => {
            recorded.chars().zip(asked.chars()).take_while(|(recorded, asked)| recorded == asked).count()
        }
        (Value::Array(recorded), Value::Array(asked)) => {
            recorded.iter().zip(asked).map(|(recorded, asked)| common_prefix_len(recorded, asked)).sum()
        }
        (Value::Object(recorded), Value::Object(asked)) => {
            let both = recorded.iter().filter_map(|(name, value)| Some((value, asked.get(name)?)));
            both.map(|(recorded, asked)| common_prefix_len(recorded, asked)).sum()
        }
        _ => 0,
    }
}

/// The messages in the key of a request.
pub(super) fn messages(key: &Value) -> &[Value] {
    key["messages"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Describes the first difference of two requests: `messages[2].content[0].text: recorded "a", asked "b"`.
pub(super) fn difference(recorded: &Value, asked: &Value) -> Option<String> {
    let mut place = String::new();
    let (recorded, asked) = find(recorded, asked, &mut place)?;
    Some(format!("{}: recorded {recorded}, asked {asked}", place.trim_start_matches('.')))
}

fn find(recorded: &Value, asked: &Value, place: &mut String) -> Option<(String, String)> {
    let before = place.len();
    match (recorded, asked) {
        (recorded, asked) if fits(recorded, asked) => None,
        (Value::Object(recorded), Value::Object(asked)) => {
            let keys = recorded.keys().chain(asked.keys().filter(|key| !recorded.contains_key(*key)));
            keys.into_iter().find_map(|key| {
                place.truncate(before);
                place.push_str(&format!(".{key}"));
                members(recorded.get(key), asked.get(key), place)
            })
        }
        (Value::Array(recorded), Value::Array(asked)) => (0..recorded.len().max(asked.len())).find_map(|at| {
            place.truncate(before);
            place.push_str(&format!("[{at}]"));
            members(recorded.get(at), asked.get(at), place)
        }),
        (Value::String(recorded), Value::String(asked)) => {
            let same = recorded.chars().zip(asked.chars()).take_while(|(a, b)| a == b).count();
            Some((quoted(recorded, same), quoted(asked, same)))
        }
        (recorded, asked) => Some((quoted(&recorded.to_string(), 0), quoted(&asked.to_string(), 0))),
    }
}

fn members(recorded: Option<&Value>, asked: Option<&Value>, place: &mut String) -> Option<(String, String)> {
    let one = |value: &Value| quoted(&value.to_string(), 0);
    match (recorded, asked) {
        (Some(recorded), Some(asked)) => find(recorded, asked, place),
        (Some(recorded), None) => Some((one(recorded), "nothing".into())),
        (None, Some(asked)) => Some(("nothing".into(), one(asked))),
        (None, None) => None,
    }
}

/// The text around the character number `at`.
fn quoted(text: &str, at: usize) -> String {
    let start = at.saturating_sub(QUOTED / 3);
    let piece: String = text.chars().skip(start).take(QUOTED).collect();
    let before = if start > 0 { "…" } else { "" };
    let after = if text.chars().count() > start + QUOTED { "…" } else { "" };
    format!("`{before}{piece}{after}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacted_secret_matches_any_text() {
        for (recorded, asked, expect) in [
            ("pin [secret].", "pin 4711.", true),
            ("pin [secret].", "pin [secret].", true),
            ("pin [secret].", "pin 4711", false),
            ("pin [secret].", "PIN 4711.", false),
            ("[secret]", "", true),
            ("a [secret] b [secret] c", "a 1 b 2 b 3 c", true),
            ("a [secret] b [secret] c", "a 1 b c", false),
            ("ab[secret]ba", "aba", false),
            ("plain", "plainer", false),
            (r#"{"pin": "[secret]"}"#, r#"{"pin": 471199}"#, true),
            (r#"{"pin": "[secret]"}"#, r#"{"pin": "hunter2"}"#, true),
            (r#"{"pin": "[secret]"}"#, r#"{"pin": 471199"#, false),
        ] {
            assert_eq!(text_fits(recorded, asked), expect, "{recorded} {asked}");
            let value = |text: &str| json!({"messages": [{"text": text}, 7]});
            assert_eq!(fits(&value(recorded), &value(asked)), expect, "{recorded} {asked}");
            assert_eq!(difference(&value(recorded), &value(asked)).is_none(), expect, "{recorded} {asked}");
        }
        assert!(fits(&json!({"[secret]": 1, "b": 2}), &json!({"name": 1, "b": 2})));
        assert!(!fits(&json!({"[secret]": 1, "b": 2}), &json!({"name": 3, "b": 2})));
        assert!(!fits(&json!({"a": "[secret]"}), &json!({})));
        assert!(fits(&json!({"a": "[secret]"}), &json!({"a": 471_199})));
        assert!(!fits(&json!({"a": "a [secret]"}), &json!({"a": 471_199})));
        assert!(!fits(&json!(["[secret]"]), &json!(["a", "b"])));
    }

    #[test]
    fn the_closest_recording_shares_the_beginning() {
        let key = |text: &str, output: &str| json!({"messages": [{"content": [{"text": text}]}], "tools": [], "output": {"name": output}});
        let asked = key("Ada wrote the first program.", "facts");
        let near = |text: &str, output: &str, system: bool| similarity(&key(text, output), &asked, system);
        // In ascending order of similarity.
        let order = [
            near("Ada wrote the first one.", "score", false),
            near("Bob wrote none.", "score", true),
            near("Bob wrote none.", "facts", true),
            near("Ada wrote the first", "facts", true),
            near("Ada wrote the first program.", "score", false),
            near("Ada wrote the first program.", "facts", true),
        ];
        assert!(order.is_sorted(), "{order:?}");
        assert!(order[0] < order[1] && order[2] < order[3], "{order:?}");
    }

    #[test]
    fn the_first_difference_is_named() {
        let recorded =
            json!({"messages": [{"role": "user", "content": [{"text": "Count the cats."}]}], "tools": ["a"]});
        let check = |change: &dyn Fn(&mut Value), expect: Option<&str>| {
            let mut asked = recorded.clone();
            change(&mut asked);
            assert_eq!(difference(&recorded, &asked).as_deref(), expect);
        };
        check(&|_| {}, None);
        check(
            &|asked| asked["messages"][0]["content"][0]["text"] = "Count the dogs.".into(),
            Some("messages[0].content[0].text: recorded `Count the cats.`, asked `Count the dogs.`"),
        );
        check(&|asked| asked["tools"] = json!([]), Some("tools[0]: recorded `\"a\"`, asked nothing"));
        check(&|asked| asked["tools"] = json!(["a", "b"]), Some("tools[1]: recorded nothing, asked `\"b\"`"));
        check(
            &|asked| asked["output"] = json!({"name": "o"}),
            Some("output: recorded nothing, asked `{\"name\":\"o\"}`"),
        );
        let long = |end: &str| json!({"text": format!("{}{end}", "é".repeat(500))});
        let said = difference(&long("cat"), &long("dog")).expect("differs");
        assert_eq!(said, format!("text: recorded `…{0}cat`, asked `…{0}dog`", "é".repeat(20)));
    }
}
