//! REST tools against a real server, by the bytes that are sent.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright_core::content::joined_text;
use toolwright_core::event::Partial;
use toolwright_core::{
    ContentBlock, Effects, ErrorKind, Provider, ProviderCall, ToolContext, ToolError, ToolId, ToolOutput,
};
use toolwright_net::AddressPolicy;
use toolwright_providers::rest::{RestError, RestOptions, RestProvider, RestToolConfig};

use crate::files::workspace::Workspace;
use crate::wire::{Names, Received, Reply, Server, options};

fn tool_config(mut entry: Value) -> RestToolConfig {
    if entry.get("description").is_none() {
        entry["description"] = json!("d");
    }
    serde_json::from_value(entry).expect("entry")
}

fn build(name: &str, entry: Value) -> Result<RestProvider, RestError> {
    let address = AddressPolicy { allow_private: false, allowed_hosts: vec!["127.0.0.1".into()] };
    let options = RestOptions { address, http: options(&Names::new(&[])), ..RestOptions::default() };
    RestProvider::new(vec![(name.to_owned(), tool_config(entry))], &options)
}

#[expect(clippy::disallowed_methods, reason = "this is the provider's own test; there is no executor in this crate")]
async fn call_in(provider: &RestProvider, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let tool = ToolId::parse("rest:t@1.0.0").expect("id");
    let source_hash = provider.list().await.expect("listed")[0].source_hash();
    let call = ProviderCall { tool: &tool, raw_name: "t", source_hash, arguments, idempotency_key: "key-1" };
    provider.call(call, context).await
}

async fn call(entry: Value, arguments: Value) -> Result<ToolOutput, ToolError> {
    call_in(&build("t", entry).expect("provider"), arguments, &Workspace::new().context).await
}

/// An entry on `server`, with a schema that declares the parameters that the tests use.
fn entry(server: &Server, path: &str, more: Value) -> Value {
    let properties: serde_json::Map<String, Value> =
        ["a", "b", "c", "list", "object"].into_iter().map(|name| (name.to_owned(), json!({}))).collect();
    let mut entry =
        json!({"url": server.url(path), "parameters": {"type": "object", "properties": properties, "required": ["a"]}});
    for (key, value) in more.as_object().expect("object") {
        entry[key] = value.clone();
    }
    entry
}

async fn exchange(path: &str, more: Value, arguments: Value) -> Result<Received, ToolError> {
    let server = Server::start(|_| Reply::ok("application/json", "{}")).await;
    call(entry(&server, path, more), arguments).await?;
    Ok(server.only())
}

#[tokio::test]
async fn urls_take_values_encoded_and_in_their_place() {
    let check = async |path: &str, more: Value, arguments: Value, expect: &str| {
        let sent = exchange(path, more, arguments).await.expect(path);
        assert_eq!(sent.line, format!("GET {expect} HTTP/1.1"));
    };
    check(
        "/v1/${parameters.a}/x",
        json!({}),
        json!({"a": "New York/../é?#%"}),
        "/v1/New%20York%2F..%2F%C3%A9%3F%23%25/x",
    )
    .await;
    check("/${parameters.a}", json!({}), json!({"a": "a\\b"}), "/a%5Cb").await;
    check("/x-${parameters.a}.json", json!({}), json!({"a": 7}), "/x-7.json").await;
    check("/${parameters.a}", json!({}), json!({"a": ["p,q", 2]}), "/p%2Cq,2").await;
    check("/${parameters.object.k}", json!({}), json!({"a": 1, "object": {"k": "v"}}), "/v").await;
    check("/?q=${parameters.a}&fix=1&o=${parameters.b}", json!({}), json!({"a": "x&y=z"}), "/?q=x%26y%3Dz&fix=1").await;
    check("/?q=a%20b:${parameters.a}-${parameters.c}", json!({}), json!({"a": "1", "c": true}), "/?q=a%20b:1-true")
        .await;
    check("/?list=${parameters.list}", json!({}), json!({"a": 1, "list": [1, "b c"]}), "/?list=1&list=b%20c").await;
    check(
        "",
        json!({"query": {"q": "in:${parameters.a}", "b": "${parameters.b}", "n": 5, "c": "x${parameters.c}"}}),
        json!({"a": "é", "b": null}),
        "/?q=in%3A%C3%A9&n=5",
    )
    .await;
    check(
        "/",
        json!({"query": {"f": {"value": "${parameters.object}", "style": "deepObject"}}}),
        json!({"a": 1, "object": {"x": {"y": 1}}}),
        "/?f%5Bx%5D%5By%5D=1",
    )
    .await;
    check(
        "/?z=1",
        json!({"query": {"l": {"value": "${parameters.list}", "explode": false}}}),
        json!({"a": 1, "list": [1, 2]}),
        "/?z=1&l=1,2",
    )
    .await;
}

