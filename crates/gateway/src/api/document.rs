//! The OpenAPI 3.1 document, made of the table of routes and of `schemas.json`.

use serde_json::{Map, Value, json};

use super::ROOT;
use super::routes::{Good, Method, Need, Operation, Route};
use crate::ServerInfo;

/// Schemas by name.
const SCHEMAS: &str = include_str!("schemas.json");

/// The document.
pub(super) fn of(routes: &[Route], info: &ServerInfo) -> Value {
    let mut paths = Map::new();
    for Route { operation, .. } in routes {
        let path = paths.entry(operation.path).or_insert_with(|| Value::Object(Map::new()));
        path[operation.method.as_str()] = described(operation);
    }
    let title = info.title.as_deref().unwrap_or(&info.name);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": info.version,
            "description": "The gateway's tools, calls, jobs and approvals. MCP is at /mcp.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

/// A test reads the file; one that cannot be read leaves the document without schemas.
fn schemas() -> Value {
    serde_json::from_str(SCHEMAS).unwrap_or_default()
}

fn described(operation: &Operation) -> Value {
    let in_path = operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path =
        in_path.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    let in_query = operation.query.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "in": "query",
            "description": parameter.about,
            "required": parameter.need == Need::Required,
            "schema": {"type": parameter.kind},
        })
    });
    let good = match operation.answer {
        Good::Json(schema) => json(schema),
        Good::Text => json!({"text/plain": {"schema": {"type": "string"}}}),
    };
    let mut responses = json!({"200": {"description": "The answer.", "content": good}});
    for (status, when, content) in refusals(operation) {
        responses[status.to_string()] = json!({"description": when, "content": content});
    }
    for (status, when, schema) in operation.also {
        responses[status.to_string()] = json!({"description": when, "content": json(schema)});
    }
    let is_inside = operation.path.starts_with(ROOT);
    if is_inside {
        // Where there is no room for a connection only probes are looked at.
        responses["503"]["content"]["text/plain"] = json!({"schema": {"type": "string"}});
    }
    if responses["503"].is_object() {
        responses["503"]["headers"] =
            json!({"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}});
    }
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.about,
        "parameters": in_path.chain(in_query).collect::<Value>(),
        "responses": responses,
    });
    if let Some(schema) = operation.body {
        described["requestBody"] = json!({"required": true, "content": json(schema)});
    }
    if !is_inside {
        described["security"] = json!([]);
    }
    described
}

/// What an operation may be answered whatever it does: the status, when it comes, and the content.
fn refusals(operation: &Operation) -> Vec<(u16, &'static str, Value)> {
    let host = "The host name is not served, or the page's origin may not call.";
    if !operation.path.starts_with(ROOT) {
        return vec![(403, host, json!({"text/plain": {"schema": {"type": "string"}}}))];
    }
    let has_input = operation.path.contains('{') || !operation.query.is_empty() || operation.body.is_some();
    let is_post = operation.method == Method::Post;
    let told: [(bool, u16, &str); 9] = [
        (has_input, 400, "`bad_request`: what is asked cannot be understood."),
        (true, 401, "`unauthorized`: the server's token is missing or wrong."),
        (
            true,
            403,
            "`forbidden`: the host name is not served, the page's origin may not call, or the token is for others.",
        ),
        (true, 408, "`timeout`: the body stopped coming."),
        (true, 413, "`too_large`: the body is over the limit."),
        (is_post, 415, "`unsupported_media_type`: the body is not said to be JSON."),
        (true, 500, "`internal_error`: a fault of the server's, which its log tells of."),
        (operation.stores, 501, "`unsupported`: the server has no place to keep this."),
        (
            true,
            503,
            "`busy`: there are too many requests or connections at once, or too much of bodies; `shutting_down`.",
        ),
    ];
    told.into_iter().filter(|(comes, ..)| *comes).map(|(_, status, when)| (status, when, json("Error"))).collect()
}

/// Content that is JSON of this schema.
fn json(schema: &str) -> Value {
    json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{schema}")}}})
}

#[cfg(test)]
mod tests {
    use super::super::routes::routes;
    use super::*;
    use toolwright_core::catalogue::ProviderKind;
    use toolwright_core::error::ErrorKind;
    use toolwright_core::job::JobState;
    use toolwright_core::schema::CompiledSchema;

    #[test]
    fn every_route_is_told_once_and_every_schema_is_there_compiles_and_is_used() {
        let routes = routes();
        let document = of(&routes, &ServerInfo { name: "t".into(), title: None, version: "1".into() });
        let mut ids = std::collections::HashSet::new();
        for Route { operation, .. } in &routes {
            let told = &document["paths"][operation.path][operation.method.as_str()];
            assert_eq!(told["operationId"], operation.id);
            assert!(ids.insert(operation.id), "{} is there twice", operation.id);
        }
        let text = document.to_string();
        let schemas = schemas();
        let names: Vec<&String> = schemas.as_object().expect("schemas.json is read").keys().collect();
        for name in &names {
            let reference = format!("\"#/components/schemas/{name}\"");
            assert!(text.contains(&reference), "nothing uses {name}");
            let schema = json!({"$ref": format!("#/components/schemas/{name}"), "components": document["components"]});
            CompiledSchema::compile(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        for used in text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(schemas.get(used).is_some(), "{used} is no schema");
        }
    }

    /// Whatever the core may say is among the values that a schema names.
    #[test]
    fn the_values_of_schemas_are_all_that_there_are() {
        let values = |all: Value| all.as_array().cloned().unwrap_or_default();
        let sets = [values(json!(ProviderKind::ALL)), values(json!(ErrorKind::ALL)), values(json!(JobState::ALL))];
        let mut told = [0; 3];
        let mut waiting = vec![schemas()];
        while let Some(schema) = waiting.pop() {
            if let Some(Value::Array(named)) = schema.get("enum") {
                for (set, told) in sets.iter().zip(&mut told) {
                    // `done` and the like are words of others too.
                    if set.iter().filter(|value| named.contains(value)).count() * 2 > set.len() {
                        assert!(set.iter().all(|value| named.contains(value)), "{named:?} lacks some of {set:?}");
                        *told += 1;
                    }
                }
            }
            match schema {
                Value::Object(members) => waiting.extend(members.into_iter().map(|(_, member)| member)),
                Value::Array(items) => waiting.extend(items),
                _ => {}
            }
        }
        assert!(told[0] == 2 && told.iter().all(|told| *told > 0), "{told:?}");
    }
}
