//! Who may talk to the server over HTTP, and how much of it; what a scraper gets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolwright_core::cancel::CancelCause;
use toolwright_gateway::{HttpError, HttpOptions, MetricsSource, Token};

use crate::support::{Fixture, Http, LONG, body, call, rpc, soon};

async fn status(http: &Http, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = http.request(Method::GET, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.expect("response").status().as_u16()
}

#[tokio::test]
async fn every_path_checks_host_and_origin() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let own = format!("http://{}", http.addr);
    for path in ["/health", "/mcp", "/mcp/remote", "/nowhere"] {
        assert_eq!(status(&http, path, &[("host", "evil.example")]).await, 403, "{path}");
        assert_eq!(status(&http, path, &[("origin", "http://evil.example")]).await, 403, "{path}");
    }
    assert_eq!(status(&http, "/health", &[("origin", &own)]).await, 200);
    let health = http.request(Method::GET, "/health").send().await.expect("response");
    assert!(health.headers().get("access-control-allow-origin").is_none());
    assert_eq!(health.text().await.expect("text"), "ok");
    assert_eq!(status(&http, "/nowhere", &[]).await, 404);
}

#[tokio::test]
async fn a_token_is_needed_where_one_is_set() {
    let fixture = Fixture::new().await;
    let http = fixture.http_with(|options| options.token = Token::new("s3cret")).await;
    let discover = || http.modern("/mcp", json!(1), "server/discover", json!({}));
    let refused = discover().send().await.expect("response");
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["www-authenticate"]),
        (401, &"Bearer".parse().expect("value"))
    );
    assert_eq!(discover().bearer_auth("wrong").send().await.expect("response").status(), 401);
    body(discover().bearer_auth("s3cret"), 200).await;
    assert_eq!(status(&http, "/health", &[]).await, 200);
}

#[tokio::test]
async fn oauth_discovery_gets_a_json_error() {
    let fixture = Fixture::new().await;
    for token in [None, Token::new("s3cret")] {
        let http = fixture.http_with(|options| options.token = token).await;
        for (method, path) in [
            (Method::GET, "/.well-known/oauth-protected-resource/mcp"),
            (Method::GET, "/.well-known/oauth-protected-resource"),
            (Method::GET, "/.well-known/oauth-authorization-server"),
            (Method::GET, "/.well-known/oauth-authorization-server/mcp"),
            (Method::GET, "/.well-known/openid-configuration"),
            (Method::GET, "/mcp/.well-known/openid-configuration"),
            (Method::POST, "/register"),
        ] {
            let answer = body(http.request(method, path), 404).await;
            assert!(answer["error"].is_string() && answer["error_description"].is_string(), "{path}: {answer}");
        }
        assert_eq!(status(&http, "/register", &[("host", "evil.example")]).await, 403);
    }
}

