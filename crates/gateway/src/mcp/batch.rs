//! Several messages at once, as clients of 2025-03-26 may send them (basic, "Batching"): each goes the way that single ones
//! go, and what it is answered is collected, or goes on as it comes.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{BoxStream, SelectAll};
use futures_util::{StreamExt as _, stream};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::call::Caller;
use super::dispatch::Reply;
use super::message::{self, Message, Refused, Request, RpcError};
use super::protocol::{BATCHING, Era, era_of};
use super::response_channel::{Said, To, Waiting, whole};
use crate::Gateway;

/// Progress and questions of one request of a batch that wait for the client to read; more progress is dropped.
const NOTES: usize = 16;

/// What a request says.
pub(crate) enum Heard {
    /// A notification, or a question to the client.
    Note(Bytes),
    /// Its answer.
    Answer(Bytes),
}

/// What the messages of a batch come to.
#[derive(Default)]
pub(crate) struct Answers {
    /// Those that are there.
    pub(crate) done: Vec<Bytes>,
    /// Of those that run.
    pub(crate) running: SelectAll<BoxStream<'static, Heard>>,
    /// Whether anything in it asked for an answer.
    pub(crate) has_requests: bool,
    /// The methods of its notifications.
    pub(crate) notified: Vec<String>,
}

/// Why a batch is refused as a whole.
pub(crate) fn not_spoken() -> RpcError {
    let why = format!("several messages at once are taken where {BATCHING} was agreed on, and nowhere else");
    RpcError::new(RpcError::INVALID_REQUEST, why)
}

/// Takes the messages of a batch. `to` is how a request's response is written, `admit` what is done before one is
/// answered: it may keep something as long as the request runs, or refuse it.
pub(crate) fn take<H: Send + 'static>(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    messages: &[&RawValue],
    to: fn(mpsc::Sender<Said>) -> To,
    mut admit: impl FnMut(&mut Request) -> Result<H, RpcError>,
) -> Answers {
    let mut answers = Answers::default();
    for message in messages {
        match message::parse(message.get().as_bytes()) {
            Ok(Message::Request(mut request)) => {
                answers.has_requests = true;
                match allowed(&request).and_then(|()| admit(&mut request)) {
                    Ok(held) => answers.ask(gateway, caller, request, to, held),
                    Err(error) => answers.done.push(message::error(Some(&request.id), &error)),
                }
            }
            Ok(Message::Notification { method, params, .. }) => {
                caller.notified(&method, &params);
                answers.notified.push(method);
            }
            Ok(Message::Response(response)) => caller.peer.settle(response),
            Err(Refused { id, error }) => {
                answers.has_requests |= id.is_some();
                answers.done.push(message::error(id.as_ref(), &error));
            }
        }
    }
    answers
}

/// Whether a request may be part of a batch.
fn allowed(request: &Request) -> Result<(), RpcError> {
    let refuse = |why: &'static str| Err(RpcError::new(RpcError::INVALID_REQUEST, why));
    match era_of(request, None) {
        Era::Modern => refuse("a request of 2026-07-28 stands alone: it is no part of a batch"),
        // Nothing may be asked before it is answered (2025-03-26, basic/lifecycle).
        Era::Legacy if request.method == "initialize" => refuse("`initialize` must not be part of a batch"),
        Era::Legacy => Ok(()),
    }
}

impl Answers {
    fn ask<H: Send + 'static>(
        &mut self,
        gateway: &Arc<Gateway>,
        caller: &Caller,
        request: Request,
        to: fn(mpsc::Sender<Said>) -> To,
        held: H,
    ) {
        let id = request.id.clone();
        let (say, said) = mpsc::channel(NOTES);
        match gateway.reply(caller, Era::Legacy, request, to(say)) {
            Reply::Result(result) => self.done.push(message::result(&id, &result)),
            Reply::Error(error) => self.done.push(message::error(Some(&id), &error)),
            Reply::Running(waiting) => self.running.push(heard(waiting, said, held).boxed()),
            Reply::Listen(_) => {
                let error = RpcError::method_not_found("subscriptions/listen");
                self.done.push(message::error(Some(&id), &error));
            }
        }
    }

    /// All that are there as one message; `None` when there is none.
    pub(crate) fn together(&self) -> Option<Bytes> {
        if self.done.is_empty() {
            return None;
        }
        let mut all = Vec::with_capacity(self.done.iter().map(|answer| answer.len() + 1).sum::<usize>() + 1);
        for (at, answer) in self.done.iter().enumerate() {
            all.push(if at == 0 { b'[' } else { b',' });
            all.extend_from_slice(answer);
        }
        all.push(b']');
        Some(all.into())
    }
}

/// What a request that runs says. It ends with its answer; one that its client cancelled has none.
fn heard<H: Send + 'static>(
    waiting: Waiting,
    said: mpsc::Receiver<Said>,
    held: H,
) -> impl stream::Stream<Item = Heard> + Send {
    stream::unfold(Some((waiting, said, held)), |state| async move {
        let (waiting, mut said, held) = state?;
        match said.recv().await? {
            Said::Note(note) => Some((Heard::Note(note), Some((waiting, said, held)))),
            Said::End(end) => Some((Heard::Answer(whole(waiting.id(), &end?)), None)),
        }
    })
}
