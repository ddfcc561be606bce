//! Merges schemas: two that a value must both satisfy, and a root of alternatives into one object, whose description
//! says how the alternatives differ.

use serde_json::{Map, Value, json};

use super::keyword_values;
use super::keywords::{append_description, limited};
use super::object::names;
use super::types::Types;
use super::write::Writer;

/// Bounds on nested schemas that are merged, and on all of them.
const MAX_DEPTH: usize = 8;
const MAX_SCHEMAS: usize = 200;
/// The longest sentence about alternatives, in bytes.
const MAX_SENTENCE: usize = 800;

const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
const COMBINING: [&str; 6] = ["allOf", "anyOf", "oneOf", "not", "enum", "const"];

/// `root` without combining keywords. Every object that fits `root` fits it, unless alternatives declare a property in
/// different ways.
pub(super) fn root(writer: &mut Writer<'_, '_>, root: &Map<String, Value>) -> Map<String, Value> {
    let mut flattening = Flattening { writer, schemas: 0, sentences: Vec::new() };
    let mut flat = flattening.object(root, 0);
    let sentences = flattening.sentences;
    append_description(&mut flat, &sentences);
    flat
}

struct Flattening<'w, 'a, 'l> {
    writer: &'w mut Writer<'a, 'l>,
    schemas: usize,
    sentences: Vec<String>,
}

impl Flattening<'_, '_, '_> {
    fn object(&mut self, map: &Map<String, Value>, depth: usize) -> Map<String, Value> {
        self.schemas += 1;
        let mut whole = map.clone();
        whole.retain(|key, _| !COMBINING.contains(&key.as_str()) && !REFERENCES.contains(&key.as_str()));
        if depth > MAX_DEPTH || self.schemas > MAX_SCHEMAS {
            self.writer.record_loss("schema", "too much is combined at the root: some of it is not shown");
            return whole;
        }
        let reference = REFERENCES.iter().find_map(|key| map.get(*key)?.as_str());
        if let Some(Value::Object(target)) = reference.and_then(|text| self.writer.refs.resolve(text)) {
            self.writer.refers = true;
            let part = self.object(target, depth + 1);
            whole = merge(whole, &part).0;
        }
        for part in list(map, "allOf").iter().filter_map(Value::as_object) {
            let part = self.object(part, depth + 1);
            whole = merge(whole, &part).0;
        }
        for keyword in ["anyOf", "oneOf"] {
            let all = list(map, keyword);
            if all.is_empty() {
                continue;
            }
            // Arguments are an object, so alternatives for other types never match; `true` matches any object.
            let open = Map::new();
            let alternatives = all.iter().filter_map(|one| match one {
                Value::Bool(true) => Some(&open),
                one => one.as_object().filter(|one| takes_objects(one)),
            });
            let alternatives: Vec<Map<String, Value>> = alternatives.map(|one| self.object(one, depth + 1)).collect();
            let described = describe_alternatives(keyword, &alternatives);
            let note = match &described {
                Some(_) => "not taken at the root: merged into one object, and told apart in the description",
                None => "not taken at the root: merged into one object",
            };
            self.writer.record_loss(keyword, note);
            self.sentences.extend(described);
            let united = united(&whole, &alternatives);
            whole = merge(whole, &united).0;
        }
        for keyword in ["not", "enum", "const"] {
            let Some(value) = map.get(keyword) else { continue };
            let sentence = keyword_values::sentence(keyword, value);
            let fate = if sentence.is_some() { "said in the description" } else { "left out" };
            self.writer.record_loss(keyword, format!("not taken at the root: {fate}"));
            self.sentences.extend(sentence);
        }
        whole
    }
}

fn list<'v>(map: &'v Map<String, Value>, keyword: &str) -> &'v [Value] {
    map.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn takes_objects(map: &Map<String, Value>) -> bool {
    let types = map.get("type").map_or(Types::NONE, |types| Types::read(types).0);
    types == Types::NONE || types.has(Types::OBJECT)
}

fn properties(map: &Map<String, Value>) -> Option<&Map<String, Value>> {
    map.get("properties")?.as_object()
}