#[tokio::test]
async fn only_pages_of_listed_origins_may_call() {
    let fixture = Fixture::new().await;
    let http = fixture
        .http_with(|options| {
            options.token = Token::new("s3cret");
            options.server.allowed_origins = vec!["https://app.example".into()];
        })
        .await;
    let preflight = |origin: &str| {
        http.request(Method::OPTIONS, "/mcp")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type,mcp-session-id,x-other")
    };
    let permit = preflight("https://app.example").send().await.expect("response");
    let header = |response: &reqwest::Response, name: &str| {
        response.headers().get(name).map(|value| value.to_str().expect("text").to_owned())
    };
    assert_eq!(permit.status(), 204);
    for (name, expect) in [
        ("access-control-allow-origin", Some("https://app.example")),
        ("access-control-allow-methods", Some("GET, POST, DELETE")),
        ("access-control-allow-headers", Some("authorization,content-type,mcp-session-id,x-other")),
        ("access-control-allow-credentials", None),
        ("vary", Some("Origin")),
    ] {
        assert_eq!(header(&permit, name).as_deref(), expect, "{name}");
    }
    for origin in ["https://evil.example", "null"] {
        let refused = preflight(origin).send().await.expect("response");
        assert_eq!((refused.status().as_u16(), header(&refused, "access-control-allow-origin")), (403, None));
    }
    let initialize = |token: &str| {
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        http.post("/mcp", &rpc(0, "initialize", params)).bearer_auth(token).header("origin", "https://app.example")
    };
    for (token, status) in [("s3cret", 200), ("wrong", 401)] {
        let answer = initialize(token).send().await.expect("response");
        assert_eq!(answer.status().as_u16(), status, "the token is needed still");
        assert_eq!(header(&answer, "access-control-allow-origin").as_deref(), Some("https://app.example"));
        let exposed = header(&answer, "access-control-expose-headers").unwrap_or_default();
        assert!(
            exposed.contains("Mcp-Session-Id") && answer.headers().contains_key("mcp-session-id") == (status == 200)
        );
    }
    // Nobody's page, or the server's own: nothing is said.
    let own = http.request(Method::OPTIONS, "/mcp").header("access-control-request-method", "POST");
    let own = own.header("origin", format!("http://{}", http.addr)).send().await.expect("response");
    assert_eq!((own.status().as_u16(), header(&own, "access-control-allow-origin")), (401, None));
}

#[test]
fn listening_beyond_loopback_needs_a_token() {
    for (addr, token, allowed) in [
        ("127.0.0.1:7117", None, true),
        ("[::1]:7117", None, true),
        ("0.0.0.0:7117", None, false),
        ("192.168.1.2:7117", None, false),
        ("0.0.0.0:7117", Token::new("t"), true),
    ] {
        let mut options = HttpOptions::new(addr.parse::<SocketAddr>().expect("addr"));
        options.token = token;
        let checked = options.validate();
        assert_eq!(checked.is_ok(), allowed, "{addr}");
        if let Err(error) = checked {
            assert!(matches!(error, HttpError::Exposed(_)) && error.to_string().contains("set a token"));
        }
    }
}

#[tokio::test]
async fn a_taken_address_is_named() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let options = HttpOptions::new(http.addr);
    let Err(error) = toolwright_gateway::serve_http(fixture.gateway.clone(), options, fixture.shutdown.clone()).await
    else {
        panic!("bound twice")
    };
    assert!(error.to_string().contains(&http.addr.to_string()), "{error}");
}

#[tokio::test]
async fn other_requests_get_fitting_http_errors() {
    let fixture = Fixture::with(|options| options.max_message = 2000).await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let raw = |content_type: &str, accept: &str, text: String| {
        http.client
            .post(format!("http://{}/mcp", http.addr))
            .header("content-type", content_type)
            .header("accept", accept)
            .header("mcp-session-id", &session)
            .body(text)
    };
    let ping = rpc(1, "ping", json!({})).to_string();
    for (content_type, accept, text, expect) in [
        ("application/json; charset=utf-8", "*/*", ping.clone(), 200),
        ("application/json", "application/json", ping.clone(), 200),
        ("application/json", "text/event-stream", ping.clone(), 200),
        ("text/plain", "*/*", ping.clone(), 415),
        ("application/json", "text/html", ping.clone(), 406),
        ("application/json", "*/*", "{".into(), 400),
        ("application/json", "*/*", format!("[{ping}]"), 400),
        ("application/json", "*/*", format!("{ping}{}", " ".repeat(2000)), 413),
    ] {
        let response = raw(content_type, accept, text.clone()).send().await.expect("response");
        assert_eq!(response.status(), expect, "{content_type} {accept} {}", &text[..text.len().min(60)]);
    }
    let put = http.request(Method::PUT, "/mcp").send().await.expect("response");
    assert_eq!((put.status().as_u16(), &put.headers()["allow"]), (405, &"POST, GET, DELETE".parse().expect("value")));
}

