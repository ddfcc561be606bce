//! The root of a tool's schema, which every API requires to be an object. Most schemas are sent unchanged.

use serde_json::{Map, Value, json};
use toolwright_core::model::RequestTool;

use super::keyword_values::{self, KeywordForm};
use super::keywords::is_structural;
use super::refs::{RemovedSchemas, cut_cycles, cycles};
use super::restore::{RestorePlan, SchemaRestore, WRAPPER};
use super::rules::Rules;
use super::types::Types;
use super::write::{MAX_DEPTH, MAX_NODES, Node, StrictDeviation, Writer, brief, listed};
use super::{Loss, TranslatedTool, flatten};

/// References that are followed at the root.
const MAX_HOPS: usize = 8;

/// Why there is no translation.
#[derive(Debug)]
pub(super) enum ViewError {
    /// There is no strict translation.
    Inexact(StrictDeviation),
    /// There is no translation.
    Impossible(String),
}

impl From<StrictDeviation> for ViewError {
    fn from(unlike: StrictDeviation) -> Self {
        Self::Inexact(unlike)
    }
}

/// Whether a tool has no schema, which means an open object.
pub(super) fn is_open(parameters: &Value) -> bool {
    match parameters {
        Value::Null | Value::Bool(true) => true,
        Value::Object(map) => map.is_empty(),
        // PHP writes an empty object like this.
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Translates `tool` by `rules`.
pub(super) fn write(
    rules: &'static Rules,
    tool: &RequestTool,
    losses: &mut Vec<Loss>,
) -> Result<TranslatedTool, ViewError> {
    let bare;
    let mut is_bare = false;
    let schema = match &tool.parameters {
        open if is_open(open) => {
            let strict = rules.strict.is_some();
            let unlike = StrictDeviation { path: String::new(), why: "a tool without a schema".to_owned() };
            return if strict { Err(unlike.into()) } else { Ok(shown(tool, object(), None, None)) };
        }
        Value::Object(map) if are_properties(map) => {
            is_bare = true;
            bare = json!({"properties": map});
            &bare
        }
        schema @ Value::Object(map) => {
            if let Some(view) = rules.strict.is_none().then(|| unchanged(rules, map)).flatten() {
                return Ok(shown(tool, view, None, None));
            }
            schema
        }
        Value::Bool(false) => return Err(ViewError::Impossible("its schema allows no arguments at all".to_owned())),
        other => return Err(ViewError::Impossible(format!("its parameters are {}, which is no schema", brief(other)))),
    };
    let before = losses.len();
    let (view, refers) = attempt(rules, tool, schema, is_bare, losses)?;
    let cuts = if refers { cycles(schema).map_err(ViewError::Impossible)? } else { RemovedSchemas::new() };
    if cuts.is_empty() {
        return Ok(view);
    }
    losses.truncate(before);
    let schema = cut_cycles(schema, &cuts, &tool.name, losses);
    Ok(attempt(rules, tool, &schema, is_bare, losses)?.0)
}

/// The translation, and whether the schema has references.
pub(super) fn attempt(
    rules: &'static Rules,
    tool: &RequestTool,
    schema: &Value,
    is_bare: bool,
    losses: &mut Vec<Loss>,
) -> Result<(TranslatedTool, bool), ViewError> {
    let empty = Map::new();
    let map = schema.as_object().unwrap_or(&empty);
    let mut writer = Writer::new(rules, &tool.name, schema, losses);
    if is_bare {
        writer.differ("properties", "the properties stand at the root, without `properties`")?;
    }
    let types = map.get("type").map_or(Types::NONE, |types| Types::read(types).0);
    if types != Types::NONE && !types.has(Types::OBJECT) && !map.contains_key("properties") {
        return Err(ViewError::Impossible(format!("its schema takes {}, and arguments are an object", listed(types))));
    }
    let flat;
    let mut map = map;
    if let Some(keyword) = refused(&mut writer, map) {
        if !writer.rules.for_clients {
            return wrap(writer, tool, map, keyword);
        }
        flat = flatten::root(&mut writer, map);
        map = &flat;
    }
    if writer.rules.are_of_answers() && types != Types::OBJECT {
        return Err(writer.inexact(format!("{} where an object is wanted", listed(types))).into());
    }
    if types != Types::NONE && types != Types::OBJECT {
        writer.record_loss("type", format!("{} is written as object: arguments are one", listed(types)));
    }
    let narrowed;
    if types != Types::OBJECT && types != Types::NONE {
        let mut only: Map<String, Value> = map.clone();
        only.insert("type".to_owned(), json!("object"));
        narrowed = only;
        map = &narrowed;
    }
    let node = writer.map(map, true)?;
    let Node { mut view, undo, .. } = node;
    if rules.strict.is_some() && !view.contains_key("properties") {
        return Err(writer.inexact("an object of any properties, which strict tools cannot have").into());
    }
    view.shift_remove("$ref");
    if view.contains_key("type") {
        view.insert("type".to_owned(), json!("object"));
    } else {
        view.shift_insert(0, "type".to_owned(), json!("object"));
    }
    view.entry("properties").or_insert_with(|| json!({}));
    finish(writer, tool, view, undo, None)
}

/// Translates the schema as the one property of an object.
fn wrap(
    mut writer: Writer<'_, '_>,
    tool: &RequestTool,
    map: &Map<String, Value>,
    keyword: &'static str,
) -> Result<(TranslatedTool, bool), ViewError> {
    writer.refs.root_at = None;
    writer.record_loss(
        keyword,
        format!("not taken at the root: the arguments are shown as `{WRAPPER}`, and called as they are"),
    );
    let node = writer.map(map, false)?;
    let mut properties = Map::new();
    properties.insert(WRAPPER.to_owned(), Value::Object(node.view));
    let mut view = Map::new();
    view.insert("type".to_owned(), json!("object"));
    view.insert("properties".to_owned(), Value::Object(properties));
    view.insert("required".to_owned(), json!([WRAPPER]));
    if writer.rules.keeps("additionalProperties") || writer.rules.strict.is_some() {
        view.insert("additionalProperties".to_owned(), json!(false));
    }
    finish(writer, tool, view, node.undo, Some(WRAPPER))
}

fn finish(
    writer: Writer<'_, '_>,
    tool: &RequestTool,
    mut view: Map<String, Value>,
    undo: SchemaRestore,
    wrapped: Option<&'static str>,
) -> Result<(TranslatedTool, bool), ViewError> {
    let (plan, refers) = writer.finish(&mut view, undo)?;
    Ok((shown(tool, Value::Object(view), wrapped, plan), refers))
}

fn shown(
    tool: &RequestTool,
    parameters: Value,
    wrapped: Option<&'static str>,
    plan: Option<Box<RestorePlan>>,
) -> TranslatedTool {
    let (name, description) = (tool.name.clone(), tool.description.clone());
    let (exposed, namespace) = (tool.exposed, tool.namespace.clone());
    TranslatedTool { name, description, parameters, strict: false, wrapped, exposed, namespace, plan }
}

fn object() -> Value {
    json!({"type": "object", "properties": {}})
}

/// Whether `map` is a set of properties in place of a schema: no keyword, and each value is a schema.
fn are_properties(map: &Map<String, Value>) -> bool {
    map.iter().all(|(key, value)| value.is_object() && !is_structural(key, value))
}

/// Returns the keyword that prevents `map` from being the root. A reference to a plain object is expanded instead.
fn refused(writer: &mut Writer<'_, '_>, map: &Map<String, Value>) -> Option<&'static str> {
    // The parts are merged, which moves their combining keywords to the root.
    let merges = !writer.rules.keeps("allOf") && !writer.rules.for_clients;
    let mut map = map;
    for _ in 0..MAX_HOPS {
        let combined = map.iter().find_map(|(key, value)| match (key.as_str(), value) {
            ("anyOf", Value::Array(list)) if !list.is_empty() => Some("anyOf"),
            ("oneOf", Value::Array(list)) if !list.is_empty() => Some("oneOf"),
            ("allOf", Value::Array(list)) if !list.is_empty() && !merges => Some("allOf"),
            ("not", Value::Object(_)) => Some("not"),
            ("enum", Value::Array(list)) if !list.is_empty() => Some("enum"),
            ("const", _) => Some("const"),
            _ => None,
        });
        let reference = ["$ref", "$dynamicRef", "$recursiveRef"].into_iter().find(|key| map.contains_key(*key));
        let (None, Some(keyword)) = (combined, reference) else { return combined };
        match map.get(keyword).and_then(Value::as_str).and_then(|text| writer.refs.resolve(text)) {
            Some(Value::Object(target)) => map = target,
            // The writer reports it.
            _ => break,
        }
    }
    None
}

/// Names in a `required` that are compared with each other.
const MAX_REQUIRED: usize = 64;

/// Returns `root` unchanged, if non-strict `rules` allow it as it is. `None` does not mean that they do not.
pub(super) fn unchanged(rules: &Rules, root: &Map<String, Value>) -> Option<Value> {
    let is_object = root.get("type").is_some_and(|types| types == "object");
    let sound = is_object && root.contains_key("properties") && UnchangedCheck { rules, nodes: 0 }.schema(root, 0);
    sound.then(|| {
        let mut view = root.clone();
        view.shift_remove("$schema");
        Value::Object(view)
    })
}

struct UnchangedCheck<'r> {
    rules: &'r Rules,
    nodes: usize,
}

