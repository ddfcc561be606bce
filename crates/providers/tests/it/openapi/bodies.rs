//! Bodies of imported operations that are XML, or parts other than form data: the bytes that are sent.

use serde_json::{Value, json};
use toolwright_providers::openapi::{OpenApiConfig, Origin, import};

use crate::openapi::{document, import_of, sent};
use crate::wire::Received;

const XML: &str = r#"<?xml version="1.0" encoding="UTF-8"?>"#;

async fn posted(content: Value, more: Value, body: Value) -> Received {
    let operation = json!({"operationId": "op", "requestBody": {"required": true, "content": content}});
    sent(json!({"/": {"post": operation}}), more, json!({"body": body}), |_| {}).await
}

fn of_xml(schema: Value) -> Value {
    json!({"application/xml": {"schema": schema}})
}

/// The examples of OpenAPI 3.0.4 and 3.1.1, "XML Object Examples", as members of an object; and what goes beyond them.
#[tokio::test]
async fn xml_follows_the_documents_names_and_places() {
    let text = || json!({"type": "string"});
    let named = |name: &str| json!({"type": "string", "xml": {"name": name}});
    let animals = |items: Value, xml: Value| json!({"animals": {"type": "array", "items": items, "xml": xml}});
    for (properties, value, expect) in [
        (json!({"animals": text()}), json!({"animals": "a"}), "<animals>a</animals>"),
        (animals(text(), json!({})), json!({"animals": ["a", "b"]}), "<animals>a</animals><animals>b</animals>"),
        (json!({"animals": named("animal")}), json!({"animals": "a"}), "<animal>a</animal>"),
        (
            json!({"name": {"type": "string", "xml": {"namespace": "http://example.com/schema/sample", "prefix": "sample"}}}),
            json!({"name": "x"}),
            "<sample:name xmlns:sample=\"http://example.com/schema/sample\">x</sample:name>",
        ),
        (animals(named("animal"), json!({})), json!({"animals": ["a", "b"]}), "<animal>a</animal><animal>b</animal>"),
        (animals(named("animal"), json!({"name": "aliens"})), json!({"animals": ["a"]}), "<animal>a</animal>"),
        (
            animals(text(), json!({"wrapped": true})),
            json!({"animals": ["a", "b"]}),
            "<animals><animals>a</animals><animals>b</animals></animals>",
        ),
        (
            animals(named("animal"), json!({"wrapped": true})),
            json!({"animals": ["a", "b"]}),
            "<animals><animal>a</animal><animal>b</animal></animals>",
        ),
        (
            animals(named("animal"), json!({"name": "aliens", "wrapped": true})),
            json!({"animals": ["a", "b"]}),
            "<aliens><animal>a</animal><animal>b</animal></aliens>",
        ),
        (
            animals(text(), json!({"name": "aliens", "wrapped": true})),
            json!({"animals": ["a", "b"]}),
            "<aliens><aliens>a</aliens><aliens>b</aliens></aliens>",
        ),
        (animals(text(), json!({"wrapped": true})), json!({"animals": []}), "<animals></animals>"),
        (
            json!({"n": {"type": "integer"}}),
            json!({"n": 5, "more": {"k": [1, 2]}}),
            "<n>5</n><more><k>1</k><k>2</k></more>",
        ),
    ] {
        let schema = json!({"type": "object", "xml": {"name": "r"}, "properties": properties});
        let sent = posted(of_xml(schema), json!({}), value).await;
        assert_eq!(sent.header("content-type"), Some("application/xml"));
        assert_eq!(sent.body, format!("{XML}<r>{expect}</r>"), "{properties}");
    }
}

