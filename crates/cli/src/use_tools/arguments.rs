//! Parses the arguments of `call` from each of the three ways to write them.

use std::path::Path;

use serde_json::{Map, Value};
use toolwright::core::name_table::Resolution;
use toolwright::core::{RawArguments, Snapshot};

use crate::exit::Failure;

/// One JSON object, `-`, or key=value pairs. JSON stays text: the checks parse it and say what is wrong.
pub(crate) fn parse(words: &[String], tool: &str, snapshot: &Snapshot) -> Result<RawArguments, Failure> {
    match words {
        [] => Ok(RawArguments::Value(Value::Object(Map::new()))),
        [dash] if dash == "-" => Ok(RawArguments::Text(crate::input::read(Path::new("-"))?)),
        [json] if json.trim_start().starts_with(['{', '[', '"']) => Ok(RawArguments::Text(json.clone())),
        pairs => {
            let schema = match snapshot.resolve(tool) {
                Resolution::Found(index, _) => {
                    snapshot.list().get(index).and_then(|entry| entry.definition().parameters.clone())
                }
                Resolution::Unknown(_) => None,
            };
            let mut map = Map::new();
            for pair in pairs {
                let Some((key, value)) = pair.split_once('=') else {
                    return Err(Failure::usage(format!(
                        "`{}` is neither a JSON object nor key=value; quote JSON for the shell: '{{\"key\": \"value\"}}'",
                        crate::terminal::screen::one_line(pair, 40)
                    )));
                };
                map.insert(
                    key.to_owned(),
                    typed(value, schema.as_ref().and_then(|schema| schema.pointer(&format!("/properties/{key}/type")))),
                );
            }
            Ok(RawArguments::Value(map.into()))
        }
    }
}

/// A value as its schema's type wants it: text stays text, anything else is read as JSON where it is.
fn typed(value: &str, wanted: Option<&Value>) -> Value {
    let text = || Value::String(value.to_owned());
    if wanted.and_then(Value::as_str) == Some("string") {
        return text();
    }
    match serde_json::from_str(value) {
        Ok(Value::String(_)) | Err(_) => text(),
        Ok(parsed) => parsed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_follow_their_schema() {
        for (value, wanted, expect) in [
            ("3", json!("string"), json!("3")),
            ("3", json!("integer"), json!(3)),
            ("3", Value::Null, json!(3)),
            ("true", json!("boolean"), json!(true)),
            ("[1,2]", json!("array"), json!([1, 2])),
            ("plain", json!("integer"), json!("plain")),
            ("\"x\"", Value::Null, json!("\"x\"")),
        ] {
            assert_eq!(typed(value, Some(&wanted)), expect, "{value} {wanted}");
        }
    }

    #[test]
    fn three_ways_to_write_arguments() {
        let snapshot = Snapshot::default();
        let parse = |words: &[&str]| parse(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(), "t", &snapshot);
        assert_eq!(parse(&[]).expect("none"), RawArguments::Value(json!({})));
        assert_eq!(parse(&["{\"a\": 1"]).expect("json"), RawArguments::Text("{\"a\": 1".into()));
        assert_eq!(parse(&["a=1", "b=x=y"]).expect("pairs"), RawArguments::Value(json!({"a": 1, "b": "x=y"})));
        assert!(parse(&["a=1", "b"]).expect_err("not a pair").message.contains("key=value"));
    }
}
