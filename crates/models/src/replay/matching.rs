//! By what a request is known again, and where two differ.

use serde_json::{Value, json};
use toolwright_core::model::ModelRequest;

/// Characters around a difference that are quoted.
const QUOTED: usize = 60;

/// Messages, names of the tools and form of the output of a request that is asked, not redacted.
pub(super) fn of_request(request: &ModelRequest) -> Value {
    let names: Vec<_> = request.tools.iter().map(|tool| &tool.name).collect();
    json!({"messages": request.messages, "tools": names, "output": request.output})
}

/// The same of a request as it was recorded.
pub(super) fn of_recorded(request: &Value) -> Value {
    let names: Vec<_> = tools(request).map(|tool| tool["name"].clone()).collect();
    json!({"messages": request["messages"], "tools": names, "output": request["output"]})
}

/// Whether a recorded request declares deferred tools.
pub(super) fn has_deferred(request: &Value) -> bool {
    tools(request).any(|tool| tool["exposed"] == "deferred")
}

fn tools(request: &Value) -> impl Iterator<Item = &Value> {
    request["tools"].as_array().into_iter().flatten()
}

/// How many messages two requests have in common from the beginning.
pub(super) fn common(recorded: &Value, asked: &Value) -> usize {
    messages(recorded).iter().zip(messages(asked)).take_while(|(recorded, asked)| recorded == asked).count()
}

fn messages(key: &Value) -> &[Value] {
    key["messages"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Where two requests first differ, and how: `messages[2].content[0].text: recorded "a", asked "b"`.
pub(super) fn difference(recorded: &Value, asked: &Value) -> Option<String> {
    let mut place = String::new();
    let (recorded, asked) = find(recorded, asked, &mut place)?;
    Some(format!("{}: recorded {recorded}, asked {asked}", place.trim_start_matches('.')))
}

fn find(recorded: &Value, asked: &Value, place: &mut String) -> Option<(String, String)> {
    let before = place.len();
    match (recorded, asked) {
        (recorded, asked) if recorded == asked => None,
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

/// What stands around the character number `at`.
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