#[tokio::test]
async fn component_xml_has_names_and_may_recur() {
    let person = json!({
        "type": "object",
        "xml": {"namespace": "urn:p"},
        "properties": {
            "id": {"type": "integer", "xml": {"attribute": true}},
            "name": {"type": "string"},
            "tag": {"$ref": "#/components/schemas/Tag"},
            "children": {"type": "array", "items": {"$ref": "#/components/schemas/Person"}, "xml": {"wrapped": true}},
        },
    });
    let tag = json!({"type": "object", "xml": {"name": "label"}, "properties": {"text": {"type": "string"}}});
    let named = json!({"allOf": [{"$ref": "#/components/schemas/Person"}], "type": "object"});
    let components = json!({"components": {"schemas": {"Person": person, "Tag": tag, "Named": named}}});
    let value =
        json!({"id": 1, "name": "A & B", "tag": {"text": "t"}, "children": [{"id": 2, "children": [{"name": "C"}]}]});
    for root in ["Person", "Named"] {
        let schema = json!({"$ref": format!("#/components/schemas/{root}")});
        let sent = posted(of_xml(schema), components.clone(), value.clone()).await;
        let expect = format!(
            "{XML}<{root} xmlns=\"urn:p\" id=\"1\"><name>A &amp; B</name><label><text>t</text></label><children>\
             <children xmlns=\"urn:p\" id=\"2\"><children><children xmlns=\"urn:p\"><name>C</name></children></children>\
             </children></children></{root}>"
        );
        assert_eq!(sent.body, expect, "{root}");
    }
    let list = json!({"type": "array", "xml": {"name": "tags"}, "items": {"$ref": "#/components/schemas/Tag"}});
    let sent = posted(of_xml(list), components, json!([{"text": "a"}, {"text": "b"}])).await;
    assert_eq!(sent.body, format!("{XML}<tags><label><text>a</text></label><label><text>b</text></label></tags>"));
}

#[tokio::test]
async fn xml_errors_name_caller_or_document() {
    let refused = |schema: Value| {
        let operation = json!({"operationId": "op", "requestBody": {"content": of_xml(schema)}});
        let imported = import_of(&document(json!({"/": {"post": operation}}), json!({})), |_| {});
        imported.refused.first().map(|refused| refused.reason.clone()).unwrap_or_else(|| "imported".into())
    };
    for (schema, says) in [
        (json!({"type": "object"}), "no name for the root"),
        (json!({"type": "object", "xml": {"name": "a b"}}), "`a b`"),
        (json!({"type": "object", "xml": {"name": "r", "prefix": "1"}}), "`xml.prefix`"),
        (json!({"type": "object", "xml": {"name": "r"}, "properties": {"a": {"xml": {"name": "<"}}}}), "`<`"),
        (json!({"type": "object", "xml": {"name": "r"}, "properties": {"a b": {}}}), "imported"),
        (json!({"type": "object", "xml": {"name": "r", "prefix": "p"}}), "the prefix `p`"),
        (json!({"type": "object", "xml": {"name": "r", "prefix": "xml"}}), "imported"),
        // The element around it says what it stands for.
        (
            json!({"type": "object", "xml": {"name": "r", "prefix": "p", "namespace": "urn:p"}, "properties": {
                "a": {"type": "string", "xml": {"prefix": "p"}},
            }}),
            "imported",
        ),
        (json!({"type": "object", "xml": {"name": "r", "nodeType": "none"}}), "`none` as the `xml.nodeType`"),
        (json!({"type": "object", "xml": {"name": "r", "nodeType": "comment"}}), "`comment` as the `xml.nodeType`"),
    ] {
        let reason = refused(schema.clone());
        assert!(reason.contains(says), "{schema}: {reason}");
    }
}

/// A body of parts as its head and content of each, with the boundary out of the content type.
fn parts(sent: &Received) -> (String, Vec<String>) {
    let stated = sent.header("content-type").unwrap_or_default().to_owned();
    let boundary = stated.split("boundary=").nth(1).and_then(|rest| rest.split(';').next()).expect("a boundary");
    let body = sent.body.strip_suffix(&format!("--{boundary}--\r\n")).expect("an end");
    let between = format!("--{boundary}\r\n");
    let parts = body.split(&between).skip(1).map(|part| part.trim_end_matches("\r\n").to_owned());
    (stated.replace(boundary, "B"), parts.collect())
}

