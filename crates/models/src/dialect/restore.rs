//! Converts a model's arguments for a translated schema back to the tool's own schema, and those of past calls the
//! other way. [`PortableSchema`] is the translation for MCP clients.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use toolwright_core::model::RequestTool;

use super::root::{self, ViewError};
use super::types::Types;
use super::write::StrictDeviation;
use super::{Dialect, Loss, TranslatedTool, rules};

/// The property that holds the arguments if a schema's root is wrapped.
pub(super) const WRAPPER: &str = "input";
/// Nested values that are converted.
const MAX_DEPTH: usize = 160;
/// Bound on the steps for one call: nested alternatives multiply. The rest is left as it is, and checked as such.
const MAX_STEPS: usize = 500_000;

/// How the arguments of one tool are converted back.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RestorePlan {
    pub(super) root: SchemaRestore,
    /// By the `$ref` in the translation.
    pub(super) shared: BTreeMap<String, SchemaRestore>,
}

/// The changes in the translation of one schema.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct SchemaRestore {
    pub(super) members: Vec<Member>,
    pub(super) items: Option<Box<SchemaRestore>>,
    /// One for each branch of the translated `anyOf` or `oneOf`; empty if none changed anything.
    pub(super) union: Vec<SchemaRestore>,
    /// The `$ref` in the translation.
    pub(super) shared: Option<String>,
}

/// A property.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Member {
    pub(super) name: String,
    /// Its name in the translation, if different.
    pub(super) alias: Option<String>,
    /// Whether null in the translation means that it is absent.
    pub(super) null_is_absent: bool,
    pub(super) undo: SchemaRestore,
}

impl SchemaRestore {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.items.is_none() && self.union.is_empty() && self.shared.is_none()
    }
}

/// Converts arguments to the tool's own schema; `None` if there is nothing to convert.
pub(super) fn restore(
    plan: Option<&RestorePlan>,
    wrapped: bool,
    parameters: &Value,
    arguments: Value,
) -> Option<Value> {
    let mut arguments = arguments;
    let mut changed = false;
    let mut view = parameters;
    if wrapped {
        view = parameters.pointer("/properties/input").unwrap_or(parameters);
        if let Some(inner) = arguments.as_object_mut().and_then(|map| map.shift_remove(WRAPPER)) {
            arguments = inner;
            changed = true;
        }
    }
    if let Some(plan) = plan {
        let mut walk = Walk { plan, parameters, changed, steps: 0 };
        walk.restore(&plan.root, view, &mut arguments, 0);
        changed = walk.changed;
    }
    changed.then_some(arguments)
}

/// The inverse of [`restore`].
pub(super) fn replay(
    plan: Option<&RestorePlan>,
    wrapped: bool,
    parameters: &Value,
    arguments: &Value,
) -> Option<Value> {
    if plan.is_none() && !wrapped {
        return None;
    }
    let view = if wrapped { parameters.pointer("/properties/input").unwrap_or(parameters) } else { parameters };
    let mut shown = arguments.clone();
    let mut changed = wrapped;
    if let Some(plan) = plan {
        let mut walk = Walk { plan, parameters, changed, steps: 0 };
        walk.replay(&plan.root, view, &mut shown, 0);
        changed = walk.changed;
    }
    if wrapped {
        let mut outer = Map::new();
        outer.insert(WRAPPER.to_owned(), shown);
        shown = Value::Object(outer);
    }
    changed.then_some(shown)
}

struct Walk<'v> {
    plan: &'v RestorePlan,
    parameters: &'v Value,
    changed: bool,
    steps: usize,
}

impl<'v> Walk<'v> {
    fn restore(&mut self, undo: &SchemaRestore, view: &'v Value, value: &mut Value, depth: usize) {
        self.steps += 1;
        if depth > MAX_DEPTH || self.steps > MAX_STEPS {
            return;
        }
        if let Some((inner, view)) = self.shared(undo) {
            self.restore(inner, view, value, depth + 1);
        }
        if !undo.union.is_empty() {
            let fitting = branches(view).position(|branch| self.fits(branch, value, 0));
            // If none fits, assume the first branch with changes.
            let at = fitting.or_else(|| undo.union.iter().position(|undo| !undo.is_empty()));
            if let Some((undo, branch)) = at.and_then(|at| Some((undo.union.get(at)?, branches(view).nth(at)?))) {
                self.restore(undo, branch, value, depth + 1);
            }
        }
        match value {
            Value::Array(items) => {
                if let (Some(undo), Some(view)) = (&undo.items, view.get("items")) {
                    items.iter_mut().for_each(|item| self.restore(undo, view, item, depth + 1));
                }
            }
            Value::Object(map) if !undo.members.is_empty() => {
                for (shown, mut inner) in std::mem::take(map) {
                    let Some(member) = undo.members.iter().find(|m| m.alias.as_ref().unwrap_or(&m.name) == &shown)
                    else {
                        map.insert(shown, inner);
                        continue;
                    };
                    if member.null_is_absent && inner.is_null() {
                        self.changed = true;
                        continue;
                    }
                    if let Some(view) = view.get("properties").and_then(|all| all.get(&shown)) {
                        self.restore(&member.undo, view, &mut inner, depth + 1);
                    }
                    self.changed |= member.alias.is_some();
                    map.insert(member.name.clone(), inner);
                }
            }
            _ => {}
        }
    }