/// Its schema says whether it may be null or empty; what is left out then is meant to be.
#[tokio::test]
async fn nullable_required_values_are_left_out() {
    let headers = json!({"X-A": "${parameters.a}", "X-B": "b ${parameters.a}"});
    let sent = exchange("/?q=1", json!({"headers": headers, "query": {"a": "${parameters.a}"}}), json!({"a": null}));
    let sent = sent.await.expect("null");
    assert_eq!((sent.header("x-a"), sent.header("x-b")), (None, None));
    assert_eq!(sent.line, "GET /?q=1 HTTP/1.1");
    let form = json!({"method": "POST", "headers": {"Content-Type": "application/x-www-form-urlencoded"},
        "body": {"a": "${parameters.a}", "k": "x${parameters.a}", "f": 1}});
    assert_eq!(exchange("/", form, json!({"a": null})).await.expect("null").body, "f=1");
    for path in ["/?a=${parameters.a}&q=1", "/?q=1"] {
        let query = json!({"query": {"a": "${parameters.a}"}});
        let more = if path.contains("${") { json!({}) } else { query };
        assert_eq!(exchange(path, more, json!({"a": []})).await.expect("empty").line, "GET /?q=1 HTTP/1.1");
    }
}

#[tokio::test]
async fn headers_take_values_and_nothing_else() {
    let headers = json!({"Authorization": "Bearer s3cret", "X-A": "a ${parameters.a}", "X-B": "${parameters.b}"});
    let sent = exchange("/", json!({"headers": headers}), json!({"a": "é"})).await.expect("sent");
    assert_eq!(
        (sent.header("authorization"), sent.header("x-a"), sent.header("x-b")),
        (Some("Bearer s3cret"), Some("a é"), None)
    );
    assert_eq!(sent.header("accept"), Some("application/json, text/*;q=0.9, */*;q=0.5"));
    for value in ["x\r\nEvil: 1", "x\ny", "\u{0}"] {
        let error = exchange("/", json!({"headers": headers}), json!({"a": value})).await.expect_err(value);
        assert!(error.kind() == ErrorKind::InvalidParameters && error.message().contains("`x-a`"), "{error}");
        assert!(!error.message().contains("Evil"), "{error}");
    }
}

