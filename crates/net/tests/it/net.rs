//! The HTTP client's address policy, redirects, bounds and proxies, by the bytes that are sent.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method};
use toolwright_core::cancel::CancelCause;
use toolwright_core::{Cancel, ErrorKind};
use toolwright_net::{
    AddressPolicy, Bounds, HttpClient, HttpOptions, HttpRequest, HttpResponse, NetError, ProxyConfig,
};
use url::Url;

use crate::wire::{Names, Reply, Server, options};

/// Global unicast by number, but given to nobody: it passes the policy and leads nowhere.
const PUBLIC: &str = "3000::1";

fn client(allowed: &[&str], names: &Arc<Names>) -> HttpClient {
    HttpClient::new(policy(allowed), options(names))
}

fn policy(allowed: &[&str]) -> AddressPolicy {
    AddressPolicy { allow_private: false, allowed_hosts: allowed.iter().map(|&host| host.to_owned()).collect() }
}

fn get(url: &str) -> HttpRequest {
    HttpRequest::get(Url::parse(url).expect("url"))
}

async fn send(client: &HttpClient, request: HttpRequest) -> Result<HttpResponse, NetError> {
    let cancel = Cancel::new();
    client.send(request, Bounds::new(&cancel, Some(Instant::now() + Duration::from_secs(10)))).await
}

#[tokio::test]
async fn private_addresses_are_refused_in_every_spelling() {
    let client = HttpClient::new(
        AddressPolicy::default(),
        HttpOptions { proxies: ProxyConfig::none(), ..HttpOptions::default() },
    );
    for host in [
        "127.0.0.1",
        "127.1",
        "localhost",
        "0.0.0.0",
        "[::]",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "169.254.169.254",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "168.63.129.16",
        "192.0.0.192",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "2130706433",
        "017700000001",
        "0x7f.1",
        "0x7f000001",
        "[fe80::1]",
        "[fd00::1]",
        "[fec0::1]",
        "[ff02::1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[2001:db8::1]",
        "127.0.0.1.",
        "127.0.1",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "0",
        "%31%32%37.0.0.1",
        "①②⑦.⓪.⓪.①",
        "LOCALHOST",
        "me@127.0.0.1",
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[0:0:0:0:0:ffff:7f00:1]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b::169.254.169.254]",
        "[fd00:ec2::254]",
    ] {
        let error = send(&client, get(&format!("http://{host}:1/x?token=secret"))).await.expect_err(host);
        assert!(matches!(error, NetError::Refused { .. }), "{host}: {error:?}");
        let error = error.into_tool_error("web");
        assert_eq!(error.kind(), ErrorKind::NotPermitted, "{host}");
        assert!(
            error.message().contains("web.allow_private") && error.message().contains("web.allowed_hosts"),
            "{error}"
        );
        assert!(!error.message().contains("secret"), "{error}");
    }
    for url in ["ftp://1.1.1.1/", "file:///etc/passwd", "data:,x"] {
        assert!(matches!(send(&client, get(url)).await, Err(NetError::Url { .. })), "{url}");
    }
}

#[tokio::test]
async fn names_are_judged_by_all_addresses() {
    let server = Server::start(|_| Reply::ok("text/plain", "in")).await;
    let names = Names::new(&[
        ("private.example", &[&["10.0.0.1"]]),
        ("both.example", &[&[PUBLIC, "127.0.0.1"]]),
        ("local.example", &[&["127.0.0.1"]]),
        ("empty.example", &[&[]]),
    ]);
    let checked = client(&[], &names);
    let port = server.address.port();
    for name in ["private.example", "both.example", "local.example"] {
        let error = send(&checked, get(&format!("http://{name}:{port}/"))).await.expect_err(name);
        assert!(matches!(&error, NetError::Refused { target, .. } if target == name), "{name}: {error:?}");
    }
    for name in ["empty.example", "unknown.example"] {
        let error = send(&checked, get(&format!("http://{name}:{port}/"))).await.expect_err(name);
        assert!(
            matches!(error, NetError::Connect { .. }) && error.clone().into_tool_error("web").is_retryable(),
            "{name}: {error:?}"
        );
    }
    assert!(server.received().is_empty());
    for allowed in [format!("local.example:{port}"), "*.example".to_owned()] {
        let response =
            send(&client(&[&allowed], &names), get(&format!("http://local.example:{port}/"))).await.expect("allowed");
        assert_eq!(response.status(), 200);
    }
    let open = HttpClient::new(AddressPolicy::open(), options(&names));
    assert!(send(&open, get(&server.url("/"))).await.is_ok());
}