#[tokio::test]
async fn multipart_parts_use_their_own_encoding() {
    let disposition = |name: &str| format!("Content-Disposition: form-data; name=\"{name}\"\r\n");
    let schema = json!({"type": "object", "properties": {
        "meta": {"type": "object", "xml": {"name": "m"}, "properties": {"id": {"type": "integer", "xml": {"attribute": true}}}},
        "rows": {"type": "array", "items": {"type": "object"}},
        "note": {"type": "string"},
        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
    }});
    let encoding = json!({
        "meta": {"contentType": "application/xml; charset=utf-8"},
        "note": {"contentType": "text/markdown", "headers": {
            "X-Kind": {"schema": {"type": "string", "enum": ["note"]}},
            "X-Free": {"schema": {"type": "string"}},
            "Content-Type": {"schema": {"const": "a/b"}},
        }},
        "files": {"contentType": "image/png, image/jpeg"},
    });
    // Given in another order than the document's.
    let body = json!({
        "files": [{"base64": "YWJj", "filename": "a.png"}, "plain"], "note": "# hi", "rows": [{"a": 1}, {"a": 2}],
        "meta": {"id": 7},
    });
    for (media, stated) in [
        ("multipart/mixed", "multipart/mixed; boundary=B"),
        ("multipart/related", "multipart/related; boundary=B; type=\"application/xml; charset=utf-8\""),
        ("multipart/form-data", "multipart/form-data; boundary=B"),
        ("multipart/*", "multipart/form-data; boundary=B"),
    ] {
        let content = json!({media: {"schema": schema, "encoding": encoding}});
        let (content_type, parts) = parts(&posted(content, json!({}), body.clone()).await);
        assert_eq!(content_type, stated);
        let expect = [
            format!("{}Content-Type: application/xml; charset=utf-8\r\n\r\n{XML}<m id=\"7\"/>", disposition("meta")),
            format!("{}Content-Type: application/json\r\n\r\n{{\"a\":1}}", disposition("rows")),
            format!("{}Content-Type: application/json\r\n\r\n{{\"a\":2}}", disposition("rows")),
            format!("{}x-kind: note\r\nContent-Type: text/markdown\r\n\r\n# hi", disposition("note")),
            "Content-Disposition: form-data; name=\"files\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\nabc".into(),
            "Content-Disposition: form-data; name=\"files\"; filename=\"files\"\r\nContent-Type: image/png\r\n\r\nplain".into(),
        ];
        assert_eq!(parts, expect, "{media}");
    }
}

#[tokio::test]
async fn lists_become_parts_without_names() {
    let schema =
        json!({"type": "array", "prefixItems": [{"type": "object"}], "items": {"type": "string", "format": "binary"}});
    let media = json!({
        "schema": schema, "prefixEncoding": [{"contentType": "application/vnd.x+json"}],
        "itemEncoding": {"contentType": "application/pdf"},
    });
    let body = json!([{"k": 1}, {"base64": "YWJj", "filename": "a.pdf"}, "text"]);
    let more = json!({"openapi": "3.1.0"});
    let (content_type, parts) = parts(&posted(json!({"multipart/mixed": media}), more, body).await);
    assert_eq!(content_type, "multipart/mixed; boundary=B");
    let expect = [
        "Content-Type: application/vnd.x+json\r\n\r\n{\"k\":1}",
        "Content-Disposition: attachment; filename=\"a.pdf\"\r\nContent-Type: application/pdf\r\n\r\nabc",
        "Content-Type: application/pdf\r\n\r\ntext",
    ];
    assert_eq!(parts, expect);
}

/// The only operation of a document with this body: its reason when it is refused, else `imported`. Fails when that takes
/// longer than anybody waits.
fn import_in_time(content: Value, components: Value) -> String {
    let (done, outcome) = std::sync::mpsc::channel();
    let operation = json!({"operationId": "op", "requestBody": {"content": content}});
    let document = document(json!({"/": {"post": operation}}), json!({"components": {"schemas": components}}));
    std::thread::spawn(move || {
        let imported = import_of(&document, |_| {});
        let reason = imported.refused.first().map(|refused| refused.reason.clone());
        let _ = done.send(reason.unwrap_or_else(|| "imported".into()));
    });
    outcome.recv_timeout(std::time::Duration::from_secs(20)).expect("an import that ends")
}

