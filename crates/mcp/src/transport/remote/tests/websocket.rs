//! WebSocket.

use axum::http::StatusCode;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response as Handshake};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};

use super::super::WebSocket;
use super::*;
use crate::transport::Transport as _;

type Served = WebSocketStream<TcpStream>;

/// A server that performs the handshake with `protocol`, and then runs `serve`. The head of the request is kept.
async fn socket_server<F>(
    protocol: Option<&'static str>,
    serve: impl FnOnce(Served) -> F + Send + 'static,
) -> (Url, Arc<Mutex<HeaderMap>>)
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = Url::parse(&format!("ws://{}/ws", listener.local_addr().expect("address"))).expect("url");
    let head = Arc::<Mutex<HeaderMap>>::default();
    let kept = Arc::clone(&head);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("client");
        #[expect(clippy::result_large_err, reason = "the library's own type")]
        let shake = |request: &Request, mut response: Handshake| {
            *kept.lock().expect("head") = request.headers().clone();
            if let Some(protocol) = protocol {
                response.headers_mut().insert("sec-websocket-protocol", protocol.parse().expect("value"));
            }
            Ok(response)
        };
        let socket = tokio_tungstenite::accept_hdr_async(stream, shake).await.expect("handshake");
        serve(socket).await;
    });
    (url, head)
}

async fn open(url: &Url) -> (Result<WebSocket, SendError>, Arc<Log>) {
    let log = Arc::new(Log::default());
    let target = target(url, None).await;
    (soon(WebSocket::open(&target, Arc::clone(&log) as _)).await, log)
}

#[tokio::test]
async fn messages_go_both_ways_as_frames() {
    let (url, head) = socket_server(Some("mcp"), |mut socket| async move {
        socket.send(Message::Ping("p".into())).await.expect("sent");
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Text(text) => {
                    let message: Value = serde_json::from_str(&text).expect("JSON");
                    let id = message["id"].as_u64().expect("id");
                    socket.send(Message::text("not a message")).await.expect("sent");
                    socket
                        .send(Message::text(result(id, json!({"big": "x".repeat(MAX - 100)})).to_string()))
                        .await
                        .expect("sent");
                }
                Message::Pong(payload) => {
                    assert_eq!(&*payload, b"p");
                    let pong = json!({"jsonrpc": "2.0", "method": "ponged"}).to_string();
                    socket.send(Message::binary(pong)).await.expect("sent");
                }
                _ => break,
            }
        }
    })
    .await;
    let (transport, log) = open(&url).await;
    let transport = transport.expect("open");
    eventually("the ping is answered", || !log.messages().is_empty()).await;
    let send = |id| transport.send(request(id, "tools/call", LEGACY));
    for sent in soon(futures_util::future::join_all((1..=20).map(send))).await {
        sent.expect("sent");
    }
    eventually("every answer arrives", || log.messages().len() == 21).await;
    assert_eq!(log.messages()[20].0["id"], 20, "in order");
    assert_eq!(log.noise.lock().expect("log").len(), 20);
    soon(transport.close()).await;
    let head = head.lock().expect("head").clone();
    assert_eq!(
        (&head["sec-websocket-protocol"], &head["x-key"]),
        (&"mcp".parse().expect("v"), &"hush".parse().expect("v"))
    );
}

#[tokio::test]
async fn closed_sockets_name_their_reason() {
    let close =
        |reason: &'static str| Message::Close(Some(CloseFrame { code: CloseCode::Policy, reason: reason.into() }));
    for (last, expect) in [
        (Some(Message::text("x".repeat(MAX + 1))), "message over max_message_bytes (10000)"),
        (Some(close("go away")), "code 1008: go away"),
        (Some(close("")), "(code 1008)"),
        (Some(Message::Close(None)), "it closed the WebSocket"),
        (None, "broke"),
    ] {
        let (url, _) = socket_server(None, |mut socket| async move {
            if let Some(last) = last {
                socket.send(last).await.expect("sent");
                // The client's goodbye.
                let _ = socket.next().await;
            }
        })
        .await;
        let (transport, log) = open(&url).await;
        let transport = transport.expect("a server may leave the subprotocol out");
        eventually(expect, || log.ended().iter().any(|reason| reason.contains(expect))).await;
        assert_eq!(log.ended().len(), 1);
        let error = soon(transport.send(request(1, "x", LEGACY))).await.expect_err("closed");
        assert!(matches!(error, SendError::NotSent(_) | SendError::Broken(_)), "{error:?}");
    }
}

#[tokio::test]
async fn non_websocket_endpoints_are_reported() {
    let (url, _) = socket_server(Some("chat"), |_| async {}).await;
    let (transport, _) = open(&url).await;
    assert!(matches!(transport, Err(SendError::Broken(text)) if text.contains("subprotocol")));
    type Answer = Box<dyn Fn(&SentRequest) -> Response + Send + Sync>;
    let cases: [(Answer, &str); 4] = [
        (Box::new(|_: &SentRequest| status(200)), "opens no WebSocket (HTTP 200"),
        (Box::new(|_: &SentRequest| status(401)), "headers.Authorization"),
        (Box::new(|_: &SentRequest| status(404)), "HTTP 404"),
        (
            Box::new(|_: &SentRequest| {
                let headers = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-accept", "x")];
                (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
            }),
            "Sec-WebSocket-Accept",
        ),
    ];
    for (answer, expect) in cases {
        let site = Site::start(answer).await;
        let url = site.url.as_str().replace("http:", "ws:").parse().expect("url");
        let (transport, _) = open(&url).await;
        let Err(SendError::Broken(text) | SendError::Final(text)) = transport else { panic!("{expect}") };
        assert!(text.contains(expect), "{text}");
    }
}