#[tokio::test]
async fn sessions_streams_and_calls_are_bounded() {
    let fixture = Fixture::with(|options| options.max_calls = 1).await;
    let http = fixture
        .http_with(|options| {
            options.max_sessions = 1;
            options.session_idle = Duration::ZERO;
        })
        .await;
    let (session, _) = http.initialize("/mcp").await;
    let waiting = tokio::spawn(http.in_session(&session, "/mcp", &call(1, "test__wait", json!({}))).send());
    soon(&fixture.watch.started).await;
    let second = body(http.in_session(&session, "/mcp", &call(2, "test__echo", json!({"text": "a"}))), 503).await;
    assert_eq!(second["error"]["code"], -32000);
    let other = http.post("/mcp", &rpc(0, "initialize", json!({}))).send().await.expect("response");
    assert_eq!((other.status().as_u16(), &other.headers()["retry-after"]), (503, &"1".parse().expect("value")));

    let get = || http.request(Method::GET, "/mcp").header("mcp-session-id", &session).send();
    let stream = get().await.expect("response");
    assert_eq!((stream.status().as_u16(), get().await.expect("response").status().as_u16()), (200, 503));

    fixture.shutdown.cancel(CancelCause::Shutdown);
    assert_eq!(waiting.await.expect("task").expect("response").status(), 200);
}

#[tokio::test]
async fn a_missing_body_takes_no_request_slot() {
    let fixture = Fixture::new().await;
    let http = fixture
        .http_with(|options| {
            options.max_requests = 1;
            options.body_pause = Duration::from_millis(200);
        })
        .await;
    let (session, _) = http.initialize("/mcp").await;
    let ping = || body(http.in_session(&session, "/mcp", &rpc(3, "ping", json!({}))), 200);
    let mut slow = TcpStream::connect(http.addr).await.expect("connected");
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.expect("written");
    ping().await;
    let mut answer = [0; 12];
    tokio::time::timeout(LONG, slow.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 408", "who does not go on is told");
    ping().await;

    let waiting = tokio::spawn(http.in_session(&session, "/mcp", &call(1, "test__wait", json!({}))).send());
    soon(&fixture.watch.started).await;
    let refused = http.in_session(&session, "/mcp", &rpc(3, "ping", json!({}))).send().await.expect("response");
    assert_eq!(refused.status(), 503);
    waiting.abort();
}

#[derive(Debug)]
struct Echo;

impl MetricsSource for Echo {
    fn read(&self, accept: &str) -> (&'static str, String) {
        ("text/plain; version=0.0.4", format!("# {accept}\n"))
    }
}

#[tokio::test]
async fn a_scraper_gets_its_preferred_format() {
    let fixture = Fixture::new().await;
    let http = fixture
        .http_with(|options| {
            options.metrics = Some(Arc::new(Echo));
            options.token = Token::new("s3cret");
        })
        .await;
    let scrape = || http.client.get(format!("http://{}/metrics", http.addr)).header("accept", "text/plain;q=0.5");
    for (request, expect) in [
        (scrape(), 401),
        (scrape().bearer_auth("wrong"), 401),
        (scrape().bearer_auth("s3cret").header("host", "evil.example"), 403),
        (scrape().bearer_auth("s3cret").header("origin", "https://evil.example"), 403),
    ] {
        let response = request.send().await.expect("response");
        assert_eq!(response.status(), expect);
        assert!(!response.text().await.expect("text").contains("q=0.5"));
    }
    let response = scrape().bearer_auth("s3cret").send().await.expect("response");
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"text/plain; version=0.0.4".parse().expect("value"))
    );
    assert_eq!(response.text().await.expect("text"), "# text/plain;q=0.5\n");
    let post = http.request(Method::POST, "/metrics").bearer_auth("s3cret").send().await.expect("response");
    assert_eq!(post.status(), 405);
}

#[tokio::test]
async fn metrics_are_absent_without_telemetry() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    assert_eq!(http.request(Method::GET, "/metrics").send().await.expect("response").status(), 404);
}
