//! Documents as others write them: large ones, those in YAML and in many files, what frameworks generate, and what stands
//! in them at odd places.

use std::fmt::Write as _;

use serde_json::{Value, json};
use toolwright_core::ErrorKind;
use toolwright_providers::openapi::{Auth, Import, OpenApiConfig, Origin, import};

use crate::openapi::{call, document, file_config, import_of, schema, sent};
use crate::wire::Received;

const NEWER: &str = "3.1.0";

fn import_text(text: &str) -> Import {
    let origin = Origin::File("api.yaml".into());
    import(&OpenApiConfig::new("api", origin.clone()), text, origin).expect("a document")
}

/// What a call of the only operation sends, whose body has this content.
async fn posted(content: Value, more: Value, body: Value) -> Received {
    let operation = json!({"operationId": "op", "requestBody": {"required": true, "content": content}});
    sent(json!({"/": {"post": operation}}), more, json!({"body": body}), |_| {}).await
}

/// Why a call of the only operation sends nothing.
async fn not_sent(paths: Value, more: Value, arguments: Value) -> String {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("api.json");
    std::fs::write(&path, document(paths, more).to_string()).expect("file");
    let error = call(file_config(&path), "op", arguments).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidParameters);
    error.to_string()
}

fn refused(imported: &Import) -> Vec<&str> {
    imported.refused.iter().map(|refused| refused.reason.as_str()).collect()
}

#[test]
fn a_large_document_in_yaml_is_read_whole() {
    let mut text = String::from(
        "openapi: 3.0.3\nservers: [{url: 'https://x.example'}]\nx-e: &e {description: E}\npaths:\n  /p:\n    get:\n      \
         operationId: op\n      responses:\n",
    );
    // One anchor that is used more than a thousand times, and more than 250,000 values.
    for status in 300..1500 {
        writeln!(text, "        '{status}': *e").expect("written");
    }
    text.push_str("components:\n  schemas:\n");
    for index in 0..60_000 {
        writeln!(text, "    S{index}: {{type: object, properties: {{a: {{type: string}}}}}}").expect("written");
    }
    let imported = import_text(&text);
    assert_eq!((imported.tools.len(), refused(&imported)), (1, vec![]));
}

#[tokio::test]
async fn words_without_quotes_are_texts_in_yaml() {
    let text = "openapi: 3.0.3
info: {title: T, version: 1.0}
servers: [{url: 'https://x.example'}]
paths:
  /p:
    get:
      operationId: op
      tags: [on]
      parameters:
      - {name: y, in: query, required: true, schema: {type: number}}
      - {name: n, in: query, schema: {type: string, enum: [NO, SE, yes, off], default: NO}}
      - {name: day, in: query, schema: {type: string, enum: [2024-01-02, 12:30]}}
    post:
      operationId: set
      requestBody:
        content:
          application/json:
            schema: {type: object, required: [x, y], properties: {x: {type: number}, y: {type: number}}}
";
    let imported = import_text(text);
    assert_eq!(refused(&imported), Vec::<&str>::new());
    let (get, post) = (schema(&imported.tools[0]), schema(&imported.tools[1]));
    assert_eq!(get["required"], json!(["y"]));
    assert_eq!(get["properties"]["n"], json!({"type": "string", "enum": ["NO", "SE", "yes", "off"], "default": "NO"}));
    assert_eq!(get["properties"]["day"]["enum"], json!(["2024-01-02", "12:30"]));
    assert_eq!(imported.tools[0].definition.tags, ["on"]);
    assert_eq!(post["properties"]["body"]["required"], json!(["x", "y"]));
}

