//! The sizes that strict tools may have: OpenAI counts each tool, Anthropic the whole request.

use serde_json::{Map, Value};

/// What is counted in a view.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Size {
    properties: usize,
    optional: usize,
    unions: usize,
    depth: usize,
    values: usize,
    text: usize,
    /// The text of the longest enumeration of more than [`MANY_VALUES`].
    longest: usize,
}

const MANY_VALUES: usize = 250;

pub(super) fn size(view: &Value) -> Size {
    let mut size = Size::default();
    if let Some(map) = view.as_object() {
        count(map, 1, &mut size);
    }
    size
}

fn count(map: &Map<String, Value>, depth: usize, size: &mut Size) {
    size.depth = size.depth.max(depth);
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                let required = map.get("required").and_then(Value::as_array).map_or(0, Vec::len);
                size.properties += properties.len();
                size.optional += properties.len().saturating_sub(required);
                for (name, inner) in properties {
                    size.text += name.chars().count();
                    inner.as_object().into_iter().for_each(|inner| count(inner, depth + 1, size));
                }
            }
            ("$defs", Value::Object(definitions)) => {
                for (name, inner) in definitions {
                    size.text += name.chars().count();
                    inner.as_object().into_iter().for_each(|inner| count(inner, depth + 1, size));
                }
            }
            ("items", Value::Object(inner)) => count(inner, depth + 1, size),
            ("anyOf", Value::Array(branches)) => {
                size.unions += 1;
                branches.iter().filter_map(Value::as_object).for_each(|branch| count(branch, depth + 1, size));
            }
            ("type", Value::Array(_)) => size.unions += 1,
            ("enum", Value::Array(values)) => {
                let text: usize = values.iter().map(length).sum();
                size.values += values.len();
                size.text += text;
                if values.len() > MANY_VALUES {
                    size.longest = size.longest.max(text);
                }
            }
            ("const", value) => size.text += length(value),
            _ => {}
        }
    }
}

fn length(value: &Value) -> usize {
    value.as_str().map_or(0, |text| text.chars().count())
}

/// What is too large for OpenAI ("Structured model outputs", sections on limits of nesting, string size
/// and enumerations). Every schema inside another counts as a level, which is more than OpenAI says.
pub(super) fn over_openai(size: &Size) -> Option<String> {
    let limits = [
        (size.properties, 5_000, "properties"),
        (size.depth.saturating_sub(1), 10, "levels of nesting"),
        (size.values, 1_000, "values of enumerations"),
        (size.text, 120_000, "characters of names and values"),
        (size.longest, 15_000, "characters in one large enumeration"),
    ];
    let over = limits.into_iter().find(|(has, most, _)| has > most)?;
    Some(format!("{} {}, of which a strict tool may have {}", over.0, over.2, over.1))
}

/// What strict tools of a request to Anthropic have left ("Structured outputs", section "Schema complexity
/// limits").
#[derive(Debug, Clone)]
pub(super) struct Budget {
    tools: usize,
    optional: usize,
    unions: usize,
}

impl Budget {
    pub(super) const ANTHROPIC: Self = Self { tools: 20, optional: 24, unions: 16 };

    /// Whether a tool that has so many optional parameters, or more, can still be taken: what is known
    /// before its view is made.
    pub(super) fn admits(&self, optional: usize) -> Result<(), String> {
        self.clone().take(&Size { optional, ..Size::default() })
    }

    /// Takes one tool out of the budget, or says what it lacks.
    pub(super) fn take(&mut self, size: &Size) -> Result<(), String> {
        let wants = [
            (1, self.tools, "strict tools", 20),
            (size.optional, self.optional, "optional parameters of strict tools", 24),
            (size.unions, self.unions, "parameters of union types of strict tools", 16),
        ];
        if let Some((wants, has, what, most)) = wants.into_iter().find(|(wants, has, ..)| wants > has) {
            return Err(format!("the request may have {most} {what}; {has} are left and this tool has {wants}"));
        }
        (self.tools, self.optional, self.unions) =
            (self.tools - 1, self.optional - size.optional, self.unions - size.unions);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_are_counted() {
        let size = size(&json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": ["string", "null"], "enum": ["xy", "z", null]},
            "b": {"anyOf": [{"type": "object", "properties": {"cc": {"const": "abc"}}}, {"type": "null"}]},
        }}));
        let counted = [size.properties, size.optional, size.unions, size.depth, size.values, size.text];
        assert_eq!(counted, [3, 2, 2, 4, 3, 1 + 1 + 2 + 3 + 3]);
        assert_eq!(over_openai(&size), None);
        assert!(over_openai(&Size { properties: 5_001, ..size }).is_some_and(|why| why.contains("5000")));
        let mut budget = Budget::ANTHROPIC;
        let fits = (0..30).filter(|_| budget.take(&size).is_ok()).count();
        assert_eq!(fits, 8, "16 unions");
    }
}
