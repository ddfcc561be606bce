//! Several messages in one request, as clients of 2025-03-26 may send them.

use std::pin::pin;
use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};

use super::answer::{Refusal, json};
use super::headers::{self, Accepts};
use super::sessions::HttpSession;
use super::{Endpoint, Place, TOO_MANY_REQUESTS, sse};
use crate::mcp::batch::{Answers, Heard, not_spoken, take};
use crate::mcp::call::Caller;
use crate::mcp::message::RpcError;
use crate::mcp::protocol::BATCHING;
use crate::mcp::response_channel::To;

impl Endpoint {
    /// Takes a batch of messages of this session. Each request in it takes a place among those that are answered at once,
    /// the first the one of the whole.
    pub(super) async fn batch(
        &self,
        (session, caller): (&Arc<HttpSession>, &Caller),
        headers: &HeaderMap,
        accepts: Accepts,
        body: &[u8],
        place: Place,
    ) -> Result<Response, Refusal> {
        let refuse = |error: &RpcError| Refusal::rpc(StatusCode::BAD_REQUEST, None, error);
        // What was agreed on counts where the header is left out, as clients of that revision do.
        let is_said = headers::version(headers).is_none_or(|version| version == BATCHING);
        if !is_said || !session.caller.peer.sends_batches() {
            return Err(refuse(&not_spoken()));
        }
        let messages = toolwright_mcp::batch::batch(body).map_err(|refused| refuse(&refused.error))?;
        let to = if accepts.events { To::Stream } else { To::Whole };
        let (mut first, traceparent) = (Some(place), headers::traceparent(headers));
        let answers = take(&self.gateway, caller, &messages, to, |request| {
            let further = || Arc::clone(&self.requests).try_acquire_owned().ok();
            let place = first.take().or_else(|| Some(Place { _permit: further()?, _room: None }));
            let place = place.ok_or_else(|| RpcError::new(RpcError::BUSY, TOO_MANY_REQUESTS))?;
            if request.params.meta.traceparent.is_none() {
                request.params.meta.traceparent = traceparent.map(Into::into);
            }
            self.noted(session, request);
            Ok((place, session.enter()))
        });
        match answers.together() {
            // Nothing in it could be taken as something to answer.
            Some(errors) if !answers.has_requests => Ok((StatusCode::BAD_REQUEST, json(errors)).into_response()),
            None if !answers.has_requests => Ok(StatusCode::ACCEPTED.into_response()),
            _ => Ok(self.answers(accepts, answers).await),
        }
    }

    /// What ends before it has anything else to say is answered with one JSON array, and as an event stream, message by
    /// message, from the first progress or question, or from when it has been silent for long.
    async fn answers(&self, accepts: Accepts, mut answers: Answers) -> Response {
        let note = {
            let mut silent = pin!(tokio::time::sleep(self.keep_alive));
            loop {
                let heard = tokio::select! {
                    heard = answers.running.next() => heard,
                    () = &mut silent, if accepts.events => break None,
                };
                match heard {
                    Some(Heard::Answer(answer)) => answers.done.push(answer),
                    Some(Heard::Note(note)) => break Some(note),
                    None if accepts.json => {
                        return answers.together().map_or_else(|| StatusCode::ACCEPTED.into_response(), json);
                    }
                    None => break None,
                }
            }
        };
        let Answers { done, running, .. } = answers;
        let rest = running.map(|heard| match heard {
            Heard::Note(message) | Heard::Answer(message) => message,
        });
        let first = done.into_iter().chain(note);
        sse::response(stream::iter(first.collect::<Vec<Bytes>>()).chain(rest), self.keep_alive)
    }
}