#[test]
fn a_document_may_be_split_into_many_files() {
    let folder = tempfile::tempdir().expect("folder");
    let mut paths = String::new();
    for index in 0..1_500 {
        writeln!(paths, "  /p{index}: {{$ref: 'paths/p{index}.yaml'}}").expect("written");
        std::fs::create_dir_all(folder.path().join("paths")).expect("folder");
        let item = format!("get: {{operationId: op{index}, parameters: [{{$ref: ../limit.yaml}}]}}\n");
        std::fs::write(folder.path().join(format!("paths/p{index}.yaml")), item).expect("file");
    }
    std::fs::write(folder.path().join("limit.yaml"), "{name: limit, in: query, schema: {type: integer}}")
        .expect("file");
    let text = format!("openapi: 3.1.0\nservers: [{{url: 'https://x.example'}}]\npaths:\n{paths}");
    let path = folder.path().join("api.yaml");
    std::fs::write(&path, &text).expect("file");
    let imported = import(&file_config(&path), &text, Origin::File(path.clone())).expect("a document");
    assert_eq!((imported.tools.len(), refused(&imported)), (1_500, vec![]));
    assert_eq!(schema(&imported.tools[1_499])["properties"]["limit"], json!({"type": "integer"}));
}

/// The shape of FastAPI's `UploadFile | None` and `list[UploadFile]`, and what others write for the same.
#[tokio::test]
async fn optional_uploads_and_lists_of_them_are_files() {
    let file = || json!({"type": "string", "format": "binary"});
    let components = json!({"schemas": {
        "File": file(),
        "Files": {"type": "array", "items": file()},
        "Form": {"type": "object", "properties": {
            "maybe": {"anyOf": [file(), {"type": "null"}], "title": "Maybe"},
            "list": {"anyOf": [{"type": "array", "items": file()}, {"type": "null"}]},
            "media": {"anyOf": [{"type": "string", "contentMediaType": "image/png"}, {"type": "null"}]},
            "typed": {"type": ["string", "null"], "format": "binary"},
            "all": {"allOf": [{"$ref": "#/components/schemas/File"}], "type": "string", "description": "D"},
            "named": {"$ref": "#/components/schemas/Files"},
            "either": {"anyOf": [{"type": "integer"}, file()]},
            "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        }, "additionalProperties": file()},
    }});
    let more = json!({"openapi": NEWER, "components": components});
    let content = json!({"multipart/form-data": {"schema": {"$ref": "#/components/schemas/Form"}}});
    let given = json!({"base64": "iVBORw==", "filename": "a.bin"});
    let body = json!({
        "maybe": given, "list": [given, given], "media": given, "typed": given, "all": given, "named": [given],
        "either": given, "other": given, "text": "x",
    });
    let operation = json!({"operationId": "op", "requestBody": {"required": true, "content": content}});
    let imported = import_of(&document(json!({"/": {"post": operation}}), more.clone()), |_| {});
    let parameters = schema(&imported.tools[0]);
    let compiled = toolwright_core::schema::CompiledSchema::compile(parameters).expect("compiles");
    for (body, is_valid) in [
        (body.clone(), true),
        (json!({"maybe": null, "list": null, "typed": null, "either": 5}), true),
        (json!({"maybe": 5}), false),
        (json!({"all": {"base64": 1}}), false),
    ] {
        let violations = compiled.violations(&json!({"body": body}));
        assert_eq!(violations.is_empty(), is_valid, "{body}: {violations:?}");
    }
    let sent = posted(content.clone(), more.clone(), body).await;
    let part = |name: &str, file_name: &str, media: &str| {
        format!("name=\"{name}\"; filename=\"{file_name}\"\r\nContent-Type: {media}\r\n\r\n")
    };
    for (name, count) in
        [("maybe", 1), ("list", 2), ("typed", 1), ("all", 1), ("named", 1), ("either", 1), ("other", 1)]
    {
        let found = sent.body.matches(&part(name, "a.bin", "application/octet-stream")).count();
        assert_eq!(found, count, "{name}: {}", sent.body);
    }
    assert!(sent.body.contains(&part("media", "a.bin", "image/png")), "{}", sent.body);
    assert!(sent.body.contains("name=\"text\"\r\nContent-Type: text/plain\r\n\r\nx"), "{}", sent.body);
    // A text is a file too where there are only files, and a number where there are others is none.
    let sent = posted(content, more, json!({"maybe": "t", "list": null, "either": 5})).await;
    assert!(sent.body.contains(&part("maybe", "maybe", "application/octet-stream")), "{}", sent.body);
    assert!(sent.body.contains("name=\"either\"\r\nContent-Type: text/plain\r\n\r\n5"), "{}", sent.body);
    assert!(!sent.body.contains("list"), "{}", sent.body);
}

#[tokio::test]
async fn nullable_uploads_of_older_documents_are_files() {
    let schema = json!({"type": "object", "properties": {
        "f": {"type": "string", "format": "binary", "nullable": true},
        "g": {"nullable": true, "allOf": [{"type": "string", "format": "binary"}]},
    }});
    let given = json!({"base64": "YWJj", "filename": "a.txt"});
    let content = json!({"multipart/form-data": {"schema": schema}});
    let sent = posted(content, json!({}), json!({"f": given, "g": given})).await;
    assert_eq!(sent.body.matches("filename=\"a.txt\"").count(), 2, "{}", sent.body);
}

#[tokio::test]
async fn bytes_are_sent_under_any_media_type() {
    let file = json!({"type": "string", "format": "binary"});
    for media in ["*/*", "application/*"] {
        let content = json!({media: {"schema": file}});
        let check = async |body: Value, expect: (&str, &str)| {
            let sent = posted(content.clone(), json!({}), body).await;
            assert_eq!((sent.header("content-type").unwrap_or_default(), sent.body.as_str()), expect, "{media}");
        };
        check(json!("a\"b"), ("application/octet-stream", "a\"b")).await;
        check(json!({"base64": "YWJj"}), ("application/octet-stream", "abc")).await;
        check(json!({"base64": "YWJj", "content_type": "application/pdf"}), ("application/pdf", "abc")).await;
    }
    let sent = posted(json!({"*/*": {"schema": {"type": "string"}}}), json!({}), json!("a")).await;
    assert_eq!((sent.header("content-type"), sent.body.as_str()), (Some("application/json"), "\"a\""));
}

#[tokio::test]
async fn media_ranges_take_the_files_type() {
    for (schema, version) in [
        (json!({"type": "string", "format": "binary"}), "3.0.3"),
        (json!({}), NEWER),
        (json!({"anyOf": [{"type": "string", "format": "binary"}, {"type": "null"}]}), NEWER),
    ] {
        let content = json!({"image/*": {"schema": schema}});
        let more = json!({"openapi": version});
        let png = json!({"base64": "YWJj", "content_type": "image/png"});
        let sent = posted(content.clone(), more.clone(), png).await;
        assert_eq!((sent.header("content-type"), sent.body.as_str()), (Some("image/png"), "abc"));
        for (given, fragment) in [
            (json!({"base64": "YWJj"}), "say in `content_type`"),
            (json!({"base64": "YWJj", "content_type": "text/plain"}), "is none of `image/*`"),
            (json!({"base64": "YWJj", "content_type": "image/*"}), "is none of `image/*`"),
            (json!({"base64": "YWJj", "content_type": "image/a b"}), "is none of `image/*`"),
            (json!("text"), "say in `content_type`"),
        ] {
            let operation = json!({"operationId": "op", "requestBody": {"content": content}});
            let reported = not_sent(json!({"/": {"post": operation}}), more.clone(), json!({"body": given})).await;
            assert!(reported.contains(fragment), "{given}: {reported}");
        }
        let operation = json!({"operationId": "op", "requestBody": {"content": content}});
        let imported = import_of(&document(json!({"/": {"post": operation}}), more), |_| {});
        let body = &self::schema(&imported.tools[0])["properties"]["body"];
        assert_eq!(body["required"], json!(["base64", "content_type"]), "{body}");
    }
    // One that the document names is sent, whatever is said of the file.
    let content = json!({"image/png": {"schema": {"type": "string", "format": "binary"}}});
    let sent = posted(content, json!({}), json!({"base64": "YWJj", "content_type": "image/gif"})).await;
    assert_eq!(sent.header("content-type"), Some("image/png"));
}

/// Twilio's filters.
#[tokio::test]
async fn parameters_with_illegal_characters_describe_their_name() {
    let parameter = |name: &str| json!({"name": name, "in": "query", "description": "Filter.", "schema": {}});
    let names = ["StartTime", "StartTime<", "StartTime>"];
    for order in [[0, 1, 2], [2, 1, 0]] {
        let parameters: Vec<Value> = order.iter().map(|at| parameter(names[*at])).collect();
        let paths = json!({"/": {"get": {"operationId": "op", "parameters": parameters}}});
        let imported = import_of(&document(paths.clone(), json!({})), |_| {});
        let properties = &schema(&imported.tools[0])["properties"];
        assert_eq!(properties["StartTime"]["description"], "Filter.");
        assert_eq!(properties["StartTime_lt"]["description"], "`StartTime<` of the query. Filter.");
        assert_eq!(properties["StartTime_gt"]["description"], "`StartTime>` of the query. Filter.");
        let sent = sent(paths, json!({}), json!({"StartTime_lt": 1, "StartTime_gt": 2}), |_| {}).await;
        for pair in ["StartTime%3C=1", "StartTime%3E=2"] {
            assert!(sent.line.contains(pair), "{}", sent.line);
        }
    }
}

#[test]
fn siblings_of_path_references_count() {
    let operation = |id: &str| json!({"operationId": id});
    let parameter = |name: &str, kind: &str| json!({"name": name, "in": "query", "schema": {"type": kind}});
    let more = json!({"openapi": NEWER, "components": {"pathItems": {"P": {
        "get": operation("theirs"), "put": operation("both"), "servers": [{"url": "https://far.example"}],
        "parameters": [parameter("a", "string"), parameter("b", "string")],
    }}}});
    let reference = "#/components/pathItems/P";
    let item = json!({"$ref": reference, "post": operation("own"), "put": operation("mine"),
        "parameters": [parameter("b", "integer"), parameter("c", "integer")]});
    let paths = json!({"/p": item, "/q": {"$ref": "#/nowhere", "get": operation("beside")}});
    let imported = import_of(&document(paths, more), |_| {});
    let mut ids: Vec<&str> = imported.tools.iter().map(|tool| tool.raw_name.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["beside", "mine", "own", "theirs"]);
    assert_eq!((imported.operations, imported.refused.len()), (5, 1), "{:?}", imported.refused);
    assert!(imported.refused[0].operation == "/q" && imported.refused[0].reason.contains("names nothing"));
    for tool in imported.tools.iter().filter(|tool| tool.path == "/p") {
        let expect = json!({"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "integer"}});
        let found = &schema(tool)["properties"];
        assert_eq!(found, &expect, "{}", tool.raw_name);
    }
}

#[test]
fn schemas_are_found_by_their_own_names() {
    let schemas = json!({
        "Anchored": {"$anchor": "here", "type": "object", "properties": {"a": {"type": "integer"}}},
        "Tree": {"$id": "https://ids.example/tree", "type": "object", "$dynamicAnchor": "node", "properties": {
            "children": {"type": "array", "items": {"$dynamicRef": "#node"}},
            "size": {"$ref": "#/$defs/size"},
            "leaf": {"$ref": "leaf"},
            "outside": {"$ref": "#/components/schemas/Anchored"},
            "example": {"type": "string", "example": {"$id": "https://ids.example/leaf"}},
        }, "$defs": {"size": {"type": "integer", "minimum": 1}}},
        "Leaf": {"$id": "https://ids.example/leaf", "type": "object", "properties": {"v": {"type": "boolean"}}},
        "Pet": {"oneOf": [{"$ref": "#cat"}, {"$ref": "#dog"}], "discriminator":
            {"propertyName": "kind", "mapping": {"c": "#cat", "d": "#dog"}}},
        "Cat": {"$anchor": "cat", "type": "object", "properties": {"kind": {"type": "string"}}},
        "Dog": {"$anchor": "dog", "type": "object", "properties": {"kind": {"type": "string"}}},
    });
    let check = |reference: &str, valid: &[Value], invalid: &[Value]| {
        let content = json!({"application/json": {"schema": {"$ref": reference}}});
        let operation = json!({"operationId": "op", "requestBody": {"required": true, "content": content}});
        let more = json!({"openapi": NEWER, "components": {"schemas": schemas}});
        let imported = import_of(&document(json!({"/": {"post": operation}}), more), |_| {});
        assert_eq!(refused(&imported), Vec::<&str>::new(), "{reference}");
        let compiled = toolwright_core::schema::CompiledSchema::compile(schema(&imported.tools[0])).expect("compiles");
        for (bodies, is_valid) in [(valid, true), (invalid, false)] {
            for body in bodies {
                let violations = compiled.violations(&json!({"body": body}));
                assert_eq!(violations.is_empty(), is_valid, "{reference} {body}: {violations:?}");
            }
        }
    };
    check("#here", &[json!({"a": 1})], &[json!({"a": "x"})]);
    let tree = |size: Value| json!({"size": 1, "children": [{"children": [{"size": size}]}], "leaf": {"v": true}});
    for reference in ["https://ids.example/tree", "#/components/schemas/Tree", "https://ids.example/tree#node"] {
        check(
            reference,
            &[tree(json!(2)), json!({"outside": {"a": 1}})],
            &[tree(json!(0)), json!({"leaf": {"v": 1}}), json!({"outside": {"a": "x"}}), json!({"children": [1]})],
        );
    }
    check("https://ids.example/tree#/$defs/size", &[json!(1)], &[json!(0)]);
    check("#/components/schemas/Pet", &[json!({"kind": "c"}), json!({"kind": "d"})], &[json!({"kind": "cat"})]);
}

#[test]
fn ambiguous_schema_names_are_refused() {
    let page = |id: &str| {
        json!({"$id": id, "$dynamicAnchor": "item", "type": "object", "properties":
        {"items": {"$dynamicRef": "#item"}}})
    };
    let more = json!({"openapi": NEWER, "components": {"schemas": {"A": page("a"), "B": page("b")}}});
    let content = json!({"application/json": {"schema": {"$ref": "#/components/schemas/A"}}});
    let operation = json!({"operationId": "op", "requestBody": {"content": content}});
    let imported = import_of(&document(json!({"/": {"post": operation}}), more), |_| {});
    assert!(imported.refused[0].reason.contains("$dynamicRef `#item`"), "{:?}", imported.refused);
}

#[test]
fn schemas_in_other_files_are_found() {
    let folder = tempfile::tempdir().expect("folder");
    let others = "Pet: {$id: 'https://ids.example/pet', type: object, required: [n], properties: {n: {$ref: '#/$defs/n'}}, \
                  $defs: {n: {type: integer}}}\nTag: {$anchor: tag, type: string}\n";
    std::fs::write(folder.path().join("others.yaml"), others).expect("file");
    let body = |reference: &str| {
        format!("{{requestBody: {{content: {{application/json: {{schema: {{$ref: '{reference}'}}}}}}}}}}")
    };
    let text = format!(
        "openapi: 3.1.0\nservers: [{{url: 'https://x.example'}}]\npaths:\n  /a: {{post: {}, put: {}, patch: {}}}\n",
        body("others.yaml#/Pet"),
        body("https://ids.example/pet"),
        body("others.yaml#tag"),
    );
    let path = folder.path().join("api.yaml");
    std::fs::write(&path, &text).expect("file");
    let imported = import(&file_config(&path), &text, Origin::File(path.clone())).expect("a document");
    assert_eq!((imported.tools.len(), refused(&imported)), (3, vec![]));
    for (tool, expect) in imported.tools.iter().zip(["integer", "integer", "string"]) {
        assert!(schema(tool).to_string().contains(&format!("\"type\":\"{expect}\"")), "{}", schema(tool));
    }
}

#[tokio::test]
async fn paths_end_before_fragment_and_query() {
    let get = |parameters: Value| json!({"get": {"operationId": "op", "parameters": parameters}});
    let q = || json!([{"name": "q", "in": "query", "schema": {}}]);
    for (path, parameters, arguments, expect) in [
        ("/a?x=1#y", q(), json!({"q": "z"}), "/base/a?x=1&q=z"),
        ("/a#b?c=1", q(), json!({"q": "z"}), "/base/a?q=z"),
        ("/a#b", json!([]), json!({}), "/base/a"),
        ("/a?k={q}", q(), json!({"q": "z w"}), "/base/a?k=z%20w"),
        (
            "/a?k={id}&q=1",
            json!([{"name": "id", "in": "path", "required": true, "schema": {}}]),
            json!({"id": 5}),
            "/base/a?k=5&q=1",
        ),
    ] {
        let sent = sent(json!({path: get(parameters)}), json!({}), arguments, |_| {}).await;
        assert_eq!(sent.line, format!("GET {expect} HTTP/1.1"), "{path}");
    }
    for path in ["/a?k=x{q}", "/a?k={q},{r}"] {
        let imported = import_of(&document(json!({path: get(q())}), json!({})), |_| {});
        assert!(imported.refused[0].reason.contains("the query of its path"), "{path}: {:?}", imported.refused);
    }
}

#[tokio::test]
async fn path_query_parameters_keep_their_names() {
    let q = || json!([{"name": "q", "in": "query", "schema": {}}]);
    for (path, parameters, arguments, expect) in [
        ("/a?{q}", q(), json!({"q": "z"}), "/base/a?q=z"),
        ("/a?={q}", q(), json!({"q": "z"}), "/base/a?q=z"),
        ("/a?x={x}", json!([]), json!({"x": "y z"}), "/base/a?x=y%20z"),
        ("/a?k={x}&{y}&q=1", q(), json!({"x": "1", "y": "2", "q": "3"}), "/base/a?k=1&y=2&q=1&q=3"),
        ("/a/{x}?y={x}", json!([]), json!({"x": "1"}), "/base/a/1?y=1"),
        ("/a?x={q}&y={q}", q(), json!({"q": "z"}), "/base/a?x=z&y=z"),
    ] {
        let paths = || json!({path: {"get": {"operationId": "op", "parameters": parameters}}});
        let imported = import_of(&document(paths(), json!({})), |_| {});
        let names: Vec<&String> =
            schema(&imported.tools[0])["properties"].as_object().expect("object").keys().collect();
        let given: Vec<&String> = arguments.as_object().expect("object").keys().collect();
        assert_eq!(names, given, "{path}");
        let sent = sent(paths(), json!({}), arguments.clone(), |_| {}).await;
        assert_eq!(sent.line, format!("GET {expect} HTTP/1.1"), "{path}");
    }
}

/// No argument stands in its place, stated or not.
#[tokio::test]
async fn credentials_in_path_queries_are_no_arguments() {
    for (path, name) in [("/a?k={k}", "k"), ("/a?{k}", "k"), ("/a?k={q}", "q")] {
        for parameters in [json!([]), json!([{"name": name, "in": "query", "schema": {}}])] {
            let paths = json!({path: {"get": {"operationId": "op", "parameters": parameters}}});
            let more = json!({"security": [{"s": []}],
                "components": {"securitySchemes": {"s": {"type": "apiKey", "in": "query", "name": "k"}}}});
            let auth = |config: &mut OpenApiConfig| {
                config.auth.insert("s".into(), Auth::Token("t0ken".into()));
            };
            let imported = import_of(&document(paths.clone(), more.clone()), auth);
            assert_eq!(schema(&imported.tools[0])["properties"], json!({}), "{path}");
            let sent = sent(paths, more, json!({}), auth).await;
            assert_eq!(sent.line, "GET /base/a?k=t0ken HTTP/1.1", "{path}");
        }
    }
}

#[tokio::test]
async fn repeated_path_parameters_are_one_argument() {
    let id = json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "integer"}}]);
    for parameters in [id, json!([])] {
        let paths = || json!({"/a/{id}/b/{id}": {"get": {"operationId": "op", "parameters": parameters}}});
        let imported = import_of(&document(paths(), json!({})), |_| {});
        let found = schema(&imported.tools[0]);
        assert_eq!(found["properties"].as_object().map(serde_json::Map::len), Some(1), "{found}");
        assert_eq!(found["required"], json!(["id"]));
        let sent = sent(paths(), json!({}), json!({"id": "5"}), |_| {}).await;
        assert_eq!(sent.line, "GET /base/a/5/b/5 HTTP/1.1");
    }
}

