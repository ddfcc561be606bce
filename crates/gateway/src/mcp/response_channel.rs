//! Where what a call says goes: the response to the request that waits for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::mpsc;
use toolwright_core::cancel::{Cancel, CancelCause};

use super::message::{self, Id, RpcError};
use super::protocol::{Era, Level};
use super::running_calls::Entered;

/// What a call says to one request.
pub(crate) enum Said {
    /// A notification, or a question to the client.
    Note(Bytes),
    /// The last: result or error, or nothing to a client that cancelled.
    End(Option<Result<Vec<u8>, RpcError>>),
}

/// The transport's end of a response.
pub(crate) enum To {
    /// All messages of a connection, one after another.
    Pipe(mpsc::Sender<Bytes>),
    /// A response of its own, which may be a stream.
    Stream(mpsc::Sender<Said>),
    /// A response of its own that has room for its end only.
    Whole(mpsc::Sender<Said>),
}

/// The request that waits for a call.
pub(crate) struct Attached {
    pub(crate) id: Id,
    pub(crate) to: To,
    /// Under which it wants progress.
    pub(crate) progress: Option<Id>,
    /// The least severe log message that it wants (2026-07-28).
    pub(crate) level: Option<Level>,
    /// Its place among what can be cancelled.
    pub(crate) entered: Entered,
}

/// A call's channel to its client. A modern call that asks something has no request that waits for it until the client
/// comes back with the answer.
pub(crate) struct ResponseChannel {
    pub(crate) cancel: Cancel,
    era: Era,
    attached: Mutex<Option<Attached>>,
    /// What the latest request wanted to have logged.
    level: Mutex<Option<Level>>,
}

impl ResponseChannel {
    pub(crate) fn new(era: Era, cancel: Cancel, attached: Attached) -> Arc<Self> {
        let level = Mutex::new(attached.level);
        Arc::new(Self { cancel, era, attached: Mutex::new(Some(attached)), level })
    }

    /// Says something that may be lost: a client that does not read misses it. Never waits.
    pub(crate) fn note(&self, message: impl FnOnce(&Attached) -> Option<Bytes>) {
        // The lock is kept while sending, so that two notes at once keep their order.
        let attached = self.lock();
        let Some((attached, message)) = attached.as_ref().and_then(|attached| Some((attached, message(attached)?)))
        else {
            return;
        };
        let sent = match &attached.to {
            To::Pipe(to) => to.try_send(message).is_ok(),
            To::Stream(to) => to.try_send(Said::Note(message)).is_ok(),
            To::Whole(_) => true,
        };
        if !sent {
            tracing::debug!("a notification was dropped: the client is not reading");
        }
    }

    /// Asks something in the stream of the response. `None`: there is none, or nobody reads it any more.
    pub(crate) async fn question(&self, message: Bytes) -> Option<Gone> {
        let gone = match self.lock().as_ref().map(|attached| &attached.to) {
            Some(To::Pipe(to)) => Gone::Pipe(to.clone()),
            Some(To::Stream(to)) => Gone::Stream(to.clone()),
            Some(To::Whole(_)) | None => return None,
        };
        match &gone {
            Gone::Pipe(to) => to.send(message).await.ok()?,
            Gone::Stream(to) => to.send(Said::Note(message)).await.ok()?,
        }
        Some(gone)
    }

    /// Whether something can be asked in the stream of the response.
    pub(crate) fn takes_questions(&self) -> bool {
        self.lock().as_ref().is_some_and(|attached| !matches!(attached.to, To::Whole(_)))
    }

    /// Ends the response, if a request waits for it. A client that cancelled is not answered.
    pub(crate) async fn end(&self, result: Result<Vec<u8>, RpcError>) {
        let Some(Attached { id, to, entered, .. }) = self.lock().take() else { return };
        // From here on its id may be used again.
        drop(entered);
        let wanted = self.cancel.cause() != Some(CancelCause::User);
        match to {
            To::Pipe(to) if wanted => {
                to.send(whole(&id, &result)).await.ok();
            }
            To::Pipe(_) => {}
            To::Stream(to) | To::Whole(to) => {
                to.send(Said::End(wanted.then_some(result))).await.ok();
            }
        }
    }

    /// Whether a request waits for the call.
    pub(crate) fn is_attached(&self) -> bool {
        self.lock().is_some()
    }

    /// Whether a request waits for it, and nobody has cancelled.
    pub(crate) fn is_awaited(&self) -> bool {
        self.lock().is_some() && !self.cancel.is_cancelled()
    }

    /// The request that waits from now on.
    pub(crate) fn attach(&self, attached: Attached) {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = attached.level;
        *self.lock() = Some(attached);
    }

    /// The least severe log message that the latest request wants.
    pub(crate) fn level(&self) -> Option<Level> {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ResponseChannel {
    fn drop(&mut self) {
        let Some(Attached { id, to, .. }) = self.lock().take() else { return };
        tracing::error!("a call ended without a result");
        let error = || RpcError::new(RpcError::INTERNAL, "the call ended without a result; the server's log says why");
        match to {
            To::Pipe(to) => drop(to.try_send(message::error(Some(&id), &error()))),
            To::Stream(to) | To::Whole(to) => drop(to.try_send(Said::End(Some(Err(error()))))),
        }
    }
}

/// A response as one message.
pub(crate) fn whole(id: &Id, result: &Result<Vec<u8>, RpcError>) -> Bytes {
    match result {
        Ok(result) => message::result(id, result),
        Err(error) => message::error(Some(id), error),
    }
}

/// Tells when nobody reads a response any more.
pub(crate) enum Gone {
    Pipe(mpsc::Sender<Bytes>),
    Stream(mpsc::Sender<Said>),
}

impl Gone {
    pub(crate) async fn wait(&self) {
        match self {
            Self::Pipe(to) => to.closed().await,
            Self::Stream(to) => to.closed().await,
        }
    }

    /// Says something more, if there is room.
    pub(crate) fn note(&self, message: Bytes) {
        match self {
            Self::Pipe(to) => drop(to.try_send(message)),
            Self::Stream(to) => drop(to.try_send(Said::Note(message))),
        }
    }
}

/// The side of one request that waits for its response to end.
pub(crate) struct Waiting {
    channel: Weak<ResponseChannel>,
    id: Id,
}

impl Waiting {
    pub(crate) fn on(channel: &Arc<ResponseChannel>, id: Id) -> Self {
        Self { channel: Arc::downgrade(channel), id }
    }

    /// The request's id.
    pub(crate) fn id(&self) -> &Id {
        &self.id
    }

    /// The response goes where all do: its request needs no looking after.
    pub(crate) fn leave(mut self) {
        self.channel = Weak::new();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Nobody waits any more. To a modern client closing the stream means cancel; an older one may
        // lose its connection without meaning it (2025-11-25, "Sending Messages to the Server").
        let Some(channel) = self.channel.upgrade().filter(|channel| channel.era == Era::Modern) else { return };
        let is_ours = channel.lock().as_ref().is_some_and(|attached| attached.id == self.id);
        if is_ours {
            channel.cancel.cancel(CancelCause::User);
        }
    }
}
