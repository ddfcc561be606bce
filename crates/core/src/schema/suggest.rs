//! Names that were misspelt: which one was probably meant.

use serde_json::Value;

use super::Violation;
use super::message::shorten;

/// Bound on a name in a message, in characters.
const MAX_NAME: usize = 80;
/// Longest name that is compared, in bytes.
const MAX_COMPARED: usize = 64;

/// Says in violations about unknown and missing members which name was probably meant: that of the schema which is nearest
/// to one of the value's.
pub fn suggest(schema: &Value, value: &Value, violations: &mut [Violation]) {
    // What is unknown and what is missing are often one mistake, which is told once.
    let mut told: Vec<(String, String)> = Vec::new();
    for violation in violations {
        let Some(given) = value.pointer(&violation.path).and_then(Value::as_object) else { continue };
        let Some(known) = at(schema, &violation.path).and_then(|schema| schema.get("properties")?.as_object()) else {
            continue;
        };
        let known: Vec<&str> = known.keys().map(String::as_str).collect();
        let free: Vec<&str> = known.iter().copied().filter(|name| !given.contains_key(*name)).collect();
        let strange = given.keys().map(String::as_str).filter(|name| !known.contains(name));
        let pairs: Vec<(&str, &str)> = strange.filter_map(|name| Some((name, nearest(name, &free)?))).collect();
        let mut tell = |violation: &mut Violation, message: &str, (name, meant): &(&str, &str)| {
            let (name, meant) = (shorten(name, MAX_NAME), shorten(meant, MAX_NAME));
            let hint = (violation.path.clone(), name.to_string());
            if !told.contains(&hint) {
                let by =
                    if message.contains(&format!("\"{name}\"")) { String::new() } else { format!(" by \"{name}\"") };
                violation.message = format!("{message}; did you mean \"{meant}\"{by}?");
                told.push(hint);
            }
        };
        match violation.keyword.as_str() {
            "additionalProperties" | "unevaluatedProperties" => {
                if let Some(pair) = pairs.first() {
                    let message = violation.message.trim_end_matches("; remove it").to_owned();
                    tell(violation, &message, pair);
                }
            }
            "required" => {
                let missing = |pair: &&(&str, &str)| violation.message.contains(&format!("\"{}\"", pair.1));
                if let Some(pair) = pairs.iter().find(missing) {
                    let message = violation.message.clone();
                    tell(violation, &message, pair);
                }
            }
            _ => {}
        }
    }
}

/// The schema of the value at a JSON Pointer, as far as `properties` and `items` lead there.
fn at<'s>(schema: &'s Value, path: &str) -> Option<&'s Value> {
    path.split('/').skip(1).try_fold(schema, |schema, step| {
        let name = step.replace("~1", "/").replace("~0", "~");
        schema.get("properties").and_then(|members| members.get(&name)).or_else(|| schema.get("items"))
    })
}

/// The name that is nearest to this, if it is near.
pub(super) fn nearest<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    let plain = |name: &str| name.to_lowercase().replace(['_', '-', ' '], "");
    if name.len() > MAX_COMPARED {
        return None;
    }
    let wanted = plain(name);
    // One change in a short name, a third of a long one.
    let near = (wanted.chars().count() / 3).clamp(1, 4);
    let distance = |known: &str| strsim::osa_distance(&plain(known), &wanted);
    let all = known.iter().filter(|known| known.len() <= MAX_COMPARED).map(|known| (distance(known), *known));
    let within = all.filter(|(distance, known)| {
        // What begins alike is an abbreviation, or a longer name for the same.
        *distance <= near
            || (wanted.len() >= 3 && (plain(known).starts_with(&wanted) || wanted.starts_with(&plain(known))))
    });
    within.min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::CompiledSchema;
    use super::*;

    #[test]
    fn a_misspelt_name_gets_the_one_that_was_meant() {
        let open =
            json!({"properties": {"path": {"type": "string"}, "line_numbers": {}, "n": {}}, "required": ["path"]});
        let mut closed = open.clone();
        closed["additionalProperties"] = json!(false);
        let inner = json!({"properties": {"list": {"items": closed.clone()}}});
        for (schema, value, expect) in [
            (&closed, json!({"pth": 1}), Some("\"pth\"; did you mean \"path\"?")),
            (&open, json!({"pth": 1}), Some("missing; did you mean \"path\" by \"pth\"?")),
            (&open, json!({"file": 1}), None),
            (
                &closed,
                json!({"path": "a", "lineNumbers": true}),
                Some("\"lineNumbers\"; did you mean \"line_numbers\"?"),
            ),
            (&closed, json!({"path": "a", "line": 1}), Some("\"line\"; did you mean \"line_numbers\"?")),
            (&closed, json!({"path": "a", "zebra": 1}), None),
            (&closed, json!({"path": "a", "paht": 1}), None),
            (&inner, json!({"list": [{"path": "a"}, {"Path": "a"}]}), Some("\"Path\"; did you mean \"path\"?")),
        ] {
            let mut violations = CompiledSchema::compile(schema).expect("compiles").violations(&value);
            suggest(schema, &value, &mut violations);
            let said = violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            match expect {
                Some(expect) => {
                    assert!(said.contains(expect), "{value}: {said}");
                    assert_eq!(said.matches("did you mean").count(), 1, "{value}: {said}");
                }
                None => assert!(!said.contains("did you mean"), "{value}: {said}"),
            }
        }
    }
}
