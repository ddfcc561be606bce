//! Arguments that come value by value (Vertex AI, `streamFunctionCallArguments`): each with the JSON path
//! at which it stands, texts in several pieces.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::response::wire::{Text, lenient};

/// The deepest path that is followed.
const MAX_DEPTH: usize = 64;
/// Elements that may be left out of the lists of one call: those that hold nothing are not sent.
const MAX_GAPS: usize = 64;

/// One value, or a piece of a text.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartialArg<'a> {
    #[serde(borrow, default)]
    json_path: Text<'a>,
    #[serde(borrow)]
    string_value: Option<Text<'a>>,
    #[serde(borrow)]
    number_value: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "lenient")]
    bool_value: Option<bool>,
    #[serde(default, deserialize_with = "lenient")]
    will_continue: Option<bool>,
}

/// Arguments under assembly.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    root: Map<String, Value>,
    /// The path of a text that goes on.
    growing: Option<String>,
    /// Elements that were left out.
    gaps: usize,
}

impl Arguments {
    /// Arguments that begin with what came whole.
    pub(super) fn new(root: Map<String, Value>) -> Self {
        Self { root, ..Self::default() }
    }

    /// Adds a value, or continues the text that is growing. A path that makes no sense is left out.
    pub(super) fn add(&mut self, arg: &PartialArg<'_>) {
        let path = arg.json_path.as_str();
        let piece = arg.string_value.as_ref().map(Text::as_str);
        let goes_on = self.growing.as_deref() == Some(path);
        if let Some(place) = steps(path).and_then(|steps| self.place(&steps)) {
            match (piece, place) {
                (Some(piece), Value::String(text)) if goes_on => text.push_str(piece),
                (Some(piece), place) => *place = piece.into(),
                (None, place) => {
                    let number = arg.number_value.and_then(|number| serde_json::from_str(number.get()).ok());
                    *place = number.or(arg.bool_value.map(Value::Bool)).unwrap_or_default();
                }
            }
        }
        if arg.will_continue != Some(true) {
            self.growing = None;
        } else if !goes_on {
            self.growing = Some(path.to_owned());
        }
    }

    /// The arguments as JSON text.
    pub(super) fn into_text(self) -> String {
        Value::Object(self.root).to_string()
    }

    fn place(&mut self, steps: &[Step<'_>]) -> Option<&mut Value> {
        let (Step::Key(first), rest) = steps.split_first()? else { return None };
        let mut place = self.root.entry(*first).or_insert(Value::Null);
        for step in rest {
            match step {
                Step::Key(key) => {
                    if !place.is_object() {
                        *place = Value::Object(Map::new());
                    }
                    place = place.as_object_mut()?.entry(*key).or_insert(Value::Null);
                }
                Step::Element(at) => {
                    if !place.is_array() {
                        *place = Value::Array(Vec::new());
                    }
                    let list = place.as_array_mut()?;
                    if let Some(gap) = at.checked_sub(list.len()) {
                        if gap > MAX_GAPS - self.gaps {
                            return None;
                        }
                        self.gaps += gap;
                        list.resize(*at + 1, Value::Null);
                    }
                    place = list.get_mut(*at)?;
                }
            }
        }
        Some(place)
    }
}

enum Step<'a> {
    Key(&'a str),
    Element(usize),
}

/// The steps of a path like `$.a.b[0]['c d']`.
fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == MAX_DEPTH {
            return None;
        }
        let step;
        (step, rest) = if let Some(inner) = rest.strip_prefix('[') {
            match inner.chars().next().filter(|quote| matches!(quote, '\'' | '"')) {
                Some(quote) => {
                    let (key, after) = inner[1..].split_once(quote)?;
                    (Step::Key(key), after.strip_prefix(']')?)
                }
                None => {
                    let (at, after) = inner.split_once(']')?;
                    (Step::Element(at.parse().ok()?), after)
                }
            }
        } else {
            let key = rest.strip_prefix('.').unwrap_or(rest);
            let end = key.find(['.', '[']).unwrap_or(key.len());
            let (key, after) = key.split_at(end);
            (Step::Key(key).into_named()?, after)
        };
        steps.push(step);
    }
    Some(steps)
}

impl<'a> Step<'a> {
    /// No step has no name.
    fn into_named(self) -> Option<Step<'a>> {
        if let Step::Key("") = self { None } else { Some(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_land_where_their_paths_say() {
        let check = |args: &str, expect: &str| {
            let args: Vec<PartialArg<'_>> = serde_json::from_str(args).expect("arguments");
            let mut arguments = Arguments::default();
            args.iter().for_each(|arg| arguments.add(arg));
            assert_eq!(arguments.into_text(), expect);
        };
        check(
            r#"[{"jsonPath": "$.a", "stringValue": "x", "willContinue": true}, {"jsonPath": "$.a", "stringValue": "y"},
                {"jsonPath": "$.b[0].c", "numberValue": 0.5}, {"jsonPath": "$.b[1].c", "boolValue": true},
                {"jsonPath": "$['d e'][\"f\"]", "nullValue": "NULL_VALUE"}]"#,
            r#"{"a":"xy","b":[{"c":0.5},{"c":true}],"d e":{"f":null}}"#,
        );
        check(r#"[{"jsonPath": "$.a[2]", "numberValue": 1}]"#, r#"{"a":[null,null,1]}"#);
        check(
            r#"[{"jsonPath": "$.a[99999999]", "numberValue": 1}, {"jsonPath": "$"}, {"jsonPath": "$..x"}]"#,
            r#"{"a":[]}"#,
        );
        check(r#"[{"jsonPath": "$.a", "stringValue": "x"}, {"jsonPath": "$.a", "stringValue": "y"}]"#, r#"{"a":"y"}"#);
    }

    #[test]
    fn a_short_path_makes_no_large_value() {
        let path = format!("$.a{}", "[64]".repeat(MAX_DEPTH - 1));
        let args = format!(r#"[{{"jsonPath": "{path}", "numberValue": 1}}, {{"jsonPath": "$.b[60]"}}]"#);
        let args: Vec<PartialArg<'_>> = serde_json::from_str(&args).expect("arguments");
        let mut arguments = Arguments::default();
        args.iter().for_each(|arg| arguments.add(arg));
        assert!(arguments.into_text().len() < 1000);
    }
}
