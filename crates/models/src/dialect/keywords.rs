//! The keywords of one schema that depend on each other: types, arrays, unions.

use serde_json::{Map, Value, json};

use super::keyword_values;
use super::object::{names, nullable};
use super::restore::SchemaRestore;
use super::types::Types;
use super::write::{Node, StrictDeviation, WriteResult, Writer, brief, listed};

impl Writer<'_, '_> {
    /// Translates `map`, with `reference` for its `$ref`.
    pub(super) fn keywords(
        &mut self,
        map: &Map<String, Value>,
        is_root: bool,
        reference: Option<(&str, String)>,
    ) -> WriteResult {
        // Room for an added type, and for the keyword that closes an object.
        let mut node = Node { view: Map::with_capacity(map.len() + 2), ..Node::default() };
        let (types, _) = map.get("type").map_or((Types::NONE, true), Types::read);
        let mut replaced = "";
        if let Some((keyword, at)) = reference {
            node.undo.shared = Some(at.clone());
            node.view.insert("$ref".to_owned(), Value::String(at));
            replaced = keyword;
        }
        for (key, value) in map {
            match key.as_str() {
                keyword if keyword == replaced => {}
                "type" => self.types(value, &mut node),
                "description" => self.description(value, &mut node),
                "properties" => self.object(map, value, is_root, &mut node)?,
                "required" => self.required(map, value, &mut node)?,
                "items" => self.items(map, value, &mut node)?,
                "prefixItems" => self.prefix_items(map, value, &mut node)?,
                "enum" => self.enumeration(value, &mut node)?,
                "const" => self.constant(map, value, &mut node)?,
                "anyOf" | "oneOf" | "allOf" => self.union(key, map, value, &mut node)?,
                "additionalProperties" => self.additional_properties(map, value, &mut node)?,
                "minimum" if map.get("exclusiveMinimum") == Some(&Value::Bool(true)) => {}
                "maximum" if map.get("exclusiveMaximum") == Some(&Value::Bool(true)) => {}
                "exclusiveMinimum" | "exclusiveMaximum" => self.exclusive(key, map, value, &mut node)?,
                "dependencies" => self.dependencies(value, &mut node)?,
                "nullable" if value == &Value::Bool(true) && !types.has(Types::NULL) => {
                    self.record_loss("nullable", "no keyword of JSON Schema, by which null is not valid: left out");
                }
                // They concern the document, or are read with another keyword.
                "nullable" | "$defs" | "definitions" | "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor"
                | "$recursiveAnchor" | "$vocabulary" | "$ref" | "$dynamicRef" | "$recursiveRef" | "additionalItems" => {
                }
                _ => self.plain(key, value, &mut node)?,
            }
        }
        self.complete(map, is_root, &mut node)?;
        node.describe();
        Ok(node)
    }

    fn types(&mut self, value: &Value, node: &mut Node) {
        let (types, legal) = Types::read(value);
        if types == Types::NONE {
            self.record_loss("type", format!("{} is no type of JSON Schema: left out", brief(value)));
            return;
        }
        if !legal {
            self.record_loss("type", format!("{} is written as {}", brief(value), listed(types)));
        }
        node.view.insert("type".to_owned(), if legal { value.clone() } else { types.to_value() });
    }

