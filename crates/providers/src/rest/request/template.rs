//! Compiled texts with placeholders `${parameters.x}`.

use serde_json::Value;

use crate::rest::FieldError;

const PREFIX: &str = "parameters.";

/// Whether an argument is necessary for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// It is.
    Required,
    /// It is not.
    Optional,
}

/// One placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// The path as written, without `parameters.`.
    pub(in crate::rest) path: String,
    keys: Vec<String>,
    required: bool,
    /// Whether an empty value of a required argument is an error.
    needs_value: bool,
}

impl Parameter {
    fn parse(inside: &str, field: &str, schema: &Value) -> Result<Self, FieldError> {
        let fail = |reason: String| Err(FieldError::new(field, reason));
        let Some(path) = inside.strip_prefix(PREFIX) else {
            return fail(format!(
                "`${{{inside}}}` is not a placeholder: write ${{parameters.name}}; environment variables are expanded when the configuration is read"
            ));
        };
        let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
        if keys.iter().any(|key| key.is_empty() || key.contains(|c: char| c.is_whitespace() || c == '{' || c == '$')) {
            return fail(format!(
                "`${{{inside}}}` is malformed: write ${{parameters.name}} or ${{parameters.name.member}}"
            ));
        }
        match presence(schema, &keys) {
            ParameterPresence::Undeclared(key) => fail(format!(
                "`${{{inside}}}` uses `{key}`, which the parameters' schema does not declare: add it under properties, or set additionalProperties"
            )),
            found => {
                let required = found == ParameterPresence::Required;
                // The schema decides whether it may be null or empty, so leaving it out is intended.
                Ok(Self { path: path.to_owned(), keys, required, needs_value: false })
            }
        }
    }

    /// Creates the parameter for the whole argument `name` of an operation; the name may contain any character. A
    /// required one must have a value to send.
    pub(crate) fn argument(name: &str, need: Need) -> Self {
        let required = need == Need::Required;
        Self { path: name.to_owned(), keys: vec![name.to_owned()], required, needs_value: required }
    }

    /// Returns the argument as given, including null; `None` if it is absent.
    pub(in crate::rest) fn given<'a>(&self, arguments: &'a Value) -> Option<&'a Value> {
        self.keys.iter().try_fold(arguments, |value, key| match value {
            Value::Object(members) => members.get(key),
            Value::Array(items) => key.parse().ok().and_then(|index: usize| items.get(index)),
            _ => None,
        })
    }

    /// Returns the argument; `None` if it is absent or null.
    ///
    /// # Errors
    /// A message if it is required and absent, or null although an operation needs a value.
    pub(in crate::rest) fn value<'a>(&self, arguments: &'a Value) -> Result<Option<&'a Value>, String> {
        match self.given(arguments) {
            None if self.required => Err(format!("the parameter `{}` is required and missing", self.path)),
            Some(Value::Null) if self.needs_value => Err(format!("the parameter `{}` is required and null", self.path)),
            None | Some(Value::Null) => Ok(None),
            found => Ok(found),
        }
    }

    /// Checks a value that would be sent as nothing.
    ///
    /// # Errors
    /// A message if an operation needs a value.
    pub(in crate::rest) fn reject_empty_value(&self) -> Result<(), String> {
        if !self.needs_value {
            return Ok(());
        }
        Err(format!("the parameter `{}` is required, and an empty list or object is sent as nothing", self.path))
    }

    /// Returns the name of the argument that it is or belongs to.
    pub(in crate::rest) fn root(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }
}

#[derive(Debug, PartialEq)]
enum ParameterPresence<'a> {
    Required,
    Optional,
    Undeclared(&'a str),
}

/// Returns what a schema says about a path into its instance. Combined schemas are not searched: a path that is not
/// stated counts as optional.
fn presence<'a>(schema: &Value, keys: &'a [String]) -> ParameterPresence<'a> {
    const COMBINING: [&str; 8] =
        ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties", "unevaluatedProperties"];
    let mut schema = schema;
    let mut required = true;
    for key in keys {
        let listed =
            schema.get("required").and_then(Value::as_array).is_some_and(|names| names.iter().any(|name| name == key));
        required &= listed;
        match schema.get("properties").and_then(|properties| properties.get(key)) {
            Some(property) => schema = property,
            None => {
                let open = COMBINING.iter().any(|keyword| schema.get(keyword).is_some())
                    || schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false))
                    // The schema says nothing about the members of an array or of an untyped value.
                    || (schema.get("properties").is_none() && schema.get("additionalProperties").is_none() && !std::ptr::eq(key, &keys[0]));
                return match (open, required) {
                    (false, _) => ParameterPresence::Undeclared(key),
                    (true, true) => ParameterPresence::Required,
                    (true, false) => ParameterPresence::Optional,
                };
            }
        }
    }
    if required { ParameterPresence::Required } else { ParameterPresence::Optional }
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    Literal(String),
    Parameter(Parameter),
}

/// The treatment of a null for a placeholder that stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rest) enum Nulls {
    /// Sent as a JSON null, which deletes a value.
    Sent,
    /// Left out: queries, headers and forms have no null.
    LeftOut,
}

/// A compiled text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Template {
    pub(crate) segments: Vec<Segment>,
}

/// The result of a template.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::rest) enum Rendered<'a> {
    /// An argument itself, because the template is exactly one placeholder.
    Value(&'a Value),
    /// A text.
    Text(String),
}

