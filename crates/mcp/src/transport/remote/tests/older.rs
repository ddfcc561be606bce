//! HTTP with SSE of 2024-11-05, configured or found out.

use crate::protocol::revision::Era;
use tokio::sync::mpsc;

use super::super::{LegacySse, StreamableHttp};
use super::*;
use crate::transport::{CancelNotice, Transport as _};

/// Texts for the stream, in order; closing the channel ends it.
type Script = mpsc::UnboundedSender<String>;

/// An old server: a stream at `/sse`, messages at the endpoint that it names. Requests are answered on the stream.
async fn old_server(
    endpoint: &'static str,
    post: impl Fn(&SentRequest) -> Response + Send + Sync + 'static,
) -> (Site, Script) {
    let (script, lines) = mpsc::unbounded_channel::<String>();
    let (answers, lines) = (script.clone(), Mutex::new(Some(lines)));
    let site = Site::start(move |asked| {
        if asked.method == Method::GET {
            let Some(lines) = lines.lock().expect("lines").take() else { return status(503) };
            let lines = futures_util::stream::unfold(lines, |mut lines| async move {
                let line = lines.recv().await.filter(|line| !line.is_empty())?;
                Some((Ok::<_, std::io::Error>(line), lines))
            });
            return ([("content-type", "text/event-stream")], Body::from_stream(lines)).into_response();
        }
        let response = post(asked);
        if response.status().is_success()
            && let Some(id) = asked.message["id"].as_u64()
        {
            answers.send(event(&result(id, json!({"of": asked.message["method"]})))).expect("streams");
        }
        response
    })
    .await;
    script.send(format!("event: endpoint\ndata: {endpoint}\n\n")).expect("streams");
    (site, script)
}

fn accepts(asked: &SentRequest) -> Response {
    if asked.path == "/messages?s=1" { status(202) } else { status(405) }
}

#[tokio::test]
async fn sse_messages_are_posted_to_the_announced_endpoint() {
    let (site, script) = old_server("/messages?s=1", accepts).await;
    let log = Arc::new(Log::default());
    let transport = LegacySse::open(site.target().await, Arc::clone(&log) as _).await.expect("open");
    for id in 1..=3 {
        soon(transport.send(request(id, "tools/call", LEGACY))).await.expect("sent");
    }
    soon(transport.send(notification("notifications/initialized"))).await.expect("sent");
    script.send("event: ping\ndata: x\n\n".into()).expect("streams");
    eventually("answers arrive", || log.messages().len() == 3).await;
    assert_eq!(log.messages()[2], (result(3, json!({"of": "tools/call"})), None));
    assert_eq!(transport.abandon(1), CancelNotice::Needed);
    assert!(site.asked().iter().all(|asked| asked.header("x-key") == Some("hush")));
    script.send(String::new()).expect("streams");
    eventually("the end is told", || log.ended() == ["the connection broke: the event stream ended"]).await;
}

#[tokio::test]
async fn answers_may_come_before_the_acknowledgement() {
    let (script, lines) = mpsc::unbounded_channel::<String>();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = Url::parse(&format!("http://{}/sse", listener.local_addr().expect("address"))).expect("url");
    let answers = script.clone();
    let lines = Arc::new(Mutex::new(Some(lines)));
    let app = axum::Router::new()
        .route(
            "/sse",
            axum::routing::get(move || {
                let lines = lines.lock().expect("lines").take().expect("one stream");
                let lines = futures_util::stream::unfold(lines, |mut lines| async move {
                    Some((Ok::<_, std::io::Error>(lines.recv().await?), lines))
                });
                async move { ([("content-type", "text/event-stream")], Body::from_stream(lines)) }
            }),
        )
        .route(
            "/m",
            axum::routing::post(move || {
                answers.send(event(&result(1, json!({})))).expect("streams");
                std::future::pending::<()>()
            }),
        );
    tokio::spawn(async move { axum::serve(listener, app).await });
    script.send("event: endpoint\r\ndata: m\r\n\r\n".into()).expect("streams");
    let log = Arc::new(Log::default());
    let transport = LegacySse::open(target(&url, None).await, Arc::clone(&log) as _).await.expect("open");
    soon(transport.send(request(1, "tools/call", LEGACY))).await.expect("answered");
    assert_eq!(log.messages().len(), 1);
}