    pub(super) fn description(&mut self, value: &Value, node: &mut Node) {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => return self.record_loss("description", "null: left out"),
            other => {
                self.record_loss("description", "not a string: written as its JSON text");
                other.to_string()
            }
        };
        node.view.insert("description".to_owned(), Value::String(text));
    }

    fn items(&mut self, map: &Map<String, Value>, value: &Value, node: &mut Node) -> Result<(), StrictDeviation> {
        match value {
            // Items after the positional ones are written together with them.
            _ if self.rules.for_clients && is_list(map.get("prefixItems")) => Ok(()),
            Value::Array(list) if self.rules.for_clients && !list.is_empty() => {
                self.tuple("items", list, map.get("additionalItems"), map, node)
            }
            // Until draft 2019-09 a list was today's `prefixItems`.
            Value::Array(_) => {
                self.prefix_items(map, value, node)?;
                if let Some(rest) = map.get("additionalItems") {
                    self.items(&Map::new(), rest, node)?;
                }
                Ok(())
            }
            Value::Bool(false) if node.view.contains_key("prefixItems") && self.rules.keeps("not") => {
                node.view.insert("items".to_owned(), json!(false));
                Ok(())
            }
            Value::Bool(false) => self.differ("items", "no further items are allowed: left out"),
            _ => {
                let written = self.at(&["items"], |writer| writer.schema(value))?;
                node.view.insert("items".to_owned(), Value::Object(written.view));
                if !written.undo.is_empty() {
                    node.undo.items = Some(Box::new(written.undo));
                }
                Ok(())
            }
        }
    }

    /// Writes positional items as a list of any of them. The description states the order.
    fn tuple(
        &mut self,
        keyword: &str,
        list: &[Value],
        rest: Option<&Value>,
        map: &Map<String, Value>,
        node: &mut Node,
    ) -> Result<(), StrictDeviation> {
        let rest = match rest {
            Some(Value::Bool(false)) => {
                if !map.contains_key("maxItems") {
                    node.view.insert("maxItems".to_owned(), list.len().into());
                }
                None
            }
            other => other.filter(|schema| schema.is_object()),
        };
        let (mut forms, mut undos) = (Vec::new(), Vec::new());
        for (at, schema) in list.iter().map(Some).chain([rest]).enumerate() {
            let Some(schema) = schema else { continue };
            let written = self.at(&[keyword, &at.to_string()], |writer| writer.schema(schema))?;
            let form = Value::Object(written.view);
            if !forms.contains(&form) {
                forms.push(form);
                undos.push(written.undo);
            }
        }
        let undo = if forms.len() == 1 {
            undos.pop().unwrap_or_default()
        } else {
            SchemaRestore { union: undos, ..SchemaRestore::default() }
        };
        if undo.union.iter().any(|undo| !undo.is_empty()) || undo.union.is_empty() && !undo.is_empty() {
            node.undo.items = Some(Box::new(undo));
        }
        if forms.len() > 1 {
            node.sentences.extend(keyword_values::in_order(list));
        }
        let items = if forms.len() == 1 { forms.pop().unwrap_or_default() } else { json!({"anyOf": forms}) };
        node.view.insert("items".to_owned(), items);
        self.record_loss(
            keyword,
            "items by their place are shown as items of any place, said in order in the description",
        );
        Ok(())
    }

    fn prefix_items(
        &mut self,
        map: &Map<String, Value>,
        value: &Value,
        node: &mut Node,
    ) -> Result<(), StrictDeviation> {
        let Some(list) = value.as_array().filter(|list| !list.is_empty()) else {
            self.record_loss("prefixItems", format!("{} is no list of schemas: left out", brief(value)));
            return Ok(());
        };
        if self.rules.for_clients {
            return self.tuple("prefixItems", list, map.get("items"), map, node);
        }
        if !self.rules.keeps("prefixItems") {
            return self.leave_out("prefixItems", value, node);
        }
        let was = std::mem::replace(&mut self.blind, true);
        let mut shown = Vec::with_capacity(list.len());
        for (at, schema) in list.iter().enumerate() {
            let written = self.at(&["prefixItems", &at.to_string()], |writer| writer.schema(schema))?;
            shown.push(Value::Object(written.view));
        }
        self.blind = was;
        node.view.insert("prefixItems".to_owned(), Value::Array(shown));
        Ok(())
    }

    fn enumeration(&mut self, value: &Value, node: &mut Node) -> Result<(), StrictDeviation> {
        let Some(values) = value.as_array().filter(|values| !values.is_empty()) else {
            return self.differ("enum", &format!("{} allows nothing: left out", brief(value)));
        };
        if self.rules.strict.is_some() && values.iter().any(|value| value.is_object() || value.is_array()) {
            return Err(self.inexact("an enumeration of objects or arrays"));
        }
        if !self.rules.takes_values(values) {
            return self.leave_out("enum", value, node);
        }
        node.view.insert("enum".to_owned(), value.clone());
        Ok(())
    }

    fn constant(&mut self, map: &Map<String, Value>, value: &Value, node: &mut Node) -> Result<(), StrictDeviation> {
        if self.rules.strict.is_some() && (value.is_object() || value.is_array()) {
            return Err(self.inexact("a constant that is an object or an array"));
        }
        if self.rules.keeps("const") {
            node.view.insert("const".to_owned(), value.clone());
            return Ok(());
        }
        if map.contains_key("enum") || !(value.is_string() || value.is_number()) {
            return self.leave_out("const", value, node);
        }
        self.record_loss("const", "written as an `enum` of one");
        node.view.insert("enum".to_owned(), json!([value]));
        Ok(())
    }

    fn union(
        &mut self,
        keyword: &str,
        map: &Map<String, Value>,
        value: &Value,
        node: &mut Node,
    ) -> Result<(), StrictDeviation> {
        let Some(list) = value.as_array().filter(|list| !list.is_empty()) else {
            return self.differ(keyword, &format!("{} is no list of schemas: left out", brief(value)));
        };
        let kept = keyword == "anyOf" || self.rules.keeps(keyword);
        if !kept && map.contains_key("anyOf") {
            return self.leave_out(keyword, value, node);
        }
        if !kept {
            if !self.are_disjoint(list) {
                self.differ(keyword, "shown as `anyOf`, by which a value may match several")?;
            } else {
                self.record_loss(keyword, "shown as `anyOf`; no value matches two of its parts");
            }
        }
        let was = self.blind;
        self.blind |= keyword == "allOf";
        let mut shown = Vec::with_capacity(list.len());
        let mut undo = Vec::with_capacity(list.len());
        for (at, branch) in list.iter().enumerate() {
            if branch == &Value::Bool(false) {
                continue;
            }
            let written = self.at(&[keyword, &at.to_string()], |writer| writer.schema(branch))?;
            shown.push(Value::Object(written.view));
            undo.push(written.undo);
        }
        self.blind = was;
        if shown.is_empty() {
            return self.differ(keyword, "nothing matches it: left out");
        }
        node.view.insert(if kept { keyword } else { "anyOf" }.to_owned(), Value::Array(shown));
        if keyword != "allOf" && undo.iter().any(|undo| !undo.is_empty()) {
            node.undo.union = undo;
        }
        Ok(())
    }

    /// Writes `additionalProperties` if it need not be false.
    fn additional_properties(
        &mut self,
        map: &Map<String, Value>,
        value: &Value,
        node: &mut Node,
    ) -> Result<(), StrictDeviation> {
        if self.rules.strict.is_some() {
            return if map.contains_key("properties") { Ok(()) } else { self.close(map, true) };
        }
        if !self.rules.keeps("additionalProperties") {
            return self.leave_out("additionalProperties", value, node);
        }
        let shown = match value {
            Value::Bool(_) => value.clone(),
            _ => {
                let was = std::mem::replace(&mut self.blind, true);
                let written = self.at(&["additionalProperties"], |writer| writer.schema(value))?;
                self.blind = was;
                Value::Object(written.view)
            }
        };
        node.view.insert("additionalProperties".to_owned(), shown);
        Ok(())
    }

    /// Writes an exclusive bound, which was a boolean beside the bound in draft 4.
    fn exclusive(
        &mut self,
        keyword: &str,
        map: &Map<String, Value>,
        value: &Value,
        node: &mut Node,
    ) -> Result<(), StrictDeviation> {
        let bound = if keyword == "exclusiveMinimum" { "minimum" } else { "maximum" };
        let number = match value {
            Value::Bool(true) => map.get(bound),
            Value::Bool(false) => return Ok(()),
            other => Some(other),
        };
        match number.filter(|number| number.is_number()) {
            None => self.record_loss(keyword, format!("{} is no number: left out", brief(value))),
            Some(number) if self.rules.keeps(keyword) => {
                node.view.insert(keyword.to_owned(), number.clone());
            }
            Some(number) => self.leave_out(keyword, &number.clone(), node)?,
        }
        Ok(())
    }

    /// Translates `dependencies`, which draft 2019-09 split into two keywords.
    fn dependencies(&mut self, value: &Value, node: &mut Node) -> Result<(), StrictDeviation> {
        let Some(map) = value.as_object() else {
            self.record_loss("dependencies", format!("{} names none: left out", brief(value)));
            return Ok(());
        };
        for (keyword, lists) in [("dependentRequired", true), ("dependentSchemas", false)] {
            let some: Map<String, Value> = map
                .iter()
                .filter(|(_, value)| value.is_array() == lists)
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            if !some.is_empty() {
                self.plain(keyword, &Value::Object(some), node)?;
            }
        }
        Ok(())
    }

    /// Adds keywords that the API requires.
    fn complete(&mut self, map: &Map<String, Value>, is_root: bool, node: &mut Node) -> Result<(), StrictDeviation> {
        let types = node.view.get("type").map_or(Types::NONE, |types| Types::read(types).0);
        if self.rules.strict.is_none() {
            if types.has(Types::ARRAY) && !node.view.contains_key("items") {
                // "array schema missing items" is an error for OpenAI and Gemini; an empty `items` does not change the
                // meaning, not even beside `prefixItems`.
                node.view.insert("items".to_owned(), json!({}));
            }
            return Ok(());
        }
        if node.view.contains_key("$ref") {
            return Ok(());
        }
        if node.view.contains_key("anyOf") {
            let beside =
                ["type", "properties", "items", "enum", "const"].iter().find(|key| node.view.contains_key(**key));
            return beside.map_or(Ok(()), |key| Err(self.inexact(format!("a union beside `{key}`"))));
        }
        let types = if types == Types::NONE { Types::implied(map) } else { types };
        if types == Types::NONE {
            return Err(self.inexact("a value of any type"));
        }
        // Listed values have exactly their own types; otherwise an author implies a type.
        let listed_values = node.view.contains_key("enum") || node.view.contains_key("const");
        if self.rules.are_of_answers() && !node.view.contains_key("type") && !listed_values {
            return Err(self.inexact("a value whose type is not said"));
        }
        self.typed_values(types, node)?;
        let composite = types.has(Types::OBJECT.with(Types::ARRAY));
        let or_null = types.has(Types::NULL) && types.len() == 2;
        if composite && types.len() > 1 && !or_null {
            return Err(self.inexact(format!("{}, whose other keywords belong to one of them", listed(types))));
        }
        if types.has(Types::OBJECT) && !node.view.contains_key("properties") {
            self.close(&Map::new(), !is_root || !map.contains_key("properties"))?;
        }
        if types.has(Types::ARRAY) && !node.view.contains_key("items") {
            return Err(self.inexact("an array of any items"));
        }
        if composite && or_null {
            node.view.insert("type".to_owned(), types.without(Types::NULL).to_value());
            nullable(node);
        } else if !node.view.contains_key("type") {
            node.view.shift_insert(0, "type".to_owned(), types.to_value());
        }
        Ok(())
    }

    /// Removes values from a strict `enum` that `type` forbids: the API refuses them, and they are never valid.
    fn typed_values(&mut self, types: Types, node: &mut Node) -> Result<(), StrictDeviation> {
        let mut left_out = node.view.get("const").is_some_and(|value| !types.allow(value));
        let mut possible = !left_out;
        if let Some(values) = node.view.get_mut("enum").and_then(Value::as_array_mut) {
            let before = values.len();
            values.retain(|value| types.allow(value));
            left_out |= values.len() < before;
            possible &= !values.is_empty();
        }
        if !possible {
            return Err(self.inexact(format!("no value is both {} and one of those listed", listed(types))));
        }
        if left_out {
            self.record_loss("enum", format!("what is not {} is left out: it is never valid", listed(types)));
        }
        Ok(())
    }

    /// Whether no value matches two of `branches`, by their types and constant properties.
    fn are_disjoint(&mut self, branches: &[Value]) -> bool {
        const MAX_BRANCHES: usize = 32;
        if branches.len() > MAX_BRANCHES {
            return false;
        }
        let known: Vec<Value> = branches
            .iter()
            .map(|branch| {
                let text = branch.get("$ref").and_then(Value::as_str);
                text.and_then(|text| self.refs.resolve(text)).unwrap_or(branch).clone()
            })
            .collect();
        let types = |schema: &Value| match (schema.get("type"), schema.as_object()) {
            (Some(types), _) => Types::read(types).0,
            (None, Some(map)) => Types::implied(map),
            _ => Types::NONE,
        };
        let apart =
            |a: &Value, b: &Value| types(a).disjoint(types(b)) || are_distinct_values(a, b) || have_distinct_tags(a, b);
        known.iter().enumerate().all(|(at, a)| known[at + 1..].iter().all(|b| apart(a, b)))
    }
}

