//! What a call sends, and what is made of the answer.

use serde_json::{Value, json};
use toolwright_core::ErrorKind;
use toolwright_core::content::joined_text;
use toolwright_providers::openapi::{Auth, OpenApiConfig, Operation, import};

use super::{call, document, file_config, import_of, schema, sent};
use crate::wire::{Reply, Server};

#[tokio::test]
async fn parameters_go_where_they_belong() {
    let parameter = |name: &str, place: &str, more: Value| {
        let mut parameter = json!({"name": name, "in": place, "schema": {}});
        for (key, value) in more.as_object().expect("object") {
            parameter[key] = value.clone();
        }
        parameter
    };
    let item = json!({
        "parameters": [parameter("id", "path", json!({"required": true})), parameter("q", "query", json!({"style": "pipeDelimited"}))],
        "get": {"operationId": "op", "parameters": [
            parameter("m", "path", json!({"style": "matrix", "explode": true})),
            parameter("l", "path", json!({"style": "label"})),
            parameter("q", "query", json!({"style": "pipeDelimited", "explode": false})),
            parameter("deep", "query", json!({"style": "deepObject", "explode": true})),
            parameter("raw", "query", json!({"allowReserved": true})),
            json!({"name": "json", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}}),
            parameter("X-List", "header", json!({})),
            parameter("Accept", "header", json!({})),
            parameter("c", "cookie", json!({"explode": false})),
            parameter("id", "query", json!({})),
            parameter("filter[name]", "query", json!({})),
        ]},
    });
    let arguments = json!({
        "id": "a/b", "m": {"k": 1}, "l": ["x", "y"], "q": ["1", "2"], "deep": {"a": {"b": "c"}}, "raw": "x/y?z",
        "json": {"k": [1]}, "X-List": ["p", "q"], "c": ["u", "v"], "query_id": 5, "filter_name": "n",
    });
    let sent = sent(json!({"/t/{id}/{m}{l}.json": item}), json!({}), arguments, |_| {}).await;
    assert_eq!(
        sent.line,
        "GET /base/t/a%2Fb/;k=1.x,y.json?q=1%7C2&deep%5Ba%5D%5Bb%5D=c&raw=x/y?z&json=%7B%22k%22%3A%5B1%5D%7D&id=5&filter%5Bname%5D=n HTTP/1.1"
    );
    assert_eq!((sent.header("x-list"), sent.header("cookie")), (Some("p,q"), Some("c=u,v")));
}

#[tokio::test]
async fn cookie_style_cookies_are_sent_verbatim() {
    let parameter = |style: &str| json!({"name": "c", "in": "cookie", "style": style, "schema": {}});
    let of = async |style: &str, value: Value| {
        let paths = json!({"/": {"get": {"operationId": "op", "parameters": [parameter(style)]}}});
        let sent = sent(paths, json!({"openapi": "3.2.0"}), json!({"c": value}), |_| {}).await;
        sent.header("cookie").map(str::to_owned)
    };
    assert_eq!(of("cookie", json!("a%20b=%")).await.as_deref(), Some("c=a%20b=%"));
    assert_eq!(of("cookie", json!(["x", "y"])).await.as_deref(), Some("c=x; c=y"));
    assert_eq!(of("form", json!("a%20b")).await.as_deref(), Some("c=a%2520b"));
}

