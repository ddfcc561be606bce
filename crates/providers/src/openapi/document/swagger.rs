//! Converts Swagger 2.0 documents to OpenAPI 3.0: a pure conversion of the parsed document before its import.
//!
//! The two formats: spec.openapis.org/oas/v2.0 and spec.openapis.org/oas/v3.0.3.

use std::cell::Cell;

use serde_json::{Map, Value, json};

use super::files::values;

/// Field of a converted operation with the reason why it cannot be called.
pub(in crate::openapi) const UNREADABLE: &str = "x-toolwright-unreadable";
/// Methods of a path in Swagger 2.0.
const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
/// Keywords of a parameter's value, which are in its schema in OpenAPI 3.
const SCHEMA_KEYS: [&str; 16] = [
    "type",
    "format",
    "items",
    "default",
    "enum",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
];
/// The most values that operations may repeat in total: parameters of a path are repeated in each of its methods, and
/// schemas for each media type.
const MAX_REPEATED: usize = 4_000_000;
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const MULTIPART: &str = "multipart/form-data";

/// Converts the document to OpenAPI 3.0. Operations with features that have no counterpart are marked as unreadable.
pub(super) fn converted(document: Value) -> Value {
    let Value::Object(old) = document else { return document };
    let document = Swagger {
        consumes: media(old.get("consumes")),
        produces: media(old.get("produces")),
        old: &old,
        room: Cell::new(MAX_REPEATED),
    };
    let mut new = Map::new();
    new.insert("openapi".into(), "3.0.3".into());
    let kept = ["info", "tags", "externalDocs", "security"];
    new.extend(kept.iter().filter_map(|key| Some(((*key).to_owned(), old.get(*key)?.clone()))));
    new.insert("servers".into(), servers(&old));
    let paths = members(old.get("paths")).map(|(path, item)| (path.clone(), document.path_item(item)));
    new.insert("paths".into(), Value::Object(paths.collect()));
    let parameters = members(old.get("parameters")).filter(|(_, parameter)| !is_body(parameter));
    let parameters = parameters.map(|(name, one)| (name.clone(), parameter(one).unwrap_or_else(|_| one.clone())));
    let responses = members(old.get("responses")).map(|(name, one)| (name.clone(), response(one, &document.produces)));
    let schemes = members(old.get("securityDefinitions")).map(|(name, one)| (name.clone(), security_scheme(one)));
    new.insert(
        "components".into(),
        json!({
            "schemas": old.get("definitions").cloned().unwrap_or_else(|| json!({})),
            "parameters": Value::Object(parameters.collect()),
            "responses": Value::Object(responses.collect()),
            "securitySchemes": Value::Object(schemes.collect()),
        }),
    );
    let mut new = Value::Object(new);
    rewrite(&mut new);
    new
}

struct Swagger<'d> {
    old: &'d Map<String, Value>,
    consumes: Option<Vec<String>>,
    produces: Option<Vec<String>>,
    /// The number of values that operations may still repeat.
    room: Cell<usize>,
}

impl Swagger<'_> {
    fn path_item(&self, item: &Value) -> Value {
        let Value::Object(item) = item else { return item.clone() };
        let shared: Vec<&Value> = items(item.get("parameters")).collect();
        let convert = |(key, value): (&String, &Value)| match key.as_str() {
            "parameters" => None,
            method if METHODS.contains(&method) => Some((key.clone(), self.operation(value, &shared))),
            _ => Some((key.clone(), value.clone())),
        };
        Value::Object(item.iter().filter_map(convert).collect())
    }

    fn operation(&self, operation: &Value, shared: &[&Value]) -> Value {
        let Value::Object(old) = operation else { return operation.clone() };
        // A parameter in another file is read there, as OpenAPI 3 if possible.
        if old.contains_key("$ref") {
            return operation.clone();
        }
        let moved = ["parameters", "consumes", "produces", "schemes", "responses"];
        let mut new: Map<String, Value> = old.clone();
        new.retain(|key, _| !moved.contains(&key.as_str()));
        let own: Vec<&Value> = items(old.get("parameters")).map(|one| self.resolved(one)).collect();
        let name = |one: &Value| (one.get("in").cloned(), one.get("name").cloned());
        let inherited = shared.iter().map(|one| self.resolved(one));
        let inherited = inherited.filter(|one| is_reference(one) || own.iter().all(|own| name(own) != name(one)));
        let all: Vec<&Value> = inherited.chain(own.iter().copied()).collect();
        let consumes = media(old.get("consumes")).or_else(|| self.consumes.clone());
        let produces = media(old.get("produces")).or_else(|| self.produces.clone());
        let copies = |kinds: &Option<Vec<String>>| kinds.as_ref().map_or(1, Vec::len);
        let asked = all.iter().map(|one| values(one)).sum::<usize>().saturating_mul(copies(&consumes));
        let answered = old.get("responses").map_or(0, values).saturating_mul(copies(&produces));
        match self.room.get().checked_sub(asked.saturating_add(answered)) {
            Some(room) => self.room.set(room),
            None => {
                let why = format!("the operations of the document repeat more than {MAX_REPEATED} values together");
                new.insert(UNREADABLE.into(), why.into());
                return Value::Object(new);
            }
        }
        let mut parameters = Vec::new();
        let (mut body, mut form) = (None, Vec::new());
        for one in all {
            match one.get("in").and_then(Value::as_str) {
                Some("body") => body = Some(one),
                Some("formData") => form.push(one),
                _ => match parameter(one) {
                    Ok(one) => parameters.push(one),
                    Err(why) => drop(new.insert(UNREADABLE.into(), why.into())),
                },
            }
        }
        if !parameters.is_empty() {
            new.insert("parameters".into(), parameters.into());
        }
        if let Some(body) = body {
            new.insert("requestBody".into(), request_body(body, consumes.as_deref()));
        } else if !form.is_empty() {
            match form_body(&form, consumes.as_deref()) {
                Ok(form) => drop(new.insert("requestBody".into(), form)),
                Err(why) => drop(new.insert(UNREADABLE.into(), why.into())),
            }
        }
        let responses = members(old.get("responses")).map(|(status, one)| (status.clone(), response(one, &produces)));
        new.insert("responses".into(), Value::Object(responses.collect()));
        Value::Object(new)
    }

    /// Returns a parameter, or the parameter of this document that it refers to, because a body must be recognised.
    fn resolved<'v>(&'v self, parameter: &'v Value) -> &'v Value {
        let reference = parameter.get("$ref").and_then(Value::as_str);
        let name = reference.and_then(|reference| reference.strip_prefix("#/parameters/"));
        let name = name.map(|name| name.replace("~1", "/").replace("~0", "~"));
        let target = name.and_then(|name| self.old.get("parameters")?.get(name));
        target.filter(|target| is_body(target)).unwrap_or(parameter)
    }
}