#[test]
fn recursive_schema_combinations_import_in_time() {
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let times = |name: &str| vec![reference(name); 40];
    let mut components = json!({
        "Circle": {"type": "object", "allOf": times("Circle")},
        "F16": {"type": "object", "properties": {"a": {"type": "string"}}},
        "Wide": {"type": "object", "xml": {"name": "w"}, "properties": {}},
    });
    for level in 0..16 {
        components[format!("F{level}")] = json!({"oneOf": times(&format!("F{}", level + 1))});
    }
    // Each of its members is any of all others.
    for at in 0..220 {
        components[format!("W{at}")] = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        components["Wide"]["properties"][format!("p{at}")] =
            json!({"oneOf": (0..220).map(|at| reference(&format!("W{at}"))).collect::<Vec<_>>()});
    }
    for (media, name, says) in [
        ("application/xml", "Circle", "imported"),
        ("application/xml", "F0", "imported"),
        ("application/x-www-form-urlencoded", "F0", "imported"),
        ("multipart/form-data", "F0", "parts"),
        ("application/xml", "Wide", "more than 100000 schemas and properties"),
    ] {
        let reason = import_in_time(json!({media: {"schema": reference(name)}}), components.clone());
        assert!(reason.contains(says), "{media} of {name}: {reason}");
    }
}

#[test]
fn components_of_files_name_their_root() {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("pet.xml"), json!({"type": "object", "Dog": {"type": "object"}}).to_string())
        .expect("file");
    for (reference, says) in
        [("pet.xml", "no name for the root"), ("pet.xml#", "no name for the root"), ("pet.xml#/Dog", "imported")]
    {
        let operation = json!({"operationId": "op", "requestBody": {"content": of_xml(json!({"$ref": reference}))}});
        let origin = Origin::File(folder.path().join("api.json"));
        let config = OpenApiConfig::new("api", origin.clone());
        let text = document(json!({"/": {"post": operation}}), json!({})).to_string();
        let imported = import(&config, &text, origin).expect("a document");
        let reason = imported.refused.first().map_or("imported", |refused| &refused.reason);
        assert!(reason.contains(says), "{reference}: {reason}");
    }
}

#[tokio::test]
async fn nullable_lists_are_form_data_without_names() {
    let list = |kind: Value| json!({"schema": {"type": kind, "items": {"type": "object"}}});
    let more = || json!({"openapi": "3.1.0"});
    for (media, stated) in [("multipart/mixed", "multipart/mixed"), ("multipart/*", "multipart/mixed")] {
        for kind in [json!("array"), json!(["array", "null"]), json!(["null", "array"])] {
            let sent = posted(json!({media: list(kind.clone())}), more(), json!([{"k": 1}])).await;
            let (content_type, parts) = parts(&sent);
            assert_eq!(content_type, format!("{stated}; boundary=B"), "{kind}");
            assert_eq!(parts, ["Content-Type: application/json\r\n\r\n{\"k\":1}"], "{kind}");
        }
    }
    for kind in [json!("array"), json!(["array", "null"])] {
        let content = json!({"multipart/form-data": list(kind)});
        let operation = json!({"operationId": "op", "requestBody": {"content": content}});
        let imported = import_of(&document(json!({"/": {"post": operation}}), more()), |_| {});
        let reason = imported.refused.first().map_or("imported", |refused| &refused.reason);
        assert!(reason.contains("`multipart/form-data` of a list has no names for its parts"), "{reason}");
    }
}

#[tokio::test]
async fn stated_types_do_not_change_the_boundary() {
    let schema = || json!({"type": "object", "properties": {"a": {"type": "string", "format": "binary"}}});
    for (media, expect) in [
        ("multipart/form-data; boundary=x", "multipart/form-data; boundary=B"),
        ("multipart/mixed; charset=utf-8; BOUNDARY=\"x;y\"", "multipart/mixed; charset=utf-8; boundary=B"),
        (
            "multipart/related; Type=\"a/b\"; start=\"<r>\"",
            "multipart/related; Type=\"a/b\"; start=\"<r>\"; boundary=B",
        ),
        ("multipart/related; boundary=x", "multipart/related; boundary=B; type=\"i/m\\\\g\""),
    ] {
        let body = json!({"a": {"base64": "YWJj", "content_type": "i/m\\g"}});
        let (content_type, parts) = parts(&posted(json!({media: {"schema": schema()}}), json!({}), body).await);
        assert_eq!(content_type, expect, "{media}");
        assert_eq!(parts.len(), 1, "{media}");
    }
}

