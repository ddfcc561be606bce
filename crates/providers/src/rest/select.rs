//! A part of a JSON response.

use serde_json::Value;

/// Steps of a path.
const MAX_STEPS: usize = 32;

/// A path into JSON: names and positions after slashes, as in a JSON Pointer (RFC 6901), and `*` for every item of a
/// list or member of an object. `/items/*/name` of `{"items": [{"name": 1}, {"name": 2}]}` is `[1, 2]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    written: String,
    steps: Vec<String>,
}

impl Selection {
    /// Reads a path.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(path: &str) -> Result<Self, String> {
        let Some(rest) = path.strip_prefix('/') else {
            return Err(format!("`{path}` does not begin with `/`: write it like /items/*/name"));
        };
        let steps: Vec<String> = rest.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        if steps.len() > MAX_STEPS {
            return Err(format!("`{path}` has more than {MAX_STEPS} steps"));
        }
        Ok(Self { written: path.to_owned(), steps })
    }

    /// The path as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// The part of `value`; `None` when there is none. Below a `*` what lacks the part is left out.
    #[must_use]
    pub fn of(&self, value: &Value) -> Option<Value> {
        part(value, &self.steps)
    }
}

fn part(value: &Value, steps: &[String]) -> Option<Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value.clone()) };
    match value {
        Value::Array(items) if step == "*" => Some(items.iter().filter_map(|item| part(item, rest)).collect()),
        Value::Object(members) if step == "*" => {
            Some(members.values().filter_map(|member| part(member, rest)).collect())
        }
        Value::Array(items) => part(items.get(step.parse::<usize>().ok()?)?, rest),
        Value::Object(members) => part(members.get(step)?, rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_are_found() {
        let value = json!({"items": [{"n": 1, "a/b": true}, {"n": 2}, 3], "o": {"x": [1], "y": [2]}});
        let check = |path: &str, expect: Option<Value>| {
            assert_eq!(Selection::parse(path).expect(path).of(&value), expect, "{path}");
        };
        check("/items/*/n", Some(json!([1, 2])));
        check("/items/0/a~1b", Some(json!(true)));
        check("/o/*/0", Some(json!([1, 2])));
        check("/o/z", None);
        check("/items/x", None);
        assert!(Selection::parse("items").is_err() && Selection::parse(&"/a".repeat(40)).is_err());
    }
}
