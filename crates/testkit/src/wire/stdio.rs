//! One JSON message a line; the end of standard input ends the server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::Value;
use tokio_util::codec::{FramedRead, LinesCodec};

use super::host::Host;
use super::outlet::Outlet;
use super::session::Session;
use super::{Answer, Era, Incoming, MAX_MESSAGE, Request, RpcError};

/// The time for another task to send the last answer before the process ends.
pub(super) const FINAL_ANSWER_GRACE: Duration = Duration::from_millis(200);

pub(super) async fn serve(host: Arc<Host>) -> io::Result<()> {
    let outlet = Outlet::Stdout(Arc::new(tokio::sync::Mutex::new(tokio::io::stdout())));
    let session = Arc::new(Session::default());
    let mut lines = FramedRead::new(tokio::io::stdin(), LinesCodec::new_with_max_length(MAX_MESSAGE));
    while let Some(line) = lines.next().await {
        let line = line.map_err(io::Error::other)?;
        if !line.trim().is_empty() {
            take(&host, &session, &outlet, line.as_bytes()).await;
        }
    }
    Ok(())
}

/// Handles one message of a client that gets all answers on one outlet.
pub(super) async fn take(host: &Arc<Host>, session: &Arc<Session>, outlet: &Outlet, message: &[u8]) {
    let message = serde_json::from_slice(message).map_err(|e| RpcError::new(RpcError::PARSE, e.to_string()));
    match message.and_then(|message: Value| Incoming::sort(message, Era::Legacy)) {
        Ok(Incoming::Request(request)) => begin(host, session, outlet, request).await,
        Ok(Incoming::Cancelled(id)) => session.cancel(&id),
        Ok(Incoming::Answered(id, answer)) => session.answered(&id, answer),
        Ok(Incoming::Other) => {}
        Err(error) => {
            outlet.message(&error.into_message(None)).await;
        }
    }
}

async fn begin(host: &Arc<Host>, session: &Arc<Session>, outlet: &Outlet, request: Request) {
    let Some(cancel) = session.begin(&request.id) else {
        let error = RpcError::new(RpcError::BUSY, "too many requests are running");
        outlet.message(&error.into_message(Some(&request.id))).await;
        return;
    };
    let (host, session, outlet) = (Arc::clone(host), Arc::clone(session), outlet.clone());
    tokio::spawn(async move {
        let answer = host.answer(&session, &request, cancel, outlet.clone(), None).await;
        session.end(&request.id);
        let last_words = if let Answer::LastWords(_, code) = answer { Some(code) } else { None };
        outlet.finish(answer, &request.id).await;
        if let Some(code) = last_words {
            if matches!(outlet, Outlet::Shared(_)) {
                tokio::time::sleep(FINAL_ANSWER_GRACE).await;
            }
            std::process::exit(code);
        }
    });
}
