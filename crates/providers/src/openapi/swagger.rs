//! Swagger 2.0 documents as OpenAPI 3.0: a pure conversion of the parsed document, before anything is made of it.
//!
//! The two formats: spec.openapis.org/oas/v2.0 and spec.openapis.org/oas/v3.0.3.

use serde_json::{Map, Value, json};

/// Under what a converted operation says why it cannot be called.
pub(super) const UNREADABLE: &str = "x-toolwright-unreadable";
/// Methods of a path in Swagger 2.0.
const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
/// What a parameter says of its value, which is its schema in OpenAPI 3.
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
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const MULTIPART: &str = "multipart/form-data";

/// The document as OpenAPI 3.0. What has no counterpart makes its operation say so.
pub(super) fn converted(document: Value) -> Value {
    let Value::Object(old) = document else { return document };
    let document = Swagger { consumes: media(old.get("consumes")), produces: media(old.get("produces")), old: &old };
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
        // One in another file is read there, as OpenAPI 3 where it can be.
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
        let consumes = media(old.get("consumes")).or_else(|| self.consumes.clone());
        if let Some(body) = body {
            new.insert("requestBody".into(), request_body(body, consumes.as_deref()));
        } else if !form.is_empty() {
            new.insert("requestBody".into(), form_body(&form, consumes.as_deref()));
        }
        let produces = media(old.get("produces")).or_else(|| self.produces.clone());
        let responses = members(old.get("responses")).map(|(status, one)| (status.clone(), response(one, &produces)));
        new.insert("responses".into(), Value::Object(responses.collect()));
        Value::Object(new)
    }

    /// A parameter, or the one of this document that it refers to: a body must be told from the others.
    fn resolved<'v>(&'v self, parameter: &'v Value) -> &'v Value {
        let reference = parameter.get("$ref").and_then(Value::as_str);
        let name = reference.and_then(|reference| reference.strip_prefix("#/parameters/"));
        let name = name.map(|name| name.replace("~1", "/").replace("~0", "~"));
        let target = name.and_then(|name| self.old.get("parameters")?.get(name));
        target.filter(|target| is_body(target)).unwrap_or(parameter)
    }
}

/// Where requests go. Without a host it is where the document comes from.
fn servers(old: &Map<String, Value>) -> Value {
    let base = old.get("basePath").and_then(Value::as_str).unwrap_or("/");
    let Some(host) = old.get("host").and_then(Value::as_str).filter(|host| !host.is_empty()) else {
        return json!([{"url": base}]);
    };
    let stated: Vec<&str> = items(old.get("schemes")).filter_map(Value::as_str).collect();
    let scheme = ["https", "http"].into_iter().find(|scheme| stated.contains(scheme)).unwrap_or("https");
    json!([{"url": format!("{scheme}://{host}/{}", base.trim_start_matches('/'))}])
}

/// A parameter that is no body.
///
/// # Errors
/// What of it OpenAPI 3 cannot say.
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
    let place = old.get("in").and_then(Value::as_str).unwrap_or_default();
    let is_list = schema.get("type").and_then(Value::as_str) == Some("array");
    if let Some(written) =
        new.shift_remove("collectionFormat").filter(|_| is_list).or_else(|| is_list.then(|| "csv".into()))
    {
        let (style, explode) = match (written.as_str().unwrap_or_default(), place) {
            ("csv", "query") => ("form", false),
            ("csv", _) => ("simple", false),
            ("multi", "query") => ("form", true),
            ("ssv", "query") => ("spaceDelimited", false),
            ("pipes", "query") => ("pipeDelimited", false),
            (other, _) => {
                let name = old.get("name").and_then(Value::as_str).unwrap_or_default();
                return Err(format!(
                    "its parameter `{name}` has the collectionFormat `{other}`, which OpenAPI 3 cannot say"
                ));
            }
        };
        new.insert("style".into(), style.into());
        new.insert("explode".into(), explode.into());
    }
    new.insert("schema".into(), schema.into());
    Ok(Value::Object(new))
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

fn form_body(fields: &[&Value], consumes: Option<&[String]>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    let mut has_file = false;
    for field in fields {
        let Some(name) = field.get("name").and_then(Value::as_str) else { continue };
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
    json!({"required": is_needed, "content": {kind: {"schema": schema}}})
}

fn response(old: &Value, produces: &Option<Vec<String>>) -> Value {
    let Value::Object(old) = old else { return old.clone() };
    if old.contains_key("$ref") {
        return Value::Object(old.clone());
    }
    let mut new = old.clone();
    new.shift_remove("examples");
    // Headers of answers are not read.
    new.shift_remove("headers");
    if let Some(schema) = new.shift_remove("schema") {
        let is_file = schema.get("type").and_then(Value::as_str) == Some("file");
        let schema = if is_file { json!({"type": "string", "format": "binary"}) } else { schema };
        new.insert("content".into(), content(&schema, produces.as_deref()));
    }
    Value::Object(new)
}

/// A schema under each media type; of any type it is JSON.
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

/// References and words of schemas that have another name in OpenAPI 3.
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