    fn replay(&mut self, undo: &SchemaRestore, view: &'v Value, value: &mut Value, depth: usize) {
        self.steps += 1;
        if depth > MAX_DEPTH || self.steps > MAX_STEPS {
            return;
        }
        match value {
            Value::Array(items) => {
                if let (Some(undo), Some(view)) = (&undo.items, view.get("items")) {
                    items.iter_mut().for_each(|item| self.replay(undo, view, item, depth + 1));
                }
            }
            Value::Object(map) if !undo.members.is_empty() => {
                for (name, mut inner) in std::mem::take(map) {
                    let Some(member) = undo.members.iter().find(|member| member.name == name) else {
                        map.insert(name, inner);
                        continue;
                    };
                    let shown = member.alias.as_ref().unwrap_or(&name);
                    if let Some(view) = view.get("properties").and_then(|all| all.get(shown)) {
                        self.replay(&member.undo, view, &mut inner, depth + 1);
                    }
                    self.changed |= member.alias.is_some();
                    map.insert(shown.clone(), inner);
                }
                for member in undo.members.iter().filter(|member| member.null_is_absent) {
                    let shown = member.alias.as_ref().unwrap_or(&member.name);
                    if !map.contains_key(shown) {
                        map.insert(shown.clone(), Value::Null);
                        self.changed = true;
                    }
                }
            }
            _ => {}
        }
        for (undo, branch) in undo.union.iter().zip(branches(view)) {
            let mut candidate = value.clone();
            let before = self.changed;
            self.replay(undo, branch, &mut candidate, depth + 1);
            if self.fits(branch, &candidate, 0) {
                *value = candidate;
                break;
            }
            self.changed = before;
        }
        if let Some((inner, view)) = self.shared(undo) {
            self.replay(inner, view, value, depth + 1);
        }
    }

    fn shared(&self, undo: &SchemaRestore) -> Option<(&'v SchemaRestore, &'v Value)> {
        let reference = undo.shared.as_deref()?;
        let view = self.parameters.pointer(reference.strip_prefix('#')?)?;
        let undo = if reference == "#" { &self.plan.root } else { self.plan.shared.get(reference)? };
        Some((undo, view))
    }

    /// Whether `value` has the shape of `view`, which is enough to choose a branch of a union.
    fn fits(&mut self, view: &Value, value: &Value, depth: usize) -> bool {
        self.steps += 1;
        if depth > MAX_DEPTH || self.steps > MAX_STEPS {
            return true;
        }
        let root = self.parameters;
        let referred = view.get("$ref").and_then(Value::as_str).and_then(|text| root.pointer(text.strip_prefix('#')?));
        let properties = view.get("properties").and_then(Value::as_object);
        let shape = match value {
            Value::Object(map) => {
                let required = view.get("required").and_then(Value::as_array);
                let has = |name: &Value| name.as_str().is_none_or(|name| map.contains_key(name));
                let closed = view.get("additionalProperties") == Some(&Value::Bool(false));
                required.is_none_or(|all| all.iter().all(has))
                    && map.iter().all(|(name, inner)| match properties.and_then(|all| all.get(name)) {
                        Some(view) => self.fits(view, inner, depth + 1),
                        None => !closed,
                    })
            }
            Value::Array(items) => {
                view.get("items").is_none_or(|view| items.iter().all(|item| self.fits(view, item, depth + 1)))
            }
            _ => true,
        };
        shape
            && view.get("type").is_none_or(|types| Types::read(types).0.allow(value))
            && view.get("enum").and_then(Value::as_array).is_none_or(|values| values.contains(value))
            && view.get("const").is_none_or(|constant| constant == value)
            && referred.is_none_or(|view| self.fits(view, value, depth + 1))
            && (branches(view).next().is_none() || branches(view).any(|branch| self.fits(branch, value, depth + 1)))
    }
}

fn branches(view: &Value) -> impl Iterator<Item = &Value> {
    view.get("anyOf").or_else(|| view.get("oneOf")).and_then(Value::as_array).into_iter().flatten()
}