#[tokio::test]
async fn newer_documents_set_xml_node_types() {
    let typed = |kind: &str, node: &str| json!({"type": kind, "xml": {"nodeType": node}});
    let list = |node: &str| json!({"type": "array", "items": {"type": "string"}, "xml": {"nodeType": node}});
    for (properties, value, expect) in [
        (
            json!({"id": typed("integer", "attribute"), "a": typed("string", "element")}),
            json!({"a": "x", "id": 1}),
            "<r id=\"1\"><a>x</a></r>",
        ),
        (
            json!({"id": typed("integer", "attribute"), "a": typed("string", "text")}),
            json!({"a": "x<", "id": 1}),
            "<r id=\"1\">x&lt;</r>",
        ),
        (json!({"a": typed("string", "cdata")}), json!({"a": "x"}), "<r>x</r>"),
        (json!({"a": list("none")}), json!({"a": ["x", "y"]}), "<r><a>x</a><a>y</a></r>"),
        (json!({"a": list("element")}), json!({"a": ["x", "y"]}), "<r><a><a>x</a><a>y</a></a></r>"),
    ] {
        let schema = json!({"type": "object", "xml": {"name": "r"}, "properties": properties});
        let sent = posted(of_xml(schema), json!({"openapi": "3.2.0"}), value).await;
        assert_eq!(sent.body, format!("{XML}{expect}"), "{properties}");
    }
}