/// Returns the server of a document, if it is Swagger 2.0 and names a host.
pub(super) fn address(document: &Value) -> Option<String> {
    let old = document.as_object().filter(|old| old.contains_key("swagger") && old.contains_key("host"))?;
    servers(old).pointer("/0/url")?.as_str().map(str::to_owned)
}

/// Returns the servers. Without a host it is where the document was found.
fn servers(old: &Map<String, Value>) -> Value {
    let base = old.get("basePath").and_then(Value::as_str).unwrap_or("/");
    let Some(host) = old.get("host").and_then(Value::as_str).filter(|host| !host.is_empty()) else {
        return json!([{"url": base}]);
    };
    let stated: Vec<&str> = items(old.get("schemes")).filter_map(Value::as_str).collect();
    let scheme = ["https", "http"].into_iter().find(|scheme| stated.contains(scheme)).unwrap_or("https");
    json!([{"url": format!("{scheme}://{host}/{}", base.trim_start_matches('/'))}])
}

/// Converts a parameter that is not a body.
///
/// # Errors
/// The feature that OpenAPI 3 cannot express.
fn parameter(old: &Value) -> Result<Value, String> {
    let Value::Object(old) = old else { return Ok(old.clone()) };
    if old.contains_key("$ref") {
        return Ok(Value::Object(old.clone()));
    }
    let mut new = old.clone();
    let mut schema = Map::new();
    for key in SCHEMA_KEYS {
        schema.extend(new.shift_remove(key).map(|value| (key.to_owned(), value)));
    }
    new.shift_remove("collectionFormat");
    if let Some((style, explode)) = list_style(old)? {
        new.insert("style".into(), style.into());
        new.insert("explode".into(), explode.into());
    }
    new.insert("schema".into(), schema.into());
    Ok(Value::Object(new))
}

/// Returns how a list parameter is written; `None` if it is not a list.
///
/// # Errors
/// The format that OpenAPI 3 does not have.
fn list_style(parameter: &Map<String, Value>) -> Result<Option<(&'static str, bool)>, String> {
    let text = |key: &str| parameter.get(key).and_then(Value::as_str);
    if text("type") != Some("array") {
        return Ok(None);
    }
    let place = text("in").unwrap_or_default();
    Ok(Some(match (text("collectionFormat").unwrap_or("csv"), place) {
        ("csv", "query" | "formData") => ("form", false),
        ("csv", _) => ("simple", false),
        ("multi", "query" | "formData") => ("form", true),
        ("ssv", "query" | "formData") => ("spaceDelimited", false),
        ("pipes", "query" | "formData") => ("pipeDelimited", false),
        (other, _) => {
            let name = text("name").unwrap_or_default();
            return Err(format!(
                "its parameter `{name}` has the collectionFormat `{other}`, which OpenAPI 3 cannot say"
            ));
        }
    }))
}

fn request_body(body: &Value, consumes: Option<&[String]>) -> Value {
    let schema = body.get("schema").cloned().unwrap_or_else(|| json!({}));
    let mut new = json!({"content": content(&schema, consumes)});
    for key in ["description", "required"] {
        if let Some(value) = body.get(key) {
            new[key] = value.clone();
        }
    }
    new
}

