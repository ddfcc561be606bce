//! What is not imported, not read, or not sent along.

use serde_json::{Value, json};
use toolwright_core::Provider as _;
use toolwright_providers::openapi::{Auth, OpenApiConfig, OpenApiError, OpenApiProvider, Origin, import};
use url::Url;

use super::{document, file_config, folder_of, import_of, schema};
use crate::wire::{Names, Reply, Server, options};

#[test]
fn unsendable_operations_are_refused_with_reasons() {
    let check = |operation: Value, fragment: &str| {
        let imported = import_of(&document(json!({"/p": {"post": operation}}), json!({})), |_| {});
        let reason = imported.refused.first().map(|refused| refused.reason.as_str()).unwrap_or("imported");
        assert!(reason.contains(fragment), "{reason}");
    };
    check(json!({"parameters": [{"name": "a", "in": "body"}]}), "not a place");
    check(json!({"parameters": [{"name": "a", "in": "path", "schema": {}}]}), "no place for the parameter");
    check(json!({"parameters": [{"name": "a", "in": "query", "style": "odd"}]}), "style `odd`");
    check(json!({"parameters": [{"name": "Host", "in": "header"}]}), "frames the message");
    check(json!({"parameters": [{"$ref": "other.json#/x"}]}), "$ref `other.json#/x`");
    check(json!({"parameters": [{"$ref": "https://x.example/a.json"}]}), "not followed");
    check(
        json!({"requestBody": {"content": {"application/xml": {"schema": {"type": "object"}}}}}),
        "`application/xml`",
    );
    let list = json!({"application/x-www-form-urlencoded": {"schema": {"type": "array"}}});
    check(json!({"requestBody": {"content": list}}), "no names for its pairs");
    let odd = json!({"multipart/mixed": {"schema": {"properties": {"a": {}}}, "encoding": {"a": {"style": "odd"}}}});
    check(json!({"requestBody": {"content": odd}}), "an unknown style");
    check(json!({"servers": [{"url": "/v2"}]}), "set base_url");
    check(json!({"servers": [{"url": "https://{h}/", "variables": {"h": {}}}]}), "server_variables.h");
    check(json!({"servers": [{"url": "https://u:p@h/"}]}), "set auth");
    let config = OpenApiConfig::new("api", Origin::File("x".into()));
    let broken = |text: &str| import(&config, text, Origin::File("x".into())).expect_err(text);
    assert!(matches!(broken("{]"), OpenApiError::Syntax(_)));
    assert!(matches!(broken("a: 1"), OpenApiError::NotOpenApi));
    assert!(matches!(broken("openapi: 4.0.0"), OpenApiError::Version(_)));
    assert!(matches!(broken("swagger: '1.2'"), OpenApiError::Version(_)));
}