#[tokio::test]
async fn names_cannot_change_between_check_and_dial() {
    let server = Server::start(|_| Reply::ok("text/plain", "rebound")).await;
    let names = Names::new(&[("rebind.example", &[&[PUBLIC], &["127.0.0.1"]])]);
    let client = client(&[], &names);
    let cancel = Cancel::new();
    let url = format!("http://rebind.example:{}/", server.address.port());
    let bounds = Bounds::new(&cancel, Some(Instant::now() + Duration::from_millis(500)));
    let error = client.send(get(&url), bounds).await.expect_err("leads nowhere");
    assert!(matches!(error, NetError::Connect { .. } | NetError::Timeout), "{error:?}");
    assert_eq!(*names.asked.lock().expect("lock"), ["rebind.example"], "one look, and that one is dialled");
    assert!(matches!(send(&client, get(&url)).await, Err(NetError::Refused { .. })));
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn redirects_are_checked_like_requests_and_counted() {
    let inner = Server::start(|_| Reply::ok("text/plain", "inner")).await;
    let target = inner.url("/secret");
    let port = inner.address.port();
    let outer = Server::start(move |request| {
        let path = request.line.split(' ').nth(1).expect("path");
        match path {
            "/private" => Reply::redirect(302, &target),
            "/name" => Reply::redirect(302, &format!("http://inner.example:{port}/")),
            "/metadata" => Reply::redirect(307, "http://169.254.169.254/latest"),
            "/file" => Reply::redirect(302, "file:///etc/passwd"),
            "/junk" => Reply::redirect(302, "http://[/"),
            "/loop" => Reply::redirect(302, "/loop"),
            "/hop" => Reply::redirect(301, "end?x=1"),
            _ => Reply::ok("text/plain", "end"),
        }
    })
    .await;
    let names = Names::new(&[("inner.example", &[&["127.0.0.1"]])]);
    let client = client(&[&outer.address.to_string()], &names);
    for path in ["/private", "/name", "/metadata"] {
        let error = send(&client, get(&outer.url(path))).await.expect_err(path);
        assert!(matches!(error, NetError::Refused { .. }), "{path}: {error:?}");
    }
    assert!(inner.received().is_empty());
    assert!(matches!(send(&client, get(&outer.url("/file"))).await, Err(NetError::Url { .. })));
    assert!(matches!(send(&client, get(&outer.url("/junk"))).await, Err(NetError::Redirect { .. })));

    let before = outer.received().len();
    let error = send(&client, get(&outer.url("/loop"))).await.expect_err("endless");
    assert!(matches!(&error, NetError::Redirect { reason, .. } if reason.contains("more than 5")), "{error:?}");
    assert_eq!(outer.received().len() - before, 6);

    let response = send(&client, get(&outer.url("/hop"))).await.expect("followed");
    assert_eq!((response.status().as_u16(), response.url().as_str()), (200, outer.url("/end?x=1").as_str()));

    let post = HttpRequest { method: Method::POST, ..get(&outer.url("/private")) };
    let error = send(&client, post).await.expect_err("refused");
    assert_eq!(error.into_tool_error("x").kind(), ErrorKind::ExecutionError, "the POST itself has run");
}

#[tokio::test]
async fn credentials_and_bodies_stay_with_their_origin() {
    let other = Server::start(|_| Reply::ok("text/plain", "other")).await;
    let target = other.url("/landing");
    let first = Server::start(move |request| match request.line.split(' ').nth(1).expect("path") {
        "/same" => Reply::redirect(307, "/end"),
        "/303" => Reply::redirect(303, &target),
        "/302" => Reply::redirect(302, &target),
        "/307" => Reply::redirect(307, &target),
        _ => Reply::ok("text/plain", "end"),
    })
    .await;
    let client = client(&["127.0.0.1:*"], &Names::new(&[]));
    let request = |method: Method, path: &str, body: Option<&'static str>| {
        let mut request = get(&first.url(path).replace("http://", "http://user:pass@"));
        request.method = method;
        request.body = body.map(Into::into);
        request.headers.insert("x-api-key", HeaderValue::from_static("key"));
        request.headers.insert("cookie", HeaderValue::from_static("c=1"));
        request.headers.insert(ACCEPT, HeaderValue::from_static("a/b"));
        request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        request
    };

    send(&client, request(Method::POST, "/same", Some("body"))).await.expect("same origin");
    let end = first.received().pop().expect("second request");
    assert_eq!(
        (end.line.as_str(), end.body.as_str(), end.header("x-api-key")),
        ("POST /end HTTP/1.1", "body", Some("key"))
    );

    for (path, method, body) in
        [("/303", Method::POST, Some("body")), ("/302", Method::POST, Some("body")), ("/307", Method::GET, None)]
    {
        send(&client, request(method, path, body)).await.expect(path);
        assert!(first.received().pop().expect("first").header("authorization").expect("basic").starts_with("Basic "));
        let landing = other.received().pop().expect("landing");
        assert_eq!((landing.line.as_str(), landing.body.as_str()), ("GET /landing HTTP/1.1", ""));
        assert_eq!(landing.header("accept"), Some("a/b"));
        for secret in [AUTHORIZATION.as_str(), "x-api-key", "cookie"] {
            assert_eq!(landing.header(secret), None, "{path} {secret}");
        }
    }
    let landed = other.received().len();
    let error = send(&client, request(Method::POST, "/307", Some("body"))).await.expect_err("body");
    assert!(matches!(&error, NetError::Redirect { reason, .. } if reason.contains("body")), "{error:?}");
    assert_eq!(other.received().len(), landed);
}

