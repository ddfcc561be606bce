//! `web:fetch` against a real server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright_core::content::joined_text;
use toolwright_core::{Effects, ErrorKind, RegisteredTool, Tool, ToolError, ToolOutput};
use toolwright_net::AddressPolicy;
use toolwright_providers::builtin::web::{WebConfig, tools_with};

use crate::files::workspace::Workspace;
use crate::wire::{Names, Reply, Server, options};

fn fetch(allowed: &[&str]) -> Arc<dyn Tool> {
    let allowed_hosts = allowed.iter().map(|&host| host.to_owned()).collect();
    let web =
        WebConfig { address: AddressPolicy { allowed_hosts, ..AddressPolicy::default() }, ..WebConfig::default() };
    tools_with(&web, options(&Names::new(&[]))).remove(0)
}

async fn run(arguments: Value) -> Result<ToolOutput, ToolError> {
    fetch(&["127.0.0.1"]).run(arguments, &Workspace::new().context).await
}

#[test]
fn web_fetch_registers_as_a_read_tool() {
    let registered = RegisteredTool::own(fetch(&[]).definition()).expect("registers");
    let definition = registered.definition();
    assert_eq!((definition.id.as_str(), definition.effects), ("web:fetch@1.0.0", Effects::FETCH));
    assert_eq!(definition.timeout, Some(Duration::from_secs(30)));
    let schema = registered.schema().expect("compiles").expect("schema");
    assert!(schema.is_valid(&json!({"url": "http://x/"})) && !schema.is_valid(&json!({"url": "http://x/", "post": 1})));
}

#[tokio::test]
async fn bodies_become_text_by_their_type() {
    const PAGE: &str = "<html><title>T</title><nav>menu</nav><h1>A</h1><p>b <a href=/c>d</a>";
    let cases: [(&str, &[u8], bool, &str); 7] = [
        ("text/html; charset=utf-8", PAGE.as_bytes(), false, "# A\n\nb [d](ORIGIN/c)"),
        ("text/html", PAGE.as_bytes(), true, PAGE),
        ("text/html; charset=iso-8859-1", b"<p>\xe9", false, "é"),
        ("application/json", b"{\"a\": 1}", false, "{\"a\": 1}"),
        ("text/plain", "ünï".as_bytes(), false, "ünï"),
        ("application/octet-stream", b"plain after all", false, "plain after all"),
        ("", b"<!DOCTYPE html><p>untyped", false, "untyped"),
    ];
    for (content_type, body, raw, expect) in cases {
        let server = Server::start(move |_| match content_type {
            "" => Reply::new("200 OK", "", body),
            _ => Reply::ok(content_type, body),
        })
        .await;
        let output = run(json!({"url": server.url("/p"), "raw": raw})).await.expect("fetched");
        assert!(!output.is_error, "{output:?}");
        assert_eq!(joined_text(&output.content), expect.replace("ORIGIN", &server.url("")), "{content_type}");
        assert_eq!(
            (output.extras["status"].as_u64(), output.extras["url"].as_str()),
            (Some(200), Some(server.url("/p").as_str()))
        );
        let sent = server.only();
        assert_eq!(sent.line, "GET /p HTTP/1.1");
        assert!(sent.header("user-agent").expect("agent").starts_with("toolwright/"));
    }
}

#[tokio::test]
async fn binary_content_is_named_not_shown() {
    for (content_type, body) in
        [("image/png", "\u{1}png"), ("application/octet-stream", "a\0b"), ("text/plain", "a\0b")]
    {
        let server = Server::start(move |_| Reply::ok(content_type, body)).await;
        let output = run(json!({"url": server.url("/")})).await.expect("answered");
        let text = joined_text(&output.content);
        assert!(
            output.is_error && text.contains(content_type) && text.contains(&format!("{} bytes", body.len())),
            "{text}"
        );
    }
}

/// A PDF with one page of this content; what a cross-reference table would say is found without one.
fn pdf(content: &str) -> String {
    format!(
        "%PDF-1.4\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n2 0 obj\n<</Type/Pages/Kids[3 0 R]/Count 1>>\nendobj\n\
         3 0 obj\n<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>/XObject<</X 6 0 R>>>>>>\nendobj\n\
         4 0 obj\n<</Length {}>>\nstream\n{content}\nendstream\nendobj\n\
         5 0 obj\n<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>\nendobj\n\
         6 0 obj\n<</Type/XObject/Subtype/Form/Length 34/Resources<</Font<</F1 5 0 R>>/XObject<</X 6 0 R>>>>>>\nstream\n\
         BT /F1 9 Tf (In a form.) Tj ET /X Do\nendstream\nendobj\n\
         trailer\n<</Root 1 0 R/Size 7>>\nstartxref\n0\n%%EOF\n",
        content.len()
    )
}

