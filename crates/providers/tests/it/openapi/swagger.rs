//! Swagger 2.0 documents, and operations in files of their own.

use serde_json::{Value, json};
use toolwright_providers::openapi::{Filter, OpenApiConfig, Origin, RefusedOperation, import, server_addresses};

use super::{call, file_config, folder_of, import_of, schema};
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
    call(file_config(&path), "op", json!({"ids": ["a", "b"]})).await.expect("called");
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
    call(file_config(&folder.path().join("api.json")), "op", arguments).await.expect("called");
    assert_eq!(server.only().body, "a=1,2&b=3&b=4");
}

#[test]
fn repeated_swagger_schemas_are_bounded() {
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
    let imported = import(&file_config(&path), text, Origin::File(path.clone())).expect("a document");
    let [tool] = &imported.tools[..] else { panic!("{:?}", imported.refused) };
    assert_eq!((tool.raw_name.as_str(), &*tool.definition.description), ("list", "Lists pets"));
    assert_eq!(schema(tool)["properties"], json!({"limit": {"type": "integer"}}));
    for (operation, reason) in [
        ("POST /pets", "parts/gone.yml"),
        ("PUT /pets", "$ref `parts/odd.yml`: a list stands there"),
        ("DELETE /pets", "nothing stands there"),
        ("/owners", "$ref `parts/empty.yml`: nothing stands there"),
    ] {
        let is_refused = |refused: &RefusedOperation| refused.operation == operation && refused.reason.contains(reason);
        assert!(imported.refused.iter().any(is_refused), "{operation}: {:?}", imported.refused);
    }
    assert!(imported.refused.iter().all(|refused| refused.is_unreadable), "{:?}", imported.refused);
    // What a setting leaves out is not what could not be read.
    let config =
        OpenApiConfig { filter: Filter { tags: vec!["none".into()], ..Filter::default() }, ..file_config(&path) };
    let filtered = import(&config, text, Origin::File(path.clone())).expect("a document").refused;
    let is_readable = |refused: &&RefusedOperation| !refused.is_unreadable;
    assert_eq!(filtered.iter().filter(is_readable).map(|refused| &*refused.operation).collect::<Vec<_>>(), ["list"]);
}