impl Template {
    /// Compiles `text`, a value of `field`, against the schema of the arguments.
    ///
    /// # Errors
    /// A placeholder is malformed, not `parameters.…`, or not declared.
    pub(in crate::rest) fn compile(text: &str, field: &str, schema: &Value) -> Result<Self, FieldError> {
        let mut segments = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let Some(length) = rest[start..].find('}') else {
                return Err(FieldError::new(field, "`${` has no closing `}`"));
            };
            if start > 0 {
                segments.push(Segment::Literal(rest[..start].to_owned()));
            }
            segments.push(Segment::Parameter(Parameter::parse(&rest[start + 2..start + length], field, schema)?));
            rest = &rest[start + length + 1..];
        }
        if !rest.is_empty() {
            segments.push(Segment::Literal(rest.to_owned()));
        }
        Ok(Self { segments })
    }

    /// Returns the text of a template without placeholders.
    pub(in crate::rest) fn literal(&self) -> Option<&str> {
        match self.segments.as_slice() {
            [] => Some(""),
            [Segment::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns its placeholders.
    pub(in crate::rest) fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Parameter(parameter) => Some(parameter),
            Segment::Literal(_) => None,
        })
    }

    /// Renders the template with the arguments; `None` if an optional one is absent. In a text, values other than
    /// strings are compact JSON, and null counts as absent.
    ///
    /// # Errors
    /// A message that names a missing required argument.
    pub(in crate::rest) fn render<'a>(
        &self,
        arguments: &'a Value,
        nulls: Nulls,
    ) -> Result<Option<Rendered<'a>>, String> {
        if let [Segment::Parameter(parameter)] = self.segments.as_slice() {
            let null = parameter.given(arguments).filter(|given| nulls == Nulls::Sent && given.is_null());
            let value = if null.is_some() { null } else { parameter.value(arguments)? };
            return Ok(value.map(Rendered::Value));
        }
        self.render_text(arguments, |literal| literal.to_owned(), plain_text).map(|text| text.map(Rendered::Text))
    }

    /// Renders the template as text, with its literals and values encoded.
    ///
    /// # Errors
    /// As [`Template::render`].
    pub(in crate::rest) fn render_text(
        &self,
        arguments: &Value,
        literal: impl Fn(&str) -> String,
        value: impl Fn(&Value) -> String,
    ) -> Result<Option<String>, String> {
        let mut text = String::new();
        for segment in &self.segments {
            match segment {
                Segment::Literal(part) => text.push_str(&literal(part)),
                Segment::Parameter(parameter) => match parameter.value(arguments)? {
                    Some(found) => text.push_str(&value(found)),
                    None => return Ok(None),
                },
            }
        }
        Ok(Some(text))
    }
}

/// Returns a string unchanged, anything else as compact JSON.
pub(in crate::rest) fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {"a": {}, "b": {"type": "object", "properties": {"c": {}}, "required": ["c"]}, "l": {"type": "array"}},
            "required": ["a"],
        })
    }

    #[test]
    fn templates_render() {
        let check = |text: &str, arguments: Value, expect: Result<Option<Value>, &str>| {
            let template = Template::compile(text, "f", &schema()).expect(text);
            let rendered = template.render(&arguments, Nulls::LeftOut).map(|rendered| {
                rendered.map(|rendered| match rendered {
                    Rendered::Value(value) => value.clone(),
                    Rendered::Text(text) => text.into(),
                })
            });
            assert_eq!(
                rendered.as_ref().map_err(String::as_str),
                expect.as_ref().map_err(|e| *e),
                "{text} {arguments}"
            );
        };
        check("x", json!({}), Ok(Some(json!("x"))));
        check("${parameters.a}", json!({"a": [1]}), Ok(Some(json!([1]))));
        check("<${parameters.a}>", json!({"a": 1}), Ok(Some(json!("<1>"))));
        check("${parameters.a}${parameters.a}", json!({"a": "$"}), Ok(Some(json!("$$"))));
        check("${parameters.a}", json!({}), Err("the parameter `a` is required and missing"));
        check("${parameters.b.c}", json!({"b": {"c": true}}), Ok(Some(json!(true))));
        check("${parameters.b.c}", json!({}), Ok(None));
        check("x${parameters.b.c}", json!({"b": {"c": null}}), Ok(None));
        check("${parameters.l.1}", json!({"l": [1, 2]}), Ok(Some(json!(2))));
    }

    #[test]
    fn unknown_placeholders_are_errors() {
        for (text, fragment) in [
            ("${FOO}", "`${FOO}` is not a placeholder"),
            ("${parameters.}", "malformed"),
            ("${parameters.a..b}", "malformed"),
            ("${parameters.a", "no closing"),
            ("${parameters.z}", "does not declare"),
            ("${parameters.b.z}", "uses `z`"),
        ] {
            let complaint = Template::compile(text, "f", &schema()).expect_err(text);
            assert!(complaint.field == "f" && complaint.reason.contains(fragment), "{complaint:?}");
        }
        assert!(Template::compile("${parameters.z}", "f", &json!({"additionalProperties": true})).is_ok());
        assert!(Template::compile("${parameters.z}", "f", &json!({"$ref": "#/$defs/x"})).is_ok());
    }
}