#[test]
fn files_are_read_below_the_document_only() {
    let body = |reference: &str| {
        format!("post: {{requestBody: {{content: {{application/json: {{schema: {{$ref: '{reference}'}}}}}}}}}}")
    };
    let text = format!(
        "openapi: 3.1.0\nservers: [{{url: 'https://x.example'}}]\npaths:\n  /a: {{{}}}\n  /b: {{{}}}\n  /c: {{{}}}\n",
        body("./parts/one.yaml#/Body"),
        body("../secret.yaml"),
        body("missing.yaml"),
    );
    let folder = folder_of(&[
        ("secret.yaml", "type: string\n"),
        (
            "api/parts/one.yaml",
            "Body:\n  type: object\n  properties:\n    two: {$ref: 'two.json#/T'}\n    me: {$ref: '#/Body'}\n",
        ),
        ("api/parts/two.json", r#"{"T": {"type": "integer"}}"#),
        ("api/api.yaml", &text),
    ]);
    let path = folder.path().join("api/api.yaml");
    let imported = import(&file_config(&path), &text, Origin::File(path.clone())).expect("a document");
    assert_eq!(
        schema(&imported.tools[0])["$defs"]["Body"],
        json!({"type": "object", "properties": {"two": {"type": "integer"}, "me": {"$ref": "#/$defs/Body"}}})
    );
    assert_eq!(imported.tools.len(), 1);
    assert!(imported.refused[0].reason.contains("outside"), "{:?}", imported.refused);
    // A link only points to it: its folder is where it lies.
    let link = folder.path().join("link.yaml");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let linked = import(&file_config(&link), &text, Origin::File(link.clone())).expect("a document");
    assert!(linked.tools.len() == 1 && linked.refused[0].reason.contains("outside"), "{:?}", linked.refused);
    let remote = Origin::Url(Url::parse("https://x.example/api.yaml").expect("url"));
    let imported = import(&file_config(&path), &text, remote).expect("a document");
    assert!(imported.tools.is_empty() && imported.refused[0].reason.contains("from the network"));
}

#[test]
fn credentials_follow_the_document_to_https() {
    let check = |named: &str, found: &str, server: &str, expect: Result<(), &str>| {
        let security = json!({"security": [{"k": []}], "servers": [{"url": server}],
            "components": {"securitySchemes": {"k": {"type": "http", "scheme": "bearer"}}}});
        let text = document(json!({"/p": {"get": {"operationId": "op"}}}), security).to_string();
        let url = |text: &str| Origin::Url(Url::parse(text).expect("url"));
        let mut config = OpenApiConfig::new("api", url(named));
        config.auth.insert("k".into(), Auth::Token("s3cret".into()));
        let imported = import(&config, &text, url(found)).expect("a document");
        let got = imported.refused.first().map_or(Ok(()), |refused| Err(refused.reason.as_str()));
        match expect {
            Ok(()) => assert_eq!(got, Ok(()), "{named} {found} {server}"),
            Err(why) => assert!(got.is_err_and(|reason| reason.contains(why)), "{named} {found} {server}: {got:?}"),
        }
    };
    let (plain, secure) = ("http://api.example/openapi.json", "https://api.example/openapi.json");
    check(plain, secure, "/v1", Ok(()));
    check(plain, plain, "https://api.example/v1", Ok(()));
    check("http://api.example:8443/a.json", "https://api.example:8443/a.json", "/v1", Ok(()));
    check(secure, secure, "http://api.example/v1", Err("which is not where the document comes from"));
    check(plain, plain, "https://api.example:444/v1", Err("not where the document comes from"));
    check(plain, plain, "https://other.example/v1", Err("not where the document comes from"));
    let led = "where a redirect from http://api.example led: set base_url";
    check(plain, "https://docs.example/openapi.json", "/v1", Err(led));
    check(
        plain,
        "https://docs.example/openapi.json",
        "https://third.example",
        Err("not where the document comes from"),
    );
}

#[tokio::test]
async fn document_fetches_obey_policy_without_credentials() {
    let text = document(
        json!({"/": {"get": {"operationId": "op"}}}),
        json!({"security": [{"k": []}], "components": {"securitySchemes": {"k": {"type": "http", "scheme": "bearer"}}}}),
    );
    let server = Server::start(move |_| Reply::ok("application/json", text.to_string())).await;
    let url = Url::parse(&server.url("/api.json")).expect("url");
    let mut config = OpenApiConfig::new("api", Origin::Url(url));
    let provider = |config: &OpenApiConfig| OpenApiProvider::new(config.clone(), options(&Names::new(&[])));
    let refused = provider(&config).list().await.expect_err("refused");
    assert!(refused.message.contains("127.0.0.1") && refused.message.contains("refused"), "{refused}");
    assert!(server.received().is_empty());
    config.address.allowed_hosts = vec!["127.0.0.1".into()];
    assert_eq!(provider(&config).list().await.expect("listed").len(), 1);
    // Its server is another host than its own.
    config.auth.insert("k".into(), Auth::Token("s3cret".into()));
    let withheld = provider(&config);
    assert!(withheld.list().await.expect("listed").is_empty());
    assert!(withheld.withheld()[0].why.contains("set base_url"), "{:?}", withheld.withheld());
    config.base_url = Some("https://api.example".into());
    assert_eq!(provider(&config).list().await.expect("listed").len(), 1);
}