/// A tool's schema in a form that every MCP client in use supports. Calls are still checked against the tool's own
/// schema.
#[derive(Debug, Clone, PartialEq)]
pub struct PortableSchema {
    view: Option<TranslatedTool>,
    schema: Value,
    losses: Vec<Loss>,
}

impl PortableSchema {
    /// The portable form of a schema; `name` is the tool's, for [`PortableSchema::losses`]. There always is one: a schema that allows
    /// no arguments, or that cannot be followed, becomes an open object.
    #[must_use]
    pub fn new(name: &str, parameters: &Value) -> Self {
        let tool = RequestTool { name: name.to_owned(), parameters: parameters.clone(), ..RequestTool::default() };
        let mut losses = Vec::new();
        match root::write(rules::rules(Dialect::Portable, false), &tool, &mut losses) {
            Ok(mut view) => Self { schema: view.parameters.take(), view: Some(view), losses },
            Err(ViewError::Inexact(StrictDeviation { why, .. }) | ViewError::Impossible(why)) => {
                let note = format!("shown as an object of anything: {why}");
                let loss = Loss { tool: tool.name, path: String::new(), keyword: "schema".to_owned(), note };
                Self { view: None, schema: json!({"type": "object", "properties": {}}), losses: vec![loss] }
            }
        }
    }