#[tokio::test]
async fn old_servers_refuse_the_new_handshake() {
    for code in [400, 404, 405] {
        let (site, _script) =
            old_server("/messages?s=1", move |asked| if asked.path == "/mcp" { status(code) } else { accepts(asked) })
                .await;
        let log = Arc::new(Log::default());
        let transport = StreamableHttp::new(site.target().await, Arc::clone(&log) as _);
        soon(transport.send(request(1, "server/discover", MODERN))).await.expect_err("an old server");
        soon(transport.send(request(2, "initialize", None))).await.expect("sent");
        eventually("the answer arrives", || log.messages() == [(result(2, json!({"of": "initialize"})), None)]).await;
        transport.established(Era::Legacy, "2024-11-05");
        soon(transport.send(request(3, "tools/list", LEGACY))).await.expect("sent");
        let lines: Vec<_> = site.asked().iter().map(|asked| format!("{} {}", asked.method, asked.path)).collect();
        let posted = "POST /messages?s=1";
        assert_eq!(lines, ["POST /mcp", "POST /mcp", "GET /mcp", posted, posted]);
        assert_eq!(transport.abandon(3), CancelNotice::Needed);
    }
}

#[tokio::test]
async fn refusals_are_final_without_an_old_server() {
    let site = Site::start(|_| (axum::http::StatusCode::NOT_FOUND, "nothing here").into_response()).await;
    let transport = StreamableHttp::new(site.target().await, Arc::new(Log::default()));
    let error = soon(transport.send(request(1, "initialize", None))).await.expect_err("nothing");
    assert!(
        matches!(&error, SendError::Broken(text) if text.contains("HTTP 404") && text.contains("nothing here")),
        "{error:?}"
    );
    assert_eq!(site.asked().len(), 2);
}

#[tokio::test]
async fn non_legacy_servers_are_reported() {
    let events = |pieces: &[&str], end| {
        let pieces: Vec<String> = pieces.iter().map(|&piece| piece.to_owned()).collect();
        stream(pieces, end)
    };
    type Answer = Box<dyn Fn(&SentRequest) -> Response + Send + Sync>;
    let cases: [(Answer, &str); 5] = [
        (Box::new(|_: &SentRequest| status(401)), "headers.Authorization"),
        (Box::new(|_: &SentRequest| ([("content-type", "text/html")], "x").into_response()), "text/html"),
        (Box::new(move |_: &SentRequest| events(&[": hi\n\n"], End::Closed)), "the event stream ended"),
        (
            Box::new(move |_: &SentRequest| events(&["event: endpoint\ndata: http://evil.example/m\n\n"], End::Open)),
            "another origin",
        ),
        (
            Box::new(move |_: &SentRequest| events(&[&format!("data: {}", "x".repeat(2 * MAX))], End::Open)),
            "max_message_bytes",
        ),
    ];
    for (answer, expect) in cases {
        let site = Site::start(answer).await;
        let opened = soon(LegacySse::open(site.target().await, Arc::new(Log::default()))).await;
        let Err(SendError::Broken(text) | SendError::Final(text)) = opened else { panic!("{expect}") };
        assert!(text.contains(expect), "{text}");
        assert_eq!(site.asked().len(), 1);
    }
}

#[tokio::test]
async fn refused_messages_fail_and_forgotten_sessions_expire() {
    for (code, expect) in
        [(404, SendError::Expired), (400, SendError::Broken("HTTP 400: the request was refused".into()))]
    {
        let (site, _script) = old_server("/messages", move |_| status(code)).await;
        let transport = LegacySse::open(site.target().await, Arc::new(Log::default())).await.expect("open");
        assert_eq!(soon(transport.send(request(1, "tools/call", LEGACY))).await, Err(expect.clone()));
        assert_eq!(soon(transport.send(notification("x"))).await, Err(expect));
    }
}
