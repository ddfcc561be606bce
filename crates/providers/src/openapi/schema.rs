//! Converts each schema of a document to one JSON Schema 2020-12: referenced schemas become its `$defs`, so that cycles
//! are preserved, and OpenAPI 3.0 keywords are translated.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};

use super::document::{Document, DocumentPart, Version, of_text, of_value};
use super::schema_walk::{ContainsBytes, applies_to_branches, bytes_of};

/// The deepest nesting of schemas, not counting references.
const MAX_DEPTH: usize = 64;

const SCHEMAS_BY_NAME: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const SCHEMA_LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const SCHEMAS: [&str; 11] = [
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// Keywords that are not about a value, but for documentation or other programs.
const DROPPED: [&str; 11] = [
    "discriminator",
    "xml",
    "externalDocs",
    "nullable",
    "example",
    "$schema",
    "$vocabulary",
    "$id",
    "$anchor",
    "$dynamicAnchor",
    "$comment",
];
/// Keywords that describe a value without restricting it.
const ANNOTATIONS: [&str; 7] = ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"];
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// The direction of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Sent: `readOnly` properties are left out.
    Request,
    /// Received: `writeOnly` properties are left out.
    Response,
}

/// How a binary string is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Binary {
    /// Like any other string.
    Text,
    /// As a file, in the form of `rest::request::payload`; also in items of a list and in branches.
    File,
    /// The whole is a multipart body: binary strings among its members or items are files.
    Parts,
}

/// Collects the schemas of one tool and the referenced ones.
pub(super) struct Schemas<'d> {
    pub(super) document: &'d Document,
    pub(super) direction: Direction,
    /// By the address of the value, because the document is not moved while it is read.
    names: HashMap<(*const Value, Binary), String>,
    taken: HashSet<String>,
    waiting: VecDeque<(String, DocumentPart<'d>, Binary)>,
    /// The schemas being converted inline, with the number of enclosing lists.
    open: Vec<(*const Value, usize)>,
    /// The number of file lists around the present schema.
    lists: usize,
    /// The schemas that combine the present one by `allOf`, the innermost last.
    pub(super) wholes: Vec<DocumentPart<'d>>,
    nodes: usize,
    max_nodes: usize,
}

impl<'d> Schemas<'d> {
    /// Creates it for schemas of at most `max_nodes` parts together.
    pub(super) fn new(document: &'d Document, direction: Direction, max_nodes: usize) -> Self {
        Self {
            document,
            direction,
            names: HashMap::new(),
            taken: HashSet::new(),
            waiting: VecDeque::new(),
            open: Vec::new(),
            lists: 0,
            wholes: Vec::new(),
            nodes: 0,
            max_nodes,
        }
    }

    /// Converts one schema. Its references point to `#/$defs/…`.
    ///
    /// # Errors
    /// It cannot be converted.
    pub(super) fn convert(&mut self, part: DocumentPart<'d>, binary: Binary) -> Result<Value, String> {
        self.schema(part, binary, 0)
    }

    /// Returns all definitions that the schemas so far refer to, directly or indirectly.
    ///
    /// # Errors
    /// As [`Schemas::convert`].
    pub(super) fn definitions(mut self) -> Result<Map<String, Value>, String> {
        let mut definitions = Map::new();
        while let Some((name, part, binary)) = self.waiting.pop_front() {
            self.open.push((part.value, self.lists));
            let schema = self.schema(part, binary, 0);
            self.open.pop();
            let schema = schema?;
            definitions.insert(name, schema);
        }
        Ok(definitions)
    }