#[test]
fn paths_with_too_many_parameters_are_refused() {
    let path: String = (0..200_000).map(|at| format!("/{{p{at}}}")).collect();
    let started = std::time::Instant::now();
    for path in [path.clone(), format!("/a?{}", path.replace('/', "&"))] {
        let imported = import_of(&document(json!({path: {"get": {"operationId": "op"}}}), json!({})), |_| {});
        assert!(imported.refused[0].reason.contains("more than 1000 parameters"), "{:?}", imported.refused[0].reason);
    }
    assert!(started.elapsed().as_secs() < 20);
}

#[test]
fn unnamed_places_are_not_made() {
    // Each of many objects stands at a place whose name is as long as the document.
    let objects = vec![json!({}); 300_000];
    let nested = json!({"x".repeat(1 << 20): objects, "y".repeat(4 << 10): vec![json!({"$anchor": "a"}); 50_000]});
    let more = json!({"openapi": NEWER, "components": {"schemas": {"S": {"properties": nested}}}});
    let started = std::time::Instant::now();
    let imported = import_of(&document(json!({"/": {"get": {"operationId": "op"}}}), more), |_| {});
    assert_eq!(imported.tools.len(), 1);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn self_referring_paths_have_parameters_once() {
    let parameters: Vec<Value> = (0..900).map(|at| json!({"name": format!("p{at}"), "in": "query"})).collect();
    let item = |next: &str| json!({"$ref": format!("#/components/pathItems/{next}"), "get": {"operationId": next}, "parameters": parameters});
    let more = json!({"openapi": NEWER, "components": {"pathItems": {"A": item("B"), "B": item("A")}}});
    let imported = import_of(&document(json!({"/p": {"$ref": "#/components/pathItems/A"}}), more), |_| {});
    assert_eq!((imported.tools.len(), imported.tools[0].raw_name.as_str()), (1, "B"));
    assert!(imported.refused[0].reason.contains("in a circle"), "{:?}", imported.refused);
}

#[test]
fn lists_of_uploads_in_lists_refer_to_themselves() {
    let files = json!({"anyOf": [
        {"type": "string", "format": "binary"}, {"type": "array", "items": {"$ref": "#/components/schemas/Files"}}]});
    let form = json!({"type": "object", "properties": {"files": {"$ref": "#/components/schemas/Files"}}});
    let more = json!({"openapi": NEWER, "components": {"schemas": {"Files": files, "Form": form}}});
    let content = json!({"multipart/form-data": {"schema": {"$ref": "#/components/schemas/Form"}}});
    let operation = json!({"operationId": "op", "requestBody": {"required": true, "content": content}});
    let imported = import_of(&document(json!({"/": {"post": operation}}), more), |_| {});
    assert_eq!(refused(&imported), Vec::<&str>::new());
    let parameters = schema(&imported.tools[0]);
    let compiled = toolwright_core::schema::CompiledSchema::compile(parameters).expect("compiles");
    let file = json!({"base64": "YQ=="});
    for (given, is_valid) in
        [(file.clone(), true), (json!([file, [[file]]]), true), (json!([[[{"base64": 1}]]]), false)]
    {
        let violations = compiled.violations(&json!({"body": {"files": given}}));
        assert_eq!(violations.is_empty(), is_valid, "{given}: {violations:?}");
    }
}

#[test]
fn unreadable_files_are_tried_once() {
    let folder = tempfile::tempdir().expect("folder");
    // It takes a while to find that it is nothing.
    let broken = format!("{{\"a\": [{} }}", "1,".repeat(1 << 20));
    std::fs::write(folder.path().join("broken.json"), broken).expect("file");
    let mut text = String::from("openapi: 3.1.0\nservers: [{url: 'https://x.example'}]\npaths:\n");
    for at in 0..300 {
        let before = "./".repeat(at);
        writeln!(text, "  /p{at}: {{get: {{parameters: [{{$ref: '{before}broken.json#/a'}}]}}}}").expect("written");
    }
    let path = folder.path().join("api.yaml");
    std::fs::write(&path, &text).expect("file");
    let started = std::time::Instant::now();
    let imported = import(&file_config(&path), &text, Origin::File(path.clone())).expect("a document");
    assert_eq!((imported.tools.len(), imported.refused.len()), (0, 300));
    let first = refused(&imported)[0];
    assert!(first.contains("not JSON"), "{first}");
    assert!(refused(&imported).iter().all(|reason| reason.contains("not JSON")));
    // Three hundred times take many minutes.
    assert!(started.elapsed().as_secs() < 120, "{:?}", started.elapsed());
}

#[tokio::test]
async fn required_values_sent_as_nothing_fail() {
    for (place, style) in [("query", "form"), ("query", "deepObject"), ("header", "simple"), ("cookie", "form")] {
        for (given, fragment) in
            [(json!([]), "is sent as nothing"), (json!({}), "is sent as nothing"), (json!(null), "required and null")]
        {
            let parameter = |required: bool| {
                json!({"name": "p", "in": place, "style": style, "required": required,
                "explode": style != "simple", "schema": {}})
            };
            let paths =
                |required: bool| json!({"/": {"get": {"operationId": "op", "parameters": [parameter(required)]}}});
            let reported = not_sent(paths(true), json!({}), json!({"p": given})).await;
            assert!(reported.contains("`p`") && reported.contains(fragment), "{place} {given}: {reported}");
            // What need not be there is left out.
            let sent = sent(paths(false), json!({}), json!({"p": given}), |_| {}).await;
            let found = (sent.header("p"), sent.header("cookie"), sent.line.as_str());
            assert_eq!(found, (None, None, "GET /base/ HTTP/1.1"), "{place} {given}");
        }
    }
    for style in ["simple", "label", "matrix"] {
        let parameter = json!({"name": "p", "in": "path", "style": style, "required": true, "schema": {}});
        let paths = json!({"/{p}": {"get": {"operationId": "op", "parameters": [parameter]}}});
        let reported = not_sent(paths, json!({}), json!({"p": []})).await;
        assert!(reported.contains("`p`"), "{style}: {reported}");
    }
}

#[tokio::test]
async fn items_with_separators_are_refused_unsent() {
    for (place, style, explode, given) in [
        ("header", "simple", false, json!(["a,b", "c"])),
        ("path", "label", true, json!(["a.b", "c"])),
        ("query", "spaceDelimited", false, json!(["a b", "c"])),
        ("query", "pipeDelimited", false, json!(["a|b", "c"])),
        ("cookie", "cookie", false, json!(["a,b", "c"])),
    ] {
        let parameter = json!({"name": "p", "in": place, "style": style, "explode": explode, "required": true,
            "schema": {}});
        let path = if place == "path" { "/{p}" } else { "/" };
        let paths = json!({path: {"get": {"operationId": "op", "parameters": [parameter]}}});
        let reported = not_sent(paths, json!({"openapi": "3.2.0"}), json!({"p": given})).await;
        assert!(reported.contains("`p`") && reported.contains("holds a"), "{place} {style}: {reported}");
    }
}

#[tokio::test]
async fn non_idempotent_requests_have_keys() {
    let key = async |item: Value, more: Value, arguments: Value| {
        let sent = sent(json!({"/": item}), more, arguments, |_| {}).await;
        sent.header("idempotency-key").map(str::to_owned)
    };
    let operation = json!({"operationId": "op", "parameters": [
        {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}},
    ]});
    for (method, expect) in
        [("post", Some("key-1")), ("patch", Some("key-1")), ("put", None), ("delete", None), ("get", None)]
    {
        let found = key(json!({method: operation}), json!({}), json!({})).await;
        assert_eq!(found.as_deref(), expect, "{method}");
        let own = key(json!({method: operation}), json!({}), json!({"Idempotency-Key": "mine"})).await;
        assert_eq!(own.as_deref(), Some("mine"), "{method}");
    }
    let newer = || json!({"openapi": "3.2.0"});
    let copy = json!({"additionalOperations": {"COPY": {"operationId": "op"}}});
    assert_eq!(key(copy, newer(), json!({})).await.as_deref(), Some("key-1"));
    assert_eq!(key(json!({"query": {"operationId": "op"}}), newer(), json!({})).await, None);
}
