//! Swagger 2.0 documents, and operations in files of their own.

use serde_json::{Value, json};
use toolwright_providers::openapi::{Origin, Refused, import, server_addresses};

use super::{call, file_spec, folder_of, import_of, schema};
use crate::wire::{Reply, Server};

/// The document with one path.
fn swagger(path: &str, item: Value) -> Value {
    json!({
        "swagger": "2.0", "info": {"title": "Pets", "version": "1"}, "host": "pets.example", "basePath": "/v2",
        "schemes": ["http", "https"], "consumes": ["application/json"], "produces": ["application/json"],
        "parameters": {
            "limit": {"name": "limit", "in": "query", "type": "integer", "maximum": 50},
            "pet": {"name": "pet", "in": "body", "required": true, "schema": {"$ref": "#/definitions/Pet"}},
        },
        "definitions": {"Pet": {"type": "object", "properties": {"name": {"type": "string", "x-nullable": true}}}},
        "securityDefinitions": {"key": {"type": "apiKey", "name": "X-Key", "in": "header"}},
        "paths": {path: item},
    })
}

#[test]
fn parameters_and_bodies_of_swagger_become_arguments() {
    let check = |item: Value, expect: Value| {
        let imported = import_of(&swagger("/pets/{id}", item), |_| {});
        assert!(imported.refused.is_empty(), "{:?}", imported.refused);
        assert_eq!(schema(&imported.tools[0])["properties"], expect);
    };
    let id = json!({"name": "id", "in": "path", "required": true, "type": "string", "minLength": 3});
    let shown = json!({"type": "string", "minLength": 3});
    check(
        json!({"parameters": [id, {"$ref": "#/parameters/limit"}], "get": {"operationId": "op"}}),
        json!({"id": shown, "limit": {"type": "integer", "maximum": 50}}),
    );
    let imported =
        import_of(&swagger("/pets", json!({"post": {"parameters": [{"$ref": "#/parameters/pet"}]}})), |_| {});
    let made = schema(&imported.tools[0]);
    assert_eq!((&made["required"], imported.tools.len()), (&json!(["body"]), 1));
    assert!(made.to_string().contains("\"name\""), "{made}");
    let form = json!({"post": {"parameters": [
        {"name": "note", "in": "formData", "type": "string", "required": true},
        {"name": "photo", "in": "formData", "type": "file"},
    ]}});
    let imported = import_of(&swagger("/photos", form), |_| {});
    let made = schema(&imported.tools[0]).to_string();
    assert!(made.contains("\"note\"") && made.contains("\"photo\""), "{made}");
}

#[test]
fn operations_that_cannot_be_converted_are_refused() {
    let tabs =
        json!({"name": "ids", "in": "query", "type": "array", "items": {"type": "string"}, "collectionFormat": "tsv"});
    let item = json!({"get": {"operationId": "tabs", "parameters": [tabs]}, "delete": {"operationId": "plain"}});
    let imported = import_of(&swagger("/pets", item), |_| {});
    assert_eq!(imported.tools.len(), 1);
    let refused = &imported.refused[0];
    assert!(refused.operation == "tabs" && refused.reason.contains("collectionFormat `tsv`"), "{refused:?}");
}

#[tokio::test]
async fn calls_of_swagger_go_to_its_base_path() {
    let server = Server::start(|_| Reply::ok("application/json", "{}")).await;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("api.json");
    let list = json!({"name": "ids", "in": "query", "type": "array", "items": {"type": "string"}});
    let mut document = swagger("/pets", json!({"get": {"operationId": "op", "parameters": [list]}}));
    document["host"] = server.url("").trim_start_matches("http://").into();
    document["schemes"] = json!(["http"]);
    std::fs::write(&path, document.to_string()).expect("file");
    call(file_spec(&path), "op", json!({"ids": ["a", "b"]})).await.expect("called");
    assert_eq!(server.only().line, "GET /v2/pets?ids=a,b HTTP/1.1");
    let (_, servers) = server_addresses(&path, 9).expect("read");
    assert_eq!(servers, [server.url("/v2")]);
}

#[tokio::test]
async fn lists_in_forms_of_swagger_are_joined() {
    let server = Server::start(|_| Reply::ok("application/json", "{}")).await;
    let list = |name: &str, more: Value| {
        let mut list = json!({"name": name, "in": "formData", "type": "array", "items": {"type": "string"}});
        list.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        list
    };
    let fields = [list("a", json!({})), list("b", json!({"collectionFormat": "multi"}))];
    let item = json!({"post": {"operationId": "op", "consumes": ["application/x-www-form-urlencoded"],
                               "parameters": fields}});
    let mut document = swagger("/pets", item);
    document["host"] = server.url("").trim_start_matches("http://").into();
    document["schemes"] = json!(["http"]);
    let folder = folder_of(&[("api.json", &document.to_string())]);
    let arguments = json!({"body": {"a": ["1", "2"], "b": ["3", "4"]}});
    call(file_spec(&folder.path().join("api.json")), "op", arguments).await.expect("called");
    assert_eq!(server.only().body, "a=1,2&b=3&b=4");
}

#[test]
fn what_operations_of_swagger_repeat_is_bounded() {
    let large: Value = (0..20_000).map(|n| json!({"type": "string", "title": n.to_string()})).collect();
    let body = json!({"name": "b", "in": "body", "schema": {"type": "object", "x-large": large}});
    let kinds: Vec<String> = (0..99).map(|n| format!("application/x{n}+json")).collect();
    let item = json!({"parameters": [body], "put": {"consumes": kinds}, "post": {}});
    let imported = import_of(&swagger("/pets", item), |_| {});
    assert_eq!((imported.tools.len(), imported.refused.len()), (1, 1));
    assert!(imported.refused[0].reason.contains("repeat more than"), "{:?}", imported.refused);
}

#[test]
fn operations_may_stand_in_files_of_their_own() {
    let text = "openapi: 3.0.0\nservers: [{url: 'https://x.example'}]\npaths:\n  /pets:\n    get: {$ref: 'parts/list.yml'}\n    \
                post: {$ref: 'parts/gone.yml'}\n    put: {$ref: 'parts/odd.yml'}\n    delete:\n  /owners: {$ref: \
                'parts/empty.yml'}\n";
    let folder = folder_of(&[
        ("parts/list.yml", "operationId: list\nsummary: Lists pets\nparameters: [{$ref: 'shared.yml#/limit'}]\n"),
        ("parts/shared.yml", "limit: {name: limit, in: query, schema: {type: integer}}\n"),
        ("parts/odd.yml", "- an item\n"),
        ("parts/empty.yml", "\n"),
        ("api.yaml", text),
    ]);
    let path = folder.path().join("api.yaml");
    let imported = import(&file_spec(&path), text, Origin::File(path.clone())).expect("a document");
    let [tool] = &imported.tools[..] else { panic!("{:?}", imported.refused) };
    assert_eq!((tool.raw_name.as_str(), &*tool.definition.description), ("list", "Lists pets"));
    assert_eq!(schema(tool)["properties"], json!({"limit": {"type": "integer"}}));
    for (operation, reason) in [
        ("POST /pets", "parts/gone.yml"),
        ("PUT /pets", "$ref `parts/odd.yml`: a list stands there"),
        ("DELETE /pets", "nothing stands there"),
        ("/owners", "$ref `parts/empty.yml`: nothing stands there"),
    ] {
        let is_told = |told: &Refused| told.operation == operation && told.reason.contains(reason);
        assert!(imported.refused.iter().any(is_told), "{operation}: {:?}", imported.refused);
    }
}