#[tokio::test]
async fn bodies_are_bounded_by_bytes_and_time() {
    let server = Server::start(|request| match request.line.split(' ').nth(1).expect("path") {
        "/whole" => Reply::ok("text/plain", "0123456789"),
        _ => Reply::pieces("text/plain", &["01234", "56789"]).then_never_end(),
    })
    .await;
    let client = client(&["127.0.0.1"], &Names::new(&[]));
    let cancel = Cancel::new();
    for (max, expect, cut) in [(4, "0123", true), (10, "0123456789", false), (99, "0123456789", false)] {
        let response = send(&client, get(&server.url("/whole"))).await.expect("head");
        let body = response.read(max, Bounds::new(&cancel, None)).await.expect("body");
        assert_eq!((body.bytes.as_slice(), body.cut), (expect.as_bytes(), cut), "{max}");
    }
    // Enough has come: what hangs is not waited for.
    let response = send(&client, get(&server.url("/hang"))).await.expect("head");
    let body = response.read(7, Bounds::new(&cancel, None)).await.expect("body");
    assert_eq!((body.bytes.as_slice(), body.cut), (b"0123456".as_slice(), true));

    let response = send(&client, get(&server.url("/hang"))).await.expect("head");
    let deadline = Some(Instant::now() + Duration::from_millis(100));
    let error = response.read(99, Bounds::new(&cancel, deadline)).await.expect_err("deadline");
    assert_eq!(error.into_tool_error("x").kind(), ErrorKind::Timeout);

    let response = send(&client, get(&server.url("/hang"))).await.expect("head");
    let canceller = cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        canceller.cancel(CancelCause::Sibling);
    });
    let error = response.read(99, Bounds::new(&cancel, None)).await.expect_err("cancel").into_tool_error("x");
    assert_eq!((error.kind(), error.cancel_cause()), (ErrorKind::Canceled, Some(CancelCause::Sibling)));
}

