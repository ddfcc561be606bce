//! WebSocket at `/ws`, subprotocol `mcp`: one message a frame.

use std::io::{self, Write as _};
use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use super::host::Host;
use super::outlet::{MAX_WAITING_FRAMES, Outlet, Piece};
use super::session::Session;
use super::stdio;

/// The most open sockets; further clients wait.
const MAX_SOCKETS: usize = 64;

pub(super) async fn serve(host: Arc<Host>, port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    writeln!(io::stderr(), "{}: ready ws://{}/ws", host.name(), listener.local_addr()?)?;
    let room = Arc::new(Semaphore::new(MAX_SOCKETS));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, _) = listener.accept().await?;
        let host = Arc::clone(&host);
        tokio::spawn(async move {
            talk(host, stream).await;
            drop(permit);
        });
    }
}

/// Serves one client until it goes.
async fn talk(host: Arc<Host>, stream: TcpStream) {
    #[expect(clippy::result_large_err, reason = "the library's own type")]
    let choose = |_: &Request, mut response: Response| {
        response.headers_mut().insert("sec-websocket-protocol", axum::http::HeaderValue::from_static("mcp"));
        Ok(response)
    };
    // The library answers clients that do not speak WebSocket.
    let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, choose).await else { return };
    let (mut sink, mut frames) = socket.split();
    let (sender, mut pieces) = mpsc::channel(MAX_WAITING_FRAMES);
    let writer = tokio::spawn(async move {
        while let Some(piece) = pieces.recv().await {
            let message = match piece {
                Piece::Message(text) => Message::text(text),
                Piece::Raw(bytes) => Message::text(String::from_utf8_lossy(&bytes).into_owned()),
            };
            if sink.send(message).await.is_err() {
                return;
            }
        }
    });
    let (session, outlet) = (Arc::<Session>::default(), Outlet::Shared(sender));
    while let Some(Ok(frame)) = frames.next().await {
        if let Message::Text(text) = frame {
            stdio::take(&host, &session, &outlet, text.as_bytes()).await;
        }
    }
    writer.abort();
}