#[tokio::test]
async fn bodies_are_written_by_media_type() {
    let check = async |content: Value, body: Value, expect: (&str, &str)| {
        let operation = json!({"operationId": "op", "requestBody": {"required": true, "content": content}});
        let sent = sent(json!({"/": {"post": operation}}), json!({}), json!({"body": body}), |_| {}).await;
        assert_eq!((sent.header("content-type").unwrap_or_default(), sent.body.as_str()), expect);
        assert_eq!(sent.header("idempotency-key"), Some("key-1"));
    };
    let object = json!({"type": "object", "properties": {"a": {"type": "string"}, "o": {"type": "object"}}});
    check(
        json!({"application/x-www-form-urlencoded": {"schema": object}, "application/json": {"schema": object}}),
        json!({"a": "x"}),
        ("application/json", r#"{"a":"x"}"#),
    )
    .await;
    check(json!({"application/vnd.api+json": {"schema": {}}}), json!([null]), ("application/vnd.api+json", "[null]"))
        .await;
    let encoding = json!({"o": {"style": "deepObject", "explode": true}});
    check(
        json!({"application/x-www-form-urlencoded": {"schema": object, "encoding": encoding}}),
        json!({"a": "x y", "o": {"k": 1}}),
        ("application/x-www-form-urlencoded", "a=x%20y&o%5Bk%5D=1"),
    )
    .await;
    check(json!({"text/plain": {"schema": {"type": "string"}}}), json!("é"), ("text/plain; charset=utf-8", "é")).await;
    check(json!({"image/png": {}}), json!({"base64": "YWJj"}), ("image/png", "abc")).await;
    check(json!({"application/xml": {"schema": {"type": "string"}}}), json!("<a/>"), ("application/xml", "<a/>")).await;
}

#[tokio::test]
async fn credentials_are_not_model_arguments() {
    let schemes = json!({
        "key": {"type": "apiKey", "in": "query", "name": "api_key"},
        "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
        "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "basic": {"type": "http", "scheme": "basic"},
        "bearer": {"type": "http", "scheme": "Bearer"},
    });
    let security = json!([{"bearer": [], "unset": []}, {"key": [], "cookie": [], "header": [], "basic": []}]);
    let parameters = json!([
        {"name": "X-Key", "in": "header", "required": true, "schema": {"type": "string"}},
        {"name": "c", "in": "cookie", "schema": {"type": "string"}},
    ]);
    let paths = json!({"/": {"get": {"operationId": "op", "security": security, "parameters": parameters}}});
    let more = json!({"components": {"securitySchemes": schemes}});
    let auth = |config: &mut OpenApiConfig| {
        let token = |token: &str| Auth::Token(token.to_owned());
        let basic = Auth::Basic { username: "u".into(), password: "p".into() };
        config.auth = [("key", token("k&1")), ("cookie", token("s1")), ("header", token("h1")), ("basic", basic)]
            .map(|(name, auth)| (name.to_owned(), auth))
            .into();
    };
    let imported = import_of(&document(paths.clone(), more.clone()), auth);
    assert_eq!(schema(&imported.tools[0])["properties"], json!({"c": {"type": "string"}}));
    let mut twice = more.clone();
    twice["security"] = json!([{"basic": [], "bearer": []}]);
    let next = json!([{"basic": [], "bearer": []}, {"key": []}]);
    let operations = json!({"/": {"get": {}}, "/c": {"get": {"security": next, "parameters": [{"name": "api_key", "in": "query"}]}}});
    let both = import_of(&document(operations, twice), |config| {
        auth(config);
        config.auth.insert("bearer".into(), Auth::Token("t".into()));
    });
    assert!(both.refused.len() == 1 && both.refused[0].reason.contains("two fill the header"), "{both:?}");
    assert_eq!(schema(&both.tools[0])["properties"], json!({}), "the next alternative lets it in");
    let shown = format!("{imported:?} {:?}", imported.tools[0].definition);
    assert!(!shown.contains("k&1") && !shown.contains("h1\"") && !shown.contains("s1\""), "{shown}");
    let sent = sent(paths, more, json!({"c": "v"}), auth).await;
    assert_eq!(sent.line, "GET /base/?api_key=k%261 HTTP/1.1");
    assert_eq!((sent.header("cookie"), sent.header("x-key")), (Some("c=v; sid=s1"), Some("h1")));
    assert_eq!(sent.header("authorization"), Some("Basic dTpw"));
}

/// What explodes has names of the model's choosing, and servers take the first of two.
#[tokio::test]
async fn arguments_do_not_replace_credentials() {
    let schemes = json!({
        "key": {"type": "apiKey", "in": "query", "name": "api_key"},
        "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    });
    let free = |name: &str, place: &str| json!({"name": name, "in": place, "schema": {"type": "object"}});
    let parameters = json!([
        free("f", "query"), free("c", "cookie"), {"name": "d", "in": "cookie", "schema": {}},
        {"name": "Cookie", "in": "header", "schema": {"type": "string"}},
    ]);
    let paths =
        |security: Value| json!({"/": {"get": {"operationId": "op", "security": security, "parameters": parameters}}});
    let more = json!({"components": {"securitySchemes": schemes}});
    let all = json!([{"key": [], "cookie": []}]);
    let auth = |config: &mut OpenApiConfig| {
        config.auth = ["key", "cookie"].map(|name| (name.to_owned(), Auth::Token("s".to_owned()))).into();
    };
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("api.json");
    std::fs::write(&path, document(paths(all.clone()), more.clone()).to_string()).expect("file");
    for (taken, arguments) in [
        ("api_key", json!({"f": {"x": 1, "api_key": "mine"}})),
        ("sid", json!({"c": {"sid": "mine"}})),
        ("d", json!({"c": {"d": "mine"}, "d": "own"})),
    ] {
        let mut config = file_config(&path);
        config.base_url = Some("http://127.0.0.1:1".into());
        auth(&mut config);
        let error = call(config, "op", arguments).await.expect_err(taken);
        assert!(error.kind() == ErrorKind::InvalidParameters && error.message().contains(taken), "{error}");
    }
    let arguments = json!({"f": {"f": 1}, "c": {"x": "y"}, "d": "own", "Cookie": "sid=mine"});
    let sent_in = sent(paths(all), more.clone(), arguments.clone(), auth).await;
    assert_eq!(sent_in.line, "GET /base/?f=1&api_key=s HTTP/1.1");
    assert_eq!(sent_in.header("cookie"), Some("x=y; d=own; sid=s"), "all cookies stand in one header");
    let sent_out = sent(paths(json!([])), more, arguments, |_| {}).await;
    assert_eq!(sent_out.header("cookie"), Some("sid=mine; x=y; d=own"));
}

#[tokio::test]
async fn tokens_are_refetched_when_refused() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let server = Server::start(move |request| {
        if request.line.starts_with("POST /token ") {
            let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            return Reply::ok("application/json", format!("{{\"access_token\": \"t{number}\", \"expires_in\": 3600}}"));
        }
        match request.header("authorization") {
            Some("Bearer t1") => Reply::ok("text/plain", "in"),
            _ => Reply::new("401 Unauthorized", "", ""),
        }
    })
    .await;
    let flows = json!({"clientCredentials": {"tokenUrl": server.url("/token"), "scopes": {}}});
    let more = json!({"components": {"securitySchemes": {"o": {"type": "oauth2", "flows": flows}}}});
    let paths = json!({"/": {"get": {"operationId": "op", "security": [{"o": ["read", "write"]}]}}});
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("api.json");
    std::fs::write(&path, document(paths, more).to_string()).expect("file");
    let mut config = file_config(&path);
    config.base_url = Some(server.url(""));
    let client =
        Auth::ClientCredentials { client_id: "me:1".into(), client_secret: "s&".into(), token_url: None, scopes: None };
    config.auth.insert("o".into(), client);
    let output = call(config, "op", json!({})).await.expect("called");
    assert_eq!(joined_text(&output.content), "in");
    let received = server.received();
    assert_eq!(received.len(), 4, "a token, a refusal, a fresh token, an answer");
    assert_eq!(received[0].body, "grant_type=client_credentials&scope=read%20write");
    assert_eq!(received[0].header("authorization"), Some("Basic bWUlM0ExOnMlMjY="));
}

#[tokio::test]
async fn responses_keep_sound_schemas() {
    let server = Server::start(|_| Reply::ok("application/json", r#"{"items":[{"n":1},{"n":2}]}"#)).await;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("api.json");
    let answer = |schema: Value| json!({"content": {"application/json": {"schema": schema}}});
    let object = json!({"type": "object", "properties": {"items": {"type": "array"}, "pw": {"writeOnly": true}}});
    let paths = json!({
        "/one": {"get": {"operationId": "one", "responses": {"200": answer(object.clone()), "404": {}}}},
        "/two": {"get": {"operationId": "two", "responses": {"200": answer(object.clone()), "204": {}}}},
        "/list": {"get": {"operationId": "list", "responses": {"200": answer(json!({"type": "array"}))}}},
        "/part": {"get": {"operationId": "part", "responses": {"200": answer(object)}}},
    });
    std::fs::write(&path, document(paths, json!({})).to_string()).expect("file");
    let mut config = file_config(&path);
    config.base_url = Some(server.url(""));
    config.output_schemas = true;
    let part = |select: &str| Operation { select: Some(select.to_owned()), ..Operation::default() };
    config.operations = [("part", part("/items/*/n")), ("list", part("/none"))].map(|(k, v)| (k.to_owned(), v)).into();
    let text = std::fs::read_to_string(&path).expect("text");
    let imported = import(&config, &text, config.document.clone()).expect("a document");
    let schemas: Vec<_> = imported.tools.iter().map(|tool| tool.definition.output_schema.is_some()).collect();
    assert_eq!(schemas, [true, false, false, false]);
    let kept = imported.tools[0].definition.output_schema.as_ref().expect("schema");
    assert_eq!(kept["properties"], json!({"items": {"type": "array"}}));
    let one = call(config.clone(), "one", json!({})).await.expect("called");
    assert_eq!(one.structured, Some(json!({"items": [{"n": 1}, {"n": 2}]})));
    let part = call(config.clone(), "part", json!({})).await.expect("called");
    assert_eq!((joined_text(&part.content).as_str(), part.structured), ("[1,2]", None));
    let whole = call(config, "list", json!({})).await.expect("called");
    assert!(joined_text(&whole.content).contains("the response has no /none, so this is all of it"));
}

#[tokio::test]
async fn missing_arguments_are_reported_before_sending() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("api.json");
    let paths = json!({"/{id}": {"get": {"operationId": "op"}}});
    std::fs::write(&path, document(paths, json!({})).to_string()).expect("file");
    for arguments in [json!({}), json!({"id": ""}), json!({"id": ".."})] {
        let error = call(file_config(&path), "op", arguments).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidParameters);
    }
}