/// Merges `alternatives` into `base`: properties of any of them, required names common to all.
fn united(base: &Map<String, Value>, alternatives: &[Map<String, Value>]) -> Map<String, Value> {
    let mut shown: Map<String, Value> = Map::new();
    for name in alternatives.iter().filter_map(properties).flat_map(Map::keys) {
        if shown.contains_key(name) {
            continue;
        }
        let mut forms: Vec<&Value> = Vec::new();
        let mut everywhere = true;
        for alternative in alternatives {
            match properties(alternative).and_then(|all| all.get(name)) {
                Some(form) if !forms.contains(&form) => forms.push(form),
                Some(_) => {}
                None => everywhere = false,
            }
        }
        // An alternative that does not declare it leaves it to the rest of the schema.
        if everywhere || !properties(base).is_some_and(|all| all.contains_key(name)) {
            shown.insert(name.clone(), one_of(&forms));
        }
    }
    let mut united = Map::new();
    if !shown.is_empty() {
        united.insert("properties".to_owned(), Value::Object(shown));
    }
    let required: Vec<&str> = common(alternatives);
    if !required.is_empty() {
        united.insert("required".to_owned(), json!(required));
    }
    let is_closed = |one: &Map<String, Value>| {
        one.get("additionalProperties") == Some(&Value::Bool(false)) && !one.contains_key("patternProperties")
    };
    if !alternatives.is_empty() && alternatives.iter().all(is_closed) {
        united.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    united
}

/// The names that all require.
fn common(alternatives: &[Map<String, Value>]) -> Vec<&str> {
    let Some((first, others)) = alternatives.split_first() else { return Vec::new() };
    let by_all = |name: &&str| others.iter().all(|other| names(other.get("required")).any(|known| known == *name));
    let mut common: Vec<&str> = names(first.get("required")).filter(by_all).collect();
    common.dedup();
    common
}

/// Merges the schemas of one property. Enumerations are joined.
fn one_of(forms: &[&Value]) -> Value {
    if let [only] = forms {
        return (*only).clone();
    }
    let values: Option<Vec<Vec<&Value>>> = forms.iter().map(|form| limited(form)).collect();
    let Some(values) = values else { return json!({"anyOf": forms}) };
    let mut listed: Vec<&Value> = Vec::new();
    for value in values.into_iter().flatten() {
        if !listed.contains(&value) {
            listed.push(value);
        }
    }
    let mut one = Map::new();
    let same = |key: &str| forms[0].get(key).filter(|own| forms.iter().all(|form| form.get(key) == Some(own)));
    for key in ["type", "description", "title"] {
        if let Some(value) = same(key) {
            one.insert(key.to_owned(), value.clone());
        }
    }
    one.insert("enum".to_owned(), json!(listed));
    Value::Object(one)
}

/// Describes what each alternative requires beyond the others: constants and names.
fn describe_alternatives(keyword: &str, alternatives: &[Map<String, Value>]) -> Option<String> {
    let common = common(alternatives);
    let needs = |one: &Map<String, Value>| {
        let constant = |name: &str| {
            let values = limited(properties(one)?.get(name)?)?;
            let [value] = values[..] else { return None };
            Some(format!("`{name}` = {}", keyword_values::quoted(value, 100).ok()?))
        };
        let needed = names(one.get("required"))
            .filter_map(|name| constant(name).or_else(|| (!common.contains(&name)).then(|| format!("`{name}`"))));
        match needed.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "nothing more".to_owned(),
            some => some,
        }
    };
    let all: Vec<String> = alternatives.iter().map(needs).collect();
    if all.windows(2).all(|pair| pair[0] == pair[1]) {
        return None;
    }
    let lead = if keyword == "oneOf" { "Needs exactly one of these" } else { "Needs at least one of these" };
    let text = format!("{lead}: {}.", all.join("; or "));
    (text.len() <= MAX_SENTENCE).then_some(text)
}

/// Nesting depth of merged properties; below it the first one is kept.
const MAX_MERGE_DEPTH: usize = 16;

/// Merges `first` and `second`, and returns whether the result is exact. For conflicting
/// keywords, `first` counts.
pub(super) fn merge(first: Map<String, Value>, second: &Map<String, Value>) -> (Map<String, Value>, bool) {
    merge_at(first, second, 0)
}