#[tokio::test]
async fn proxies_get_only_allowed_requests() {
    let proxy = Server::start(|request| {
        if request.line.starts_with("CONNECT") {
            Reply::new("502 No", "", "")
        } else {
            Reply::ok("text/plain", "proxied")
        }
    })
    .await;
    let direct = Server::start(|_| Reply::ok("text/plain", "direct")).await;
    let proxy_url = proxy.url("").replace("http://", "http://me:pw@");
    let names = Names::new(&[("site.example", &[&[PUBLIC]]), ("inner.example", &[&["127.0.0.1"]])]);
    let make = |allowed: &[&str]| {
        let lookup = |name: &str| match name {
            "HTTP_PROXY" | "HTTPS_PROXY" => Some(proxy_url.clone()),
            "NO_PROXY" => Some("127.0.0.1".to_owned()),
            _ => None,
        };
        HttpClient::new(
            policy(allowed),
            HttpOptions { resolver: names.clone(), proxies: ProxyConfig::from_lookup(lookup) },
        )
    };
    let checked = make(&[]);
    let response = send(&checked, get("http://site.example/a?b=c")).await.expect("proxied");
    assert_eq!(response.status(), 200);
    let seen = proxy.only();
    assert_eq!(seen.line, "GET http://site.example/a?b=c HTTP/1.1");
    assert_eq!(seen.header("proxy-authorization"), Some("Basic bWU6cHc="));

    let error = send(&checked, get("https://site.example/")).await.expect_err("502");
    assert!(matches!(error, NetError::Connect { .. }), "{error:?}");
    assert_eq!(proxy.received()[1].line, "CONNECT site.example:443 HTTP/1.1");

    for url in ["http://inner.example/", "http://unknown.example/", "http://10.0.0.1/", "https://[::1]/"] {
        assert!(matches!(send(&checked, get(url)).await, Err(NetError::Refused { .. })), "{url}");
    }
    assert_eq!(proxy.received().len(), 2, "the proxy does not hear of what is refused");

    send(&make(&["unknown.example"]), get("http://unknown.example/x")).await.expect("allowed by name");
    assert_eq!(proxy.received()[2].line, "GET http://unknown.example/x HTTP/1.1");

    send(&make(&["127.0.0.1"]), get(&direct.url("/x"))).await.expect("bypasses the proxy");
    assert_eq!((direct.only().line.as_str(), proxy.received().len()), ("GET /x HTTP/1.1", 3));
}

#[tokio::test]
async fn the_process_environment_names_the_proxy() {
    let proxy = Server::start(|_| Reply::ok("text/plain", "proxied")).await;
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.args(["--exact", "net::as_a_child_process", "--ignored"]).env_remove("NO_PROXY").env_remove("no_proxy");
    child.env("HTTP_PROXY", proxy.url(""));
    let output = tokio::task::spawn_blocking(move || child.output()).await.expect("thread").expect("child");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(proxy.only().line, "GET http://named.invalid/ HTTP/1.1");
}

#[tokio::test]
#[ignore = "run by the test above, with a proxy in its environment"]
async fn as_a_child_process() {
    let client = HttpClient::new(policy(&["named.invalid"]), HttpOptions::default());
    send(&client, get("http://named.invalid/")).await.expect("through the proxy");
}

#[tokio::test]
async fn borrowed_clients_stay_with_their_origin() {
    let other = Server::start(|_| Reply::ok("text/plain", "other")).await;
    let target = other.url("/");
    let server = Server::start(move |request| match request.line.split(' ').nth(1).expect("path") {
        "/mcp" => Reply::redirect(307, "/mcp/"),
        "/away" => Reply::redirect(307, &target),
        _ => Reply::ok("text/plain", "here"),
    })
    .await;
    let url = |path: &str| Url::parse(&server.url(path)).expect("url");
    let closed = client(&[], &Names::new(&[]));
    assert!(matches!(closed.client_for(&url("/mcp")).await, Err(NetError::Refused { .. })));
    let borrowed = client(&["127.0.0.1"], &Names::new(&[])).client_for(&url("/mcp")).await.expect("client");
    assert_eq!(borrowed.get(url("/mcp")).send().await.expect("response").status(), 200);
    assert_eq!(borrowed.get(url("/away")).send().await.expect("response").status(), 307);
    assert!(other.received().is_empty());
}