/// The shape of Kubernetes' document, written by hand from the specification of Swagger 2.0.
const CLUSTER: &str = r##"{
  "swagger": "2.0",
  "info": {"title": "Cluster", "version": "v1"},
  "host": "cluster.example",
  "securityDefinitions": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
  "security": [{"BearerToken": []}],
  "parameters": {
    "pretty-tJGM1": {"name": "pretty", "in": "query", "type": "string", "uniqueItems": true, "description": "Print nicely."},
    "body-2Y1dV": {"name": "body", "in": "body", "schema": {"$ref": "#/definitions/meta.v1.DeleteOptions"}}
  },
  "paths": {
    "/": {"get": {"operationId": "getVersions", "produces": ["application/json"], "responses": {"401": {"description": "No"}}}},
    "/api/v1/namespaces/{namespace}/pods/{name}": {
      "parameters": [
        {"name": "namespace", "in": "path", "required": true, "type": "string", "uniqueItems": true, "description": "Its place."},
        {"name": "name", "in": "path", "required": true, "type": "string", "uniqueItems": true, "description": "Its name."},
        {"$ref": "#/parameters/pretty-tJGM1"}
      ],
      "get": {
        "operationId": "readPod", "description": "read a pod", "tags": ["core_v1"], "schemes": ["https"], "consumes": ["*/*"],
        "produces": ["application/json", "application/yaml"],
        "parameters": [
          {"name": "pretty", "in": "query", "type": "boolean", "description": "Print this one nicely."},
          {"name": "fields", "in": "query", "type": "array", "items": {"type": "string"}, "collectionFormat": "multi",
           "description": "Fields to show."},
          {"name": "X-Trace", "in": "header", "type": "integer", "description": "A number to follow it by."}
        ],
        "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/core.v1.Pod"}}},
        "x-kubernetes-action": "get", "x-kubernetes-group-version-kind": {"group": "", "kind": "Pod", "version": "v1"}
      },
      "patch": {
        "operationId": "patchPod", "description": "change a pod", "produces": ["application/json"],
        "consumes": ["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"],
        "parameters": [{"name": "body", "in": "body", "required": true, "description": "The change.",
                        "schema": {"$ref": "#/definitions/core.v1.Pod"}}],
        "responses": {"200": {"description": "OK"}}, "x-kubernetes-action": "patch"
      },
      "delete": {
        "operationId": "deletePod", "description": "delete a pod", "consumes": ["*/*"], "produces": ["application/json"],
        "parameters": [{"$ref": "#/parameters/body-2Y1dV"}], "responses": {"202": {"description": "Accepted"}}
      },
      "put": {
        "operationId": "uploadPod", "consumes": ["multipart/form-data"],
        "parameters": [
          {"name": "manifest", "in": "formData", "type": "file", "required": true, "description": "A file."},
          {"name": "labels", "in": "formData", "type": "array", "items": {"type": "string"}, "collectionFormat": "csv",
           "description": "Labels of it."}
        ],
        "responses": {"200": {"description": "OK"}}
      }
    }
  },
  "definitions": {
    "meta.v1.DeleteOptions": {"type": "object", "properties": {
      "gracePeriodSeconds": {"type": "integer", "format": "int64", "description": "Seconds to wait."}},
      "x-kubernetes-group-version-kind": [{"group": "", "kind": "DeleteOptions", "version": "v1"}]},
    "core.v1.Pod": {"type": "object", "description": "A pod.", "required": ["spec"], "properties": {
      "apiVersion": {"type": "string", "description": "Its schema."},
      "spec": {"$ref": "#/definitions/core.v1.PodSpec"}}},
    "core.v1.PodSpec": {"type": "object", "properties": {
      "containers": {"type": "array", "description": "What runs.", "items": {"$ref": "#/definitions/core.v1.Container"},
        "x-kubernetes-patch-merge-key": "name", "x-kubernetes-patch-strategy": "merge"},
      "init": {"$ref": "#/definitions/core.v1.PodSpec"}}},
    "core.v1.Container": {"type": "object", "properties": {
      "port": {"type": "string", "format": "int-or-string", "description": "Number or name."},
      "limits": {"type": "object", "description": "At most.", "additionalProperties": {"type": "string"}}}}
  }
}"##;

#[test]
fn cluster_documents_keep_parameters_and_descriptions() {
    let document: Value = serde_json::from_str(CLUSTER).expect("json");
    let imported = import_of(&document, |config| config.base_url = Some("https://cluster.example".into()));
    assert!(imported.refused.is_empty(), "{:?}", imported.refused);
    let check = |name: &str, description: &str, arguments: &[(&str, &str)], words: &[&str]| {
        let tool = imported.tools.iter().find(|tool| tool.raw_name == name).expect(name);
        assert_eq!(tool.definition.description, description, "{name}");
        let properties = schema(tool)["properties"].as_object().expect("properties");
        let said = |argument: &str| properties[argument]["description"].as_str().unwrap_or_default();
        let got: Vec<_> = properties.keys().map(|argument| (argument.as_str(), said(argument))).collect();
        assert_eq!(got, arguments, "{name}");
        let text = schema(tool).to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{name}: {word}: {text}"));
    };
    let place = [("namespace", "Its place."), ("name", "Its name.")];
    let with = |more: &[(&'static str, &'static str)]| [&place[..], more].concat();
    let pod = ["A pod.", "Its schema.", "What runs.", "Number or name.", "At most.", "\"required\":[\"spec\"]"];
    check("getVersions", "", &[], &[]);
    let fields = ("fields", "Fields to show.");
    let trace = ("X-Trace", "A number to follow it by.");
    check("readPod", "read a pod", &with(&[("pretty", "Print this one nicely."), fields, trace]), &["\"boolean\""]);
    let pretty = ("pretty", "Print nicely.");
    check("patchPod", "change a pod", &with(&[pretty, ("body", "The change.")]), &pod);
    check("deletePod", "delete a pod", &with(&[pretty, ("body", "")]), &["Seconds to wait."]);
    check(
        "uploadPod",
        "",
        &with(&[pretty, ("body", "")]),
        &["A file.", "Labels of it.", "\"required\":[\"manifest\"]"],
    );
}