    fn schema(&mut self, part: DocumentPart<'d>, binary: Binary, depth: usize) -> Result<Value, String> {
        self.document.budget.take(1)?;
        self.nodes += 1;
        if self.nodes > self.max_nodes {
            return Err(format!("its schemas have more than {} parts", self.max_nodes));
        }
        if depth > MAX_DEPTH {
            return Err(format!("its schemas nest deeper than {MAX_DEPTH} levels"));
        }
        let Some(members) = part.value.as_object() else {
            return match part.value {
                Value::Bool(_) => Ok(part.value.clone()),
                _ => Ok(json!({})),
            };
        };
        // Dynamic references with a single target were resolved when the document was read.
        if let Some(reference) = part.text("$dynamicRef") {
            return Err(format!("its schemas have the $dynamicRef `{reference}`, which may mean several"));
        }
        if let Some(reference) = part.text("$ref") {
            return self.reference(part, reference, binary, depth);
        }
        if binary == Binary::File && is_bytes(part.value) {
            let description = part.text("description");
            self.document.budget.take(description.map_or(0, of_text))?;
            return Ok(match is_nullable(part.value, self.document.version) {
                true => or_null(file(description)),
                false => file(description),
            });
        }
        let mut out = self.keywords(part, binary, depth)?;
        if binary == Binary::File && applies_to_branches(part.value) && self.holds_bytes(part)? {
            for key in ["type", "format", "minLength", "maxLength", "pattern"] {
                out.shift_remove(key);
            }
        }
        Ok(match self.document.version {
            Version::V31 | Version::V32 => out.into(),
            Version::V30 => {
                self.document.budget.take(members.get("example").map_or(0, of_value))?;
                modern(out, members)
            }
        })
    }

    fn holds_bytes(&self, part: DocumentPart<'d>) -> Result<bool, String> {
        Ok(bytes_of(self.document, part)?.0 != ContainsBytes::Never)
    }

    /// Returns the schema's own keywords, without referenced ones.
    fn keywords(&mut self, part: DocumentPart<'d>, binary: Binary, depth: usize) -> Result<Map<String, Value>, String> {
        let mut out = Map::new();
        for (key, member) in part.members().filter(|(key, _)| *key != "$ref") {
            let inside = match key.as_str() {
                "allOf" => self.wholes.iter().copied().chain([part]).collect(),
                _ => Vec::new(),
            };
            let outside = std::mem::replace(&mut self.wholes, inside);
            let done = self.keyword(&mut out, key, member, binary, depth);
            self.wholes = outside;
            done?;
        }
        self.required(&mut out, part)?;
        self.discriminate(&mut out, part)?;
        // A discriminator distinguishes branches that schemas alone may not: `oneOf` would reject a value that fits
        // two.
        if part.value.get("discriminator").is_some_and(Value::is_object)
            && !out.contains_key("anyOf")
            && let Some(branches) = out.shift_remove("oneOf")
        {
            out.insert("anyOf".into(), branches);
        }
        Ok(out)
    }

    fn reference(
        &mut self,
        part: DocumentPart<'d>,
        reference: &str,
        binary: Binary,
        depth: usize,
    ) -> Result<Value, String> {
        let target = self.document.target(part.file, reference)?;
        // A multipart body gets its own schema, because its bytes are text elsewhere.
        let is_repeated = is_leaf(target.value)
            || binary == Binary::Parts
            || (binary == Binary::File && self.holds_bytes(target)?)
            || self.asks_for_hidden(target)?;
        // Lists of files may be nested, so such a list refers to itself.
        let is_open = |(open, lists): &(*const Value, usize)| std::ptr::eq(*open, target.value) && *lists < self.lists;
        let target = if binary == Binary::File && self.open.iter().any(is_open) {
            json!({"$ref": format!("#/$defs/{}", self.name(target, reference, Binary::File))})
        } else if is_repeated {
            self.open.push((target.value, self.lists));
            let written = self.schema(target, binary, depth + 1);
            self.open.pop();
            written?
        } else {
            json!({"$ref": format!("#/$defs/{}", self.name(target, reference, Binary::Text))})
        };
        if !self.document.version.has_json_schema() {
            return Ok(target);
        }
        Ok(with(target, self.keywords(part, binary, depth)?))
    }

    /// Returns the name of a definition; a new one is converted later.
    fn name(&mut self, target: DocumentPart<'d>, reference: &str, binary: Binary) -> String {
        let key: (*const Value, Binary) = (target.value, binary);
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let last = reference.rsplit(['/', '#']).next().unwrap_or_default();
        let mut base: String =
            last.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect();
        if base.is_empty() {
            base.push_str("schema");
        }
        let mut name = base.clone();
        let mut count = 2;
        while !self.taken.insert(name.clone()) {
            name = format!("{base}_{count}");
            count += 1;
        }
        self.names.insert(key, name.clone());
        self.waiting.push_back((name.clone(), target, binary));
        name
    }