#[tokio::test]
async fn bodies_keep_types_and_drop_what_is_absent() {
    let check = async |body: Value, headers: Value, arguments: Value, expect: (&str, Option<&str>)| {
        let sent =
            exchange("/", json!({"method": "post", "headers": headers, "body": body}), arguments).await.expect("sent");
        assert_eq!(sent.line, "POST / HTTP/1.1");
        assert_eq!((sent.body.as_str(), sent.header("content-type")), expect);
    };
    let json_type = Some("application/json");
    check(
        json!({"n": "${parameters.a}", "t": "n=${parameters.a}", "o": "${parameters.object}", "x": "${parameters.b}", "l": ["${parameters.b}", 1]}),
        json!({}),
        json!({"a": 1.5, "object": {"k": [true, null]}}),
        (r#"{"n":1.5,"t":"n=1.5","o":{"k":[true,null]},"l":[1]}"#, json_type),
    )
    .await;
    check(
        json!("${parameters.object}"),
        json!({}),
        json!({"a": 1, "object": {"q": "\"}"}}),
        (r#"{"q":"\"}"}"#, json_type),
    )
    .await;
    check(
        json!("say ${parameters.a}"),
        json!({}),
        json!({"a": "\"hi\""}),
        ("say \"hi\"", Some("text/plain; charset=utf-8")),
    )
    .await;
    let form = "application/x-www-form-urlencoded";
    check(
        json!({"a": "${parameters.a}", "b": "${parameters.b}"}),
        json!({"content-type": form}),
        json!({"a": "x y&z"}),
        ("a=x%20y%26z", Some(form)),
    )
    .await;
    check(json!("${parameters.b}"), json!({}), json!({"a": 1}), ("", None)).await;
}

#[tokio::test]
async fn missing_or_escaping_values_are_refused_unsent() {
    let server = Server::start(|_| Reply::ok("text/plain", "")).await;
    let check = async |path: &str, more: Value, arguments: Value, fragment: &str| {
        let error = call(entry(&server, path, more), arguments).await.expect_err(path);
        assert!(error.kind() == ErrorKind::InvalidParameters && error.message().contains(fragment), "{error}");
    };
    check("/${parameters.a}", json!({}), json!({}), "`a` is required").await;
    check("/", json!({"query": {"q": "${parameters.a}"}}), json!({}), "`a` is required").await;
    check("/", json!({"method": "POST", "body": {"x": ["${parameters.a}"]}}), json!({}), "`a` is required").await;
    check("/${parameters.b}/x", json!({}), json!({"a": 1}), "needs a value for the parameter `b`").await;
    check("/${parameters.a}", json!({}), json!({"a": ""}), "needs a value").await;
    check("/x/${parameters.a}/y", json!({}), json!({"a": "."}), "may not be").await;
    check("/x/${parameters.a}/y", json!({}), json!({"a": ".."}), "may not be").await;
    check("/%2E${parameters.a}", json!({}), json!({"a": "."}), "may not be").await;
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn calls_carry_their_key_and_trace() {
    let mut context = Workspace::new().context;
    context.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    for (method, own, expect) in [
        ("POST", None, Some("key-1")),
        ("PATCH", None, Some("key-1")),
        ("PUT", None, None),
        ("GET", None, None),
        ("POST", Some("mine-${parameters.a}"), Some("mine-1")),
    ] {
        let server = Server::start(|_| Reply::ok("text/plain", "")).await;
        let headers = own.map_or(json!({}), |own| json!({"Idempotency-Key": own}));
        let provider =
            build("t", entry(&server, "/", json!({"method": method, "headers": headers}))).expect("provider");
        call_in(&provider, json!({"a": 1}), &context).await.expect("sent");
        let sent = server.only();
        assert_eq!(sent.header("idempotency-key"), expect, "{method}");
        assert_eq!(sent.header("traceparent"), context.traceparent.as_deref());
    }
}

#[tokio::test]
async fn responses_become_content() {
    let answer = async |reply: fn() -> Reply, more: Value| {
        let server = Server::start(move |_| reply()).await;
        call(entry(&server, "/", more), json!({"a": 1})).await.expect("answered")
    };
    let json_reply = || Reply::ok("application/json", "{\"b\": 1}");
    let plain = answer(json_reply, json!({})).await;
    assert_eq!((joined_text(&plain.content).as_str(), plain.structured), ("{\"b\": 1}", None));
    assert_eq!(plain.extras["status"], 200);
    let structured = answer(json_reply, json!({"output_schema": {"type": "object"}})).await;
    assert_eq!(structured.structured, Some(json!({"b": 1})));

    let cut = answer(json_reply, json!({"max_bytes": 3, "output_schema": {}})).await;
    assert!(
        joined_text(&cut.content).starts_with("{\"b\n[toolwright stopped reading after 3 bytes")
            && cut.structured.is_none()
    );

    let empty = answer(|| Reply::new("204 No Content", "", ""), json!({"method": "DELETE"})).await;
    assert_eq!((joined_text(&empty.content).as_str(), empty.is_error), ("HTTP 204 No Content, without a body", false));

    let failed = answer(
        || {
            Reply::new(
                "422 Unprocessable Entity",
                "Content-Type: application/json\r\n",
                format!("{{\"e\": \"{}\"}}", "x".repeat(9000)),
            )
        },
        json!({}),
    )
    .await;
    let text = joined_text(&failed.content);
    assert!(
        failed.is_error && text.starts_with("HTTP 422 Unprocessable Entity\n{\"e\": \"xxx") && text.len() < 5000,
        "{text}"
    );

    let image = answer(|| Reply::ok("image/png", b"\x89PNG"), json!({})).await;
    assert_eq!(image.content, [ContentBlock::image("iVBORw==", "image/png")]);
    let pdf = || Reply::ok("application/pdf", b"%PDF\0\x01");
    let binary = answer(pdf, json!({})).await;
    assert_eq!(binary.content[0].binary(), Some(("JVBERgAB", "application/pdf")), "{binary:?}");
    let sound = answer(|| Reply::ok("audio/wav", b"RIFF"), json!({})).await;
    assert!(
        matches!(&sound.content[0], ContentBlock::Audio { mime_type, .. } if mime_type == "audio/wav"),
        "{sound:?}"
    );
    let part = answer(pdf, json!({"max_bytes": 3})).await;
    assert!(joined_text(&part.content).contains("application/pdf of more than 3 bytes"), "{part:?}");
    let brotli = || Reply::ok("text/plain", b"\x0b\x02").and_header("Content-Encoding: br");
    let twice = || Reply::ok("text/plain", b"\x0b\x02").and_header("Content-Encoding: gzip, gzip");
    for (encoded, encoding) in
        [(answer(brotli, json!({})).await, "`br`"), (answer(twice, json!({})).await, "`gzip, gzip`")]
    {
        assert!(encoded.is_error && joined_text(&encoded.content).contains(encoding), "{encoded:?}");
    }

    let head = answer(|| Reply::ok("text/plain", "").and_header("X-Total: 9"), json!({"method": "HEAD"})).await;
    assert!(joined_text(&head.content).contains("x-total: 9"), "{head:?}");

    let not_json = answer(|| Reply::ok("text/plain", "<oops>"), json!({"response": "json"})).await;
    assert!(not_json.is_error && joined_text(&not_json.content).contains("not JSON"));
}

#[tokio::test]
async fn streams_are_passed_on_as_they_come() {
    let check = async |reply: fn() -> Reply, more: Value, expect: &[&str], text: &str| {
        let server = Server::start(move |_| reply()).await;
        let workspace = Workspace::new();
        let provider = build("t", entry(&server, "/", more)).expect("provider");
        let output = call_in(&provider, json!({"a": 1}), &workspace.context).await.expect("answered");
        let partials: Vec<Partial> = expect.iter().map(|&text| Partial::Text(text.to_owned())).collect();
        assert_eq!(*workspace.reports.0.lock().expect("lock"), partials);
        assert_eq!(joined_text(&output.content), text);
    };
    let events = || Reply::pieces("text/event-stream", &["data: o", "ne\n\ndata: tw", "o\n\n"]);
    check(events, json!({}), &["one", "two"], "one\ntwo").await;
    check(
        || Reply::pieces("application/x-ndjson", &["{\"a\":1}\n{\"a\"", ":2}\n"]),
        json!({}),
        &["{\"a\":1}", "{\"a\":2}"],
        "{\"a\":1}\n{\"a\":2}",
    )
    .await;
    check(|| Reply::pieces("text/plain", &["1\n2\n"]), json!({"response": "json_lines"}), &["1", "2"], "1\n2").await;
    let parts = || {
        let parts = [r#"{"t":"Hel"}"#, r#"{"n":1}"#, r#"{"t":"lo","end":false}"#, r#"{"end":true}"#, r#"{"t":"late"}"#];
        Reply::pieces("application/x-ndjson", &[&*parts.join("\n"), "\n"])
    };
    check(parts, json!({"select": "/t"}), &["Hel", "lo", "late"], "Hel\nlo\nlate").await;
    check(parts, json!({"stream": {"answer": "/t", "done": "/end"}}), &["Hel", "lo"], "Hello").await;
    let openai = || {
        let data = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
        Reply::pieces("text/event-stream", &[&*data("a"), &*data("b"), "data: [DONE]\n\n"])
    };
    let stream = json!({"stream": {"answer": "/choices/0/delta/content"}});
    check(openai, stream, &["a", "b"], "ab").await;
    // Of an answer that is put together, `select` takes its part.
    let nested = || Reply::pieces("application/x-ndjson", &["{\"t\":\"{\\\"a\\\":\"}\n", "{\"t\":\"[1,2]}\"}\n"]);
    let pieces = ["{\"a\":", "[1,2]}"];
    let selected = |path: &str| json!({"select": path, "stream": {"answer": "/t"}});
    check(nested, selected("/a/1"), &pieces, "2").await;
    check(nested, selected("/b"), &pieces, "{\"a\":[1,2]}\n[the response has no /b, so this is all of it]").await;
    let cut = "{\"a\":\n[the answer is not JSON (EOF while parsing a value at line 1 column 5), so `select` takes no part of it]";
    check(|| Reply::pieces("application/x-ndjson", &["{\"t\":\"{\\\"a\\\":\"}\n"]), selected("/a"), &pieces[..1], cut)
        .await;
    // Bounded, though the peer would go on.
    let endless = || Reply::pieces("text/event-stream", &["data: x\n\n", "data: y\n\n"]).then_never_end();
    check(
        endless,
        json!({"max_bytes": 12}),
        &["x"],
        "x\n[toolwright stopped reading after 12 bytes: the tool's max_bytes]",
    )
    .await;
}

#[tokio::test]
async fn unfinished_streams_still_give_results() {
    let check = async |reply: fn() -> Reply, more: Value, time: u64, is_error: bool, note: &str| {
        let server = Server::start(move |_| reply()).await;
        let workspace = Workspace::new();
        let provider = build("t", entry(&server, "/", more)).expect("provider");
        let deadline = Instant::now().checked_add(Duration::from_millis(time));
        let context = ToolContext { deadline, ..workspace.context.clone() };
        let output = call_in(&provider, json!({"a": 1}), &context).await.expect("what came");
        let text = joined_text(&output.content);
        assert!(text.starts_with("x\ny\n[") && text.contains(note) && output.is_error == is_error, "{text}");
        assert_eq!((&output.extras["events"], &output.extras["cut"]), (&json!(2), &json!(true)));
    };
    let endless = || Reply::pieces("text/event-stream", &["data: x\n\n", "data: y\n\n", "data: ha"]).then_never_end();
    check(endless, json!({}), 1_000, false, "after 2 events: the time of the call").await;
    let broken =
        || Reply::new("200 OK", "Content-Type: text/event-stream\r\n", "data: x\n\ndata: y\n\n").and_length(99);
    check(broken, json!({}), 20_000, true, "the stream broke off").await;
    let unsaid = || Reply::pieces("text/event-stream", &["data: x\n\n", "data: y\n\n"]);
    check(unsaid, json!({"stream": {"done": "/end"}}), 20_000, true, "without the event that `stream.done` describes")
        .await;
}

#[tokio::test]
async fn streams_without_an_answer_fail() {
    let server =
        Server::start(|_| Reply::pieces("text/event-stream", &["data: {\"u\": 1}\n\n", "data: [DONE]\n\n"])).await;
    let stream = json!({"stream": {"answer": "/t"}});
    let output = call(entry(&server, "/", stream), json!({"a": 1})).await.expect("answered");
    let text = joined_text(&output.content);
    assert!(output.is_error && text.contains("has /t") && text.contains("{\"u\": 1}"), "{text}");
}

/// There are servers that ask for the length of a body that there could be (411).
#[tokio::test]
async fn missing_bodies_are_described_as_empty() {
    for (method, expect) in
        [("POST", Some("0")), ("PUT", Some("0")), ("PATCH", Some("0")), ("GET", None), ("DELETE", None)]
    {
        let sent = exchange("/", json!({"method": method}), json!({"a": 1})).await.expect(method);
        assert_eq!((sent.header("content-length"), sent.header("transfer-encoding")), (expect, None), "{method}");
    }
}

#[tokio::test]
async fn object_members_do_not_replace_other_parameters() {
    let more = json!({"query": {"key": "secret", "object": "${parameters.object}", "b": "${parameters.b}"}});
    for taken in ["key", "b", "fix"] {
        let arguments = json!({"a": 1, "object": {"x": 1, taken: "mine"}});
        let error = exchange("/?fix=1", more.clone(), arguments).await.expect_err(taken);
        assert!(error.kind() == ErrorKind::InvalidParameters && error.message().contains(taken), "{error}");
    }
    let sent = exchange("/?fix=1", more, json!({"a": 1, "object": {"x": 1, "object": null}})).await.expect("sent");
    assert_eq!(sent.line, "GET /?fix=1&key=secret&x=1 HTTP/1.1");
}

#[tokio::test]
async fn operators_open_addresses_tool_by_tool() {
    let server = Server::start(|_| Reply::ok("text/plain", "in")).await;
    let closed =
        call(entry(&server, "/?key=s3cret", json!({"allowed_hosts": []})), json!({"a": 1})).await.expect_err("refused");
    assert_eq!(closed.kind(), ErrorKind::NotPermitted);
    assert!(closed.message().contains("restTools.t.allow_private") && !closed.message().contains("s3cret"), "{closed}");
    assert!(server.received().is_empty());
    assert!(
        call(entry(&server, "/", json!({"allowed_hosts": [], "allowPrivate": true})), json!({"a": 1})).await.is_ok()
    );
}

#[tokio::test]
async fn entries_become_definitions() {
    let entry = json!({
        "description": "d", "method": "get", "url": "https://u:p4ss@api.example/v/${parameters.x}?key=s3cret&q=${parameters.q}",
        "headers": {"Authorization": "Bearer s3cret", "X": "a${parameters.x}"}, "body": {"k": "s3cret"},
        "parametersSchema": {"type": "object", "properties": {"x": {}, "q": {}, "unused": {}}},
        "timeout": "5s", "cache": 60000, "queue": "q", "tags": ["t"], "response": "sse",
    });
    let provider = build("My.Tool", entry.clone()).expect("provider");
    let listed = provider.list().await.expect("listed");
    let definition = listed[0].definition();
    assert_eq!((definition.id.as_str(), listed[0].raw_name()), ("rest:my_tool@1.0.0", "My.Tool"));
    assert_eq!((definition.effects, definition.queue.as_deref()), (Effects::FETCH, Some("q")));
    assert_eq!(
        (definition.timeout.map(|t| t.as_secs()), definition.cache_ttl.map(|t| t.as_secs())),
        (Some(5), Some(60))
    );
    assert_eq!(definition.capabilities["streaming"], true);
    let declaration = definition.declaration.as_ref().expect("declaration");
    assert!(!declaration.to_string().contains("s3cret") && !declaration.to_string().contains("p4ss"), "{declaration}");
    assert_eq!(declaration["url"], "https://api.example/v/${parameters.x}");
    assert_eq!(declaration["headers"], json!({"Authorization": "*", "X": "*${parameters.x}"}));
    assert_eq!(provider.warnings().len(), 1);
    assert!(provider.warnings()[0].contains("restTools.My.Tool") && provider.warnings()[0].contains("`unused`"));

    let mut written = tool_config(entry);
    written.written =
        Some(json!({"url": "https://${HOST}/", "headers": {"Authorization": "Bearer ${KEY}"}, "timeout": "5s"}));
    let provider = RestProvider::new(vec![("t".into(), written)], &RestOptions::default()).expect("provider");
    let declaration = provider.list().await.expect("listed")[0].definition().declaration.clone();
    assert_eq!(
        declaration,
        Some(json!({"method": "GET", "url": "https://${HOST}/", "headers": {"Authorization": "Bearer ${KEY}"}}))
    );

    let fields = json!({
        "title": "T", "aliases": ["a"], "examples": [{"x": 1}], "safe": false, "strict": true,
        "allowed_roles": ["r"], "concurrency": "exclusive", "max_output": 300, "contribution": "c", "body_argument": "x",
    });
    let mut entry = json!({"url": "https://h/${parameters.x}", "parameters": {"properties": {"x": {}}}});
    entry.as_object_mut().expect("entry").extend(fields.as_object().expect("fields").clone());
    let provider = build("t", entry).expect("provider");
    let definition = serde_json::to_value(provider.list().await.expect("listed")[0].definition()).expect("json");
    for (field, value) in fields.as_object().expect("fields") {
        assert_eq!(definition[field], *value, "{field}");
    }

    let post = build("t", json!({"method": "POST", "url": "https://h/", "parameters": {}})).expect("provider");
    assert_eq!(post.list().await.expect("listed")[0].definition().effects, Effects::UNKNOWN);
}

#[test]
fn wrong_entries_are_found_by_name() {
    let schema = json!({"type": "object", "properties": {"x": {}}});
    for (more, fragments) in [
        (json!({"url": "https://h/${parameters.y}"}), ["restTools.t.url", "does not declare"]),
        (json!({"url": "https://h/${HOME}"}), ["restTools.t.url", "`${HOME}` is not a placeholder"]),
        (json!({"url": "https://${parameters.x}/"}), ["restTools.t.url", "part of the host"]),
        (json!({"url": "https://h${parameters.x}"}), ["restTools.t.url", "part of the host"]),
        (json!({"url": "${parameters.x}"}), ["restTools.t.url", "cannot choose"]),
        (json!({"url": "ftp://h/"}), ["restTools.t.url", "http"]),
        (json!({"url": "https://h/?${parameters.x}=1"}), ["restTools.t.url", "after a `name=`"]),
        (json!({"url": "https://h/#${parameters.x}"}), ["restTools.t.url", "never sent"]),
        (json!({"headers": {"X Y": "1"}}), ["restTools.t.headers.X Y", "name"]),
        (json!({"headers": {"X": "a\r\nb"}}), ["restTools.t.headers.X", "line break"]),
        (json!({"headers": {"Content-Length": "1"}}), ["restTools.t.headers.Content-Length", "frames"]),
        (json!({"headers": {"Host": "${parameters.x}"}}), ["restTools.t.headers.Host", "frames"]),
        (json!({"query": {"a": "${parameters.x"}}), ["restTools.t.query.a", "closing"]),
        (json!({"body": {"a": ["${parameters.y}"]}}), ["restTools.t.body.a.0", "does not declare"]),
        (json!({"parameters": null}), ["restTools.t", "has no `parameters`"]),
        (json!({"parameters": {"type": "nonsense"}}), ["restTools.t", "does not compile"]),
    ] {
        let mut entry = json!({"url": "https://h/", "parameters": schema});
        for (key, value) in more.as_object().expect("object") {
            entry[key] = value.clone();
        }
        let error = build("t", entry).expect_err(&more.to_string()).to_string();
        assert!(fragments.iter().all(|fragment| error.contains(fragment)), "{more}: {error}");
    }
    let twice = ["A.b", "a_b"]
        .map(|name| (name.to_owned(), tool_config(json!({"url": "https://h/", "parameters": {}}))))
        .to_vec();
    let error = RestProvider::new(twice, &RestOptions::default()).expect_err("collision").to_string();
    assert!(
        error.contains("restTools.a_b") && error.contains("restTools.A.b") && error.contains("rest:a_b@1.0.0"),
        "{error}"
    );
    for unknown in [
        json!({"url": "u", "uri": 1}),
        json!({"url": "u", "query": {"a": {"value": 1, "stile": "form"}}}),
        json!({"url": "u", "cache": "soon"}),
    ] {
        assert!(serde_json::from_value::<RestToolConfig>(unknown.clone()).is_err(), "{unknown}");
    }
}

#[test]
fn settings_without_effect_are_errors() {
    let check = |more: Value, expect: &str| {
        let mut entry = json!({"description": "d", "url": "https://x.example/", "parameters": {"type": "object"}});
        entry.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        let refused =
            RestProvider::new(vec![("t".into(), tool_config(entry))], &RestOptions::default()).expect_err(expect);
        assert!(refused.to_string().contains(expect), "{refused}");
    };
    check(json!({"response": "text", "select": "/a"}), "select");
    check(json!({"response": "json", "stream": {"answer": "/a"}}), "stream");
    check(json!({"response": "json_lines", "stream": {"answer": "a"}}), "stream.answer");
}