impl UnchangedCheck<'_> {
    fn schema(&mut self, map: &Map<String, Value>, depth: usize) -> bool {
        self.nodes += 1;
        if depth >= MAX_DEPTH || self.nodes > MAX_NODES {
            return false;
        }
        let is_root = depth == 0;
        let (mut is_array, mut has_items) = (false, false);
        for (key, value) in map {
            let sound = match key.as_str() {
                "$schema" => is_root,
                "type" => {
                    let (types, legal) = Types::read(value);
                    is_array = types.has(Types::ARRAY);
                    legal
                }
                "description" => value.is_string(),
                "properties" => value.as_object().is_some_and(|all| {
                    all.iter().all(|(name, inner)| self.rules.takes_name(name) && self.one(inner, depth))
                }),
                "required" => self.required(map, value),
                "items" => {
                    has_items = true;
                    self.one(value, depth)
                }
                "additionalProperties" => self.rules.keeps(key) && (value.is_boolean() || self.one(value, depth)),
                "anyOf" => !is_root && self.list(value, depth),
                "oneOf" | "allOf" => !is_root && self.rules.keeps(key) && self.list(value, depth),
                "enum" => !is_root && value.as_array().is_some_and(|values| self.rules.takes_values(values)),
                "const" => !is_root && self.rules.keeps(key),
                "exclusiveMinimum" | "exclusiveMaximum" => self.rules.keeps(key) && value.is_number(),
                _ => {
                    let form = keyword_values::form(key);
                    if form == KeywordForm::Unknown {
                        self.rules.for_clients
                    } else {
                        self.rules.keeps(key)
                            && keyword_values::is_legal(key, form, value)
                            && self.rules.keeps_value(key, value)
                    }
                }
            };
            if !sound {
                return false;
            }
        }
        has_items || !is_array
    }

    fn one(&mut self, value: &Value, depth: usize) -> bool {
        value.as_object().is_some_and(|inner| self.schema(inner, depth + 1))
    }

    fn list(&mut self, value: &Value, depth: usize) -> bool {
        value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(|inner| self.one(inner, depth)))
    }

    /// Names, each once, of properties that are declared or need not be.
    fn required(&self, map: &Map<String, Value>, value: &Value) -> bool {
        let Some(list) = value.as_array().filter(|list| list.len() <= MAX_REQUIRED) else { return false };
        let declared = map.get("properties").and_then(Value::as_object);
        let undeclared = self.rules.keeps("dependentRequired");
        list.iter().enumerate().all(|(at, name)| {
            name.as_str().is_some_and(|text| {
                declared.is_some_and(|all| all.contains_key(text)) || undeclared && self.rules.takes_name(text)
            }) && !list[..at].contains(name)
        })
    }
}
