//! Tools that answer with a text, made of a template over the call's arguments.

use serde_json::Value;

/// What a text comes to at most, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// A text with `${parameters.x}` in it, compiled once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextTemplate {
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Text(String),
    Parameter(Vec<String>),
}

impl TextTemplate {
    /// Compiles `text`; what it names must be among the properties of `schema`.
    ///
    /// # Errors
    /// In words.
    pub(super) fn compile(text: &str, schema: &Value) -> Result<Self, String> {
        let mut segments = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let (before, after) = (&rest[..start], &rest[start + 2..]);
            let end = after.find('}').ok_or("its template has `${` without `}`")?;
            let inside = &after[..end];
            let path = inside
                .strip_prefix("parameters.")
                .ok_or_else(|| format!("its template has `${{{inside}}}`: only ${{parameters.name}} is filled in"))?;
            let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
            if schema.get("properties").and_then(|properties| properties.get(&keys[0])).is_none() {
                return Err(format!("its template uses `{path}`, which is not among its parameters"));
            }
            segments.push(Segment::Text(before.to_owned()));
            segments.push(Segment::Parameter(keys));
            rest = &after[end + 1..];
        }
        segments.push(Segment::Text(rest.to_owned()));
        Ok(Self { segments })
    }

    /// The text for these arguments: texts as they are, other values as JSON, a missing one as nothing.
    ///
    /// # Errors
    /// When it comes to more than a mebibyte.
    pub(super) fn render(&self, arguments: &Value) -> Result<String, String> {
        let mut out = String::new();
        for segment in &self.segments {
            match segment {
                Segment::Text(text) => out.push_str(text),
                Segment::Parameter(keys) => match keys.iter().try_fold(arguments, |value, key| value.get(key)) {
                    None | Some(Value::Null) => {}
                    Some(Value::String(text)) => out.push_str(text),
                    Some(other) => out.push_str(&other.to_string()),
                },
            }
            if out.len() > MAX_BYTES {
                return Err(format!("the text is longer than {MAX_BYTES} bytes"));
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_template_is_filled_in_once() {
        let schema = json!({"properties": {"a": {}, "b": {}}});
        for (text, arguments, expect) in [
            ("Hello ${parameters.a}!", json!({"a": "you"}), Ok("Hello you!")),
            ("${parameters.a}${parameters.b.c}", json!({"a": [1], "b": {"c": true}}), Ok("[1]true")),
            ("x${parameters.a}y", json!({}), Ok("xy")),
            ("${parameters.a}", json!({"a": "${parameters.b}", "b": "never"}), Ok("${parameters.b}")),
            ("plain $", json!({}), Ok("plain $")),
            ("${parameters.z}", json!({}), Err("not among its parameters")),
            ("${HOME}", json!({}), Err("only ${parameters.name}")),
            ("${parameters.a", json!({}), Err("without `}`")),
        ] {
            let made = TextTemplate::compile(text, &schema).and_then(|template| template.render(&arguments));
            match (made, expect) {
                (Ok(made), Ok(expect)) => assert_eq!(made, expect, "{text}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