/// The shape of DigitalOcean's document, written by hand from the specification: path items and operations in files of
/// their own, which refer to others by paths relative to themselves.
#[test]
fn split_documents_keep_parameters_and_descriptions() {
    let text = "openapi: 3.0.0\nservers: [{url: 'https://x.example'}]\npaths:\n  /v2/droplets/{droplet_id}: {$ref: \
                'resources/droplets/item.yml'}\n";
    let folder = folder_of(&[
        (
            "resources/droplets/item.yml",
            "parameters: [{$ref: parameters.yml#/id}]\nget: {$ref: get.yml}\npost: {$ref: ../post.yml}\n",
        ),
        (
            "resources/droplets/get.yml",
            "operationId: droplets_get\nsummary: Read a Droplet\ndescription: By its id.\n\
          parameters:\n  - $ref: '../../shared/parameters.yml#/page'\n  - $ref: 'parameters.yml#/tag~1name'\n\
          responses: {'200': {$ref: responses/one.yml}}\n",
        ),
        (
            "resources/droplets/parameters.yml",
            "id: {name: droplet_id, in: path, required: true, description: Its number, \
          schema: {$ref: models/id.yml}}\ntag/name: {name: tag_name, in: query, description: A tag, schema: {type: string}}\n",
        ),
        ("resources/droplets/models/id.yml", "type: integer\nminimum: 1\n"),
        (
            "resources/droplets/models/new.yml",
            "type: object\nrequired: [name]\nproperties:\n  \
          name: {type: string, description: What it is called}\n  image: {$ref: ../../images/image.yml}\n",
        ),
        (
            "resources/images/image.yml",
            "allOf:\n  - {type: object, properties: {slug: {type: string, description: A word for it}}}\n",
        ),
        (
            "resources/post.yml",
            "operationId: droplets_create\nsummary: Make a Droplet\nrequestBody:\n  required: true\n  \
          content: {application/json: {schema: {$ref: droplets/models/new.yml}}}\nresponses: {}\n",
        ),
        (
            "shared/parameters.yml",
            "page: {name: page, in: query, description: Which page, schema: {type: integer, default: 1}}\n",
        ),
        ("resources/droplets/responses/one.yml", "description: It\n"),
        ("api.yaml", text),
    ]);
    let path = folder.path().join("api.yaml");
    let imported = import(&file_config(&path), text, Origin::File(path.clone())).expect("a document");
    let [get, post] = &imported.tools[..] else { panic!("{:?}", imported.refused) };
    assert_eq!(get.definition.description, "Read a Droplet\n\nBy its id.");
    let id = json!({"type": "integer", "minimum": 1, "description": "Its number"});
    let expect = json!({"droplet_id": id, "page": {"type": "integer", "default": 1, "description": "Which page"},
                        "tag_name": {"type": "string", "description": "A tag"}});
    assert_eq!(schema(get)["properties"], expect);
    assert_eq!(
        (&*post.definition.description, &schema(post)["required"]),
        ("Make a Droplet", &json!(["droplet_id", "body"]))
    );
    assert_eq!(schema(post)["properties"]["droplet_id"], id);
    let body = schema(post).to_string();
    assert!(body.contains("What it is called") && body.contains("A word for it"), "{body}");
}