fn merge_at(mut first: Map<String, Value>, second: &Map<String, Value>, depth: usize) -> (Map<String, Value>, bool) {
    let mut exact = !open_and_closed(&first, second) && !open_and_closed(second, &first);
    for (key, value) in second {
        let Some(own) = first.get_mut(key) else {
            first.insert(key.clone(), value.clone());
            continue;
        };
        if own == value || keyword_values::is_annotation(key, value) {
            continue;
        }
        exact &= match (key.as_str(), &mut *own, value) {
            ("properties", Value::Object(own), Value::Object(other)) => merge_properties(own, other, depth),
            ("items", Value::Object(one), Value::Object(other)) if depth < MAX_MERGE_DEPTH => {
                let (both, same) = merge_at(std::mem::take(one), other, depth + 1);
                *one = both;
                same
            }
            ("required", Value::Array(own), Value::Array(other)) => {
                let new = other.iter().filter(|name| !own.contains(name)).cloned().collect::<Vec<_>>();
                own.extend(new);
                true
            }
            ("enum", Value::Array(own), Value::Array(other)) => {
                own.retain(|value| other.contains(value));
                !own.is_empty()
            }
            ("type", own, other) => {
                let (a, b) = (Types::read(own).0, Types::read(other).0);
                let both = if a == Types::NONE {
                    b
                } else if b == Types::NONE {
                    a
                } else {
                    a.and(b)
                };
                if both != Types::NONE {
                    *own = both.to_value();
                }
                both != Types::NONE
            }
            ("minimum" | "minLength" | "minItems" | "minProperties" | "exclusiveMinimum", own, other) => {
                bound(own, other, |a, b| a < b)
            }
            ("maximum" | "maxLength" | "maxItems" | "maxProperties" | "exclusiveMaximum", own, other) => {
                bound(own, other, |a, b| a > b)
            }
            ("$defs" | "definitions" | "$schema" | "$id" | "id" | "$anchor", _, _) => true,
            _ => false,
        };
    }
    (first, exact)
}

/// Whether `closed` forbids properties that only `other` declares, so that properties cannot be combined.
fn open_and_closed(closed: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let declared = |schema: &Map<String, Value>, name: &str| {
        schema.get("properties").and_then(Value::as_object).is_some_and(|properties| properties.contains_key(name))
    };
    let limited = ["additionalProperties", "unevaluatedProperties"]
        .iter()
        .any(|keyword| closed.get(*keyword).is_some_and(|value| !matches!(value, Value::Bool(true))));
    limited
        && other
            .get("properties")
            .and_then(Value::as_object)
            .is_some_and(|properties| properties.keys().any(|name| !declared(closed, name)))
}

fn merge_properties(own: &mut Map<String, Value>, other: &Map<String, Value>, depth: usize) -> bool {
    let mut exact = true;
    for (name, value) in other {
        match (own.get_mut(name), value) {
            (None, _) => {
                own.insert(name.clone(), value.clone());
            }
            (Some(Value::Object(one)), Value::Object(two)) if depth < MAX_MERGE_DEPTH => {
                let (both, same) = merge_at(std::mem::take(one), two, depth + 1);
                *one = both;
                exact &= same;
            }
            (Some(one), two) => exact &= one == two,
        }
    }
    exact
}

fn bound(own: &mut Value, other: &Value, weaker: impl Fn(f64, f64) -> bool) -> bool {
    let (Some(a), Some(b)) = (own.as_f64(), other.as_f64()) else { return false };
    if weaker(a, b) {
        *own = other.clone();
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merged_schemas_state_common_parts_once() {
        let check = |first: Value, second: Value, expect: Value, exact: bool| {
            let map = |value: &Value| value.as_object().cloned().expect("a map");
            let (merged, same) = merge(map(&first), &map(&second));
            assert_eq!((Value::Object(merged), same), (expect, exact), "{first} and {second}");
        };
        check(
            json!({"description": "own", "properties": {"a": {"minimum": 1}}, "required": ["a"]}),
            json!({"description": "other", "properties": {"a": {"minimum": 3}, "b": {}}, "required": ["b", "a"]}),
            json!({"description": "own", "properties": {"a": {"minimum": 3}, "b": {}}, "required": ["a", "b"]}),
            true,
        );
        check(json!({"type": ["string", "integer"]}), json!({"type": "number"}), json!({"type": "integer"}), true);
        check(json!({"type": "string"}), json!({"type": "array"}), json!({"type": "string"}), false);
        check(json!({"enum": [1, 2]}), json!({"enum": [2, 3]}), json!({"enum": [2]}), true);
        check(json!({"pattern": "a"}), json!({"pattern": "b"}), json!({"pattern": "a"}), false);
        check(
            json!({"additionalProperties": false}),
            json!({"properties": {"a": {}}}),
            json!({"additionalProperties": false, "properties": {"a": {}}}),
            false,
        );
    }
}