    /// The schema to list: an object with `properties`, without combining keywords at the root.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Differences between the tool's own schema and this form.
    #[must_use]
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// Whether call arguments must be converted back, see [`PortableSchema::restore`].
    #[must_use]
    pub fn renames(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.plan.is_some())
    }

    /// The arguments of a call by the tool's own schema: properties by their own names.
    #[must_use]
    pub fn restore(&self, arguments: Value) -> Value {
        let Some(plan) = self.view.as_ref().and_then(|view| view.plan.as_deref()) else { return arguments };
        // The portable form is never wrapped: its root is merged.
        restore(Some(plan), false, &self.schema, arguments.clone()).unwrap_or(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_by_shown_names_are_changed_back() {
        let schema = json!({
            "type": "object",
            "properties": {"$.xgafv": {"type": "string"}, "list": {"type": "array", "items": {"properties": {"a b": {}}}}},
        });
        let portable = PortableSchema::new("t", &schema);
        let shown: Vec<&String> = portable.schema()["properties"].as_object().expect("properties").keys().collect();
        let inner = portable.schema()["properties"]["list"]["items"]["properties"].as_object().expect("properties");
        let inner = inner.keys().next().expect("a name");
        assert!(shown[0] != "$.xgafv" && inner != "a b", "{}", portable.schema());
        let mut call = json!({"list": [{}]});
        call[shown[0].as_str()] = json!("1");
        call["list"][0][inner.as_str()] = json!(2);
        let own = json!({"$.xgafv": "1", "list": [{"a b": 2}]});
        assert_eq!(portable.restore(call), own);
        assert_eq!(portable.restore(own.clone()), own, "own names stay");
        assert_eq!(portable.losses().len(), 2);
    }

    #[test]
    fn empty_schema_is_listed_as_open_object() {
        for schema in [json!(false), json!({"type": "string"}), json!(7)] {
            let portable = PortableSchema::new("t", &schema);
            assert_eq!(*portable.schema(), json!({"type": "object", "properties": {}}), "{schema}");
            assert_eq!((portable.losses().len(), portable.losses()[0].keyword.as_str()), (1, "schema"));
        }
        assert!(
            PortableSchema::new("t", &json!(null)).losses().is_empty(),
            "a tool without a schema has nothing to lose"
        );
    }

    fn with(property: Value) -> Value {
        json!({"type": "object", "properties": {"p": property}})
    }

    /// The portable form of a root, and the keywords that it loses.
    fn root(schema: Value, expect: Value, lost: &[&str]) {
        let portable = PortableSchema::new("t", &schema);
        assert_eq!(*portable.schema(), expect, "{schema:#}\n{:#}\n{:#?}", portable.schema(), portable.losses());
        let keywords: Vec<&str> = portable.losses().iter().map(|loss| loss.keyword.as_str()).collect();
        assert_eq!(keywords, lost, "{:#?}", portable.losses());
    }

    fn property(schema: Value, expect: Value, lost: &[&str]) {
        root(with(schema), with(expect), lost);
    }

    #[test]
    fn sound_schema_is_listed_unchanged() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": {"a": {"type": "string", "x-mcp-header": "A", "optional": true}}, "required": ["a"],
            "additionalProperties": false, "x-later": 1,
        });
        let mut expect = schema.clone();
        expect.as_object_mut().expect("object").remove("$schema");
        root(schema, expect, &[]);
        root(json!({}), json!({"type": "object", "properties": {}}), &[]);
        root(json!({"type": "object"}), json!({"type": "object", "properties": {}}), &[]);
    }

    #[test]
    fn root_alternatives_of_required_are_described() {
        root(
            json!({
                "type": "object", "properties": {"route": {"type": "string"}, "file": {"type": "string"}},
                "anyOf": [{"required": ["route"]}, {"required": ["file"]}],
            }),
            json!({
                "type": "object", "properties": {"route": {"type": "string"}, "file": {"type": "string"}},
                "description": "Needs at least one of these: `route`; or `file`.",
            }),
            &["anyOf"],
        );
    }

    #[test]
    fn root_tagged_union_becomes_one_object() {
        let form = |kind: &str, name: &str, types: &str| {
            json!({
                "type": "object", "properties": {"kind": {"type": "string", "const": kind}, "id": {"type": types}, name: {"type": "number"}},
                "required": ["kind", name], "additionalProperties": false,
            })
        };
        root(
            json!({"oneOf": [form("circle", "r", "string"), {"$ref": "#/$defs/Square"}, {"type": "null"}], "$defs": {"Square": form("square", "side", "integer")}}),
            json!({
                "type": "object",
                "properties": {
                    "kind": {"type": "string", "enum": ["circle", "square"]}, "id": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                    "r": {"type": "number"}, "side": {"type": "number"},
                },
                "required": ["kind"], "additionalProperties": false,
                "description": "Needs exactly one of these: `kind` = \"circle\", `r`; or `kind` = \"square\", `side`.",
            }),
            &["oneOf"],
        );
    }

    #[test]
    fn root_all_of_parts_are_merged() {
        root(
            json!({
                "allOf": [
                    {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                    {"anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, {"required": ["a"]}]},
                ],
                "not": {"required": ["c"]},
            }),
            json!({
                "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"],
                "description": "Needs at least one of these: `b`; or `a`. JSON Schema `not`: {\"required\":[\"c\"]}.",
            }),
            &["anyOf", "not"],
        );
        root(
            json!({"enum": [{"a": 1}]}),
            json!({"type": "object", "description": "One of: {\"a\":1}.", "properties": {}}),
            &["enum"],
        );
    }

    #[test]
    fn alternatives_that_recurse_to_the_root_end() {
        let schema = json!({"anyOf": [{"$ref": "#"}, {"properties": {"a": {"$ref": "#"}}}]});
        let portable = PortableSchema::new("t", &schema);
        assert!(portable.schema()["properties"].is_object() && portable.schema().get("anyOf").is_none());
    }

    #[test]
    fn tuple_items_become_items_of_any_place() {
        let number = || json!({"type": "number"});
        property(
            json!({"type": "array", "items": [number(), number()], "minItems": 2, "maxItems": 2}),
            json!({"type": "array", "items": number(), "minItems": 2, "maxItems": 2}),
            &["items"],
        );
        property(
            json!({"type": "array", "prefixItems": [{"type": "string", "title": "key"}, number()], "items": false}),
            json!({
                "type": "array", "maxItems": 2, "items": {"anyOf": [{"type": "string", "title": "key"}, number()]},
                "description": "Items in this order: key (string), then number.",
            }),
            &["prefixItems"],
        );
        property(
            json!({"type": "array", "prefixItems": [number()], "items": {"type": "boolean"}}),
            json!({"type": "array", "items": {"anyOf": [number(), {"type": "boolean"}]}, "description": "Items in this order: number."}),
            &["prefixItems"],
        );
    }

    #[test]
    fn tuple_item_properties_are_changed_back() {
        let schema = with(
            json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "object", "properties": {"a b": {}}}]}),
        );
        let portable = PortableSchema::new("t", &schema);
        let named = portable.schema().pointer("/properties/p/items/anyOf/1/properties").and_then(Value::as_object);
        let name = named.and_then(|all| all.keys().next()).expect("a name");
        assert_ne!(name, "a b");
        let mut call = json!({"p": ["x", {}]});
        call["p"][1][name.as_str()] = json!(1);
        assert_eq!(portable.restore(call), json!({"p": ["x", {"a b": 1}]}));
    }

    #[test]
    fn deeper_combinations_become_any_of() {
        property(
            json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}),
            json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
            &["oneOf"],
        );
        property(
            json!({"allOf": [{"type": "string"}, {"minLength": 1}]}),
            json!({"type": "string", "minLength": 1}),
            &[],
        );
        property(json!(true), json!({}), &[]);
        property(json!({"type": "array", "items": true}), json!({"type": "array", "items": {}}), &[]);
        property(json!({"type": "array"}), json!({"type": "array", "items": {}}), &[]);
        property(
            json!({"type": "string", "not": {"const": "a"}}),
            json!({"type": "string", "description": "JSON Schema `not`: {\"const\":\"a\"}."}),
            &["not"],
        );
    }
}