#[tokio::test]
async fn methods_of_newer_documents_are_sent() {
    let operation = |id: &str| json!({"operationId": id});
    let item = json!({
        "get": operation("get"), "query": operation("op"),
        "additionalOperations": {"LINK": operation("link"), "post": operation("post"), "CONNECT": operation("connect"), "A B": operation("ab")},
    });
    for (version, tools, refused) in [("3.1.0", &["get"][..], 0), ("3.2.0", &["get", "op", "link"], 3)] {
        let imported = import_of(&document(json!({"/": item}), json!({"openapi": version})), |_| {});
        let names: Vec<&str> = imported.tools.iter().map(|tool| tool.raw_name.as_str()).collect();
        assert_eq!((names.as_slice(), imported.refused.len()), (tools, refused), "{version}: {:?}", imported.refused);
        assert_eq!(imported.operations, tools.len() + refused, "{version}");
    }
    for (place, method) in [(json!({"query": {}}), "QUERY"), (json!({"additionalOperations": {"LINK": {}}}), "LINK")] {
        let mut place = place;
        let slot = if method == "QUERY" { &mut place["query"] } else { &mut place["additionalOperations"]["LINK"] };
        *slot = json!({"operationId": "op", "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}});
        let sent = sent(json!({"/": place}), json!({"openapi": "3.2.0"}), json!({"body": {"k": 1}}), |_| {}).await;
        assert_eq!(
            (sent.line.as_str(), sent.body.as_str()),
            (format!("{method} /base/ HTTP/1.1").as_str(), r#"{"k":1}"#)
        );
    }
}

/// What the tools of a document have of it, in bytes.
fn copied(imported: &toolwright_providers::openapi::Import) -> usize {
    let texts = imported.tools.iter().map(|tool| {
        let definition = &tool.definition;
        let schema = definition.parameters.as_ref().map_or(0, |schema| schema.to_string().len());
        schema + definition.documentation.as_ref().map_or(0, String::len)
    });
    texts.sum()
}

#[test]
fn shared_schemas_are_copied_within_bounds() {
    let wide = || {
        let properties: serde_json::Map<String, Value> =
            (0..4000).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect();
        json!({"type": "object", "xml": {"name": "r"}, "properties": properties})
    };
    let long = || "word ".repeat(200_000);
    let body =
        |media: &str| json!({"requestBody": {"content": {media: {"schema": {"$ref": "#/components/schemas/S"}}}}});
    let parameter = json!({"parameters": [{"$ref": "#/components/parameters/P"}]});
    for (what, operation, components) in [
        ("JSON", body("application/json"), json!({"schemas": {"S": wide()}})),
        ("parts", body("multipart/form-data"), json!({"schemas": {"S": wide()}})),
        ("XML", body("application/xml"), json!({"schemas": {"S": wide()}})),
        ("a text", body("application/json"), json!({"schemas": {"S": {"type": "string", "description": long()}}})),
        (
            "a parameter's text",
            parameter.clone(),
            json!({"parameters": {"P": {"name": "a", "in": "query", "description": long()}}}),
        ),
        ("an example", parameter, json!({"parameters": {"P": {"name": "a", "in": "query", "example": vec![1; 8000]}}})),
    ] {
        let paths: serde_json::Map<String, Value> =
            (0..400).map(|at| (format!("/{at}"), json!({"post": operation}))).collect();
        let imported = import_of(&document(paths.into(), json!({"components": components})), |_| {});
        assert_eq!(imported.tools.len() + imported.refused.len(), 400, "{what}");
        assert!(imported.tools.len() > 20 && imported.refused.len() > 20, "{what}: {} tools", imported.tools.len());
        for refused in &imported.refused {
            assert!(refused.reason.contains("parts together"), "{what}: {}", refused.reason);
        }
        let bytes = copied(&imported);
        assert!(bytes < 100 << 20, "{what}: {bytes} bytes");
    }
    // The text of an operation itself, by many references to its path.
    let paths: serde_json::Map<String, Value> =
        (0..400).map(|at| (format!("/{at}"), json!({"$ref": "#/components/pathItems/I"}))).collect();
    let item = json!({"get": {"description": long()}});
    let imported = import_of(&document(paths.into(), json!({"components": {"pathItems": {"I": item}}})), |_| {});
    assert!(copied(&imported) < 100 << 20 && imported.refused.len() > 20, "{} refused", imported.refused.len());
}

#[test]
fn refused_operations_free_their_xml() {
    let schemas: serde_json::Map<String, Value> = (0..300)
        .map(|at| {
            let properties: serde_json::Map<String, Value> =
                (0..2000).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect();
            (format!("S{at}"), json!({"type": "object", "properties": properties}))
        })
        .collect();
    let tools = |methods: &[&str]| {
        let paths: serde_json::Map<String, Value> = (0..300)
            .map(|at| {
                let schema = json!({"$ref": format!("#/components/schemas/S{at}")});
                let body = json!({"required": true, "content": {"application/xml": {"schema": schema}}});
                let operation = |method: &&str| ((*method).to_owned(), json!({"requestBody": body}));
                (format!("/{at}"), methods.iter().map(operation).collect::<serde_json::Map<_, _>>().into())
            })
            .collect();
        let imported = import_of(&document(paths.into(), json!({"components": {"schemas": schemas}})), |_| {});
        assert_eq!(imported.tools.len() + imported.refused.len(), 300 * methods.len());
        imported.tools.len()
    };
    // A GET with a body that it must have is refused once that has been read.
    let (alone, beside) = (tools(&["put"]), tools(&["get", "put"]));
    assert!((20..200).contains(&alone) && alone.abs_diff(beside) < 3, "{alone} {beside}");
}

#[test]
fn operations_with_many_names_read_in_time() {
    let names: Vec<String> = (0..40_000).map(|at| format!("p{at}")).collect();
    let mapping: serde_json::Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!(format!("#/components/schemas/{name}")))).collect();
    let branches: Vec<Value> = (0..8_000).map(|at| json!({"$ref": format!("#/components/schemas/p{at}")})).collect();
    let mut components: serde_json::Map<String, Value> = (0..8_000)
        .map(|at| (format!("p{at}"), json!({"type": "object", "properties": {"kind": {"type": "string"}}})))
        .collect();
    components.insert(
        "One".into(),
        json!({"oneOf": branches, "discriminator": {"propertyName": "kind", "mapping": mapping}}),
    );
    for schema in [json!({"type": "object", "required": names}), json!({"$ref": "#/components/schemas/One"})] {
        let reason = import_in_time(json!({"application/json": {"schema": schema}}), components.clone().into());
        assert!(reason == "imported" || reason.contains("parts"), "{reason}");
    }
}

#[test]
fn documents_with_too_many_operations_are_refused() {
    let paths: serde_json::Map<String, Value> = (0..100_001).map(|at| (format!("/{at}"), json!({"get": {}}))).collect();
    let imported = import_of(&document(paths.into(), json!({})), |_| {});
    assert_eq!((imported.tools.len(), imported.refused.len(), imported.operations), (10_000, 90_000, 100_000));
    assert!(imported.warnings.iter().any(|warning| warning.contains("more than 100000 operations")));
    let many: serde_json::Map<String, Value> = (0..100).map(|at| (format!("M{at}"), json!({}))).collect();
    let item = json!({"/": {"additionalOperations": many}});
    let imported = import_of(&document(item, json!({"openapi": "3.2.0"})), |_| {});
    let reason = imported.refused.last().map(|refused| refused.reason.as_str());
    assert!(reason.is_some_and(|reason| reason.contains("more than 64 additional")), "{reason:?}");
}