fn is_list(value: Option<&Value>) -> bool {
    value.and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

/// The values that `schema` is limited to.
pub(super) fn limited(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

fn are_distinct_values(a: &Value, b: &Value) -> bool {
    matches!((limited(a), limited(b)), (Some(a), Some(b)) if !a.iter().any(|value| b.contains(value)))
}

/// Whether both require a property that cannot have the same value in the two.
fn have_distinct_tags(a: &Value, b: &Value) -> bool {
    let (Some(one), Some(two)) = (a.get("properties").and_then(Value::as_object), b.get("properties")) else {
        return false;
    };
    let requires = |schema: &Value, name: &str| names(schema.get("required")).any(|known| known == name);
    one.iter().any(|(name, tag)| {
        requires(a, name) && requires(b, name) && two.get(name).is_some_and(|other| are_distinct_values(tag, other))
    })
}

/// Adds sentences to the description.
pub(super) fn append_description(view: &mut Map<String, Value>, sentences: &[String]) {
    if sentences.is_empty() {
        return;
    }
    let mut text = view.get("description").and_then(Value::as_str).unwrap_or_default().trim_end().to_owned();
    for sentence in sentences {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(sentence);
    }
    view.insert("description".to_owned(), Value::String(text));
}

/// Whether a keyword belongs to a schema, rather than being a property of that name.
pub(super) fn is_structural(keyword: &str, value: &Value) -> bool {
    let form = keyword_values::form(keyword);
    match keyword {
        "properties"
        | "$defs"
        | "definitions"
        | "patternProperties"
        | "dependentSchemas"
        | "items"
        | "not"
        | "if"
        | "additionalProperties"
        | "propertyNames"
        | "unevaluatedProperties" => true,
        _ => form != keyword_values::KeywordForm::Unknown && !value.is_object(),
    }
}
