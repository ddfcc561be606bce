//! WebSocket (RFC 6455), subprotocol `mcp`: one message a frame, either way.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::{Response, Upgraded};
use tokio::sync::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};
use tokio_util::task::AbortOnDropHandle;

use super::HttpFailure;
use super::delivery::deliver;
use super::target::{Refusal, Target};
use crate::transport::{Incoming, Outgoing, SendError, Transport};

const SUBPROTOCOL: &str = "mcp";
/// Room to read into; a larger message gets more.
const READ_BUFFER: usize = 16 * 1024;
/// Bound on saying goodbye.
const CLOSE_BOUND: Duration = Duration::from_secs(2);

type Socket = WebSocketStream<Upgraded>;

/// A server over a WebSocket.
pub(super) struct WebSocket {
    sink: Mutex<SplitSink<Socket, Message>>,
    reader: AbortOnDropHandle<()>,
}

impl WebSocket {
    /// Connects. `target` has an `http` or `https` URL and a client limited to HTTP/1.1.
    ///
    /// # Errors
    /// [`SendError`]: no protocol message was sent.
    pub(super) async fn open(target: &Target, incoming: Arc<dyn Incoming>) -> Result<Self, SendError> {
        let socket = upgrade(target).await?;
        let (sink, stream) = socket.split();
        let max = target.max;
        let reader = AbortOnDropHandle::new(tokio::spawn(read(stream, incoming, max)));
        Ok(Self { sink: Mutex::new(sink), reader })
    }
}

#[async_trait]
impl Transport for WebSocket {
    async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError> {
        let closed = || SendError::NotSent("the WebSocket is closed".to_owned());
        if self.reader.is_finished() {
            return Err(closed());
        }
        let not_text = |_| SendError::NotSent("the message is not UTF-8".to_owned());
        let text = String::from_utf8(message.json).map_err(not_text)?;
        // The sink buffers a started frame, so dropping this future does not cut it.
        self.sink.lock().await.send(Message::text(text)).await.map_err(|error| match error {
            Error::ConnectionClosed | Error::AlreadyClosed => closed(),
            error => SendError::Broken(format!("the WebSocket broke: {error}")),
        })
    }

    async fn close(&self) {
        let goodbye = async { self.sink.lock().await.close().await };
        // A peer that has gone needs no farewell.
        let _ = tokio::time::timeout(CLOSE_BOUND, goodbye).await;
        self.reader.abort();
    }
}

async fn upgrade(target: &Target) -> Result<Socket, HttpFailure> {
    let key = generate_key();
    let broken =
        |what: &str| HttpFailure::Other(format!("it does not open a WebSocket as RFC 6455 prescribes: {what}"));
    let mut headers = HeaderMap::from_iter([
        (CONNECTION, HeaderValue::from_static("Upgrade")),
        (UPGRADE, HeaderValue::from_static("websocket")),
        (SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")),
        (SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL)),
    ]);
    let accept = derive_accept_key(key.as_bytes());
    headers.extend(HeaderValue::try_from(key).ok().map(|key| (SEC_WEBSOCKET_KEY, key)));
    let response = target.request(Method::GET, &target.url, headers, None).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {}
        status if status.is_success() => {
            return Err(HttpFailure::Other(format!("it opens no WebSocket (HTTP {status}): check the path of `url`")));
        }
        _ => return Err(target.failure(Refusal::read(response).await)),
    }
    if header(&response, &SEC_WEBSOCKET_ACCEPT) != Some(accept.as_str()) {
        return Err(broken("its `Sec-WebSocket-Accept` is wrong"));
    }
    // Some servers name none although they accept the only one offered.
    if header(&response, &SEC_WEBSOCKET_PROTOCOL).is_some_and(|protocol| protocol != SUBPROTOCOL) {
        return Err(broken("it chose a subprotocol that was not offered"));
    }
    let upgraded = response.upgrade().await?;
    let mut config = WebSocketConfig::default();
    config.read_buffer_size = READ_BUFFER;
    config.write_buffer_size = 0;
    config.max_message_size = Some(target.max);
    config.max_frame_size = Some(target.max);
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
}

fn header<'r>(response: &'r Response, name: &http::HeaderName) -> Option<&'r str> {
    response.headers().get(name)?.to_str().ok()
}

/// Passes messages on until the end.
async fn read(mut stream: SplitStream<Socket>, incoming: Arc<dyn Incoming>, max: usize) {
    let reason = loop {
        match stream.next().await {
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                let bytes = message.into_data();
                if deliver(&*incoming, &bytes, None).garbage {
                    incoming.unreadable(&bytes);
                }
            }
            // The library answers pings and never passes on raw frames.
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(None))) | None => break "it closed the WebSocket".to_owned(),
            Some(Ok(Message::Close(Some(frame)))) => {
                let reason: String = frame.reason.chars().take(200).collect();
                break format!(
                    "it closed the WebSocket (code {}{}{reason})",
                    u16::from(frame.code),
                    if reason.is_empty() { "" } else { ": " }
                );
            }
            Some(Err(Error::Capacity(CapacityError::MessageTooLong { .. }))) => {
                return incoming.message_too_large(HttpFailure::TooLarge(max).to_string());
            }
            Some(Err(error)) => break format!("the WebSocket broke: {error}"),
        }
    };
    incoming.ended(reason);
}