#[tokio::test]
async fn pdfs_become_text_and_hostile_ones_errors() {
    const LINES: &str =
        "BT /F1 12 Tf 72 700 Td [(Hel) 20 (lo) -333 (PDF)] TJ 0 -14 Td (second caf\\351) Tj 30 0 Td (end) Tj ET";
    let good = pdf(LINES);
    let nested = pdf(&format!("BT /F1 9 Tf {}(a) Tj ET", "[".repeat(100_000)));
    let looped = good.replace("/Kids[3 0 R]", "/Kids[2 0 R]");
    let (form, drawn) = (pdf("/X Do"), pdf("0 0 1 1 re f"));
    type Case<'a> = (&'static str, &'static str, &'a [u8], Result<&'static str, &'static str>);
    let cases: [Case<'_>; 7] = [
        ("application/pdf", "lines", good.as_bytes(), Ok("[Page 1]\nHello PDF\nsecond café end")),
        ("application/octet-stream", "untyped", good.as_bytes(), Ok("[Page 1]\nHello PDF")),
        ("application/pdf", "a form that shows itself", form.as_bytes(), Ok("In a form.")),
        ("application/pdf", "no text", drawn.as_bytes(), Err("no text on 1 page")),
        ("application/pdf", "torn", &good.as_bytes()[..60], Err("cannot be read")),
        ("application/pdf", "nested", nested.as_bytes(), Ok("This page cannot be read")),
        ("application/pdf", "a page tree that is a loop", looped.as_bytes(), Err("no pages")),
    ];
    for (content_type, case, body, expect) in cases {
        let body = body.to_vec();
        let server = Server::start(move |_| Reply::ok(content_type, body.clone())).await;
        let said = run(json!({"url": server.url("/p")})).await;
        match (said, expect) {
            (Ok(output), Ok(text)) => assert!(joined_text(&output.content).contains(text), "{case}: {output:?}"),
            (Err(error), Err(text)) => assert!(error.message().contains(text), "{case}: {error}"),
            (said, _) => panic!("{case}: {said:?}"),
        }
    }
}

#[tokio::test]
async fn failure_statuses_fail_and_redirects_show() {
    let server = Server::start(|request| match request.line.split(' ').nth(1).expect("path") {
        "/moved" => Reply::redirect(302, "/gone?x=1"),
        _ => Reply::new(
            "404 Not Found",
            "Content-Type: text/html\r\n",
            format!("<h1>Gone</h1>{}", "<p>filler".repeat(5000)),
        ),
    })
    .await;
    let output = run(json!({"url": server.url("/moved")})).await.expect("answered");
    let text = joined_text(&output.content);
    assert!(
        output.is_error && text.starts_with(&format!("HTTP 404 Not Found from {}\n# Gone", server.url("/gone?x=1"))),
        "{text}"
    );
    assert!(text.len() < 5000 && text.contains("toolwright cut"), "{}", text.len());
    assert_eq!(output.extras["url"], server.url("/gone?x=1"));
}

#[tokio::test]
async fn a_cut_text_carries_its_note() {
    let server = Server::start(|_| Reply::ok("text/plain", "0123456789")).await;
    let output = run(json!({"url": server.url("/"), "max_bytes": 4})).await.expect("fetched");
    assert_eq!(
        joined_text(&output.content),
        "0123\n\n[web__fetch stopped after 4 bytes of 10 bytes; a larger max_bytes reads more]"
    );
    assert_eq!(output.extras["cut"], true);
}