    fn keyword(
        &mut self,
        out: &mut Map<String, Value>,
        key: &str,
        part: DocumentPart<'d>,
        binary: Binary,
        depth: usize,
    ) -> Result<(), String> {
        let inside = match (binary, key) {
            (
                Binary::Parts,
                "properties"
                | "patternProperties"
                | "additionalProperties"
                | "unevaluatedProperties"
                | "items"
                | "prefixItems",
            )
            | (Binary::File, "items" | "prefixItems" | "allOf" | "anyOf" | "oneOf") => Binary::File,
            (Binary::Parts, "allOf" | "anyOf" | "oneOf") => Binary::Parts,
            _ => Binary::Text,
        };
        let is_list = inside == Binary::File && matches!(key, "items" | "prefixItems");
        self.lists += usize::from(is_list);
        let value = self.member(key, part, inside, depth);
        self.lists -= usize::from(is_list);
        if let Some(value) = value? {
            self.document.budget.take(of_text(key))?;
            out.insert(key.to_owned(), value);
        }
        Ok(())
    }

    /// Converts the value of a keyword; `None` if nothing of it is left.
    fn member(
        &mut self,
        key: &str,
        part: DocumentPart<'d>,
        inside: Binary,
        depth: usize,
    ) -> Result<Option<Value>, String> {
        Ok(Some(match key {
            _ if DROPPED.contains(&key) || key.starts_with("x-") => return Ok(None),
            _ if SCHEMAS_BY_NAME.contains(&key) => {
                let mut schemas = Map::new();
                for (name, schema) in part.members() {
                    self.document.budget.look(1)?;
                    if key != "properties" || !self.is_hidden(schema) {
                        self.document.budget.take(of_text(name))?;
                        schemas.insert(name.clone(), self.schema(schema, inside, depth + 1)?);
                    }
                }
                schemas.into()
            }
            _ if SCHEMA_LISTS.contains(&key) && part.value.is_array() => {
                let mut schemas = Vec::new();
                for schema in part.items() {
                    schemas.push(self.schema(schema, inside, depth + 1)?);
                }
                // An empty list is not a valid schema.
                if schemas.is_empty() {
                    return Ok(None);
                }
                schemas.into()
            }
            _ if SCHEMAS.contains(&key) && part.value.is_object() => self.schema(part, inside, depth + 1)?,
            // Written separately as a list; older documents mark parameters with it.
            "required" => return Ok(None),
            "examples" if !part.value.is_array() => return Ok(None),
            _ => {
                self.document.budget.take(of_value(part.value))?;
                match key {
                    "type" => match known_types(part.value) {
                        Some(types) => types,
                        None => return Ok(None),
                    },
                    _ => part.value.clone(),
                }
            }
        }))
    }
}

/// Combines a schema with the keywords beside its reference (in OpenAPI 3.1, JSON Schema, both apply).
fn with(target: Value, beside: Map<String, Value>) -> Value {
    if beside.is_empty() {
        return target;
    }
    let is_annotation = |key: &str| ANNOTATIONS.contains(&key);
    let holds_schemas =
        |key: &str| SCHEMAS_BY_NAME.contains(&key) || SCHEMA_LISTS.contains(&key) || SCHEMAS.contains(&key);
    match target {
        // Annotations beside a reference replace the target's, and keywords that the target lacks are added.
        Value::Object(mut members)
            if members.contains_key("$ref")
                || beside.iter().all(|(key, value)| {
                    is_annotation(key) || members.get(key).is_none_or(|have| have == value) && !holds_schemas(key)
                }) =>
        {
            members.extend(beside);
            members.into()
        }
        target => {
            let mut all = vec![target];
            let mut out = beside;
            if let Some(Value::Array(more)) = out.shift_remove("allOf") {
                all.extend(more);
            }
            out.insert("allOf".into(), all.into());
            out.into()
        }
    }
}

/// Returns whether it is a schema without nested schemas, which is copied instead of referenced.
fn is_leaf(schema: &Value) -> bool {
    let Some(members) = schema.as_object() else { return false };
    let inside = |key: &String| {
        key == "$ref"
            || SCHEMAS_BY_NAME.contains(&key.as_str())
            || SCHEMA_LISTS.contains(&key.as_str())
            || SCHEMAS.contains(&key.as_str())
    };
    !members.keys().any(inside) && members.get("enum").and_then(Value::as_array).is_none_or(|all| all.len() <= 16)
}