/// Converts the fields of a form.
///
/// # Errors
/// The feature that OpenAPI 3 cannot express.
fn form_body(fields: &[&Value], consumes: Option<&[String]>) -> Result<Value, String> {
    let (mut properties, mut encoding, mut required) = (Map::new(), Map::new(), Vec::new());
    let mut has_file = false;
    for field in fields.iter().filter_map(|field| field.as_object()) {
        let Some(name) = field.get("name").and_then(Value::as_str) else { continue };
        if let Some((style, explode)) = list_style(field)? {
            encoding.insert(name.to_owned(), json!({"style": style, "explode": explode}));
        }
        let members = SCHEMA_KEYS.iter().chain(&["description"]);
        let mut schema: Map<String, Value> =
            members.filter_map(|key| Some(((*key).to_owned(), field.get(*key)?.clone()))).collect();
        if schema.get("type").and_then(Value::as_str) == Some("file") {
            has_file = true;
            schema.insert("type".into(), "string".into());
            schema.insert("format".into(), "binary".into());
        }
        if field.get("required") == Some(&Value::Bool(true)) {
            required.push(name);
        }
        properties.insert(name.to_owned(), schema.into());
    }
    let wants = |kind: &str| consumes.is_some_and(|all| all.iter().any(|one| one == kind));
    let kind = if has_file || (wants(MULTIPART) && !wants(FORM)) { MULTIPART } else { FORM };
    let is_needed = !required.is_empty();
    let mut schema = json!({"type": "object", "properties": properties});
    if is_needed {
        schema["required"] = json!(required);
    }
    let mut content = json!({"schema": schema});
    if !encoding.is_empty() {
        content["encoding"] = encoding.into();
    }
    Ok(json!({"required": is_needed, "content": {kind: content}}))
}

fn response(old: &Value, produces: &Option<Vec<String>>) -> Value {
    let Value::Object(old) = old else { return old.clone() };
    if old.contains_key("$ref") {
        return Value::Object(old.clone());
    }
    let mut new = old.clone();
    new.shift_remove("examples");
    // Headers of answers are not used.
    new.shift_remove("headers");
    if let Some(schema) = new.shift_remove("schema") {
        let is_file = schema.get("type").and_then(Value::as_str) == Some("file");
        let schema = if is_file { json!({"type": "string", "format": "binary"}) } else { schema };
        new.insert("content".into(), content(&schema, produces.as_deref()));
    }
    Value::Object(new)
}

/// Returns a schema under each media type; the default is JSON.
fn content(schema: &Value, media: Option<&[String]>) -> Value {
    let listed = media.unwrap_or_default().iter().map(|kind| if kind == "*/*" { JSON } else { kind });
    let mut content: Map<String, Value> = listed.map(|kind| (kind.to_owned(), json!({"schema": schema}))).collect();
    if content.is_empty() {
        content.insert(JSON.into(), json!({"schema": schema}));
    }
    content.into()
}

fn security_scheme(old: &Value) -> Value {
    let text = |key: &str| old.get(key).cloned().unwrap_or_default();
    match old.get("type").and_then(Value::as_str) {
        Some("basic") => json!({"type": "http", "scheme": "basic"}),
        Some("oauth2") => {
            let flow = match old.get("flow").and_then(Value::as_str) {
                Some("application") => "clientCredentials",
                Some("accessCode") => "authorizationCode",
                Some(same) => same,
                None => "implicit",
            };
            let mut said = json!({"scopes": old.get("scopes").cloned().unwrap_or_else(|| json!({}))});
            for key in ["authorizationUrl", "tokenUrl"] {
                if old.get(key).is_some() {
                    said[key] = text(key);
                }
            }
            json!({"type": "oauth2", "flows": {flow: said}})
        }
        _ => old.clone(),
    }
}

/// Renames references and keywords of schemas that have other names in OpenAPI 3.
fn rewrite(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get_mut("$ref") {
                for (old, new) in [
                    ("#/definitions/", "#/components/schemas/"),
                    ("#/parameters/", "#/components/parameters/"),
                    ("#/responses/", "#/components/responses/"),
                ] {
                    if let Some(rest) = reference.strip_prefix(old) {
                        *reference = format!("{new}{rest}");
                        break;
                    }
                }
            }
            if let Some(Value::Bool(nullable)) = members.get("x-nullable") {
                let nullable = *nullable;
                members.entry("nullable").or_insert(nullable.into());
            }
            if let Some(discriminator @ Value::String(_)) = members.get_mut("discriminator") {
                *discriminator = json!({"propertyName": discriminator.take()});
            }
            members.values_mut().for_each(rewrite);
        }
        Value::Array(items) => items.iter_mut().for_each(rewrite),
        _ => {}
    }
}

fn media(value: Option<&Value>) -> Option<Vec<String>> {
    let listed: Vec<String> = items(value).filter_map(Value::as_str).map(str::to_owned).collect();
    (!listed.is_empty()).then_some(listed)
}

fn items(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn members(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

fn is_reference(value: &Value) -> bool {
    value.get("$ref").is_some()
}

fn is_body(parameter: &Value) -> bool {
    matches!(parameter.get("in").and_then(Value::as_str), Some("body" | "formData"))
}