#[tokio::test]
async fn long_pages_are_read_in_parts() {
    let lines: String = (0..9_000).map(|n| format!("line {n}\n")).collect();
    let text = lines.clone();
    let server = Server::start(move |request| match request.line.contains("/fresh") {
        true => Reply::new("200 OK", "Content-Type: text/plain\r\nCache-Control: no-store\r\n", "x"),
        false => Reply::ok("text/plain", text.clone()),
    })
    .await;
    let (tool, context) = (fetch(&["127.0.0.1"]), Workspace::new().context);
    let mut read = String::new();
    for page in 1..=3 {
        let arguments = json!({"url": server.url("/long"), "page": page});
        let output = tool.run(arguments, &context).await.expect("fetched");
        let text = joined_text(&output.content);
        let (part, note) = text.rsplit_once("\n\n[").expect("a note");
        let more = if page < 3 { format!("; page {} reads on]", page + 1) } else { "]".to_owned() };
        assert_eq!(note, format!("page {page} of 3{more}"));
        read += &format!("{part}\n");
    }
    assert_eq!(read, lines);
    assert_eq!(server.only().line, "GET /long HTTP/1.1", "it is asked for once");
    let beyond = tool.run(json!({"url": server.url("/long"), "page": 4}), &context).await.expect_err("beyond");
    assert!(beyond.message().contains("the text has 3"), "{beyond}");
    for _ in 0..2 {
        tool.run(json!({"url": server.url("/fresh")}), &context).await.expect("fetched");
    }
    assert_eq!(server.received().len(), 3);
}

#[tokio::test]
async fn failed_fetches_name_their_remedy() {
    let server = Server::start(|_| Reply::pieces("text/plain", &["x"]).then_never_end()).await;
    let refused =
        fetch(&[]).run(json!({"url": server.url("/")}), &Workspace::new().context).await.expect_err("refused");
    assert!(refused.kind() == ErrorKind::NotPermitted && refused.message().contains("web.allowed_hosts"), "{refused}");
    assert!(server.received().is_empty());
    for url in ["not a url", "/relative", "file:///etc/passwd"] {
        assert_eq!(run(json!({"url": url})).await.expect_err(url).kind(), ErrorKind::InvalidParameters, "{url}");
    }
    let mut context = Workspace::new().context;
    context.deadline = Some(Instant::now() + Duration::from_millis(200));
    let timeout = fetch(&["127.0.0.1"]).run(json!({"url": server.url("/")}), &context).await.expect_err("hangs");
    assert_eq!(timeout.kind(), ErrorKind::Timeout);
}

/// Searches with engines, each at a server of its own that answers so. Returns the answer, and what each server got.
async fn search(
    engines: Vec<(Value, &'static str, &'static str)>,
) -> (Result<ToolOutput, ToolError>, Vec<Vec<String>>) {
    let (mut servers, mut list) = (Vec::new(), Vec::new());
    for (mut engine, status, body) in engines {
        let server = Server::start(move |_| Reply::new(status, "Content-Type: application/json\r\n", body)).await;
        engine["url"] = format!("{}{}", server.url(""), engine["url"].as_str().unwrap_or_default()).into();
        list.push(serde_json::from_value(engine).expect("an engine"));
        servers.push(server);
    }
    let address = AddressPolicy { allowed_hosts: vec!["127.0.0.1".into()], ..AddressPolicy::default() };
    let web = WebConfig { address, search: list, ..WebConfig::default() };
    let tool = tools_with(&web, options(&Names::new(&[]))).pop().expect("the search");
    let answer = tool.run(json!({"query": "a b&c", "count": 2}), &Workspace::new().context).await;
    (answer, servers.iter().map(|server| server.received().iter().map(|sent| sent.line.clone()).collect()).collect())
}

#[tokio::test]
async fn searches_go_to_the_next_engine_after_failures() {
    const FOUND: &str = r#"{"web": {"results": [{"title": "T", "url": "https://x.exa\nmple/a b", "description": "about\n x"}, {"url": "file:///x"}]}}"#;
    let (answer, sent) = search(vec![
        (json!({"engine": "searxng"}), "200 OK", r#"{"results": []}"#),
        (json!({"engine": "rest", "url": "/find?q={query}&n={count}", "results": "/items"}), "429 Too Many", "{}"),
        (json!({"engine": "tavily"}), "200 OK", "{}"),
        (json!({"engine": "brave", "key": "secret-key", "url": "/web"}), "200 OK", FOUND),
    ])
    .await;
    let text = joined_text(&answer.expect("found").content);
    assert!(text.starts_with("1. T\n   https://x.example/a%20b\n   about x\n[brave (127.0.0.1) answered"), "{text}");
    for words in ["empty page", "HTTP 429", "`key` is missing"] {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(
        sent,
        [
            vec!["GET /search?q=a+b%26c&format=json HTTP/1.1"],
            vec!["GET /find?q=a+b%26c&n=2 HTTP/1.1"],
            vec![],
            vec!["GET /web?q=a+b%26c&count=2 HTTP/1.1"],
        ]
    );
    let (answer, _) = search(vec![(json!({"engine": "searxng"}), "200 OK", r#"{"results": []}"#)]).await;
    assert!(answer.expect_err("nothing").message().contains("no search engine has an answer"));
}