/// Returns whether a schema is binary: `format: binary` in OpenAPI 3.0, a media type without an encoding in 3.1.
pub(super) fn is_bytes(schema: &Value) -> bool {
    let text = |key: &str| schema.get(key).and_then(Value::as_str);
    let is_string = schema.get("type").is_none() || only_type(schema) == Some("string");
    let is_coded = text("contentEncoding").is_some();
    is_string && (text("format") == Some("binary") || (text("contentMediaType").is_some() && !is_coded))
}

/// Returns the only type of a schema, ignoring `null`.
pub(super) fn only_type(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::Array(types) => {
            let mut types = types.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            types.next().filter(|_| types.next().is_none())
        }
        kind => kind.as_str(),
    }
}

/// Returns the schema of a binary argument.
pub(super) fn file(description: Option<&str>) -> Value {
    let mut schema = json!({
        "anyOf": [
            {"type": "string", "description": "The content as text"},
            {
                "type": "object",
                "properties": {
                    "base64": {"type": "string", "contentEncoding": "base64", "description": "The content"},
                    "filename": {"type": "string"},
                    "content_type": {"type": "string"},
                },
                "required": ["base64"],
                "additionalProperties": false,
            },
        ],
    });
    if let (Some(description), Some(members)) = (description, schema.as_object_mut()) {
        members.insert("description".into(), description.into());
    }
    schema
}

/// Returns the schema of a binary argument for a range of media types, of which the caller must choose one.
pub(super) fn file_of_range(range: &str) -> Value {
    json!({
        "type": "object",
        "properties": {
            "base64": {"type": "string", "contentEncoding": "base64", "description": "The content"},
            "content_type": {"type": "string", "description": format!("Its media type, one of {range}")},
        },
        "required": ["base64", "content_type"],
        "additionalProperties": false,
    })
}

/// Returns whether a schema allows null.
fn is_nullable(schema: &Value, version: Version) -> bool {
    if version.has_json_schema() {
        let types = schema.get("type").and_then(Value::as_array);
        return types.is_some_and(|types| types.iter().any(|kind| kind == "null"));
    }
    schema.get("nullable") == Some(&Value::Bool(true))
}

/// Adds a branch for null to a schema.
fn or_null(mut schema: Value) -> Value {
    if let Some(Value::Array(branches)) = schema.get_mut("anyOf") {
        branches.push(json!({"type": "null"}));
    }
    schema
}

fn known_types(written: &Value) -> Option<Value> {
    match written {
        Value::String(name) => TYPES.contains(&name.as_str()).then(|| written.clone()),
        Value::Array(names) => {
            let names: Vec<Value> =
                names.iter().filter(|name| name.as_str().is_some_and(|name| TYPES.contains(&name))).cloned().collect();
            (!names.is_empty()).then(|| names.into())
        }
        _ => None,
    }
}

/// Converts a schema of OpenAPI 3.0 (draft Wright 00, which is draft 5) to keywords of 2020-12.
fn modern(mut out: Map<String, Value>, written: &Map<String, Value>) -> Value {
    for (flag, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match out.get(flag) {
            Some(Value::Bool(true)) => match out.shift_remove(bound) {
                Some(limit) => {
                    out.insert(flag.into(), limit);
                }
                None => {
                    out.shift_remove(flag);
                }
            },
            Some(Value::Bool(false)) => {
                out.shift_remove(flag);
            }
            _ => {}
        }
    }
    if let Some(example) = written.get("example") {
        out.insert("examples".into(), json!([example]));
    }
    if written.get("nullable") != Some(&Value::Bool(true)) {
        return out.into();
    }
    if let Some(Value::Array(options)) = out.get_mut("enum")
        && !options.contains(&Value::Null)
    {
        options.push(Value::Null);
    }
    let is_combined = SCHEMA_LISTS.iter().any(|key| out.contains_key(*key));
    match out.get_mut("type") {
        Some(kind @ Value::String(_)) => *kind = json!([kind, "null"]),
        None if is_combined => return json!({"anyOf": [out, {"type": "null"}]}),
        _ => {}
    }
    out.into()
}
